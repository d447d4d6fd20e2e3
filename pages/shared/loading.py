"""Loading what every screen needs: PyTorch, pandas, the chart libraries and the parts that all screens share.

It takes some seconds, in a thread that starts with the server, so that the server answers at once. A visitor who comes before
the end is told what is being loaded.
"""

from __future__ import annotations

import threading

import streamlit as st

from pages.shared.streamlit_compat import freeze_objects

_loaded = threading.Event()
_lock = threading.Lock()


def begin() -> None:
    """Start loading in a thread."""
    threading.Thread(target=load, name="loading", daemon=True).start()


def wait() -> None:
    """Show a sentence until everything is loaded. Raises `ImportError` where a library is missing."""
    place = st.empty()  # always there: an element that vanishes makes the browser build all below it anew
    if not _loaded.is_set():
        with place, st.spinner("This server has just been started, and is loading PyTorch."):
            load()


def load() -> None:
    """Import everything once; a second caller waits for the first."""
    with _lock:
        if not _loaded.is_set():
            _import()
            freeze_objects()
            _loaded.set()


def _import() -> None:
    import torch

    from pages.shared import frame, picture, resources, run_store, screens  # noqa: F401

    # The models are small: a second thread costs more than it gives, and visitors share the cores.
    torch.set_num_threads(1)
    run_store.start_reconciler()
