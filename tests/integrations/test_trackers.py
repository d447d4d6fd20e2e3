"""What AttentionHealth reports to trackers. `make packages` also runs this with the trackers; elsewhere they are skipped."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations.faulty_gpt import GPT
from xformer.errors import ConfigError, InputError
from xformer.integrations import AttentionHealth, Tracker
from xformer.integrations.health_alarms import Alarm
from xformer.integrations.trackers import MLflowTracker, TensorBoardTracker, TrackioTracker, WandbTracker

IDS = torch.tensor([[3, 7, 12, 9, 3, 7]])


class Memory(Tracker):
    """Keeps what it is told; as `run` it takes a set of the methods that fail."""

    def __init__(self, run: Any = (), **options: Any) -> None:
        super().__init__(run, **options)
        self.scalars: dict[int, Mapping[str, float]] = {}
        self.alarms: list[Alarm] = []
        self.pictures: dict[int, Any] = {}

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        assert "log" not in self.run, "the network is gone"
        self.scalars[step] = scalars

    def alert(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)

    def draw(self, name: str, picture: Any, step: int) -> None:
        self.pictures[step] = (name, picture)


def trained(tracker: Tracker, fault: str = "leaking mask") -> AttentionHealth:
    """A health that has seen two steps of a GPT with a fault in its last layer."""
    torch.manual_seed(0)
    model, health = GPT(20, fault=fault), AttentionHealth(IDS, every=5, causal=True, trackers=[tracker])
    for step in (0, 1, 5):
        health.step(model, step, loss=2.5)
    return health


def test_each_probe_is_reported_with_its_numbers_alarms_and_picture() -> None:
    health = trained(tracker := Memory(measures=["score_max"]))
    assert list(tracker.scalars) == list(tracker.pictures) == [0, 5]  # step 1 is no probe
    assert tracker.alarms == health.alarms
    assert "leak" in {alarm.rule for alarm in tracker.alarms}
    table = health.table().set_index(["step", "layer", "head"])
    logged = tracker.scalars[5]
    assert logged["attention/score_max/decoder.1.attn/3"] == pytest.approx(table["score_max"][5, "decoder.1.attn", 3])
    assert logged["attention/score_max/max"] == pytest.approx(table["score_max"][5].max())
    assert logged["attention/probe_loss"] == pytest.approx(health.record.probes[-1].loss)
    assert "attention/entropy_p50/max" in logged
    assert "attention/entropy_p50/decoder.1.attn/3" not in logged  # not among `measures`
    assert all(np.isfinite(value) for value in logged.values())
    name, picture = tracker.pictures[5]
    assert name == "attention/heads"
    assert picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 8  # heads in different colours


def test_a_sound_model_raises_no_alarm() -> None:
    trained(tracker := Memory(picture=""), fault="")
    assert tracker.alarms == []
    assert tracker.pictures == {}


def test_a_tracker_that_fails_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "xformer.health"):
        health = trained(tracker := Memory({"log"}))
    assert len(health.record.probes) == 2
    assert tracker.scalars == {}
    assert "could not be reported by Memory" in caplog.text
    assert "the network is gone" in caplog.text


def test_unknown_measures_are_refused() -> None:
    with pytest.raises(InputError, match="A measure must be one of"):
        Memory(measures=["entropy"])
    with pytest.raises(InputError, match="A measure must be one of"):
        Memory(picture="heads")
    with pytest.raises(ConfigError, match="must be a list"):
        Memory(measures="entropy_p50")


def needs(library: str) -> Any:
    """Import a tracker, or skip the test loudly."""
    return pytest.importorskip(
        library, reason=f"no {library}: AttentionHealth was NOT tested with it; see make packages"
    )


def expected(health: AttentionHealth) -> float:
    """The largest score of a head at step 5."""
    table = health.table().set_index(["step", "layer", "head"])
    return float(table["score_max"][5, "decoder.1.attn", 3])


NAME = "attention/score_max/decoder.1.attn/3"


def test_wandb_offline(tmp_path: Path) -> None:
    wandb = needs("wandb")
    with wandb.init(mode="offline", dir=tmp_path, project="test") as run:
        run.log({"loss": 1.0}, step=100)  # the caller's own steps
        health = trained(WandbTracker(run))
        assert run.summary[NAME] == pytest.approx(expected(health))
        assert run.summary["attention/step"] == 5
        assert run.summary["attention/heads"]["_type"] == "image-file"
    wandb.teardown()  # the file is complete when the process that writes it has ended
    pictures = list(tmp_path.rglob("media/images/attention/heads_*.png"))
    assert len(pictures) == 2
    [file] = tmp_path.rglob("run-*.wandb")
    assert b"attention: leak" in file.read_bytes()  # the alert


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = needs("trackio")
    run = trackio.init(project="test", embed=False)
    health = trained(TrackioTracker(run))
    trackio.finish()
    command = [sys.executable, "-m", "trackio.cli", "get", "metric", "--json", "--project=test", f"--run={run.name}"]
    output = subprocess.run([*command, f"--metric={NAME}"], check=True, stdout=subprocess.PIPE).stdout
    assert {row["step"]: row["value"] for row in json.loads(output)["values"]}[5] == pytest.approx(expected(health))
    assert "attention: leak" in {alert["title"] for alert in trackio.Api().alerts("test")}
    assert len(list(tmp_path.rglob("*.png"))) == 2


@pytest.mark.parametrize("library", ["torch.utils.tensorboard", "tensorboardX"])
def test_tensorboard(library: str, tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with needs(library).SummaryWriter(str(tmp_path)) as writer:
        health = trained(TensorBoardTracker(writer))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {event.step: event.value for event in events.Scalars(NAME)}[5] == pytest.approx(expected(health))
    assert [event.step for event in events.Images("attention/heads")] == [0, 5]
    [text] = events.Tensors("attention/alarms/leak/text_summary")
    assert b"leak in decoder.1.attn" in text.tensor_proto.string_val[0]


def test_mlflow(tmp_path: Path) -> None:
    mlflow = needs("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = mlflow.create_experiment("test", artifact_location=(tmp_path / "files").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        health = trained(MLflowTracker(run))
    client = mlflow.MlflowClient()
    history = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, NAME)}
    assert history[5] == pytest.approx(expected(health))
    assert "leak in decoder.1.attn" in client.get_run(run.info.run_id).data.tags["alarm.leak"]
    assert len(list(tmp_path.rglob("*.png"))) == 2


def test_more_numbers_than_mlflow_accepts_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = needs("mlflow")
    sent: list[int] = []
    monkeypatch.setattr(mlflow, "log_metrics", lambda part, **_: sent.append(len(part)))

    class Run:
        info = type("Info", (), {"run_id": "a"})

    MLflowTracker(Run()).log({str(at): 1.0 for at in range(2001)}, 5)
    assert sent == [1000, 1000, 1]
