"""Checkpoints: the bitwise round trip, and many hostile files, each of which is rejected in one sentence."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.test_config import LIMITS
from tests.training.at_work import assert_same_weights
from tests.training.tiny import random_model, tiny_model, tiny_task
from xformer.checkpoints import CARD, FILE, Checkpoint, from_bytes, load, save, to_bytes
from xformer.errors import CheckpointError
from xformer.model import Transformer

CARD_VALUES = {"title": "Ünïcode · “quoted”\n", "seed": 3, "curve": [{"step": 1, "loss": 0.1}], "nothing": None}


def checkpoint_of(architecture: str = "encoder", **options: Any) -> Checkpoint:
    task = tiny_task(architecture)
    model = Transformer(tiny_model(task, **options), torch.Generator().manual_seed(1))
    return Checkpoint(model, task, CARD_VALUES)


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    assert (one.config, one.task, one.card) == (other.config, other.task, other.card)
    assert_same_weights(one.model, other.model)


# --- the round trip


@pytest.mark.parametrize(
    ("architecture", "name", "options"),
    [
        ("encoder", "folder", {"norm": "pre", "d_ff": 0}),
        ("decoder", "deep/er/folder", {"positions": "learned", "tied_output": True, "attention_bias": True}),
        ("encoder-decoder", "single.safetensors", {"positions": "rotary", "dropout": 0.1, "output_bias": False}),
    ],
)
def test_checkpoint_is_saved_bit_for_bit(tmp_path: Path, name: str, architecture: str, options: dict[str, Any]) -> None:
    saved = checkpoint_of(architecture, **options)
    save(saved, tmp_path / name)
    loaded = load(tmp_path / name)
    assert_same(loaded, saved)
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    inputs = [torch.tensor([[1, 2, 3]])] * (2 if architecture == "encoder-decoder" else 1)
    assert torch.equal(loaded.model(*inputs), saved.model.eval()(*inputs))


def test_folder_has_a_readable_card_and_loads_without_it(tmp_path: Path) -> None:
    save(checkpoint_of(), str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {FILE, CARD}
    assert json.loads((tmp_path / CARD).read_text()) == CARD_VALUES
    (tmp_path / CARD).unlink()
    assert load(str(tmp_path)).card == CARD_VALUES


def test_model_without_task_can_be_saved(tmp_path: Path) -> None:
    model = random_model("decoder", tied_output=True)
    save(model, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert_same(loaded, Checkpoint(model))
    assert (loaded.task, loaded.card) == (None, {})


def test_saving_again_replaces_the_file_and_does_not_change_the_model(tmp_path: Path) -> None:
    first, second = checkpoint_of(), checkpoint_of(d_ff=5)
    second.model.train()
    save(first, tmp_path)
    save(second, tmp_path)
    assert_same(load(tmp_path), second)
    assert second.model.training
    assert all(p.requires_grad for p in second.model.parameters())


def test_loading_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    load(Path(__file__).parents[1] / "checkpoints" / "reverse-seq2seq")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_of_another_library_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"got a Linear; save a model of Transformers with its save_pretrained"):
        save(torch.nn.Linear(2, 2), tmp_path / "linear")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_non_finite_weights_are_not_saved(tmp_path: Path) -> None:
    good = checkpoint_of()
    save(good, tmp_path)
    bad = checkpoint_of()
    with torch.no_grad():
        list(bad.model.parameters())[-1].view(-1)[-1] = float("-inf")
    with pytest.raises(CheckpointError, match=r"were not saved because unembedding\.bias contains NaN or infinity"):
        save(bad, tmp_path)
    assert_same(load(tmp_path), good)


@pytest.mark.parametrize("card", [{"loss": float("nan")}, {"loss": [float("inf")]}, {"long": "x" * 1_000_001}])
def test_card_that_could_not_be_loaded_is_not_saved(tmp_path: Path, card: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="The model was not saved because its card"):
        save(Checkpoint(random_model("encoder"), card=card), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- hostile files

GOOD = to_bytes(checkpoint_of())
ENTRIES: dict[str, Any] = json.loads(GOOD[8 : 8 + int.from_bytes(GOOD[:8], "little")])
META: dict[str, str] = ENTRIES.pop("__metadata__")
DATA = GOOD[8 + int.from_bytes(GOOD[:8], "little") :]
CONFIG: dict[str, Any] = json.loads(META["config"])
TASK: dict[str, Any] = json.loads(META["task"])


def pack(entries: Any = None, meta: Any = None, data: bytes | None = None) -> bytes:
    """Return a file of these parts, which default to those of the valid file."""
    header = json.dumps({"__metadata__": META if meta is None else meta} | (ENTRIES if entries is None else entries))
    raw = header.encode()
    return len(raw).to_bytes(8, "little") + raw + (DATA if data is None else data)


def with_config(**changes: Any) -> bytes:
    return pack(meta=META | {"config": json.dumps(CONFIG | changes)})


def with_task(**changes: Any) -> bytes:
    return pack(meta=META | {"task": json.dumps(TASK | changes)})


def with_meta(**changes: Any) -> bytes:
    return pack(meta=META | changes)


def with_entry(name: str, **changes: Any) -> bytes:
    return pack(ENTRIES | {name: ENTRIES[name] | changes})


def renamed(old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: entry for name, entry in ENTRIES.items()}


def with_number(value: float) -> bytes:
    return pack(data=struct.pack("<f", value) + DATA[4:])


MATRIX = next(name for name, entry in ENTRIES.items() if len(entry["shape"]) == 2 and len(set(entry["shape"])) == 2)
N_BYTES = len(DATA)


# Each size at its limit, including d_model × max_len.
LARGEST = {name: most for name, most in LIMITS.items() if name != "max_len"} | {"max_len": 1024}


class Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/must-never-exist",)


# For each name, a function that builds the file, and part of the expected message.
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "only 0 bytes"),
    "integers": (lambda: with_entry(MATRIX, dtype="I32"), "must be F32"),
    "an extra empty tensor": (
        lambda: pack(ENTRIES | {"extra": {"dtype": "F32", "shape": [0], "data_offsets": [N_BYTES, N_BYTES]}}),
        "weights 'extra' that its configuration does not have",
    ),
    "a renamed tensor": (lambda: pack(renamed(MATRIX, "other")), f"lacks the weights {MATRIX!r}"),
    "a transposed shape": (lambda: with_entry(MATRIX, shape=ENTRIES[MATRIX]["shape"][::-1]), "must be F32 with shape"),
    "NaN": (lambda: with_number(float("nan")), "contain NaN or infinity"),
    "a gigantic d_model": (lambda: with_config(d_model=10**9), "d_model must be from 1 to 16,384"),
    "256 layers and no bytes": (
        lambda: pack({}, META | {"config": json.dumps(CONFIG | {"n_layers": 256})}, b""),
        "bytes of weights",
    ),
    "the largest of everything": (
        lambda: pack(meta={"xformer": "1", "config": json.dumps(CONFIG | LARGEST)}),
        "bytes of weights",
    ),
    "an endless d_model": (lambda: with_config(d_model=10**4000), "d_model must be"),
    "endless text as a name": (lambda: with_config(norm="post" * 100_000), "norm must be one of"),
    "a decoder that depends on the length of its answer": (
        lambda: with_config(architecture="decoder", causal=True, positions="mirror"),
        "the length of an answer that is yet to be generated",
    ),
    "a list of lists": (lambda: with_config(dropout_sites=[["embed"]]), "breaks a rule"),
    "a scale no float32 holds": (lambda: with_config(init_scale=1e300), "init_scale"),
    "no config": (lambda: pack(meta={"xformer": "1"}), "no model configuration"),
    "a task for more symbols": (lambda: with_task(symbols=8), "The task has 9 tokens"),
    "a task for another architecture": (
        lambda: with_task(architecture="decoder"),
        "laid out for architecture='decoder'",
    ),
    "a gigantic task": (lambda: with_task(symbols=100_000, max_len=10_000), "vocab_size"),
    "a card that is a list": (lambda: with_meta(card="[]"), "card must be a JSON object"),
    "a config nested too deep": (lambda: with_meta(config="[" * 300_000), "configuration is not valid JSON"),
    "NaN in the card": (lambda: with_meta(card='{"loss": NaN}'), "card contains NaN"),
    "cut in its weights": (lambda: GOOD[: 3 * len(GOOD) // 4], "follow the header"),
    "a large table": (lambda: with_config(max_len=65_536, d_model=16_384), "max_len × d_model must be at most"),
    "an endless unknown field": (lambda: with_config(**{"x" * 500_000: 1}), "no field"),
    "a base that divides by 0": (lambda: with_config(position_base=5e-324), "position_base"),
    "no metadata": (lambda: pack(meta={}), "not written by xformer"),
    "an unknown task": (lambda: with_task(name="think"), "name must be one of"),
    "a pickle": (lambda: pickle.dumps(Exploit()), "safetensors file"),
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    from_bytes(GOOD)  # so that one-time allocations do not count for the first hostile file


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_rejected_in_one_sentence_with_little_memory(tmp_path: Path, name: str) -> None:
    build, words = HOSTILE[name]
    content = build()
    file = tmp_path / "hostile.safetensors"
    file.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError) as caught:
        load(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 500
    assert message.endswith((".", "?", "…"))
    message.encode()
    # Parsed JSON takes some tens of bytes per byte of the file, and a task takes a few million.
    assert peak < 40 * len(content) + 10_000_000
    assert not Path("/tmp/must-never-exist").exists()


@pytest.mark.parametrize("name", ["the largest of everything", "256 layers and no bytes", "a gigantic task"])
def test_no_tensor_is_built_for_a_hostile_config(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """tracemalloc does not see PyTorch's allocations, so the test asserts that nothing is built at all."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr("xformer.checkpoints.Transformer", never)
    monkeypatch.setattr("safetensors.torch.load", never)
    with pytest.raises(CheckpointError):
        from_bytes(HOSTILE[name][0]())


