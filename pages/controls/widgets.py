"""Widgets used by several screens. A link can set most of them; an unknown value in the link shows a warning.

side = choose("side", {"encoder": "source", "decoder": "target"}, "Which side")
view.share(side=side)
"""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import pandas as pd
import streamlit as st

from pages.controls.text import escape_markdown
from pages.state.link import current_value, keep_widget_value, set_parameter, take_parameter
from xformer.errors import InputError, XformerError

MAX_SHOWN = 24
"""Maximum columns of a picture; more do not fit a screen legibly."""
T = TypeVar("T")
SIDES = {"encoder": "source", "decoder": "target"}
SHARE = st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent")
"""The column of a table for shares and probabilities."""


def seed(name: str, options: Sequence[Any], default: Any, *, key: str | None = None, called: str | None = None) -> None:
    """Set the widget `key` to one of `options`: the value in the link, else its current value, else the default.

    Args:
        name: The link parameter. Its values are the options as strings.
        options: The valid values.
        default: The initial value.
        key: The widget's key; by default `name`.
        called: The name of the parameter in a warning; by default `name`.
    """
    key = key or name
    words = {str(option): option for option in options}
    wanted = take_parameter(name)
    if wanted is not None and (wanted := current_value(name, wanted, words)) in words:
        st.session_state[key] = words[wanted]
        return
    if wanted is not None:
        warn_unknown(called or name)
    if st.session_state.get(key) not in options:
        st.session_state[key] = default
    keep_widget_value(key)


def choose(
    name: str,
    options: Mapping[T, str],
    label: str,
    *,
    default: T | None = None,
    key: str | None = None,
    widget: Callable[..., Any] = st.segmented_control,
    called: str | None = None,
    hide_label: bool = False,
    **look: Any,
) -> T:
    """Draw a widget for one of several options; the choice is kept for the session and written to the link.

    Args:
        name: The link parameter.
        options: The options, whose `str` is written to the link, with their texts on screen.
        label: The widget's label.
        default: The initial option; by default the first one.
        key: The widget's key; by default `name`.
        widget: `st.segmented_control`, `st.selectbox` or `st.select_slider`.
        called: The name of the parameter in a warning about a link; by default `name`.
        hide_label: Whether the label is only for screen readers.
        **look: Further arguments of the widget.

    Returns:
        The chosen option.
    """
    seed(name, list(options), next(iter(options)) if default is None else default, key=key, called=called)
    look |= {"required": True} if widget is st.segmented_control else {}
    look |= {"label_visibility": "collapsed"} if hide_label else {}
    texts = options.__getitem__
    chosen = widget(label, list(options), format_func=texts, key=key or name, persist_state="session", **look)
    set_parameter(name, str(chosen))
    return chosen


def choose_unlinked(label: str, options: Mapping[T, str], key: str, **look: Any) -> Any:
    """Draw buttons for one of several options, which is kept for the session but not written to the link.

    Args:
        label: The hidden label.
        options: The options with their texts on screen.
        key: The widget's key.
        **look: Further arguments of `st.segmented_control`.

    Returns:
        The chosen option.
    """
    look |= {"required": True, "persist_state": "session", "label_visibility": "collapsed"}
    return st.segmented_control(label, list(options), format_func=options.__getitem__, key=key, **look)


def ask_side() -> str:
    """Draw the choice between the stacks of an encoder-decoder; return "encoder" or "decoder"."""
    return choose("side", SIDES, "Which side")


