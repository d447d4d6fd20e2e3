"""Atom mapping from the attention of a head."""

from __future__ import annotations

import pytest
import torch

import xformer
from xformer.adapters.any_module import AnyModule
from xformer.analysis.reactions import agreement_by_chance, element, is_reaction
from xformer.errors import InputError
from xformer.reading import Reading


def test_element_recognizes_the_tokens_of_atoms() -> None:
    atoms = {"c": "C", "[C@@H]": "C", "[O-]": "O", "Cl": "Cl", "[nH]": "N", "[13C]": "C", "[Na+]": "Na", "[Si]": "Si"}
    assert {token: element(token) for token in atoms} == atoms
    assert [element(token) for token in ("=", "1", "(", ">>", "[CLS]", ".")] == [None] * 6


class Looks(torch.nn.Module):
    """Attention with one head whose scores are given."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(scores)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self.scores[None, None].softmax(dim=-1), x[:, None])[:, 0]


def reading_of(tokens: str, looks: dict[int, int]) -> Reading:
    """Build a reading of these tokens whose head attends from the keys of `looks` to its values."""
    words = tuple(tokens.split())
    scores = torch.zeros(len(words), len(words))
    for query, key in looks.items():
        scores[query, key] = 5.0
    x = torch.randn(1, len(words), 3, generator=torch.Generator().manual_seed(0))
    adapter = AnyModule.open(Looks(scores), x)
    example = adapter.to_example()
    reading = Reading(adapter, example, adapter.record(example), has_right_answer=False)
    reading.__dict__["tokens_of"] = lambda stack=None: words
    return reading


def test_each_atom_is_mapped_to_the_atom_it_attends_to() -> None:
    #                                0 1 2 3 4  5 6 7
    reading = reading_of("C O . N >> N O C", {5: 3, 6: 0, 7: 0})
    assert is_reaction(reading)
    frame = xformer.analysis.atom_mapping(reading, layer=0, head=0)
    assert frame["reactant"].tolist() == [3, 0, 0]
    assert frame["agrees"].tolist() == [True, False, True]
    assert frame["weight"].between(0, 1).all()
    assert agreement_by_chance(reading) == pytest.approx(1 / 3)


def test_inputs_that_are_not_reactions_are_refused() -> None:
    reading = reading_of("C O . N", {})
    assert not is_reaction(reading)
    with pytest.raises(InputError, match="Atoms can only be mapped in a reaction"):
        xformer.analysis.atom_mapping(reading, layer=0, head=0)
