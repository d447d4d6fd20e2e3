"""A chart without anything to draw, and a wrong argument of a chart or a table, raise one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import xformer
from xformer import analysis, viz
from xformer.analysis.neuron_survey import Survey
from xformer.analysis.scoring import Agreement
from xformer.errors import XformerError
from xformer.reading import Reading


@pytest.mark.parametrize(
    ("model", "draw", "reason"),
    [
        ("reverse-mirror", viz.firing, "reverse-mirror has no feed-forward layers"),
        ("reverse", lambda r: viz.lens(r, positions=[99]), r"reads positions \[0, 1, 2, 3, 4\], got \[99\]"),
        ("reverse", viz.patch_cosines, "reads no image that is cut into patches"),
        ("reverse", lambda r: viz.head_effects(r, score="induction"), "No head has the score 'induction'"),
    ],
)
def test_a_chart_without_data_is_refused(model: str, draw: Callable[[Reading], object], reason: str) -> None:
    with pytest.raises(XformerError, match=reason):
        draw(xformer.read(f"checkpoints/{model}", "3 7 12 9 1"))


def survey() -> Survey:
    return analysis.survey("checkpoints/reverse-small", 8)


def counted() -> Agreement:
    variants = [analysis.Variant.load("checkpoints/reverse-decoder", name) for name in ("a", "b")]
    return analysis.agreement(variants, samples=2)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda r: analysis.accuracy(counted(), "size"), "by .* all, position, length, got 'size'"),
        (lambda r: analysis.confusion(counted(), "third"), "model .* a, b, got 'third'"),
        (lambda r: analysis.activations(r, layer=0, stage="out"), "stage must be one of pre, up, post, got 'out'"),
        (lambda r: analysis.activations(r, layer=0, positions=[5]), "positions must be from 0 to 4, got 5"),
        (lambda r: analysis.answer_path(r, position=-1), "position must be from 0 to 4, got -1"),
        (lambda r: analysis.attribution(r, position=0, token=20), "token must be from 0 to 19, got 20"),
        (lambda r: analysis.cosines(r, positions=[5]), "positions must be from 0 to 4, got 5"),
        (lambda r: analysis.exciting_inputs(survey(), layer=0, neuron=-1), "neuron must be from 0 to .*, got -1"),
        (lambda r: analysis.head_effects(r, position=5), "position must be from 0 to 4, got 5"),
        (lambda r: analysis.head_scores(r, look="right"), "look must be one of answer, source, got 'right'"),
        (lambda r: analysis.neighbours(r, token=20), "token must be from 0 to 19, got 20"),
        (lambda r: analysis.neuron(r, layer=0, neuron=512), "neuron must be from 0 to 511, got 512"),
        (lambda r: analysis.neurons(r, layer=0, position=5), "position must be from 0 to 4, got 5"),
        (lambda r: analysis.norms(r, [5]), "positions must be from 0 to 4, got 5"),
        (lambda r: analysis.position_curves(r, dimensions=[16]), "dimensions must be from 0 to 15, got 16"),
        (lambda r: analysis.position_values(r, kind="sines"), "kind must be one of .*sinusoidal.*, got 'sines'"),
        (lambda r: analysis.position_values(r, stack="decoder"), "stack must be one of None, encoder, got 'decoder'"),
        (lambda r: analysis.promotion(r, layer=3, position=1.5), "position must be a whole number, got 1.5"),
        (lambda r: analysis.projection(r, stack="left"), "stack must be one of None, encoder, decoder, got 'left'"),
        (lambda r: analysis.score_attribution(r, layer=1, head=0, query=4, key=1, against=5), "against .* 0 to 4, got 5"),
        (lambda r: analysis.triggers(survey(), layer=-1), "layer must be from 0 to .*, got -1"),
        (lambda r: analysis.vectors(r, part="word"), "part must be one of tokens, positions, sum, got 'word'"),
        (lambda r: viz.activations(r, layer=0, order="size"), "order must be one of sorted, plain, got 'size'"),
        (lambda r: viz.attention(r, layer=0, head=0, scale="rest"), "scale must be one of fixed, own, log, .*, got 'rest'"),
        (lambda r: viz.attention_arcs(r, layer=0, heads=[0], scale="rest"), "scale must be one of .*, got 'rest'"),
        (lambda r: viz.attention_grid(r, scale="rest"), "scale must be one of .*, got 'rest'"),
        (lambda r: viz.attention_steps(r, layer=0, head=0, query=0, key=0, step="q"), "step .* product, .*, got 'q'"),
        (lambda r: viz.norms(r, what="sum"), "what must be one of stream, added, got 'sum'"),
        (lambda r: viz.projection(r, axes=4), "axes must be one of 2, 3, got 4"),
        (lambda r: viz.softmax_saturation(what="least"), "what must be one of largest, gradient, got 'least'"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_with_the_valid_values(call: Callable[[Reading], object], reason: str) -> None:
    with pytest.raises(XformerError, match=reason):
        call(xformer.read("checkpoints/reverse", "3 7 12 9 1"))
