"""A port that differs from its original: the first module, and the first difference in its attention."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import xformer
from tests.doctor.plain_gpt import D_HEAD, LAYER, PlainGPT
from xformer.doctor import localise as localising
from xformer.doctor.check import FaultLocation
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.errors import InputError

TOKENS = [5, 44, 12, 31, 7, 50, 23]


def through_the_kernel(fault: str = "") -> PlainGPT:
    """Return a GPT that uses PyTorch's kernel, whose arguments include q, k and v; an explicit softmax shows only scores."""
    model = PlainGPT(fault)
    for block in model.blocks:
        block.attention.flash = True  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return model


class Renamed(nn.Module):
    """The same model with other module names."""

    def __init__(self, model: PlainGPT) -> None:
        super().__init__()
        self.wrapped = model

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        return self.wrapped(idx).logits


def test_equal_models_have_no_first_difference() -> None:
    model = PlainGPT()
    compared = xformer.compare_runs(model, Renamed(copy.deepcopy(model)), TOKENS)
    assert compared.ok
    assert compared.first is None
    assert compared.place is None
    assert {"blocks.2.mlp.0", "head"} <= set(compared.table["module"])


def test_changed_query_weights_are_located_in_their_head() -> None:
    model = through_the_kernel()
    port = copy.deepcopy(model)
    with torch.no_grad():
        port.get_parameter(f"blocks.{LAYER}.attention.query.weight")[D_HEAD : 2 * D_HEAD] *= 1.1
    compared = xformer.compare_runs(model, port, TOKENS)
    assert compared.first == f"blocks.{LAYER}.attention.query"
    assert compared.place is not None
    assert (compared.place.layer, compared.place.head, compared.place.cause) == (LAYER, 1, "q")


def test_different_rotations_are_attributed_to_positions() -> None:
    compared = xformer.compare_runs(through_the_kernel(), through_the_kernel("pairing"), TOKENS)
    assert compared.place is not None
    assert (compared.place.layer, compared.place.cause) == (LAYER, "positions")


def test_modules_are_paired_by_the_given_names() -> None:
    model = PlainGPT()
    compared = xformer.compare_runs(model, Renamed(model), TOKENS, pairs=[("blocks.0", "wrapped.blocks.0.mlp")])
    assert compared.first == "blocks.0"
    with pytest.raises(InputError, match="must name modules that were called"):
        xformer.compare_runs(model, Renamed(model), TOKENS, pairs=[("blocks.0", "blocks.0")])


def located(monkeypatch: pytest.MonkeyPatch, change: str, begin: int, long: int) -> tuple[FaultLocation, set[int]]:
    """Where the fault of a GPT is located whose layer computes noise or NaN from a position on; how many tokens were read."""
    model, lengths, watch_events = PlainGPT(), set[int](), localising.watch_events

    def fault(_: nn.Module, args: object, out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[:, begin:] += torch.rand_like(out[:, begin:]) if change == "determinism" else torch.nan
        return out

    def spied(token_model: TokenModel, run: ModelCall) -> object:
        lengths.add(run.read.shape[1])
        return watch_events(token_model, run)

    model.blocks[LAYER].attention.query.register_forward_hook(fault)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(localising, "watch_events", spied)
    monkeypatch.setattr(localising, "LONG", long)
    (found,) = xformer.diagnose(model, TOKENS, checks=[change]).broken
    monkeypatch.undo()
    assert found.place is not None
    return found.place, lengths


@pytest.mark.parametrize("check", ["determinism", "finite"])
def test_a_fault_in_a_long_input_is_located_in_its_first_tokens(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, lengths = located(monkeypatch, check, 0, 4)
    assert lengths == {4}
    whole, of_whole = located(monkeypatch, check, 0, 512)
    assert of_whole == {len(TOKENS)}
    assert (place.name, place.layer, place.cause) == (whole.name, whole.layer, whole.cause)
    assert place.layer == LAYER


@pytest.mark.parametrize("check", ["determinism", "finite"])
def test_a_fault_that_begins_later_is_located_in_the_whole_input(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, lengths = located(monkeypatch, check, 5, 4)
    assert lengths == {len(TOKENS)}
    assert place.layer == LAYER
