"""The contents of a folder are read from its headers, and a rejected folder has a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.model_files.small_files import CONFIG, a_model, folder_of, gguf, safetensors
from xformer.errors import ModelFileError, NotEnoughMemoryError
from xformer.model_files import check_memory, contents, inspect

INDEX = "model.safetensors.index.json"
PARTS = {"a.safetensors": safetensors({"x": [2]}), "b.safetensors": safetensors({"y": [3, 3]})}
PLACES = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
SAFE = {"model.safetensors": safetensors({"w": [3, 4]})}


def test_inspect_reads_folders_and_files(tmp_path: Path) -> None:
    found = inspect(a_model(tmp_path / "m"))
    assert (found.model_type, found.n_parameters) == ("llama", 12)
    assert (found.has_tokenizer, found.gguf_file) == (True, None)
    assert (found.config["hidden_size"], found.weights) == (4, (tmp_path / "m" / "model.safetensors",))
    found = inspect(folder_of(tmp_path / "parts", {"config.json": CONFIG, INDEX: PLACES, **PARTS}))
    assert [file.name for file in found.weights] == ["a.safetensors", "b.safetensors"]
    assert (found.n_parameters, found.has_tokenizer) == (11, False)
    folder = folder_of(tmp_path / "gguf", {"m.gguf": gguf(), "mmproj-m.gguf": b"an image projector"})
    for path in (folder, folder / "m.gguf"):
        found = inspect(path)
        assert (found.folder, found.gguf_file, found.model_type) == (folder, "m.gguf", "llama")
        assert (found.n_parameters, found.has_tokenizer) == (64, True)
    (folder / "other").symlink_to(tmp_path)
    assert inspect(folder / "m.gguf").n_parameters == 64  # links next to a single file do not belong to it
    assert inspect(a_model(tmp_path / "both", **{"m.gguf": gguf()})).gguf_file is None
    # Some published configurations have Infinity.
    assert inspect(a_model(tmp_path / "x", **{"config.json": '{"model_type": "mamba2", "limit": [0.0, Infinity]}'}))


OWN_CODE = {"auto_map": {"AutoModel": "evil.Model"}}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "There are no weights; use a folder with config.json and model.safetensors, or a .gguf file."),
        ({"config.json": CONFIG, "pytorch_model.bin": b""}, r"as a pickle \(pytorch_model.bin\).* save_pretrained"),
        ({"a.gguf": gguf(), "b.gguf": gguf()}, r"has 2 GGUF files \(a.gguf, b.gguf\); use the path of one"),
        (SAFE, "has weights but no config.json"),
        ({"config.json": {"model_type": "../llama"}, **SAFE}, "must name the model_type"),
        ({"config.json": "[" * 100_000, **SAFE}, "config.json is not valid JSON"),
        ({"config.json": CONFIG, "model.safetensors": SAFE["model.safetensors"][:-1]}, "take 48 bytes, but 47 follow"),
        ({"config.json": CONFIG | OWN_CODE, **SAFE}, r"own code \(config.json names 'evil"),
        ({"config.json": CONFIG, "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["evil.T", None]}}, **SAFE},
         r"own code \(tokenizer_config.json names"),
        ({"config.json": CONFIG | {"text_config": OWN_CODE}, **SAFE}, "needs its own code"),
        ({"config.json": CONFIG | {"transformers_weights": "adapter_model.bin"}, **SAFE}, "under transformers_weights"),
        ({"config.json": CONFIG | {"quantization_config": {"quant_method": "gptq"}}, **SAFE}, "quantised with 'gptq'"),
        ({"config.json": CONFIG, "weights.safetensors": SAFE["model.safetensors"]}, "alone is not a readable model"),
        ({"config.json": "[]", **SAFE}, "must hold a JSON object, got list"),
        ({"m.gguf": gguf(), "config.json": CONFIG | OWN_CODE}, "needs its own code"),
        ({"config.json": CONFIG, "adapter_config.json": {}, **SAFE}, "an adapter for another model"),
    ],
)  # fmt: skip
def test_the_error_for_a_rejected_folder_states_the_reason(files: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=reason) as error:
        inspect(folder_of(tmp_path / "m", files))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [("config.json", 100 * 1024**2, "the limit is 16,777,216"),
     ("tokenizer.json", 10 * 1024**3, r"'tokenizer.json' has 10,737,418,240 bytes; a file other than the weights may")],
)  # fmt: skip
def test_very_large_files_are_not_read(tmp_path: Path, name: str, size: int, reason: str) -> None:
    folder = a_model(tmp_path)
    with (folder / name).open("wb") as file:
        file.truncate(size)  # a sparse file takes no disk space
    with pytest.raises(ModelFileError, match=reason):
        inspect(folder)


OUTSIDE = ["../a.safetensors", "/etc/a.safetensors", "..\\a.safetensors"]


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        *(({"x": part}, "a part must be a file of the same folder") for part in OUTSIDE),
        ({"x": "c.safetensors"}, "names 'c.safetensors', which is missing"),
        ({"y": "a.safetensors"}, "maps 'y' to 'a.safetensors', which does not contain it"),
        ([], "must map each tensor to its file in weight_map"),
        ({str(n): f"{n}.safetensors" for n in range(1_001)}, "names 1,001 files; at most 1,000"),
    ],
)
def test_an_index_with_outside_or_wrong_files_is_rejected(weight_map: Any, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(PARTS["a.safetensors"])
    with pytest.raises(ModelFileError, match=reason):
        inspect(folder_of(tmp_path / "m", {"config.json": CONFIG, INDEX: {"weight_map": weight_map}, **PARTS}))


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_links_out_of_the_folder_are_rejected(name: str, tmp_path: Path) -> None:
    folder = a_model(tmp_path / "m")
    (tmp_path / "elsewhere").write_bytes(SAFE["model.safetensors"])
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelFileError, match=f"'{name}' is a link out of the model's folder"):
        inspect(folder)


def test_a_snapshot_of_the_hub_may_link_only_to_its_own_blobs(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = a_model(repository / "snapshots" / "abc")
    (blobs := repository / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(blobs / "1234")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1234")
    assert inspect(snapshot).n_parameters == 12
    (tmp_path / "secret").write_text("{}")
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to("../../../secret")
    with pytest.raises(ModelFileError, match="a link out of"):
        inspect(snapshot)


def test_missing_paths_and_other_kinds_of_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="There is nothing at '/nowhere'; use a folder"):
        inspect("/nowhere")
    folder = folder_of(tmp_path, {"model.pt": b"", "model.safetensors": b""})
    with pytest.raises(ModelFileError, match="only as a pickle"):
        inspect(folder / "model.pt")
    with pytest.raises(ModelFileError, match="alone is not a readable model; use a folder"):
        inspect(folder / "model.safetensors")


def test_a_model_that_needs_more_than_free_memory_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = inspect(a_model(tmp_path / "tiny"))
    monkeypatch.setattr(contents, "free_bytes", lambda: found.needed)
    check_memory(found)
    monkeypatch.setattr(contents, "free_bytes", lambda: 80_000_000)
    sentence = r"^tiny needs 120\.0 MB of memory, but 80\.0 MB are free; close other models or use a smaller one\.$"
    with pytest.raises(NotEnoughMemoryError, match=sentence):
        check_memory(found)
