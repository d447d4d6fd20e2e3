"""Every model class opens from a folder and from memory, with the outputs of the stock model."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import xformer
from tests.adapters.families import returned_patterns
from tests.adapters.test_attachment import ROUNDING, distance, preserve_state
from tests.adapters.test_huggingface import tokenizer
from tests.adapters.zoo import N_LABELS, ZOO, Attention, Member
from xformer.errors import XformerError
from xformer.reading import Reading

BY_NAME = {member.name: member for member in ZOO}
TOLERANCE = {
    torch.float32: 1e-5,
    torch.bfloat16: 8 * torch.finfo(torch.bfloat16).eps,  # one rounding error in each of about eight sums in two layers
    torch.float16: 8 * torch.finfo(torch.float16).eps,
}
"""The tolerance for outputs, relative to the largest output if that is above 1, else absolute."""
SAVED = ["BertForMaskedLM", "GPT2Model", "T5ForConditionalGeneration", "CLIPModel"]
HALF: tuple[tuple[str, torch.dtype, Attention], ...] = (
    ("BertForMaskedLM", torch.float16, "sdpa"),
    ("LlamaForCausalLM", torch.bfloat16, "sdpa"),
)
VARIANTS = [(member, torch.float32, "eager") for member in ZOO]
VARIANTS += [(BY_NAME[name], dtype, attention) for name, dtype, attention in HALF]


def variant_name(value: object) -> str:
    return value.name if isinstance(value, Member) else str(value).removeprefix("torch.")


@torch.no_grad()
def stock_output(model: Any, inputs: dict[str, Tensor], **options: Any) -> Any:
    return model(**inputs, **options)


def shown(member: Member, output: Any) -> Tensor:
    """The stock model's output as a reading shows it, [batch, pos, n]."""
    if member.output == "answer_span":
        return torch.stack([output.start_logits, output.end_logits], dim=1)
    if member.output == "similarity":
        return output.logits_per_image[:, None]
    if member.output == "vectors":
        return output.last_hidden_state
    logits = output.get("logits", output.get("prediction_logits"))
    if member.name == "ElectraForPreTraining":  # 0, and the log-odds that a token was replaced
        return torch.stack([torch.zeros_like(logits), logits], dim=-1)
    return logits[:, None] if logits.dim() == 2 else logits


def assert_output(member: Member, reading: Reading, output: Any) -> None:
    """Compare the kind of output and its values with the stock model."""
    subject: Any = reading.subject
    assert subject.output == member.output
    found, wanted = reading["output" if member.output == "vectors" else "logits"], shown(member, output)
    assert found.dtype == wanted.dtype
    assert distance(found, wanted) <= TOLERANCE[wanted.dtype] * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize(("member", "dtype", "attention"), VARIANTS, ids=variant_name)
def test_a_loaded_model_equals_the_stock_model(member: Member, dtype: torch.dtype, attention: Attention) -> None:
    model = member.make(attention).to(dtype)
    given = member.inputs(model)
    inputs = {name: one.to(dtype) if one.is_floating_point() else one for name, one in given.items()}
    wanted = stock_output(model, inputs)
    with preserve_state(model) if dtype == torch.float32 else nullcontext():
        reading = xformer.read(model, inputs)
    assert_output(member, reading, wanted)
    if (dtype, attention) == (torch.float32, "eager"):
        assert_sizes(member, model, reading)
        assert_patterns(member, reading, stock_output(model, inputs, output_attentions=True))


def assert_sizes(member: Member, model: Any, reading: Reading) -> None:
    """Check input and output sizes, which differ for classifiers."""
    shape = reading.subject.shape
    if member.reads == "text" and member.output != "similarity":
        assert shape.n_inputs == model.get_input_embeddings().num_embeddings == 97
    if member.output not in ("vectors", "similarity", "answer_span"):
        assert shape.vocab_size == shown_width(member)
    assert shape.is_pair == member.is_pair
    if member.output != "similarity" and not member.is_pair:
        assert shape.is_causal == member.is_causal


def shown_width(member: Member) -> int:
    """The size of the output at each position."""
    if member.name == "ElectraForPreTraining":
        return 2
    return {"next_sentence": 2, "ctc": 31}.get(member.output, 97 if member.output.endswith("_token") else N_LABELS)


