"""“Atom mapping”: in a reaction, which atom of the product the chosen head traces back to which atom of the reactants."""

from __future__ import annotations

import streamlit as st

from pages.components.attention_view import Selection
from pages.shared.layout import caption
from pages.shared.picture import picture
from pages.shared.view import View
from xformer import viz
from xformer.analysis.reactions import agreement_by_chance, atom_mapping
from xformer.formatting import percent
from xformer.reading import Reading

CLEARLY = 0.2
"""How far above chance a share of agreeing elements has to be before it is said to mean anything."""


def atom_mapping_panel(view: View, run: Reading, chosen: Selection) -> None:
    """The lines of the chosen head, and how many of them join atoms of one element."""
    caption(
        "Each atom of the product is joined to the atom of the reactants that this head puts most weight on, counted from both "
        "sides. That elements agree is checked against chemistry: the model was never told which atoms are which."
    )
    picture(view, "atom_mapping", viz.atom_mapping, run, layer=chosen.layer, head=chosen.head)
    found = atom_mapping(run, layer=chosen.layer, head=chosen.head)["agrees"].tolist()
    n, chance = len(found), agreement_by_chance(run)
    said = f"{sum(found)} of {n} atoms of the product are joined to an atom of their own element"
    if sum(found) / n >= chance + CLEARLY:
        st.markdown(f"**{said}**; by chance it would be {percent(chance)}.")
    else:
        st.markdown(f"{said}, and by chance it would be {percent(chance)}: this head does not follow atoms here.")
