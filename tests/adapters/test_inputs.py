"""Uploaded pictures have limits."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from xformer.adapters.inputs import keep_upload
from xformer.errors import InputError


def uploaded(width: int, height: int) -> str:
    Image.new("RGB", (width, height)).save(file := io.BytesIO(), "PNG")
    return keep_upload(file.getvalue())


@pytest.mark.parametrize(("width", "height"), [(1_700, 100), (1, 17), (40_000, 2)])
def test_a_picture_that_is_very_long_is_rejected(width: int, height: int) -> None:
    with pytest.raises(InputError, match=f"at most 16 times as long as the other; crop it, got {width} × {height}"):
        uploaded(width, height)
    assert uploaded(1_600, 100).startswith("upload-")
