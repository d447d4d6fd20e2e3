"""Packed attention patterns are decoded here byte by byte, independently of how they were packed."""

import json
import struct

import numpy as np
import pytest

import xformer
from xformer.viz.packing import PatternLayer, apart, header_of, messages, pack, pattern_layers, visible

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
    """The header and the body, read from the documented layout alone."""
    assert packed[:4] == magic
    (length,) = struct.unpack("<I", packed[4:8])
    assert (8 + length) % 8 == 0
    return json.loads(packed[8 : 8 + length]), packed[8 + length :]


def unpack(packed: bytes) -> tuple[dict, list[list[np.ndarray]], list[np.ndarray]]:
    """The header, the planes [layer][run] and the exact blocks [run]."""
    header, body = parts(packed)
    planes = []
    for item in header["layers"]:
        size = item["heads"] * item["rows"] * item["cols"]
        shape = item["heads"], item["rows"], item["cols"]
        planes.append([np.frombuffer(body, np.uint8, size, run["offset"]).reshape(shape) for run in item["runs"]])
    assert header["exact"] % 4 == 0
    chosen = header["layers"][header["selected"][0]]
    floats = np.frombuffer(body, "<f4", -1, header["exact"]).reshape(-1, chosen["queries"], chosen["keys"])
    return header, planes, list(floats)


def test_planes_are_within_half_a_level_and_masked_cells_are_never_a_level():
    item = layer()
    header, planes, _ = unpack(pack([item]))
    peaks = np.array(header["layers"][0]["runs"][0]["peaks"])[:, None, None]
    plane = planes[0][0]
    allowed = np.broadcast_to(item.allowed, item.pattern.shape)
    assert plane.shape == (HEADS, QUERIES, KEYS)
    assert np.array_equal(plane == 255, ~allowed)
    error = np.abs((plane / 253) ** 2 * peaks - item.pattern)[allowed]
    assert error.max() <= (peaks / 253).max()
    assert np.array_equal(peaks[:, 0, 0].astype(np.float32), item.pattern.max((1, 2)))


def test_a_tiny_weight_of_a_diffuse_head_is_not_lost():
    pattern = np.full((1, 5, 512), 1 / 512, np.float32)
    item = PatternLayer("a", "a", pattern, np.ones((1, 1, 1), bool), ("x",) * 5, ("x",) * 512)
    _, planes, _ = unpack(pack([item], max_thumbnail=512))
    assert (planes[0][0] == 253).all()


def test_the_chosen_head_is_exact_and_its_masked_cells_are_infinite():
    items = [layer(0), layer(1)]
    _, _, floats = unpack(pack(items, selected=(1, 2)))
    allowed = items[1].allowed[0]
    assert np.array_equal(floats[0][allowed], items[1].pattern[2][allowed])
    assert np.isposinf(floats[0][~allowed]).all()


@pytest.mark.parametrize(("queries", "keys", "side"), [(7, 11, 4), (13, 5, 3), (11, 11, 1), (6, 4, 3)])
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


def test_a_pooled_block_is_masked_only_where_all_of_it_is():
    item = layer(3, queries=8, keys=8)
    _, planes, _ = unpack(pack([item], max_thumbnail=4, budget=0))
    blocks = np.broadcast_to(item.allowed, item.pattern.shape).reshape(HEADS, 4, 2, 4, 2).any((2, 4))
    assert np.array_equal(planes[0][0] == 255, ~blocks)


def test_what_is_not_a_number_is_shown_as_such_and_not_as_masked():
    item = layer(4, causal=False)
    item.pattern[1, 2, 3] = np.nan
    item.pattern[1, 2, 4] = np.inf
    header, planes, floats = unpack(pack([item], selected=(0, 1)))
    assert np.argwhere(planes[0][0] == 254).tolist() == [[1, 2, 3], [1, 2, 4]]
    assert np.isnan(floats[0][2, 3:5]).all()
    assert np.isfinite(header["layers"][0]["runs"][0]["peaks"]).all()


