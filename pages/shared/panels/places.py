"""“Where a patch is”: how alike the learned positions of the patches are, a little map at the place of each."""

from __future__ import annotations

import streamlit as st

from pages.shared.layout import is_dark
from pages.shared.notebook import footer, heading
from pages.shared.view import View
from xformer.analysis.images import neighbour_share, place_cosines
from xformer.viz.images import places_chart, places_frame


def places_panel(view: View) -> None:
    """Draw the maps, and say whether places that are side by side are alike; nothing where no positions are added."""
    cosine = place_cosines(view.checkpoint.model)
    if cosine is None:
        return
    heading("Where a patch is")
    frame = places_frame(cosine.numpy())
    st.altair_chart(places_chart(frame, dark=is_dark()), width="content", key="places")
    n = len(cosine)
    side = round(n**0.5)
    pairs = 4 * side * (side - 1)  # ordered pairs of places side by side
    chance = pairs / (n * (n - 1))
    share = neighbour_share(cosine)
    verdict = (
        "So few places and images need no map, and it has drawn none."
        if share < 2 * chance
        else "It has found out what is beside what."
    )
    st.caption(
        f"Each little map stands where its patch is, and shows the cosine of that patch’s position vector with the vectors of "
        f"all {n} places (the patch itself framed: 1). Nobody told the model that the {n} places form a square of "
        f"{side} × {side} (Dosovitskiy et al. 2021, fig. 7): for **{share:.0%}** of them the most alike "
        f"other place is right beside it (chance: {chance:.0%}). {verdict}"
    )
    lines = [
        "from xformer.analysis.images import place_cosines",
        "from xformer.viz.images import places_chart, places_frame",
        "places_chart(places_frame(place_cosines(checkpoint.model).numpy()), dark=False)",
    ]
    footer(view, lines, frame, "places", changed=False)
