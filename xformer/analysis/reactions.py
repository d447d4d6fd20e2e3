"""Atom mapping: which atom of the reactants became which atom of the product, from the attention of a reaction model's head.

A reaction is a text, “reactants>>product” in SMILES. Each atom of the product is mapped to the atom of the reactants with the
most attention between the two, in both directions (Schwaller et al. 2021). The mapping does not use their elements.
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
    """Return the element of a SMILES token, "C" for "c" and for "[C@@H]"; None if the token is not an atom."""
    found = _ATOM.fullmatch(token)
    if found is None:
        return None
    return (found["bracket"] or found["plain"]).capitalize()


def is_reaction(reading: Reading) -> bool:
    """Return whether the tokens are a reaction with atoms on both sides of its arrow."""
    tokens = reading.tokens
    if tokens.count(ARROW) != 1:
        return False
    at = tokens.index(ARROW)
    return all(any(map(element, side)) for side in (tokens[:at], tokens[at + 1 :]))


def atom_mapping(reading: Reading, *, layer: int, head: int) -> pd.DataFrame:
    """Map each atom of the product to an atom of the reactants, by the attention of one head.

    Args:
        reading: A run on a reaction.
        layer: The attention layer, from 0.
        head: The head, from 0.

    Returns:
        A row per atom of the product: product and reactant (positions, from 0), product_token, product_element,
        reactant_token, reactant_element, weight (0 to 1: of the attention that each of the two pays to atoms of the other side,
        the share paid to the other one, averaged over both) and agrees (whether the elements are the same).

    Raises:
        InputError: If the input is not a reaction.

    Example:
        >>> import xformer
        >>> reading = xformer.read("models/rxnmapper", "CC(=O)O.OCC>>CC(=O)OCC")  # doctest: +SKIP
        >>> table = xformer.analysis.atom_mapping(reading, layer=10, head=5)  # doctest: +SKIP
    """
    if not is_reaction(reading):
        raise InputError(
            f"Atoms can only be mapped in a reaction, like 'CCO.CC(=O)O>>CC(=O)OCC', got {' '.join(reading.tokens)!r:.100}."
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
    """Return the expected share of product atoms whose element agrees if each is mapped to a random atom of the reactants."""
    tokens, at = reading.tokens, reading.tokens.index(ARROW)
    before = [element(token) for token in tokens[:at] if element(token)]
    after = [element(token) for token in tokens[at + 1 :] if element(token)]
    return sum(before.count(one) for one in after) / (len(before) * len(after))


def _shares(weights: torch.Tensor) -> torch.Tensor:
    """Normalise the weights of each product atom to sum to 1; all-zero rows stay 0."""
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-12)
