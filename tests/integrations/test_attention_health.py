"""`AttentionHealth` in real training loops: it does not change the training, and it records the measures."""

from __future__ import annotations

import copy
import json
import math
import random
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pandas.testing import assert_frame_equal
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import xformer
from tests.integrations.faulty_gpt import GPT
from xformer.errors import CheckpointError, ConfigError, InputError, RunStoreError
from xformer.integrations import AttentionHealth, HealthRecord
from xformer.training import jobs, liveness
from xformer.training.run_store import RunStore
from xformer.training.tables import scalars

IGNORED = ("ignore::Warning:lightning", "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:.*pin_memory.*")
pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]
VOCAB, POS, STEPS = 19, 11, 6


def batches(n: int = STEPS) -> Tensor:
    return torch.randint(0, VOCAB, (n, 3, POS), generator=torch.Generator().manual_seed(1))


class Dropping(GPT):
    """A small GPT that draws random numbers even in eval mode, and may recompute its blocks in the backward pass."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__(VOCAB, d_model=12, n_layers=2, n_heads=3, max_len=POS)
        self.checkpointed, self.dropout = checkpointed, nn.Dropout(0.2)

    def forward(self, ids: Tensor, pads: Tensor | None = None) -> Tensor:
        x = self.dropout(self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(self.dropout(x))) + 0.0 * torch.rand(1, device=x.device)


def plain(
    make: Callable[[], nn.Module],
    health: AttentionHealth | None,
    *,
    cast: bool = False,
    steps: int = STEPS,
    device: str = "cpu",
) -> Any:
    """A plain training loop. Returns losses, weights, random state, and the hooks and modes of all modules."""
    torch.manual_seed(0)
    model = make().to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step, ids in enumerate(batches(steps).to(device), start=1):
        optimiser.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=cast):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        optimiser.step()
        if health is not None:
            health.step(model, step, loss=loss)
        losses.append(loss.item())
    hooks = [(len(one._forward_hooks), len(one._forward_pre_hooks), one.training) for one in model.modules()]
    random = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    return losses, [weight.detach().clone() for weight in model.parameters()], random, hooks


def same(one: Any, other: Any) -> bool:
    is_equal = all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))
    return one[0] == other[0] and is_equal and torch.equal(one[2], other[2]) and one[3] == other[3]


def own_decoder() -> nn.Module:
    config = xformer.ModelConfig(
        architecture="decoder", vocab_size=VOCAB, d_model=12, n_layers=2, n_heads=3, d_ff=17, max_len=POS, dropout=0.2
    )
    return xformer.Transformer(config).train()


LOOPS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "a plain module": (Dropping, {}),
    "gradient checkpointing and autocast to bfloat16": (lambda: Dropping(checkpointed=True), {"cast": True}),
    "one of ours": (own_decoder, {}),
    "a module in half precision": (lambda: Dropping().bfloat16(), {}),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("name", LOOPS)
def test_a_plain_loop_is_bit_identical_with_and_without_it(name: str, device: str) -> None:
    make, options = LOOPS[name]
    health = AttentionHealth(batches()[0, :2, :7], every=2)
    assert same(plain(make, None, device=device, **options), plain(make, health, device=device, **options))
    table = health.table()
    assert table["step"].unique().tolist() == [2, 4, 6]
    assert table.groupby(["step", "layer"])["head"].nunique().tolist() == [3] * 6
    assert not table[["entropy_p50", "score_max", "future", "output_norm", "induction"]].isna().any().any()
    assert table.loc[table["step"] > 2, "moved"].gt(0).all()
    assert health.layer_table()[["grad_q", "grad_k", "grad_v", "grad_o"]].gt(0).all().all()
    assert health.loss_table()["loss"].notna().sum() == STEPS


def llama(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="not installed: Transformers' Trainer was NOT tested")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=29, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2, attention_dropout=0.1, **options,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def trainer_run(tmp_path: Path, model: Any, *callbacks: Any, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=STEPS, per_device_train_batch_size=3, logging_steps=1, report_to=[],
        save_strategy="no", disable_tqdm=True, **{"use_cpu": True, **options},
    )  # fmt: skip
    rows = [{"input_ids": one, "labels": one} for one in batches(20).flatten(0, 1)]
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=list(callbacks))
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return losses, [weight.detach().clone() for weight in model.parameters()], torch.get_rng_state(), []


def test_the_trainer_of_transformers_is_bit_identical_with_and_without_it(tmp_path: Path) -> None:
    options = {"gradient_checkpointing": True, "bf16": True}
    without = trainer_run(tmp_path, llama(), **options)
    model = llama()
    backend = model.config._attn_implementation
    health = AttentionHealth(batches()[0, :2, :7], every=2, out=tmp_path / "runs")
    assert same(without, trainer_run(tmp_path, model, health, **options))
    assert model.config._attn_implementation == backend
    table = health.table()
    assert table["step"].unique().tolist() == [0, 2, 4, 6]
    assert table["future"].eq(0).all()
    assert health.layer_table().query("step > 0")[["grad_q", "grad_k", "grad_v", "grad_o"]].gt(0).all().all()
    [entry] = RunStore(tmp_path / "runs").entries()
    assert (entry.state, entry.step, entry.id) == ("finished", STEPS, health.run)
    rows = RunStore(tmp_path / "runs").rows(entry.id)
    assert [row["step"] for row in rows] == [0, 2, 4, 6]
    assert all(math.isfinite(row["loss"]) and row["steps"] == STEPS for row in rows[1:])
    last, now = scalars(rows[-1]), table[table["step"] == STEPS]
    assert last["heads/entropy_p50/min"] == pytest.approx(now["entropy_p50"].min())
    assert last["heads/score_max/max"] == pytest.approx(now["score_max"].max())
    assert "heads/padding/max" not in last  # nothing is padding


def test_a_probe_of_text_uses_the_tokenizer_and_its_padding() -> None:
    model = llama()

    def tokenizer(texts: list[str], return_tensors: str, padding: bool) -> dict[str, Tensor]:
        assert (return_tensors, padding) == ("pt", True)
        ids, n = [[1 + ord(letter) % 17 for letter in text] for text in texts], max(map(len, texts))
        padded = torch.tensor([[0] * (n - len(row)) + row for row in ids])
        return {"input_ids": padded, "attention_mask": (padded > 0).long()}

    health = AttentionHealth(["a long text", "short"], tokenizer=tokenizer)
    health.step(model, 0)
    assert health.table()["padding"].eq(0).all()


def test_lightning_is_bit_identical_with_and_without_it(tmp_path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning", reason="lightning is not installed: its callback was NOT tested")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = Dropping()

        def training_step(self, batch: Tensor, _index: int) -> Tensor:
            return F.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def run(*callbacks: Any) -> Any:
        module = Module()
        trainer = lightning.Trainer(
            max_steps=STEPS, callbacks=list(callbacks), accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(batches(40).flatten(0, 1), batch_size=3))
        return [], [weight.detach().clone() for weight in module.parameters()], torch.get_rng_state(), []

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        health = AttentionHealth(batches()[0, :2, :7], every=3, out=tmp_path)
        assert isinstance(health, lightning.Callback)
        assert isinstance(health, AttentionHealth)
        assert same(run(), run(health))
    assert health.table()["step"].unique().tolist() == [0, 3, 6]
    assert health.loss_table()["loss"].notna().sum() == STEPS
    assert health.layer_table().query("step > 0")["grad_k"].gt(0).all()
    [entry] = RunStore(tmp_path).entries()
    assert (entry.state, entry.step) == ("finished", STEPS)


def test_lightning_steps_without_a_loss_and_of_unknown_number_are_recorded() -> None:
    lightning: Any = pytest.importorskip("lightning")

    class Endless(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            return iter(batches(8).flatten(0, 1))

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Dropping()

        def training_step(self, batch: Tensor, index: int) -> Any:
            loss = F.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            return None if index % 2 else {"loss": loss, "size": len(batch)}

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        health = AttentionHealth(batches()[0, :2, :7], every=1)
        trainer = lightning.Trainer(
            max_epochs=1, callbacks=[health], accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader(Endless(), batch_size=5))
    assert health.record.problems == []
    assert len(health.record.probes) > 2


@pytest.mark.cuda
def test_measures_on_a_gpu_equal_those_on_the_cpu() -> None:
    tables = []
    for device in ("cpu", "cuda"):
        health = AttentionHealth(batches()[0, :2, :7], every=1)
        torch.manual_seed(0)
        health.step(Dropping().to(device), 1)
        tables.append(health.table().drop(columns=["moved"]))
    assert_frame_equal(*tables, rtol=1e-3, atol=1e-4)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A process group for distributed training with one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_ddp_is_bit_identical_and_fsdp_is_refused_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    make = lambda: nn.parallel.DistributedDataParallel(Dropping())  # noqa: E731
    health = AttentionHealth(batches()[0, :2, :7], every=2)
    assert same(plain(make, None), plain(make, health))
    assert health.table()["step"].unique().tolist() == [2, 4, 6]
    sharded = Dropping()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    assert AttentionHealth(batches()[0], every=1).step(sharded, 8) == []
    assert "but FSDP shards those of FSDPDropping; use DistributedDataParallel" in caplog.text


def test_other_ranks_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.integrations.attention_health.process_rank", lambda: 1)
    health = AttentionHealth(batches()[0], every=1)
    assert health.step(Dropping(), 1, loss=1.0) == []
    assert health.table().empty


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match="every must be at least 1 step, like 50, got 0"):
        AttentionHealth(batches()[0], every=0)
    with pytest.raises(ConfigError, match=r"The key of a threshold must be one of nan, leak, .*, got 'entropy'"):
        AttentionHealth(batches()[0], thresholds={"entropy": 1.0})


class Failing(GPT):
    """A model that does something unexpected in eval mode, or at a step."""

    def __init__(self, failure: Callable[[Tensor], Any] | None) -> None:
        super().__init__(VOCAB, d_model=12, n_heads=3, max_len=POS)
        self.failure = failure

    def forward(self, ids: Tensor, pads: Tensor | None = None) -> Any:
        logits = super().forward(ids, pads)
        return logits if self.training or self.failure is None else self.failure(logits)


def raising(error: BaseException) -> Callable[[Tensor], Any]:
    def failure(logits: Tensor) -> None:
        raise error

    return failure


OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
PROBES: dict[str, tuple[Any, Callable[[Tensor], Any] | None, str]] = {
    "too long": (
        torch.zeros(2, POS + 3, dtype=torch.long),
        None,
        "The probe needs row 13 of position, which has 11 rows",
    ),
    "of another tokenizer": (
        batches()[0] + VOCAB,
        None,
        r"of token, which has 19 rows: is it too long, or of another tok",
    ),
    "empty": (batches()[0, :, :0], None, "could not be probed: "),
    "floats": (torch.randn(2, 7), None, "RuntimeError: Expected tensor"),
    "other names": ({"input_ids": batches()[0]}, None, "unexpected keyword argument 'input_ids'"),
    "no probe": (None, None, "could not be probed: "),
    "text without a tokenizer": ("a text", None, "A text probe needs a tokenizer; pass tokenizer="),
    "dropout in eval mode": (
        batches()[0],
        lambda x: F.dropout(x, 0.5),
        r"two runs of Failing in eval mode differ by .* Is drop",
    ),
    "no output in eval mode": (batches()[0], lambda x: None, "could not be probed: A module must return"),
    "text as output": (batches()[0], lambda x: "text", "could not be probed: A module must return"),
    "an error": (batches()[0], raising(ValueError("not now")), "could not be probed: ValueError: not now."),
    "an error without a message": (batches()[0], raising(AssertionError()), "could not be probed: AssertionError."),
    "no memory": (batches()[0], raising(OOM), "could not be probed: OutOfMemoryError: CUDA out of memory."),
}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_that_fails_is_one_warning_and_the_training_goes_on(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    probe, failure, reason = PROBES[name]
    health = AttentionHealth(probe, every=1)
    make = lambda: Failing(failure)  # noqa: E731
    assert same(plain(make, None, steps=3), plain(make, health, steps=3))
    [record] = caplog.records
    assert re.search(reason, record.message)
    assert (record.levelname, record.message[:7]) == ("WARNING", "Step 1 ")
    assert health.record.problems == [(1, record.message)]
    assert health.table().empty
    assert "Step 1 could not be probed" in health.report()._repr_html_()


def test_a_module_without_attention_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert AttentionHealth(batches()[0]).step(nn.Sequential(nn.Embedding(VOCAB, 5), nn.Linear(5, VOCAB)), 0) == []
    assert "cannot be read" in caplog.text


def test_an_interrupt_passes_and_the_model_is_as_found() -> None:
    model, health = Failing(raising(KeyboardInterrupt())), AttentionHealth(batches()[0, :2, :7], every=1)
    found = [dict(vars(part)) for part in model.modules()]
    random = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        health.step(model, 0)
    assert [dict(vars(part)) for part in model.modules()] == found
    assert not any(part._forward_pre_hooks for part in model.modules())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_probe_is_tried_again_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    model, health = Failing(raising(OOM)), AttentionHealth(batches()[0, :2, :7], every=1)
    health.step(model, 0)
    model.failure = None
    health.step(model, 1)
    model.blocks[0] = nn.Identity()
    model.blocks[1] = nn.Identity()
    assert health.step(model, 2) == []
    assert [text.partition(":")[0] for _, text in health.record.problems] == [
        f"Step {n} could not be probed" for n in (0, 2)
    ]
    assert health.table()["step"].unique().tolist() == [1]


LOSSES = {"a vector": torch.ones(3), "text": "low", "complex": torch.tensor(1j), "a dictionary": {"loss": 1.0}}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_no_number_is_one_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, health = Dropping(), AttentionHealth(batches()[0, :2, :7], every=1)
    loss: Any = LOSSES[name]
    for step in range(3):
        health.step(model, step, loss=loss, learning_rate=loss)
    assert [text.split(":")[0] for _, text in health.record.problems] == [
        "Step 0 has a loss that could not be recorded", "Step 0 has a learning_rate that could not be recorded",
    ]  # fmt: skip
    assert health.record.losses == []
    assert len(health.record.probes) == 3


def test_losses_with_a_graph_and_nan_are_recorded_and_odd_steps_are_not() -> None:
    model, health = Dropping(), AttentionHealth(batches()[0, :2, :7], every=1)
    weight = nn.Parameter(torch.ones(1))
    assert health.step(model, 0, loss=2 * weight) == []
    assert [alarm.rule for alarm in health.step(model, 1, loss=weight.sum() * math.nan)] == ["nan"]
    for step in (-1, 2.5, None, "3"):
        odd: Any = step
        assert health.step(model, odd, loss=1.0) == []
    assert [at for at, _ in health.record.losses] == [0, 1]
    assert "step must be from 0 to" in health.record.problems[0][1]
    assert health.step(model, torch.tensor(4), loss=1.0) == []  # type: ignore[arg-type]
    assert health.record.steps == [0, 1, 4]


def test_steps_that_go_back_replace_the_record_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, health = Dropping(), AttentionHealth(batches()[0, :2, :7], every=1, out=tmp_path)
    for step in (0, 1, 2, 3, 1):
        health.step(model, step, loss=float(step))
    assert "Step 1 follows step 3: the record from step 1 on is replaced." in caplog.text
    assert health.record.steps == [0, 1]
    assert [at for at, _ in health.record.losses] == [0, 1]
    assert HealthRecord.load(RunStore(tmp_path).folder_of(health.run)).steps == [0, 1]
    assert [row["step"] for row in RunStore(tmp_path).rows(health.run)] == [0, 1]


def test_a_second_model_is_a_warning_and_a_successor_is_not(caplog: pytest.LogCaptureFixture) -> None:
    first, health = Dropping(), AttentionHealth(batches()[0, :2, :7], every=1)
    health.step(first, 0)
    health.step(Dropping(), 1)
    assert "This is not the Dropping of the first step; use one AttentionHealth per model." in caplog.text
    assert health.record.steps == [0]
    del first
    health.step(Dropping(), 2)
    assert health.record.steps == [0, 2]


def test_a_model_that_grows_is_compared_with_itself_since_then(caplog: pytest.LogCaptureFixture) -> None:
    model, health = Dropping(), AttentionHealth(batches()[0, :2, :7], every=1)
    health.step(model, 0)
    model.blocks.append(copy.deepcopy(model.blocks[0]))
    assert health.step(model, 1) == []
    assert health.step(model, 2) == []
    assert "Step 1 has other layers or heads than before" in caplog.text
    assert set(health.table().query("step == 2")["layer"]) == {f"decoder.{at}.attn" for at in range(3)}
    assert not health.table().query("step == 2")[["moved"]].isna().any().any()
    del model.blocks[0]
    assert health.step(model, 3) == []
    assert len(set(health.table().query("step == 3")["layer"])) == 2
    assert len(health.record.problems) == 1


def test_layers_that_are_skipped_from_some_step_on_are_followed() -> None:
    class Shallow(GPT):
        depth = 3

        def forward(self, ids: Tensor, pads: Tensor | None = None) -> Tensor:
            x = self.token(ids)
            for block in list(self.blocks)[: self.depth]:
                x = block(x)
            return self.head(x)

    model, health = Shallow(VOCAB, d_model=12, n_layers=3, n_heads=3), AttentionHealth(batches()[0], every=1)
    health.step(model, 0)
    model.depth = 2
    assert health.step(model, 1) == []
    assert health.table().groupby("step")["layer"].nunique().tolist() == [3, 2]


def test_adapters_that_are_added_and_merged_are_followed() -> None:
    peft: Any = pytest.importorskip("peft")
    model, health = llama(), AttentionHealth(batches()[0, :2, :7], every=1)
    health.step(model, 0)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    for step in (1, 2):
        wrapped(input_ids=batches()[0], labels=batches()[0]).loss.backward()
        assert health.step(wrapped, step) == []
    assert health.step(wrapped.merge_and_unload(), 3) == []
    assert health.record.steps == [0, 1, 2, 3]
    assert health.record.problems == []


@pytest.mark.parametrize("part", ["measure", "raised"])
def test_an_error_in_a_measure_or_a_rule_is_a_warning(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(f"xformer.integrations.attention_health.{part}", broken)
    health = AttentionHealth(batches()[0, :2, :7], every=1)
    for step in (0, 1):
        assert health.step(Dropping(), step) == []
    assert "ZeroDivisionError: by zero." in caplog.text


def test_an_error_of_on_alarm_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def on_alarm(alarm: Any) -> None:
        raise ConnectionError("no network")

    health = AttentionHealth(batches()[0], every=1, on_alarm=on_alarm)
    assert len(health.step(GPT(VOCAB, d_model=12, n_heads=3, max_len=POS, fault="leaking mask"), 1)) == 1
    assert "has an alarm that on_alarm did not accept: ConnectionError: no network." in caplog.text


def test_a_folder_that_cannot_be_written_is_a_warning_and_the_record_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    model, health = Dropping(), AttentionHealth(batches()[0, :2, :7], every=1, out=tmp_path / "file")
    health.step(model, 0)
    assert "could not be written to" in caplog.text
    assert health.record.planes(0)
    full = AttentionHealth(batches()[0, :2, :7], every=1, out=tmp_path / "runs")
    full.step(model, 0)

    def no_space(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xformer.integrations.health_record.write_atomically", no_space)
    monkeypatch.setattr("xformer.integrations.health_archive.write_atomically", no_space)
    for step in (1, 2):
        full.step(model, step, loss=1.0)
    full.close()
    assert full.record.planes(1).keys() == full.record.planes(0).keys()
    assert full.record.problems[0][1].endswith("No space left on device.")
    assert len(full.record.problems) == 2  # the probes, and the end of the run


def test_random_states_and_tables_that_a_forward_pass_changes_are_restored() -> None:
    class Unusual(Dropping):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(VOCAB, 12, max_norm=0.5)

        def forward(self, ids: Tensor, pads: Tensor | None = None) -> Tensor:
            np.random.uniform()
            random.random()
            return super().forward(ids, pads)

    health = AttentionHealth(batches()[0, :2, :7], every=1)
    random.seed(0)
    np.random.seed(0)
    without = plain(Unusual, None, steps=2), random.random(), np.random.uniform()
    random.seed(0)
    np.random.seed(0)
    found = plain(Unusual, health, steps=2), random.random(), np.random.uniform()
    assert same(without[0], found[0])
    assert without[1:] == found[1:]
    assert len(health.record.probes) == 2


def test_an_alarm_is_raised_once_and_passed_to_the_callback(caplog: pytest.LogCaptureFixture) -> None:
    got: list[Any] = []
    torch.manual_seed(0)
    model = GPT(VOCAB, d_model=12, n_heads=3, max_len=POS, fault="leaking mask")
    health = AttentionHealth(batches()[0], every=1, causal=True, on_alarm=got.append)
    assert [alarm.rule for alarm in health.step(model, 1)] == ["leak"]
    assert health.step(model, 2) == []
    assert got == health.alarms
    alarm = got[0]
    assert (alarm.step, alarm.frame) == (1, 1)
    assert alarm.layer.endswith(".1.attn")
    assert "later tokens" in caplog.text
    silent = AttentionHealth(batches()[0], every=1, causal=True, thresholds={"leak": None})
    assert silent.step(model, 1) == []


def test_a_run_is_live_while_it_trains_and_can_be_stopped_from_the_app(tmp_path: Path) -> None:
    model, store = Dropping(), RunStore(tmp_path)
    health = AttentionHealth(batches()[0, :2, :7], every=2, out=tmp_path, steps=8, name="mine")
    health.step(model, 0, loss=3.0)
    entry = store.entry(health.run)
    assert (entry.state, entry.name, entry.preset, entry.step) == ("running", "mine", "external", 0)
    assert liveness.is_held(store.folder_of(health.run) / liveness.LOCK)
    health.step(model, 2, loss=2.5, learning_rate=0.1, gradient_norm=0.7)
    assert store.rows(health.run)[-1]["learning_rate"] == 0.1
    jobs.stop(store, health.run)
    health.step(model, 4, loss=2.0)
    assert health.should_stop
    health.close()
    assert store.entry(health.run).state == "finished"
    store.change(health.run, state="stopped")
    with pytest.raises(RunStoreError, match="trained by another program"):
        jobs.resume(store, health.run)


def test_damaged_records_and_unknown_steps_are_rejected(tmp_path: Path) -> None:
    health = AttentionHealth(batches()[0, :2, :7], every=2, out=tmp_path)
    model = Dropping()
    for step in (0, 2):
        health.step(model, step)
    folder = RunStore(tmp_path).folder_of(health.run)
    with pytest.raises(InputError, match="The steps with patterns are 0, 2, got 3"):
        HealthRecord.load(folder).planes(3)
    (folder / "health" / "record.json").write_text(json.dumps({"alarms": 5}))
    with pytest.raises(CheckpointError, match="no readable"):
        HealthRecord.load(folder)


def test_patterns_are_codes_from_0_to_253_and_masked_cells_are_255() -> None:
    model, ids = own_decoder(), batches()[0, :1, :5]
    health = AttentionHealth(ids, every=1)
    health.step(model, 1)
    pattern = xformer.read(model, ids)["decoder.0.attn.pattern"][0]
    codes = torch.from_numpy(health.record.planes(1)["decoder.0.attn"].astype("int64"))
    later = torch.ones(5, 5, dtype=torch.bool).triu(1).expand(3, 5, 5)
    assert codes[later].eq(255).all()
    torch.testing.assert_close(codes[~later], (253 * pattern[~later]).round().long())


def test_a_compiled_model_is_bit_identical_and_not_compiled_again() -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    def make() -> nn.Module:
        torch.compiler.reset()
        return torch.compile(Dropping(), backend=backend)  # type: ignore[return-value]

    health = AttentionHealth(batches()[0, :2, :7], every=2)
    without = plain(make, None, steps=4)
    n = len(compiled)
    assert same(without, plain(make, health, steps=4))
    assert len(compiled) == 2 * n > 0
    assert health.table()["step"].unique().tolist() == [2, 4]


@pytest.mark.cuda
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_on_a_gpu_the_trainer_of_transformers_is_bit_identical_in_bfloat16(tmp_path: Path, attention: str) -> None:
    pytest.importorskip("transformers")
    options = {"bf16": True, "use_cpu": False}
    without = trainer_run(tmp_path, llama(attn_implementation=attention), **options)
    health = AttentionHealth(batches()[0, :2, :7], every=2)
    assert same(without, trainer_run(tmp_path, llama(attn_implementation=attention), health, **options))
    assert health.table()["future"].eq(0).all()
