"""A head's score split by the sources of its query and key: the sum is exact, and reported sources agree with removing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.analysis.duel import of_family
from xformer import analysis, edits
from xformer.analysis.residual import attribution
from xformer.analysis.score_decomposition import (
    HeadInput,
    ScoreParts,
    Writer,
    check,
    contributions,
    deciding_sources,
    opposing_source,
    score_attribution,
    score_parts,
    stream_parts,
    without_source,
)
from xformer.errors import InputError, UnavailableError
from xformer.reading import Reading

SHIPPED = {"reverse-seq2seq": "3 7 12 5", "reverse-mirror": "3 7 12 5", "digits": "test 3"}


def cells(reading: Reading) -> list[tuple[int, int, int, int]]:
    """Return for each attention layer a head, a query, and a key that it may attend to."""
    found = []
    for layer, site in enumerate(reading.attention):
        scores = reading[f"{site.path}.scores"][0]
        head, query = scores.shape[0] - 1, scores.shape[1] - 1
        found.append((layer, head, query, torch.isfinite(scores[head, query]).nonzero()[:, 0].tolist()[0]))
    return found


def check_sums(reading: Reading) -> None:
    """Check that the parts sum to the score, and their advantages to the difference from the mean of the other keys."""
    for layer, head, query, key in cells(reading):
        row = reading[f"{reading.attention[layer].path}.scores"][0, head, query]
        frame = score_attribution(reading, layer=layer, head=head, query=query, key=key)
        assert not {"rounding", "unattributed"} & {*frame["query_source"], *frame["key_source"]}
        largest = max(1.0, row[torch.isfinite(row)].abs().max().item())
        assert frame["score"].sum() == pytest.approx(row[key].item(), abs=1e-4 * largest)
        others = torch.isfinite(row)
        others[key] = False
        if others.any():
            assert frame["advantage"].sum() == pytest.approx((row[key] - row[others].mean()).item(), abs=1e-4 * largest)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_parts_sum_to_the_score_in_our_models(name: str) -> None:
    check_sums(xformer.read(f"checkpoints/{name}", SHIPPED[name]))


@pytest.mark.parametrize("name", ["ALBERT", "Gemma2", "GPT-OSS", "Granite", "T5"])
def test_the_parts_sum_to_the_score_in_external_models(name: str) -> None:
    check_sums(of_family(name))


@pytest.mark.parametrize(
    ("name", "sentence"), [("Qwen3", "normalises its queries and keys"), ("BLOOM", "captured by the backend 'softmax'")]
)
def test_a_score_that_is_not_a_sum_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(UnavailableError, match=sentence):
        score_attribution(of_family(name), layer=1, head=0, query=4, key=2)


def test_the_parts_of_the_first_layer_match_a_product_by_hand() -> None:
    """reverse-small adds a position table to its token embeddings, so there are four products of their q and k."""
    reading = xformer.read("checkpoints/reverse-small", "3 7 12 5")
    attention = xformer.load("checkpoints/reverse-small").model.encoder.blocks[0].attn
    with torch.no_grad():
        token, place = reading["embed"][0], reading["pos_embed"]
        product = (place[0] @ attention.W_Q[0]) @ (token[3] @ attention.W_K[0]) / attention.d_head**0.5
    frame = score_attribution(reading, layer=0, head=0, query=0, key=3).set_index(["query_source", "key_source"])
    assert frame.loc[("position", "token"), "score"] == pytest.approx(product.item(), abs=1e-5)


def test_removing_a_source_of_an_external_model_matches_a_hook() -> None:
    """A hook on the original Llama removes what a head of layer 1 wrote from the queries of one head of layer 2."""
    stock = FAMILIES["Llama"].make()
    reading = of_family("Llama")
    first, second, head = stock.model.layers[0].self_attn, stock.model.layers[1], 3
    width = first.head_dim
    z = reading["decoder.0.attn.z"][0, 1]  # [pos, d_head]
    wrote = z @ first.o_proj.weight[:, width : 2 * width].T
    with torch.no_grad():
        left = second.input_layernorm(reading["decoder.1.resid_pre"][0] - wrote)  # [pos, d_model]
    rows = slice(head * width, (head + 1) * width)

    def without_it(module: Any, taken: Any, given: torch.Tensor) -> torch.Tensor:
        changed = given.clone()
        changed[..., rows] = left @ second.self_attn.q_proj.weight[rows].T
        return changed

    second.self_attn.q_proj.register_forward_hook(without_it)
    without = without_source(reading, layer=1, head=head, side="query", source="layer 1 · head 2")
    with torch.no_grad():
        by_hand = stock(input_ids=reading.trace.tokens).logits
    assert (without.logits - reading.logits).abs().max() > 1e-3
    torch.testing.assert_close(without.logits, by_hand, rtol=0, atol=1e-4)


def test_a_split_that_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = xformer.read("checkpoints/reverse", "3 7 12 5")
    monkeypatch.setattr("xformer.analysis.score_decomposition.free_bytes", lambda: 20_000)
    stream_parts(reading, "encoder", reading.attention[0])
    with pytest.raises(UnavailableError, match="choose an earlier layer, or type a shorter input"):
        score_attribution(reading, layer=3, head=0, query=0, key=0)


def test_the_advantage_over_another_key_is_the_difference_of_two_scores() -> None:
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7 12")
    found = score_parts(reading, layer=1, head=0, query=4, key=1, against=2)
    row = reading["decoder.1.attn.scores"][0, 0, 4]
    assert float(found.advantage.sum()) == pytest.approx((row[1] - row[2]).item(), abs=1e-4)


def test_masked_and_missing_cells_are_refused() -> None:
    reading = xformer.read("checkpoints/induction", "3 7 12 5")
    cells = ((0, 1, 3, "may not attend to"), (0, 9, 0, "query must be"), (5, 1, 0, "head must be"))
    for head, query, key, sentence in cells:
        with pytest.raises(InputError, match=sentence):
            score_attribution(reading, layer=1, head=head, query=query, key=key)


def test_a_vector_added_by_an_edit_is_an_unattributed_source() -> None:
    vector = torch.linspace(-1, 1, 64)
    steer = edits.steer("decoder.0.resid_post", vector, 2.0)
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7", edits=[steer])
    parts = stream_parts(reading, "decoder", reading.attention[1])
    assert [writer.name for writer in parts.writers][-1] == "unattributed"
    torch.testing.assert_close(parts.vectors[-1], (2.0 * vector).expand(len(parts.vectors[-1]), -1), atol=1e-4, rtol=0)
    unchanged = xformer.read("checkpoints/induction", "3 7 12 5 3 7")
    assert "unattributed" not in [writer.name for writer in stream_parts(unchanged, "decoder", None).writers]


def test_rounding_in_bfloat16_is_a_separate_source() -> None:
    reading = of_family("Llama", to=torch.bfloat16)
    parts = stream_parts(reading, "decoder", reading.attention[1])
    assert parts.writers[-1].kind == "rounding"
    recorded = reading["decoder.1.resid_pre"][0].float()
    torch.testing.assert_close(parts.total(), recorded, rtol=0, atol=1e-5)
    assert 0 < float(parts.vectors[-1].abs().max()) <= 2 * torch.finfo(torch.bfloat16).eps * float(recorded.abs().max())


def test_edited_queries_are_refused() -> None:
    changed = of_family("Llama", edits=[edits.scale("decoder.1.attn.q", 2.0)])
    with pytest.raises(UnavailableError, match=r"they miss \d+\.\d% of its largest number.*or an edit changed them"):
        score_attribution(changed, layer=1, head=0, query=4, key=2)


def test_sublayers_that_rounding_hides_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If only the attention of a block was found in bfloat16, its output may be that of the feed-forward layer."""
    reading = of_family("Llama", to=torch.bfloat16)
    shape = reading.adapter.shape
    less = dataclasses.replace(
        shape, layer_paths=tuple(site for site in shape.layer_paths if site.path != "decoder.0.ffn")
    )
    monkeypatch.setitem(vars(reading.adapter), "shape", less)
    reason = "In layer 1 attention and feed-forward could not be separated, because .* is rounded to bfloat16"
    with pytest.raises(UnavailableError, match=reason):
        score_attribution(reading, layer=1, head=0, query=4, key=2)
    with pytest.raises(UnavailableError, match=reason):
        attribution(reading, position=3)


