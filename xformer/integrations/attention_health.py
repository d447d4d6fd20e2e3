"""Watch the attention of any model while any program trains it.

    health = AttentionHealth(ids, every=50)
    Trainer(model, args, callbacks=[health])                  Transformers
    lightning.Trainer(callbacks=[health])                     Lightning
    health.step(model, step, loss=loss)                       your own loop, once after each update
    health.table(), health.alarms, health.report()

A small fixed batch, the probe, is read every so many steps, in eval mode and without gradients. Mode, random state, hooks,
gradients and the attention backend are restored: the training is bit-identical with and without it.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from xformer.adapters.attachment import left_as_found, on_device, unwrapped
from xformer.analysis.attention_health import KEEP, Projections, attention_modules, gradient_norms, induction, measure
from xformer.checkpoints import Checkpoint, save
from xformer.errors import ConfigError, EditError, InputError, XformerError
from xformer.files import snapshot_file
from xformer.integrations.health_alarms import Alarm, Probe, Setting, State, raised, thresholds_of
from xformer.integrations.health_archive import write_card
from xformer.integrations.health_record import HealthRecord, OutsideRun, settings_of, summary
from xformer.model import Transformer
from xformer.reading import Reading, read
from xformer.site import Site
from xformer.tasks import Task
from xformer.trace import first_nan
from xformer.training.run_store import RunStore
from xformer.viz.packing import plane

log = logging.getLogger("xformer.health")
INDUCTION_LENGTH = 16
"""The tokens of the sequence that stands twice in the induction probe."""
MOST_LOSSES = 20_000
"""The most losses in memory; then every second of the older half is dropped."""
OWN_SCALE = ("relative_attention_num_buckets", "query_pre_attn_scalar", "attention_multiplier")
"""Settings of families whose scores have another factor than 1/√d_head (T5, Gemma, Granite)."""


class AttentionHealth:
    """Records how healthy the attention of a model in training is, and raises alarms.

    One object is a `TrainerCallback` of Transformers, a `Callback` of Lightning (import the library before you make it), and
    serves any other loop by `step`.

    Args:
        probe: A small fixed batch: text or a list of texts (with a tokenizer), token ids [pos] or [batch, pos], or the model's
            arguments by name. 64 tokens are enough.
        every: Steps between two probes. Step 0 is probed too, if it is seen.
        out: A folder of runs, for example "checkpoints/runs": the training becomes a run there that the app shows live. None
            keeps the record in memory.
        tokenizer: Cuts a text; the Trainer's own by default.
        valid: True where the probe has a token [batch, pos], for a module that reads padding by a name of its own.
        module: The name of the part that reads the probe ("model"); "" is the whole module, or the one child of a
            LightningModule that has parameters.
        causal: Whether an output may depend on earlier tokens only; None takes it from the model's class, or from the first
            probe.
        thresholds: Other thresholds by the name of the rule, None for none; see `health_alarms.RULES`.
        on_alarm: Called with each new alarm, which is also logged as a warning of the logger "xformer.health".
        steps: The number of steps of the whole training, for the progress bar; the Trainer's by default.
        name: The name of the run.
        task: The task of one of our models, which then gets the pictures of our own runs.
        weights: Whether to keep the weights at every probe: a checkpoint of ours, or `save_pretrained`.

    Raises:
        ConfigError: A setting breaks a rule.

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
        """An instance that also inherits from the callbacks of the libraries that are imported already."""
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
    ) -> None:
        if every < 1:
            raise ConfigError(f"every must be 1 step or more, got {every}; for example 50.")
        self.probe, self.every, self.out, self.tokenizer, self.valid = probe, every, out, tokenizer, valid
        self.module, self.causal, self.on_alarm, self.steps, self.name = module, causal, on_alarm, steps, name
        self.thresholds, self.task, self.weights = thresholds_of(thresholds), task, weights
        self.record = HealthRecord()
        self.should_stop = False
        """Whether the app asks the training to stop; the callbacks obey, and your own loop may."""
        self._run: OutsideRun | None = None
        self._n_steps = 0
        self._setting: Setting | None = None
        self._inputs: Any = None
        self._twice: Any = None
        self._keep: tuple[str, ...] = KEEP
        self._patterns: dict[str, Tensor] = {}
        self._modules: Projections = []
        self._gradients: list[dict[str, float]] = []
        self._losses: list[tuple[int, Any]] = []
        self._known: set[tuple[str, str]] = set()
        self._last_step = -1
        self._figures = {"learning_rate": math.nan, "gradient_norm": math.nan}

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms so far."""
        return self.record.alarms

    @property
    def run(self) -> str:
        """The id of the run in the run store; "" before the first probe, or without one."""
        return "" if self._run is None else self._run.id

    def table(self) -> pd.DataFrame:
        """One row per step, layer and head; see `HealthRecord.table`."""
        return self.record.table()

    def layer_table(self) -> pd.DataFrame:
        """One row per step and layer; see `HealthRecord.layer_table`."""
        return self.record.layer_table()

    def loss_table(self) -> pd.DataFrame:
        """Training and probe loss by step."""
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
        """Tell it of one update; call it after `optimizer.step()` and before the gradients are set to zero.

        Every `every` steps the probe is read; other calls only keep the loss.

        Args:
            model: The model, also within DDP or `torch.compile`.
            step: The number of updates so far.
            loss: The training loss in nats.
            learning_rate: Of this step, for the curves.
            gradient_norm: Before clipping.

        Returns:
            The new alarms.

        Raises:
            UnavailableError: The parameters are sharded (FSDP).
            InputError: The attention of the model cannot be read with this probe; at the first probe only.
        """
        if _rank():
            return []
        self._last_step = step
        self.saw_loss(step, loss)
        for name, value in (("learning_rate", learning_rate), ("gradient_norm", gradient_norm)):
            if value is not None:
                self._figures[name] = float(value)
        return self._look(model, step) if step % self.every == 0 else []

    def saw_loss(self, step: int, loss: float | Tensor | None) -> None:
        """Keep a training loss; a tensor is read at the next probe, so that no step waits for the device."""
        if loss is not None:
            self._losses.append((step, loss.detach().clone() if isinstance(loss, Tensor) else loss))

    def saw_gradients(self, model: nn.Module, step: int) -> None:
        """Keep the gradient norms if `step` is probed, for loops that set gradients to zero before `step` is called."""
        if step % self.every == 0 and not _rank() and self._setting is not None:
            self._gradients = gradient_norms(self._modules)

    def close(self, state: str = "finished") -> None:
        """End the run in the run store; the callbacks do it by themselves. `state` is "finished" or "failed"."""
        if self._run is not None:
            self._run.leave(state)
            write_card(self._run.store, self._run.id)

    def report(self) -> Any:
        """A view for a notebook: alarms, loss, and a map of layer × head over the steps."""
        from xformer.viz.attention_health import report  # only here: it needs altair

        return report(self.record.alarms, self.table(), self.layer_table(), self.loss_table())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _look(self, model: nn.Module, step: int) -> list[Alarm]:
        """Read the probe and check the rules."""
        read_model = self._part(model)
        gradients, self._gradients = self._gradients, []
        try:
            with undisturbed(read_model):
                self._measured(read_model, step, gradients)
        except (XformerError, RuntimeError) as error:
            if not self.record.probes or isinstance(error, torch.OutOfMemoryError):
                raise
            log.warning("Step %d could not be probed: %s", step, error)
            return []
        losses = self.record.losses
        losses += [(step, float(loss)) for step, loss in self._losses]
        self._losses = []
        if len(losses) > MOST_LOSSES:
            losses[: len(losses) // 2] = losses[: len(losses) // 2 : 2]
        assert self._setting is not None
        new = raised(State(self.record.probes, self.record.losses, self._setting), self.thresholds, self._known)
        self.record.alarms += new
        for alarm in new:
            log.warning("%s", alarm)
            if self.on_alarm is not None:
                self.on_alarm(alarm)
        if self._run is not None:
            self._write(self._run, read_model, step, new)
        return new

    def _measured(self, model: nn.Module, step: int, gradients: list[dict[str, float]]) -> None:
        reading = self._read(model)
        found = measure(reading, self._patterns, self.valid)
        if self._setting is None:
            self._begin(model, reading, found.heads)
            self._keep = tuple(glob for glob in self._keep if glob not in ("*.q", "*.k"))  # the factor stays
        else:
            for path, of in self.record.probes[0].layers.items():
                found.layers[path]["score_factor"] = of["score_factor"]
        for at, norms in zip(found.layers, gradients or gradient_norms(self._modules), strict=False):
            found.layers[at].update(norms)
        masks = reading.trace.activations
        planes = {
            path: plane(one[0].numpy(force=True), _allowed(masks.get(f"{path}.mask"), one))
            for path, one in found.patterns.items()
        }
        bad = any(not bool(of["entropy_p50"].isfinite().all()) for of in found.heads.values())
        note, loss = first_nan(dict(masks)) if bad else "", self._probe_loss(reading)
        del reading, masks  # its activations are the most memory of a look, and another run follows
        if self._twice is not None:
            for path, scores in induction(read(model, on_device(self._twice, model), keep=("*.pattern",))).items():
                found.heads[path]["induction"] = scores
        self._patterns = found.patterns
        heads = {path: {name: of.numpy(force=True) for name, of in ones.items()} for path, ones in found.heads.items()}
        self.record.add(Probe(step, heads, found.layers, loss, note), planes)

    def _read(self, model: nn.Module) -> Reading:
        """The reading of the probe; at the first one it is found out what the model has of `KEEP`."""
        if self._inputs is None:
            self._inputs = _prepared(self.probe, model, self.tokenizer)
        inputs = on_device(self._inputs, model)
        try:
            return read(model, inputs, keep=self._keep)
        except EditError:
            if self._setting is not None:
                raise
        there = []
        for glob in KEEP:
            try:
                read(model, inputs, keep=(glob,))
                there.append(glob)
            except EditError:
                continue
        self._keep = tuple(there)
        return read(model, inputs, keep=self._keep)

    def _begin(self, model: nn.Module, reading: Reading, heads: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Find out, at the first probe, what the rules must know about the model, and start the run."""
        trace, opened = reading.trace, getattr(reading.subject, "opened", None)
        config = getattr(model, "config", None)
        future = {path: float(of["future"].max()) for path, of in heads.items()}
        own = [Site.parse(path) for path in heads if not Site.parse(path).is_cross]
        last = own[-1].stack if own else "decoder"
        is_causal = _declared_causal(model) if self.causal is None else self.causal
        if is_causal is None:
            is_causal = all(future[site.path] <= 0 for site in own if site.stack == last)
        causal = {site.path: is_causal and site.stack == last for site in own}
        d_head = {path: trace[f"{path}.q"].shape[-1] for path in heads if f"{path}.q" in trace}
        named = any(getattr(config, setting, None) for setting in OWN_SCALE)
        named |= getattr(config, "model_type", "") == "gpt_neo" or not getattr(config, "scale_attn_weights", True)
        logits = trace.activations.get("logits")
        is_text = any(causal.values()) and logits is not None and logits.shape[:2] == trace.read_by(last).shape
        self._setting = Setting(
            causal,
            d_head,
            logits.shape[-1] if is_text and logits is not None else 0,
            named,
            hasattr(model, "peft_config"),
        )
        modules = attention_modules(model, () if opened is None else tuple(opened.layout.owners))
        self._modules = modules if len(modules) == len(heads) else []
        if is_text and trace.target is None:
            self._twice = _repeated(reading)
        self.record.tokens = tuple(reading.tokens)
        self.record.target = () if trace.target is None else tuple(reading.tokens_of("decoder"))
        if self.out is not None:
            settings = settings_of(
                reading.subject.shape, model, self.task, name=self.name, steps=self.steps, every=self.every
            )
            self._run = OutsideRun(RunStore(self.out), settings)
            self.record.folder = self._run.folder
            self.record.write_words()  # before it is listed as running: the app takes it for a run with a record
            self._run.start()
            write_card(self._run.store, self._run.id)
            self._n_steps = settings.train.steps

    def _probe_loss(self, reading: Reading) -> float:
        """The mean cross-entropy of the probe's next tokens, in nats; NaN where the model predicts none."""
        if self._setting is None or not self._setting.n_outputs:
            return math.nan
        stack = list(self._setting.is_causal)[-1].partition(".")[0]
        tokens, logits = reading.trace.read_by(stack), reading.logits
        labels, trace = tokens[:, 1:].to(logits.device), reading.trace
        valid = trace.target_valid if stack == "decoder" and trace.target is not None else trace.valid
        if valid is not None:
            labels = labels.masked_fill(~valid[:, 1:].to(logits.device), -100)
        # Row by row, as a copy of all logits would take as much memory as the probe.
        rows = zip(logits[:, :-1], labels, strict=True)
        total = sum(float(F.cross_entropy(at.float(), of, reduction="sum")) for at, of in rows)
        return total / max(1, int((labels != -100).sum()))

    def _write(self, run: OutsideRun, model: nn.Module, step: int, new: Sequence[Alarm]) -> None:
        """Write the probe into the run of the run store; what is not finite is left out."""
        self.record.write_words()
        now, self._n_steps = self.record.probes[-1], max(self._n_steps, step)
        recent = [loss for _, loss in self.record.losses[-self.every :]]
        figures = self._figures | {"loss": float(np.mean(recent)) if recent else math.nan, "held_out_loss": now.loss}
        known = {name: value for name, value in (figures | summary(now.heads)).items() if math.isfinite(value)}
        live = {name: known[name] for name in ("loss", "gradient_norm", "learning_rate") if name in known}
        row = known | {"step": step, "steps": self._n_steps, "seconds": run.seconds, "scores": now.induction}
        row |= {"note": " ".join(map(str, new[:3])), "done": False}
        run.write(row, live | {"steps_per_second": step / max(1e-9, row["seconds"])})
        self.should_stop |= "stop" in run.take_commands()
        if self.weights:
            if isinstance(model, Transformer):
                save(Checkpoint(model, self.task), snapshot_file(run.folder, step))
            elif hasattr(model, "save_pretrained"):
                model.save_pretrained(run.folder / "weights" / f"{step:06d}")  # type: ignore[operator]

    def _part(self, model: nn.Module) -> nn.Module:
        """The module that reads the probe, without wrappers. Raises `UnavailableError` for sharded parameters."""
        model = unwrapped(model)
        if self.module:
            return unwrapped(model.get_submodule(self.module))
        lightning = _imported("lightning.pytorch") or _imported("pytorch_lightning")
        if lightning is not None and isinstance(model, lightning.LightningModule):
            parts = [part for part in model.children() if next(part.parameters(), None) is not None]
            return unwrapped(parts[0]) if len(parts) == 1 else model
        return model

    # Transformers

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Probe the model before its first step."""
        if self.tokenizer is None:
            self.tokenizer = kwargs.get("processing_class")
        self.steps = self.steps or int(state.max_steps)
        self.step(kwargs["model"], state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the gradient norms, if this step will be probed."""
        self.saw_gradients(kwargs["model"], state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Probe the model; stop the training if the app asks for it."""
        self.step(kwargs["model"], state.global_step)
        control.should_training_stop = control.should_training_stop or self.should_stop

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep the loss, the learning rate and the gradient norm as they are logged."""
        logs = logs or {}
        self.saw_loss(state.global_step, logs.get("loss"))
        for own, theirs in (("learning_rate", "learning_rate"), ("gradient_norm", "grad_norm")):
            if theirs in logs:
                self._figures[own] = float(logs[theirs])

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """End the run: of Transformers (args, state, control) and of Lightning (trainer, pl_module)."""
        self.close()

    # Lightning

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Probe the model before its first step."""
        self.steps = self.steps or max(0, int(trainer.estimated_stepping_batches))
        self.step(pl_module, trainer.global_step)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Keep the gradient norms, if this step will be probed."""
        self._figures["learning_rate"] = float(optimizer.param_groups[0]["lr"])
        self.saw_gradients(pl_module, trainer.global_step + 1)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Probe the model after an update; stop the training if the app asks for it."""
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
    """The callback classes of Transformers and Lightning, as far as the libraries are imported."""
    found: list[type] = []
    if (transformers := _imported("transformers")) is not None:
        found.append(transformers.TrainerCallback)
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if (library := _imported(name)) is not None:
            found.append(library.Callback)
    return tuple(found)


def _imported(name: str) -> Any:
    """A library that is imported already, else None: importing it here would take seconds."""
    return sys.modules.get(name)


def _rank() -> int:
    """The number of this process among those that train together; 0 where there is one."""
    is_parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if is_parallel else 0


def _allowed(mask: Tensor | None, pattern: Tensor) -> np.ndarray:
    """Where the first input's mask lets heads look [head, query, key]; everywhere without a mask."""
    return np.ones((1, 1, 1), dtype=bool) if mask is None else mask.expand(pattern.shape)[0].numpy(force=True)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run a model for a look: without gradients and autocast, uncompiled, and with the random state restored afterwards."""
    devices = {weight.device for weight in model.parameters()}
    gpus = sorted({device for device in devices if device.type == "cuda"}, key=str)
    kind = next(iter(devices)).type if devices else "cpu"
    forward = vars(model).get("forward")  # accelerate puts one with autocast in front of the class's own
    if hasattr(forward, "__wrapped__"):
        del model.forward
    no_cast = torch.autocast(kind, enabled=False)
    try:
        # Held around all reads of a look, so that the state of the model is saved once.
        with torch.random.fork_rng(devices=gpus), torch.no_grad(), no_cast, left_as_found(model):
            yield
    finally:
        if hasattr(forward, "__wrapped__"):
            vars(model)["forward"] = forward


def _prepared(probe: Any, model: nn.Module, tokenizer: Any) -> Any:
    """The probe as the inputs of `xformer.read`. Raises `InputError` for a text without a tokenizer."""
    is_own, is_transformers = isinstance(model, Transformer), hasattr(model, "main_input_name")
    texts = [probe] if isinstance(probe, str) else list(probe) if isinstance(probe, list | tuple) else []
    if texts and all(isinstance(text, str) for text in texts) and not is_own:
        if tokenizer is None:
            raise InputError(
                "A probe of text needs a tokenizer; give tokenizer=AutoTokenizer.from_pretrained(…), or ids."
            )
        probe = dict(tokenizer(texts, return_tensors="pt", padding=len(texts) > 1))
        probe = probe if is_transformers else probe["input_ids"]
    if is_own and isinstance(probe, tuple):  # source and target
        return tuple(one.flatten().tolist() if isinstance(one, Tensor) else one for one in probe)
    if isinstance(probe, Tensor) and not probe.is_floating_point():
        probe = probe[None] if probe.dim() == 1 else probe
        return {"input_ids": probe} if is_transformers else probe
    return probe


def _declared_causal(model: nn.Module) -> bool | None:
    """Whether a model says that it is causal; None for one that says nothing."""
    config: Any = getattr(model, "config", None)
    if isinstance(model, Transformer):
        return bool(config.causal)
    if hasattr(model, "main_input_name"):
        is_decoder = getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False)
        return bool(is_decoder) or type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
    return None


def _repeated(reading: Reading) -> Any:
    """A random sequence of tokens twice, [1, pos], as inputs like the probe's; None where that is too short."""
    shape = reading.subject.shape
    n = min(
        INDUCTION_LENGTH, reading.trace.tokens.shape[1] // 2, shape.n_inputs
    )  # no longer than what it is known to read
    if n < 3:
        return None
    draw = torch.Generator().manual_seed(0)
    once = torch.randperm(shape.n_inputs, generator=draw)[:n]
    ids = torch.cat([once, once])[None]
    return {"input_ids": ids} if hasattr(reading.subject, "tokenizer") else ids
