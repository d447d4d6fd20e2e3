"""`AttentionHealth` in real training loops: it does not change the training, and it records the measures."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pandas.testing import assert_frame_equal
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import xformer
from benchmarks.health import GPT
from xformer.errors import CheckpointError, ConfigError, InputError, RunStoreError, UnavailableError
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
    with pytest.raises(InputError, match=r"A text probe needs a tokenizer; pass tokenizer="):
        AttentionHealth("a text").step(model, 0)


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
def test_ddp_is_bit_identical_and_fsdp_is_rejected() -> None:
    make = lambda: nn.parallel.DistributedDataParallel(Dropping())  # noqa: E731
    health = AttentionHealth(batches()[0, :2, :7], every=2)
    assert same(plain(make, None), plain(make, health))
    assert health.table()["step"].unique().tolist() == [2, 4, 6]
    sharded = Dropping()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UnavailableError, match="but FSDP shards those of FSDPDropping; use DistributedDataParallel"):
        health.step(sharded, 8)


def test_other_ranks_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xformer.integrations.attention_health._rank", lambda: 1)
    health = AttentionHealth(batches()[0], every=1)
    assert health.step(Dropping(), 1, loss=1.0) == []
    assert health.table().empty


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match="every must be at least 1 step, like 50, got 0"):
        AttentionHealth(batches()[0], every=0)
    with pytest.raises(ConfigError, match=r"The key of a threshold must be one of nan, leak, .*, got 'entropy'"):
        AttentionHealth(batches()[0], thresholds={"entropy": 1.0})


def test_a_module_without_attention_is_rejected_at_the_first_probe() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        AttentionHealth(batches()[0]).step(nn.Sequential(nn.Embedding(VOCAB, 5), nn.Linear(5, VOCAB)), 0)


def test_a_later_probe_that_fails_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    model, health = Dropping(), AttentionHealth(batches()[0, :2, :7], every=1)
    health.step(model, 0)
    model.blocks[0] = nn.Identity()
    model.blocks[1] = nn.Identity()
    assert health.step(model, 1) == []
    assert "Step 1 could not be probed" in caplog.text


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
    for step in (0, 2):
        health.step(Dropping(), step)
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
