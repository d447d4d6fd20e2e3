"""Atoms of a product and where they came from, as a head looks."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import xformer
from tests.real_models import real_model
from xformer.adapters.any_module import AnyModule
from xformer.analysis.reactions import agreement_by_chance, element, is_reaction
from xformer.errors import InputError
from xformer.reading import Reading


@pytest.mark.parametrize(
    ("token", "name"),
    [("c", "C"), ("[C@@H]", "C"), ("[O-]", "O"), ("Cl", "Cl"), ("[nH]", "N"), ("[13C]", "C"), ("Br", "Br"), ("[Na+]", "Na"),
     ("[K+]", "K"), ("[Si]", "Si"), ("=", None), ("1", None), ("(", None), (">>", None), ("[CLS]", None), (".", None)],
)  # fmt: skip
def test_an_atom_is_known_by_its_token(token: str, name: str | None) -> None:
    assert element(token) == name


class Looks(torch.nn.Module):
    """An attention of one head whose scores are given."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(scores)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self.scores[None, None].softmax(dim=-1), x[:, None])[:, 0]


def reading_of(tokens: str, looks: dict[int, int]) -> Reading:
    """A reading of these tokens whose one head looks from the keys to the values of `looks`."""
    words = tuple(tokens.split())
    scores = torch.zeros(len(words), len(words))
    for query, key in looks.items():
        scores[query, key] = 5.0
    x = torch.randn(1, len(words), 3, generator=torch.Generator().manual_seed(0))
    subject = AnyModule.open(Looks(scores), x)
    example = subject.frame()
    reading = Reading(subject, example, subject.record(example), has_right_answer=False)
    reading.__dict__["tokens_of"] = lambda stack=None: words
    return reading


def test_each_atom_goes_to_where_the_head_looks_and_agreement_can_fail() -> None:
    #                                0 1 2 3 4  5 6 7
    reading = reading_of("C O . N >> N O C", {5: 3, 6: 0, 7: 0})
    assert is_reaction(reading)
    frame = xformer.analysis.atom_mapping(reading, layer=0, head=0)
    assert frame["reactant"].tolist() == [3, 0, 0]
    assert frame["agrees"].tolist() == [True, False, True]
    assert frame["weight"].between(0, 1).all()
    assert agreement_by_chance(reading) == pytest.approx(1 / 3)


def test_what_is_no_reaction_is_refused() -> None:
    reading = reading_of("C O . N", {})
    assert not is_reaction(reading)
    with pytest.raises(InputError, match="Atoms are mapped in a reaction"):
        xformer.analysis.atom_mapping(reading, layer=0, head=0)


REACTIONS = (
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "CC(=O)O.OCC>>CC(=O)OCC",
    "CC(=O)Cl.NCC>>CC(=O)NCC",
    "Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
)


def test_a_trained_model_maps_atoms_to_atoms_of_their_element() -> None:
    """Head 5 of layer 10, counted from 0: the one that its authors publish. Another head does worse."""
    model = real_model("rxnmapper")
    readings = [xformer.read(model, reaction) for reaction in REACTIONS]
    tables = {
        head: [xformer.analysis.atom_mapping(reading, layer=10, head=head) for reading in readings] for head in (5, 2)
    }
    share = {head: pd.concat(found)["agrees"].mean() for head, found in tables.items()}
    assert share[5] >= 0.9 > share[2]
    first = tables[5][0]
    assert (first["agrees"].all(), first["reactant"].is_unique) == (True, True)
    assert len(xformer.viz.atom_mapping(readings[0], layer=10, head=5).to_dict()["layer"]) == 2
