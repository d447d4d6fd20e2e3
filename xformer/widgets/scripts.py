"""The scripts and styles of the pictures that run in a browser: one source, joined for each place that shows them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from xformer.viz.theme import BACKGROUND, PRIMARY, SECONDARY_BACKGROUND, TEXT

PARTS = {
    "attention_view": (
        "patterns", "colours", "canvas", "view", "theme", "building", "update", "legends", "grid", "layout", "labels",
        "matrix", "arcs", "strips", "readout", "pointing", "choosing", "keyboard", "assembled",
    ),
    "training_player": ("film", "attention_view/colours", "player", "picture", "ruler", "controls", "assembled"),
    "step_ruler": ("ruler", "timeline", "tracks", "now", "controls", "assembled"),
}  # fmt: skip
"""A script in a notebook or in Streamlit cannot import, so its parts are joined into one: tools, the picture, its methods."""
FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'Liberation Sans', Arial, sans-serif"
)
CODE_FONT = (
    "ui-monospace, 'SF Mono', 'Cascadia Mono', Menlo, Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace"
)


@cache
def script(widget: str, host: str) -> str:
    """The script of a picture for a host: "streamlit", "notebook", or "page" for a page that stands alone."""
    before = [_text("page.js")] if host == "page" else []
    parts = (part if "/" in part else f"{widget}/{part}" for part in (*PARTS[widget], host))
    return "\n".join([*before, *(_text(f"{part}.js") for part in parts)])


@cache
def style(widget: str) -> str:
    """The style of a picture; its colours are those of its host, see `themes`."""
    return _text(f"{widget}/style.css")


def themes() -> tuple[str, str]:
    """The colours and fonts of the light and of the dark theme under the names by which Streamlit gives them to a picture."""
    pairs = {
        "background-color": BACKGROUND,
        "secondary-background-color": SECONDARY_BACKGROUND,
        "text-color": TEXT,
        "primary-color": PRIMARY,
        "link-color": PRIMARY,
        "font": (FONT, FONT),
        "code-font": (CODE_FONT, CODE_FONT),
        "base-font-size": ("16px", "16px"),
    }
    light, dark = (" ".join(f"--st-{name}: {pair[of]};" for name, pair in pairs.items()) for of in (0, 1))
    return light, dark


def _text(path: str) -> str:
    return files("xformer.widgets").joinpath(*path.split("/")).read_text(encoding="utf-8")
