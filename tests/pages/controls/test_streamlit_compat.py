"""Tests of every undocumented part of Streamlit that the app uses, with a clear message if a release changes it."""

from __future__ import annotations

import ast
import gc
import re
import threading
from pathlib import Path

import pytest
import streamlit as st
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.runtime import Runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec
from streamlit.testing.v1 import AppTest

from pages.controls import streamlit_compat as compat
from tests.pages.conftest import ROOT, parsed


def changed(item: str) -> str:
    """Return the message of a failing test."""
    return (
        f"streamlit {st.__version__} changed something that {item} in pages/controls/streamlit_compat.py relies on; "
        f"it was verified for {compat.READ_IN}."
    )


@pytest.mark.parametrize("command", ["stop", "rerun"])
def test_only_stop_raises_the_exception_that_the_app_catches(command: str) -> None:
    def script(command: str) -> None:
        import streamlit as st

        from pages.controls.streamlit_compat import StopScript

        caught = st.session_state.setdefault("caught", [])
        try:
            if command == "stop" or not caught:
                caught.append("nothing")
                getattr(st, command)()
        except StopScript:
            caught[-1] = "StopScript"

    app = AppTest.from_function(script, args=(command,)).run()
    assert app.session_state["caught"] == ["StopScript" if command == "stop" else "nothing"], changed("StopScript")


def test_a_script_thread_is_distinguished_from_other_threads() -> None:
    def script() -> None:
        import threading

        import streamlit as st

        from pages.controls.streamlit_compat import is_history_navigation, is_script_thread

        others: list[bool] = []
        thread = threading.Thread(target=lambda: others.append(is_script_thread()))
        thread.start()
        thread.join()
        st.json({"script": is_script_thread(), "other": others[0], "back": is_history_navigation()})

    app = AppTest.from_function(script).run()
    assert app.json[0].value == '{"script": true, "other": false, "back": false}', changed("is_script_thread")
    assert not compat.is_script_thread()
    assert threading.current_thread() is threading.main_thread()


def test_a_run_after_back_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamlit.runtime.scriptrunner import get_script_run_ctx
    from streamlit.runtime.scriptrunner_utils.script_run_context import ScriptRunContext

    assert "is_history_navigation" in ScriptRunContext.__dataclass_fields__, changed("is_history_navigation")
    assert get_script_run_ctx(suppress_warning=True) is None
    assert not compat.is_history_navigation()
    context = type("Context", (), {"is_history_navigation": True})()
    monkeypatch.setattr(compat, "get_script_run_ctx", lambda suppress_warning: context)
    assert compat.is_history_navigation()


def test_pages_folder_is_ignored_from_the_first_visit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    monkeypatch.setattr(PagesManager, "uses_pages_directory", None)
    PagesManager(str(tmp_path / "app.py"))
    assert PagesManager.uses_pages_directory is True, changed("ignore_pages_folder; it may no longer be needed")
    monkeypatch.setattr(PagesManager, "uses_pages_directory", None)
    compat.ignore_pages_folder()
    PagesManager(str(tmp_path / "app.py"))
    assert PagesManager.uses_pages_directory is False, changed("ignore_pages_folder")


def test_objects_are_frozen() -> None:
    before = gc.get_freeze_count()
    try:
        compat.freeze_objects()
        assert gc.get_freeze_count() > before + 1000
    finally:
        gc.unfreeze()


def test_uploaded_files_are_counted_by_session(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = MemoryUploadedFileManager("/upload")
    for session, name, size in (("ada", "1", 3), ("ada", "2", 5), ("bob", "3", 7)):
        manager.add_file(session, UploadedFileRec(name, name, "text/plain", bytes(size)))
    server = type("Server", (), {"uploaded_file_mgr": manager})()
    monkeypatch.setattr(Runtime, "instance", lambda: server)
    assert compat.uploaded_sizes() == {"ada": [3, 5], "bob": [7]}, changed("uploaded_sizes")


def test_kind_of_a_message_is_parsed() -> None:
    message = BackMsg()
    message.rerun_script.query_string = "model=reverse"
    assert compat.message_kind(message.SerializeToString()) == "rerun_script", changed("message_kind")
    message.backend_operation_request.dataframe_chunk.SetInParent()
    assert compat.message_kind(message.SerializeToString()) == "backend_operation_request.dataframe_chunk"
    assert compat.message_kind(b"\xff\xff\xff") is None
    assert compat.message_kind(b"") is None


def test_every_class_and_test_id_in_the_style_sheets_exists_in_the_frontend() -> None:
    styles = [(ROOT / "pages" / "controls" / name).read_text(encoding="utf-8") for name in ("page.css", "embed.css")]
    names = set(re.findall(r"(?<=data-testid=\")\w+|(?<=\.)st[A-Z]\w+", "".join(styles)))
    frontend = "".join(file.read_text(encoding="utf-8") for file in (Path(st.__file__).parent / "static").rglob("*.js"))
    assert len(names) > 5
    missing = [name for name in sorted(names) if name not in frontend]
    assert not missing, changed(f"the styles: {missing}")


def test_no_other_module_uses_private_parts() -> None:
    """All other modules import only documented modules of Streamlit."""
    documented = {"streamlit.components.v2", "streamlit.delta_generator"}
    for file in [ROOT / "app.py", *sorted((ROOT / "pages").rglob("*.py"))]:
        if file.name == "streamlit_compat.py":
            continue
        for node in ast.walk(parsed(file)):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            private = [name for name in modules if name.startswith("streamlit.") and name not in documented]
            assert not private, f"{file} imports {private}; move it to pages/controls/streamlit_compat.py"
