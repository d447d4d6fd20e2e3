"""“Where a patch is”: how alike the learned positions of the patches are, a little map at the place of each."""

from __future__ import annotations

import math

import streamlit as st

from pages.shared.picture import heading, picture
from pages.shared.view import View
from xformer import viz
from xformer.analysis.embeddings import Nearness, places_side_by_side
from xformer.analysis.images import place_cosines
from xformer.formatting import percent


def places_panel(view: View) -> None:
    """Draw the maps, and say whether places that are side by side are alike."""
    heading("How alike the places are")
    picture(view, "places", viz.patch_places, view.original())
    cosine = place_cosines(view.original())
    found = places_side_by_side(cosine)
    st.caption(
        f"Each little map stands where its patch is, and shows the cosine of that patch’s position vector with the vectors of "
        f"all {len(cosine)} places (the patch itself framed: 1). For **{percent(found.share, 0)}** of them the most alike "
        f"other place is right beside it (chance: {percent(found.chance, 0)}). {_verdict(view, found, math.isqrt(len(cosine)))}"
    )


def _verdict(view: View, found: Nearness, side: int) -> str:
    """What follows from the share, held against chance."""
    config = view.config
    if not config.position_kind.learned(config):
        return "These vectors are fixed, counted row by row; nothing of them was learned."
    if found.is_above_chance:
        return (
            f"Nobody told the model that the {side**2} places form a square of {side} × {side}: it "
            "has found out what is beside what. (Dosovitskiy et al. 2021, fig. 7)"
        )
    return "That is no more than chance would do: no map of the image is to be seen here."
