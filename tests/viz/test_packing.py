"""Packed attention patterns, decoded byte by byte from the documented layout."""

import json
import struct

import numpy as np
import pytest

from xformer.viz.packing import Packed, PatternLayer, header_of, pack, visible

HEADS, QUERIES, KEYS = 3, 7, 11


def softmax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    exponents = np.where(allowed, np.exp(scores), 0)
    return (exponents / exponents.sum(-1, keepdims=True)).astype(np.float32)


def layer(seed: int = 0, *, heads: int = HEADS, queries: int = QUERIES, keys: int = KEYS, causal: bool = True):
    scores = np.random.default_rng(seed).normal(0, 3, (heads, queries, keys))
    allowed = np.tril(np.ones((1, queries, keys), bool)) if causal else np.ones((1, queries, keys), bool)
    labels = [tuple(f"t{i}" for i in range(n)) for n in (queries, keys)]
    return PatternLayer(f"encoder.{seed}.attn", f"layer {seed}", softmax(scores, allowed), allowed, *labels)


def parts(packed: bytes, magic: bytes = b"XATT") -> tuple[dict, bytes]:
    """Split packed data into header and body, by the documented layout."""
    assert packed[:4] == magic
    (length,) = struct.unpack("<I", packed[4:8])
    assert (8 + length) % 8 == 0
    return json.loads(packed[8 : 8 + length]), packed[8 + length :]


def planes_of(header: dict, body: bytes, at: int, run: dict) -> np.ndarray:
    layer = header["layers"][at]
    shape = layer["heads"], layer["rows"], layer["cols"]
    return np.frombuffer(body, np.uint8, int(np.prod(shape)), run["offset"]).reshape(shape)


def unpack(packed: Packed) -> tuple[dict, list[list[np.ndarray]], np.ndarray]:
    """Return the header, the planes [layer][run] and the exact weights [run, query, key] of the messages to the view "here"."""
    header, body = parts(packed.message("here"))
    planes = [[planes_of(header, body, at, run) for run in one["runs"]] for at, one in enumerate(header["layers"])]
    about, body = parts(packed.head("here"), b"XATH")
    assert (about["view"], about["content"], about["selected"]) == ("here", header["content"], list(packed.selected))
    rows, cols = about["exactSize"]
    sent = np.frombuffer(body, "<f4")
    if not about["isTriangle"]:
        return header, planes, sent.reshape(-1, rows, cols)
    exact = np.full((len(packed.runs), rows, cols), np.inf, np.float32)
    exact[:, *np.tril_indices(rows)] = sent.reshape(len(exact), -1)
    return header, planes, exact


def test_planes_round_to_the_nearest_level_and_masked_cells_have_none():
    item = layer()
    header, planes, _ = unpack(pack([item]))
    peaks = np.array(header["layers"][0]["runs"][0]["peaks"])[:, None, None]
    plane = planes[0][0]
    allowed = np.broadcast_to(item.allowed, item.pattern.shape)
    assert plane.shape == (HEADS, QUERIES, KEYS)
    assert np.array_equal(plane == 255, ~allowed)
    assert np.abs((plane / 253) ** 2 * peaks - item.pattern)[allowed].max() <= (peaks / 253).max()
    assert np.array_equal(peaks[:, 0, 0].astype(np.float32), item.pattern.max((1, 2)))


def test_small_weights_of_a_diffuse_head_are_kept():
    pattern = np.full((1, 5, 512), 1 / 512, np.float32)
    item = PatternLayer("a", "a", pattern, np.ones((1, 1, 1), bool), ("x",) * 5, ("x",) * 512)
    _, planes, _ = unpack(pack([item], max_thumbnail=512))
    assert (planes[0][0] == 253).all()


def test_selected_head_is_exact_with_infinite_masked_cells():
    items = [layer(0), layer(1)]
    _, _, floats = unpack(pack(items, selected=(1, 2)))
    allowed = items[1].allowed[0]
    assert np.array_equal(floats[0][allowed], items[1].pattern[2][allowed])
    assert np.isposinf(floats[0][~allowed]).all()


