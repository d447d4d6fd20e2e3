"""The number of parameters by formula is the number there really are, and the formulas on show say the same."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.layers.reference import ARCHITECTURES, FITTING, model_config
from xformer.config import ModelConfig
from xformer.counting import n_parameters, parameters_by_part
from xformer.model import Transformer


def really(config: ModelConfig) -> int:
    """Build the model, without its memory, and count."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


def written_out(formula: str) -> int:
    """What a formula of the table comes to."""
    return eval(formula.replace(",", "").replace("×", "*").replace("·", "*"))  # our own text, not a user's


CHANGES = [
    {},
    {"attention_bias": False},
    {"ffn_bias": False},
    {"d_ff": 0},
    {"output_bias": False},
    {"tied_output": True},
    {"tied_output": True, "output_bias": False},
    {"final_norm": True},
    {"n_layers": 1, "n_heads": 1, "d_head": 2, "d_value": 1, "d_model": 1, "d_ff": 1, "vocab_size": 1, "max_len": 1},
    {"vocab_size": 40_009, "d_model": 1031, "n_layers": 13, "n_heads": 7, "d_head": 62, "d_ff": 4099, "max_len": 509},
]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize(("architecture", "norm"), list(product(ARCHITECTURES, ["pre", "post", "none"])))
def test_the_formula_counts_what_there_is(architecture: str, norm: str, changes: dict[str, int]) -> None:
    config = model_config(architecture=architecture, norm=norm, **changes)
    assert n_parameters(config) == really(config)
    for part in parameters_by_part(config):
        assert written_out(part.formula) == part.count
        assert part.count > 0


@pytest.mark.parametrize(("architecture", "positions"), FITTING)
def test_tables_of_positions_are_counted(architecture: str, positions: str) -> None:
    config = model_config(architecture=architecture, positions=positions)
    assert n_parameters(config) == really(config)
    for part in parameters_by_part(config):
        assert written_out(part.formula) == part.count


@pytest.mark.parametrize("tied_source", [True, False])
@pytest.mark.parametrize("tied_output", [True, False])
def test_shared_matrices_are_counted_once(tied_source: bool, tied_output: bool) -> None:
    config = model_config(architecture="encoder-decoder", tied_source=tied_source, tied_output=tied_output)
    assert n_parameters(config) == really(config)
