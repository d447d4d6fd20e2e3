"""Cost of `AttentionHealth` per training step, and accuracy of its alarms on healthy runs and induced failures.

    python benchmarks/health.py --part cost --hidden 576 --layers 30     size of SmolLM2-135M, every=50, 64 probe tokens
    python benchmarks/health.py --part healthy                           20 runs that should raise no alarm
    python benchmarks/health.py --part failures                          10 failures to detect before the loss diverges

Healthy runs are presets, small GPTs on tinyshakespeare (`--text`), and tiny Llamas in the Trainer of Transformers. A
failure counts as detected if an alarm that names its cause is raised before the loss diverges, i.e. becomes non-finite or
stays 20 % above the first losses for 20 steps.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Machine, in_turns, options, show
from tests.integrations.faulty_gpt import GPT
from xformer.integrations import AttentionHealth
from xformer.integrations.health_alarms import Alarm
from xformer.presets import preset
from xformer.tasks import Task
from xformer.training.loop import Run

EVERY = 10
TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 400


@dataclass
class Outcome:
    """The alarms and losses of one run."""

    name: str
    alarms: list[Alarm]
    losses: list[float] = field(repr=False)
    seconds: float = 0.0

    @property
    def diverged(self) -> int | None:
        """The step at which the loss diverged: it is not finite, or 20 % above the first losses for 20 steps in a row."""
        first = float(np.mean(self.losses[:5]))
        above = [not loss <= 1.2 * first for loss in self.losses]
        for step, loss in enumerate(self.losses):
            if not math.isfinite(loss) or (len(above[step : step + 20]) == 20 and all(above[step : step + 20])):
                return step
        return None


def encoded(text: str) -> tuple[Tensor, int]:
    """Return the characters of a text as ids [pos], and the number of distinct characters."""
    letters = sorted(set(text))
    where = {letter: at for at, letter in enumerate(letters)}
    return torch.tensor([where[letter] for letter in text]), len(letters)


def train_gpt(
    name: str, text: str, *, steps: int, lr: float = 1e-3, warmup: int = 20, seed: int = 0, length: int = 32,
    clip: float = 1.0, every: int = EVERY, after_step: Callable[[GPT, int], None] | None = None,
    pads: bool = False, damage: Callable[[Tensor, int], Tensor] | None = None, sgd: bool = False, **model: Any,
) -> Outcome:  # fmt: skip
    """Train a small GPT on a text and return its alarms."""
    torch.manual_seed(seed)
    ids, n = encoded(text)
    gpt = GPT(n, max_len=length, **model)
    optimiser = torch.optim.SGD(gpt.parameters(), lr=lr) if sgd else torch.optim.AdamW(gpt.parameters(), lr=lr)
    probe: Any = ids[: 2 * length].reshape(2, length)
    mask = torch.zeros(2, length, dtype=torch.bool)
    if pads:
        mask[1, :7] = True  # on the left, since causality would hide it on the right
        probe = {"0": probe, "pads": mask}
    health = AttentionHealth(probe, every=every, causal=True, valid=~mask if pads else None)
    losses, draw, begun = [], torch.Generator().manual_seed(seed), time.perf_counter()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / max(1, warmup))
        starts = torch.randint(len(ids) - length - 1, (8,), generator=draw)
        batch = torch.stack([ids[at : at + length + 1] for at in starts])
        labels = batch[:, 1:] if damage is None else damage(batch[:, 1:], step)
        loss = F.cross_entropy(gpt(batch[:, :-1]).flatten(0, 1), labels.flatten())
        optimiser.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(gpt.parameters(), clip)
        if step == 0:
            health.step(gpt, 0)
        optimiser.step()
        if after_step is not None:
            after_step(gpt, step)
        health.step(gpt, step + 1, loss=loss)
        losses.append(loss.item())
    return Outcome(name, health.alarms, losses, time.perf_counter() - begun)


def train_preset(name: str, steps: int, seed: int) -> Outcome:
    """Train a preset with the training loop of this package."""
    chosen = preset(name)
    task, train = Task(chosen.task), chosen.train.replace(seed=seed, snapshot_every=0)
    run = Run(chosen, task, torch.device("cpu"), None)
    run.config = train
    example, begun = task.probe(seed), time.perf_counter()
    inputs: Any = example.input_ids if example.target is None else (example.input_ids, example.target)
    health = AttentionHealth(inputs, every=EVERY)
    health.step(run.model, 0)
    losses = []
    for _ in range(steps):
        run.train_step()
        losses.append(run.window.last_loss)
        health.step(run.model, run.step, loss=losses[-1])
    return Outcome(f"preset {name}, seed {seed}", health.alarms, losses, time.perf_counter() - begun)


def train_llama(text: str, seed: int, steps: int, lr: float = 1e-3) -> Outcome:
    """Train a tiny Llama in the Trainer of Transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(seed)
    ids, n = encoded(text)
    config = LlamaConfig(
        vocab_size=n, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    rows = [
        {"input_ids": ids[at : at + 32], "labels": ids[at : at + 32]} for at in range(0, min(len(ids) - 32, 32_000), 16)
    ]
    health, begun = AttentionHealth(ids[:64].reshape(2, 32), every=EVERY), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=8, learning_rate=lr, logging_steps=1, report_to=[],
            save_strategy="no", use_cpu=True, disable_tqdm=True, seed=seed, warmup_steps=10,
        )  # fmt: skip
        trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, callbacks=[health])
        trainer.pop_callback(_printer(trainer))
        trainer.train()
    losses = [loss for _, loss in health.record.losses]
    return Outcome(f"Llama in Trainer, seed {seed}", health.alarms, losses, time.perf_counter() - begun)


