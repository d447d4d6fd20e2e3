"""Which families of the Transformers library can be read and changed: a tiny model of each, held against the stock model.

    make families        writes docs/families.md; some twenty minutes on two cores

Every model type that Transformers has a head for is made with small sizes and arbitrary weights. It counts as read where a
recorded run gives the stock model's logits, and as changed where setting every head of the first attention to zero moves them.
The model doctor examines the stock model, whether it is read or not: what it finds is a bug of the family, or a false alarm.
Of each type the classes that are no causal language models are tried too: a class opens where it is read as what it is.
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

SECONDS = 120
"""The longest that one family may take."""
MANY_LAYERS = 8
MOST_PARAMETERS = 30_000_000
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
"""What a class that is no causal language model puts out, by the end of its `AutoModel`'s name."""


@dataclass(frozen=True)
class Outcome:
    """What became of one model type."""

    family: str
    model: str = ""
    backend: str = ""
    """0: not read."""
    difference: float = 0.0
    is_changed: bool = False
    has_stream: bool = False
    """Whether what attention and neurons add to the stream was found."""
    why: str = ""
    ran: bool = False
    """Whether the stock model ran at these sizes at all."""
    classes: dict[str, str] = field(default_factory=dict)
    """Each class of `CLASSES` that the family has and that ran: "" where it opens as what it is, else why it does not."""
    doctor: str = ""
    """What the model doctor says of the stock model: the number of checks that hold, or those that are broken."""


def model_types() -> list[str]:
    """The model types with a head for words or for classes that are one model and not several in one."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    heads = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION", "SPEECH_SEQ_2_SEQ")
    known = {name for head in heads for name in getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES")}
    return [name for name in sorted(known & set(CONFIG_MAPPING)) if not CONFIG_MAPPING[name].sub_configs]


def tiny(config_class: Any, n_layers: int = SMALL["num_hidden_layers"]) -> Any:
    """A configuration of a family with small sizes, as far as it has them."""
    usual = config_class()
    small = SMALL | {"num_hidden_layers": n_layers}
    sizes = {
        name: value for name, value in small.items() if getattr(usual, name, None) is not None and value is not None
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return config_class(**sizes)


def model_of(config: Any) -> Any:
    """The model with the head that says most: words, else classes, else none."""
    import transformers as library

    is_pair = getattr(config, "is_encoder_decoder", False)
    heads = (
        ("ForSeq2SeqLM", "ForSpeechSeq2Seq") if is_pair else ("ForMaskedLM", "ForCausalLM", "ForImageClassification")
    )
    for head in (*heads, ""):
        auto = getattr(library, f"AutoModel{head}")
        if type(config) in auto._model_mapping:
            return made(auto, config)
    raise ValueError("has no model class that is looked for")


def made(auto: Any, config: Any) -> Any:
    """The model of a configuration by one of the `AutoModel` classes, with arbitrary weights."""
    with torch.device("meta"):
        size = sum(weight.numel() for weight in auto.from_config(copy.deepcopy(config)).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"has {size:,} parameters at these sizes")
    torch.manual_seed(0)
    model = auto.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    for weight in model.parameters():
        if weight.dim() > 1 and weight.requires_grad:  # a table of sines is no weight
            weight.data.normal_(0, 0.1)
    return model


def inputs_of(model: Any) -> dict[str, Any]:
    """Inputs that the stock model accepts. Raises the model's own error for sizes that it does not support."""
    from xformer.adapters.huggingface_opening import example_inputs

    inputs = example_inputs(model, 0)
    with torch.no_grad():
        returned = model(**inputs).to_tuple()
    if not all(bool(torch.isfinite(value).all()) for value in returned if isinstance(value, torch.Tensor)):
        raise ValueError("gives no numbers")
    return inputs


def outcome_of(family: str) -> Outcome:
    """Of two layers, or of as many as it takes for one of them to be attention, where most are something else."""
    from transformers import CONFIG_MAPPING

    few = _outcome(family, 2)
    many = few if few.backend or not few.ran else _outcome(family, MANY_LAYERS)
    found, n_layers = (many, MANY_LAYERS) if many.backend and not few.backend else (few, 2)
    if not found.ran:
        return found
    config = tiny(CONFIG_MAPPING[family], n_layers)
    return replace(found, classes=classes_of(config), doctor=doctor_of(config))


def doctor_of(config: Any) -> str:
    """What the model doctor says of the model of a configuration; see `Outcome.doctor`."""
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
    """Which classes of a family open as what they are; see `Outcome.classes`."""
    import transformers as library

    import xformer

    found: dict[str, str] = {}
    for head, kind in CLASSES.items():
        auto = getattr(library, f"AutoModel{head}")
        is_twice = head == "ForMaskedLM" and config.is_encoder_decoder  # such a class is one of "ForSeq2SeqLM" as well
        if is_twice or type(config) not in auto._model_mapping:
            continue
        try:
            model = made(auto, config)
            inputs = inputs_of(model)
        except Exception:  # does not run at these sizes
            continue
        try:
            subject: Any = xformer.read(model, inputs).subject
            found[kind] = "" if subject.output == kind else f"opened as {subject.output}"
        except Exception as error:
            found[kind] = first_line(error)
    return found


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:240] or type(error).__name__


