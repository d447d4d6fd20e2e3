"""What every visitor needs, loaded while the browser of the first one is still starting: the imports, then the shipped models.

A server that has just been started answers at once. Whoever comes before the imports are there is told what is being loaded.
"""

from __future__ import annotations

import gc
import sys
import threading
import time

import streamlit as st

from xformer.quick_imports import quick_imports
from xformer.training.spare import spare

SWITCH_SECONDS = 0.0005
"""How long an import keeps the others waiting who serve the first visitor's browser."""
FIRST_SECONDS = 3.0
"""How long somebody's first page is waited for, before what later ones need is made ready."""
REST_SECONDS = 4.0
"""And how long the browser has for drawing it, which takes as much of the processor as the page did."""
drawn = threading.Event()
"""Once a page has been drawn."""
_imported = threading.Event()
_thread = threading.Thread(target=lambda: _load(), name="loading", daemon=True)


def begin() -> None:
    """Load in a thread, in a server that is being started; its spare imports what it needs beside it."""
    spare.keep()
    _thread.start()


def wait() -> None:
    """Stay here until everything is imported; a sentence says so where that has to be waited for."""
    said = st.empty()  # always there: else all below would be built anew once it is gone
    if _imported.is_set():
        return
    with said, st.spinner("This server has just been started, and is loading PyTorch."):
        if _thread.ident is None:  # no server of ours: a test, or a script of somebody else
            _load()
        _imported.wait()


def _load() -> None:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        _import()
    finally:
        sys.setswitchinterval(usual)
        _imported.set()  # whatever is wrong, the first visitor's page will say so

    from pages.shared.layout import theme_plotly
    from pages.shared.resources import run_each_model_once

    if threading.current_thread() is _thread and drawn.wait(FIRST_SECONDS):
        time.sleep(REST_SECONDS)
    run_each_model_once()
    theme_plotly()
    # Streamlit collects garbage after each run of the script; with torch and the chart libraries imported that takes ~200 ms,
    # unless what is there by now is frozen.
    gc.collect()
    gc.freeze()


def _import() -> None:
    # What Altair would import where Jupyter is installed: for charts in notebooks, and to tell an address in any alphabet.
    with quick_imports("anywidget", "rfc3987_syntax"):
        import torch
        from altair.utils import schemapi

        from pages.shared import frame, notebook, resources, run_store, screens  # noqa: F401

    # The models are small: a second thread costs more than it gives, and visitors share the cores.
    torch.set_num_threads(1)
    schemapi.disable_debug_mode()  # Altair checks the parts of a chart when they are made, then the whole: once is enough
    run_store.start_reconciler()
