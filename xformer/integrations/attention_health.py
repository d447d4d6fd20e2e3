"""Monitor the attention of any model while any program trains it.

    health = AttentionHealth(ids, every=50)
    Trainer(model, args, callbacks=[health])                  Transformers
    lightning.Trainer(callbacks=[health])                     Lightning
    health.step(model, step, loss=loss)                       your own loop, once after each update
    health.table(), health.alarms, health.report()

A small fixed batch, the probe, is read at regular intervals, in eval mode and without gradients. Mode, random state, hooks,
gradients and the attention backend are restored, so the training is bit-identical with and without the callback.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from xformer.adapters.attachment import on_device, preserve_state, unwrapped
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
"""The length in tokens of the sequence that is repeated in the induction probe."""
MAX_LOSSES = 20_000
"""The limit on losses in memory. Beyond it, every second loss of the older half is dropped."""
OWN_SCALE = ("relative_attention_num_buckets", "query_pre_attn_scalar", "attention_multiplier")
"""Settings of families whose scores have a factor other than 1/√d_head (T5, Gemma, Granite)."""


class AttentionHealth:
    """Record the health of the attention of a model in training, and raise alarms.

    An instance is both a `TrainerCallback` of Transformers and a `Callback` of Lightning, provided that the library is imported
    before the instance is created. In other loops, call `step`.

    Args:
        probe: A small fixed batch: text or a list of texts (with a tokenizer), token ids [pos] or [batch, pos], or the model's
            arguments by name. 64 tokens are enough.
        every: The number of steps between two probes. Step 0 is probed if `step` is called for it.
        out: A folder of runs, for example "checkpoints/runs". The training becomes a run there, which the app shows live. None
            keeps the record in memory.
        tokenizer: Tokenizes a text probe; by default the Trainer's.
        valid: True for tokens and False for padding [batch, pos], if the module's padding mask has an unusual name.
        module: The path of the submodule that reads the probe ("model"). "" is the whole module, or in a LightningModule the
            only child with parameters.
        causal: Whether an output may depend on earlier tokens only. None: decide by the model's class, else by the first probe.
        thresholds: Changed thresholds by the name of the rule; None turns a rule off. See `health_alarms.RULES`.
        on_alarm: Called with each new alarm, which is also logged as a warning of the logger "xformer.health".
        steps: The number of steps of the training, for the progress bar; by default the Trainer's.
        name: The name of the run.
        task: The task of an xformer model, which enables the figures of xformer's own runs.
        weights: Whether to save the weights at every probe, as an xformer checkpoint or with `save_pretrained`.

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
    ) -> None:
        if every < 1:
            raise ConfigError(f"every must be at least 1 step, like 50, got {every}.")
        self.probe, self.every, self.out, self.tokenizer, self.valid = probe, every, out, tokenizer, valid
        self.module, self.causal, self.on_alarm, self.steps, self.name = module, causal, on_alarm, steps, name
        self.thresholds, self.task, self.weights = thresholds_of(thresholds), task, weights
        self.record = HealthRecord()
        self.should_stop = False
        """Whether the app has requested a stop. The callbacks stop the training; your own loop should check this."""
        self._run: OutsideRun | None = None
        self._n_steps = 0
        self._setting: Setting | None = None
        self._inputs: Any = None
        self._induction_inputs: Any = None
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

        Raises:
            UnavailableError: The parameters are sharded (FSDP).
            InputError: The model's attention cannot be read with this probe. Raised at the first probe only.
        """
        if _rank():
            return []
        self._last_step = step
        self.saw_loss(step, loss)
        for name, value in (("learning_rate", learning_rate), ("gradient_norm", gradient_norm)):
            if value is not None:
                self._figures[name] = float(value)
        return self._run_probe(model, step) if step % self.every == 0 else []

    def saw_loss(self, step: int, loss: float | Tensor | None) -> None:
        """Record a training loss. A tensor is read at the next probe, so that no step waits for the device."""
        if loss is not None:
            self._losses.append((step, loss.detach().clone() if isinstance(loss, Tensor) else loss))

    def saw_gradients(self, model: nn.Module, step: int) -> None:
        """Record the gradient norms if `step` will be probed, for loops that set gradients to zero before `step` is called."""
        if step % self.every == 0 and not _rank() and self._setting is not None:
            self._gradients = gradient_norms(self._modules)

    def close(self, state: str = "finished") -> None:
        """End the run in the run store as "finished" or "failed". The callbacks of the libraries do this automatically."""
        if self._run is not None:
            self._run.end(state)
            write_card(self._run.store, self._run.id)

    def report(self) -> Any:
        """A view for notebooks: alarms, loss, and a map of layer × head over the steps."""
        from xformer.viz.attention_health import report  # imported here because it needs altair

        return report(self.record.alarms, self.table(), self.layer_table(), self.loss_table())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def _run_probe(self, model: nn.Module, step: int) -> list[Alarm]:
        """Read the probe and check the rules."""
        read_model = self._part(model)
        gradients, self._gradients = self._gradients, []
        try:
            with undisturbed(read_model):
                self._measure(read_model, step, gradients)
        except (XformerError, RuntimeError) as error:
            if not self.record.probes or isinstance(error, torch.OutOfMemoryError):
                raise
            log.warning("Step %d could not be probed: %s", step, error)
            return []
        losses = self.record.losses
        losses += [(step, float(loss)) for step, loss in self._losses]
        self._losses = []
        if len(losses) > MAX_LOSSES:
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

    def _measure(self, model: nn.Module, step: int, gradients: list[dict[str, float]]) -> None:
        reading = self._read(model)
        found = measure(reading, self._patterns, self.valid)
        if self._setting is None:
            self._begin(model, reading, found.heads)
            self._keep = tuple(glob for glob in self._keep if glob not in ("*.q", "*.k"))  # the factor is constant
        else:
            for path, measures in self.record.probes[0].layers.items():
                found.layers[path]["score_factor"] = measures["score_factor"]
        for at, norms in zip(found.layers, gradients or gradient_norms(self._modules), strict=False):
            found.layers[at].update(norms)
        masks = reading.trace.activations
        planes = {
            path: plane(one[0].numpy(force=True), _allowed(masks.get(f"{path}.mask"), one))
            for path, one in found.patterns.items()
        }
        bad = any(not bool(measures["entropy_p50"].isfinite().all()) for measures in found.heads.values())
        note, loss = first_nan(dict(masks)) if bad else "", self._probe_loss(reading)
        del reading, masks  # frees the activations, the largest part of the memory, before another run
        if self._induction_inputs is not None:
            inputs = on_device(self._induction_inputs, model)
            for path, scores in induction(read(model, inputs, keep=("*.pattern",))).items():
                found.heads[path]["induction"] = scores
        self._patterns = found.patterns
        heads = {
            path: {name: values.numpy(force=True) for name, values in measures.items()}
            for path, measures in found.heads.items()
        }
        self.record.add(Probe(step, heads, found.layers, loss, note), planes)

    def _read(self, model: nn.Module) -> Reading:
        """Read the probe. The first time, this determines which activations of `KEEP` the model has."""
        if self._inputs is None:
            self._inputs = _prepared(self.probe, model, self.tokenizer)
        inputs = on_device(self._inputs, model)
        try:
            return read(model, inputs, keep=self._keep)
        except EditError:
            if self._setting is not None:
                raise
        found = []
        for glob in KEEP:
            with suppress(EditError):
                read(model, inputs, keep=(glob,))
                found.append(glob)
        self._keep = tuple(found)
        return read(model, inputs, keep=self._keep)

    def _begin(self, model: nn.Module, reading: Reading, heads: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Determine the properties of the model that the rules need, at the first probe, and start the run."""
        trace, opened = reading.trace, getattr(reading.subject, "opened", None)
        config = getattr(model, "config", None)
        future = {path: float(measures["future"].max()) for path, measures in heads.items()}
        own = [Site.parse(path) for path in heads if not Site.parse(path).is_cross]
        last = own[-1].stack if own else "decoder"
        is_causal = _declared_causal(model) if self.causal is None else self.causal
        if is_causal is None:
            is_causal = all(future[site.path] <= 0 for site in own if site.stack == last)
        causal = {site.path: is_causal and site.stack == last for site in own}
        d_head = {path: trace[f"{path}.q"].shape[-1] for path in heads if f"{path}.q" in trace}
        has_own_scale = any(getattr(config, setting, None) for setting in OWN_SCALE)
        has_own_scale |= getattr(config, "model_type", "") == "gpt_neo"
        has_own_scale |= not getattr(config, "scale_attn_weights", True)
        logits = trace.activations.get("logits")
        is_text = any(causal.values()) and logits is not None and logits.shape[:2] == trace.read_by(last).shape
        n_outputs = logits.shape[-1] if is_text and logits is not None else 0
        self._setting = Setting(causal, d_head, n_outputs, has_own_scale, hasattr(model, "peft_config"))
        modules = attention_modules(model, () if opened is None else tuple(opened.layout.owners))
        self._modules = modules if len(modules) == len(heads) else []
        if is_text and trace.target is None:
            self._induction_inputs = _repeated(reading)
        self.record.tokens = tuple(reading.tokens)
        self.record.target = () if trace.target is None else tuple(reading.tokens_of("decoder"))
        if self.out is not None:
            shape = reading.subject.shape
            settings = settings_of(shape, model, self.task, name=self.name, steps=self.steps, every=self.every)
            self._run = OutsideRun(RunStore(self.out), settings)
            self.record.folder = self._run.folder
            self.record.write_words()  # before the run is listed, so that the app recognizes it as one with a record
            self._run.start()
            write_card(self._run.store, self._run.id)
            self._n_steps = settings.train.steps

    def _probe_loss(self, reading: Reading) -> float:
        """The mean cross-entropy of the probe's next tokens, in nats; NaN if the model does not predict them."""
        if self._setting is None or not self._setting.n_outputs:
            return math.nan
        stack = list(self._setting.is_causal)[-1].partition(".")[0]
        tokens, logits = reading.trace.read_by(stack), reading.logits
        labels, trace = tokens[:, 1:].to(logits.device), reading.trace
        valid = trace.target_valid if stack == "decoder" and trace.target is not None else trace.valid
        if valid is not None:
            labels = labels.masked_fill(~valid[:, 1:].to(logits.device), -100)
        # Row by row, as a float32 copy of all logits could take as much memory as the rest of the probe.
        rows = zip(logits[:, :-1], labels, strict=True)
        total = sum(float(F.cross_entropy(row.float(), label, reduction="sum")) for row, label in rows)
        return total / max(1, int((labels != -100).sum()))

    def _write(self, run: OutsideRun, model: nn.Module, step: int, new: Sequence[Alarm]) -> None:
        """Write the latest probe to the run store. Values that are not finite are left out."""
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
        """The submodule that reads the probe, without wrappers. Raises `UnavailableError` for sharded parameters."""
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
        for own, theirs in (("learning_rate", "learning_rate"), ("gradient_norm", "grad_norm")):
            if theirs in logs:
                self._figures[own] = float(logs[theirs])

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """End the run. Called by Transformers (args, state, control) and by Lightning (trainer, pl_module)."""
        self.close()

    # Lightning

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Probe the model before its first step."""
        self.steps = self.steps or max(0, int(trainer.estimated_stepping_batches))
        self.step(pl_module, trainer.global_step)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Record the gradient norms if this step will be probed."""
        self._figures["learning_rate"] = float(optimizer.param_groups[0]["lr"])
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
    """The callback classes of Transformers and Lightning, for the libraries that are imported."""
    names = {"transformers": "TrainerCallback", "lightning.pytorch": "Callback", "pytorch_lightning": "Callback"}
    return tuple(getattr(library, of) for name, of in names.items() if (library := _imported(name)) is not None)


