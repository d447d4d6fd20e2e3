"""Loading what every screen needs: PyTorch, pandas, the chart libraries and the parts that all screens share.

It takes some seconds, in a thread that starts with the server, so that the server answers at once. Visitors who come earlier
see a message.
"""

from __future__ import annotations

import threading
from types import ModuleType

import streamlit as st

from pages.shared.streamlit_compat import freeze_objects, restore_main_module

_loaded = threading.Event()
_lock = threading.Lock()
_guest_of: ModuleType | None = None


def begin(guest_of: ModuleType | None = None) -> None:
    """Start loading in a thread. `guest_of` is the main module of another program's process, which keeps its settings."""
    global _guest_of
    _guest_of = guest_of
    threading.Thread(target=load, name="loading", daemon=True).start()


def wait() -> None:
    """Show a sentence until everything is loaded. Raises `ImportError` where a library is missing."""
    if _guest_of is not None:
        restore_main_module(_guest_of)
    place = st.empty()  # always there: an element that vanishes makes the browser build all below it anew
    if not _loaded.is_set():
        with place, st.spinner("This server has just been started, and is loading PyTorch."):
            load()


def load() -> None:
    """Import everything once; a second caller waits for the first."""
    with _lock:
        if not _loaded.is_set():
            _import()
            if _guest_of is None:
                import torch

                # The models are small: a second thread costs more than it gives, and visitors share the cores.
                torch.set_num_threads(1)
                freeze_objects()
            _loaded.set()


def _import() -> None:
    from pages.shared import frame, picture, resources, run_store, screens  # noqa: F401

    run_store.start_reconciler()
