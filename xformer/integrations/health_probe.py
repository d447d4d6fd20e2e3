"""Run the probe of `AttentionHealth` without disturbing the training, and tell what its activations say of the model.

with undisturbed(model):
    reading = read(model, prepared(probe, model, tokenizer))
first_bad(reading, valid)                  where the first value is that is not finite
first_change(reading.trace, other, …)      the first activation at earlier positions that later tokens change
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xformer.adapters.attention_sums import SummedRun
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.analysis.attention_health import KEEP_LONG, LongPattern, Patterns
from xformer.doctor.causal_signs import declared_causal
from xformer.errors import InputError, XformerError
from xformer.formatting import error_message
from xformer.integrations.health_alarms import Measurement
from xformer.layer_path import LayerPath
from xformer.model import Transformer
from xformer.pooling import block_max, block_size
from xformer.program.module_state import preserve_state
from xformer.program.record import tensors_in
from xformer.reading import Reading, adapter_of, plain_ids
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import Trace, first_nan
from xformer.viz.packing import SIDE, plane

LONG = 1024
"""The patterns of longer probes are never in memory where the model allows it; see `read_long`."""
INDUCTION_LENGTH = 16
"""The length in tokens of the sequence that is repeated in the induction probe."""
OWN_SCALE = ("relative_attention_num_buckets", "query_pre_attn_scalar", "attention_multiplier")
"""Settings of families whose scores have a factor other than 1/√d_head (T5, Gemma, Granite)."""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run a model without gradients, autocast and compilation, and restore the random states afterwards.

    Raises `InputError` for an index that an embedding table does not have: on a GPU, it would end the process.
    """
    devices = {weight.device for weight in model.parameters()}
    gpus = sorted({device for device in devices if device.type == "cuda"}, key=str)
    kind = next(iter(devices)).type if devices else "cpu"
    forward = vars(model).get("forward")  # accelerate wraps the method in autocast
    tables = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Embedding)]
    state, np_state = random.getstate(), np.random.get_state()
    if hasattr(forward, "__wrapped__"):
        del model.forward
    no_cast = torch.autocast(kind, enabled=False)
    try:
        # Around all reads of a probe, so that the state of the model is saved only once.
        with torch.random.fork_rng(devices=gpus), torch.no_grad(), no_cast, preserve_state(model):
            for name, table in tables:
                table.register_forward_pre_hook(_index_check(name))
            yield
    finally:
        random.setstate(state)
        np.random.set_state(np_state)
        if hasattr(forward, "__wrapped__"):
            vars(model)["forward"] = forward


