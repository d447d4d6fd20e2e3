"""GGUF headers are checked against the file."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from tests.model_files.small_files import ARCHITECTURE, TOKENS, gguf, key, tensor, text
from xformer.errors import ModelFileError
from xformer.model_files import inspect
from xformer.model_files.headers import LONGEST, block_sizes, read_gguf_header

MANY = 2**60


def written(folder: Path, content: bytes) -> Path:
    file = folder / "m.gguf"
    file.write_bytes(content)
    return file


def test_a_gguf_header_is_read(tmp_path: Path) -> None:
    size = key("llama.block_count", 4, struct.pack("<I", 30))
    template = key("tokenizer.chat_template", 8, text("x" * 5_000))
    two = (tensor(), tensor("v", (8,), 0, 64))
    header = read_gguf_header(written(tmp_path, gguf((ARCHITECTURE, size, template, TOKENS), two, data=64 + 32)))
    assert (header.architecture, header.n_parameters) == ("llama", 64 + 8)
    assert header.values.items() >= {"llama.block_count": 30, "tokenizer.ggml.tokens": 2}.items()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gguf(magic=b"GGML"), "does not begin with the letters GGUF"),
        (b"", "it is truncated"),
        (gguf(version=3 << 24), "it is big-endian"),
        (gguf(n_tensors=MANY), "claims 1,152,921,504,606,846,976 tensors"),
        (gguf(data=39), "it is truncated: its tensors end at byte"),
        (gguf((struct.pack("<Q", MANY),)), "a string of 1,152,"),
        (gguf((key("a", 8, struct.pack("<Q", LONGEST)),)), "it is truncated"),
        (gguf((key("a", 9, struct.pack("<IQ", 8, MANY)),)), "its lists claim"),
        (gguf((key("a", 77, b""),)), "it has a value of type 77"),
        (gguf((ARCHITECTURE, ARCHITECTURE)), "names the key 'general.architecture' twice"),
        (gguf((ARCHITECTURE, key("general.alignment", 4, struct.pack("<I", 0)))), "alignment 0 is not a power of two"),
        (gguf(tensors=(tensor(kind=99),)), "has the unknown type 99"),
        (gguf(tensors=(tensor(shape=(31, 2)),)), "impossible shape"),
        (gguf(tensors=(tensor(shape=(2**40, 2**20)),)), "it is truncated: its tensors end at byte"),
        (gguf(tensors=(tensor(), tensor("v"))), "two of its tensors overlap"),
        (gguf(version=1), "it has version 1; little-endian files of versions 2 and 3 are read"),
        (gguf((key("a", 9, struct.pack("<IQ", 9, 1)),)), "it has a list of type 9"),
        (gguf(tensors=(tensor(shape=(32, 1, 1, 1, 1)),)), "claims 5 dimensions"),
        (gguf(tensors=(tensor(offset=8),)), "one is misaligned"),
        (gguf((TOKENS,)), "has no key general.architecture"),
        (gguf((ARCHITECTURE,)), "needs a key llama.block_count of at most its 1 tensors, got None"),
        (gguf((ARCHITECTURE, key("llama.block_count", 4, struct.pack("<I", 2)))), "its 1 tensors, got 2"),
        (gguf(tensors=()), "has no weights, only a vocabulary"),
    ],
)
def test_the_error_for_a_damaged_header_states_the_reason(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=reason) as error:
        inspect(written(tmp_path, content))
    assert "\n" not in str(error.value)


def test_without_the_package_gguf_the_error_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, gguf())
    inspect(file)
    monkeypatch.setitem(sys.modules, "gguf", None)
    block_sizes.cache_clear()
    with pytest.raises(ModelFileError, match=r"gguf.*pip install"):
        inspect(file)


def test_block_sizes_match_the_format() -> None:
    found = {kind: block_sizes()[kind] for kind in (0, 1, 2, 8, 12)}  # F32, F16, Q4_0, Q8_0, Q4_K
    assert found == {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144)}