@pytest.mark.parametrize(("queries", "keys", "side"), [(7, 11, 4), (11, 11, 1)])
def test_pooling_keeps_the_largest_weight_of_every_block(queries: int, keys: int, side: int):
    item = layer(2, queries=queries, keys=keys, causal=False)
    header, planes, _ = unpack(pack([item], max_thumbnail=side, budget=0))
    record = header["layers"][0]
    tall, wide = record["pool"]
    assert max(record["rows"], record["cols"]) <= side
    peaks = np.array(record["runs"][0]["peaks"])[:, None, None]
    shown = (planes[0][0] / 253) ** 2 * peaks
    for head, row, col in np.ndindex(HEADS, record["rows"], record["cols"]):
        block = item.pattern[head, row * tall : (row + 1) * tall, col * wide : (col + 1) * wide]
        assert shown[head, row, col] == pytest.approx(block.max(), abs=peaks[head].item() / 253)


def test_nan_and_infinity_are_not_encoded_as_masked():
    item = layer(4, causal=False)
    item.pattern[1, 2, 3] = np.nan
    item.pattern[1, 2, 4] = np.inf
    header, planes, floats = unpack(pack([item], selected=(0, 1)))
    assert np.argwhere(planes[0][0] == 254).tolist() == [[1, 2, 3], [1, 2, 4]]
    assert np.isnan(floats[0][2, 3:5]).all()
    assert np.isfinite(header["layers"][0]["runs"][0]["peaks"]).all()


def test_changed_run_includes_how_far_each_head_moved():
    before, after = layer(6), layer(7)
    header, planes, floats = unpack(pack([before], [after], selected=(0, 1)))
    moved = [0.5 * np.abs(before.pattern[h] - after.pattern[h]).sum(1).mean() for h in range(HEADS)]
    np.testing.assert_allclose(header["layers"][0]["moved"], moved, rtol=1e-5)
    assert len(planes[0]) == 2
    assert not np.array_equal(planes[0][0], planes[0][1])
    np.testing.assert_array_equal(floats[1][after.allowed[0]], after.pattern[1][after.allowed[0]])
    assert pack([before], [before]).layers[0]["moved"] == [0, 0, 0]


def test_tokens_are_made_visible():
    tokens = {" a b": "·a·b", "\n": "↵", "\t": "⇥", "": "∅", "\ud800x": "?x", "<b>é": "<b>é"}
    assert {token: visible(token) for token in tokens} == tokens


def test_wrong_magic_and_mismatched_shapes_raise():
    with pytest.raises(ValueError, match="begins with b'XATT'"):
        header_of(b"PNG\x00\x00\x00\x00\x00")
    with pytest.raises(ValueError, match="begins with b'XSC1'"):
        header_of(pack([layer()]).message(""), b"XSC1")
    with pytest.raises(ValueError, match="shapes of the original"):
        pack([layer()], [layer(queries=5)])


def test_the_picture_of_all_heads_has_their_weights() -> None:
    from base64 import b64decode
    from io import BytesIO

    import torch
    from PIL import Image

    from xformer import attention_view

    pattern = np.zeros((1, 2, 4, 4), np.float32)  # [batch, head, query, key]
    pattern[0, 0, :, 0] = pattern[0, 1, :, 3] = 1.0
    view = attention_view([torch.tensor(pattern)] * 2, list("abcd"))
    image = np.asarray(Image.open(BytesIO(b64decode(view._page().split("base64,")[1].split('"')[0]))))
    assert image.shape == (2 * 68, 2 * 68, 3)
    first, last = image[5, 5], image[5, 60]
    assert first.sum() < 150 < last.sum()  # head 1 attends to the first key: dark at 1, light at 0
    assert (image[5, 68 + 60] == first).all()  # head 2 to the last one
    assert (image[66] == 255).all()  # between layers
