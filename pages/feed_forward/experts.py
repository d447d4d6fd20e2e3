"""“Which experts each token takes”, of a mixture of experts: the choice of its router, layer by layer."""

from __future__ import annotations

from collections import Counter

import streamlit as st

from pages.shared.picture import heading, of_each_run, table
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import analysis, viz
from xformer.formatting import percent
from xformer.site import layer_title


def experts_panel(view: View) -> None:
    """Ask for a layer, draw its router's choices, and say how evenly they are spread."""
    heading("Which experts each token takes")
    sites = view.original().feed_forward
    layers = {
        str(at + 1): layer_title(site.path, is_pair=view.is_pair)
        for at, site in enumerate(sites)
        if site.path in view.shape.experts
    }
    wanted = choose(
        "mixture", layers, next(reversed(layers)), "Layer", key="ff_mixture", widget=st.selectbox, width=180
    )
    layer = int(wanted) - 1
    of_each_run(view, "experts", viz.expert_weights, layer=layer)
    found = table(view, analysis.expert_weights, view.changed() or view.original(), layer=layer)
    n, n_experts = len(set(found["position"])), view.shape.experts[sites[layer].path]
    counts = Counter(found.loc[found["weight"] != 0, "expert"].tolist())
    k, [(expert, times)] = counts.total() / n, counts.most_common(1)
    never = n_experts - len(counts)
    st.caption(
        f"{n_experts} experts, {k:.3g} of them for a token; the colour is the weight with which an expert’s output is added. "
        f"Expert {expert} is taken by most: {times} of {n} tokens ({percent(times / n, 0)}); were all taken alike, each would "
        f"be by {percent(k / n_experts, 0)}."
        + (f" {never} {'expert is' if never == 1 else 'experts are'} taken by none." if never else "")
    )