def assert_patterns(member: Member, reading: Reading, output: Any) -> None:
    """Compare every pattern that the stock model returns with the layer of the matching name."""
    returned = returned_patterns(output, reading.attention[0].stack)
    for path, pattern in returned.items():
        assert distance(reading[f"{path}.pattern"], pattern) <= ROUNDING, path
    if member.output != "similarity":
        assert len(reading.attention) == len(returned)


@pytest.mark.parametrize("name", SAVED)
def test_a_folder_opens_as_the_class_it_was_saved_as(name: str, tmp_path: Path) -> None:
    member = BY_NAME[name]
    folder, model = member.save(tmp_path / member.name), member.make()
    inputs = typed_inputs(member, model) if member.text else member.inputs(model)
    assert_output(member, xformer.read(folder, member.text or inputs), stock_output(model, inputs))


def typed_inputs(member: Member, model: Any) -> dict[str, Tensor]:
    """The model's arguments for a typed text."""
    cut = tokenizer()
    source, _, target = member.text.partition(" >> ")
    inputs = {"input_ids": torch.tensor([cut(source)["input_ids"]])}
    if target:
        start = model.config.decoder_start_token_id
        inputs["decoder_input_ids"] = torch.tensor([[start, *cut(target)["input_ids"][:-1]]])
    return inputs


def test_two_loads_of_a_folder_give_equal_activations(tmp_path: Path) -> None:
    """So no weight is initialized at random on loading."""
    member = BY_NAME["BertForPreTraining"]
    one = member.save(tmp_path / "one")
    other = tmp_path / "other"
    shutil.copytree(one, other)
    readings = [xformer.read(folder, member.text) for folder in (one, other)]
    assert sorted(readings[0]) == sorted(readings[1])
    assert all(torch.equal(readings[0][activation], readings[1][activation]) for activation in readings[0])


MISSING = {
    "BertForSequenceClassification": "classifier.bias",
    "LlamaForCausalLM": "lm_head.weight",
    "T5Model": "decoder.block.1.layer.1.EncDecAttention.v.weight",
}
"""A weight that each class needs, to be removed from its file."""


@pytest.mark.parametrize("name", MISSING)
def test_the_error_for_a_missing_weight_names_it(name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    member, weight = BY_NAME[name], MISSING[name]
    folder = member.save(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors[weight]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(XformerError, match=re.escape(weight)):
        xformer.read(folder, member.text or member.inputs(member.make()))


def test_weights_of_a_different_shape_than_configured_are_rejected(tmp_path: Path) -> None:
    folder = BY_NAME["BertForSequenceClassification"].save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(index): f"LABEL_{index}" for index in range(3)}
    config["label2id"] = {label: int(index) for index, label in config["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(XformerError, match=r"classifier\.weight|3"):
        xformer.read(folder, "the cat sat")


WRONG: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another model's": {"attention_mask": torch.tensor([[1, 1]])},
    "fractions": {"input_ids": torch.tensor([[5.0, 6.0]])},
    "image of another size": {"pixel_values": torch.rand(1, 3, 5, 5)},
}


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "ViTForImageClassification"])
def test_arguments_that_the_stock_model_rejects_are_rejected(name: str) -> None:
    """And are never replaced by an input that the caller did not pass."""
    model = BY_NAME[name].make()
    for wrong in WRONG.values():
        with pytest.raises(Exception) as stock:  # noqa: PT011
            stock_output(model, wrong)
        with pytest.raises((XformerError, stock.type)):
            xformer.read(model, wrong)


def test_token_lists_and_input_embeddings_are_read() -> None:
    model = BY_NAME["GPT2LMHeadModel"].make()
    assert xformer.read(model, {"input_ids": [[5, 6]]}).ids() == [5, 6]
    given = {"inputs_embeds": torch.randn(1, 7, 24, generator=torch.Generator().manual_seed(3))}
    assert distance(xformer.read(model, given).logits, stock_output(model, given).logits) <= ROUNDING


@pytest.mark.parametrize(("name", "reads"), [("Wav2Vec2ForCTC", "sounds"), ("CLIPModel", "pixel_values")])
def test_the_error_for_text_given_to_an_audio_or_image_model_names_its_input(name: str, reads: str) -> None:
    with pytest.raises(XformerError, match=reads) as refused:
        xformer.read(BY_NAME[name].make(), "the cat sat", tokenizer=tokenizer())
    assert "picture" not in str(refused.value)
