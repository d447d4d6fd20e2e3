"""Monitor the attention of any model while any program trains it.

    health = AttentionHealth(ids, every=50)
    Trainer(model, args, callbacks=[health])                  Transformers
    lightning.Trainer(callbacks=[health])                     Lightning
    health.step(model, step, loss=loss)                       your own loop, once after each update
    health.table(), health.alarms, health.report()

A small fixed batch, the probe, is read at regular intervals. The training stays bit-identical, and nothing here ends it: what
fails becomes one warning with the reason, and is tried again at the next probe.
"""

from __future__ import annotations

import logging
import math
import operator
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from xformer.adapters.capture_backends import ChangedLayoutError
from xformer.analysis.attention_health import (
    KEEP,
    LongPattern,
    Patterns,
    Projections,
    attention_modules,
    gradient_norms,
    induction,
    measure,
)
from xformer.checkpoints import Checkpoint, save
from xformer.errors import ConfigError, EditError, InputError
from xformer.files import snapshot_file
from xformer.formatting import check_index
from xformer.integrations.health_alarms import Alarm, Measurement, Setting, TrainingHistory, raised, thresholds_of
from xformer.integrations.health_archive import write_card
from xformer.integrations.health_probe import (
    first_bad,
    first_change,
    gap_between_runs,
    has_own_scale,
    is_declared_causal,
    looks_causal,
    losses_of,
    n_heads_of,
    picture,
    prepared,
    process_rank,
    read_long,
    reason_of,
    repeated,
    undisturbed,
    with_other_ending,
)
from xformer.integrations.health_record import HealthRecord, OutsideRun, settings_of, summary
from xformer.integrations.trackers import Tracker
from xformer.layer_path import LayerPath
from xformer.model import Transformer
from xformer.program.module_state import cache_of, on_device, unwrapped
from xformer.reading import Reading, read
from xformer.tasks import Task
from xformer.training.card import MAX_STEPS
from xformer.training.run_store import RunStore

log = logging.getLogger("xformer.health")
MAX_LOSSES = 20_000
"""The limit on losses in memory. Beyond it, every second loss of the older half is dropped."""


