"""A trace comes back from its file as it was, and whatever is not one gets a sentence."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.layers.reference import ARCHITECTURES, build, inputs
from xformer import trace_file
from xformer.errors import InputError
from xformer.trace import Trace, record
from xformer.trace_file import load_npz

GOOD = {"architecture": "encoder", "vocab_size": 5, "d_model": 4, "n_layers": 1, "n_heads": 1, "d_ff": 0, "max_len": 7}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_there_and_back(architecture: str, tmp_path: Path) -> None:
    trace = record(build(architecture=architecture), *inputs(build(architecture=architecture)))
    trace.save_npz(tmp_path / "trace.npz")
    back = load_npz(tmp_path / "trace.npz")
    assert isinstance(back, Trace)
    assert (back.config, list(back), back.edits) == (trace.config, list(trace), ())
    assert torch.equal(back.tokens, trace.tokens)
    assert (back.target is None) == (trace.target is None)
    for name in trace:
        assert back[name].dtype == trace[name].dtype
        assert torch.equal(back[name], trace[name])


def write(path: Path, **arrays: object) -> Path:
    given = {"config": np.array(json.dumps(GOOD)), "tokens": np.array([[1, 2, 3]])} | arrays
    np.savez(path, **{name: value for name, value in given.items() if value is not None})  # pyright: ignore
    return path


def test_the_smallest_trace_there_is(tmp_path: Path) -> None:
    assert load_npz(write(tmp_path / "x.npz")).tokens.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"config": None}, "has no 'config'"),
        ({"tokens": None}, "has no 'tokens'"),
        ({"config": np.array("{")}, "configuration cannot be read"),
        ({"config": np.array(json.dumps(GOOD | {"d_model": -3}))}, "d_model must be from 1"),
        ({"config": np.array(3)}, "configuration cannot be read"),
        ({"tokens": np.array([1, 2])}, "integers shaped"),
        ({"tokens": np.array([[1.5]])}, "integers shaped"),
        ({"tokens": np.array([[1, 7]])}, "from 0 to 4"),
        ({"target": np.array([[1]])}, "only for an encoder-decoder"),
        ({"embed": np.array(["text"])}, "plain numbers"),
        ({"embed": np.zeros(3, dtype=[("a", "f4")])}, "plain numbers"),
        ({"embed": np.zeros((1, 2), dtype=np.longdouble)}, "floats, integers and booleans"),
        ({"embed": np.zeros(3)}, "at least two axes"),
        ({"encoder.0.attn.pattern": np.zeros((2, 2))}, "A pattern must be"),
    ],
)
def test_what_is_no_trace_is_told(arrays: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        load_npz(write(tmp_path / "x.npz", **arrays))


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    class Boom:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.write_text, (tmp_path / "ran", "yes"))

    path = tmp_path / "x.npz"
    np.savez(path, config=np.array(json.dumps(GOOD)), tokens=np.array([[1]]), embed=np.array([Boom()], dtype=object))
    with pytest.raises(InputError, match="plain numbers, got object"):
        load_npz(path)
    assert not (tmp_path / "ran").exists()


def test_claims_are_checked_before_memory_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("embed.npy", header.getvalue() + b"1234")
    with pytest.raises(InputError, match="claims 4,398,046,511,104 bytes"):
        load_npz(tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(InputError, match="not an array"):
        load_npz(tmp_path / "y.npz")
    monkeypatch.setattr(trace_file, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="unpacks to"):
        load_npz(write(tmp_path / "z.npz"))


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_npz(tmp_path / "nowhere.npz")
    with pytest.raises(InputError, match="cannot be read"):
        load_npz(tmp_path)
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match="not a whole"):
        load_npz(tmp_path / "text.npz")
    whole = write(tmp_path / "cut.npz").read_bytes()
    for at in range(0, len(whole), 37):
        (tmp_path / "cut.npz").write_bytes(whole[:at])
        with pytest.raises(InputError):
            load_npz(tmp_path / "cut.npz")
    flipped = bytearray(whole)
    for at in range(0, len(whole), 11):
        flipped[at] ^= 0xFF
        (tmp_path / "flipped.npz").write_bytes(flipped)
        with contextlib.suppress(InputError):
            load_npz(tmp_path / "flipped.npz")
        flipped[at] ^= 0xFF