def _printer(trainer: Any) -> Any:
    return next(one for one in trainer.callback_handler.callbacks if type(one).__name__ == "PrinterCallback")


def healthy(text: str, steps: int) -> Iterator[Outcome]:
    """Yield twenty healthy runs."""
    for name in (
        "reverse-small",
        "reverse-mirror",
        "sort",
        "reverse-decoder",
        "reverse-seq2seq",
        "induction",
        "reverse",
    ):
        yield train_preset(name, steps if name != "reverse-mirror" else min(steps, 200), seed=1)
    for seed, options_of in enumerate(
        [
            {}, {"n_layers": 3}, {"lr": 3e-3}, {"std": 0.02}, {"act": nn.ReLU}, {"is_post": True}, {"d_model": 64},
            {"n_heads": 2}, {"clip": 0.0}, {"std": 0.02, "lr": 3e-3},
        ]
    ):  # fmt: skip
        settings = ", ".join(f"{key} {getattr(value, '__name__', value)}" for key, value in options_of.items())
        yield train_gpt(f"GPT {settings or 'default'}", text, steps=steps, seed=seed, **options_of)
    for seed in range(3):
        yield train_llama(text, seed, steps)


def _kill_head(gpt: GPT, step: int) -> None:
    """Set the output matrix of a head to zero from step 50 on, as a pruning mask would."""
    if step >= 50:
        gpt.blocks[0].attention.out.weight.data[:, :8] = 0.0


def _unlearnable(labels: Tensor, step: int) -> Tensor:
    """Return misaligned labels from step 100 on, as from a data loader that shuffles inputs and labels separately."""
    return labels if step < 100 else labels.roll(1, 0)


FAILURES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "learning rate too high": (
        {"lr": 0.3, "clip": 0.0, "warmup": 0},
        {"unstable_attention", "stream_explosion", "score_explosion", "entropy_collapse", "stalled_attention"},
    ),
    "no warm-up, post-norm": (
        {"lr": 3e-2, "warmup": 0, "is_post": True, "n_layers": 4, "clip": 0.0},
        {"unstable_attention", "stream_explosion", "score_explosion", "entropy_collapse", "stalled_attention"},
    ),
    "no 1/√d": ({"fault": "no 1/√d", "d_model": 64, "n_heads": 2}, {"unscaled", "saturated_at_start"}),
    "float16 overflow": (
        {"fault": "float16 overflow", "std": 1.5, "d_model": 64, "n_heads": 1},
        {"nan", "score_explosion"},
    ),
    "leaking mask": ({"fault": "leaking mask"}, {"leak"}),
    "frozen K": ({"fault": "frozen K"}, {"frozen_projection"}),
    "padding seen": ({"fault": "padding seen", "pads": True}, {"padding"}),
    "identical heads": ({"fault": "identical heads"}, {"identical_heads"}),
    "dead head": ({"after_step": _kill_head}, {"dead_head"}),
    "labels of another batch": ({"damage": _unlearnable, "lr": 3e-3}, {"loss_spike"}),
}
"""The settings of each failure, and the alarms that name its cause."""