def _index_check(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    """A hook that refuses an index which an embedding table does not have."""

    def check(table: nn.Module, args: tuple[Any, ...]) -> None:
        ids = next((one for one in args if isinstance(one, Tensor)), None)
        if not isinstance(table, nn.Embedding) or ids is None or ids.is_floating_point() or not ids.numel():
            return
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= table.num_embeddings:
            what = f"The probe needs row {low if low < 0 else high} of {name or 'the embedding'}"
            raise InputError(f"{what}, which has {table.num_embeddings} rows: is it too long, or of another tokenizer?")

    return check


def gap_between_runs(model: nn.Module, inputs: Any) -> float:
    """The largest difference between the outputs of two plain runs in eval mode; 0 if the model cannot be called."""
    named = dict(inputs) if isinstance(inputs, Mapping) else {"0": inputs}
    args = [value for name, value in named.items() if name.isdigit()]
    with suppress(Exception), preserve_state(model):
        one, two = (
            tensors_in(model(*args, **{name: value for name, value in named.items() if not name.isdigit()}))
            for _ in range(2)
        )
        gaps = [float((a - b).abs().max()) for a, b in zip(one, two, strict=True) if a.is_floating_point()]
        return max(gaps, default=0.0)
    return 0.0


def read_long(model: nn.Module, inputs: Any, valid: Tensor | None) -> tuple[Reading, dict[str, LongPattern]] | None:
    """Read one long input, and sum up its attention in the same pass.

    Returns:
        The reading, without patterns, and the patterns. None if the input is short, a batch, or of two streams, or if the model
        does not hand its queries and keys over.
    """
    given = inputs.values() if isinstance(inputs, Mapping) else (inputs,)
    if max((one.shape[1] for one in given if isinstance(one, Tensor) and one.dim() > 1), default=0) <= LONG:
        return None  # before the arguments are compared with the model's own call
    adapter = adapter_of(model, inputs, None)
    if not isinstance(adapter, HuggingFaceModel) or adapter.opened.backend != "attention_function":
        return None
    example = adapter.to_example(plain_ids(inputs))
    if example.target is not None or len(example.input_ids) != 1 or example.input_ids.shape[1] <= LONG:
        return None
    valid = valid if example.valid is None else example.valid
    keep = (*KEEP_LONG, adapter.output_name)
    run = SummedRun(sys.maxsize, valid=None if valid is None else valid[0].cpu(), keep=keep)
    adapter.sum_attention(example, run)
    trace = Trace(None, example.input_ids, None, (), run.activations, example.valid, added=adapter.shape.added)
    patterns = {path: LongPattern(sums, run.kept[path]) for path, sums in run.sums.items()}
    return Reading(adapter, example, trace, False), patterns


def picture(pattern: Tensor | LongPattern, mask: Tensor | None) -> np.ndarray:
    """The pattern of the first input as codes [head, row, col]; see `xformer.viz.packing.plane`."""
    if isinstance(pattern, LongPattern):
        size, rows = block_size(pattern.shape[-1], SIDE), []
        for block in pattern.blocks:
            weights = pattern.weights(block).masked_fill(pattern.scores(block) == -math.inf, -math.inf)
            rows.append(block_max(weights.numpy(), size, -1))
        maxima = np.concatenate(rows, axis=1)  # [head, query, col]
        return plane(maxima, maxima > -math.inf)
    allowed = np.ones((1, 1, 1), dtype=bool) if mask is None else mask.expand(pattern.shape)[0].numpy(force=True)
    return plane(pattern[0].numpy(force=True), allowed)


def _is_stream(name: str) -> bool:
    """Whether an activation is checked for NaN at every probe."""
    return name.endswith((".resid_post", ".pattern", ".z", "logits", "output"))


def _positions_of(name: str, value: Tensor) -> Tensor | None:
    """An activation as [batch, pos, …]; None if it has no such axes."""
    if value.dim() == 4 and name.rpartition(".")[2] not in ("scores", "mask"):
        return value.transpose(1, 2)  # [batch, head, pos, …]
    return value if value.dim() == 3 else None


def _is_bad(name: str, value: Tensor, valid: Tensor | None, *, infinite: bool = False) -> bool:
    """Whether an activation has a NaN, or an infinite value, at a token that is not padding."""
    if not value.is_floating_point() or name.endswith(".mask"):
        return False
    bad = ~value.isfinite() if infinite else value.isnan()
    placed = _positions_of(name, bad)
    if valid is not None and placed is not None and placed.shape[:2] == valid.shape:
        bad = placed[valid.to(placed.device)]
    return bool(bad.any())


def first_bad(reading: Reading, valid: Tensor | None) -> tuple[str, str] | None:
    """The name of the first activation that is not finite at a token, and a sentence; None if there is no NaN."""
    if not any(_is_bad(name, value, valid) for name, value in reading.trace.activations.items() if _is_stream(name)):
        return None
    activations = reading.trace.activations
    with suppress(Exception):  # all activations may need too much memory; the kept ones then tell
        activations = reading.adapter.record(reading.example).activations
    for name, value in activations.items():
        if _is_bad(name, value, valid, infinite=not name.endswith((".scores", "logits"))):
            masks = [one for one in (f"{name.rpartition('.')[0]}.mask",) if one in activations]
            text = first_nan({name: value} | {one: activations[one] for one in masks})
            return name, text or f"The first value that is not finite is in {name}."
    return None


def losses_of(logits: Tensor, tokens: Tensor, valid: Tensor | None) -> tuple[float, float]:
    """The mean cross-entropy of each next token, and of each token itself, in nats.

    Args:
        logits: [batch, pos, vocab].
        tokens: The ids [batch, pos] that the model reads.
        valid: False at padding [batch, pos]; None: there is none.
    """
    labels = torch.stack([tokens[:, 1:], tokens[:, :-1]]).to(logits.device)  # [next or own, batch, pos]
    if valid is not None:
        labels = labels.masked_fill(~(valid[:, 1:] & valid[:, :-1]).to(logits.device), IGNORED)
    totals = [0.0, 0.0]
    # Row by row, as a float32 copy of all logits could take as much memory as the rest of the probe.
    for row, *both in zip(logits[:, :-1], *labels, strict=True):
        log_p = row.float().log_softmax(dim=-1)
        for at, label in enumerate(both):
            totals[at] += float(F.nll_loss(log_p, label, ignore_index=IGNORED, reduction="sum"))
    n = max(1, int((labels[0] != IGNORED).sum()))
    return totals[0] / n, totals[1] / n


def with_other_ending(reading: Reading) -> Example | None:
    """The example with other values in the second half of what the last stack reads; None if they cannot be changed."""
    example = reading.example
    arguments = dict(example.arguments or {})
    shape = (example.input_ids if example.target is None else example.target).shape
    fitting = [
        name
        for name, value in arguments.items()
        if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[:2] == shape and value.dtype != torch.bool
    ]
    streams = [name for name in fitting if "mask" not in name and "position" not in name and "type" not in name]
    name = streams[-1 if example.target is not None else 0] if streams else ""
    given = arguments[name] if name else example.input_ids if example.target is None else example.target
    changed = _other_ending(given)
    if changed is None:
        return None
    if name:
        return replace(example, arguments=arguments | {name: changed})
    return replace(example, input_ids=changed) if example.target is None else replace(example, target=changed)


def _other_ending(values: Tensor) -> Tensor | None:
    """A tensor [batch, pos, …] with the second half of its positions filled by other values of its own."""
    n = values.shape[1] // 2
    for other in (values.flip(1), values.roll(1, dims=1), values.roll(1, dims=0)):
        changed = torch.cat([values[:, :n], other[:, n:]], dim=1)
        if n and not torch.equal(changed, values):
            return changed
    return None


def first_change(
    one: Mapping[str, Tensor], two: Mapping[str, Tensor], stack: str, valid: Tensor | None, noise: float
) -> tuple[str, float] | None:
    """The first activation of a stack whose first half differs between two runs, and by which share of its second half's."""
    for name, value in one.items():
        before, after = _positions_of(name, value), _positions_of(name, two[name]) if name in two else None
        is_own = name.startswith(stack) or name.rpartition(".")[0] == ""
        if not is_own or before is None or after is None or name.endswith((".pattern", "pos_embed")):
            continue
        change = (after.float() - before.float()).abs().flatten(2).amax(-1)  # [batch, pos]
        n = change.shape[1] // 2
        late = float(change[:, n:].max())
        early = (
            change[:, :n] if valid is None or valid.shape != change.shape else change[:, :n] * valid[:, :n].to(change)
        )
        share = float(early.max()) / late if n and 0 < late < math.inf else 0.0
        if share > noise:
            return name, share
    return None


def looks_causal(sites: Sequence[LayerPath], patterns: Patterns, activations: Mapping[str, Tensor]) -> bool:
    """Whether a layer permits far fewer later keys than earlier ones. The weights of some steps would not tell."""
    for site in sites:
        pattern = patterns[site.path]
        if isinstance(pattern, LongPattern):
            query, (begin, end) = torch.arange(pattern.shape[2]), pattern.sums.permitted.unbind(-1)
            later, earlier = (n.clamp(min=0).sum() for n in (end - 1 - query, query - begin))
            if bool(later < 0.5 * earlier):
                return True
            continue
        allowed = activations.get(f"{site.path}.mask")
        allowed = (pattern > 0 if allowed is None else allowed.expand(pattern.shape)).float()
        n = pattern.shape[-1]
        if pattern.shape[-2] != n or n < 3:
            return site.stack == "decoder"  # found when the model was opened, on a longer input
        ahead = torch.ones(n, n, dtype=torch.bool, device=pattern.device).triu(1)
        if float(allowed[..., ahead].mean()) < 0.5 * float(allowed[..., ahead.mT].mean()):
            return True
    return False


def prepared(probe: Any, model: nn.Module, tokenizer: Any) -> Any:
    """Convert the probe to inputs of `xformer.read`. Raises `InputError` for text without a tokenizer."""
    is_own, is_transformers = isinstance(model, Transformer), hasattr(model, "main_input_name")
    texts = [probe] if isinstance(probe, str) else list(probe) if isinstance(probe, list | tuple) else []
    if texts and all(isinstance(text, str) for text in texts) and not is_own:
        if tokenizer is None:
            raise InputError("A text probe needs a tokenizer; pass tokenizer=AutoTokenizer.from_pretrained(…) or ids.")
        probe = dict(tokenizer(texts, return_tensors="pt", padding=len(texts) > 1))
        probe = probe if is_transformers else probe["input_ids"]
    if is_own and isinstance(probe, tuple):  # source and target
        return tuple(one.flatten().tolist() if isinstance(one, Tensor) else one for one in probe)
    if isinstance(probe, Tensor) and not probe.is_floating_point():
        probe = probe[None] if probe.dim() == 1 else probe
        return {"input_ids": probe} if is_transformers else probe
    return probe


def is_declared_causal(model: nn.Module) -> bool | None:
    """Whether a model's class or configuration declares it causal; None if it declares nothing."""
    config: Any = getattr(model, "config", None)
    if isinstance(model, Transformer):
        return bool(config.causal)
    if not hasattr(model, "main_input_name"):
        return declared_causal(model)
    if getattr(config, "is_causal", None) is False:
        return False
    is_decoder = getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False)
    return True if is_decoder or type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")) else None


