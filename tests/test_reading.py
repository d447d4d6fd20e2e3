"""Readings compared with direct calls of the model: predictions, loss, tokens, and refused inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import xformer
from tests.layers.reference import model_config
from tests.training.tiny import random_model
from xformer import edits
from xformer.adapters import BareModel, TaskModel
from xformer.errors import CheckpointError, EditError, InputError
from xformer.reading import read
from xformer.tasks.batch import IGNORED

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
TYPED = {"parity": "1011", "characters": "import os", "reverse": "5 3 9 1", "reverse-seq2seq": "5 3 9 1"}


@pytest.mark.parametrize("name", TYPED)
def test_predictions_equal_those_of_a_direct_forward_pass(name: str) -> None:
    checkpoint = xformer.load(CHECKPOINTS / name)
    reading = read(checkpoint, TYPED[name])
    with torch.no_grad():
        logits = checkpoint.model(reading.example.input_ids, reading.example.target)[0]  # [out, vocab]
    labelled = reading.example.labels[0] != IGNORED
    answer = reading.example.labels[0][labelled]
    assert reading.predicted == tuple(logits[labelled].argmax(dim=-1).tolist())
    assert reading.answer == tuple(answer.tolist())
    assert reading.loss == pytest.approx(F.cross_entropy(logits[labelled], answer).item(), abs=1e-5)
    assert reading.loss == pytest.approx(-sum(map(math.log, reading.probability_of_answer)) / len(answer), rel=1e-4)
    assert reading.n_correct == sum(a == b for a, b in zip(reading.predicted, reading.answer, strict=True))
    assert reading.has_right_answer is (name != "characters")
    end = [name for name in reading if name.endswith("resid_post")][-1]
    torch.testing.assert_close(reading.adapter.unembed(reading[end]), reading.logits)


def test_nan_logits_give_probabilities_of_zero() -> None:
    broken = edits.apply("encoder.3.ffn.out", lambda out: out * math.nan)
    reading = read(CHECKPOINTS / "reverse", "5 3 9 1", edits=[broken])
    assert reading.logits.isnan().all()
    assert set(reading.probability) == {0.0}


def test_both_stacks_of_an_encoder_decoder_have_their_own_tokens() -> None:
    reading = read(CHECKPOINTS / "reverse-seq2seq", "5 3 9 1")
    assert reading.tokens == reading.tokens_of("encoder") == ("5", "3", "9", "1", "end")
    assert reading.tokens_of("decoder") == ("start", "1", "9", "3", "5")
    assert reading.ids("decoder")[1:] == [1, 9, 3, 5]
    assert [site.path for site in reading.layer_paths] == [
        "encoder.0.attn",
        "decoder.0.self_attn",
        "decoder.0.cross_attn",
    ]
    for site in reading.layer_paths:
        queries, keys = (len(reading.tokens_of(stack)) for stack in (site.query_stack, site.key_stack))
        assert reading[f"{site.path}.pattern"].shape[-2:] == (queries, keys)


def test_a_model_without_a_task_reads_token_ids() -> None:
    config = model_config(architecture="encoder-decoder", n_layers=1, vocab_size=11, max_len=7)
    model = xformer.Transformer(config, torch.Generator().manual_seed(3)).eval()
    reading = read(model, "3 7 10 > 1 2")
    assert isinstance(reading.adapter, BareModel)
    assert (reading.tokens, reading.tokens_of("decoder")) == (("3", "7", "10"), ("1", "2"))
    assert (reading.answer, reading.predicted, reading.has_right_answer) == ((), (), False)
    assert reading.example.labels.shape == reading.example.target.shape  # as many as outputs
    assert math.isnan(reading.loss)
    for wrong in ("3 7 10", "3 x > 1", "3 11 > 1", "> 1", "1 1 1 1 1 1 1 1 > 1"):
        with pytest.raises(InputError, match="reads"):
            read(model, wrong)


def test_unreadable_inputs_and_models_are_refused() -> None:
    for name, typed, error in (("reverse", "3 seven", InputError), ("nowhere", "3 7", CheckpointError)):
        with pytest.raises(error):
            read(CHECKPOINTS / name, typed)


def test_notebook_view_escapes_markup() -> None:
    checkpoint = xformer.load(CHECKPOINTS / "characters")
    assert checkpoint.task is not None
    html = read(TaskModel(checkpoint.model, checkpoint.task, "<b>mine</b>"), "a <b> c")._repr_html_()
    assert all(words in html for words in ("&lt;b&gt;mine", "&lt;</td>", "activations", "attention of 16 heads"))
    assert "<b>mine" not in html


def test_notebook_view_of_a_checkpoint_escapes_its_card() -> None:
    checkpoint = xformer.load(CHECKPOINTS / "reverse")
    html = checkpoint._repr_html_()
    shown = ("84,948", "100.00%", "held out exact match from 0 to 1, over steps 20 to 800")
    assert all(words in html for words in shown)
    assert "curve" not in repr(checkpoint)
    forged = {"title": "<b>", "figures": {"loss": "<i>", "samples": True}}
    forged |= {"curve": [{"step": "<u>"}, 3], "step": ["<s>"]}
    html = replace(checkpoint, card=forged)._repr_html_()
    assert "&lt;b&gt;" in html
    assert not [tag for tag in ("<b><", "<i>", "<u>", "<s>") if tag in html]


def test_a_reading_is_a_mapping_from_names_to_tensors() -> None:
    reading = read(CHECKPOINTS / "reverse", "3 7 12 9")
    assert isinstance(reading, Mapping)
    assert isinstance(reading.trace, Mapping)
    assert [name for name, _ in reading.items()] == list(reading) == list(reading.keys()) == list(reading.names())
    assert all(value is reading[name] for name, value in reading.items())
    assert len(reading) == len(reading.trace)
    assert reading.get("encoder.9.attn.pattern") is None
    assert "encoder.9.attn.pattern" not in reading
    assert 0 not in reading
    for mapping in (reading, reading.trace):
        with pytest.raises(KeyError, match=r"^This run has no activation 'encoder.0.attn.patern'; did you mean enc"):
            mapping["encoder.0.attn.patern"]
    with pytest.raises(KeyError, match=r"got 0; for one input of a batch use reading\.one\(0\)"):
        reading[0]  # type: ignore[index]
    assert len({reading, replace(reading)}) == 2, "two readings are equal only if they are the same object"
    with pytest.raises(InputError, match="one of xformer, transformer_lens, got 'bertviz'"):
        reading.names("bertviz")  # type: ignore[arg-type]


def test_a_wrong_argument_is_refused_in_one_sentence() -> None:
    reading = read(CHECKPOINTS / "reverse", "3 7 12 9")
    for wrong in (None, 5):
        with pytest.raises(InputError, match=f"A model is a path, .* got {wrong}; try 'checkpoints/reverse'"):
            read(wrong, "3 7 12 9")  # type: ignore[arg-type]
    for wrong in (edits.ablate_head("encoder.1.attn", 2), [7]):
        with pytest.raises(EditError, match="edits must be a list like"):
            read(CHECKPOINTS / "reverse", "3 7 12 9", edits=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"must be a list like \['\*\.pattern'\], got '\*\.z'"):
        read(CHECKPOINTS / "reverse", "3 7 12 9", keep="*.z")
    with pytest.raises(InputError, match="position must be from 0 to 3, got 4"):
        reading.explained(4)
    with pytest.raises(EditError, match=r"attention layers 0 to 3, got 1\.5"):
        reading.attention_path(1.5)  # type: ignore[arg-type]


def test_gradients_equal_autograd_and_finite_differences() -> None:
    """The gradient at the last block's stream can be computed by hand: only the output layer follows."""
    checkpoint = xformer.load(CHECKPOINTS / "reverse")
    reading = read(checkpoint, "3 7 12 9")

    def measure(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, 0, 9] - logits[0, 0, 3] ** 2

    found = xformer.gradients(reading, measure, ["*.resid_post"])
    assert list(found) == [f"encoder.{n}.resid_post" for n in range(4)]
    last = reading["encoder.3.resid_post"].clone().requires_grad_()
    measure(checkpoint.model.unembed(last)).backward()
    torch.testing.assert_close(found["encoder.3.resid_post"], last.grad)
    assert found.measure == pytest.approx(float(measure(reading.logits)), rel=1e-5)
    epsilon = 1e-2  # and one number of an earlier layer, by finite differences
    step = torch.zeros_like(reading["encoder.0.resid_post"])
    step[0, 2, 5] = epsilon
    above, below = (
        float(measure(read(checkpoint, "3 7 12 9", edits=[edits.apply("encoder.0.resid_post", change)]).logits))
        for change in (lambda x: x + step, lambda x: x - step)
    )
    assert float(found["encoder.0.resid_post"][0, 2, 5]) == pytest.approx((above - below) / (2 * epsilon), rel=0.02)
    with pytest.raises(EditError, match=r"\*\.nothing"):
        xformer.gradients(reading, measure, ["*.nothing"])
    with pytest.raises(InputError, match="one number"):
        xformer.gradients(reading, lambda logits: logits[0], ["*.z"])