def test_unmodified_parts_of_the_hostile_files_are_valid() -> None:
    for content in (pack(), with_config(), with_task()):
        assert_same(from_bytes(content), checkpoint_of())
    assert from_bytes(with_number(7.5)).model is not None


def test_error_of_safetensors_itself_becomes_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        raise safetensors.SafetensorError("invalid header")

    monkeypatch.setattr("safetensors.torch.load", refuse)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        from_bytes(GOOD)


def test_path_that_is_not_a_regular_file_is_rejected(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.safetensors"
    os.mkfifo(fifo)  # reading it would block forever
    folder = tmp_path / "folder"
    (folder / FILE).mkdir(parents=True)
    nowhere = tmp_path / "nowhere", tmp_path / "nowhere.safetensors", tmp_path / "nowhere" / "deeper"
    for path in (fifo, folder, tmp_path, *nowhere, Path("/dev/zero"), tmp_path / ("n" * 5000), "", "\0"):
        with pytest.raises(CheckpointError) as caught:
            load(path)
        assert len(str(caught.value)) < 500


def test_file_above_the_size_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large.safetensors"
    with file.open("wb") as handle:
        handle.truncate(2 * 1024**3 + 1)  # sparse, so it uses no disk space
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read"))
    with pytest.raises(CheckpointError, match="the limit is 2,147,483,648"):
        load(file)


def test_file_larger_than_its_header_describes_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.safetensors"
    length = int.from_bytes(GOOD[:8], "little")
    with path.open("wb") as file:
        file.write(GOOD[: 8 + length])
        file.truncate(1_900_000_000)  # uses no disk space, but much memory if it were read
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        load(path)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
