"""Which atom of the product was which atom of the reactants, as one head of a model of reactions looks (Schwaller et al. 2021).

A reaction is a text, “reactants>>product” in SMILES. Each atom of the product is given the atom of the reactants that the head
puts most weight on, counted from both sides. Whether their elements agree is chemistry, and not read from the model.
"""

from __future__ import annotations

import re

import pandas as pd
import torch

from xformer.errors import InputError
from xformer.reading import Reading

ARROW = ">>"
_BRACKET = r"\[\d*(?P<bracket>[A-Z][a-z]?|[bcnops]|se|as)@{0,2}(H\d?)?([+-]+\d?)?(:\d+)?\]"
_ATOM = re.compile(rf"{_BRACKET}|(?P<plain>Cl|Br|[BCNOPSFI]|[bcnops])")


def element(token: str) -> str | None:
    """The element that a token of a SMILES text stands for, "C" for "c" and for "[C@@H]"; None for what is no atom."""
    found = _ATOM.fullmatch(token)
    if found is None:
        return None
    return (found["bracket"] or found["plain"]).capitalize()


def is_reaction(reading: Reading) -> bool:
    """Whether the tokens are those of a reaction, with atoms on both sides of its arrow."""
    tokens = reading.tokens
    if tokens.count(ARROW) != 1:
        return False
    at = tokens.index(ARROW)
    return all(any(map(element, side)) for side in (tokens[:at], tokens[at + 1 :]))


def atom_mapping(reading: Reading, *, layer: int, head: int) -> pd.DataFrame:
    """For each atom of the product the atom of the reactants that the head maps it to.

    Columns: product and reactant (positions), their tokens and elements, weight (how much of what both put on the other side's
    atoms they put on each other, 0 to 1) and agrees (whether the elements are the same).

    Raises `InputError` where the input is no reaction.

    Args:
        reading: The run.
        layer: The layer, from 0.
        head: The head, from 0.

    Returns:
        A table; the example shows its columns.

    Example:
        >>> import xformer
        >>> reading = xformer.read("models/rxnmapper", "CC(=O)O.OCC>>CC(=O)OCC")  # doctest: +SKIP
        >>> table = xformer.analysis.atom_mapping(reading, layer=10, head=5)  # doctest: +SKIP
    """
    if not is_reaction(reading):
        raise InputError(
            f"Atoms are mapped in a reaction, like 'CCO.CC(=O)O>>CC(=O)OCC', got {' '.join(reading.tokens)!r}."
        )
    pattern = reading[f"{reading.attention_site(layer).path}.pattern"][0, head]  # [query, key]
    tokens, at = reading.tokens, reading.tokens.index(ARROW)
    atoms = [index for index, token in enumerate(tokens) if element(token) is not None]
    before, after = torch.tensor([i for i in atoms if i < at]), torch.tensor([i for i in atoms if i > at])
    there = pattern[after][:, before]  # [product, reactant]
    back = pattern[before][:, after].T  # [product, reactant]
    both = _shares(there) + _shares(back)
    best = both.argmax(dim=1)
    columns = {}
    for name, positions in (("product", after.tolist()), ("reactant", before[best].tolist())):
        columns[name] = positions
        columns[f"{name}_token"] = [tokens[at] for at in positions]
        columns[f"{name}_element"] = [element(tokens[at]) for at in positions]
    frame = pd.DataFrame(columns).assign(weight=(both.amax(dim=1) / 2).tolist())
    return frame.assign(agrees=frame["product_element"] == frame["reactant_element"])


def agreement_by_chance(reading: Reading) -> float:
    """The share of product atoms whose element would agree if each were mapped to any atom of the reactants alike."""
    tokens, at = reading.tokens, reading.tokens.index(ARROW)
    before = [element(token) for token in tokens[:at] if element(token)]
    after = [element(token) for token in tokens[at + 1 :] if element(token)]
    return sum(before.count(one) for one in after) / (len(before) * len(after))


def _shares(weights: torch.Tensor) -> torch.Tensor:
    """Each product atom's weights as shares of their sum; 0 where there is none."""
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-12)