def test_full_resolution_while_it_fits_the_budget_and_thumbnails_beyond():
    item, whole = layer(5, queries=96, keys=96), (4 + HEADS) * 96 * 96
    packed = [header_of(pack([item], max_thumbnail=32, budget=budget)) for budget in (whole, whole - 1, 0)]
    assert [header["layers"][0]["rows"] for header in packed] == [96, 48, 32]


@pytest.mark.parametrize(("tokens", "limit"), [(128, 1_500_000), (512, 2_000_000)])
def test_six_layers_of_twelve_heads_stay_small(tokens: int, limit: int):
    labels = ("x",) * tokens
    pattern = np.full((12, tokens, tokens), 1 / tokens, np.float32)
    item = PatternLayer("a", "a", pattern, np.ones((1, 1, 1), bool), labels, labels)
    assert len(pack([item] * 6)) <= limit


def test_a_changed_run_travels_with_how_far_each_head_moved():
    before, after = layer(6), layer(7)
    header, planes, floats = unpack(pack([before], [after], selected=(0, 1)))
    moved = [0.5 * np.abs(before.pattern[h] - after.pattern[h]).sum(1).mean() for h in range(HEADS)]
    np.testing.assert_allclose(header["layers"][0]["moved"], moved, rtol=1e-5)
    assert len(planes[0]) == 2
    assert not np.array_equal(planes[0][0], planes[0][1])
    np.testing.assert_array_equal(floats[1][after.allowed[0]], after.pattern[1][after.allowed[0]])
    assert unpack(pack([before], [before]))[0]["layers"][0]["moved"] == [0, 0, 0]


def test_layers_of_different_shape_share_labels_that_are_equal():
    own, other = layer(8, queries=5, keys=5), layer(9, queries=5, keys=KEYS, heads=2)
    header, planes, _ = unpack(pack([own, other], selected=(1, 1)))
    assert [plane[0].shape for plane in planes] == [(3, 5, 5), (2, 5, 11)]
    assert header["layers"][0]["queryLabels"] == header["layers"][1]["queryLabels"]
    assert header["layers"][1]["queryLabels"] != header["layers"][1]["keyLabels"]


def test_equal_texts_of_encoder_and_decoder_stay_two_sequences():
    labels = ("a", "b")
    ones = np.ones((1, 2, 2), np.float32) / 2
    names = ["encoder.0.attn", "decoder.0.self_attn", "decoder.0.cross_attn"]
    items = [PatternLayer(name, name, ones, np.ones((1, 1, 1), bool), labels, labels) for name in names]
    encoder, own, cross = header_of(pack(items))["layers"]
    assert encoder["queryLabels"] == encoder["keyLabels"] == cross["keyLabels"]
    assert own["queryLabels"] == own["keyLabels"] == cross["queryLabels"] != cross["keyLabels"]


def test_the_digests_tell_another_choice_from_other_patterns():
    items = [layer(10), layer(11)]
    first, second = header_of(pack(items)), header_of(pack(items, selected=(1, 0)))
    assert first["content"] == second["content"]
    assert first["whole"] != second["whole"]
    assert header_of(pack([layer(10), layer(12)]))["content"] != first["content"]


