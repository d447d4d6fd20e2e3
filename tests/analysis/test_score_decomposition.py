"""A head's score split by the sources of its query and key: the sum is exact, and the named sources agree with a removal."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from tests.real_models import real_model
from xformer import edits
from xformer.analysis.residual import attribution
from xformer.analysis.score_decomposition import (
    HeadInput,
    ScoreParts,
    Writer,
    check,
    contributions,
    deciding,
    is_worth_a_word,
    opposing,
    score_parts,
    stream_parts,
    why,
    without_source,
)
from xformer.errors import InputError, UnavailableError
from xformer.reading import Reading
from xformer.trace import record

SHIPPED = {
    "reverse": "3 7 12 5", "reverse-small": "3 7 12 5", "reverse-seq2seq": "3 7 12 5", "reverse-decoder": "3 7 12 5",
    "reverse-modern": "3 7 12 5",
    "reverse-mirror": "3 7 12 5", "sort": "3 7 12 5", "induction": "3 7 12 5 3 7 12", "addition": "27+58", "parity": "1 0 1 1",
    "brackets": "( ( ) )", "modular": "3 5", "characters": "The list of", "digits": "test 3",
}  # fmt: skip


def cells(reading: Reading) -> list[tuple[int, int, int, int]]:
    """For each attention layer a head, a query, and two keys that it may look at."""
    found = []
    for layer, site in enumerate(reading.attention):
        scores = reading[f"{site.path}.scores"][0]
        head, query = scores.shape[0] - 1, scores.shape[1] - 1
        keys = torch.isfinite(scores[head, query]).nonzero()[:, 0].tolist()
        found.append((layer, head, query, keys[0]))
    return found


def check_sums(reading: Reading) -> None:
    """The parts sum to the score, and their advantages to the difference from the mean of the other keys."""
    for layer, head, query, key in cells(reading):
        row = reading[f"{reading.attention[layer].path}.scores"][0, head, query]
        frame = why(reading, layer=layer, head=head, query=query, key=key)
        assert not {"rounding", "unattributed"} & {*frame["query_source"], *frame["key_source"]}
        largest = max(1.0, row[torch.isfinite(row)].abs().max().item())
        assert frame["score"].sum() == pytest.approx(row[key].item(), abs=1e-4 * largest)
        others = torch.isfinite(row)
        others[key] = False
        if others.any():
            assert frame["advantage"].sum() == pytest.approx((row[key] - row[others].mean()).item(), abs=1e-4 * largest)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_parts_sum_to_the_score_of_every_shipped_model(name: str) -> None:
    check_sums(xformer.read(f"checkpoints/{name}", SHIPPED[name]))


INPUTS = {
    "ViT": {"pixel_values": torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))},
    "Whisper": {
        "input_features": torch.rand(1, 8, 26, generator=torch.Generator().manual_seed(0)),
        "decoder_input_ids": torch.tensor([[1, 5, 6, 7]]),
        "use_cache": False,
    },
}
SUMS = [
    name
    for name, family in FAMILIES.items()
    if family.backend == "attention_function" and name not in ("Qwen3", *INPUTS)
]


@pytest.mark.parametrize("name", SUMS)
def test_the_parts_sum_to_the_score_of_models_of_others(name: str) -> None:
    typed = (
        "the cat sat on the mat >> a bird then flew" if name in ("T5", "BART", "Marian") else "the cat sat on the mat"
    )
    check_sums(xformer.read(FAMILIES[name].make(), typed, tokenizer=tokenizer()))


@pytest.mark.parametrize("name", INPUTS)
def test_so_they_do_of_models_that_read_images_or_sounds(name: str) -> None:
    check_sums(xformer.read(FAMILIES[name].make(), INPUTS[name]))


@pytest.mark.parametrize(
    ("name", "sentence"), [("Qwen3", "normalises its queries and keys"), ("BLOOM", "captured by the backend 'softmax'")]
)
def test_a_score_that_is_no_sum_is_refused(name: str, sentence: str) -> None:
    reading = xformer.read(FAMILIES[name].make(), "the cat sat on the mat", tokenizer=tokenizer())
    with pytest.raises(UnavailableError, match=sentence):
        why(reading, layer=1, head=0, query=4, key=2)


def test_the_first_layers_parts_are_what_anyone_computes_by_hand() -> None:
    """reverse-small adds a table of places to its tokens: q and k of both, and their four products."""
    reading = xformer.read("checkpoints/reverse-small", "3 7 12 5")
    model = xformer.load("checkpoints/reverse-small").model
    attention = model.encoder.blocks[0].attn
    with torch.no_grad():
        token, place = reading["embed"][0], reading["pos_embed"]
        product = (place[0] @ attention.W_Q[0]) @ (token[3] @ attention.W_K[0]) / attention.d_head**0.5
    frame = why(reading, layer=0, head=0, query=0, key=3).set_index(["query_source", "key_source"])
    assert frame.loc[("position", "token"), "score"] == pytest.approx(product.item(), abs=1e-5)


def test_on_induction_the_head_before_carries_the_choice_and_taking_it_out_moves_the_pattern() -> None:
    """Over 60 cells: where a token stood before, the key after it is preferred for what layer 1's head wrote there."""
    through, whole, kept, weights, n = 0.0, 0.0, 0.0, 0.0, 0
    for seed in range(8):
        task = xformer.load("checkpoints/induction").task
        assert task is not None
        source = task.draw(seed)
        reading = xformer.read("checkpoints/induction", source)
        pattern = reading["decoder.1.attn.pattern"][0, 0]
        ids = reading.ids()
        without = xformer.read("checkpoints/induction", source, edits=[edits.ablate_head("decoder.0.attn", 0)])
        for query in range(3, len(ids)):
            earlier = [key for key in range(1, query) if ids[key - 1] == ids[query]]
            if not earlier or int(pattern[query].argmax()) != earlier[-1]:
                continue
            frame = why(reading, layer=1, head=0, query=query, key=earlier[-1])
            through += frame[(frame["key_layer"] == 0) & (frame["key_head"] == 0)]["advantage"].sum()
            whole += frame["advantage"].sum()
            weights += float(pattern[query, earlier[-1]])
            kept += float(without["decoder.1.attn.pattern"][0, 0][query, earlier[-1]])
            n += 1
    assert n >= 60
    assert through >= 0.8 * whole
    assert kept <= 0.2 * weights


