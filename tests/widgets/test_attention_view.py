"""The attention view in a notebook: its messages, its selection, and its HTML file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xformer
from xformer.errors import InputError
from xformer.viz.packing import header_of
from xformer.widgets.attention_view import layers_of

REVERSE = "checkpoints/reverse"


def exact_of(message: bytes) -> tuple[list[int], np.ndarray]:
    """Return the head of a message of exact weights, and its numbers."""
    (length,) = struct.unpack_from("<I", message, 4)
    return json.loads(message[8 : 8 + length])["selected"], np.frombuffer(message, "<f4", offset=8 + length)


@pytest.fixture(scope="module")
def reading() -> xformer.Reading:
    return xformer.read(REVERSE, "3 7 12")


def test_exact_weights_follow_the_selected_head_and_planes_are_sent_once(reading: xformer.Reading) -> None:
    view, last = xformer.attention_view(reading), len(reading.attention) - 1
    assert [layer["name"] for layer in header_of(view._planes)["layers"]] == [site.path for site in reading.attention]
    sent: list[str] = []
    view.observe(lambda change: sent.append(change["name"]), ["_planes", "_exact"])
    for layer, head in ((0, 0), (last, 1)):
        view.layer, view.head = layer, head
        at, numbers = exact_of(view._exact)
        pattern = reading[f"{reading.attention[layer].path}.pattern"][0, head]
        assert at == [layer, head]
        np.testing.assert_array_equal(numbers, pattern.flatten().numpy())
    assert set(sent) == {"_exact"}


def test_missing_head_raises_and_keeps_the_selection() -> None:
    ones = [torch.ones(1, 2, 1, 1)]
    view = xformer.attention_view(ones)
    for name, value in (("layer", 99), ("head", -1)):
        with pytest.raises(InputError, match=f"{name} must be from 0 to .*, got {value}"):
            setattr(view, name, value)
    assert (view.layer, view.head) == (0, 0)
    for layer, head in ((-1, 0), (0, 2)):
        with pytest.raises(InputError, match=r"layer must be from 0 to 0, got -1|head must be from 0 to 1, got 2"):
            xformer.attention_view(ones, layer=layer, head=head)
    reading = xformer.read("checkpoints/reverse", "3 7 12 9")
    with pytest.raises(InputError, match="layer must be from 0 to 3, got 99"):
        xformer.save_html(reading, "view.html", layer=99)


def test_two_runs_are_compared_and_mismatched_runs_raise(reading: xformer.Reading) -> None:
    changed = xformer.read(REVERSE, "3 7 12", edits=f"ablate:{reading.attention[0].path}.0")
    view = xformer.attention_view(reading, changed=changed)
    assert len(header_of(view._planes)["layers"][0]["runs"]) == 2
    assert "compared with the same run under ablate:" in view.html()
    with pytest.raises(InputError, match="The changed run must have the shapes of the original"):
        xformer.attention_view(reading, changed=[torch.ones(1, 1, 2, 2)])


def test_saved_page_equals_save_html_and_has_a_caption(reading: xformer.Reading, tmp_path: Path) -> None:
    xformer.attention_view(reading).save_html(tmp_path / "a.html")
    xformer.save_html(reading, tmp_path / "b.html")
    text = (tmp_path / "a.html").read_text()
    assert text == (tmp_path / "b.html").read_text()
    assert f"reverse reads “{' '.join(reading.tokens)}”" in text
    assert len(text) < 3_000_000


def test_user_text_is_escaped_in_the_page() -> None:
    view = xformer.attention_view([torch.ones(1, 1, 2, 2) / 2], ["<script>alert(1)</script>", "b"])
    view._caption = ("</figcaption><script>alert(1)</script>",)
    assert "<script>alert" not in view.html()


BATCH, LAYERS, HEADS, N = 2, 3, 5, 7


def rows(*shape: int, causal: bool = False) -> torch.Tensor:
    """Return random patterns whose rows sum to 1."""
    scores = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    if causal:
        scores = scores.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(dim=-1)


def test_all_array_forms_give_the_same_layers() -> None:
    whole = rows(LAYERS, BATCH, HEADS, N, N)
    trained = [one.requires_grad_() for one in whole.clone()]
    for form in (tuple(whole), whole, [one[0] for one in whole], trained, whole.numpy().tolist()):
        found = layers_of(form)
        assert [layer.title for layer in found] == ["layer 1", "layer 2", "layer 3"]
        for layer, expected in zip(found, whole, strict=True):
            np.testing.assert_array_equal(layer.pattern, expected[0].numpy())
            assert layer.query_labels == tuple("0123456")
            assert not layer.is_masked
    [alone] = layers_of(whole[0, 0].bfloat16())
    np.testing.assert_array_equal(alone.pattern, whole[0, 0].bfloat16().float().numpy())


def test_causal_mask_is_recognised_only_without_weights_above_the_diagonal() -> None:
    pattern = rows(1, HEADS, N, N, causal=True)
    np.testing.assert_array_equal(layers_of([pattern])[0].allowed, np.tri(N, dtype=bool)[None])
    pattern[0, 4, 0, 1] = 1e-6
    assert not layers_of([pattern])[0].is_masked


def test_cross_attention_has_separate_query_and_key_tokens() -> None:
    [layer] = layers_of([rows(1, HEADS, 2, 3)], ["a", "b"], ["x", "y", "z"])
    assert (layer.query_labels, layer.key_labels) == (("a", "b"), ("x", "y", "z"))


def test_invalid_attentions_raise_a_clear_error() -> None:
    wrong: list[tuple[Any, list[str] | None, str]] = [
        ([], None, "There is no attention to draw: got no layers"),
        ([None, None], None, "One of the layers is None: the model did not return its attention"),
        ([torch.ones(3, 3)], None, r"layer 1 has the shape \[3, 3\]"),
        ([torch.ones(0, HEADS, 3, 3)], None, r"layer 1 has the shape \[0, 5, 3, 3\]"),
        ([torch.ones(1, 1, 3, 3)], ["a", "b"], "Layer 1 has 3 queries, but 2 tokens were given"),
        (["what"], None, "Attention weights must be arrays of numbers, got str"),
    ]
    for attentions, tokens, sentence in wrong:
        with pytest.raises(InputError, match=sentence):
            layers_of(attentions, tokens, tokens)
