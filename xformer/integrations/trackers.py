"""Report `AttentionHealth` to experiment trackers: numbers of each head, alarms, and a map of the heads.

    AttentionHealth(ids, every=50, trackers=[WandbTracker(run)])            Weights & Biases
    AttentionHealth(ids, every=50, trackers=[TrackioTracker(run)])          Trackio
    AttentionHealth(ids, every=50, trackers=[TensorBoardTracker(writer)])   a SummaryWriter of torch or of tensorboardX
    AttentionHealth(ids, every=50, trackers=[MLflowTracker(run)])           MLflow

Each takes a run that the caller started, and works in the offline mode of its library. Another tracker is a class with two
methods.
"""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from xformer.analysis.attention_health import HEAD_MEASURES
from xformer.errors import ConfigError
from xformer.formatting import check_option
from xformer.installed import needed
from xformer.integrations.health_alarms import Alarm, Measurement
from xformer.integrations.health_record import HealthRecord, summary

MEASURES = ("entropy_p50", "score_max", "first_token", "induction", "output_norm")
"""The measures of each head that are reported; all others are reported as minimum, median and maximum over the heads."""
PREFIX = "attention"
"""The start of all names in a tracker: attention/entropy_p50/decoder.0.attn/3 is head 3 of the first layer, from 0."""
Picture = UInt8[np.ndarray, "row column 3"]


class Tracker(ABC):
    """Where a record is reported. A subclass says how its library logs; what is logged is the same for all.

    Args:
        run: The run of the library, which the caller starts and ends.
        measures: The measures that are reported for each head, from `HEAD_MEASURES`.
        picture: The measure on the map of heads; "" for no map. A map needs the extra `viz`, and takes a tenth of a second.

    Raises:
        ConfigError: `measures` is a text.
        InputError: A measure is unknown.

    Example:
        >>> import torch, xformer
        >>> from xformer.integrations import AttentionHealth, Tracker
        >>> class Printer(Tracker):
        ...     def log(self, scalars, step):
        ...         print(f"step {step}: the scores are at most {scalars['attention/score_max/max']:.1f}")
        ...     def alert(self, alarm):
        ...         print(alarm)
        >>> ids = torch.tensor([[3, 7, 12, 9, 3, 7]])
        >>> health = AttentionHealth(ids, every=10, trackers=[Printer(None, picture="")])
        >>> alarms = health.step(xformer.load("checkpoints/induction").model, 10)
        step 10: the scores are at most 40.1
    """

    def __init__(self, run: Any, *, measures: Sequence[str] = MEASURES, picture: str = "entropy_p50") -> None:
        if isinstance(measures, str):
            raise ConfigError(f"measures must be a list of names, got {measures!r:.60}; for example ['entropy_p50'].")
        for name in (*measures, *filter(None, [picture])):
            check_option("A measure", name, tuple(HEAD_MEASURES))
        self.run, self.measures, self.picture = run, tuple(measures), picture

    def report(self, record: HealthRecord, alarms: Sequence[Alarm]) -> None:
        """Report the last probe of a record and its new alarms."""
        probe = record.probes[-1]
        self.log(dict(scalars_of(probe, self.measures)), probe.step)
        for alarm in alarms:
            self.alert(alarm)
        if self.picture:
            self.draw(f"{PREFIX}/heads", picture_of(probe, self.picture), probe.step)

    @abstractmethod
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Log numbers by name."""

    @abstractmethod
    def alert(self, alarm: Alarm) -> None:
        """Report an alarm."""

    def draw(self, name: str, picture: Picture, step: int) -> None:  # noqa: B027  a tracker may have no pictures
        """Log a picture."""


class WandbTracker(Tracker):
    """Weights & Biases; `run` is what `wandb.init` returned. Alarms are its alerts.

    The names have a step of their own, `attention/step`, because the step of a run may only grow.
    """

    def __init__(self, run: Any, **options: Any) -> None:
        super().__init__(run, **options)
        run.define_metric(f"{PREFIX}/step", hidden=True)
        run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        self.run.log({**scalars, f"{PREFIX}/step": step})

    def alert(self, alarm: Alarm) -> None:
        self.run.alert(title=f"attention: {alarm.rule}", text=str(alarm), level="WARN")

    def draw(self, name: str, picture: Picture, step: int) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.run.log({name: wandb.Image(picture), f"{PREFIX}/step": step})


class TrackioTracker(Tracker):
    """Trackio; `run` is what `trackio.init` returned. Alarms are its alerts."""

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        self.run.log(dict(scalars), step=step)

    def alert(self, alarm: Alarm) -> None:
        self.run.alert(title=f"attention: {alarm.rule}", text=str(alarm), step=alarm.step)

    def draw(self, name: str, picture: Picture, step: int) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self.run.log({name: trackio.Image(picture)}, step=step)


class TensorBoardTracker(Tracker):
    """TensorBoard; `run` is a `SummaryWriter`. It has no alerts: alarms are texts."""

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self.run.add_scalar(name, value, step)

    def alert(self, alarm: Alarm) -> None:
        self.run.add_text(f"{PREFIX}/alarms/{alarm.rule}", str(alarm), alarm.step)

    def draw(self, name: str, picture: Picture, step: int) -> None:
        self.run.add_image(name, picture, step, dataformats="HWC")


class MLflowTracker(Tracker):
    """MLflow; `run` is what `mlflow.start_run` returned. It has no alerts: an alarm is a tag of the run, `alarm.RULE`."""

    BATCH = 1000
    """The most numbers that MLflow accepts at once."""

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        names = list(scalars)
        for start in range(0, len(names), self.BATCH):
            part = {name: scalars[name] for name in names[start : start + self.BATCH]}
            mlflow.log_metrics(part, step=step, run_id=self.run.info.run_id)

    def alert(self, alarm: Alarm) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        mlflow.MlflowClient().set_tag(self.run.info.run_id, f"alarm.{alarm.rule}", str(alarm))

    def draw(self, name: str, picture: Picture, step: int) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        mlflow.MlflowClient().log_image(self.run.info.run_id, picture, key=name, step=step)


def scalars_of(probe: Measurement, measures: Sequence[str] = MEASURES) -> Iterator[tuple[str, float]]:
    """Yield what is known of a probe as numbers by name: the loss, the measures of heads and layers, and their summary."""
    known = {"probe_loss": probe.loss} | summary(probe.heads)
    for layer, found in probe.heads.items():
        known |= {f"{name}/{layer}/{head}": float(v) for name in measures for head, v in enumerate(found[name])}
    for layer, values in probe.layers.items():
        known |= {f"{name}/{layer}": value for name, value in values.items()}
    for name, value in known.items():
        if math.isfinite(value):
            yield f"{PREFIX}/{name}", value


def picture_of(probe: Measurement, measure: str) -> Picture:
    """Draw the map of layers × heads of a probe."""
    from xformer.viz.attention_health import head_map  # imported here because it needs altair
    from xformer.viz.export import png_of, svg

    with needed("PIL", "A picture for a tracker", "pillow"):
        from PIL import Image
    chart = head_map(HealthRecord(probes=[probe]).table(), measure)
    return np.asarray(Image.open(io.BytesIO(png_of(svg([chart])))).convert("RGB"))