@pytest.mark.parametrize("causal", [True, False])
def test_the_planes_are_one_message_for_every_head_and_a_head_is_another(causal: bool):
    same = {"queries": 7, "keys": 7, "causal": causal}
    items, others = ([layer(seed, **same) for seed in seeds] for seeds in ((12, 13), (14, 15)))
    packed = pack(items, others, selected=(1, 2))
    planes, head = messages(packed, "here")
    assert messages(pack(items, others, selected=(0, 1)), "here")[0] == planes
    header, rest, floats = unpack(packed)
    kept = header_of(planes)
    own = ("selected", "exact", "exactPool", "whole")
    assert kept == {"view": "here"} | {name: value for name, value in header.items() if name not in own}
    first = kept["layers"][0]["runs"][0]["offset"]
    assert np.array_equal(np.frombuffer(parts(planes)[1], np.uint8, 3 * 49, first).reshape(3, 7, 7), rest[0][0])
    about, body = parts(head, b"XATH")
    numbers = np.frombuffer(body, "<f4")
    assert (about["selected"], about["content"], about["isTriangle"]) == ([1, 2], header["content"], causal)
    cells = np.tril_indices(7) if causal else np.indices((7, 7)).reshape(2, -1)
    assert np.array_equal(numbers.reshape(2, -1), np.stack([block[*cells] for block in floats]))


def test_the_planes_of_the_original_are_a_message_of_their_own_that_no_change_alters():
    items, others = ([layer(seed) for seed in seeds] for seeds in ((12, 13), (14, 15)))
    planes, _ = messages(pack(items, others), "here")
    original, rest = apart(planes)
    assert apart(messages(pack(items), "here")[0])[0] == original
    header, whole = header_of(planes), unpack(pack(items, others))[1]
    (own, first), (kept, second) = parts(original, b"XATO"), parts(rest)
    assert len(first) == len(second) == 2 * HEADS * QUERIES * (KEYS + 1)
    assert (kept["original"], kept["content"]) == (own["content"], header["content"])
    assert kept | own["common"] == header | {"original": own["content"], "layers": kept["layers"]}
    for at, [planes_of_one, planes_of_other] in enumerate(whole):
        runs = [own["runs"][at], *kept["layers"][at]["runs"]]
        for body, run, expected in zip((first, second), runs, (planes_of_one, planes_of_other), strict=True):
            found = np.frombuffer(body, np.uint8, HEADS * QUERIES * KEYS, run["offset"])
            assert np.array_equal(found.reshape(HEADS, QUERIES, KEYS), expected)
        assert {**kept["layers"][at], "runs": None} == {**header["layers"][at], "runs": None}
    assert apart(messages(pack(others, items), "here")[0])[0] != original


@pytest.mark.parametrize(
    ("token", "shown"), [(" a b", "·a·b"), ("\n", "↵"), ("\t", "⇥"), ("", "∅"), ("\ud800x", "?x"), ("<b>é", "<b>é")]
)
def test_tokens_are_made_visible(token: str, shown: str):
    assert visible(token) == shown


def test_a_strange_token_survives_the_bytes():
    ones = np.ones((1, 1, 1), np.float32)
    item = PatternLayer("a", "a", ones, ones.astype(bool), ("</script>🙂",), ("\ud83d",))
    assert header_of(pack([item]))["labels"] == [["</script>🙂"], ["?"]]


def test_bytes_of_another_kind_and_a_changed_run_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="begins with b'XATT'"):
        header_of(b"PNG\x00\x00\x00\x00\x00")
    with pytest.raises(ValueError, match="begins with b'XSC1'"):
        header_of(pack([layer()]), b"XSC1")
    with pytest.raises(ValueError, match="shapes of the original"):
        pack([layer()], [layer(queries=5)])


def test_a_change_of_the_residual_stream_is_sent_with_a_changed_run():
    original = xformer.read("checkpoints/reverse-small", "3 7 12 9")
    ablated = xformer.read("checkpoints/reverse-small", "3 7 12 9", changes="ablate:encoder.1.attn.0")
    table = xformer.analysis.stream_moved(ablated, before=original)
    first, last = header_of(pack(pattern_layers(original), pattern_layers(ablated)))["layers"]
    assert first["stream"] == [0] * 5
    assert last["stream"] == pytest.approx(table["moved"].tolist()[5:], abs=1e-4)
    assert "stream" not in header_of(pack(pattern_layers(original)))["layers"][0]
