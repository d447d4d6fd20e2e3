"""The training loop: updates, reports, files, errors, and resumption after a stop anywhere, in the same bits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.training.at_work import assert_same_weights, untimed
from tests.training.tiny import ARCHITECTURES, run_of, tiny_preset, trained, weights_of
from xformer.checkpoints import load, save
from xformer.errors import ConfigError, TrainingError
from xformer.files import STATE, snapshot_steps
from xformer.formatting import percent
from xformer.model import Transformer
from xformer.presets import Preset
from xformer.tasks import Task
from xformer.tasks.batch import cross_entropy
from xformer.tasks.framing import generator
from xformer.training import loop
from xformer.training.loop import Run, iter_train, train
from xformer.training.recipe import learning_rate, training_state


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_reports_have_all_metrics() -> None:
    preset = tiny_preset(steps=12, log_every=5, held_out=8, batch_size=4)
    reports = list(iter_train(preset))
    assert [(report.step, report.steps, report.done) for report in reports] == [
        (5, 12, False), (10, 12, False), (12, 12, True),
    ]  # fmt: skip
    for report in reports:
        assert report.learning_rate == learning_rate(preset.train, report.step)
        assert report.held_out.samples == 8
        assert report.gradient_norm > 0
        assert {path: len(heads) for path, heads in report.scores.items()} == {"encoder.0.attn": preset.model.n_heads}
        assert all(0 <= score <= 1 for heads in report.scores.values() for score in heads)
        assert report.row()["best_head_score"] == max(report.scores["encoder.0.attn"])
        json.dumps(report.row(), allow_nan=False)
    assert reports[0].seconds < reports[-1].seconds


def test_reported_loss_is_the_mean_since_the_last_report() -> None:
    every = list(iter_train(tiny_preset(log_every=1)))
    some = list(iter_train(tiny_preset(log_every=5)))
    losses = [report.loss for report in every]
    for report, part in zip(some, (losses[:5], losses[5:10], losses[10:]), strict=True):
        assert report.loss == pytest.approx(sum(part) / len(part), rel=1e-12)
    assert [report.gradient_norm for report in some] == [every[step - 1].gradient_norm for step in (5, 10, 12)]


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])  # packed, padded
def test_weights_and_losses_match_a_plain_loop(architecture: str) -> None:
    """Compare with an independent loop of batches, loss, clipping, the unfused AdamW and the schedule."""
    preset = tiny_preset(
        architecture, steps=66, weight_decay=0.1, batch_size=4, log_every=1, snapshot_every=0, adam_eps=1e-3, beta1=0.8,
        beta2=0.95, clip_norm=0.5,
    )  # fmt: skip
    run = run_of(preset)
    model = Transformer(preset.model)
    model.load_state_dict(run.model.state_dict())
    reported = [report.loss for report in run.reports()]
    matrices, vectors = ([p for p in model.parameters() if (p.dim() >= 2) is flag] for flag in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-3, foreach=False, fused=False)
    losses = []
    for step in range(1, 67):
        chunk, place = divmod(step - 1, 64)
        if place == 0:
            drawn = Task(preset.task).sample(4, seed=0, step=chunk, steps=64, purpose="train", packed=True)
        batch = drawn.rows(2 * place, 2 * place + 2)
        adamw.zero_grad()
        loss = cross_entropy(batch.logits(model), batch.labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in adamw.param_groups:
            group["lr"] = learning_rate(preset.train, step)
        adamw.step()
        losses.append(loss.item())
    # float32 rounds at 6e-8. Adam divides errors of that size by at least ε = 1e-3, and the rates sum to 0.1.
    assert reported == pytest.approx(losses, rel=1e-5)
    for mine, other in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_training_on_a_gpu_matches_training_on_the_cpu(architecture: str) -> None:
    preset = tiny_preset(architecture, weight_decay=0.1, clip_norm=0.5, adam_eps=1e-3)
    on_gpu, on_cpu = trained(preset, device="cuda"), trained(preset)
    torch.testing.assert_close(weights_of(on_gpu).cpu(), weights_of(on_cpu), rtol=1e-3, atol=1e-4)


def test_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    before = torch.get_rng_state()
    one, again, other = (trained(tiny_preset(model={"dropout": 0.2}, seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(weights_of(one), weights_of(again))
    assert untimed(one.rows) == untimed(again.rows)
    assert not torch.equal(weights_of(one), weights_of(other))
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is unchanged


def test_every_step_draws_its_own_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(loop, "generator", lambda *key: (drawn.append(key[:3]), generator(*key))[1])
    list(iter_train(tiny_preset(model={"dropout": 0.5}, steps=5, seed=6)))
    assert drawn == [(6, "init", 0), *((6, "dropout", step) for step in (1, 2, 3, 4, 5))]


LEARNS: dict[str, Any] = {"task": {"name": "copy"}, "model": {"d_model": 16}, "batch_size": 32, "peak_lr": 2e-2}
"""Settings with which the model solves its task in some hundred steps."""


def test_target_ends_the_run_early(tmp_path: Path) -> None:
    reports = list(iter_train(tiny_preset(**LEARNS, steps=600, log_every=10, target=0.9), out=tmp_path))
    assert reports[-1].step < 600
    assert reports[-1].done
    assert reports[-1].held_out.exact_match >= 0.9
    assert all(report.held_out.exact_match < 0.9 and not report.done for report in reports[:-1])
    last = reports[-1]
    assert last.note == f"Reached the target: {percent(last.held_out.exact_match)} exact match at step {last.step}."
    assert load(tmp_path).card["step"] == last.step
    assert STATE not in files(tmp_path)


def test_stalled_run_has_a_note_once() -> None:
    reports = list(iter_train(tiny_preset(steps=20, log_every=2, peak_lr=1e-9)))
    noted = [report for report in reports if report.note]
    assert [report.step for report in noted] == [12]
    what = f"This run has stalled: at step 12 of 20 its loss is still {noted[0].loss:.2f}."
    assert noted[0].note == f"{what} Another seed or a longer warm-up usually helps."
    assert not any(report.note for report in iter_train(tiny_preset(**LEARNS, steps=120)))


def test_divergence_is_reported_in_one_sentence_and_the_last_snapshot_is_finite(tmp_path: Path) -> None:
    recipe = {"steps": 60, "peak_lr": 1e9, "warmup": 0.0, "snapshot_every": 1, "log_every": 1}
    words = r"^[^\n]*1e\+09[^\n]*1e\+08[^\n]*the last snapshot with finite weights is kept\.$"
    with pytest.raises(TrainingError, match=words):
        list(iter_train(tiny_preset(model={"norm": "none", "d_ff": 16}, **recipe), out=tmp_path))
    steps = snapshot_steps(tmp_path)
    assert steps[0] == 0
    for step in steps:
        load(tmp_path / f"snapshots/{step:06d}.safetensors")  # load rejects non-finite weights


def test_non_finite_weights_are_never_saved_as_a_snapshot(tmp_path: Path) -> None:
    """Not even if they affect neither the loss nor the gradient."""
    run = run_of(tiny_preset(snapshot_every=4, log_every=1), tmp_path)
    reports = run.reports()
    for _ in range(3):
        next(reports)
    with torch.no_grad():
        run.model.embedding.token[0] = math.nan  # the embedding of the padding token, which is never read
    with pytest.raises(TrainingError, match=r"stops at step 4\. The weights were not saved because embedding\.token"):
        list(reports)
    assert snapshot_steps(tmp_path) == [0]


def test_nothing_is_written_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    list(iter_train(tiny_preset()))
    reports = iter_train(tiny_preset())
    next(reports)
    reports.close()
    assert files(tmp_path) == set()


def test_invalid_configurations_are_rejected_before_anything_is_written(tmp_path: Path) -> None:
    preset = tiny_preset()
    out = tmp_path / "run"
    for wrong in (
        replace(preset, model=preset.model.replace(vocab_size=99)),
        replace(preset, task=preset.task.replace(max_len=100)),
        replace(preset, task=preset.task.replace(architecture="decoder")),
    ):
        with pytest.raises(ConfigError):
            iter_train(wrong, out=out)
    for device in ("gpu", "cuda:x", "mps", ""):
        with pytest.raises(ConfigError):
            iter_train(preset, out=out, device=device)
    with pytest.raises(ConfigError, match="There is no preset 'nothing'; the presets are reverse, "):
        iter_train("nothing", out=out)
    with pytest.raises(ConfigError, match=r"There is no preset ModelConfig\(.*; the presets are reverse, "):
        iter_train(preset.model, out=out)  # type: ignore[arg-type]
    assert not out.exists()


def test_finished_run_leaves_its_snapshots_and_a_checkpoint(tmp_path: Path) -> None:
    preset = tiny_preset(steps=10, snapshot_every=4, log_every=5)
    reports = list(iter_train(preset, out=tmp_path))
    assert snapshot_steps(tmp_path) == [0, 4, 8, 10]
    snapshots = {f"snapshots/{step:06d}.safetensors" for step in (0, 4, 8, 10)}
    assert files(tmp_path) == {"model.safetensors", "card.json", *snapshots}
    checkpoint = load(tmp_path)
    assert untimed(checkpoint.card["curve"]) == untimed(train(preset, device="cpu").card["curve"])
    assert checkpoint.config == preset.model
    assert checkpoint.task == Task(preset.task)
    assert_same_weights(checkpoint.model, load(tmp_path / "snapshots/000010.safetensors").model)
    card = checkpoint.card
    assert (card["preset"], card["seed"], card["step"]) == ("tiny", 0, 10)
    assert card["train"] == preset.train.to_json()
    assert card["curve"] == [json.loads(json.dumps(report.row())) for report in reports]
    assert json.loads((tmp_path / "card.json").read_text()) == card


def test_long_run_can_be_loaded_and_resumed(tmp_path: Path) -> None:
    """A report takes about 570 bytes of a header that is limited to a million, so the curve must be thinned."""
    preset = tiny_preset(steps=10_000, log_every=1, snapshot_every=0)
    run = run_of(preset, tmp_path)
    reports = run.reports()
    first = next(reports)
    run.rows = [first.row() | {"step": step} for step in range(1, 2500)]
    reports.close()
    again = run_of(preset, tmp_path)
    again.restore()
    assert again.rows == run.rows
    save(again.checkpoint(), tmp_path)
    curve = load(tmp_path).card["curve"]
    assert 200 <= len(curve) <= 500
    assert curve[-1] == run.rows[-1]


# Reports at 5, 10, 12; snapshots at 0, 4, 8, 12.
PRESET = tiny_preset(model={"dropout": 0.2}, weight_decay=0.1)


def resumed(preset: Preset, out: Path) -> Run:
    run = run_of(preset, out)
    run.restore()
    return run


UNDISTURBED: dict[Preset, tuple[TemporaryDirectory[str], Run]] = {}


def undisturbed_run(preset: Preset) -> tuple[Path, Run]:
    """Return the folder and the run of a preset trained without a stop, once for all tests."""
    if preset not in UNDISTURBED:
        folder = TemporaryDirectory()
        run = run_of(preset, Path(folder.name))
        list(run.reports())
        UNDISTURBED[preset] = folder, run
    folder, run = UNDISTURBED[preset]
    return Path(folder.name), run


def assert_ends_like_an_undisturbed_run(run: Run, out: Path) -> None:
    """Train a run to its end and assert that its weights, optimiser, metrics and snapshots are those without a stop."""
    list(run.reports())
    other, undisturbed = undisturbed_run(run.preset)
    assert run.step == undisturbed.step == run.config.steps
    mine = training_state(run.model, run.optimiser)
    theirs = training_state(undisturbed.model, undisturbed.optimiser)
    assert mine.keys() == theirs.keys()
    for name in theirs:
        assert torch.equal(mine[name], theirs[name]), name
    assert untimed(run.rows) == untimed(undisturbed.rows)
    assert snapshot_steps(out) == snapshot_steps(other)
    for step in snapshot_steps(out):
        file = f"snapshots/{step:06d}.safetensors"
        assert_same_weights(load(out / file).model, load(other / file).model)
    assert_same_weights(load(out).model, load(other).model)
    assert not (out / STATE).exists()
    assert load(out).card["step"] == run.config.steps


class Interrupt:
    """Wraps a function and raises `KeyboardInterrupt` at its n-th call, before or after calling it."""

    def __init__(self, function: Callable[..., Any], at: int, *, after: bool = False) -> None:
        self.function, self.left, self.after = function, at, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        result = self.function(*args, **kwargs)
        if self.left == 0:
            raise KeyboardInterrupt
        return result


def interrupted(
    preset: Preset, out: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str], at: int, *, after: bool = False
) -> None:
    owner, name = where
    with monkeypatch.context() as patch:
        function = Interrupt(getattr(owner, name), at, after=after)
        # a plain function, so that a method still receives its instance
        patch.setattr(owner, name, lambda *args, **kwargs: function(*args, **kwargs))
        with pytest.raises(KeyboardInterrupt):
            list(iter_train(preset, out=out))


PLACES: dict[str, tuple[Any, str]] = {
    "backward": (torch.Tensor, "backward"), "probe": (Run, "probe_scores"), "state": (loop, "write_atomically"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_run_interrupted_outside_an_update_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    out, after = tmp_path / "run", place == "state"
    interrupted(PRESET, out, monkeypatch, PLACES[place], 3 if after else 2, after=after)
    assert_ends_like_an_undisturbed_run(resumed(PRESET, out), out)


def test_run_interrupted_in_an_update_resumes_from_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    interrupted(PRESET, out, monkeypatch, (torch.optim.AdamW, "step"), 7, after=True)
    run = resumed(PRESET, out)
    assert run.step == 4
    assert_ends_like_an_undisturbed_run(run, out)


def test_run_stopped_repeatedly_ends_like_an_undisturbed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset, out = tiny_preset(steps=90, log_every=7, snapshot_every=0, model={"dropout": 0.2}), tmp_path / "run"
    seen, run = [], run_of(preset, out)
    for n_steps in (1, 2, 11, 30, 23):  # past the end of the first 64 batches, which are drawn at once
        with monkeypatch.context() as patch:
            patch.setattr(run.optimiser, "zero_grad", Interrupt(run.optimiser.zero_grad, n_steps + 1))
            with pytest.raises(KeyboardInterrupt):
                seen.extend(report.step for report in run.reports())
        run = resumed(preset, out)
    assert run.step == 67
    assert seen == [*range(7, 67, 7)]
    assert_ends_like_an_undisturbed_run(run, out)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        ("model", tiny_preset(model={"dropout": 0.2, "n_heads": 4}, weight_decay=0.1)),
        ("task", tiny_preset(task={"name": "sort"}, model={"dropout": 0.2}, weight_decay=0.1)),
        ("train", tiny_preset(model={"dropout": 0.2}, weight_decay=0.1, seed=1)),
    ],
)
def test_run_is_not_resumed_with_different_settings(tmp_path: Path, kind: str, other: Preset) -> None:
    next(iter_train(PRESET, out=tmp_path)).row()
    before = (tmp_path / STATE).read_bytes()
    with pytest.raises(TrainingError, match=f"had different {kind} settings, so these cannot resume it"):
        iter_train(other, out=tmp_path, resume=True)
    assert (tmp_path / STATE).read_bytes() == before


def test_folder_without_an_unfinished_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="There is no run to resume in"):
        iter_train(PRESET, out=tmp_path / "nowhere", resume=True)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(TrainingError, match="Resuming needs the folder of the run"):
        iter_train(PRESET, resume=True)
    list(iter_train(PRESET, out=tmp_path / "run"))
    with pytest.raises(TrainingError, match="There is no run to resume in"):  # it is finished
        iter_train(PRESET, out=tmp_path / "run", resume=True)


def state_file(values: Any, tensors: dict[str, torch.Tensor] | None = None) -> bytes:
    return safetensors.torch.save(tensors or {"weights": torch.zeros(3)}, {"state": json.dumps(values)})


STATE_OF_NO_STEP = training_state(run_of(PRESET).model, run_of(PRESET).optimiser)
SETTINGS = {kind: getattr(PRESET, kind).to_json() for kind in ("model", "task", "train")}
WHOLE = SETTINGS | {"step": 1, "seconds": 0.0, "window": {}, "rows": []}
DAMAGED = {
    "nonsense": b"nonsense",
    "no settings": state_file({}),
    "moments of one weight": state_file(WHOLE, STATE_OF_NO_STEP | {"adamw.unembedding.bias.step": torch.ones(())}),
    "no weights": state_file(SETTINGS, {"other": torch.zeros(3)}),
    "another window": state_file(WHOLE | {"window": {"nonsense": 1}}, STATE_OF_NO_STEP),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_state_gives_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE).write_bytes(content)
    with pytest.raises(TrainingError, match=f"The run in {tmp_path} ") as caught:
        iter_train(PRESET, out=tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_truncated_state_is_rejected(tmp_path: Path) -> None:
    next(iter_train(PRESET, out=tmp_path)).row()
    whole = (tmp_path / STATE).read_bytes()
    for n_bytes in (0, 7, 100, len(whole) - 1):
        (tmp_path / STATE).write_bytes(whole[:n_bytes])
        with pytest.raises(TrainingError, match="cannot be resumed"):
            iter_train(PRESET, out=tmp_path, resume=True)