def made(
    *, query: list[float], key: Sequence[float] = (), kind: str = "attention", removals: Any = None, weight: float = 0.9
) -> ScoreParts:
    """Build the parts of a score from contributions in nats, with four permitted keys; `kind` is for the first query source.

    By default, removals take away the contributions, and there are eight equal sources at the key.
    """
    total = sum(query)
    adds = {"query": query, "key": key or [total / 8] * 8}
    advantage = torch.zeros(len(query) + 1, len(adds["key"]) + 1, dtype=torch.float64)
    advantage[:-1, :-1] = torch.tensor(np.outer(query, adds["key"]) / total)
    left = {side: total - torch.tensor(taken) for side, taken in (adds | (removals or {})).items()}
    inputs = []
    for side, values in adds.items():
        writers = (Writer(f"{side} {at}", "attention" if at or side == "key" else kind) for at in range(len(values)))
        inputs.append(HeadInput(tuple(writers), torch.zeros(0), torch.zeros(0)))
    return ScoreParts(*inputs, advantage, advantage, left, total, total, weight, n_allowed=4)


def named(parts: ScoreParts) -> list[str]:
    return [one.title for one in deciding_sources(parts)]


def test_a_source_may_add_more_than_the_advantage_if_another_one_opposes_it() -> None:
    assert named(made(query=[5.0, 2.0, -1.0])) == ["query 0 at the query"]
    parts = made(query=[15.7, -11.6])
    assert named(parts) == ["query 0 at the query"]
    against = opposing_source(parts)
    assert against is not None
    assert (against.title, against.adds) == ("query 1 at the query", pytest.approx(-11.6))
    assert opposing_source(made(query=[3.0, -0.09])) is None


