"""A picture on a screen: the result of a call of `xformer.viz`, with the code of that call and its table as a file.

    picture(view, "norms", viz.norms, reading, before=original, what="added")

The arguments are plain values and objects with a `code` (a reading, a survey, a rollout), alone or in lists. The table comes
from the function of `xformer.analysis` with the same name.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compute.byte_cache import shared
from pages.compute.cached_runs import MASKS
from pages.compute.call import (
    Draw,
    HasModel,
    PictureCall,
    Source,
    chart_spec,
    code,
    is_dark,
    picture_call,
    script,
    tables,
    themed_spec,
)
from pages.compute.models import card_of_model
from pages.controls.text import escape_markdown
from pages.controls.widgets import download
from pages.state.link import address
from pages.state.view import ORIGINAL, View, name_of, run_title
from xformer.checkpoints import Checkpoint
from xformer.edit_links import parse_edits
from xformer.errors import UnavailableError, XformerError
from xformer.layer_path import LayerPath, head_title, layer_title
from xformer.live.export import check_exportable, live_page
from xformer.reading import ReadCall, Reading
from xformer.training.tables import to_csv
from xformer.viz.export import pdf_of, png_of, svg


def panel(draw: Callable[..., None], *arguments: Any) -> None:
    """Draw a part of a screen, or a message if this kind of model does not have it."""
    try:
        draw(*arguments)
    except UnavailableError as error:
        st.info(escape_markdown(str(error)), icon=":material/info:")


def picture(view: HasModel, name: str, draw: Draw, *readings: Source, key: str = "", **options: Any) -> Any:
    """Show one picture with its menu and return its selection event, see `shown`. `name` is the suffix of its file names."""
    call = picture_call(draw, *readings, **options)
    event = shown(view, call, key or name)
    footer(view, name, [call])
    return event


def of_each_run(view: View, name: str, draw: Draw, **options: Any) -> None:
    """Show the picture of the original and, if any, of the changed run, with one “⋯” for both.

    If `draw` has these parameters, the changed run is drawn with the original as `before=`, and each of two pictures with the
    name of its run as `title=`.
    """
    known, original, changed = inspect.signature(draw).parameters, view.original(), view.changed()
    calls = [picture_call(draw, original, **options)]
    if changed is not None:
        calls.append(picture_call(draw, changed, **(options | ({"before": original} if "before" in known else {}))))
    for index, (call, run) in enumerate(zip(calls, (ORIGINAL, view.shown), strict=False)):
        if changed is not None and "title" in known:
            calls[index] = call = replace(call, options={**call.options, "title": run_title(run)})
        elif changed is not None:
            st.markdown(f"**{run_title(run)}**")
        shown(view, call, f"{name}_{index}")
    footer(view, name, calls)


Mark = dict[str, Any]
"""The fields of a mark in a chart that was clicked."""


def shown(
    view: HasModel,
    call: PictureCall,
    key: str,
    *,
    on_click: Callable[[Mark], object] | None = None,
    selection: str = "cell",
) -> Any:
    """Show an Altair or Plotly chart, cached for all visitors.

    `on_click` is called, in a callback, with each clicked mark of the chart's `selection`.
    """
    more: dict[str, Any] = {"key": key}
    if on_click is not None:
        more |= {"on_select": lambda: list(map(on_click, clicked(key, selection))), "selection_mode": selection}
    spec = themed_spec(call.key(view), call.make)
    if not isinstance(spec, dict):
        file = {"format": "svg", "filename": f"{view.model.split('/')[-1]}-{call.name}"}  # for the camera button
        bar = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"], "toImageButtonOptions": file}
        return st.plotly_chart(spec, theme="streamlit", config=bar, **more)
    has_own_size = isinstance(spec.get("width"), int | float) or not {"concat", "facet", "hconcat"}.isdisjoint(spec)
    width = "content" if has_own_size else "stretch"
    return st.vega_lite_chart(spec, theme="streamlit", width=width, **more)


def clicked(key: str, selection: str) -> list[Mark]:
    """Return the marks of a chart that are clicked; `selection` is a name in its specification."""
    return st.session_state[key]["selection"].get(selection, [])


def side_by_side(
    view: HasModel, calls: Sequence[PictureCall], name: str, *, titles: Sequence[str] = (), widths: Sequence[float] = ()
) -> None:
    """Show charts in columns, each below its title if `titles` are given; `widths` are relative."""
    for index, (place, call) in enumerate(zip(st.columns(widths or len(calls), gap="medium"), calls, strict=True)):
        with place:
            if titles:
                st.markdown(f"**{escape_markdown(titles[index])}**")
            shown(view, call, f"{name}_{index}")


def footer(
    view: HasModel,
    name: str,
    calls: Sequence[PictureCall],
    table: Table | None = None,
    *,
    remark: Sequence[str] = (),
    page: Callable[[Sequence[str]], str] | None = None,
    drawn: Sequence[PictureCall] = (),
    more: Callable[[], None] = lambda: None,
) -> None:
    """Draw the “⋯” menu of pictures that belong together: their code, data and files.

    Args:
        view: The view on which the pictures are shown; files are named after its model.
        name: The suffix of the files and widget keys.
        calls: The calls that draw the pictures.
        table: The numbers of the pictures; by default the concatenated tables of the calls.
        remark: Lines of code before the calls.
        page: Makes a self-contained HTML page from the lines of its caption.
        drawn: The calls for the figure files, if different from `calls`.
        more: Draws further buttons.
    """
    numbers = (lambda: tables(calls)) if table is None else table
    charts = [call for call in drawn or calls if call.is_chart]

    def specs() -> list[dict[str, Any]]:
        return [chart_spec(call.key(view), call.make) for call in charts]

    caption = _caption(charts)
    with menu(name):
        st.code(script([*remark, *code(calls)]), language="python", width=900, wrap_lines=True)
        with st.container(horizontal=True, gap="small", key=f"files_{name}"):
            csv(numbers, name, view.model)
            if page is not None:
                html(lambda: page(caption()), name, view.model)
            more()
        if charts:
            figure_files(specs, caption, name, view.model, _figure_title(charts))


def _caption(calls: Sequence[PictureCall]) -> Callable[[], list[str]]:
    """Return a function that makes the caption of a file: the code of each run, one per line, and the link to the screen."""
    codes, link = dict.fromkeys(str(reading.code) for call in calls for reading in call.all_readings()), address()
    return lambda: [*codes, *link()]


def _figure_title(calls: Sequence[PictureCall]) -> str:
    """Return the title of a figure: models, layer and head, inputs, and the mask and the changes of each run that has some."""
    sources = [source for call in calls for source in call.all_readings() if isinstance(source.code, ReadCall)]
    codes: list[ReadCall] = [source.code for source in sources]
    models = " and ".join(dict.fromkeys(Path(code.model).name for code in codes))
    typed = [one.inputs if isinstance(one.inputs, str) else " ".join(map(str, one.inputs)) for one in codes]
    inputs = [f"“{textwrap.shorten(text, _LONGEST_INPUT)}”" for text in dict.fromkeys(typed)]
    changes = dict.fromkeys(filter(None, map(_changes, sources)))
    return " · ".join(filter(None, [models, next(filter(None, map(_place, calls)), ""), *inputs, *changes]))


def _changes(source: Source) -> str:
    """Return the mask and the changes of a reading; "" if it has none."""
    code = source.code
    mask = [] if code.causal is None else ["causal mask" if code.causal else "full mask"]
    if isinstance(source, Reading):
        mask += [name_of(change, source.adapter) for change in parse_edits(code.edits, source.adapter.shape)]
    return f"with {', '.join(mask)}" if mask else ""


def _place(call: PictureCall) -> str:
    """Return the layer and the head of a picture, counted from 1; "" if it shows a whole run."""
    layer, head = call.options.get("layer"), call.options.get("head")
    run = next((source for source in call.all_readings() if isinstance(source, Reading)), None)
    if isinstance(layer, int) and isinstance(head, int) and run is not None:
        return head_title(run.attention[layer].path, head, is_encoder_decoder=run.is_encoder_decoder)
    if isinstance(layer, str):
        is_encoder_decoder = run is not None and run.is_encoder_decoder
        return layer_title(layer, is_encoder_decoder=is_encoder_decoder) if LayerPath.find(layer) else ""
    return "" if layer is None else f"layer {layer + 1}"


def table(view: HasModel, tabulate: Callable[..., pd.DataFrame], *readings: Any, **options: Any) -> pd.DataFrame:
    """Return a table of `xformer.analysis`, cached for all visitors. It must not be modified."""
    call = picture_call(tabulate, *readings, **options)
    return shared.get(("table", *call.key(view)), call.make)


Table = pd.DataFrame | Callable[[], pd.DataFrame]
"""The numbers of a picture, or a function that computes them on request."""

_PLACE = "menu_place"


def begin() -> None:
    """Call before a screen runs: forget the menu position of an interrupted run."""
    st.session_state.pop(_PLACE, None)


def heading(text: str = "") -> None:
    """Draw the heading of a picture, with the “⋯” of the next `footer` at its right.

    Without `text` (Markdown), the line holds only the “⋯”, above a picture that has its own heading. Both calls must be in the
    same fragment.
    """
    with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="small"):
        if text:
            st.subheader(text, anchor=False, width="stretch")
        else:
            st.space("stretch")
        st.session_state[_PLACE] = st.container(width="content")


def toolbar() -> DeltaGenerator:
    """Return a container for the row of controls above a picture, with the “⋯” of the next `footer` at its right."""
    with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="small"):
        controls = st.container(horizontal=True, vertical_alignment="center", gap="small", width="stretch")
        st.session_state[_PLACE] = st.container(width="content")
    return controls


def menu(name: str) -> DeltaGenerator:
    """Return the “⋯” menu of a picture."""
    place = st.session_state.pop(_PLACE, None)
    with place or st.container(horizontal=True, horizontal_alignment="right", key=f"below_{name}"):
        help = "Code and data of this picture"
        return st.popover(":material/more_horiz:", help=help, type="tertiary", key=f"footer_{name}")


def csv(table: Table, name: str, file: str, words: str = "Data as CSV") -> None:
    """Draw a button that downloads the table as CSV; a function is called when the file is requested."""

    def make() -> bytes:
        return to_csv(table() if callable(table) else table)

    download(words, make, f"{file}-{name}.csv", key=f"csv_{name}", help="The numbers of this picture.")


def html(page: Callable[[], str], name: str, file: str) -> None:
    """Draw a button that downloads the picture as a self-contained page."""
    about = "One file that opens anywhere, even offline. The picture stays interactive."
    download("This view as HTML", lambda: page().encode(), f"{file}-{name}.html", key=f"html_{name}", help=about)


_SIZES: dict[str, tuple[float | None, float | None]] = {
    "As on screen": (None, None),
    "1 column, 3.4 in": (3.4, 8),
    "2 columns, 7 in": (7, 9),
    "Slide, 13.3 in": (13.3, 20),
}
"""The width of a figure in inches and the default size of its labels in points."""
_FONT_SIZES = (6, 7, 8, 9, 10, 12, 14, 16, 20, 24)
_COLOURS = ("Light", "Dark", "Grey")
_LONGEST_INPUT = 80


def figure_files(
    charts: Callable[[], Sequence[Any]], caption: Callable[[], Sequence[str]], name: str, file: str, title: str = ""
) -> None:
    """Draw the options of a figure and buttons for SVG, PDF and PNG; each file is made when it is requested.

    Args:
        charts: Makes the charts of the figure, or their Vega-Lite specifications.
        caption: Makes the lines below them.
        name: The suffix of the widget keys and of the file name.
        file: The prefix of the file name.
        title: The title above them.
    """
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key=f"figure_{name}"):
        size = st.selectbox("Figure", list(_SIZES), key=f"figure_size_{name}", width=170)
        sizes = {None: "usual", **{points: f"{points} pt" for points in _FONT_SIZES}}
        words = sizes.__getitem__
        points = st.selectbox("Labels", list(sizes), key=f"figure_points_{name}", format_func=words, width=100)
        colours = st.selectbox("Colours", _COLOURS, index=int(is_dark()), key=f"figure_colours_{name}", width=100)
        is_titled = st.checkbox("Title and source", value=True, key=f"figure_title_{name}", width=150)

        def drawn(convert: Callable[[str], bytes]) -> bytes:
            width, usual = _SIZES[size]
            words = {"title": title, "caption": "\n".join(caption())} if is_titled else {}
            style = {"width": width, "font_size": points or usual, "grey": colours == "Grey"}
            return convert(svg(charts(), **words, **style, dark=colours == "Dark"))

        about = "This picture for a paper or a slide."
        for ending, convert in {"svg": str.encode, "pdf": pdf_of, "png": png_of}.items():
            make = partial(drawn, convert)
            download(ending.upper(), make, f"{file}-{name}.{ending}", key=f"{ending}_{name}", help=about)


def live_download(make: Callable[[], bytes], name: str, file: str) -> None:
    """Draw the button that downloads a live page, a single file in which the model runs; `make` is called on request."""
    about = "One file in which the model runs offline: type an input, change its mask, ablate heads, follow one head."
    download("Live page", make, f"{file}-live.html", key=f"live_{name}", help=about)


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

    live_download(page, name, view.model.replace("/", "-"))
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
