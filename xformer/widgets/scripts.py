"""The scripts and styles of the widgets. `make bundle` bundles each script with the modules that it imports."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from xformer.viz.theme import BACKGROUND, PRIMARY, SECONDARY_BACKGROUND, TEXT, in_both_themes

FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'Liberation Sans', Arial, sans-serif"
)
CODE_FONT = (
    "ui-monospace, 'SF Mono', 'Cascadia Mono', Menlo, Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace"
)
"""System fonts for pages and notebooks; Streamlit serves its own fonts."""


@cache
def script(widget: str, host: str) -> str:
    """Return the script of a widget for a host: one JavaScript module that includes its imports.

    Args:
        widget: A folder of `xformer/widgets`, such as "attention_view".
        host: One of its entry points: "streamlit", "notebook", or "page" for a stand-alone page.
    """
    return _text(f"bundles/{widget}/{host}.js")


@cache
def style(widget: str) -> str:
    """Return the styles of a widget. Their colours are variables that the host sets; see `themes`."""
    names = sorted(file.name for file in files("xformer.widgets").joinpath(widget).iterdir())
    return "".join(_text(f"{widget}/{name}") for name in names if name.endswith(".css"))


def themes() -> tuple[str, str]:
    """Return the colours and fonts of the light and the dark theme, as the CSS variables that Streamlit sets for a widget."""
    colours = {"background-color": BACKGROUND, "secondary-background-color": SECONDARY_BACKGROUND, "text-color": TEXT}
    pairs = {
        **in_both_themes(colours | {"primary-color": PRIMARY, "link-color": PRIMARY}),
        "font": (FONT, FONT),
        "code-font": (CODE_FONT, CODE_FONT),
        "base-font-size": ("16px", "16px"),
    }
    light, dark = (" ".join(f"--st-{name}: {pair[at]};" for name, pair in pairs.items()) for at in (0, 1))
    return light, dark


def _text(path: str) -> str:
    return files("xformer.widgets").joinpath(*path.split("/")).read_text(encoding="utf-8")
