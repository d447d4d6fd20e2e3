"""Bugs that no check was written for: those that are found must stay found."""

from __future__ import annotations

import pytest
import torch

import xformer
from tests.diagnosis.confusion import SHIPPED, shipped
from tests.diagnosis.unseen_bugs import BY_A_TRACE, MISSED_BY_A_TRACE, NAMED, UNSEEN, Unseen
from tests.layers.reference import randomise
from xformer.bugs import BUGS
from xformer.diagnosis.diagnose import check_up, diagnose, examination


def model_of(unseen: Unseen) -> xformer.Transformer:
    """A small model with room for padding that can have the bug, all of its weights random: biases and gains too."""
    for architecture in ("encoder", "decoder", "encoder-decoder"):
        for norm in ("post", "pre"):
            config = xformer.ModelConfig(
                architecture=architecture, vocab_size=23, d_model=12, n_layers=2, n_heads=3, d_ff=37, max_len=19, norm=norm,
                attention_bias=True,
            )  # fmt: skip
            if unseen.applies(config):
                return randomise(xformer.Transformer(config)).eval().requires_grad_(False)
    raise AssertionError(unseen.name)


@pytest.mark.parametrize("unseen", UNSEEN, ids=lambda unseen: unseen.name)
def test_it_is_found_with_the_model_at_hand_and_where_it_shows_in_a_trace_too(unseen: Unseen) -> None:
    torch.manual_seed(0)
    model = model_of(unseen)
    assert not [finding for finding in check_up(model).findings if finding.severity == "error"]
    broken, inputs = unseen.put_into(model), examination(model.config)
    with_the_model = [finding.kind for finding in check_up(broken).findings if finding.severity == "error"]
    assert with_the_model
    if unseen.name in NAMED:
        assert NAMED[unseen.name] in with_the_model
    found = diagnose(inputs.record(broken), valid=inputs.valid, target_valid=inputs.target_valid).findings
    if unseen.name in BY_A_TRACE:
        assert [finding for finding in found if finding.severity == "error"]
    assert (unseen.name in BY_A_TRACE) != (unseen.name in MISSED_BY_A_TRACE)


@pytest.mark.parametrize("with_task", [True, False])
@pytest.mark.parametrize("name", SHIPPED)
def test_no_two_lengths_of_an_examination_can_be_taken_for_each_other(name: str, with_task: bool) -> None:
    """Source and target differ in each row, either being the longer one somewhere; and rows differ in their padding."""
    checkpoint = shipped(name)
    inputs = examination(checkpoint.config, checkpoint.task if with_task else None)
    if checkpoint.config.image:
        return  # images have no padding
    n = inputs.valid.sum(dim=1)
    assert len(set(n.tolist())) > 1
    assert (inputs.tokens[~inputs.valid] == checkpoint.config.pad_token).all()
    if inputs.target is not None and inputs.target_valid is not None:
        n_target = inputs.target_valid.sum(dim=1)
        assert (n != n_target).all()
        assert (n > n_target).any()
        assert (n < n_target).any()
        assert (inputs.target[~inputs.target_valid] == checkpoint.config.pad_token).all()


@pytest.mark.parametrize(
    "unseen", [unseen for unseen in UNSEEN if unseen.name in NAMED], ids=lambda unseen: unseen.name
)
def test_a_cross_mask_of_the_target_is_named_in_the_shipped_model(unseen: Unseen) -> None:
    checkpoint = shipped("reverse-seq2seq")
    assert not check_up(checkpoint.model, checkpoint.task).findings
    found = check_up(unseen.put_into(checkpoint.model), checkpoint.task).findings
    assert found[0].kind == NAMED[unseen.name]
    if found[0].kind == "cross-mask-of-target":
        assert all(path.endswith("cross_attn") for path in found[0].where)
        assert min(found[0].numbers.values()) > 0  # it hides tokens, and shows padding


@pytest.mark.parametrize("name", ["characters", "modular"])
def test_rows_of_one_length_are_padded_differently(name: str) -> None:
    """A fast path that forgets the padding is found where all inputs of the task are equally long."""
    [forgets] = [unseen for unseen in UNSEEN if unseen.name == "fast path: forgets the padding"]
    checkpoint = shipped(name)
    assert check_up(forgets.put_into(checkpoint.model), checkpoint.task).findings


def test_no_cross_mask_at_all_is_not_taken_for_that_of_the_target() -> None:
    checkpoint = shipped("reverse-seq2seq")
    found = check_up(BUGS["no-padding-mask"].broken(checkpoint.model), checkpoint.task).findings
    assert [finding.kind for finding in found] == ["no-padding-mask"]
