"""The map of one head over a long input: what its data hold."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import xformer
from tests.adapters.families import GROUPED, tiny_model
from xformer.adapters.attention_sums import BLOCK
from xformer.errors import EditError
from xformer.long_inputs import AttentionSummary
from xformer.widgets import attention_map
from xformer.widgets.attention_map import map_data

N = 2 * BLOCK + 37


@pytest.fixture(scope="module")
def summary() -> AttentionSummary:
    model = tiny_model("MistralForCausalLM", {**GROUPED, "max_position_embeddings": 512, "sliding_window": 40})
    ids = torch.randint(3, 97, (1, N), generator=torch.Generator().manual_seed(0))
    return xformer.attention_summary(model, ids)


def parts(packed: bytes) -> dict[str, np.ndarray]:
    (length,) = struct.unpack_from("<I", packed, 4)
    header = json.loads(packed[8 : 8 + length])
    sizes = {"blocks": (9, "u1"), "starts": (N + 1, "<u4"), "permitted": (2 * N, "<u4")}
    sizes |= {"keys": (header["n_cells"], "<u4"), "weights": (header["n_cells"], "<f2")}
    at, found = 8 + length, {}
    for name, (n, kind) in sizes.items():
        found[name] = np.frombuffer(packed, kind, n, at)
        at += found[name].nbytes
    return found


def test_the_data_hold_every_weight_above_the_threshold(
    summary: AttentionSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = summary.weights(1, head=4).numpy()
    for n_bytes in (10**9, 6 * 900):
        monkeypatch.setattr(attention_map, "CELL_BYTES", n_bytes)
        packed, threshold = map_data(summary, layer=1, head=4)
        found = parts(packed)
        rows = np.repeat(np.arange(N), np.diff(found["starts"]))
        dense = np.zeros((N, N), np.float32)
        dense[rows, found["keys"]] = found["weights"]
        is_here = weights > threshold
        assert np.array_equal(dense > 0, is_here)
        assert np.allclose(dense[is_here], weights[is_here], rtol=1e-3)  # 16-bit floats
        assert (threshold == 0) == (n_bytes == 10**9)
        assert n_bytes > 10**6 or len(found["keys"]) <= 900


def test_the_data_hold_the_range_of_the_permitted_keys(summary: AttentionSummary) -> None:
    found = parts(map_data(summary, layer=0, head=0)[0])["permitted"].reshape(N, 2)
    query = np.arange(N)
    assert np.array_equal(found[:, 0], np.maximum(0, query - 39))
    assert np.array_equal(found[:, 1], query + 1)


def test_the_page_says_what_it_leaves_out(
    summary: AttentionSummary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "Every weight is in this file." in xformer.attention_map(summary, layer=0, head=0).page
    monkeypatch.setattr(attention_map, "CELL_BYTES", 6 * 900)
    found = xformer.attention_map(summary, layer=0, head=0)
    assert f"Single weights above {found.threshold:.2g} are in this file" in found.page
    found.save_html(tmp_path / "map.html")
    assert (tmp_path / "map.html").read_text(encoding="utf-8") == found.page
    with pytest.raises(EditError, match="heads 0 to 5"):
        xformer.attention_map(summary, layer=0, head=6)
