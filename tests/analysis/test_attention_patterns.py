"""Head scores, rollout of patterns whose numbers can be computed by hand; 5 heads, 7 positions."""

from __future__ import annotations

import math

import pytest
import torch

import xformer
from tests.training.tiny import random_model
from xformer.analysis.attention_patterns import (
    SCORES,
    TASK,
    Focus,
    attention,
    focus,
    head_scores,
    induction_scores,
    pattern_scores,
    renormalised,
    rollout_matrices,
)
from xformer.reading import from_trace
from xformer.trace import record

N = 7


def by_loops(pattern: list[list[float]], positions: list[int]) -> list[float]:
    """Compute the six scores, one query at a time."""
    n = len(positions)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    def at(query: int, key: int) -> float:
        return pattern[positions[query]][positions[key]]

    return [
        mean([at(i, i) for i in range(n)]),
        mean([at(i, n - 1 - i) for i in range(n)]),
        mean([at(i, i - 1) for i in range(1, n)]),
        mean([at(i, i + 1) for i in range(n - 1)]),
        mean([at(i, 0) for i in range(n)]),
        mean([-sum(p * math.log2(p) for p in pattern[query] if p > 0) for query in positions]),
    ]


@pytest.mark.parametrize("positions", [None, [1, 2, 4, 6], [3], []])
def test_only_the_given_positions_count_as_queries_and_keys(float64: None, positions: list[int] | None) -> None:
    patterns = torch.randn(5, N, N, generator=torch.Generator().manual_seed(1)).softmax(dim=-1)
    patterns[3], patterns[4, 2] = torch.eye(N), 0.0  # all weight on one key, and a query without any weight
    chosen = list(range(N)) if positions is None else list(positions)
    expected = [by_loops(head, chosen) for head in patterns.tolist()]
    found = pattern_scores(patterns, positions)
    assert found.shape == (5, 6)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-14)


def test_head_scores_has_one_row_per_head() -> None:
    model, tokens = random_model("encoder-decoder"), torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
    trace = record(model, tokens, tokens)
    frame = head_scores(from_trace(model, trace), positions=[0, 2, 3])
    assert list(frame.columns) == ["layer", "head", TASK, *SCORES, "induction"]
    layers = list(trace.attention_layers())
    assert len(layers) == 6
    assert list(zip(frame["layer"], frame["head"], strict=True)) == [(path, h) for path in layers for h in range(3)]
    for row in frame.to_dict("records"):
        pattern = trace[f"{row['layer']}.pattern"][0, row["head"]].tolist()  # the first input's
        assert [row[name] for name in SCORES] == pytest.approx(by_loops(pattern, [0, 2, 3]), abs=1e-6)


def test_weight_that_a_faulty_mask_lets_through_is_in_the_table() -> None:
    trace = record(random_model("decoder"), torch.arange(1, 6)[None])
    path = next(iter(trace.attention_layers()))
    trace.activations[f"{path}.pattern"][0, 1, 2, 4] = 0.125  # query 2 on a later key
    table = attention(from_trace(random_model("decoder"), trace), layer=0, head=1)
    leaked = table[(table["query"] == table["query"].unique()[2]) & (table["key"] == table["key"].unique()[4])]
    assert leaked[["allowed", "weight"]].to_numpy().tolist() == [[True, 0.125]]
    assert table["allowed"].sum() == 5 * 6 / 2 + 1


def test_with_keys_of_another_stream_the_ith_position_is_paired_with_the_ith_key() -> None:
    pattern = torch.zeros(1, 7, 7)
    for answer, source in ((3, 2), (4, 1), (5, 0)):  # answers at 3, 4, 5 attend to the source 0, 1, 2 in reverse
        pattern[0, answer, source] = 0.75
        pattern[0, answer, 6] = 0.25
    scores = dict(zip(SCORES, pattern_scores(pattern, [3, 4, 5], [0, 1, 2])[0].tolist(), strict=True))
    # One cell is on both diagonals.
    assert (scores["diagonal"], scores["anti_diagonal"], scores["first"]) == (0.25, 0.75, 0.25)
    assert scores["entropy"] == pytest.approx(-0.75 * math.log2(0.75) + 0.25 * 2, abs=1e-6)
    wide = torch.zeros(1, 3, 5)  # with 3 queries and 5 keys, the mirror key of query i is 4 − i
    wide[0, [0, 1, 2], [4, 3, 2]] = 1.0
    assert pattern_scores(wide)[0, 1] == 1.0