def test_on_reverse_small_positions_carry_the_anti_diagonal_through_the_first_feed_forward() -> None:
    """Positions alone add few nats to it; with what the first feed-forward layer made of them they add most, and what that
    layer wrote depends on the position alone: its mean over other inputs does as well."""
    model = xformer.load("checkpoints/reverse-small").model
    tokens = torch.randint(1, 20, (64, 9), generator=torch.Generator().manual_seed(0))
    tokens[:, 8] = 20
    mean = record(model, tokens)["encoder.0.ffn.out"].mean(dim=0, keepdim=True)
    text = " ".join(map(str, tokens[0, :8].tolist()))
    reading = xformer.read("checkpoints/reverse-small", text)
    cells = pd.concat([why(reading, layer=1, head=0, query=query, key=7 - query) for query in range(8)])
    nats, whole = cells.groupby(["query_source", "key_source"])["advantage"].sum(), cells["advantage"].sum()
    sources = ["position", "layer 1 · feed-forward"]
    assert nats["position", "position"] < 0.15 * whole
    assert sum(nats[query, key] for query in sources for key in sources) >= 0.8 * whole

    def on_anti_diagonal(*changed: edits.AnyEdit) -> float:
        run = xformer.read("checkpoints/reverse-small", text, edits=changed)
        return float(run["encoder.1.attn.pattern"][0, 0, :8, :8].flip(-1).diagonal().mean())

    assert on_anti_diagonal() > 0.95
    assert on_anti_diagonal(edits.replace("encoder.0.ffn.out", mean)) > 0.95
    assert on_anti_diagonal(edits.scale("encoder.0.ffn.out", 0.0)) < 0.3


def test_the_check_on_induction_is_the_same_change_made_by_hand() -> None:
    """Layer 1's head out of the keys of layer 2's: normalised, projected and turned by hand, handed to `record`."""
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7 12")
    model = xformer.load("checkpoints/induction").model
    before, block = model.decoder.blocks[0].attn, model.decoder.blocks[1]
    with torch.no_grad():
        wrote = reading["decoder.0.attn.z"][0, 0] @ before.W_O[0]  # [pos, d_model]
        stream, norm = reading["decoder.1.resid_pre"][0], block.attn_residual.norm
        keys = reading["decoder.1.attn.k"].clone()
        k = (norm(stream - wrote) @ block.attn.W_K[0])[None, None]
        keys[:, :1] = block.attn.positions.turn(k, reading["decoder.1.attn.pos_angles"])
    by_hand = record(model, reading.trace.tokens, reading.trace.target, edits=[edits.replace("decoder.1.attn.k", keys)])
    without = without_source(reading, layer=1, head=0, side="key", source="layer 1 · head 1")
    assert (without.logits - reading.logits).abs().max() > 1
    torch.testing.assert_close(without.logits, by_hand.logits, rtol=0, atol=1e-3)


