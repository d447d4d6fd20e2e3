"""Export and import of runs: a run survives the round trip, and a rejected file leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.at_work import assert_same_weights, failing_with
from tests.training.tiny import tiny_preset
from xformer.checkpoints import Checkpoint, from_bytes, load, to_bytes
from xformer.errors import CheckpointError, RunStoreError
from xformer.files import snapshot_file, snapshot_steps
from xformer.model import Transformer
from xformer.tasks import Task
from xformer.training.card import from_file, read_card, to_file
from xformer.training.limits import Limits
from xformer.training.loop import iter_train
from xformer.training.run_store import RunStore


def trained(folder: Path, architecture: str = "encoder", **settings: Any) -> tuple[RunStore, str]:
    """Return a run store with one finished run of 12 steps, with reports at steps 5, 10 and 12."""
    store, preset = RunStore(folder), tiny_preset(architecture, **settings)
    run = store.add(preset, owner="ann", name="first try", state="finished")
    rows = [progress.row() for progress in iter_train(preset, out=store.folder_of(run), device="cpu")]
    store.put_rows(run, rows)
    figures = {"loss": 1.5, "token_accuracy": 0.5, "exact_match": 0.25, "samples": 8, "seed": 1}
    store.change(run, step=12, seconds=rows[-1]["seconds"], figures=json.dumps(figures), device="cpu")
    return store, run


def file_of(card: dict[str, Any], architecture: str = "encoder") -> bytes:
    """Return the content of a file with this card and new weights."""
    preset = tiny_preset(architecture)
    model = Transformer(preset.model, torch.Generator().manual_seed(7))
    return to_bytes(Checkpoint(model, Task(preset.task), card))


def row(step: int, **changes: Any) -> dict[str, Any]:
    numbers = ("loss", "learning_rate", "gradient_norm", "seconds", "tokens_per_second", "held_out_loss")
    shares = {"held_out_token_accuracy": 0.5, "held_out_exact_match": 0.5, "held_out_samples": 8}
    return {"step": step, "steps": 12, "note": "", "done": False} | dict.fromkeys(numbers, 1.0) | shares | changes


def test_run_survives_export_and_import_with_weights_settings_curve_and_scores(tmp_path: Path) -> None:
    store, run = trained(tmp_path / "here", "encoder-decoder")
    other = RunStore(tmp_path / "there")
    taken = from_file(other, to_file(store, run), owner="ben")
    assert (taken.name, taken.step, taken.is_new) == ("first try", 12, True)
    before, after = store.entry(run), other.entry(taken.run)
    same = ("name", "preset", "title", "about", "model", "task", "train", "step", "figures", "device")
    here = {"owner": "ben", "tags": ("imported",), "state": "finished", "worker": None}
    assert vars(after).items() >= ({name: getattr(before, name) for name in same} | here).items()
    assert after.seconds == pytest.approx(before.seconds, abs=0.01)
    assert other.rows(taken.run) == store.rows(run)
    assert snapshot_steps(other.folder_of(taken.run)) == [12]
    for file in (snapshot_file(other.folder_of(taken.run), 12), other.folder_of(taken.run)):
        assert_same_weights(load(file).model, load(store.folder_of(run)).model)
    assert after.settings() == dataclasses.replace(before.settings(), name="tiny")


def test_exported_file_of_an_earlier_step_ends_at_that_step(tmp_path: Path) -> None:
    store, run = trained(tmp_path)
    found = from_bytes(to_file(store, run, 8))
    assert found.card["step"] == 8
    assert [row["step"] for row in found.card["curve"]] == [5]
    assert "figures" not in found.card
    assert_same_weights(found.model, load(snapshot_file(store.folder_of(run), 8)).model)
    with pytest.raises(RunStoreError, match="no weights of step 7"):
        to_file(store, run, 7)


def test_weights_already_in_the_store_are_not_imported_again(tmp_path: Path) -> None:
    store, run = trained(tmp_path)
    content = to_file(store, run)
    taken = from_file(store, content, owner="ben")
    assert (taken.run, taken.is_new) == (run, False)
    assert from_file(store, to_file(store, run, 4), owner="ben").run == run
    assert len(store.entries()) == 1
    other = from_file(store, file_of({"step": 12}), owner="ben")  # the same shape and step, other weights
    assert other.is_new
    assert from_file(store, file_of({"step": 12, "title": "again"}), owner="ben").run == other.run
    store.delete(other.run)
    assert from_file(store, file_of({"step": 12}), owner="ben").is_new


def test_file_with_an_empty_card_can_be_imported(store: RunStore) -> None:
    taken = from_file(store, file_of({}), owner="ben", file_name="../x/mine.safetensors")
    entry = store.entry(taken.run)
    assert (entry.name, entry.step, entry.figures, entry.message, store.rows(taken.run)) == ("mine", 0, {}, "", [])
    assert entry.settings().train.steps == 1


def test_text_of_an_imported_card_becomes_one_printable_line(store: RunStore) -> None:
    card = {"name": "a\n\x1b[31m" + "b" * 500, "about": ["no text"], "title": 3, "seconds": True, "device": "toaster"}
    entry = store.entry(from_file(store, file_of(card | {"step": "9"}), owner="ben").run)
    assert entry.name == "a [31m" + "b" * 74
    assert (entry.about, entry.title, entry.seconds, entry.device, entry.step) == ("", entry.name, 0.0, None, 0)
    written = json.loads((store.folder_of(entry.id) / "card.json").read_text())
    assert written == load(store.folder_of(entry.id)).card
    assert written["name"] == entry.name


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ([row(i) for i in range(1, 2002)], "at most 2,000 rows"),
        ([row(5), row(5)], "the step of row 2 must be after 5"),
        ([row(5, loss=10**400)], "row 1 is not valid at loss: "),
        ([row(5, held_out_exact_match=1.5)], "row 1 is not valid at held_out_exact_match: "),
    ],
)
def test_invalid_curve_is_ignored_with_a_warning(curve: Any, words: str) -> None:
    card = read_card({"step": 12, "curve": curve, "name": "x"})
    assert (card.rows, card.step, card.name) == ([], 12, "x")
    assert card.left_out.startswith("Left out of the imported file: its curve (")
    assert words in card.left_out


def test_only_known_fields_of_a_curve_are_kept() -> None:
    scores = {"encoder.0.attn": [0.5, 1.0]}
    good = row(5, scores=scores, best_head_score=0.5, note="a\nb")
    [kept] = read_card({"step": 12, "curve": [good | {"diagonal": 0.5, "evil": {"deep": []}}]}).rows
    assert kept == good | {"note": "a b"}
    for wrong in ([1], {"a": [2.0]}, {"a": [0.1] * 5000}):
        [kept] = read_card({"step": 12, "curve": [row(5, scores=wrong)]}).rows
        assert "scores" not in kept


def test_invalid_settings_and_scores_are_dropped() -> None:
    card = read_card({"step": 12, "train": {"steps": 0}, "figures": {"exact_match": 2}})
    assert (card.train.steps, card.figures) == (12, {})
    assert "its training settings (steps must be from 1" in card.left_out


def assert_empty(store: RunStore) -> None:
    assert store.entries() == []
    assert [path for path in store.folder.iterdir() if path.is_dir()] == []


def test_rejected_file_gives_one_sentence_and_leaves_nothing(store: RunStore) -> None:
    no_task = to_bytes(Checkpoint(Transformer(tiny_preset().model, torch.Generator().manual_seed(1))))
    small, full = Limits(parameters=10), Limits(disk=10)
    for content, limits, words in (
        (b"hello", None, "not a safetensors file"),
        (file_of({})[:-4], None, "bytes"),
        (no_task, None, "names no task"),
        (file_of({}), small, "parameters, and this server allows 10"),
        (file_of({}), full, r"takes 0\.1 MB\. Runs and texts on this server already take .*, and 0\.1 MB are allowed"),
    ):
        with pytest.raises((CheckpointError, RunStoreError), match=words) as refusal:
            from_file(store, content, owner="ben", limits=limits)
        assert "\n" not in str(refusal.value)
    assert_empty(store)


@pytest.mark.parametrize("fails", ["xformer.checkpoints.save", "xformer.training.run_store.insert_rows"])
def test_disk_error_during_import_leaves_nothing(store: RunStore, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    monkeypatch.setattr(fails, failing_with(OSError(28, "No space left on device")))
    with pytest.raises(RunStoreError, match=r"The run could not be saved|cannot be used"):
        from_file(store, file_of({}), owner="ben")
    assert_empty(store)
