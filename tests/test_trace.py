"""Recorded runs: the activations kept, their memory, saving and loading, and isolation between threads."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.layers.reference import build, inputs, random_tokens
from xformer import edits
from xformer import trace as trace_file
from xformer.errors import EditError, InputError
from xformer.trace import Trace, is_trace, load_trace, record, save_trace


def test_an_unknown_name_raises_with_similar_names_or_else_the_first() -> None:
    trace = record(build(), *inputs(build()))
    answers = {
        "encoder.0.attn.patern": r"did you mean encoder\.0\.attn\.pattern",
        "§§§": r"its names are embed, .*, … \(",
    }
    for name, answer in answers.items():
        with pytest.raises(EditError, match=f"^This run has no activation '{name}'; {answer}"):
            trace[name]


def test_a_run_keeps_only_the_requested_activations_and_no_graph() -> None:
    model = build()
    arguments = inputs(model)
    everything = record(model, *arguments)
    some = record(model, *arguments, keep=["*.pattern", "logits"])
    assert list(some) == ["encoder.0.attn.pattern", "encoder.1.attn.pattern", "logits"]
    assert all(torch.equal(some[name], everything[name]) for name in some)
    assert not any(everything[name].requires_grad for name in everything)
    with pytest.raises(EditError, match=r"'\*\.patern'; did you mean .*encoder\.0\.attn\.pattern"):
        record(model, *arguments, keep=["*.patern"])


def test_bytes_count_shared_storage_once() -> None:
    shared, other = torch.zeros(7, 11), torch.zeros(13, dtype=torch.bool)
    kept = {"a": shared, "b": shared[:3], "c": shared.T, "d": shared[None].expand(5, 7, 11), "e": other}
    assert Trace(build().config, random_tokens(1, 1), None, (), kept).n_bytes == 7 * 11 * 4 + 13


@pytest.mark.usefixtures("unchecked")
def test_concurrent_runs_of_one_model_do_not_interfere() -> None:
    model = build(architecture="decoder", positions="learned").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    other = record(model, random_tokens(2, 7, seed=99))
    ablation = [
        edits.ablate_head("decoder.0.attn", 1),
        edits.mask_edges("decoder.1.attn", [(3, 1)], heads=[2]),
        edits.patch_from(other, "decoder.0.resid_post"),
    ]
    jobs = [(random_tokens(2, 7, seed=n), (ablation[n],) if n < 3 else ()) for n in range(4)]
    serial = [record(model, tokens, edits=chosen) for tokens, chosen in jobs]
    assert len({trace.logits.sum().item() for trace in serial}) == 4
    start = Barrier(4)

    def mixed(n: int) -> int:
        start.wait()
        count = 0
        for _ in range(6):
            trace = record(model, jobs[n][0], edits=jobs[n][1])
            count += list(trace) != list(serial[n])
            count += any(not torch.equal(trace[name], serial[n][name]) for name in trace)
        return count

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(mixed, range(4))) == [0] * 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_fused_run_gives_the_same_logits_and_errors_suggest_names_of_fused_parts() -> None:
    model = build(architecture="encoder-decoder")
    whole, brief = record(model, *inputs(model)), record(model, *inputs(model), keep=["logits"], fused=True)
    torch.testing.assert_close(brief.logits, whole.logits, rtol=1e-4, atol=1e-4)
    z = "decoder.1.cross_attn.z"
    torch.testing.assert_close(record(model, *inputs(model), keep=["*cross_attn.z"], fused=True)[z], whole[z])
    with pytest.raises(EditError, match=r"did you mean .*encoder\.0\.attn\.pattern"):
        record(model, *inputs(model), keep=["logits"], fused=True, edits=[edits.scale("encoder.0.attn.patern", 0.0)])


GOOD = {"architecture": "encoder", "vocab_size": 5, "d_model": 4, "n_layers": 1, "n_heads": 1, "d_ff": 0, "max_len": 7}


def test_a_trace_of_an_external_model_has_no_configuration(tmp_path: Path) -> None:
    trace = replace(record(build(), *inputs(build())), model_config=None)
    for request in (lambda: trace.config, lambda: save_trace(trace, tmp_path / "x.safetensors")):
        with pytest.raises(InputError, match="external model"):
            request()
    assert not list(tmp_path.iterdir())
    trace.save_npz(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as arrays:
        assert set(arrays) == {"tokens", *trace}


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_a_saved_trace_is_loaded_unchanged(architecture: str, tmp_path: Path) -> None:
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
    written = {name: value for name, value in given.items() if value is not None}
    path.write_bytes(safetensors.torch.save(written, config() if metadata is None else metadata))
    return path


def config(**changes: Any) -> dict[str, str]:
    return {"xformer-trace": "1", "config": json.dumps(GOOD | changes)}


@pytest.mark.parametrize(
    ("metadata", "tensors", "words"),
    [
        ({}, {}, "not marked as a trace"),
        ({"xformer": "1", "config": json.dumps(GOOD)}, {}, "not marked as a trace"),
        *(({"xformer-trace": "1"} | more, {}, "configuration is not valid JSON") for more in ({}, {"config": "["})),
        ({"xformer-trace": "1", "config": "3"}, {}, "configuration is invalid"),
        (config(d_model=-3), {}, "d_model must be from 1"),
        (None, {"tokens": None}, "has no 'tokens'"),
        *((None, {"tokens": torch.tensor(tokens)}, "tokens must be integers") for tokens in ([1, 2], [[1.5]], [[]])),
        *((None, {"tokens": torch.tensor([[1, token]])}, "from 0 to 4") for token in (7, -1)),
        (None, {"target": torch.tensor([[1]])}, "cannot have a target"),
        (config(architecture="encoder-decoder"), {}, "must have a target"),
        (None, {"embed": torch.zeros(1, 2, dtype=torch.uint8)}, "got U8"),
        *((None, {"embed": torch.zeros(*shape)}, "at least two axes") for shape in ((3,), (3, 0))),
        (None, {"encoder.0.attn.pattern": torch.zeros(2, 2)}, "A pattern must be"),
    ],
)
def test_other_files_are_refused(metadata: Any, tensors: dict[str, Tensor | None], words: str, tmp_path: Path) -> None:
    assert load_trace(write(tmp_path / "good")).tokens.tolist() == [[1, 2, 3]]
    with pytest.raises(InputError, match=words):
        load_trace(write(tmp_path / "x", metadata, **tensors))


def test_claimed_sizes_are_checked_before_allocating_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = json.dumps({"embed": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(InputError, match=r"take 4,398,046,511,104 bytes, but 4 follow"):
        load_trace(tmp_path / "x")
    endless = json.dumps({"embed": {"dtype": "F32", "shape": [2**40, 2**40, 0], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "y").write_bytes(len(endless).to_bytes(8, "little") + endless)
    with pytest.raises(InputError):
        load_trace(tmp_path / "y")
    monkeypatch.setattr(trace_file, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="the limit is 100"):
        load_trace(write(tmp_path / "z"))


def test_paths_that_are_not_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would block forever
    (tmp_path / "text").write_text("hello")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nowhere", Path("/dev/zero"), tmp_path / ("n" * 5000), "\0"):
        for read in (load_trace, is_trace):
            with pytest.raises(InputError) as caught:
                read(path)
            assert len(str(caught.value)) < 500
    with pytest.raises(InputError, match="only 5 bytes"):
        load_trace(tmp_path / "text")
