"""External models in the app: opened by a link or in the sidebar, one copy for all visitors, a message on failure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pages.compute import models
from pages.compute.byte_cache import shared
from tests.adapters.test_huggingface import folder_of
from tests.pages.code_and_picture import assert_code_draws_what_is_shown
from tests.pages.conftest import Open, complaints, components, plain
from xformer.adapters import huggingface
from xformer.errors import ModelFileError
from xformer.model_files import PACKAGES
from xformer.model_files.store import ModelStore
from xformer.viz.packing import header_of

PAGE = "pages/attention/page.py"
TINY = "hf:tiny-llama"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("Llama", tmp_path_factory.mktemp("models") / "tiny-llama").parent


@pytest.fixture
def served(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A server with one model that can be opened and one that cannot, and its own model store."""
    folder = Path(shutil.copytree(made, tmp_path / "models"))
    (folder / "broken").mkdir()
    (folder / "broken" / "pytorch_model.bin").write_bytes(b"x")
    (folder / "broken" / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setenv("XFORMER_MODELS", str(folder))
    monkeypatch.delenv("XFORMER_MODEL", raising=False)
    store = ModelStore(models._load, lambda id: models.catalogue().entry(id).needed, check=models._check)
    monkeypatch.setattr(models, "external_store", store)
    return folder


def test_link_opens_model_and_code_hides_paths(open_page: Open, monkeypatch: pytest.MonkeyPatch, served: Path) -> None:
    link = {"model": TINY, "input": "the cat sat on the cat", "panel": "rollout"}
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, link, folder=served.parent)
    assert any("xformer.read('models/tiny-llama', 'the cat sat on the cat')" in block.value for block in app.code)
    assert str(served) not in "".join(block.value for block in app.code)
    verified = "Verified against the original model: every step of its attention can be read and changed."
    assert any(verified in plain(caption.value) for caption in app.caption)
    assert models.external_store.open_ids() == [TINY]
    assert models.adapter(TINY) is models.adapter(TINY)  # one copy is shared
    assert link.items() <= dict(app.query_params.items()).items()
    monkeypatch.setenv("XFORMER_MODEL", str(served / "tiny-llama"))
    assert open_page(PAGE).selectbox(key="model").value == TINY  # a new visitor gets the operator's choice


def test_a_model_that_cannot_be_opened_is_replaced_with_a_warning(open_page: Open, served: Path) -> None:
    app = open_page(PAGE, model="hf:broken")
    assert "pickle" in plain(app.warning[0].value)
    assert app.selectbox(key="model").value == models.shipped()[0]
    app = open_page(PAGE, model="hf:../../etc")
    assert "This server has no model 'hf:../../etc'" in plain(app.warning[0].value)


def test_lack_of_memory_is_shown_as_an_error(open_page: Open, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(id: str, step: object) -> object:
        raise ModelFileError("tiny-llama needs 9.0 GB of memory, but 1.0 GB are free.")

    monkeypatch.setattr(models, "external_store", ModelStore(load, lambda id: models.catalogue().entry(id).needed))
    app = open_page(PAGE, model=TINY)
    assert [plain(error.value) for error in app.error] == [
        "The model tiny-llama cannot be opened. tiny-llama needs 9.0 GB of memory, but 1.0 GB are free."
    ]
    app.selectbox(key="model").set_value("reverse").run()
    assert not app.error
    assert app.title[0].value.startswith("Attention")


def test_open_menu_lists_models_and_why_some_cannot_be_opened(open_page: Open, served: Path) -> None:
    app = open_page(PAGE, model="reverse-small")
    assert [button.key for button in app.button if str(button.key).startswith("open_hf")] == [f"open_{TINY}"]
    assert any("pickle" in plain(caption.value) for caption in app.caption)
    assert not any(str(button.key).startswith("fetch_") for button in app.button)  # the operator has chosen the models
    app.button(key=f"open_{TINY}").click().run()
    assert complaints(app) == []
    assert app.selectbox(key="model").value == TINY


def test_a_fetch_is_offered_if_no_models_are_chosen(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XFORMER_MODELS", raising=False)
    monkeypatch.setattr("pages.state.session.catalogue", lambda: models.catalogue({"XFORMER_MODELS": ""}))
    monkeypatch.setattr("pages.state.session.offered", lambda: [PACKAGES["SmolLM2-135M-Instruct"]])
    app = open_page(PAGE, model="reverse")
    [button] = [button for button in app.button if str(button.key).startswith("fetch_")]
    assert button.label == "Fetch SmolLM2-135M-Instruct"


def test_cached_results_of_a_closed_model_are_evicted(served: Path) -> None:
    shared.put(("run", TINY, (1,), "", ""), "answer")
    shared.put(("run", "reverse", (1,), "", ""), "kept")
    models._free()
    assert shared.peek(("run", TINY, (1,), "", "")) is None
    assert shared.peek(("run", "reverse", (1,), "", "")) == "kept"


def test_a_scale_without_the_first_token_is_in_the_link_and_in_the_code(open_page: Open, served: Path) -> None:
    link = {"model": TINY, "input": "the cat sat on the cat sat", "sink": "out", "head": "2.5"}
    app = open_page(PAGE, **link, scale="rest")  # as in older links
    assert not app.warning
    link["scale"] = "without_first_token"
    assert link.items() <= dict(app.query_params.items()).items()
    assert any("scale='without_first_token'" in block.value for block in app.code)
    assert any("without_first=True" in block.value for block in app.code)
    assert open_page(PAGE, model=TINY, scale="nonsense").warning


def test_a_large_vocabulary_has_a_search_field(open_page: Open, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.attention.heads.MAX_LISTED", 5)
    app = open_page(PAGE, model=TINY, input="the cat sat", panel="change", head="1.2")
    app.text_input(key="replace_search").set_value("dog").run()
    assert app.selectbox(key="replace_token").options == ["dog"]
    app.button(key="replace").click().run()
    assert app.session_state["edits"] == "token:0.10"
    app.segmented_control(key="panel").set_value("scores").run()
    app.button(key="say_twice").click().run()
    typed = app.session_state["input"].split()
    assert typed[: len(typed) // 2] == typed[len(typed) // 2 :] != []


def test_a_large_run_is_shown_as_thumbnails(open_page: Open, monkeypatch: pytest.MonkeyPatch, served: Path) -> None:
    monkeypatch.setattr(huggingface, "LARGE_BYTES", 0)
    link = {"model": TINY, "input": "the cat sat on the cat", "edits": "ablate:decoder.0.attn.2", "head": "1.3"}
    link["panel"] = "step by step"
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, PAGE, link, folder=served.parent)
    header = header_of(next(proto.bytes for proto in components(app, "") if proto.bytes[:4] == b"XATT"))
    assert header["layers"][0]["runs"][-1]["silenced"] == [2]  # the last is the changed one
    assert header["layers"][0]["moved"] == [0] * 6  # its pattern is unchanged
    assert max(header["layers"][1]["moved"]) > 0
