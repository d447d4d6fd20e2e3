"""Show a picture or a table from a script or a notebook: the last line of the code that stands at every picture of the app."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd


def show(picture: Any) -> None:
    """In a notebook display it; in a script print a table, and write a picture to a file, opened where somebody sits there.

    A sequence is shown one by one.
    """
    if isinstance(picture, list | tuple):
        for one in picture:
            show(one)
    elif _in_notebook():
        from IPython.display import display  # type: ignore[import-not-found]

        display(picture)
    elif isinstance(picture, pd.DataFrame | pd.Series) or not (save := _saver(picture)):
        print(picture.to_string() if isinstance(picture, pd.DataFrame | pd.Series) else picture)
    else:
        with tempfile.NamedTemporaryFile(prefix="xformer-", suffix=".html", delete=False) as file:
            save(file.name)
        print(f"The picture is in {file.name}")
        if sys.stdout.isatty():
            webbrowser.open(Path(file.name).as_uri())


def _saver(picture: Any) -> Any:
    """How it is written as a page that needs no network: Plotly's figures and Altair's charts know."""
    if isinstance(picture, alt.TopLevelMixin):
        return partial(picture.save, inline=True)
    return getattr(picture, "write_html", None)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None
