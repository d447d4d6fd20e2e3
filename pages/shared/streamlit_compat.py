"""Every use of Streamlit that its documentation does not promise; all other code calls `st.…` alone.

Each item names the release it was read in. `tests/pages/test_streamlit_compat.py` fails where a release changes one of them.
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
"""The release of Streamlit in which all items were read."""

StopScript = StopException
"""What `st.stop()` raises. `app.py` catches it to finish a screen that stopped early; `st.rerun()` raises something else."""


def is_server_running() -> bool:
    """Whether this process is a Streamlit server, rather than Python running `app.py`.

    There is no public call: https://github.com/streamlit/streamlit/issues/759.
    """
    return runtime.exists()


def is_script_thread() -> bool:
    """Whether the calling thread runs a screen for a visitor; False in a background thread and outside the app.

    There is no public call without a warning in the log: https://github.com/streamlit/docs/pull/1154.
    """
    return get_script_run_ctx(suppress_warning=True) is not None


def is_history_navigation() -> bool:
    """Whether this run answers Back or Forward of the browser. There is no public way to tell."""
    context = get_script_run_ctx(suppress_warning=True)
    return context is not None and context.is_history_navigation


def ignore_pages_folder() -> None:
    """Tell Streamlit, before the first visit, that `pages/` is not the folder of an old multipage app.

    Else the first visitor of a new server who follows a deep link is shown "Page not found": `st.navigation` says the same,
    but only once it has run. https://github.com/streamlit/streamlit/issues/8860
    """
    PagesManager.uses_pages_directory = False


def freeze_objects() -> None:
    """Exempt all objects that exist now from garbage collection; called once, when everything is imported.

    Streamlit collects garbage after every run of a script (https://github.com/streamlit/streamlit/pull/3192). With torch and
    the chart libraries imported a collection takes 200 ms, after this call 10 ms.
    """
    gc.collect()
    gc.freeze()


def restore_main_module(module: ModuleType) -> None:
    """Make a module `__main__` again; called in a script run, when the app is a guest in the process of a notebook or script.

    Streamlit makes app.py `__main__` before each run and leaves it so; pickle then fails for classes of the notebook.
    """
    sys.modules["__main__"] = module


def uploaded_sizes() -> Mapping[str, list[int]]:
    """The sizes in bytes of the uploaded files that are in memory, by the session that owns them.

    Streamlit limits one file, not their number or sum: https://github.com/streamlit/streamlit/issues/3401.
    """
    manager: Any = Runtime.instance().uploaded_file_mgr
    stored = list(manager.file_storage.items())
    return {session: [len(file.data) for file in list(files.values())] for session, files in stored}


def message_kind(data: bytes) -> str | None:
    """The kind of a message from a browser, a field of Streamlit's BackMsg; None where `data` is not such a message.

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
