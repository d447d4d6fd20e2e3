"""A recorded run of a model with its inputs, activations and predictions.

    reading = xformer.read("checkpoints/reverse", "3 7 12 9")
    reading.tokens, reading.predicted, reading.loss, reading["encoder.0.attn.pattern"]

Every table and every figure is one call on a reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer import notebook_html
from xformer.adapters import BareModel, ModelAdapter, TaskModel
from xformer.adapters.adapter import ADDED, AdapterDefaults, Gradients, Measure, label_added
from xformer.adapters.adapter import gradients as gradients_of_run
from xformer.adapters.any_module import AnyModule
from xformer.adapters.capture_backends import ChangedLayoutError
from xformer.adapters.load import in_memory, is_external, opened_from, opened_module
from xformer.adapters.on_demand import OnDemand
from xformer.checkpoints import Checkpoint, load
from xformer.edit_links import all_edits, changed_source, parse_edits
from xformer.edits import Edit, set_causal
from xformer.errors import ActivationError, EditError, InputError, UnavailableError
from xformer.formatting import check_index, check_option, similar_names
from xformer.layer_path import LayerPath
from xformer.memory import check_analysis
from xformer.model import Transformer
from xformer.program.module_state import EXPORTED, unwrapped
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example, plain_ids
from xformer.trace import Trace
from xformer.transformer_lens import is_lens_name, lens_axes, lens_names, own_edits, own_name, own_names

MAX_CELLS = 4_000_000
"""Number of probabilities computed at a time, to limit memory."""
MAX_WRITTEN = 100
"""Largest number of tokens or predictions that a notebook shows."""
Readable = str | Path | Checkpoint | Transformer | nn.Module | ModelAdapter
"""A path, a loaded xformer or external model, or an adapter."""
Edits = str | Sequence[Edit | str]
"""Edits, or their text in links (see `xformer.edit_links`)."""


@dataclass(frozen=True)
class ReadCall:
    """The arguments of `read` as plain values, so that another process can repeat the reading."""

    model: str
    inputs: str | tuple[int, ...]
    causal: bool | None = None
    """True for a causal mask, False for a full one, in place of the model's own; None: the model's own."""
    edits: str = ""
    """The other edits in the form used in links."""

    def __str__(self) -> str:
        """The call that repeats the reading, as code."""
        edits = repr(self.edits) if self.edits else ""
        if self.causal is not None:
            edits = f"[{', '.join(filter(None, [f'xformer.edits.set_causal({self.causal})', edits]))}]"
        return f"xformer.read({self.model!r}, {self.inputs!r}{f', edits={edits}' if edits else ''})"


@dataclass(frozen=True, eq=False)
class Reading(Mapping[str, Tensor]):
    """One run of a model: a mapping from activation names to tensors, with the model, its inputs and its predictions.

    Names are xformer's ("encoder.0.attn.pattern") or, for a model with one stack, TransformerLens's
    ("blocks.0.attn.hook_pattern", with its order of axes); iteration yields xformer's. Two readings are equal only if they are
    the same object.

    Predictions are given at the positions where `example.labels` has a target: the right answer, or in a text the next token.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> reading["encoder.0.attn.pattern"].shape  # [batch, head, query, key]
        torch.Size([1, 4, 4, 4])
        >>> reading["blocks.0.attn.hook_q"].shape  # [batch, pos, head, d_head]
        torch.Size([1, 4, 4, 16])
        >>> reading.get("encoder.9.attn.pattern") is None
        True
    """

    adapter: ModelAdapter
    example: Example
    trace: Trace
    has_right_answer: bool = True
    """Whether predictions can be right or wrong."""
    code: ReadCall | str | None = None
    """The call that repeats the reading, as plain values or as code; None if it cannot be expressed that way."""
    token_labels: tuple[str, ...] | None = None
    """Token labels given by the caller, in place of the model's own."""

    def __getitem__(self, name: str) -> Tensor:
        """Return an activation by name. Raises `ActivationError`, a `KeyError`, if there is none of that name."""
        if not isinstance(name, str):
            raise ActivationError(
                f"Activations are indexed by name, like 'logits', got {name!r}; for one input of a batch use reading.one(0)."
            )
        if not is_lens_name(name):
            return self.trace[name]
        own = own_name(name, self.adapter.shape)
        if own not in self.trace:
            raise ActivationError(
                f"This run has no activation {name!r}; {similar_names(name, self.names('transformer_lens'))}"
            )
        value = lens_axes(own, self.trace[own])
        return value.expand(self.batch_size, *value.shape[1:]) if own == "pos_embed" else value

    def __contains__(self, name: object) -> bool:
        if not is_lens_name(name):
            return name in self.trace
        with suppress(ActivationError):
            return own_name(str(name), self.adapter.shape) in self.trace
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(self.trace)

    def __len__(self) -> int:
        return len(self.trace)

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  Mapping sets it to None; readings hash by identity

    def names(self, convention: Literal["xformer", "transformer_lens"] = "xformer") -> tuple[str, ...]:
        """Return the names of the recorded activations, in the order of the run.

        Args:
            convention: "xformer", or "transformer_lens" for the TransformerLens names of the activations that have one.

        Raises:
            ActivationError: "transformer_lens" was requested for a model with two stacks.
        """
        check_option("convention", convention, ("xformer", "transformer_lens"))
        return tuple(self.trace if convention == "xformer" else lens_names(self.trace, self.adapter.shape))

    def one(self, index: int) -> Reading:
        """Return the reading of one input of a batch, with its padding. Raises `InputError` if there is no such input."""
        return replace(self, example=self.example.one(index), trace=self.trace.one(index), code=None)

    @property
    def batch_size(self) -> int:
        """The number of inputs. Figures and tables show the first; `reading.one(i)` selects another."""
        return len(self.example.input_ids)

    @property
    def logits(self) -> Float[Tensor, "batch pos vocab"]:
        """The logits. Raises `UnavailableError` if the model has no output head."""
        if "logits" not in self.trace and "output" in self.trace:
            raise UnavailableError(
                f"{self.adapter.name} has no output head, so there are no logits; its output vectors are reading['output']."
            )
        return self.trace.logits

    @property
    def has_logits(self) -> bool:
        """Whether the model has logits; a model without an output head returns vectors."""
        return "logits" in self.trace

    @property
    def layer_paths(self) -> tuple[LayerPath, ...]:
        """The recorded attention layers, in forward order."""
        return self.trace.layer_paths()

    @property
    def attention(self) -> tuple[LayerPath, ...]:
        """The attention layers of the model; `layer=` of a figure is an index into them, from 0."""
        return self.adapter.shape.attention

    @property
    def feed_forward(self) -> tuple[LayerPath, ...]:
        """The feed-forward layers of the model; `layer=` of a neuron figure is an index into them, from 0."""
        return self.adapter.shape.feed_forward

    def attention_path(self, layer: int) -> LayerPath:
        """Return the attention layer with this index, from 0. Raises `EditError` if there is none."""
        return _numbered(self.attention, layer, "attention layers")

    def feed_forward_path(self, layer: int) -> LayerPath:
        """Return the feed-forward layer with this index, from 0. Raises `EditError` if there is none."""
        return _numbered(self.feed_forward, layer, "feed-forward layers")

    @property
    def output_stack(self) -> str:
        """The stack that produces the logits: the decoder if there is one."""
        return self.adapter.shape.output_stack

    @property
    def output(self) -> str:
        """The kind of output: "next_token"; for external models also "sequence_class", "vectors", …"""
        return self.adapter.output

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model has two stacks, an encoder and a decoder."""
        return self.adapter.shape.is_encoder_decoder

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of this run."""
        return self.trace.edits

    @property
    def tokens(self) -> tuple[str, ...]:
        """The label of the token at each position of the input."""
        return self.tokens_of()

    def tokens_of(self, stack: str | None = None) -> tuple[str, ...]:
        """Return the labels of the tokens that a stack reads; an encoder-decoder's decoder reads the target."""
        if self.token_labels is not None and (stack != "decoder" or self.trace.target is None):
            return self.token_labels
        tokens = self.trace.read_by(stack)[0]
        is_target = stack == "decoder" and self.trace.target is not None
        return (
            self.adapter.token_names(tokens)
            if is_target or not self.example.is_numbered
            else tuple(map(str, range(len(tokens))))
        )

    def ids(self, stack: str | None = None) -> list[int]:
        """Return the ids of the tokens that a stack reads."""
        return self.trace.read_by(stack)[0].tolist()

    @cached_property
    def target_positions(self) -> tuple[int, ...]:
        """The positions whose output has a target, from 0."""
        return tuple((self.example.labels[0] != IGNORED).nonzero()[:, 0].tolist())

    @cached_property
    def answer(self) -> tuple[int, ...]:
        """The target token at each target position: the right answer, or the next token of a text."""
        return tuple(self._answer.tolist())

    @property
    def open_output(self) -> int | None:
        """The last position of a decoder-only model whose next token is unknown; otherwise None."""
        if self.output not in ("next_token", "module"):
            return None
        labels, shape = self.example.labels[0], self.adapter.shape
        is_open = shape.architecture == "decoder" and self.example.target is None and int(labels[-1]) == IGNORED
        return len(labels) - 1 if is_open else None

    @property
    def answer_name(self) -> str:
        """What predictions are compared with: "right answer", or the model's `reference_label` if there is none."""
        return "right answer" if self.has_right_answer else self.adapter.input.reference_label

    def explained(self, position: int) -> int:
        """Return the token that a figure explains at a position: its target, or the likeliest token if there is none.

        Raises `InputError` if the model has no output at the position.
        """
        check_index("position", position, self.example.labels.shape[1])
        token = int(self.example.labels[0, position])
        return token if token != IGNORED else int(self.logits[0, position].argmax())

    @property
    def answers(self) -> tuple[str, ...]:
        """The labels of the target tokens."""
        return tuple(self.adapter.token_labels[token] for token in self.answer)

    @cached_property
    def probabilities(self) -> Float[Tensor, "target vocab"]:
        """The predicted distribution at each target position, given the preceding tokens.

        NaN probabilities of a broken model are replaced by 0. Raises `InputError` if the table would be too large.
        """
        if not self.has_logits:
            return torch.zeros(0, 1)
        n, vocab = len(self.target_positions), self.logits.shape[-1]
        check_analysis("probabilities", "use predicted and probability", n=n, vocab=vocab)
        return _probabilities(self._target_logits)

    @cached_property
    def predicted(self) -> tuple[int, ...]:
        """The likeliest token at each target position."""
        return self._best[1]

    @cached_property
    def probability(self) -> tuple[float, ...]:
        """The probability of the likeliest token at each target position."""
        return self._best[0]

    @cached_property
    def probability_of_answer(self) -> tuple[float, ...]:
        """The probability of the target token at each target position."""
        return self._best[2]

    @cached_property
    def _best(self) -> tuple[tuple[float, ...], tuple[int, ...], tuple[float, ...]]:
        """The largest probability, its token, and the probability of the answer at each target position.

        Positions are processed in chunks: all probabilities over a large vocabulary would take gigabytes.
        """
        if not self.has_logits:
            return (), (), ()
        targets, best, tokens, answers = list(self.target_positions), [], [], []
        step = max(1, MAX_CELLS // self.logits.shape[-1])
        for start in range(0, len(targets), step):
            p = _probabilities(self.logits[0, targets[start : start + step]])  # [target, vocab]
            best += p.amax(dim=-1).tolist()
            tokens += p.argmax(dim=-1).tolist()
            answers += p.gather(1, self._answer[start : start + step, None])[:, 0].tolist()
        return tuple(best), tuple(tokens), tuple(answers)

    @cached_property
    def loss(self) -> float:
        """Mean −log p(answer) over the target positions, in nats; NaN if there are none."""
        return F.cross_entropy(self._target_logits, self._answer).item() if self.has_logits else math.nan

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each prediction equals the target token. Not a score if there is no right answer."""
        return tuple(token == answer for token, answer in zip(self.predicted, self.answer, strict=True))

    @property
    def n_correct(self) -> int:
        """The number of predictions that equal the target token."""
        return sum(self.right)

    @property
    def _target_logits(self) -> Float[Tensor, "target vocab"]:
        return self.logits[0, list(self.target_positions)]

    @property
    def _answer(self) -> Int[Tensor, " target"]:
        labels = self.example.labels[0]
        if self.has_logits:
            labels = labels.to(self.logits.device)
        return labels[labels != IGNORED]

    def __repr__(self) -> str:
        predicted = " ".join(self.adapter.token_labels[token] for token in self.predicted)
        return f"<Reading of {self.adapter.name}: {' '.join(self.tokens)!r} → {predicted!r}, {len(self)} activations>"

    def _repr_html_(self) -> str:
        """The notebook view: input tokens, predictions with their probability, all heads, and the names of activations.

        Only the first tokens of a long input are shown. Heads of a large run are drawn from their stored thumbnails.
        """
        cell = "padding:.2em .5em;text-align:center;white-space:pre"
        read = "".join(f'<td style="{cell}">{escape(token)}</td>' for token in self.tokens[:MAX_WRITTEN])
        tables = f"<table><tr><th>reads</th>{read}{_and_more(len(self.tokens))}</tr></table>"
        if self.target_positions and self.has_logits:
            predictions = "".join(self._chips(cell))
            tables += f"<table><tr><th>predicts</th>{predictions}{_and_more(len(self.target_positions))}</tr></table>"
        run, paths = self.trace.activations, self.trace.attention_layers()
        kept = [run.reduced(path) if isinstance(run, OnDemand) else None for path in paths]
        patterns = [
            self[f"{path}.pattern"][0].float().numpy(force=True) if reduced is None else reduced.thumbnail.weights
            for path, reduced in zip(paths, kept, strict=True)
        ]
        longest = max((max(reduced.shape[1:]) for reduced in kept if reduced is not None), default=0)
        names = ", ".join(escape(name) for name in self)
        listed = f"<details><summary>{len(self)} activations</summary><small>{names}</small></details>"
        return notebook_html.card(self.adapter.name, tables, notebook_html.head_overview(patterns, longest), listed)

    def _chips(self, cell: str) -> Iterator[str]:
        """Yield a table cell for each of the first predictions, with its probability below.

        The opacity of the underline is the probability; wrong predictions get another colour.
        """
        targets, answer = self.target_positions[:MAX_WRITTEN], self.answer[:MAX_WRITTEN]
        best = self.logits[0, list(targets)].softmax(dim=-1).nan_to_num(0.0).max(dim=-1)  # [target]
        for p, token, right in zip(best.values.tolist(), best.indices.tolist(), answer, strict=True):
            ok = token == right or not self.has_right_answer
            line = f"border-bottom:3px solid hsl({130 if ok else 20} 55% 45% / {p:.2f})"
            label = escape(self.adapter.token_labels[token])
            yield f'<td style="{cell};{line}">{label}{"" if ok else " ✗"}<br><small>{p:.2f}</small></td>'


def _probabilities(logits: Float[Tensor, "target vocab"]) -> Float[Tensor, "target vocab"]:
    return logits.softmax(dim=-1).nan_to_num_(0.0)


def _and_more(n: int) -> str:
    return f"<td>… and {n - MAX_WRITTEN:,} more</td>" if n > MAX_WRITTEN else ""


def _numbered(sites: tuple[LayerPath, ...], layer: int, what: str) -> LayerPath:
    if layer not in range(len(sites)):
        available = f"{what} 0 to {len(sites) - 1}" if sites else f"no {what}"
        raise EditError(f"This model has {available}, got {layer}.")
    return sites[layer]


@torch.inference_mode(False)  # tables may need gradients of the run later
def read(
    model: Readable,
    inputs: Any,
    *,
    tokenizer: Any = None,
    tokens: Sequence[str] | None = None,
    edits: Edits = (),
    keep: Sequence[str] = ("*",),
) -> Reading:
    """Run inputs through a model and record its activations. The model is not changed.

    Args:
        model: The folder or file of a checkpoint or of a Hugging Face model (config.json with safetensors, or a .gguf file), or
            a loaded model: an `xformer.Transformer`, a `PreTrainedModel`, or any torch module.
        inputs: A text ("3 7 12 9"), token ids [pos] or [batch, pos], a list of texts or of ids (a batch, padded on the right),
            `(source, target)` for an encoder-decoder, an image, or a dict of the model's arguments.
        tokenizer: The tokenizer of a loaded Hugging Face model, for inputs that are texts.
        tokens: Labels for the positions of the first input, in place of the model's own.
        edits: Edits from `xformer.edits`, or in the form used in links ("ablate:encoder.0.ffn,token:3.7"), see
            `xformer.edit_links`; a list may contain both.
        keep: Globs of the activations to record.

    Returns:
        The reading. Without a right answer, the prediction of the unedited model takes its place.

    Raises:
        CheckpointError: The files contain no model that can be trusted.
        InputError: The model cannot read these inputs.
        EditError: An edit or a glob matches no activation of the run.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> reading["encoder.0.attn.pattern"].shape
        torch.Size([1, 4, 4, 4])
    """
    has_own = isinstance(model, AnyModule) and inputs is None  # those with which it was opened
    plain = None if has_own else plain_ids(inputs)
    adapter = adapter_of(model, inputs, tokenizer)
    try:
        first, example, run = prepare_inputs(adapter, plain, edits)
        names = own_names(keep, adapter.shape)
        kept = names if adapter.output_name in names or "*" in names else (*names, adapter.output_name)
        trace = adapter.record(example, edits=run, keep=kept)
    except ChangedLayoutError:
        if not isinstance(adapter, AnyModule) or adapter is model:
            raise
        return read(adapter.reopened(), None, tokens=tokens, edits=edits, keep=keep)
    has_right_answer = adapter.has_right_answer(first)
    if adapter.input.uses_prediction_as_reference and not has_right_answer:
        alone = trace if not run and example is first else adapter.record(first, keep=("logits",))
        example = answered(example, int(alone.logits[0, 0].argmax()))
    reading = Reading(adapter, example, trace, has_right_answer, _read_call(model, plain, edits))
    return reading if tokens is None else labelled(reading, tokens)


def labelled(reading: Reading, tokens: Sequence[str]) -> Reading:
    """Return the reading with other token labels. Raises `InputError` if their number differs."""
    ids = reading.trace.read_by()[0]
    n = int((ids != ADDED).sum())
    if len(tokens) != n:
        raise InputError(f"Give one label for each of the {n} tokens, got {len(tokens)}.")
    return replace(reading, token_labels=label_added(ids, lambda _: tuple(map(str, tokens))))


def rerun(reading: Reading, more: Sequence[Edit]) -> Reading:
    """Run the same input again under the reading's edits and then `more`."""
    run = [*reading.edits, *own_edits(more, reading.adapter.shape)]
    trace = reading.adapter.record(reading.example, edits=run)
    return Reading(reading.adapter, reading.example, trace, reading.has_right_answer)


def gradients(reading: Reading, measure: Measure, names: Sequence[str]) -> Gradients:
    """Compute the gradient of a scalar function of the logits with respect to activations.

    The reading's input is run again, forward under the reading's edits and then backward. Parameters get no gradient.

    Args:
        reading: The run. `xformer.read(model, inputs, keep=["logits"])` is enough.
        measure: A differentiable function from the logits [batch, pos, vocab] to a scalar.
        names: Names of activations, or globs: ["*.z"].

    Returns:
        A mapping from each name to ∂ measure / ∂ activation, with the activation's shape; 0 where the measure does not depend
        on it. Its `activations` are the values of the activations, its `measure` is the scalar. TransformerLens names are
        returned as given, with TransformerLens's order of axes.

    Raises:
        EditError: No floating-point activation has the name.
        InputError: The measure is not a scalar that depends on the logits.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> found = xformer.gradients(reading, lambda logits: logits[0, 0, 9] - logits[0, 0, 3], ["*.attn.z"])
        >>> found["encoder.3.attn.z"].shape  # [batch, head, pos, d_value]
        torch.Size([1, 4, 4, 16])
    """
    shape = reading.adapter.shape
    found = gradients_of_run(reading.adapter, reading.example, measure, own_names(names, shape), reading.edits)
    globs = [own_name(name, shape) for name in names if is_lens_name(name)]
    if not globs:
        return found
    lens = {own: name for name, own in lens_names(found, shape).items() if any(fnmatchcase(own, one) for one in globs)}

    def as_requested(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {lens.get(own, own): lens_axes(own, one) if own in lens else one for own, one in values.items()}

    return Gradients(found.measure, as_requested(found.activations), as_requested(found.gradients))


def prepare_inputs(adapter: ModelAdapter, inputs: Any, edits: Edits = ()) -> tuple[Example, Example, list[Edit]]:
    """Frame an input for a model and parse the edits in the form used in links.

    Returns:
        The example, the example after the token replacements in `edits`, and the other edits.

    Raises:
        InputError: The model cannot read the input, or edits in the form used in links are given for a batch.
        EditError: An edit does not fit the model.
    """
    first = adapter.to_example(inputs)
    others, text = _split(edits)
    run = own_edits(others, adapter.shape)
    if not text:
        return first, first, run
    if (n := len(first.input_ids)) > 1:
        raise InputError(f"Edits in the form used in links apply to one input, got a batch of {n}; use xformer.edits.")
    edit_links = parse_edits(text, adapter.shape)
    source = changed_source(edit_links, first.source)
    example = first if source == first.source else adapter.to_example(source)
    return first, example, [*run, *all_edits(edit_links)]


def _split(edits: Edits) -> tuple[Sequence[Edit], str]:
    """Return the edits, and those in the form used in links, joined."""
    if isinstance(edits, str):
        return (), edits
    if not isinstance(edits, Sequence):  # `own_edits` refuses it
        return edits, ""
    texts = [one for one in edits if isinstance(one, str)]
    return [one for one in edits if not isinstance(one, str)], ",".join(filter(None, texts))


def from_trace(model: Readable, trace: Trace, answers: Sequence[int] | None = None) -> Reading:
    """Make a reading of a trace's first input; `answers` are the right tokens at its outputs, −100 where there is none."""
    tokens, target = trace.tokens[:1], None if trace.target is None else trace.target[:1]
    n_out = (trace.logits if "logits" in trace else tokens if target is None else target).shape[1]
    labels = torch.full((n_out,), IGNORED) if answers is None else torch.as_tensor(answers)  # [out]
    example = Example(tuple(tokens[0].tolist()), (), tokens, target, tokens, labels[None])
    return Reading(adapter_of(model), example, trace, answers is not None)


def answered(example: Example, token: int) -> Example:
    """Return an image example with `token` as its answer."""
    labels = example.labels.clone()
    labels[0, 0] = token
    return replace(example, source=(*example.source[:-1], token), answer=(token,), labels=labels)


def _read_call(model: object, inputs: Any, edits: Edits) -> ReadCall | None:
    """Return the call, or None if the model is not a path, or if plain values cannot express the edits or the inputs."""
    others, text = _split(edits)
    causal = next((causal for causal in (True, False) if list(others) == [set_causal(causal)]), None)
    is_plain = isinstance(inputs, str) or (
        isinstance(inputs, tuple | list) and all(isinstance(one, int) for one in inputs)
    )
    if not isinstance(model, str | Path) or not is_plain or (others and causal is None):
        return None
    return ReadCall(str(model), inputs if isinstance(inputs, str) else tuple(inputs), causal, text)


@torch.inference_mode(False)
def adapter_of(model: Readable, inputs: Any = None, tokenizer: Any = None) -> ModelAdapter:
    """Return the adapter of a model, a checkpoint or a path; `inputs` are inputs with which a torch module can be run.

    Raises `CheckpointError` for a path without a model, `InputError` for a module whose attention cannot be captured.
    """
    name = "model"
    if isinstance(model, str) and (found := in_memory(model)):
        return found
    if isinstance(model, str | Path):
        path = Path(model)
        if is_external(path):
            return opened_from(path)
        name, model = path.name, load(model)
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    if isinstance(model, Transformer):
        return BareModel(model, name)
    if isinstance(model, Checkpoint):
        return BareModel(model.model, name) if model.task is None else TaskModel(model.model, model.task, name)
    if isinstance(model, nn.Module):
        return opened_module(model, inputs, tokenizer)
    if type(model).__name__ == "ExportedProgram":  # importing its class takes long
        raise UnavailableError(EXPORTED)
    if not isinstance(model, AdapterDefaults):
        raise InputError(
            f"A model is a path, a checkpoint or a torch module, got {model!r:.100}; try 'checkpoints/reverse'."
        )
    return model