class AttentionHealth:
    """Record the health of the attention of a model in training, and raise alarms.

    An instance is both a `TrainerCallback` of Transformers and a `Callback` of Lightning, provided that the library is imported
    before the instance is created. In other loops, call `step`.

    Args:
        probe: A small fixed batch: text or a list of texts (with a tokenizer), token ids [pos] or [batch, pos], or the model's
            arguments by name. 64 tokens are enough. Of one input of more than 1,024 tokens, the patterns are summed up instead
            of kept, for models of Transformers whose attention function can be replaced.
        every: The number of steps between two probes. Step 0 is probed if `step` is called for it.
        out: A folder of runs, for example "checkpoints/runs". The training becomes a run there, which the app shows live. None
            keeps the record in memory.
        tokenizer: Tokenizes a text probe; by default the Trainer's.
        valid: True for tokens and False for padding [batch, pos], if the module's padding mask has an unusual name.
        module: The path of the submodule that reads the probe ("model"). "" is the whole module, or in a LightningModule the
            only child with parameters.
        causal: Whether an output may depend on earlier tokens only. None: decide by the model's class, else by the first probe.
        thresholds: Changed thresholds by the name of the rule; None turns a rule off. See `health_alarms.RULES`.
        on_alarm: Called with each new alarm, which is also logged as a warning of the logger "xformer.health". It may set
            `should_stop`; an exception in it becomes a warning.
        steps: The number of steps of the training, for the progress bar; by default the Trainer's.
        name: The name of the run.
        task: The task of an xformer model, which enables the figures of xformer's own runs.
        weights: Whether to save the weights at every probe, as an xformer checkpoint or with `save_pretrained`.
        trackers: Where each probe is also reported, such as `WandbTracker(run)`; see `xformer.integrations.trackers`.

    Raises:
        ConfigError: A setting is invalid.

    Example:
        >>> import torch, xformer
        >>> from xformer.integrations import AttentionHealth
        >>> model = xformer.load("checkpoints/induction").model
        >>> health = AttentionHealth(torch.tensor([[3, 7, 12, 9, 3, 7]]), every=10)
        >>> alarms = health.step(model, 0, loss=2.5)
        >>> health.table().columns[:5].tolist()
        ['step', 'layer', 'head', 'score_max', 'score_spread']
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> AttentionHealth:
        """Create an instance that also inherits from the callback classes of the libraries imported so far."""
        bases = _callback_classes()
        if not bases or any(issubclass(cls, base) for base in bases):
            return super().__new__(cls)
        mixed: Any = type(cls.__name__, (cls, *bases), {"__module__": cls.__module__, "__doc__": cls.__doc__})
        return super().__new__(mixed)

    def __init__(
        self,
        probe: str | Sequence[str] | Int[Tensor, "*batch pos"] | Mapping[str, Any],
        every: int = 50,
        out: str | Path | None = None,
        *,
        tokenizer: Any = None,
        valid: Bool[Tensor, "batch pos"] | None = None,
        module: str = "",
        causal: bool | None = None,
        thresholds: Mapping[str, float | None] | None = None,
        on_alarm: Callable[[Alarm], object] | None = None,
        steps: int = 0,
        name: str = "Training",
        task: Task | None = None,
        weights: bool = False,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        if every < 1:
            raise ConfigError(f"every must be at least 1 step, like 50, got {every}.")
        self.probe, self.every, self.out, self.tokenizer, self.valid = probe, every, out, tokenizer, valid
        self.module, self.causal, self.on_alarm, self.steps, self.name = module, causal, on_alarm, steps, name
        self.thresholds, self.task, self.weights = thresholds_of(thresholds), task, weights
        self.trackers = tuple(trackers)
        self.record = HealthRecord()
        self.should_stop = False
        """Whether the app has requested a stop. The callbacks stop the training; your own loop should check this."""
        self._run: OutsideRun | None = None
        self._model: weakref.ref[nn.Module] | None = None
        self._n_steps = 0
        self._setting: Setting | None = None
        self._inputs: Any = None
        self._induction_inputs: Any = None
        self._keep: tuple[str, ...] = KEEP
        self._patterns: Patterns = {}
        self._layers: dict[str, int] = {}
        self._stack = ""
        self._factors: dict[str, float] = {}
        self._owners: tuple[str, ...] = ()
        self._has_adapters = False
        self._modules: Projections = []
        self._gradients: list[dict[str, float]] = []
        self._losses: list[tuple[int, Any]] = []
        self._known: set[tuple[str, str]] = set()
        self._warned: set[str] = set()
        self._last_step = -1
        self._figures = {"learning_rate": math.nan, "gradient_norm": math.nan}

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms so far."""
        return self.record.alarms

    @property
    def run(self) -> str:
        """The id of the run in the run store; "" before the first probe, or without a run store."""
        return "" if self._run is None else self._run.id

    def table(self) -> pd.DataFrame:
        """One row per step, layer and head; see `HealthRecord.table`."""
        return self.record.table()

    def layer_table(self) -> pd.DataFrame:
        """One row per step and layer; see `HealthRecord.layer_table`."""
        return self.record.layer_table()

    def loss_table(self) -> pd.DataFrame:
        """The training loss and the probe's loss by step."""
        return self.record.loss_table()

    def step(
        self,
        model: nn.Module,
        step: int,
        *,
        loss: float | Tensor | None = None,
        learning_rate: float | None = None,
        gradient_norm: float | None = None,
    ) -> list[Alarm]:
        """Record one update. Call this after `optimizer.step()` and before gradients are set to zero.

        If `step` is a multiple of `every`, the probe is read; otherwise only the loss is kept.

        Args:
            model: The model, which may be wrapped in DDP or `torch.compile`.
            step: The number of updates so far.
            loss: The training loss in nats.
            learning_rate: The learning rate of this step, for the curves.
            gradient_norm: The gradient norm before clipping, for the curves.

        Returns:
            The new alarms.
        """
        if process_rank():
            return []
        with self._guarded(step, "could not be recorded"):
            check_index("step", step, MAX_STEPS + 1)
            step = operator.index(step)
            if step < self._last_step:
                with self._guarded(step, "could not replace the record of earlier steps"):
                    self._go_back(step)
            self._last_step = step
            self.saw_loss(step, loss)
            self._saw_figures(step, learning_rate=learning_rate, gradient_norm=gradient_norm)
            return self._run_probe(model, step) if step % self.every == 0 else []
        return []

    def saw_loss(self, step: int, loss: float | Tensor | None) -> None:
        """Record a training loss. A tensor is read at the next probe, so that no step waits for the device."""
        with self._guarded(step, "has a loss that could not be recorded"):
            if isinstance(loss, Tensor) and (loss.numel() != 1 or loss.is_complex()):
                raise InputError(f"The loss must be one number, got a tensor {list(loss.shape)} of {loss.dtype}.")
            if loss is not None:
                self._losses.append((step, loss.detach().clone() if isinstance(loss, Tensor) else float(loss)))

    def _saw_figures(self, step: int, **figures: Any) -> None:
        for name, value in figures.items():
            with self._guarded(step, f"has a {name} that could not be recorded"):
                if value is not None:
                    self._figures[name] = float(value)

    def saw_gradients(self, model: nn.Module, step: int) -> None:
        """Record the gradient norms if `step` will be probed, for loops that set gradients to zero before `step` is called."""
        if step % self.every == 0 and not process_rank() and self._setting is not None:
            with self._guarded(step, "has gradients that could not be recorded"):
                self._locate_weights(self._part(model))
                self._gradients = gradient_norms(self._modules)

    def close(self, state: str = "finished") -> None:
        """End the run in the run store as "finished" or "failed". The callbacks of the libraries do this automatically."""
        if self._run is not None:
            with self._guarded(max(0, self._last_step), "is the last, but the end of the run could not be written"):
                self._run.end(state)
                write_card(self._run.store, self._run.id)

    def report(self) -> Any:
        """A view for notebooks: alarms, loss, and a map of layer × head over the steps."""
        from xformer.viz.attention_health import report  # imported here because it needs altair

        return report(
            self.record.alarms, self.table(), self.layer_table(), self.loss_table(), problems=self.record.problems
        )

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    @contextmanager
    def _guarded(self, step: int, what: str) -> Iterator[None]:
        """Turn an exception into a warning, so that the training goes on."""
        try:
            yield
        except Exception as error:  # a model, a probe, a disk or a callback may raise anything
            self._warn(step, f"{what}: {reason_of(error)}")

    def _warn(self, step: int, what: str) -> None:
        """Warn of a problem, once for all of its kind, which differ in numbers only."""
        kind = re.sub(r"\d[\d.,e+-]*", "0", what)
        if kind not in self._warned:
            self._warned.add(kind)
            sentence = f"Step {step} {what}"
            self.record.problems.append(
                (step, sentence) if isinstance(step, int) else (max(0, self._last_step), sentence)
            )
            log.warning("%s", sentence)

    def _go_back(self, step: int) -> None:
        """Forget what was recorded from a step on, as the steps are counted anew from it."""
        self._warn(step, f"follows step {self._last_step}: the record from step {step} on is replaced.")
        self.record.forget(step)
        self.record.losses[:] = [one for one in self.record.losses if one[0] < step]
        self._losses = [one for one in self._losses if one[0] < step]
        self._known -= {(alarm.rule, alarm.layer) for alarm in self.record.alarms if alarm.step >= step}
        self.record.alarms[:] = [alarm for alarm in self.record.alarms if alarm.step < step]
        if self._run is not None:
            self._run.forget(step)

    def _run_probe(self, model: nn.Module, step: int) -> list[Alarm]:
        """Read the probe, check the rules, and write the run."""
        gradients, self._gradients = self._gradients, []
        losses = self.record.losses
        losses += [(at, float(loss)) for at, loss in self._losses]
        self._losses = []
        if len(losses) > MAX_LOSSES:
            losses[: len(losses) // 2] = losses[: len(losses) // 2 : 2]
        n_problems, new, before = len(self.record.problems), [], self.record.probes[-1:]
        with self._guarded(step, "could not be probed"):
            model = self._part(model)
            with undisturbed(model):
                self._measure(model, step, gradients)
            new = self._check(step)
        if self.record.probes[-1:] != before:
            for tracker in self.trackers:
                with self._guarded(step, f"could not be reported by {type(tracker).__name__}"):
                    tracker.report(self.record, new)
        if self._run is not None:
            with self._guarded(step, "could not be written"):
                said = [*map(str, new[:3]), *(text for _, text in self.record.problems[n_problems:])]
                self._write(self._run, model, step, " ".join(said))
        return new

    def _check(self, step: int) -> list[Alarm]:
        """Check the rules, and pass on the new alarms. Probes with other layers or heads than now are not compared."""
        assert self._setting is not None
        layers = n_heads_of(self.record.probes[-1])
        probes = [probe for probe in self.record.probes if n_heads_of(probe) == layers]
        setting = replace(self._setting, has_adapters=self._has_adapters)
        state, new = TrainingHistory(probes, self.record.losses, setting), []
        for name, limit in self.thresholds.items():
            with self._guarded(step, f"could not be checked for {name}"):
                new += raised(state, {name: limit}, self._known)
        self.record.alarms += new
        for alarm in new:
            log.warning("%s", alarm)
            if self.on_alarm is not None:
                with self._guarded(step, "has an alarm that on_alarm did not accept"):
                    self.on_alarm(alarm)
        return new

    def _measure(self, model: nn.Module, step: int, gradients: list[dict[str, float]]) -> None:
        reading, patterns = self._read(model)
        layers = {self._own(path): pattern.shape[1] for path, pattern in patterns.items()}
        if layers != self._layers:
            if self._layers:
                self._warn(
                    step, "has other layers or heads than before: the measures before and after are not compared."
                )
                self._keep, self._patterns = KEEP, {}
                reading, patterns = self._read(model)
            self._begin(model, reading, patterns)
            self._layers = {self._own(path): pattern.shape[1] for path, pattern in patterns.items()}
        found = measure(reading, self._patterns, self.valid, patterns)
        if "*.q" in self._keep:
            self._factors = {self._own(path): measures["score_factor"] for path, measures in found.layers.items()}
            self._keep = tuple(glob for glob in self._keep if glob not in ("*.q", "*.k"))  # the factor is constant
        for path, measures in found.layers.items():
            measures["score_factor"] = self._factors.get(self._own(path), math.nan)
        opened = reading.adapter.opened
        self._owners = () if opened is None else tuple(opened.layout.owners)
        self._locate_weights(model)
        self._has_adapters |= hasattr(model, "peft_config")  # their gradients are compared after a merge as well
        for at, norms in zip(found.layers, gradients or gradient_norms(self._modules), strict=False):
            found.layers[at].update(norms)
        masks = reading.trace.activations
        planes = {self._own(path): picture(one, masks.get(f"{path}.mask")) for path, one in patterns.items()}
        loss = own_loss = math.nan
        if self._setting is not None and self._setting.n_outputs:
            stack = LayerPath.parse([*patterns][-1]).stack
            loss, own_loss = losses_of(reading.logits, reading.trace.read_by(stack), self._valid(reading))
        bad, note = first_bad(reading, self._valid(reading)) or ("", "")
        note, note_layer = note.replace(bad, self._own(bad)) if bad else "", self._layer_of(bad) if bad else None
        leak = self._leak(model, reading, patterns)
        del reading, patterns, masks  # frees the activations, the largest part of the memory, before another run
        if self._induction_inputs is not None:
            with self._guarded(step, "could not be probed for induction"):
                inputs = on_device(self._induction_inputs, model)
                for path, scores in induction(read(model, inputs, keep=("*.pattern",))).items():
                    found.heads[path]["induction"] = scores
        self._patterns = found.patterns
        heads = {
            self._own(path): {name: values.numpy(force=True) for name, values in measures.items()}
            for path, measures in found.heads.items()
        }
        of_layers = {self._own(path): measures for path, measures in found.layers.items()}
        probe = Measurement(step, heads, of_layers, loss, note, note_layer, own_loss, leak)
        with self._guarded(step, "could not be written"):
            self.record.add(probe, planes)

    def _own(self, path: str) -> str:
        """The path of a layer or activation in the record: a causal model is a decoder, also where its mask leaks."""
        return re.sub("^encoder", self._stack, path) if self._stack else path

    def _locate_weights(self, model: nn.Module) -> None:
        """Find the weight matrices of attention again, as a training may replace them."""
        modules = attention_modules(model, self._owners)
        self._modules = modules if len(modules) == len(self._layers) else []

    def _leak(self, model: nn.Module, reading: Reading, patterns: Patterns) -> tuple[str, str, float] | None:
        """The layer and name of the first activation at earlier positions that later tokens change, and by which share."""
        if self._setting is None or not any(self._setting.is_causal.values()):
            return None
        *_, last = patterns
        stack, other = LayerPath.parse(last).stack, with_other_ending(reading)
        if other is None:
            return None
        keep = [reading.adapter.output_name]
        keep += ["*.resid_post"] if any(name.endswith(".resid_post") for name in reading.trace.activations) else []
        dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
        compare = lambda one, two: first_change(one, two, stack, self._valid(reading), 10 * torch.finfo(dtype).eps)  # noqa: E731
        run = reading.trace
        if isinstance(patterns[last], LongPattern):  # sums are rounded in other places
            run = reading.adapter.record(reading.example, keep=keep)
        found = compare(run, reading.adapter.record(other, keep=keep))
        if found is None:
            return None
        with suppress(Exception):  # all activations may need too much memory; the kept ones then tell
            found = compare(reading.adapter.record(reading.example), reading.adapter.record(other)) or found
        name, share = found
        return self._layer_of(name), self._own(name), share

    def _valid(self, reading: Reading) -> Tensor | None:
        """Which positions of the last stack are tokens; None if all are."""
        trace = reading.trace
        return (self.valid if trace.valid is None else trace.valid) if trace.target is None else trace.target_valid

    def _layer_of(self, name: str) -> str:
        """The path of the layer that computes an activation; "" for the embedding, the final norm and the output."""
        if site := LayerPath.find(name):
            return self._own(site.path)
        block, _, what = self._own(name).rpartition(".")
        own = [path for path in self._layers if path.startswith(f"{block}.")]
        if not own or what == "resid_pre":
            return ""
        return f"{block}.ffn" if what == "resid_post" else own[-1 if what == "resid_cross" else 0]

    def _read(self, model: nn.Module) -> tuple[Reading, Patterns]:
        """Read the probe. The first time, this determines which activations of `KEEP` the model has."""
        self._inputs = prepared(self.probe, model, self.tokenizer) if self._inputs is None else self._inputs
        inputs = on_device(self._inputs, model)
        for _ in range(2):
            try:
                if (long := read_long(model, inputs, self.valid)) is not None:
                    return long
                break
            except ChangedLayoutError:  # the model calls other layers than when it was opened
                cache_of(model).found = {}
            except InputError:  # the reason is found below
                break
        reading = self._read_whole(model, inputs)
        return reading, {path: pattern.float() for path, pattern in reading.trace.patterns().items()}

    def _read_whole(self, model: nn.Module, inputs: Any) -> Reading:
        """Read the probe with the whole patterns."""
        try:
            return read(model, inputs, keep=self._keep)
        except ChangedLayoutError:  # the model calls other layers than when it was opened
            cache_of(model).found = {}
        except EditError:
            pass
        except InputError as error:
            if (gap := gap_between_runs(model, inputs)) > 0:
                what = f"two runs of {type(model).__name__} in eval mode differ by {gap:.2g}"
                raise InputError(f"Its outputs are random: {what}. Is dropout left on?") from error
            raise
        found = []
        for glob in KEEP:
            with suppress(EditError):
                read(model, inputs, keep=(glob,))
                found.append(glob)
        self._keep = tuple(found)
        return read(model, inputs, keep=self._keep)

    def _begin(self, model: nn.Module, reading: Reading, patterns: Patterns) -> None:
        """Determine the properties of the model that the rules need, at the first probe, and start the run."""
        trace, config = reading.trace, getattr(model, "config", None)
        sites = [LayerPath.parse(path) for path in patterns]
        own = [site for site in sites if not site.is_cross]
        last = own[-1].stack if own else "decoder"
        is_causal = self.causal
        if is_causal is None and (is_causal := is_declared_causal(model)) is None:
            is_causal = looks_causal([site for site in own if site.stack == last], patterns, trace.activations)
        is_renamed = is_causal and len({site.stack for site in sites}) == 1 and not isinstance(model, Transformer)
        self._stack = "decoder" if is_renamed else ""
        causal = {self._own(site.path): is_causal and site.stack == last for site in own}
        queries = {path: one.kept.q for path, one in patterns.items() if isinstance(one, LongPattern)} or {
            path: trace[f"{path}.q"] for path in patterns if f"{path}.q" in trace
        }
        d_head = {self._own(path): q.shape[-1] for path, q in queries.items()}
        logits, ids = trace.activations.get("logits"), trace.read_by(last)
        is_text = any(causal.values()) and logits is not None and logits.shape[:2] == ids.shape
        n_outputs = logits.shape[-1] if is_text and logits is not None and int(ids.max()) < logits.shape[-1] else 0
        self._setting = Setting(causal, d_head, n_outputs, has_own_scale(config))
        self._induction_inputs = repeated(reading) if n_outputs and trace.target is None else None
        self.record.tokens = tuple(reading.tokens)
        self.record.target = () if trace.target is None else tuple(reading.tokens_of("decoder"))
        if self.out is not None and self._run is None:
            try:
                self._start(reading, model)
            except Exception as error:
                self._warn(
                    self._last_step, f"could not be written to {self.out}: {reason_of(error)} The record is in memory."
                )
                self._run = self.out = self.record.folder = None

    def _start(self, reading: Reading, model: nn.Module) -> None:
        """Add a run to the run store."""
        assert self.out is not None
        settings = settings_of(
            reading.adapter.shape, model, self.task, name=self.name, steps=self.steps, every=self.every
        )
        if self._stack:
            settings = replace(settings, model=settings.model.replace(architecture=self._stack, causal=True))
        self._run = OutsideRun(RunStore(self.out), settings)
        self.record.folder = self._run.folder
        self.record.write_words()  # before the run is listed, so that the app recognizes it as one with a record
        self._run.start()
        write_card(self._run.store, self._run.id)
        self._n_steps = settings.train.steps

    def _write(self, run: OutsideRun, model: nn.Module, step: int, note: str) -> None:
        """Write the latest probe to the run store. Values that are not finite are left out."""
        self.should_stop |= "stop" in run.take_commands()
        self.record.write_words()
        self._n_steps = max(self._n_steps, step)
        now = next((probe for probe in self.record.probes[-1:] if probe.step == step), Measurement(step, {}, {}))
        recent = [loss for _, loss in self.record.losses[-self.every :]]
        figures = self._figures | {"loss": float(np.mean(recent)) if recent else math.nan, "held_out_loss": now.loss}
        known = {name: value for name, value in (figures | summary(now.heads)).items() if math.isfinite(value)}
        live = {name: known[name] for name in ("loss", "gradient_norm", "learning_rate") if name in known}
        row = known | {"step": step, "steps": self._n_steps, "seconds": run.seconds, "scores": now.induction}
        row |= {"note": note, "done": False}
        run.write(row, live | {"steps_per_second": step / max(1e-9, row["seconds"])})
        if self.weights:
            if isinstance(model, Transformer):
                save(Checkpoint(model, self.task), snapshot_file(run.folder, step))
            elif hasattr(model, "save_pretrained"):
                model.save_pretrained(run.folder / "weights" / f"{step:06d}")  # type: ignore[operator]

    def _part(self, model: nn.Module) -> nn.Module:
        """The submodule that reads the probe, without wrappers.

        Raises `UnavailableError` for sharded parameters, and `InputError` for a second model.
        """
        model = unwrapped(model)
        lightning = _imported("lightning.pytorch") or _imported("pytorch_lightning")
        if self.module:
            model = unwrapped(model.get_submodule(self.module))
        elif lightning is not None and isinstance(model, lightning.LightningModule):
            parts = [part for part in model.children() if next(part.parameters(), None) is not None]
            model = unwrapped(parts[0]) if len(parts) == 1 else model
        first = None if self._model is None else self._model()
        if first is not None and first is not model:
            raise InputError(
                f"This is not the {type(first).__name__} of the first step; use one AttentionHealth per model."
            )
        self._model = weakref.ref(model)
        return model

    # Transformers

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Probe the model before its first step."""
        if self.tokenizer is None:
            self.tokenizer = kwargs.get("processing_class")
        self.steps = self.steps or max(0, int(state.max_steps))
        self.step(kwargs["model"], state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the gradient norms if this step will be probed."""
        self.saw_gradients(kwargs["model"], state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record an update, and stop the training if the app has requested it."""
        self.step(kwargs["model"], state.global_step)
        control.should_training_stop = control.should_training_stop or self.should_stop

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record the logged loss, learning rate and gradient norm."""
        logs = logs or {}
        self.saw_loss(state.global_step, logs.get("loss"))
        figures = {"learning_rate": logs.get("learning_rate"), "gradient_norm": logs.get("grad_norm")}
        self._saw_figures(state.global_step, **figures)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """End the run. Called by Transformers (args, state, control) and by Lightning (trainer, pl_module)."""
        self.close()

    # Lightning

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Probe the model before its first step."""
        with self._guarded(0, "has an unknown number of steps to come"):
            n = trainer.estimated_stepping_batches
            self.steps = self.steps or (max(0, int(n)) if math.isfinite(n) else 0)
        self.step(pl_module, trainer.global_step)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Record the gradient norms if this step will be probed."""
        self._saw_figures(trainer.global_step, learning_rate=optimizer.param_groups[0].get("lr"))
        self.saw_gradients(pl_module, trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record an update, and stop the training if the app has requested it."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        step = trainer.global_step
        if step == self._last_step:
            return  # gradients are still accumulated
        self.step(pl_module, step, loss=loss if isinstance(loss, Tensor) else None)
        trainer.should_stop = trainer.should_stop or self.should_stop

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run as failed."""
        self.close("failed")


def _callback_classes() -> tuple[type, ...]:
    names = {"transformers": "TrainerCallback", "lightning.pytorch": "Callback", "pytorch_lightning": "Callback"}
    return tuple(getattr(library, of) for name, of in names.items() if (library := _imported(name)) is not None)


def _imported(name: str) -> Any:
    """A library if it is imported already, else None, as importing it here would take seconds."""
    return sys.modules.get(name)
