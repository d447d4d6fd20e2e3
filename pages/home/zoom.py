"""The zoom of Home: the scene of the whole run, one of its heads, and one cell of that head, each with its own address."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import streamlit as st

from pages.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.components.elements import ClickedScreen, scene
from pages.compute.byte_cache import shared
from pages.compute.call import picture_call
from pages.compute.cell_steps import steps_panel
from pages.compute.picture import footer, html, live_menu, menu, toolbar
from pages.controls import embed
from pages.controls.text import escape_markdown
from pages.controls.widgets import warn_unknown
from pages.home.language_model import model_switch
from pages.state import screens
from pages.state.link import address, is_just_opened, set_parameter, take_parameter
from pages.state.view import View, editing
from xformer import viz
from xformer.reading import Reading
from xformer.viz.packing import AnyLayer, pack, pattern_layers
from xformer.widgets.page import scene_page
from xformer.widgets.scene_data import scene_data

_KEY = "zoom"
_IS_IN = "zoomed"


def zoom_panel(view: View, title: str) -> None:
    """Draw the run as a scene below `title` (Markdown), a head or a cell of it, whichever the visitor has opened."""
    run = view.changed() or view.original()
    _follow_the_link(run)
    layers = pattern_layers(run) if st.session_state.get(_IS_IN) else []
    chosen = attention_choice(_KEY, layers) if layers else None
    with toolbar():
        if chosen is None:
            model_switch(view.model)
            st.markdown(title, width="content")
        else:
            _breadcrumbs(chosen, layers[chosen.layer])
    with embed.picture():
        if chosen is None:
            _scene(view, run)
        elif chosen.query is None or chosen.key is None:
            _head(view, run, layers, chosen)
        else:
            steps_panel(view, run, layers[chosen.layer], chosen, has_charts=False)
    set_parameter(_KEY, "" if chosen is None else str(chosen))


def _head(view: View, run: Reading, layers: list[AnyLayer], chosen: Selection) -> None:
    """Draw a head in the view of all heads; locking a cell opens it."""
    attention_view(pack(layers, selected=(chosen.layer, chosen.head)), key=_KEY)
    st.caption("Click a cell of the matrix to see how its weight is computed.")
    footer(view, _KEY, [picture_call(viz.attention, run, layer=chosen.layer, head=chosen.head)])


def _open(chosen: Selection) -> None:
    """Zoom to a head or one of its cells. A callback."""
    st.session_state[_IS_IN] = True
    choose_attention(_KEY, chosen)


def _leave() -> None:
    """Zoom back to the scene. A callback."""
    st.session_state[_IS_IN] = False


def _follow_the_link(run: Reading) -> None:
    """Open the head or the cell of the link, or the scene; close a head that this model does not have."""
    heads = [run.adapter.shape.heads[site.path] for site in run.layer_paths]
    if st.session_state.get("zoom_heads") != heads or is_just_opened():
        _leave()
    st.session_state["zoom_heads"] = heads
    if (wanted := take_parameter(_KEY)) is None:
        return
    found = Selection.parse(wanted)
    if found is None or not found.is_in(heads):
        warn_unknown(_KEY)
    else:
        _open(found)


def _breadcrumbs(chosen: Selection, layer: AnyLayer) -> None:
    """Draw the way back: the scene, the head, and the cell. Escape goes one level up."""
    query, key, head = chosen.query, chosen.key, f"{layer.title} · head {chosen.head + 1}"
    out = partial(
        st.button, "Whole model", icon=":material/arrow_back:", type="tertiary", key="zoom_out", on_click=_leave
    )
    if query is None or key is None:
        out(shortcut="Escape")
        st.markdown(f"› **{escape_markdown(head)}**", width="content")
    else:
        out()
        st.markdown("›", width="content")
        up = replace(chosen, query=None, key=None)
        st.button(head, type="tertiary", key="zoom_head", on_click=_open, args=(up,), shortcut="Escape")
        names = f"{query} · {layer.query_labels[query]} → {key} · {layer.key_labels[key]}"
        st.markdown(f"› **{escape_markdown(names)}**", width="content")
    screens.link("attention", "All of its tools", "open_in_new", head=str(chosen))


def _scene(view: View, reading: Reading) -> None:
    """Draw the run of the model as a scene; its tokens can be edited in place."""
    edit = editing(view)

    def enlarge(clicked: ClickedScreen) -> None:
        if head := Selection.parse(clicked.head):
            _open(head)

    call = picture_call(scene_data, reading, edit=edit and (edit.texts, edit.first))
    clicked = scene(shared.get(("scene", *call.key(view)), call.make), key="scene", editing=edit, enlarge=enlarge)
    link = address()
    with menu("scene"):
        html(lambda: scene_page(scene_data(reading), [str(reading.code), *link()]), "scene", view.model)
        live_menu(view, "scene", {"tab": "scene"})
    if clicked is not None and not clicked.head:
        st.switch_page(screens.file_of(clicked.screen))  # the sidebar keeps its model and input