def test_no_source_is_reported_without_a_clear_reason() -> None:
    usual: dict[str, Any] = {"query": [5.0, 2.0]}
    assert named(made(**usual))
    for changed, reason in (
        ({"query": [5.0, 4.1]}, "the second source on the same side has more than 0.8 as much"),
        ({"weight": 0.24}, "less than a uniform share over four keys"),
        ({"query": [0.09]}, "an advantage of less than a tenth of a nat"),
        ({"query": [-5.0]}, "no advantage"),
        ({"kind": "unattributed"}, "an unattributed source has no name"),
        ({"kind": "rounding"}, "rounding is not a part of the model"),
        ({"removals": {"query": [1.0, 2.0]}}, "removing another source takes away more"),
        ({"removals": {"query": [5.0, 4.5]}}, "removing another source takes away about as much"),
        ({"removals": {"query": [-1.0, -2.0]}}, "removing it raises the advantage"),
        ({"removals": {"query": [3.4, 0.0], "key": [0.0] * 8}}, "removing it leaves more than half"),
    ):
        assert named(made(**{**usual, **changed})) == [], reason


def test_one_source_on_each_side_may_be_reported_together() -> None:
    assert named(made(query=[5.0, 2.0], key=[5.5, 1.5])) == ["key 0 at the key", "query 0 at the query"]
    assert named(made(query=[5.0, 2.0], key=[3.5, 3.5])) == ["query 0 at the query"]


def test_removing_a_reported_source_lowers_the_advantage_most() -> None:
    """In random cells with a reported source, each source on each side is removed in a run of its own."""
    reading = xformer.read("checkpoints/induction", "3 7 12 5 9 3 7 12")
    draw, n_named = np.random.default_rng(1), 0
    for _ in range(8):
        layer = int(draw.integers(len(reading.attention)))
        pattern = reading[f"{reading.attention[layer].path}.pattern"][0]  # [head, query, key]
        head, query = int(draw.integers(pattern.shape[0])), int(draw.integers(1, pattern.shape[1]))
        cell = {"layer": layer, "head": head, "query": query, "key": int(pattern[head, query].argmax())}
        parts = score_parts(reading, **cell)
        sources, measured = deciding_sources(parts), {}
        for one in contributions(parts) if sources else ():
            removed = {"layer": layer, "head": head, "side": one.side, "source": one.writer.name}
            without = without_source(reading, **removed, parts=parts)
            before, after = check(reading, without, **cell).set_index("what").loc["advantage"]
            measured[one.title] = before - after
            assert measured[one.title] == pytest.approx(one.removal, abs=1e-3)
        largest = sorted(measured, key=lambda title: -measured[title])[: len(sources)]
        assert {one.title for one in sources} == set(largest)
        assert all(measured[one.title] >= 0.5 * parts.total_advantage > 0 for one in sources)
        n_named += len(sources)
    assert n_named >= 3


def test_removing_distance_subtracts_the_position_bias_from_the_scores() -> None:
    reading = of_family("T5")
    site = reading.attention[0]
    without = without_source(reading, layer=0, head=1, source="distance")
    before, after = (run[f"{site.path}.scores"][0] for run in (reading, without))
    bias = reading[f"{site.path}.pos_bias"][0]
    seen = before[1].isfinite()
    torch.testing.assert_close(after[1][seen], (before[1] - bias[1])[seen])
    assert float(bias[1].abs().max()) > 0.01
    assert torch.equal(after[0], before[0])
    cell = {"layer": 0, "head": 1, "query": 3, "key": 1}
    [distance] = [one for one in contributions(score_parts(reading, **cell)) if one.side is None]
    was, now = check(reading, without, **cell).set_index("what").loc["advantage"]
    assert was - now == pytest.approx(distance.removal, abs=1e-4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(mode: Callable[[], AbstractContextManager[None]]) -> None:
    cell = {"layer": 1, "head": 0, "query": 4, "key": 1}
    models = ("checkpoints/induction", "3 7 12 5 3 7 12"), (FAMILIES["GPT-2"].make(), torch.tensor([[5, 6, 7, 8, 9]]))
    for model, inputs in models:
        reading = xformer.read(model, inputs)
        wanted, effects = analysis.score_attribution(reading, **cell), analysis.head_effects(reading)
        with mode():
            pd.testing.assert_frame_equal(analysis.score_attribution(reading, **cell), wanted)
            again = xformer.read(model, inputs if isinstance(inputs, str) else inputs.clone())
            pd.testing.assert_frame_equal(analysis.score_attribution(again, **cell), wanted)
            pd.testing.assert_frame_equal(analysis.head_effects(again), effects)