def ask_window(
    positions: Sequence[int], key: str, *, most: int = MAX_SHOWN, name: str = "from", what: str = "positions"
) -> Sequence[int]:
    """Draw a slider for the window of positions that a picture shows, if not all of them fit.

    Args:
        positions: All positions, a list or a range.
        key: The widget's key.
        most: The maximum size of the window.
        name: The link parameter. A link to any position opens the window that contains it.
        what: The name of the positions on screen, in the plural.

    Returns:
        A slice of `positions`.
    """
    if len(positions) <= most:
        return positions
    seed(name, positions, positions[0], key=key, called=f"window of {what}")
    windows = {start: positions[at : at + most] for at, start in enumerate(positions) if at % most == 0}
    st.session_state[key] = positions[positions.index(st.session_state[key]) // most * most]
    words = {start: f"{window[0]} to {window[-1]}" for start, window in windows.items()}
    ask = partial(st.select_slider, f"{what.capitalize()} shown", list(windows), key=key, persist_state="session")
    start = ask(format_func=words.__getitem__)
    set_parameter(name, str(start))
    return windows[start]


def window_caption(positions: Sequence[int], shown: Sequence[int], what: str = "positions") -> str:
    """Return the end of a caption if not all positions are shown, else ""."""
    if len(shown) == len(positions):
        return ""
    return f" {len(shown)} of {len(positions):,} {what} are shown, {shown[0]} to {shown[-1]}; the slider moves this window."


def warn_unknown(what: str, there: Sequence[str] = ()) -> None:
    """Warn about an unknown value in a link; `there` lists the valid values."""
    known = f" Available: {', '.join(there)}." if there else ""
    unknown = f"The link asks for a {what} that does not exist here, so the default is shown."
    st.warning(f"{unknown}{known}", icon=":material/link_off:")


MAX_LISTED = 512
"""Maximum vocabulary size for a list of tokens; larger vocabularies get a search field."""

MAX_FOUND = 30


def find_tokens(labels: Sequence[str], text: str, most: int = MAX_FOUND) -> list[int]:
    """Find the tokens equal to a text, then those with a leading space (·), then those containing it, the shortest first."""
    wanted = text.replace(" ", "·")
    if not wanted:
        return []
    equal = dict.fromkeys((text, wanted, f"·{wanted}"))
    first = [token for spelling in equal for token, label in enumerate(labels) if label == spelling]
    small = wanted.casefold()
    holding = [token for token, label in enumerate(labels) if small in label.casefold()]
    return list(dict.fromkeys([*first, *sorted(holding, key=lambda token: len(labels[token]))]))[:most]


def ask_token(labels: Sequence[str], name: str, usual: int, label: str, *, help: str | None = None) -> int:
    """Draw a search field for a token and return the token; `usual` if nothing or no known token is typed."""
    wanted = take_parameter(name)
    if wanted is not None and (not wanted or find_tokens(labels, wanted)):
        st.session_state[name] = wanted
    elif wanted is not None:
        warn_unknown("token")
    st.session_state.setdefault(name, "")
    keep_widget_value(name)
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="small")
    typed = row.text_input(label, key=name, persist_state="session", placeholder=labels[usual], help=help)
    found = find_tokens(labels, typed) if typed else [usual]
    if not found:
        st.caption(f"No token contains {escape_markdown(typed[:40])}; {escape_markdown(labels[usual])} is shown.")
        return usual
    chosen = found[0]
    if len(found) > 1 and labels[chosen] != typed:
        among = partial(row.selectbox, "Token", found, key=f"{name}_among")
        chosen = among(format_func=labels.__getitem__, label_visibility="collapsed")
    set_parameter(name, labels[chosen] if typed else "")
    return chosen


def validate_text(text: object, most: int) -> str:
    """Return the text of an input field as valid Unicode. Raises `InputError` for more than `most` characters."""
    whole = str(text).encode("utf-8", "replace").decode()  # a lone surrogate can be neither sent nor stored
    if len(whole) > most:
        raise InputError(f"At most {most:,} characters can be read here, got {len(whole):,}; shorten the text.")
    return whole


@dataclass
class _Box:
    number: int = 0
    """Part of the uploader's key; a new number creates a new, empty uploader."""
    success: str = ""
    problem: str = ""


def file_box(label: str, types: Sequence[str], megabytes: int, take: Callable[[bytes, str], str], *, key: str) -> None:
    """Draw a file uploader.

    Args:
        label: Its label.
        types: The accepted file extensions.
        megabytes: Maximum size of a file.
        take: Called in a callback with the content and the name of a file; returns a message or raises an error, which is
            shown.
        key: The prefix of the widget's key.
    """
    box: _Box = st.session_state.setdefault(f"{key}_box", _Box())

    def taken() -> None:
        file = st.session_state[f"{key}_{box.number}"]
        if file is None:
            return
        box.number += 1
        try:
            box.success = take(file.getvalue(), file.name)
        except (XformerError, OSError) as error:
            box.problem = f"The file was not accepted. {error}"

    st.file_uploader(label, type=types, max_upload_size=megabytes, key=f"{key}_{box.number}", on_change=taken)
    if box.problem:
        st.error(escape_markdown(box.problem), icon=":material/error:")
    if box.success:
        st.success(escape_markdown(box.success), icon=":material/check:")
    box.problem = box.success = ""


def table_of_rows(
    rows: pd.DataFrame,
    columns: dict[str, Any],
    key: str,
    most: int,
    alt: str,
    mode: Literal["single-row", "multi-row"],
    ticked: Sequence[int],
    on_select: Callable[[], None],
) -> None:
    """Draw a table at most `most` pixels high, whose `ticked` rows are selected; `alt` describes it to screen readers."""
    st.dataframe(
        rows,
        hide_index=True,
        height=min(36 * (len(rows) + 1) + 3, most),
        row_height=36,
        column_config=columns,
        selection_mode=mode,
        selection_default={"selection": {"rows": list(ticked)}},
        on_select=on_select,
        key=key,
        placeholder="–",
        alt=alt,
    )


def download(label: str, make: Callable[[], str | bytes], file: str, *, key: str, help: str | None = None) -> None:
    """Draw a button that downloads a file, which is made when it is requested."""
    kind = mimetypes.guess_type(file)[0] or "application/octet-stream"
    icon = ":material/download:"
    st.download_button(label, make, file, kind, icon=icon, on_click="ignore", key=key, help=help)