def test_induction_is_the_weight_on_the_token_after_an_earlier_occurrence() -> None:
    tokens = torch.tensor([5, 7, 2, 5, 7, 5])
    pattern = torch.zeros(2, 6, 6)
    pattern[0, 3, 1] = 0.5  # the second 5 attends to the token after the first
    pattern[0, 4, 2] = 0.25  # the second 7 likewise
    pattern[0, 5, 1], pattern[0, 5, 4] = 0.5, 0.25  # the third 5: two earlier ones
    pattern[1, 3, 2] = 1.0
    assert induction_scores(pattern, tokens) == pytest.approx([(0.5 + 0.25 + 0.75) / 3, 0.0])
    assert induction_scores(pattern, tokens, [0, 1, 2, 3]) == pytest.approx([0.5, 0.0])
    assert all(math.isnan(value) for value in induction_scores(pattern, torch.arange(6)))


def test_without_the_first_token_rows_sum_to_one_over_the_others() -> None:
    pattern = torch.tensor([[[[1.0, 0, 0], [0.9, 0.1, 0], [0.8, 0.05, 0.15]]]])
    torch.testing.assert_close(renormalised(pattern)[0, 0], torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0.25, 0.75]]))
    assert pattern[0, 0, 1, 0] == 0.9  # the input is not changed


def test_without_first_keeps_the_score_of_the_first_token() -> None:
    model = random_model("decoder")
    reading = from_trace(model, record(model, torch.arange(1, N + 1)[None]))
    whole, others = (head_scores(reading, without_first=out) for out in (False, True))
    assert whole["first"].tolist() == others["first"].tolist()
    path = reading.attention[0].path
    expected = pattern_scores(renormalised(reading[f"{path}.pattern"])[0], range(1, N))[:, 0]
    assert others["diagonal"][: len(expected)].tolist() == pytest.approx(expected.tolist())
    assert others["diagonal"].tolist() != whole["diagonal"].tolist()


def model_of(architecture: str, **options: object) -> xformer.Transformer:
    config = xformer.ModelConfig(
        architecture=architecture, vocab_size=23, d_model=13, n_layers=3, n_heads=5, d_head=7, d_ff=11, max_len=17,
        embed_std=1.0, **options,
    )  # fmt: skip
    return xformer.Transformer(config, torch.Generator().manual_seed(3)).double().eval()


def test_rollout_matches_its_equation() -> None:
    trace = xformer.record(model_of("encoder"), torch.arange(1, 12)[None])
    expected = torch.eye(11, dtype=torch.float64)
    for layer in range(3):
        pattern = trace[f"encoder.{layer}.attn.pattern"][0]
        mean = [[sum(pattern[head, q, k] for head in range(5)) / 5 for k in range(11)] for q in range(11)]
        expected = (0.5 * torch.tensor(mean, dtype=torch.float64) + 0.5 * torch.eye(11, dtype=torch.float64)) @ expected
        # float64 with another order of addition: a few ulps of numbers below 1
        torch.testing.assert_close(rollout_matrices(trace)[layer], expected, rtol=0, atol=1e-15)


def test_a_row_without_permitted_keys_counts_as_attending_to_itself() -> None:
    blind = model_of("encoder", causal=True, see_self=False)
    reached = rollout_matrices(xformer.record(blind, torch.arange(1, 12)[None]))
    torch.testing.assert_close(reached.sum(dim=-1), torch.ones(3, 11, dtype=torch.float64))
    assert torch.equal(reached, reached.tril())
    assert reached[:, 0, 0].tolist() == [1.0, 1.0, 1.0]


def test_notable_heads_lists_the_clearest_head_of_each_pattern_first() -> None:
    reading = xformer.read("checkpoints/reverse", "3 7 12 9 1 15")
    table = xformer.analysis.notable_heads(reading)
    assert table["pattern"].tolist()[:2] == ["task_pattern", "diagonal"]
    assert table["layer"].tolist()[0] == "encoder.2.attn"
    scores = xformer.analysis.head_scores(reading).set_index(["layer", "head"])
    for row in table.to_dict("records"):
        share = scores[row["pattern"]][(row["layer"], row["head"])]
        assert (row["share"], row["even"]) == pytest.approx((share, 1 / 6))


