"""A trace comes back from its file as it was, and whatever is not one gets a sentence."""

from __future__ import annotations

import contextlib
import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.layers.reference import ARCHITECTURES, build, inputs
from xformer import trace_file
from xformer.errors import InputError
from xformer.trace import Trace, record
from xformer.trace_file import is_trace, load_trace, save_trace

GOOD = {"architecture": "encoder", "vocab_size": 5, "d_model": 4, "n_layers": 1, "n_heads": 1, "d_ff": 0, "max_len": 7}


def test_a_trace_of_another_kind_of_model_has_no_configuration_and_says_so(tmp_path: Path) -> None:
    trace = replace(record(build(), *inputs(build())), model_config=None)
    for asked in (lambda: trace.config, lambda: save_trace(trace, tmp_path / "x.safetensors")):
        with pytest.raises(InputError, match="another kind of model"):
            asked()
    assert not list(tmp_path.iterdir())
    trace.save_npz(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as arrays:
        assert set(arrays) == {"tokens", *trace}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_there_and_back(architecture: str, tmp_path: Path) -> None:
    trace = record(build(architecture=architecture), *inputs(build(architecture=architecture)))
    save_trace(trace, tmp_path / "x.safetensors")
    assert is_trace(tmp_path / "x.safetensors")
    back = load_trace(tmp_path / "x.safetensors")
    assert isinstance(back, Trace)
    assert (back.config, set(back), back.edits) == (trace.config, set(trace), ())
    assert torch.equal(back.tokens, trace.tokens)
    assert (back.target is None) == (trace.target is None)
    for name in trace:
        assert back[name].dtype == trace[name].dtype
        assert torch.equal(back[name], trace[name])


def write(path: Path, metadata: dict[str, str] | None = None, **tensors: Tensor | None) -> Path:
    given: dict[str, Tensor | None] = {"tokens": torch.tensor([[1, 2, 3]])} | tensors
    said = {"xformer-trace": "1", "config": json.dumps(GOOD)} if metadata is None else metadata
    path.write_bytes(safetensors.torch.save({name: value for name, value in given.items() if value is not None}, said))
    return path


def test_the_smallest_trace_there_is(tmp_path: Path) -> None:
    assert load_trace(write(tmp_path / "x")).tokens.tolist() == [[1, 2, 3]]


def config(**changes: Any) -> dict[str, str]:
    return {"xformer-trace": "1", "config": json.dumps(GOOD | changes)}


@pytest.mark.parametrize(
    ("metadata", "tensors", "words"),
    [
        ({}, {}, "metadata do not say so"),
        ({"xformer": "1", "config": json.dumps(GOOD)}, {}, "metadata do not say so"),
        ({"xformer-trace": "1"}, {}, "configuration is not valid JSON"),
        ({"xformer-trace": "1", "config": "["}, {}, "configuration is not valid JSON"),
        ({"xformer-trace": "1", "config": "3"}, {}, "breaks a rule"),
        (config(d_model=-3), {}, "d_model must be from 1"),
        (None, {"tokens": None}, "has no 'tokens'"),
        (None, {"tokens": torch.tensor([1, 2])}, "integers shaped"),
        (None, {"tokens": torch.tensor([[1.5]])}, "integers shaped"),
        (None, {"tokens": torch.zeros(1, 0, dtype=torch.int64)}, "integers shaped"),
        (None, {"tokens": torch.tensor([[1, 7]])}, "from 0 to 4"),
        (None, {"tokens": torch.tensor([[1, -1]])}, "from 0 to 4"),
        (None, {"target": torch.tensor([[1]])}, "cannot have a target"),
        (config(architecture="encoder-decoder"), {}, "must have a target"),
        (None, {"embed": torch.zeros(1, 2, dtype=torch.uint8)}, "got U8"),
        (None, {"embed": torch.zeros(3)}, "at least two axes"),
        (None, {"embed": torch.zeros(3, 0)}, "at least two axes"),
        (None, {"encoder.0.attn.pattern": torch.zeros(2, 2)}, "A pattern must be"),
    ],
)
def test_what_is_no_trace_is_told(metadata: Any, tensors: dict[str, Tensor | None], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        load_trace(write(tmp_path / "x", metadata, **tensors))


def test_claims_are_checked_before_memory_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = json.dumps({"embed": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(InputError, match=r"take 4,398,046,511,104 bytes, but 4 follow"):
        load_trace(tmp_path / "x")
    endless = json.dumps({"embed": {"dtype": "F32", "shape": [2**40, 2**40, 0], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "y").write_bytes(len(endless).to_bytes(8, "little") + endless)
    with pytest.raises(InputError):
        load_trace(tmp_path / "y")
    monkeypatch.setattr(trace_file, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="at most 100 are read"):
        load_trace(write(tmp_path / "z"))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    (tmp_path / "text").write_text("hello")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nowhere", Path("/dev/zero"), tmp_path / ("n" * 5000), "\0"):
        for read in (load_trace, is_trace):
            with pytest.raises(InputError) as caught:
                read(path)
            assert len(str(caught.value)) < 500
    with pytest.raises(InputError, match="only 5 bytes"):
        load_trace(tmp_path / "text")


def test_damaged_files_get_a_sentence_or_are_traces(tmp_path: Path) -> None:
    trace = record(build(architecture="decoder"), *inputs(build(architecture="decoder")))
    save_trace(trace, tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole[: draw.choice([len(whole), draw.randrange(len(whole))])])
        for _ in range(draw.randrange(4)):
            damaged[draw.choice([draw.randrange(len(damaged)), draw.randrange(min(len(damaged), 3000))])] ^= (
                draw.randrange(256)
            )
        (tmp_path / "damaged").write_bytes(damaged)
        with contextlib.suppress(InputError):
            load_trace(tmp_path / "damaged")
            continue
        refused += 1
    assert refused > 200
