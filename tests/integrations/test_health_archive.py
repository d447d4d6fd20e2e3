"""A recorded training is packed from one run store and imported into another; bad archives are rejected."""

from __future__ import annotations

import io
import json
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import xformer
from xformer.errors import CheckpointError, QuotaExceededError
from xformer.integrations import AttentionHealth, HealthRecord
from xformer.integrations.health_archive import from_archive, to_archive
from xformer.presets import PRESETS
from xformer.training.limits import Limits
from xformer.training.run_store import RunStore

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> AttentionHealth:
    out = tmp_path_factory.mktemp("there")
    model = xformer.load("checkpoints/induction").model
    ids = torch.tensor([[3, 7, 12, 9, 3, 7]])
    health = AttentionHealth(ids, every=5, out=out, name="theirs", steps=10, thresholds={"score_explosion": 0.01})
    for step in (0, 5, 10):
        health.step(model, step, loss=3.0 - step / 10)
    health.close()
    return health


def store_of(health: AttentionHealth) -> RunStore:
    return RunStore(str(health.out))


def files_of(content: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: Files) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, of in files.items():
            archive.writestr(name, of)
    return content.getvalue()


def test_an_imported_archive_equals_the_original_run(recorded: AttentionHealth, tmp_path: Path) -> None:
    store, there = RunStore(tmp_path), store_of(recorded)
    result = from_archive(store, to_archive(there, recorded.run), owner="me", private=True)
    entry, before = store.entry(result.run), there.entry(recorded.run)
    assert (entry.name, entry.state, entry.preset, entry.step) == ("theirs", "finished", "external", 10)
    assert (entry.tags, entry.wanted, entry.owner, entry.private) == (("imported",), "elsewhere", "me", 1)
    assert (entry.model, entry.task, entry.train) == (before.model, before.task, before.train)
    rows, old = store.rows(result.run), there.rows(recorded.run)
    assert [row["loss"] for row in rows] == [row["loss"] for row in old]
    assert [row["scores"] for row in rows] == [row["scores"] for row in old]
    record = HealthRecord.load(store.folder_of(result.run))
    assert record.tokens == recorded.record.tokens
    assert [str(alarm) for alarm in record.alarms] == [str(alarm) for alarm in recorded.alarms] != []
    assert record.table().equals(HealthRecord.load(there.folder_of(recorded.run)).table())
    for step in (0, 5, 10):
        for path, codes in record.planes(step).items():
            assert np.array_equal(codes, recorded.record.planes(step)[path])


def test_a_folder_packed_by_hand_is_imported_without_its_other_files(recorded: AttentionHealth, tmp_path: Path) -> None:
    folder = store_of(recorded).folder_of(recorded.run)
    shutil.copytree(folder, tmp_path / "zipped/runs" / recorded.run)
    (tmp_path / "zipped/runs" / recorded.run / "health/evil.py").write_text("boo")
    file = shutil.make_archive(str(tmp_path / "mine"), "zip", tmp_path / "zipped")
    store = RunStore(tmp_path / "here")
    run = from_archive(store, Path(file).read_bytes(), owner="me").run
    assert len(store.rows(run)) == 3
    kept = sorted(one.name for one in (store.folder_of(run) / "health").iterdir())
    assert kept == ["000000.npz", "000005.npz", "000010.npz", "record.json"]


@pytest.mark.parametrize("state", ["running", ["finished"]])
def test_an_interrupted_training_gets_its_curve_from_the_probes(
    recorded: AttentionHealth, tmp_path: Path, state: object
) -> None:
    files = files_of(to_archive(store_of(recorded), recorded.run))
    card = json.loads(files["card.json"])
    files["card.json"] = json.dumps(card | {"state": state, "curve": [], "step": 0}).encode()
    store = RunStore(tmp_path)
    run = from_archive(store, packed(files), owner="me").run
    assert (store.entry(run).state, store.entry(run).step) == ("interrupted", 10)
    rows = store.rows(run)
    assert [row["step"] for row in rows] == [0, 5, 10]
    assert all(row["held_out_loss"] > 0 and row["scores"] for row in rows)


def probe(files: Files, **arrays: np.ndarray) -> Files:
    """The archive with changed arrays in its second probe. The first _ of each name stands for a colon."""
    with np.load(io.BytesIO(files["health/000005.npz"])) as found:
        kept = dict(found) | {name.replace("_", ":", 1): of for name, of in arrays.items()}
    content = io.BytesIO()
    np.savez(content, **kept)  # type: ignore[arg-type]
    return files | {"health/000005.npz": content.getvalue()}


def as_floats(files: Files) -> Files:
    """The archive with floats instead of codes as patterns."""
    with np.load(io.BytesIO(files["health/000005.npz"])) as found:
        return probe(files, **{LAYER: found[LAYER.replace("_", ":", 1)].astype(np.float32)})


def claiming(files: Files) -> Files:
    """The archive with an array whose header claims far more numbers than it has."""
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999, 99999, 9), }"
    name = next(name for name in np.load(io.BytesIO(files["health/000005.npz"])).files if name.startswith("plane:"))
    with zipfile.ZipFile(io.BytesIO(files["health/000005.npz"])) as archive:
        inner = {one: archive.read(one) for one in archive.namelist()}
    return files | {"health/000005.npz": packed(inner | {f"{name}.npy": header.ljust(127) + b"\n" + b"1"})}