def failures(text: str, steps: int, seed: int = 0) -> Iterator[tuple[Outcome, set[str]]]:
    """Yield ten failures, each with the alarms that name its cause."""
    for name, (settings, causes) in FAILURES.items():
        yield train_gpt(name, text, steps=steps, seed=seed, **settings), causes


def first_named(outcome: Outcome, causes: set[str]) -> Alarm | None:
    """Return the first alarm that names the cause before the loss diverges."""
    end = math.inf if outcome.diverged is None else outcome.diverged
    return next((alarm for alarm in outcome.alarms if alarm.rule in causes and alarm.step <= end), None)


def smollm(hidden: int, layers: int, vocab: int = 49_152) -> Any:
    """Return a Llama with the proportions of SmolLM2-135M (hidden 576, 30 layers) and random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = max(3, hidden // 64)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab, hidden_size=hidden, intermediate_size=hidden * 8 // 3, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads // 3, head_dim=hidden // heads, tie_word_embeddings=True,
            max_position_embeddings=2048,
        )
    )  # fmt: skip


def peak_mb(device: str) -> float:
    """Return the peak memory since the last call in MiB: of tensors on the GPU, or of the process on Linux; otherwise NaN."""
    if device == "cuda":
        value = torch.cuda.max_memory_allocated() / 2**20
        torch.cuda.reset_peak_memory_stats()
        return value
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        value = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
        Path("/proc/self/clear_refs").write_text("5")
        return value
    except OSError:
        return math.nan


def cost(hidden: int, layers: int, batch: int, length: int, rounds: int, vocab: int = 49_152) -> dict[str, Any]:
    """Measure a training step, a probe of 64 tokens, and the memory that the probe adds to the peak of a plain forward pass."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = smollm(hidden, layers, vocab).to(device).train()
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocab, (batch, length), generator=draw).to(device)
    look = torch.randint(0, vocab, (1, 64), generator=draw).to(device)
    health = AttentionHealth(look, every=1)

    def timed(run: Callable[[], Any]) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=look)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()

    forward()
    peak_mb(device)
    forward()
    before = peak_mb(device)
    opening = timed(lambda: health.step(model, 0))
    opened = peak_mb(device)
    health.step(model, 1)
    looked = peak_mb(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step()
    seconds = in_turns({"step": step, "probe": lambda: health.step(model, 2)}, rounds)
    one, probe = (statistics.median(seconds[name]) for name in ("step", "probe"))
    return {
        "model": f"Llama, {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M on {device}",
        "batch": f"{batch} × {length}",
        "step ms": 1e3 * one,
        "probe ms": 1e3 * probe,
        "% of the time at every=50": 100 * probe / (50 * one),
        "opening ms, once": 1e3 * opening,
        "extra MB, opening": opened - before,
        "extra MB, probe": looked - before,
    }


def main() -> None:
    """Print the tables."""
    chosen = options(
        __doc__,
        rounds=5,
        part={"choices": ("cost", "healthy", "failures"), "default": "cost", "help": "what to measure"},
        text={"default": "", "help": "text file for the small GPTs; by default a repeated sentence"},
        steps={"type": int, "default": 150, "help": "steps of each run"},
        hidden={"type": int, "default": 576, "help": "width of the timed Llama"},
        layers={"type": int, "default": 30, "help": "layers of the timed Llama"},
        batch={"type": int, "default": 8, "help": "sequences per step of the timed Llama"},
        length={"type": int, "default": 512, "help": "tokens per sequence"},
        seed={"type": int, "default": 0, "help": "added to the seeds of failing runs"},
    )
    machine = Machine.start(chosen.threads)
    text = Path(chosen.text).read_text()[:200_000] if chosen.text else TEXT
    if chosen.part == "cost":
        rows = [cost(chosen.hidden, chosen.layers, chosen.batch, chosen.length, chosen.rounds)]
    elif chosen.part == "healthy":
        rows = [
            {"run": one.name, "first loss": one.losses[0], "last loss": one.losses[-1], "alarms": len(one.alarms)}
            for one in healthy(text, chosen.steps)
        ]
    else:
        rows = []
        for one, causes in failures(text, chosen.steps, chosen.seed):
            alarm = first_named(one, causes)
            named = {"named by": "–", "step": -1} if alarm is None else {"named by": alarm.rule, "step": alarm.step}
            rows.append({"failure": one.name, **named, "diverges at": -1 if one.diverged is None else one.diverged})
    show(f"attention health {chosen.part}", machine, rows, (), chosen)


if __name__ == "__main__":
    main()