def repeated(reading: Reading) -> Any:
    """A random token sequence repeated once, [1, pos], as inputs for the model; None if it would be too short."""
    shape = reading.adapter.shape
    # No longer than the probe, which the model is known to read.
    n = min(INDUCTION_LENGTH, reading.trace.tokens.shape[1] // 2, shape.n_inputs)
    if n < 3:
        return None
    draw = torch.Generator().manual_seed(0)
    once = torch.randperm(shape.n_inputs, generator=draw)[:n]
    ids = torch.cat([once, once])[None]
    return {"input_ids": ids} if isinstance(reading.adapter, HuggingFaceModel) else ids


def has_own_scale(config: Any) -> bool:
    """Whether a family has a score factor other than 1/√d_head."""
    is_set = any(getattr(config, setting, None) for setting in OWN_SCALE)
    return is_set or getattr(config, "model_type", "") == "gpt_neo" or not getattr(config, "scale_attn_weights", True)


def reason_of(error: Exception) -> str:
    """The message of an error as a sentence."""
    text = error_message(error, 300)
    if not isinstance(error, XformerError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if text.endswith((".", "?", "!")) else f"{text}."


def n_heads_of(probe: Measurement) -> dict[str, int]:
    """The number of heads by the path of the layer."""
    return {path: len(measures["entropy_p50"]) for path, measures in probe.heads.items()}


def process_rank() -> int:
    """The rank of this process in distributed training; 0 if it trains alone."""
    is_parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if is_parallel else 0
