"""A port that differs from its original: the first module, and what of its attention differs first."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import xformer
from tests.doctor.plain_gpt import D_HEAD, LAYER, PlainGPT
from xformer.errors import InputError

TOKENS = [5, 44, 12, 31, 7, 50, 23]


def through_the_kernel(fault: str = "") -> PlainGPT:
    """Attention through PyTorch's kernel, which shows queries, keys and values; a softmax by hand shows scores only."""
    model = PlainGPT(fault)
    for block in model.blocks:
        block.attention.flash = True  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return model


class Renamed(nn.Module):
    """The same computation under other names."""

    def __init__(self, model: PlainGPT) -> None:
        super().__init__()
        self.wrapped = model

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        return self.wrapped(idx).logits


def test_equal_models_have_no_first_module() -> None:
    model = PlainGPT()
    compared = xformer.compare_runs(model, Renamed(copy.deepcopy(model)), TOKENS)
    assert compared.ok
    assert compared.first is None
    assert compared.place is None
    assert {"blocks.2.mlp.0", "head"} <= set(compared.table["module"])


def test_other_weights_of_the_queries_are_found_in_their_head() -> None:
    model = through_the_kernel()
    port = copy.deepcopy(model)
    with torch.no_grad():
        port.get_parameter(f"blocks.{LAYER}.attention.query.weight")[D_HEAD : 2 * D_HEAD] *= 1.1
    compared = xformer.compare_runs(model, port, TOKENS)
    assert compared.first == f"blocks.{LAYER}.attention.query"
    assert compared.place is not None
    assert (compared.place.layer, compared.place.head, compared.place.cause) == (LAYER, 1, "q")


def test_other_rotations_are_found_as_positions() -> None:
    compared = xformer.compare_runs(through_the_kernel(), through_the_kernel("pairing"), TOKENS)
    assert compared.place is not None
    assert (compared.place.layer, compared.place.cause) == (LAYER, "positions")


def test_modules_are_paired_by_name_where_names_are_given() -> None:
    model = PlainGPT()
    compared = xformer.compare_runs(model, Renamed(model), TOKENS, pairs=[("blocks.0", "wrapped.blocks.0.mlp")])
    assert compared.first == "blocks.0"
    with pytest.raises(InputError, match="must name modules that were called"):
        xformer.compare_runs(model, Renamed(model), TOKENS, pairs=[("blocks.0", "blocks.0")])
