"""The download of a live page: a single file in which the model of a screen runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from pages.compute.cached_runs import MASKS
from pages.compute.models import card_of_model
from pages.controls import widgets
from pages.controls.text import escape_markdown
from pages.state.view import View
from xformer.checkpoints import Checkpoint
from xformer.errors import XformerError
from xformer.live.export import check_exportable, live_page


def download(make: Callable[[], bytes], name: str, file: str) -> None:
    """Draw the download button; `make` is called when the file is requested."""
    about = "One file in which the model runs offline: type an input, change its mask, ablate heads, follow one head."
    widgets.download("Live page", make, f"{file}-live.html", key=f"live_{name}", help=about)


def live_menu(view: View, name: str, at: Mapping[str, Any] | None = None) -> None:
    """Draw a button that downloads a live page with this model, input, mask and changes, or a caption why there is none.

    `at` is the initial state of the page beyond these, such as {"layer": 2, "head": 1}.
    """
    try:
        adapter = view.own
        check_exportable(Checkpoint(adapter.model, adapter.task))
    except XformerError as error:
        st.caption(f"No live page: {escape_markdown(str(error))}")
        return
    state, missing = live_state(view)
    text = adapter.input.text(view.source)

    def page() -> bytes:  # reads the card of a run from the store, so only when the file is requested
        checkpoint = Checkpoint(adapter.model, adapter.task, card_of_model(view.model))
        return live_page(checkpoint, text, state=state | dict(at or {})).encode()

    download(page, name, view.model.replace("/", "-"))
    if missing:
        st.caption(escape_markdown(f"A live page cannot make these changes: {', '.join(missing)}."))


def live_state(view: View) -> tuple[dict[str, Any], list[str]]:
    """Return the mask and the changes as the state of a live page, and the labels of changes that it does not support."""
    state: dict[str, Any] = {"mask": "trained" if view.mask == MASKS[0] else view.mask}
    lists: dict[str, list[str]] = {"ablate": [], "cut": []}
    missing = []
    for edit_link in view.edit_links:
        kind, _, where = edit_link.text.partition(":")
        if kind == "cut":
            lists["cut"].append(where.replace("-", "."))
        elif kind == "ablate" and where.rpartition(".")[0] in view.shape.heads:
            lists["ablate"].append(where)
        elif kind == "solo":
            path, _, head = where.rpartition(".")
            lists["ablate"] += [f"{path}.{other}" for other in range(view.shape.heads[path]) if other != int(head)]
        elif kind == "positions":
            state["positions"] = False
        elif edit_link.replaced is not None:
            at, token = edit_link.replaced
            state["replace"] = state.get("replace", {}) | {str(at): view.adapter.token_labels[token]}
        else:
            missing.append(edit_link.label)
    return state | {name: words for name, words in lists.items() if words}, missing