def words(files: Files, name: str, **values: object) -> Files:
    return files | {name: json.dumps(json.loads(files[name]) | values).encode()}


LAYER = "plane_decoder.0.attn"
BAD: dict[str, tuple[Callable[[Files], Files], str]] = {
    "no record": (lambda files: {"card.json": files["card.json"]}, "must hold one recorded run, .* this one holds 0"),
    "a card that is a list": (lambda files: files | {"card.json": b"[]"}, "card.json must be a JSON object, got list"),
    "a wrong model": (lambda files: words(files, "card.json", model={}), "no valid model or task"),
    "wrong tokens": (lambda files: words(files, "health/record.json", tokens=[3]), "record.json is invalid at tokens"),
    "too few tokens": (lambda files: words(files, "health/record.json", tokens=["a"]), "cannot be drawn"),
    "wrong alarms": (lambda files: words(files, "health/record.json", alarms=[{"rule": "nan"}]), "at alarms.0.step"),
    "a probe that is no zip file": (lambda files: files | {"health/000005.npz": b"no"}, "5.npz is not a readable zip"),
    "a pickle": (
        lambda files: probe(files, about=np.array([{}], dtype=object)),
        "no array of numbers under 'about.npy'",
    ),
    "a false size": (claiming, "no array of numbers under 'plane:decoder.0.attn.npy'"),
    "other patterns": (lambda files: probe(files, **{LAYER: np.zeros((1, 3, 3), np.uint8)}), "a different shape"),
    "patterns that are not codes": (as_floats, "is not a probe of AttentionHealth"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_archive_is_rejected_and_nothing_is_kept(name: str, recorded: AttentionHealth, tmp_path: Path) -> None:
    spoil, sentence = BAD[name]
    files = files_of(to_archive(store_of(recorded), recorded.run))
    with pytest.raises(CheckpointError, match=sentence):
        from_archive(RunStore(tmp_path), packed(spoil(files)), owner="me")
    assert [one for one in tmp_path.iterdir() if one.is_dir()] == []
    assert RunStore(tmp_path).entries() == []


def test_a_too_large_archive_is_rejected_before_it_is_unpacked(
    recorded: AttentionHealth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = to_archive(store_of(recorded), recorded.run)
    with pytest.raises(QuotaExceededError, match="This record takes"):
        from_archive(RunStore(tmp_path), content, owner="me", limits=Limits(disk=1000))
    monkeypatch.setattr("xformer.integrations.health_archive.MAX_BYTES", 1000)
    with pytest.raises(CheckpointError, match="are read"):
        from_archive(RunStore(tmp_path), content, owner="me")


def test_a_file_with_a_false_size_is_not_inflated(recorded: AttentionHealth, tmp_path: Path) -> None:
    files = files_of(to_archive(store_of(recorded), recorded.run)) | {"health/000007.npz": bytes(50_000_000)}
    content = packed(files).replace((50_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="not a readable zip file"):
        from_archive(RunStore(tmp_path), content, owner="me")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_random_damage_is_rejected_or_harmless(recorded: AttentionHealth, tmp_path: Path) -> None:
    content = bytearray(to_archive(store_of(recorded), recorded.run))
    draw = np.random.default_rng(0)
    for _ in range(30):
        damaged = bytearray(content)
        for index in draw.integers(0, len(content), 3):
            damaged[index] = draw.integers(0, 256)
        with suppress(CheckpointError):
            from_archive(RunStore(tmp_path), bytes(damaged[: draw.integers(1, len(content) + 1)]), owner="me")


def test_a_long_record_is_thinned(recorded: AttentionHealth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store_of(recorded).folder_of(recorded.run)
    most = sum(file.stat().st_size for file in (folder / "health").glob("*.npz")) - 1
    monkeypatch.setattr("xformer.integrations.health_archive.MAX_PACKED", most)
    store = RunStore(tmp_path)
    run = from_archive(store, to_archive(store_of(recorded), recorded.run), owner="me").run
    assert HealthRecord.load(store.folder_of(run)).steps == [0, 10]
    assert len(store.rows(run)) == 3


def test_packing_a_run_without_a_record_raises(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = store.add(PRESETS["reverse"])
    with pytest.raises(CheckpointError, match="has no recorded probe yet"):
        to_archive(store, run)


def test_a_long_curve_of_a_card_is_thinned(recorded: AttentionHealth, tmp_path: Path) -> None:
    store, files = RunStore(tmp_path), files_of(to_archive(store_of(recorded), recorded.run))
    card = json.loads(files["card.json"])
    files["card.json"] = json.dumps(card | {"curve": [{"step": at, "loss": 1.0} for at in range(30_001)]}).encode()
    steps = [row["step"] for row in store.rows(from_archive(store, packed(files), owner="me").run)]
    assert 15_000 <= len(steps) <= 15_010
    assert steps[-1] == 30_000
