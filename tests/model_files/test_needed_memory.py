"""What opening a model takes is asked before it is opened, and one sentence says where it is too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_files.small_files import a_model
from xformer.errors import NotEnoughMemoryError
from xformer.model_files import check_memory, inspect
from xformer.model_files.needed_memory import needed_bytes


def test_one_sentence(tmp_path: Path) -> None:
    contents = inspect(a_model(tmp_path / "tiny"))
    check_memory(contents, contents.needed)
    with pytest.raises(NotEnoughMemoryError) as error:
        check_memory(contents, 80_000_000)
    assert str(error.value) == (
        "tiny needs 120.0 MB of memory, 80.0 MB are free; close other models or take a smaller one."
    )


def test_what_was_measured_fits_and_not_much_more() -> None:
    """SmolLM2 took 0.72 GB more than an empty process from safetensors, 0.94 GB from its GGUF file.

    From bfloat16 it took 0.93 GB, 0.27 GB of which were pages of the file that the system may take back.
    """
    n = 134_515_008
    assert 0.72e9 <= needed_bytes(n, is_gguf=False) <= 0.72e9 * 1.2
    assert 0.94e9 <= needed_bytes(n, is_gguf=True) <= 0.94e9 * 1.2