def _outcome(family: str, n_layers: int) -> Outcome:
    """Make, open, compare and change a tiny model of a family."""
    from transformers import CONFIG_MAPPING

    import xformer
    from xformer import edits
    from xformer.errors import EditError

    try:
        model = model_of(tiny(CONFIG_MAPPING[family], n_layers))
        inputs = inputs_of(model)
    except Exception as error:  # any error of a model with unsupported sizes
        return Outcome(family, why=f"{type(error).__name__}: {error}".split("\n")[0][:160])
    name = type(model).__name__
    try:
        reading = xformer.read(model, inputs)
        subject: Any = reading.subject
        layout, verification = subject.opened.layout, subject.verification
        path = reading.attention[0].path
        silenced = [edits.ablate_head(path, head) for head in range(subject.shape.heads[path])]
    except Exception as error:
        return Outcome(family, name, why=first_line(error), ran=True)
    shown = "output" if subject.output == "vectors" else "logits"
    plain = changed = reading[shown]
    with suppress(EditError):  # where what a head says cannot be reached
        changed = xformer.read(model, inputs, edits=silenced)[shown]
    moved = float((plain - changed).abs().max()) > 1e-6 * float(plain.abs().max())
    layers = {(site.stack, site.layer) for site in layout.attention}
    has_stream = len(layout.norms) == len(layers)
    return Outcome(family, name, verification.backend, verification.difference, moved, has_stream, ran=True)


def outcomes(families: list[str]) -> Iterator[Outcome]:
    """One after the other, each in a process of its own: a family that hangs or falls takes nothing with it."""
    forking = multiprocessing.get_context("fork")
    for family in families:
        ours, theirs = forking.Pipe(duplex=False)
        process = forking.Process(target=_told, args=(family, theirs))
        process.start()
        theirs.close()
        has_answered = ours.poll(SECONDS)
        try:
            yield ours.recv() if has_answered else Outcome(family, why=f"took longer than {SECONDS} s")
        except EOFError:
            yield Outcome(family, why="its process ended")
        process.kill()
        process.join()


def _told(family: str, pipe: Any) -> None:
    import os
    import sys

    sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    warnings.simplefilter("ignore")
    pipe.send(outcome_of(family))


def document(found: list[Outcome], version: str) -> str:
    """The table, as Markdown."""
    ran = [one for one in found if one.ran]
    backends = Counter(one.backend for one in ran)
    read = backends.total() - backends[""]
    changed = sum(one.is_changed for one in ran)
    stream = sum(one.has_stream for one in ran)
    classes = [reason for one in ran for reason in one.classes.values()]
    lines = [
        "# Families of models that can be read",
        "",
        f"Written by `make families` with transformers {version}: a tiny model of every model type, arbitrary weights, logits "
        "against the stock model, and all heads of the first attention set to zero.",
        "",
        f"Of {len(found)} model types {len(ran)} ran at these sizes. **{read} of them are read** with the stock model's "
        f"logits: {backends['attention_function']} by `attention_function` (ours in place of the model's), "
        f"{backends['softmax']} by `softmax` (the model's own, watched at its softmax), "
        f"{backends['returned_weights']} by `returned_weights` (read only). "
        f"That moves the logits of {changed}; what attention and neurons add to the stream was found in {stream}. "
        f"Of their {len(classes)} classes that are no causal language models, {classes.count('')} open as what they are. "
        f"{examined(ran)}",
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
        f"Not tried, as they do not run at these sizes: {', '.join(sorted(o.family for o in found if not o.ran))}.",
    ]
    return "\n".join(lines) + "\n"


def examined(ran: list[Outcome]) -> str:
    """How many families the model doctor examined, and in how many it found something."""
    said = [one.doctor for one in ran if one.doctor and one.doctor != "reads no tokens"]
    n_whole = sum(" hold" in one for one in said)
    return f"The [model doctor](is-my-attention-right.md) examined {len(said)}: nothing is broken in {n_whole} of them."


def named(classes: dict[str, str]) -> str:
    """Classes that open, then those that do not."""
    opened, others = ([kind for kind, reason in classes.items() if bool(reason) is failed] for failed in (False, True))
    return ", ".join(opened) + ("; " if opened and others else "") + (f"not {', '.join(others)}" if others else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="all that Transformers knows, where none is named")
    parser.add_argument("--json", type=Path, help="write the outcomes there, and leave the document as it is")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()
    families = asked.families or model_types()
    found = []
    for one in outcomes(families):
        found.append(one)
        what = f"{one.backend}, off by {one.difference:.0e}" if one.backend else one.why
        print(
            f"{len(found):4d}/{len(families)}  {one.family:28s} {what}; {named(one.classes) or 'no other class'}; {one.doctor}",
            flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    elif not asked.families:
        DOCUMENT.write_text(document(found, transformers.__version__))
        print(f"written to {DOCUMENT}")


if __name__ == "__main__":
    main()