def test_an_apply_function_may_modify_its_argument_in_place() -> None:
    plain = read(CHECKPOINTS / "reverse", "3 7 12 9")
    edit = edits.apply("encoder.1.resid_pre", lambda x: x.zero_())
    changed = read(CHECKPOINTS / "reverse", "3 7 12 9", edits=[edit])
    assert not changed["encoder.1.resid_pre"].any()
    torch.testing.assert_close(changed["encoder.0.resid_post"], plain["encoder.0.resid_post"])


def test_an_apply_function_with_a_wrong_result_raises_edit_error() -> None:
    for name, function, words in (
        ("encoder.0.attn.z", lambda z: z.mean(1), r"\.z must return the shape \[1, 4, 4, 16\], got \[1, 4, 16\]"),
        ("encoder.0.attn.z", lambda z: None, r"encoder\.0\.attn\.z must return a tensor, got NoneType"),
        ("encoder.8.attn.z", lambda z: z, r"'encoder\.8\.attn\.z'; did you mean encoder"),
    ):
        with pytest.raises(EditError, match=words):
            read(CHECKPOINTS / "reverse", "3 7 12 9", edits=[edits.apply(name, function)])


def test_sources_and_targets_of_a_pair_are_given_as_rows_of_ids() -> None:
    model = random_model("encoder-decoder")
    wanted = xformer.read(model, ([3, 7, 1], [2, 5]))
    for inputs in ((torch.tensor([[3, 7, 1]]), torch.tensor([[2, 5]])), ([[3, 7, 1]], [[2, 5]])):
        assert torch.equal(xformer.read(model, inputs).logits, wanted.logits)
    batch = xformer.read(model, ([[3, 7, 1], [4, 2]], [[2, 5], [6, 1]]))
    assert torch.allclose(batch.one(0).logits, wanted.logits, atol=1e-5)
    with pytest.raises(InputError, match="one target for each source, got 2 and 1"):
        xformer.read(model, ([[3, 7, 1], [4, 2]], [[2, 5]]))
    with pytest.raises(InputError, match="Token ids are whole numbers"):
        xformer.read(model, ([3, 7.5], [2, 5]))


@pytest.mark.parametrize("what", [None, 3.5, b"3 7", bytearray(b"3"), {3, 7}, Path("x"), len, list, iter([3, 7])])
def test_what_is_no_input_is_refused_by_all_models(what: Any) -> None:
    for model in (CHECKPOINTS / "reverse", CHECKPOINTS / "digits", nn.Linear(3, 3)):
        with pytest.raises(InputError, match="An input is a text, token ids, an image"):
            xformer.read(model, what)


@pytest.mark.parametrize(
    "what", [[True, False], torch.tensor([True, False]), torch.ones(1, 2, 3, dtype=torch.long), torch.tensor(3)]
)
def test_masks_and_other_shapes_are_no_token_ids(what: Any) -> None:
    for name in ("reverse", "reverse-decoder"):
        with pytest.raises(InputError, match="Token ids are"):
            xformer.read(CHECKPOINTS / name, what)


def test_token_ids_may_be_an_array() -> None:
    wanted = xformer.read(CHECKPOINTS / "reverse", [3, 7, 12])
    found = xformer.read(CHECKPOINTS / "reverse", np.array([3, 7, 12]))
    assert torch.equal(found.logits, wanted.logits)
    assert str(found.code) == str(wanted.code)
