"""All uses of undocumented parts of Streamlit. All other code uses only the public `st.…` API.

`tests/pages/controls/test_streamlit_compat.py` fails if a new release of Streamlit changes any of them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from google.protobuf.message import DecodeError
from streamlit import runtime
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.runtime import Runtime
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner import StopException, get_script_run_ctx

READ_IN = "1.67.0"
"""The release of Streamlit for which all items were verified."""

StopScript = StopException
"""The exception of `st.stop()`. `app.py` catches it to finish a screen that stopped early; `st.rerun()` raises another one."""


def is_server_running() -> bool:
    """Whether this process is a Streamlit server, rather than Python running `app.py`.

    Streamlit has no public function for this: https://github.com/streamlit/streamlit/issues/759.
    """
    return runtime.exists()


def is_script_thread() -> bool:
    """Whether the calling thread runs a screen for a visitor; False in a background thread and outside the app.

    The public function logs a warning outside a script run: https://github.com/streamlit/docs/pull/1154.
    """
    return get_script_run_ctx(suppress_warning=True) is not None


def is_history_navigation() -> bool:
    """Whether this run was caused by Back or Forward in the browser. Streamlit has no public function for this."""
    context = get_script_run_ctx(suppress_warning=True)
    return context is not None and context.is_history_navigation


def ignore_pages_folder() -> None:
    """Make Streamlit ignore `pages/`, which it would otherwise treat as the folder of a multipage app. Call before any visit.

    Otherwise the first visitor of a new server who follows a deep link gets "Page not found": `st.navigation` has the same
    effect, but only after it has run. https://github.com/streamlit/streamlit/issues/8860
    """
    PagesManager.uses_pages_directory = False


def freeze_objects() -> None:
    """Exempt all existing objects from garbage collection. Call it once, when everything is imported.

    Streamlit collects garbage after every script run (https://github.com/streamlit/streamlit/pull/3192). With torch and the
    chart libraries imported, a collection takes 200 ms, and 10 ms after this call.
    """
    gc.collect()
    gc.freeze()


def restore_main_module(module: ModuleType) -> None:
    """Make a module `__main__` again. Called in script runs when the app is a guest in the process of a notebook or script.

    Streamlit sets `__main__` to app.py before each run and does not restore it, so that pickling the notebook's classes fails.
    """
    sys.modules["__main__"] = module


def uploaded_sizes() -> Mapping[str, list[int]]:
    """Return the sizes in bytes of the uploaded files in memory, by session id.

    Streamlit limits the size of each file, but not their number or total size:
    https://github.com/streamlit/streamlit/issues/3401.
    """
    manager: Any = Runtime.instance().uploaded_file_mgr
    stored = list(manager.file_storage.items())
    return {session: [len(file.data) for file in list(files.values())] for session, files in stored}


def message_kind(data: bytes) -> str | None:
    """Return the kind of a message from a browser, a field of Streamlit's BackMsg; None if `data` is not such a message.

    A request for a file or for rows of a table is "backend_operation_request.…" with the field of its payload.
    """
    message = BackMsg()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    kind = message.WhichOneof("type")
    if kind == "backend_operation_request":
        return f"{kind}.{message.backend_operation_request.WhichOneof('payload')}"
    return kind