def test_the_check_on_a_model_of_others_is_the_same_change_made_in_it() -> None:
    """A hook on a stock Llama takes what a head of layer 1 wrote out of the queries of one head of layer 2."""
    stock = FAMILIES["Llama"].make()
    reading = xformer.read(FAMILIES["Llama"].make(), "the cat sat on the mat", tokenizer=tokenizer())
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


def test_what_takes_too_much_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = xformer.read("checkpoints/reverse", "3 7 12 5")
    monkeypatch.setattr("xformer.analysis.score_decomposition.free_bytes", lambda: 20_000)
    stream_parts(reading, "encoder", reading.attention[0])
    with pytest.raises(UnavailableError, match="choose an earlier layer, or type a shorter input"):
        why(reading, layer=3, head=0, query=0, key=0)


def test_against_another_key_it_is_the_difference_of_two_scores() -> None:
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7 12")
    found = score_parts(reading, layer=1, head=0, query=4, key=1, against=2)
    row = reading["decoder.1.attn.scores"][0, 0, 4]
    assert float(found.advantage.sum()) == pytest.approx((row[1] - row[2]).item(), abs=1e-4)


REFUSED_CELLS = [((0, 1, 3), "may not look at"), ((0, 9, 0), "query 0 to"), ((5, 1, 0), "head 0 to")]


CELLS = {"induction": "3 7 12 5 9 3 7 12", "reverse-small": "3 7 12 9 1 4", "characters": "The list of"}


@pytest.mark.parametrize(("cell", "sentence"), REFUSED_CELLS)
def test_a_cell_that_is_not_there_is_refused(cell: tuple[int, int, int], sentence: str) -> None:
    reading = xformer.read("checkpoints/induction", "3 7 12 5")
    with pytest.raises(InputError, match=sentence):
        why(reading, layer=1, head=cell[0], query=cell[1], key=cell[2])


def test_what_an_edit_adds_to_the_stream_is_a_source_of_its_own() -> None:
    vector = torch.linspace(-1, 1, 64)
    steer = edits.steer("decoder.0.resid_post", vector, 2.0)
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7", edits=[steer])
    parts = stream_parts(reading, "decoder", reading.attention[1])
    assert [writer.name for writer in parts.writers][-1] == "unattributed"
    torch.testing.assert_close(parts.vectors[-1], (2.0 * vector).expand(len(parts.vectors[-1]), -1), atol=1e-4, rtol=0)
    unchanged = xformer.read("checkpoints/induction", "3 7 12 5 3 7")
    assert "unattributed" not in [writer.name for writer in stream_parts(unchanged, "decoder", None).writers]


LOW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "BERT", "BART"])
def test_in_low_precision_the_parts_are_those_of_float32_but_for_rounding(name: str, dtype: torch.dtype) -> None:
    text = "the cat sat on the mat >> a bird then flew" if name == "BART" else "the cat sat on the mat"
    exact, low = (
        xformer.read(FAMILIES[name].make().to(to), text, tokenizer=tokenizer()) for to in (torch.float32, dtype)
    )
    eps = torch.finfo(dtype).eps
    for layer, head, query, key in cells(exact):
        frames = [
            why(reading, layer=layer, head=head, query=query, key=key)
            .groupby(["query_source", "key_source"])["advantage"]
            .sum()
            for reading in (exact, low)
        ]
        size = frames[0].abs().sum()
        row = low[f"{low.attention[layer].path}.scores"][0, head, query].double()
        assert frames[1].sum() == pytest.approx(
            score_parts(low, layer=layer, head=head, query=query, key=key).total_advantage,
            abs=8 * eps * row[row.isfinite()].abs().max().item(),
        )
        together = frames[1].reindex(frames[0].index, fill_value=0.0)
        assert (together - frames[0]).abs().max() <= 8 * eps * max(size, 1.0)


