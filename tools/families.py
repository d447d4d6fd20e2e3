"""Which families of the Transformers library can be read and edited: a tiny model of each, compared with the stock model.

    make families        writes docs/families.md; takes about twenty minutes on two cores

A small model with arbitrary weights is built for every model type that has a head in Transformers. A type counts as read if a
recorded run gives the logits of the stock model, and as changed if ablating every head of the first attention changes them. The
model doctor examines the stock model, whether it can be read or not; a finding is a bug of the family or a false alarm. Classes
other than causal language models are tried too; a class counts as opened if it is read with its own kind of output.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

REMARKS = (
    "The other findings are properties of the stock models: `bert-generation` is not a decoder in its default configuration, "
    "and CPM-Ant attends to its whole prompt. Padding reaches the outputs of ConvBERT and RecurrentGemma (convolutions), "
    "MobileBERT (embeddings of neighbouring tokens), Nyströmformer (landmarks), ImageGPT (averages) and YOSO. SqueezeBERT "
    "returns scores in place of weights. JetMoE repeats key/value heads as a block, one block per expert. Jamba's Mamba layers "
    "and FSMT continue from a cache with one token at a time only. Parameters of Pop2Piano, RoCBert and TrOCR get no gradient, "
    "because token ids alone do not reach them; the loss of TrOCR and the tied weights of Pop2Piano were not investigated."
)
"""What the findings of the doctor come from, as investigated by hand; `make families` keeps it."""
SECONDS = 120
"""Time limit for one family."""
MANY_LAYERS = 8
MAX_PARAMETERS = 30_000_000
DOCUMENT = Path(__file__).parents[1] / "docs" / "families.md"
SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 48, "d_model": 48, "n_embd": 48, "dim": 48, "emb_dim": 48, "embed_dim": 48,
    "word_embed_proj_dim": 48, "embedding_size": 48, "intermediate_size": 64, "ffn_dim": 64, "d_ff": 64, "hidden_dim": 64,
    "n_inner": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "d_kv": 12,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_target_positions": 64, "max_source_positions": 13,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "num_mel_bins": 8,
    "image_size": 24, "patch_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "layer_types": None, "rotary_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12, "type_vocab_size": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip

CLASSES = {
    "": "vectors", "ForMaskedLM": "masked_token", "ForSequenceClassification": "sequence_class",
    "ForTokenClassification": "token_class", "ForQuestionAnswering": "answer_span",
    "ForNextSentencePrediction": "next_sentence", "ForImageClassification": "image_class",
    "ForAudioClassification": "audio_class", "ForCTC": "ctc", "ForSeq2SeqLM": "pair_next_token",
    "ForSpeechSeq2Seq": "pair_next_token",
}  # fmt: skip
"""Kind of output of each class other than causal language models, by the suffix of its `AutoModel` name."""


@dataclass(frozen=True)
class FamilyOutcome:
    """The result for one model type."""

    family: str
    model: str = ""
    backend: str = ""
    """The capture backend; empty if the model is not read."""
    difference: float = 0.0
    is_changed: bool = False
    has_stream: bool = False
    """Whether the contributions of attention and feed-forward layers to the residual stream were found."""
    why: str = ""
    ran: bool = False
    """Whether the stock model ran at these sizes."""
    classes: dict[str, str] = field(default_factory=dict)
    """For each class of `CLASSES` that the family has and that ran: "" if it opens with its own output, else the reason."""
    doctor: str = ""
    """Result of the model doctor for the stock model: the number of checks that hold, or the names of broken ones."""


def model_types() -> list[str]:
    """Return the single-model types with a head for text or for classes; composite models are omitted."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    heads = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "SPEECH_SEQ_2_SEQ")
    known = {name for head in heads for name in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES")}
    return [name for name in sorted(known & set(CONFIG_MAPPING)) if not CONFIG_MAPPING[name].sub_configs]


def tiny(config_class: Any, n_layers: int = SMALL["num_hidden_layers"]) -> Any:
    """Return a configuration of a family with small values for the sizes that it has."""
    usual = config_class()
    small = SMALL | {"num_hidden_layers": n_layers}
    sizes = {
        name: value for name, value in small.items() if getattr(usual, name, None) is not None and value is not None
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return config_class(**sizes)


def model_of(config: Any) -> Any:
    """Build the model with its most informative head: text, otherwise classes, otherwise none."""
    import transformers as library

    is_encoder_decoder = getattr(config, "is_encoder_decoder", False)
    heads = (
        ("ForSeq2SeqLM", "ForSpeechSeq2Seq")
        if is_encoder_decoder
        else ("ForMaskedLM", "ForCausalLM", "ForImageClassification")
    )
    for head in (*heads, ""):
        auto = getattr(library, f"AutoModel{head}")
        if type(config) in auto._model_mapping:
            return made(auto, config)
    raise ValueError("has none of the expected model classes")


def made(auto: Any, config: Any) -> Any:
    """Build a model from a configuration with one of the `AutoModel` classes, with arbitrary weights."""
    with torch.device("meta"):
        size = sum(weight.numel() for weight in auto.from_config(copy.deepcopy(config)).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"has {size:,} parameters at these sizes")
    torch.manual_seed(0)
    model = auto.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    for weight in model.parameters():
        if weight.dim() > 1 and weight.requires_grad:  # leaves sinusoidal tables as they are
            weight.data.normal_(0, 0.1)
    return model


def inputs_of(model: Any) -> dict[str, Any]:
    """Return inputs that the stock model accepts. Raises the model's own error for unsupported sizes."""
    from xformer.adapters.huggingface_opening import example_inputs

    inputs = example_inputs(model, 0)
    with torch.no_grad():
        returned = model(**inputs).to_tuple()
    if not all(bool(torch.isfinite(value).all()) for value in returned if isinstance(value, torch.Tensor)):
        raise ValueError("gives non-finite outputs")
    return inputs


def outcome_of(family: str) -> FamilyOutcome:
    """Return the outcome with two layers, or with `MANY_LAYERS` if attention is only in some of the layers."""
    from transformers import CONFIG_MAPPING

    few = _outcome(family, 2)
    many = few if few.backend or not few.ran else _outcome(family, MANY_LAYERS)
    found, n_layers = (many, MANY_LAYERS) if many.backend and not few.backend else (few, 2)
    if not found.ran:
        return found
    config = tiny(CONFIG_MAPPING[family], n_layers)
    return replace(found, classes=classes_of(config), doctor=doctor_of(config))


def doctor_of(config: Any) -> str:
    """Examine the model of a configuration with the model doctor; see `FamilyOutcome.doctor`."""
    import xformer
    from xformer.errors import InputError

    model = model_of(config)
    try:
        diagnosis = xformer.diagnose(model)
    except InputError:
        return "reads no tokens"
    verdicts = Counter(diagnosis.table["verdict"])
    found = ", ".join(one.check for one in diagnosis.broken) or f"{verdicts['holds']} hold"
    failed = ", ".join(one.check for one in diagnosis.findings if one.verdict == "could not run")
    return found + (f"; could not run: {failed}" if failed else "")


def classes_of(config: Any) -> dict[str, str]:
    """Try to open each class of a family; see `FamilyOutcome.classes`."""
    import transformers as library

    import xformer

    found: dict[str, str] = {}
    for head, kind in CLASSES.items():
        auto = getattr(library, f"AutoModel{head}")
        is_twice = head == "ForMaskedLM" and config.is_encoder_decoder  # such a class is also in "ForSeq2SeqLM"
        if is_twice or type(config) not in auto._model_mapping:
            continue
        try:
            model = made(auto, config)
            inputs = inputs_of(model)
        except Exception:  # does not run at these sizes
            continue
        try:
            adapter: Any = xformer.read(model, inputs).adapter
            found[kind] = "" if adapter.output == kind else f"opened as {adapter.output}"
        except Exception as error:
            found[kind] = first_line(error)
    return found


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:240] or type(error).__name__


def _outcome(family: str, n_layers: int) -> FamilyOutcome:
    """Build, open, compare and edit a tiny model of a family."""
    from transformers import CONFIG_MAPPING

    import xformer
    from xformer import edits
    from xformer.errors import EditError

    try:
        model = model_of(tiny(CONFIG_MAPPING[family], n_layers))
        inputs = inputs_of(model)
    except Exception as error:  # models raise any kind of error for unsupported sizes
        return FamilyOutcome(family, why=f"{type(error).__name__}: {error}".split("\n")[0][:160])
    name = type(model).__name__
    try:
        reading = xformer.read(model, inputs)
        adapter: Any = reading.adapter
        layout, verification = adapter.opened.layout, adapter.verification
        path = reading.attention[0].path
        ablations = [edits.ablate_head(path, head) for head in range(adapter.shape.heads[path])]
    except Exception as error:
        return FamilyOutcome(family, name, why=first_line(error), ran=True)
    shown = "output" if adapter.output == "vectors" else "logits"
    plain = changed = reading[shown]
    with suppress(EditError):  # the outputs of its heads cannot be edited
        changed = xformer.read(model, inputs, edits=ablations)[shown]
    moved = float((plain - changed).abs().max()) > 1e-6 * float(plain.abs().max())
    layers = {(site.stack, site.layer) for site in layout.attention}
    has_stream = len(layout.norms) == len(layers)
    return FamilyOutcome(family, name, verification.backend, verification.difference, moved, has_stream, ran=True)


def outcomes(families: list[str]) -> Iterator[FamilyOutcome]:
    """Yield the outcomes. Each family runs in its own process, so a hang or a crash affects only that family."""
    forking = multiprocessing.get_context("fork")
    for family in families:
        ours, theirs = forking.Pipe(duplex=False)
        process = forking.Process(target=_send_outcome, args=(family, theirs))
        process.start()
        theirs.close()
        has_answered = ours.poll(SECONDS)
        try:
            yield ours.recv() if has_answered else FamilyOutcome(family, why=f"took longer than {SECONDS} s")
        except EOFError:
            yield FamilyOutcome(family, why="its process ended")
        process.kill()
        process.join()


def _send_outcome(family: str, pipe: Any) -> None:
    import os
    import sys

    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    warnings.simplefilter("ignore")
    pipe.send(outcome_of(family))


def document(found: list[FamilyOutcome], version: str) -> str:
    """Return the document with the table."""
    ran = [one for one in found if one.ran]
    backends = Counter(one.backend for one in ran)
    read = backends.total() - backends[""]
    changed = sum(one.is_changed for one in ran)
    stream = sum(one.has_stream for one in ran)
    classes = [reason for one in ran for reason in one.classes.values()]
    lines = [
        "# Families of models that can be read",
        "",
        f"Written by `make families` with transformers {version}. A tiny model of every model type, with arbitrary weights, is "
        "compared with the stock model, as it is and with all heads of the first attention ablated (set to zero).",
        "",
        f"Of {len(found)} model types, {len(ran)} ran at these sizes. **{read} of them are read** with the logits of the stock "
        f"model: {backends['attention_function']} by `attention_function` (our function replaces the model's), "
        f"{backends['softmax']} by `softmax` (the model's own attention, captured at its softmax) and "
        f"{backends['returned_weights']} by `returned_weights` (cannot be edited). "
        f"Ablation changes the output of {changed}; the contributions of attention and feed-forward layers to the residual "
        f"stream were found in {stream}. "
        f"Of their {len(classes)} classes other than causal language models, {classes.count('')} open with their own output. "
        "",
        f"{examined(ran)} {REMARKS}",
        "",
        "| type | model | backend | off by | changed | stream | doctor | other classes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in sorted(ran, key=lambda one: one.family):
        if one.backend:
            marks = ["yes" if value else "no" for value in (one.is_changed, one.has_stream)]
            read_as = f"{one.backend} | {one.difference:.0e} | {' | '.join(marks)}"
        else:
            read_as = f"– | | {one.why.replace('|', '/')} | "
        lines.append(f"| {one.family} | {one.model} | {read_as} | {one.doctor} | {named(one.classes)} |")
    lines += [
        "",
        f"Not tried, because they do not run at these sizes: {', '.join(sorted(o.family for o in found if not o.ran))}.",
    ]
    return "\n".join(lines) + "\n"


def examined(ran: list[FamilyOutcome]) -> str:
    """Return a sentence with the number of families that the model doctor examined and that have no findings."""
    results = [one.doctor for one in ran if one.doctor and one.doctor != "reads no tokens"]
    n_sound = sum(" hold" in one for one in results)
    return f"The [model doctor](is-my-attention-right.md) examined {len(results)} models and found nothing broken in {n_sound}."


def named(classes: dict[str, str]) -> str:
    """List the classes that open, then the classes that do not."""
    opened, others = ([kind for kind, reason in classes.items() if bool(reason) is failed] for failed in (False, True))
    return ", ".join(opened) + ("; " if opened and others else "") + (f"not {', '.join(others)}" if others else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="model types to try; by default all that Transformers has")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file in place of the document")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()
    families = arguments.families or model_types()
    found = []
    for one in outcomes(families):
        found.append(one)
        what = f"{one.backend}, off by {one.difference:.0e}" if one.backend else one.why
        print(
            f"{len(found):4d}/{len(families)}  {one.family:28s} {what}; {named(one.classes) or 'no other class'}; {one.doctor}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    elif not arguments.families:
        DOCUMENT.write_text(document(found, transformers.__version__))
        print(f"written to {DOCUMENT}")


if __name__ == "__main__":
    main()