def _imported(name: str) -> Any:
    """A library if it is imported already, else None, as importing it here would take seconds."""
    return sys.modules.get(name)


def _rank() -> int:
    """The rank of this process in distributed training; 0 if it trains alone."""
    is_parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if is_parallel else 0


def _allowed(mask: Tensor | None, pattern: Tensor) -> np.ndarray:
    """The allowed cells of the first input's mask [head, query, key]; all cells without a mask."""
    return np.ones((1, 1, 1), dtype=bool) if mask is None else mask.expand(pattern.shape)[0].numpy(force=True)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run a model without gradients, autocast and compilation, and restore the random state afterwards."""
    devices = {weight.device for weight in model.parameters()}
    gpus = sorted({device for device in devices if device.type == "cuda"}, key=str)
    kind = next(iter(devices)).type if devices else "cpu"
    forward = vars(model).get("forward")  # accelerate wraps the method in autocast
    if hasattr(forward, "__wrapped__"):
        del model.forward
    no_cast = torch.autocast(kind, enabled=False)
    try:
        # Around all reads of a probe, so that the state of the model is saved only once.
        with torch.random.fork_rng(devices=gpus), torch.no_grad(), no_cast, preserve_state(model):
            yield
    finally:
        if hasattr(forward, "__wrapped__"):
            vars(model)["forward"] = forward


def _prepared(probe: Any, model: nn.Module, tokenizer: Any) -> Any:
    """Convert the probe to inputs of `xformer.read`. Raises `InputError` for text without a tokenizer."""
    is_own, is_transformers = isinstance(model, Transformer), hasattr(model, "main_input_name")
    texts = [probe] if isinstance(probe, str) else list(probe) if isinstance(probe, list | tuple) else []
    if texts and all(isinstance(text, str) for text in texts) and not is_own:
        if tokenizer is None:
            raise InputError("A text probe needs a tokenizer; pass tokenizer=AutoTokenizer.from_pretrained(…) or ids.")
        probe = dict(tokenizer(texts, return_tensors="pt", padding=len(texts) > 1))
        probe = probe if is_transformers else probe["input_ids"]
    if is_own and isinstance(probe, tuple):  # source and target
        return tuple(one.flatten().tolist() if isinstance(one, Tensor) else one for one in probe)
    if isinstance(probe, Tensor) and not probe.is_floating_point():
        probe = probe[None] if probe.dim() == 1 else probe
        return {"input_ids": probe} if is_transformers else probe
    return probe


def _declared_causal(model: nn.Module) -> bool | None:
    """Whether a model's class or configuration declares it causal; None if it declares nothing."""
    config: Any = getattr(model, "config", None)
    if isinstance(model, Transformer):
        return bool(config.causal)
    if hasattr(model, "main_input_name"):
        is_decoder = getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False)
        return bool(is_decoder) or type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
    return None


def _repeated(reading: Reading) -> Any:
    """A random token sequence repeated once, [1, pos], as inputs for the model; None if it would be too short."""
    shape = reading.subject.shape
    # No longer than the probe, which the model is known to read.
    n = min(INDUCTION_LENGTH, reading.trace.tokens.shape[1] // 2, shape.n_inputs)
    if n < 3:
        return None
    draw = torch.Generator().manual_seed(0)
    once = torch.randperm(shape.n_inputs, generator=draw)[:n]
    ids = torch.cat([once, once])[None]
    return {"input_ids": ids} if hasattr(reading.subject, "tokenizer") else ids