def test_what_rounding_does_to_the_stream_in_bfloat16_is_a_source_that_is_never_named() -> None:
    reading = xformer.read(FAMILIES["Llama"].make().to(torch.bfloat16), "the cat sat on the mat", tokenizer=tokenizer())
    parts = stream_parts(reading, "decoder", reading.attention[1])
    assert parts.writers[-1].kind == "rounding"
    recorded = reading["decoder.1.resid_pre"][0].float()
    torch.testing.assert_close(parts.total(), recorded, rtol=0, atol=1e-5)
    assert 0 < float(parts.vectors[-1].abs().max()) <= 2 * torch.finfo(torch.bfloat16).eps * float(recorded.abs().max())
    assert deciding(made(query=[(3.0, "rounding"), (1.0, "attention")])) == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_edited_queries_are_refused(dtype: torch.dtype) -> None:
    model, scaled = FAMILIES["Llama"].make().to(dtype), edits.scale("decoder.1.attn.q", 2.0)
    changed = xformer.read(model, "the cat sat on the mat", tokenizer=tokenizer(), edits=[scaled])
    with pytest.raises(UnavailableError, match=r"they miss \d+\.\d% of its largest number.*or an edit changed them"):
        why(changed, layer=1, head=0, query=4, key=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sublayers_that_rounding_hides_are_no_sources(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block in which only the attention was found: in bfloat16 its output may be that of the feed-forward layer."""
    reading = xformer.read(FAMILIES["Llama"].make().to(dtype), "the cat sat on the mat", tokenizer=tokenizer())
    shape = reading.subject.shape
    less = dataclasses.replace(shape, sites=tuple(site for site in shape.sites if site.path != "decoder.0.ffn"))
    monkeypatch.setitem(vars(reading.subject), "shape", less)
    assert reading.subject.shape.sites == less.sites
    if dtype == torch.float32:
        assert stream_parts(reading, "decoder", reading.attention[1]).writers[-1].name == "unattributed"
        assert attribution(reading, position=3)["part"].iloc[-1] == "unattributed"
        return
    reason = re.escape(
        "In layer 1 attention and feed-forward could not be separated: what they add is rounded to bfloat16."
    )
    with pytest.raises(UnavailableError, match=reason):
        why(reading, layer=1, head=0, query=4, key=2)
    with pytest.raises(UnavailableError, match=reason):
        attribution(reading, position=3)


def made(
    *,
    query: list[tuple[float, str]],
    key: list[tuple[float, str]] | None = None,
    removals: dict[str, list[float]] | None = None,
    weight: float = 0.9,
    n_allowed: int = 4,
) -> ScoreParts:
    """Parts of a score with these contributions in nats, the kind of source beside each; their removals take the same."""
    key = key or [(sum(adds for adds, _ in query) / 8, "attention")] * 8  # eight equal sources
    total = sum(adds for adds, _ in query)
    writers = {
        side: tuple(Writer(f"{side} {i}", kind) for i, (_, kind) in enumerate(of))
        for side, of in (("query", query), ("key", key))
    }
    rows, columns = ([adds / total for adds, _ in of] for of in (query, key))
    advantage = torch.zeros(len(query) + 1, len(key) + 1, dtype=torch.float64)
    advantage[:-1, :-1] = torch.tensor(np.outer(rows, columns) * total)
    nothing = torch.zeros(0)
    taken = {"query": [adds for adds, _ in query], "key": [adds for adds, _ in key], **(removals or {})}
    left = {"query": total - torch.tensor(taken["query"]), "key": total - torch.tensor(taken["key"])}
    return ScoreParts(
        HeadInput(writers["query"], nothing, nothing), HeadInput(writers["key"], nothing, nothing), advantage, advantage, left,
        total, total, weight, n_allowed,
    )  # fmt: skip


def named(parts: ScoreParts) -> list[str]:
    return [one.title for one in deciding(parts)]


def test_a_source_is_named_where_it_adds_most_and_its_removal_takes_most() -> None:
    assert named(made(query=[(5.0, "attention"), (2.0, "attention"), (-1.0, "attention")])) == ["query 0 at the query"]


def test_a_source_may_add_more_than_the_advantage_where_another_one_opposes_it() -> None:
    parts = made(query=[(15.7, "feed_forward"), (-11.6, "feed_forward")])
    assert named(parts) == ["query 0 at the query"]
    against = opposing(parts)
    assert against is not None
    assert (against.title, against.adds) == ("query 1 at the query", pytest.approx(-11.6))
    assert opposing(made(query=[(3.0, "attention"), (-0.09, "attention")])) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"query": [(5.0, "attention"), (4.1, "attention")]}, "the runner-up of the same side has more than 0.8 of it"),
        ({"weight": 0.24}, "less than an even share of four keys"),
        ({"query": [(0.09, "attention")]}, "an advantage of less than a tenth of a nat"),
        ({"query": [(-5.0, "attention")]}, "no advantage"),
        ({"query": [(5.0, "unattributed"), (1.0, "attention")]}, "not known what it is"),
        ({"removals": {"query": [1.0, 2.0]}}, "removing another one takes more"),
        ({"removals": {"query": [5.0, 4.5]}}, "removing another one takes about as much"),
        ({"removals": {"query": [-1.0, -2.0]}}, "removing it raises the advantage"),
        ({"removals": {"query": [3.4, 0.0], "key": [0.0] * 8}}, "removing it leaves more than half"),
    ],
)
def test_no_source_is_named_where(changed: dict[str, Any], reason: str) -> None:
    usual: dict[str, Any] = {"query": [(5.0, "attention"), (2.0, "attention")]}
    assert named(made(**usual))
    assert named(made(**{**usual, **changed})) == [], reason


def test_one_source_of_each_side_may_be_comparable_as_the_score_is_their_product() -> None:
    both = {"query": [(5.0, "attention"), (2.0, "attention")], "key": [(5.5, "attention"), (1.5, "attention")]}
    assert named(made(**both)) == ["key 0 at the key", "query 0 at the query"]
    assert named(made(**{**both, "key": [(3.5, "attention"), (3.5, "attention")]})) == ["query 0 at the query"]


@pytest.mark.parametrize("name", CELLS)
def test_every_source_that_is_named_lowers_the_advantage_most_when_a_run_of_the_model_goes_without_it(
    name: str,
) -> None:
    """Random cells: each source of each side is removed in a run of its own, wherever one is named."""
    reading, draw, n_named = xformer.read(f"checkpoints/{name}", CELLS[name]), np.random.default_rng(1), 0
    for _ in range(12):
        layer = int(draw.integers(len(reading.attention)))
        pattern = reading[f"{reading.attention[layer].path}.pattern"][0]  # [head, query, key]
        head, query = int(draw.integers(pattern.shape[0])), int(draw.integers(1, pattern.shape[1]))
        cell = {"layer": layer, "head": head, "query": query, "key": int(pattern[head, query].argmax())}
        parts = score_parts(reading, **cell)
        sources, measured = deciding(parts), {}
        for one in contributions(parts) if sources else ():
            without = without_source(
                reading, layer=layer, head=head, side=one.side, source=one.writer.name, parts=parts
            )
            before, after = check(reading, without, **cell).set_index("what").loc["advantage"]
            measured[one.title] = before - after
            assert measured[one.title] == pytest.approx(one.removal, abs=1e-3)
        largest = sorted(measured, key=lambda title: -measured[title])[: len(sources)]
        assert {one.title for one in sources} == set(largest)
        assert all(measured[one.title] >= 0.5 * parts.total_advantage > 0 for one in sources)
        n_named += len(sources)
    assert n_named >= 3


def test_nothing_is_said_of_a_cell_with_less_than_an_even_share() -> None:
    reading = xformer.read("checkpoints/induction", "3 7 12 5 3 7 12")
    few = score_parts(reading, layer=1, head=0, query=6, key=0)
    assert few.weight < 1 / few.n_allowed
    assert not is_worth_a_word(few)
    assert is_worth_a_word(score_parts(reading, layer=1, head=0, query=6, key=3))


def test_removing_the_bias_by_distance_leaves_the_score_without_it() -> None:
    reading = xformer.read(FAMILIES["T5"].make(), "the cat sat on the mat >> a bird then flew", tokenizer=tokenizer())
    site = reading.attention[0]
    without = without_source(reading, layer=0, head=1, source="distance")
    before, after = (run[f"{site.path}.scores"][0] for run in (reading, without))
    bias = reading[f"{site.path}.pos_bias"][0]
    seen = before[1].isfinite()
    torch.testing.assert_close(after[1][seen], (before[1] - bias[1])[seen])
    assert float(bias[1].abs().max()) > 0.01
    assert torch.equal(after[0], before[0])
    [distance] = [
        one for one in contributions(score_parts(reading, layer=0, head=1, query=3, key=1)) if one.side is None
    ]
    table = check(reading, without, layer=0, head=1, query=3, key=1).set_index("what")
    assert table.loc["advantage", "before"] - table.loc["advantage", "after"] == pytest.approx(
        distance.removal, abs=1e-4
    )


def test_a_trained_models_induction_head_finds_its_key_through_the_head_that_looks_one_back() -> None:
    """SmolLM2's layer 18 head 6, from 0: what a head that looks one back wrote at the key adds most."""
    text = "The cat sat on the mat. The dog ran in the park. The cat sat on the"
    reading = xformer.read(real_model("SmolLM2-135M-Instruct"), text)
    frame = why(reading, layer=18, head=6, query=15, key=2)
    by_key = frame.groupby(["key_layer", "key_head"])["advantage"].sum()
    layer, head = by_key.idxmax()
    assert head >= 0
    assert by_key.max() > 0.5 * frame["advantage"].sum()
    before = reading[f"decoder.{layer}.attn.pattern"][0, head]
    assert float(before.diagonal(-1).mean()) > 0.5