def test_a_share_near_that_of_uniform_attention_is_not_notable() -> None:
    """On the first test image uniform attention has 53% on ink; in "brackets" it has all that the task requires."""
    for model, typed, is_any in (("digits", "test 0", True), ("brackets", "( ( ) ) (", False)):
        assert xformer.analysis.notable_heads(xformer.read(f"checkpoints/{model}", typed)).empty != is_any
    # The uniform attention of a causal mask has 41% on the diagonal here.
    causal = xformer.read("checkpoints/reverse", "3 7 12 9 4 11", edits=[xformer.edits.set_causal(True)])
    assert "diagonal" not in xformer.analysis.notable_heads(causal)["pattern"].tolist()


def rows_on(*keys: int) -> torch.Tensor:
    """A pattern [query, key] of five tokens: a row per query, all on one key."""
    return torch.eye(5)[list(keys)]


REPEATED = torch.tensor([[3, 7, 3, 9, 7]])


@pytest.mark.parametrize(
    ("pattern", "causal", "expected"),
    [
        (rows_on(0, 0, 0, 0, 0), False, Focus("one_token", 1.0, 2 / 5, (0, 2))),  # the token 3 stands at 0 and 2
        (rows_on(3, 3, 3, 3, 3), False, Focus("one_token", 1.0, 1 / 5, (3,))),
        (rows_on(0, 1, 1, 1, 1), True, Focus("one_token", 0.8, (0 + 1 / 2 + 1 / 3 + 1 / 4 + 2 / 5) / 5, (1, 4))),
        (rows_on(1, 4, 1, 4, 1), False, Focus("one_token", 1.0, 2 / 5, (1, 4))),  # either alone has no more than 3 / 5
        (torch.full((5, 5), 0.2), False, Focus("uniform", 0.0)),
        (torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None], True, Focus("uniform", 0.0)),
        (0.05 * rows_on(1, 3, 4, 2, 0) + 0.19, False, Focus("uniform", 0.04)),
        (0.5 * rows_on(1, 3, 4, 2, 0) + 0.1, False, Focus("none")),
        (rows_on(0, 1, 2, 3, 4), False, Focus("none")),  # one of the patterns of `notable_heads`
    ],
)
def test_focus_is_the_token_that_all_queries_attend_to(pattern: torch.Tensor, causal: bool, expected: Focus) -> None:
    model = random_model("encoder", causal=causal)
    edit = xformer.edits.replace_pattern("encoder.1.attn", pattern)
    seen = focus(from_trace(model, record(model, REPEATED, edits=[edit])), layer=1, head=2)
    assert (seen.kind, seen.keys) == (expected.kind, expected.keys)
    assert (seen.share, seen.even) == pytest.approx((expected.share, expected.even), abs=1e-6, nan_ok=True)


def test_a_mask_that_leaves_one_key_is_no_choice_of_a_head() -> None:
    model = random_model("encoder")
    for allowed, kind in ((torch.eye(5) > 0, "one_key"), (torch.zeros(5, 5) > 0, "none")):
        edit = xformer.edits.set_mask("encoder.1.attn", allowed)
        assert focus(from_trace(model, record(model, REPEATED, edits=[edit])), layer=1, head=2).kind == kind


def test_the_stream_moves_only_after_the_ablated_head() -> None:
    original = xformer.read("checkpoints/reverse-small", "3 7 12 9")
    ablated = xformer.read("checkpoints/reverse-small", "3 7 12 9", edits="ablate:encoder.1.attn.0")
    table = xformer.analysis.stream_moved(ablated, before=original)
    assert table["layer"].unique().tolist() == ["encoder.0.attn", "encoder.1.attn"]
    first, last = (part["moved"].to_numpy() for _, part in table.groupby("layer"))
    assert (first == 0).all()
    own, other = (run["encoder.1.resid_post"][0] for run in (original, ablated))
    assert last == pytest.approx(((other - own).norm(dim=-1) / own.norm(dim=-1)).numpy())
    assert last.min() > 0.01


def test_an_untrained_model_has_no_notable_head() -> None:
    trained = xformer.load("checkpoints/reverse")
    untrained = xformer.Transformer(trained.config, torch.Generator().manual_seed(1)).eval()
    reading = xformer.read(xformer.Checkpoint(untrained, trained.task, {}), "3 7 12 9 1 15")
    assert xformer.analysis.notable_heads(reading).empty
