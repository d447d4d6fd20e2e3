"""Differences between runs: rows, patterns, lenses and predictions, compared with values computed by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from tests.analysis.duel import SOURCE, random_variant
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.analysis.comparison import Variant
from xformer.analysis.differences import (
    MEAN,
    GeneratedText,
    at_position,
    deciding_layers,
    decision_lens,
    decision_rows,
    first_difference,
    gap_fillings,
    lens_divergence,
    pattern_difference,
    pattern_incompatibility,
    pieces,
    prediction_difference,
    relabel,
    surprise_by_character,
)
from xformer.analysis.generation import decode_steps
from xformer.errors import EditError, InputError
from xformer.reading import Reading


def step_of(variant: Variant, step: int = 2) -> Reading:
    return decode_steps(variant, SOURCE, forced=True)[step]


def two_readings(architecture: str, step: int = 2) -> tuple[Reading, Reading]:
    one, other = (step_of(random_variant(f"seed {seed}", architecture, seed=seed), step) for seed in (0, 1))
    return one, other


def test_decision_rows_are_the_rows_of_the_deciding_position() -> None:
    reading, other = two_readings("encoder-decoder")
    [position] = reading.target_positions
    frame = decision_rows([reading])
    expected = [f"decoder.{layer}.{kind}" for layer in range(2) for kind in ("self_attn", "cross_attn")]
    assert list(dict.fromkeys(frame["layer"])) == expected
    for path in expected:
        weights, mask = (reading[f"{path}.{name}"][0, :, position] for name in ("pattern", "mask"))  # [head, key]
        tokens = reading.trace.tokens if "cross" in path else reading.trace.target
        assert tokens is not None
        for head in range(3):
            rows = frame[(frame["layer"] == path) & (frame["head"] == head)]
            assert rows["weight"].tolist() == weights[head].tolist()
            assert rows["allowed"].tolist() == mask[head].tolist()
            assert rows["token"].tolist() == [reading.adapter.token_labels[token] for token in tokens[0].tolist()]
        mean = frame[(frame["layer"] == path) & (frame["head"] == MEAN)]
        assert mean["weight"].tolist() == pytest.approx([sum(of_key) / 3 for of_key in weights.T.tolist()], abs=1e-12)
    both = decision_rows([reading, other])
    assert both[both["model"] == "seed 1"].reset_index(drop=True).equals(decision_rows([other]))


def test_pattern_differences_are_second_minus_first() -> None:
    one, other = two_readings("encoder-decoder")
    layers = [site.path for site in one.attention]
    for path in deciding_layers(one):
        for head in (2, MEAN):
            frame = pattern_difference([one, other], layers.index(path), head)
            patterns = [run[f"{path}.pattern"][0] for run in (one, other)]  # [head, query, key] each
            a, b = (heads.mean(dim=0) if head == MEAN else heads[head] for heads in patterns)
            assert len(frame) == a.numel()
            assert frame["difference"].abs().max() > 0.01
            keys = one.tokens_of("encoder" if "cross" in path else "decoder")
            assert frame["one"].tolist() == pytest.approx(a.flatten().tolist(), abs=1e-9)
            assert frame["difference"].tolist() == pytest.approx((b - a).flatten().tolist(), abs=1e-6)
            assert frame["one_allowed"].tolist() == one[f"{path}.mask"][0, 0].expand(a.shape).flatten().tolist()
            for row in frame.to_dict("records"):
                assert row["decides"] == ((row["query"],) == one.target_positions)
                assert row["key_token"] == keys[row["key"]]


def test_a_label_names_both_tokens_where_they_differ() -> None:
    variant = random_variant("one", "encoder")
    a, b = (decode_steps(variant, source)[0] for source in ([1, 2, 3], [1, 7, 3]))
    assert pattern_difference([a, b], 0)["key_token"].tolist()[:3] == ["1", "2 / 7", "3"]


def test_incompatible_patterns_are_refused_with_the_reason() -> None:
    encoder, other = two_readings("encoder")
    decoder, _ = two_readings("decoder")
    first = random_variant("seed 0", "encoder")
    wide = step_of(random_variant("five heads", "encoder", model={"n_heads": 5}))
    longer = decode_steps(first, [1, 2, 3, 4, 5, 6])[2]
    assert pattern_incompatibility(encoder, other) is None
    for two, reason in (
        (decoder, "seed 0 and seed 0 have different attention layers"),
        (wide, "seed 0 and five heads have different heads × queries × keys"),
        (longer, "different heads × queries × keys"),
        (step_of(first, 3), "different deciding positions"),
    ):
        with pytest.raises(InputError, match=reason):
            pattern_difference([encoder, two], 0)
    with pytest.raises(EditError, match="has heads 0 to 2 and -1 for their mean, got 3"):
        pattern_difference([encoder, other], 0, 3)


def frame_of(name: str, *tokens: str) -> pd.DataFrame:
    columns = {"depth": range(len(tokens)), "point": [f"p{i}" for i in range(len(tokens))], "token": tokens}
    return pd.DataFrame(columns | {"model": "".join(tokens) + name})


def test_lenses_diverge_where_they_differ_to_the_end() -> None:
    for other, expected in (("dbe", (2, "p2")), ("def", (0, "p0")), ("dec", None)):
        assert lens_divergence(pd.concat([frame_of("one", *"abc"), frame_of("other", *other)])) == expected
    with pytest.raises(InputError, match="have 2 and 3 points"):
        lens_divergence(pd.concat([frame_of("one", *"ab"), frame_of("other", *"abc")]))


TEXT = "the cat sat on the mat and the dog sat on the bird near the cat in the end"

CHANGE = "ablate:decoder.0.attn.2"


@pytest.fixture(scope="module")
def two() -> list[Reading]:
    model = HuggingFaceModel.open(FAMILIES["Llama"].make(), tokenizer(), "llama")
    return [xformer.read(model, TEXT), xformer.read(model, TEXT, edits=CHANGE)]


def test_the_divergence_at_each_position_matches_pytorch(two: list[Reading]) -> None:
    found = prediction_difference(two)
    assert len(found) == len(two[0].tokens)
    p, q = (run.logits[0].double().log_softmax(dim=-1) for run in two)
    expected = F.kl_div(q, p, reduction="none", log_target=True).sum(dim=-1)
    torch.testing.assert_close(torch.tensor(found["kl"]), expected, rtol=1e-6, atol=1e-9)
    assert found["other_says"].tolist() == [two[1].adapter.token_labels[token] for token in q.argmax(dim=-1)]
    assert prediction_difference([two[0], two[0]])["kl"].max() == 0


def test_different_vocabularies_are_refused(two: list[Reading]) -> None:
    other = xformer.read("checkpoints/characters", "def f(x):")
    with pytest.raises(InputError, match="llama and characters have different vocabularies"):
        prediction_difference([two[0], other])
    with pytest.raises(InputError, match="give both the same text"):
        prediction_difference([two[0], xformer.read(two[0].adapter, "the cat")])


def test_at_position_has_one_target_position(two: list[Reading]) -> None:
    last = len(two[0].tokens) - 1
    one = relabel(at_position(two[0], 3), "A")
    assert (one.target_positions, one.adapter.name) == ((3,), "A")
    lens = decision_lens([one])
    assert (set(lens["position"]), len(lens)) == ({3}, 5)  # before the two blocks, and after each of their sublayers
    with pytest.raises(InputError, match=f"position must be from 0 to {last}, got {last + 1}"):
        at_position(two[0], last + 1)


def test_a_gap_lists_the_likeliest_tokens_of_both_models() -> None:
    model = HuggingFaceModel.open(FAMILIES["BERT"].make(), tokenizer(), "bert")
    runs = [
        relabel(xformer.read(model, "the [MASK] sat on [MASK]", edits=edits), name)
        for name, edits in (("A", ""), ("B", "ablate:encoder.0.attn.1"))
    ]
    found = gap_fillings(runs, k=3)
    assert len(found.groupby(["gap", "model"])) == 4
    for (gap, name), rows in found.groupby(["gap", "model"]):
        run = runs["AB".index(name)]
        best = run.logits[0, run.target_positions[gap]].softmax(dim=-1).topk(3)
        found_values = rows.set_index("token")["probability"][
            [run.adapter.token_labels[token] for token in best.indices]
        ]
        assert found_values.tolist() == pytest.approx(best.values.tolist())


WORDS = ["dr", "ink", " to", " Mary", " John", "drink", "."]


def generated(*tokens: tuple[str, float]) -> GeneratedText:
    numbered = [(WORDS.index(word), p) for word, p in tokens]
    return GeneratedText.of(lambda ids: "".join(WORDS[one] for one in ids), numbered)


def test_texts_differ_at_a_character_however_they_are_tokenized() -> None:
    one = generated(("dr", 0.5), ("ink", 0.4), (" to", 0.9), (" Mary", 0.8))
    other = generated(("drink", 0.3), (" to", 0.7), (" John", 0.6))
    assert first_difference(one, other) == len("drink to ")
    assert pieces(one, other).round(9).to_dict("list") == {
        "from": [0, 5, 8],
        "A says": ["drink", " to", " Mary"],
        "tokens of A": [2, 1, 1],
        "p of A": [0.2, 0.9, 0.8],
        "B says": ["drink", " to", " John"],
        "tokens of B": [1, 1, 1],
        "p of B": [0.3, 0.7, 0.6],
    }


def test_a_text_does_not_differ_from_its_beginning() -> None:
    one, other = generated(("drink", 0.5)), generated(("dr", 0.5), ("ink", 0.5), (".", 0.5))
    assert first_difference(one, other) is None
    assert pieces(one, other)["A says"].tolist() == ["drink"]
    assert pieces(generated(("dr", 0.5)), generated((" to", 0.5)))["B says"].tolist() == [" to"]


def test_surprise_is_divided_among_the_characters_of_a_token() -> None:
    reading = xformer.read("checkpoints/characters", "import os")
    table = surprise_by_character([reading])
    assert table["bits"].mean() == pytest.approx(reading.loss / math.log(2), rel=1e-5)
    assert table["from"].tolist() == list(range(1, 9))
    assert (table["to"] - table["from"]).tolist() == [1] * 8
