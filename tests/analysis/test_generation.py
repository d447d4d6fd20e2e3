"""Decoded steps against a plain loop over the bare model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from tests.analysis.duel import (
    CHECKPOINTS,
    LAST,
    SHIPPED,
    SOURCE,
    greedy,
    random_variant,
    shipped,
    variant_of,
)
from tests.training.tiny import ARCHITECTURES
from xformer import analysis, edits
from xformer.analysis.comparison import ClippedEdges, Variant, joint_labels, sees_ahead, to_joint
from xformer.analysis.generation import (
    CONTINUATION_LENGTH,
    DecodedSteps,
    decode_steps,
    direction,
    divergence_by_step,
    first_divergence,
    kl,
    likeliest_tokens,
    predictions_by_step,
    same_context,
    steering_steps,
    total_variation,
)
from xformer.decoding import Sampling
from xformer.errors import EditError, InputError
from xformer.reading import Reading, rerun
from xformer.trace import record
from xformer.viz.generation import pack_steps

# Cached and whole passes add up the same < 100 products a number in another order, in float32 (6e-8 each).
ROUNDING = 2e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(5))
def test_greedy_steps_are_argmax_after_argmax(architecture: str, seed: int) -> None:
    variant = random_variant("random", architecture, seed=seed)
    example = variant.frame(SOURCE)
    for answer in (None, [token for token in example.labels[0].tolist() if token >= 0]):
        predicted, beliefs = greedy(variant, SOURCE, answer)
        result = decode_steps(variant, SOURCE, forced=answer is not None)
        assert list(result.predicted) == predicted
        assert list(result.read) == (predicted if answer is None else answer)
        torch.testing.assert_close(result.probabilities, torch.stack(beliefs), rtol=0, atol=ROUNDING)
        assert result.drawn_from.argmax(-1).tolist() == predicted
        assert result.probability(0) == result.probabilities[0, predicted[0]].item()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_trained_model_is_right_and_says_how_it_ended(name: str) -> None:
    variant = shipped(name)
    for source in ([1, 2, 3], [5, 5, 5, 5], list(range(1, 16))):
        for forced in (False, True):
            result = decode_steps(variant, source, forced=forced)
            expected = source[::-1] + ([] if variant.task.vocabulary.special.end is None else [20])
            assert list(result.predicted) == expected == list(result.answer)
            assert result.right == (True,) * len(expected)
            assert result.is_exact
            stops = not forced and variant.model.config.architecture != "encoder"
            assert result.ended == ("end token" if stops else "length of the right answer")


def test_it_ends_early_at_its_own_end_token_but_never_runs_past_the_right_answer() -> None:
    lengths, endings = set(), set()
    for seed in range(40):
        result = decode_steps(variant := random_variant("random", "decoder", seed=seed), SOURCE)
        lengths.add(len(result))
        endings.add(result.ended)
        assert (result.ended == "end token") == (result.predicted[-1] == variant.model.config.end_token)
        assert variant.model.config.end_token not in result.predicted[:-1]
        assert not result.is_exact
    assert max(lengths) == len(SOURCE) + 1
    assert min(lengths) < len(SOURCE)
    assert endings == {"end token", "length of the right answer"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_trace_of_a_step_ends_in_what_was_believed(architecture: str) -> None:
    variant = random_variant("random", architecture, edits=(edits.zero_positions(),))
    for forced in (False, True):
        result = decode_steps(variant, SOURCE, forced=forced)
        for step in range(len(result)):
            reading = result[step]
            [p] = reading.probabilities
            torch.testing.assert_close(p, result.probabilities[step], rtol=0, atol=ROUNDING)
            assert reading.predicted == result.predicted[step : step + 1]
            assert reading.answer == result.answer[step : step + 1]
            trace = reading.trace
            if architecture != "encoder":
                read = trace.tokens if architecture == "decoder" else trace.target
                assert read is not None
                assert read[0, len(read[0]) - step :].tolist() == list(result.read[:step])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_entropy_is_that_of_torch(architecture: str) -> None:
    variant = random_variant("random", architecture)
    result = decode_steps(variant, SOURCE)
    expected = torch.distributions.Categorical(result.probabilities.double()).entropy() / math.log(2)
    # Categorical normalises the float32 probabilities first: their sum is off by less than 1e-6
    torch.testing.assert_close(result.entropy(), expected, rtol=0, atol=1e-5)


def test_certainty_has_no_entropy_and_no_idea_has_the_most() -> None:
    variant = random_variant("random", "encoder")
    with torch.no_grad():
        variant.model.unembedding.weight.zero_()  # pyright: ignore[reportOptionalMemberAccess]
        variant.model.unembedding.bias.zero_()  # pyright: ignore[reportOptionalMemberAccess]
        flat = decode_steps(variant, SOURCE).entropy()
        torch.testing.assert_close(flat, torch.full((5,), 3.0, dtype=torch.float64))  # log₂ of 8 tokens
        variant.model.unembedding.bias[3] = 1000.0  # pyright: ignore[reportOptionalSubscript]
    assert decode_steps(variant, SOURCE).entropy().tolist() == [0.0] * 5


def test_the_same_seed_draws_the_same_tokens_whoever_draws_beside_it() -> None:
    hot = Sampling(temperature=2.0)
    runs = {}
    for seed in range(20):
        variant = random_variant("random", "encoder-decoder", sampling=hot, seed=0)
        variant = variant_of("random", variant.model, variant.task, sampling=hot, seed=seed)
        before = torch.get_rng_state()
        first, second = (decode_steps(variant, SOURCE) for _ in range(2))
        assert torch.equal(before, torch.get_rng_state())
        assert first.predicted == second.predicted
        assert all(first.drawn_from[step, token] > 0 for step, token in enumerate(first.predicted))
        runs[first.predicted] = seed
    assert len(runs) > 5


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_an_edge_of_a_position_that_is_still_to_come_waits_for_it(architecture: str) -> None:
    layer = "decoder.0.attn" if architecture == "decoder" else "decoder.0.self_attn"
    late = 9 if architecture == "decoder" else 4
    variant = random_variant(
        "random", architecture, edits=(edits.mask_edges(layer, [(late, key) for key in range(2, late + 1)]),)
    )
    example = variant.frame(SOURCE)
    whole = record(variant.model, example.stream, example.target, edits=variant.edits)
    plain = record(variant.model, example.stream, example.target)
    result = decode_steps(variant, SOURCE, forced=True)
    first = example.tokens.shape[1] - 1 if example.target is None else 0
    for step in range(len(result)):
        p = whole.logits[0, first + step].softmax(-1)
        torch.testing.assert_close(result.probabilities[step], p, rtol=0, atol=ROUNDING)
    assert not torch.allclose(whole.logits[0, late], plain.logits[0, late], atol=1e-2), "the edge should matter"
    assert decode_steps(variant, SOURCE).predicted  # free-running too
    beyond = variant_of("beyond", variant.model, variant.task, (edits.mask_edges(layer, [(16, 0)]),))
    with pytest.raises(EditError, match="no edge"):
        decode_steps(beyond, SOURCE)


def test_edges_that_are_there_are_cut_as_ever() -> None:
    mask = torch.ones(1, 3, 5, 5, dtype=torch.bool)
    growing = ClippedEdges("x", ((1, 2), (4, 4), (7, 0)), False, (2,))
    fixed = edits.SetEdges("x", ((1, 2), (4, 4)), False, (2,))
    assert torch.equal(growing.apply("x", mask), fixed.apply("x", mask))


def test_the_likeliest_tokens_come_first() -> None:
    variant = random_variant("random", "encoder")
    result = decode_steps(variant, SOURCE)
    top = result.top(2, 3)
    assert [token for token, _ in top] == result.probabilities[2].argsort(descending=True)[:3].tolist()
    assert [p for _, p in top] == result.probabilities[2].sort(descending=True).values[:3].tolist()
    assert len(result.top(2, 99)) == 8


def test_variants_of_every_architecture_share_labels() -> None:
    variants = [random_variant(a, a) for a in ARCHITECTURES]
    labels = joint_labels(variants)
    assert sorted(labels) == sorted({"pad", "end", "start", *"1234567"})
    for variant in variants:
        assert tuple(labels[i] for i in to_joint(variant, labels)) == variant.task.vocabulary.labels


def test_a_variant_is_loaded_with_its_changes_and_its_recipe() -> None:
    where = str(CHECKPOINTS / "reverse-decoder")
    sampling = Sampling(temperature=2.0, top_k=5)
    changes = "ablate:decoder.1.attn.0,token:1.9"
    loaded = Variant.load(where, "cut", causal=False, changes=changes, sampling=sampling, seed=3)
    assert loaded.edits == (edits.set_causal(False), edits.ablate_head("decoder.1.attn", 0))
    assert (loaded.name, loaded.sampling, loaded.seed) == ("cut", sampling, 3)
    assert loaded.frame([3, 7, 12]).source == (3, 9, 12)
    run = decode_steps(loaded, [3, 7, 12], forced=True)
    again = eval(run[2].recipe, {"xformer": xformer})
    assert torch.equal(again.logits, run[2].logits)
    assert (again.target_positions, again.answer, again.subject.name) == (
        run[2].target_positions,
        run[2].answer,
        "cut",
    )
    assert Variant.load(where, "own").recipe == f"xformer.analysis.Variant.load({where!r}, 'own')"
    assert decode_steps(random_variant("nowhere", "encoder"), SOURCE)[0].recipe is None


def test_an_ablated_player_is_not_the_original() -> None:
    whole = shipped("reverse-decoder")
    cut = shipped("reverse-decoder", "cut", edits=(edits.ablate_head(LAST["reverse-decoder"], 0),))
    assert decode_steps(whole, [3, 7, 12, 9, 1, 5]).is_exact
    assert not decode_steps(cut, [3, 7, 12, 9, 1, 5]).is_exact


def test_what_cannot_play_is_told_why() -> None:
    variant = random_variant("random", "encoder")
    with pytest.raises(InputError, match="needs a name"):
        variant_of("", variant.model, variant.task)
    with pytest.raises(InputError, match="reads at most 17"):
        decode_steps(variant, [1] * 18)
    with pytest.raises(InputError, match="takes the steps 0 to 4, got 5"):
        decode_steps(variant, SOURCE)[5]
    with pytest.raises(InputError, match="in training mode"):
        variant_of("busy", variant.model.train(), variant.task)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [(edits.set_causal(False), True), (edits.unmask_edges("*", [(0, 1)]), True), (edits.set_causal(True), False)],
)
def test_a_lifted_mask_lets_a_decoder_see_ahead(edit: edits.AnyEdit, expected: bool) -> None:
    variant = random_variant("changed", "decoder", edits=(edit,))
    assert sees_ahead(variant, variant.task) == expected


def test_the_continuation_of_a_text_is_neither_right_nor_wrong() -> None:
    variant = shipped("characters")
    text = variant.task.vocabulary.read("The list of ")
    after, along = decode_steps(variant, text), decode_steps(variant, text, forced=True)
    assert (len(after), after.answer, after.right, after.ended) == (
        CONTINUATION_LENGTH,
        (),
        (),
        "tokens that were asked for",
    )
    assert [after[step].target_positions for step in (0, 1)] == [(11,), (12,)]
    assert (len(along), len(along.answer), along.right) == (11, 11, ())
    assert not along.is_exact
    assert not any(one.has_right_answer for one in (after, along))
    torch.testing.assert_close(after[3].probabilities[0], after.probabilities[3], rtol=0, atol=ROUNDING)


def two_of(architecture: str, *, forced: bool = False, seeds: tuple[int, int] = (0, 1)) -> list[DecodedSteps]:
    variants = [random_variant(f"seed {seed}", architecture, seed=seed) for seed in seeds]
    return [decode_steps(variant, SOURCE, forced=forced) for variant in variants]


def test_divergences_are_those_of_torch() -> None:
    draw = torch.Generator().manual_seed(2)
    p, q = (torch.randn(13, 11, generator=draw, dtype=torch.float64).mul(3).softmax(-1) for _ in range(2))
    # double precision, sums of 11 terms below 20 each
    torch.testing.assert_close(kl(p, q), kl_divergence(Categorical(p), Categorical(q)), rtol=1e-12, atol=1e-13)
    brute = torch.tensor([max(sum(r[i] for i in range(11) if r[i] > 0) for r in [row]) for row in (p - q).tolist()])
    torch.testing.assert_close(total_variation(p, q), brute.double(), rtol=0, atol=1e-6)
    assert (kl(p, q) != kl(q, p)).all()
    torch.testing.assert_close(total_variation(p, q), total_variation(q, p), rtol=0, atol=0)


def test_divergences_worked_out_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.75, 0.0])
    assert kl(p, q).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-15)
    assert total_variation(p, q).item() == 0.25
    assert kl(p, torch.tensor([1.0, 0.0, 0.0])).item() == math.inf
    assert kl(torch.tensor([1.0, 0.0, 0.0]), p).item() == pytest.approx(math.log(2), abs=1e-15)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("forced", [False, True])
def test_a_variant_never_differs_from_itself(architecture: str, forced: bool) -> None:
    variant = random_variant("one", architecture)
    twin = variant_of("other", variant.model, variant.task)
    runs = [decode_steps(one, SOURCE, forced=forced) for one in (variant, twin)]
    assert first_divergence(runs) is None
    frame = divergence_by_step(runs)
    assert len(frame) == len(runs[0])
    for column in ("kl", "kl_back", "total_variation"):
        assert frame[column].tolist() == [0.0] * len(frame)  # exactly
    assert frame["same_token"].all()
    assert frame["same_context"].all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("forced", [False, True])
def test_the_first_divergence_is_that_of_two_plain_loops(architecture: str, forced: bool) -> None:
    partings = set()
    for seeds in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)):
        runs = two_of(architecture, forced=forced, seeds=seeds)
        answer = list(runs[0].answer) if forced else None
        one, other = (greedy(one.variant, SOURCE, answer)[0] for one in runs)
        expected = next((step for step, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        assert first_divergence(runs) == expected
        partings.add(expected)
    assert partings != {None}


def test_the_first_divergence_may_be_late_and_of_three_runs() -> None:
    a, b = two_of("encoder")
    *before, last = a.steps
    late = replace(a, steps=(*before, replace(last, predicted=(last.predicted + 1) % 8)))
    assert first_divergence([a, late]) == len(a) - 1
    assert first_divergence([a, a, late]) == len(a) - 1
    assert first_divergence([a]) is None
    assert first_divergence([a, late, b]) == first_divergence([a, b])


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_after_a_divergence_free_runs_read_different_tokens_and_forced_ones_do_not(architecture: str) -> None:
    free, forced = two_of(architecture, seeds=(2, 3)), two_of(architecture, forced=True, seeds=(2, 3))
    step = first_divergence(free)
    assert step is not None
    frame = divergence_by_step(free)
    assert frame["same_context"].tolist() == [at <= step for at in frame["step"]]
    assert divergence_by_step(forced)["same_context"].all()
    steps = predictions_by_step(free)
    both = steps[steps["step"] < min(map(len, free))]
    assert both["same_context"].tolist() == [at <= step for at in both["step"]]


def test_encoders_share_their_context_while_they_read_one_input() -> None:
    one, other = two_of("encoder")
    assert all(same_context(one, other, step) for step in range(5))
    elsewhere = decode_steps(other.variant, [1, 2, 3, 4, 5])
    assert not same_context(one, elsewhere, 0)


def test_vocabularies_are_joined_by_labels() -> None:
    encoder, decoder = random_variant("encoder", "encoder"), random_variant("decoder", "decoder")
    runs = [decode_steps(variant, SOURCE, forced=True) for variant in (encoder, decoder)]
    assert len(runs[0]) == 5  # no end token
    assert len(runs[1]) == 6
    frame = divergence_by_step(runs)
    assert frame["step"].tolist() == [0, 1, 2, 3, 4]
    for step, row in frame.iterrows():
        p, q = runs[0].probabilities[step].double(), runs[1].probabilities[step].double()  # pyright: ignore
        p, q = p / p.sum(), q / q.sum()
        assert row["total_variation"] == pytest.approx(((p - q[:8]).abs().sum() + q[8:].sum()).item() / 2, abs=1e-12)
        assert row["kl"] == pytest.approx((p * (p / q[:8]).log()).sum().item(), abs=1e-10)
        assert row["kl_back"] == math.inf  # the decoder may say "end", the encoder never
    assert all(pair["kl_back"] == [None] * 5 for pair in pack_steps(runs)["pairs"])
    json.dumps(pack_steps(runs), allow_nan=False)


def test_the_tables_hold_the_values_of_the_runs() -> None:
    runs = two_of("encoder-decoder")
    frame = predictions_by_step(runs)
    assert len(frame) == sum(map(len, runs))
    assert frame["step"].is_monotonic_increasing
    for row in frame.to_dict("records"):
        one = next(one for one in runs if one.name == row["model"])
        step = row["step"]
        assert row["token"] == one.labels[one.predicted[step]]
        assert row["answer"] == one.labels[one.answer[step]]
        assert row["right"] == (one.predicted[step] == one.answer[step])
        assert row["probability"] == one.probabilities[step, one.predicted[step]].item()
        assert row["answer_probability"] == one.probabilities[step, one.answer[step]].item()
        assert row["drawn"] == 1.0  # greedy
        assert row["entropy"] == one.entropy()[step].item()


def test_likeliest_tokens_are_those_of_every_run_and_the_right_one() -> None:
    runs = two_of("decoder", forced=True)
    for step in range(6):
        at = likeliest_tokens(runs, step, 2)
        expected = {runs[0].labels[runs[0].answer[step]]}
        for one in runs:
            expected |= {one.labels[token] for token, _ in one.top(step, 2)}
        assert set(at["token"]) == expected
        assert len(at) == 2 * len(expected)
        assert set(at["step"]) == {step}
        assert max(at["probability"].iloc[:2]) == max(at["probability"])  # the likeliest token comes first
        assert set(at[at["right"]]["token"]) == {runs[0].labels[runs[0].answer[step]]}
        for one in runs:
            own = at[at["model"] == one.name]
            assert own[own["predicted"]]["token"].tolist() == [one.labels[one.predicted[step]]]
    with pytest.raises(InputError, match="take the steps 0 to 5, got 6"):
        likeliest_tokens(runs, 6, 2)


def test_variants_need_different_names() -> None:
    one, _ = two_of("encoder")
    for frame in (predictions_by_step, divergence_by_step, pack_steps, partial(likeliest_tokens, step=0)):
        with pytest.raises(InputError, match="different names"):
            frame([one, one])


def test_four_runs_of_thirty_two_steps_are_one_small_message() -> None:
    sizes = {"max_len": 80}
    variants = [
        random_variant(f"model {seed}", "decoder", seed=seed, model=sizes, sampling=Sampling(temperature=1.0))
        for seed in range(4)
    ]
    source = [1 + step % 7 for step in range(31)]
    runs = [decode_steps(variant, source, forced=True) for variant in variants]
    assert [len(one) for one in runs] == [32] * 4
    message = pack_steps(runs)
    assert len(json.dumps(message, allow_nan=False, separators=(",", ":"))) < 1_000_000
    assert [len(model["predicted"]) for model in message["models"]] == [32] * 4
    assert len(message["pairs"]) == 6
    for one, sent in zip(runs, message["models"], strict=True):
        assert [message["labels"][token] for token in sent["predicted"]] == [
            one.labels[token] for token in one.predicted
        ]
        assert sent["top_probability"][7][0] == pytest.approx(one.probabilities[7].max().item(), abs=1e-6)


def readings(*typed: str) -> list[Reading]:
    return [xformer.read("checkpoints/characters", text) for text in typed]


def test_each_step_is_the_run_with_the_difference_added_to_its_stream() -> None:
    reading, towards, away = readings("The list of ", "THE CLASS", "the class")
    vector = towards["decoder.1.resid_post"][0, -1] - away["decoder.1.resid_post"][0, -1]
    torch.testing.assert_close(direction(towards, away, layer=1), vector)
    tokens = reading.ids()
    for step in steering_steps(reading, towards, away, layer=1, scale=2.0, n=3):
        plain = xformer.read("checkpoints/characters", tokens)
        stream = plain["decoder.1.resid_post"] + 2.0 * vector
        by_hand = rerun(plain, [edits.replace("decoder.1.resid_post", stream)]).logits[0, -1]
        torch.testing.assert_close(step.probabilities, by_hand.softmax(-1), rtol=0, atol=1e-5)
        tokens = [*tokens, step.token]


def test_steering_is_a_hook_on_a_stock_model() -> None:
    model = FAMILIES["Llama"].make()
    reading, towards, away = (
        xformer.read(model, text, tokenizer=tokenizer()) for text in ("the cat sat on", "the dog flew", "a bird saw it")
    )
    table = analysis.steered(reading, towards, away, layer=0, scale=3.0, n=3)
    stock = FAMILIES["Llama"].make()
    vector = 3.0 * direction(towards, away, layer=0)

    def add(module: Any, taken: Any, given: Any) -> Any:
        return given + vector if isinstance(given, torch.Tensor) else (given[0] + vector, *given[1:])

    stock.model.layers[0].register_forward_hook(add)
    ids, predicted = reading.trace.tokens, []
    with torch.no_grad():
        for _ in range(3):
            predicted.append(int(stock(input_ids=ids, use_cache=False).logits[0, -1].argmax()))
            ids = torch.cat([ids, torch.tensor([predicted[-1:]])], dim=1)
    assert table["steered_says"].tolist() == [reading.subject.labels[token] for token in predicted]
    assert table["says"].tolist() != table["steered_says"].tolist()


def test_at_scale_0_nothing_changes_and_the_other_way_is_another_way() -> None:
    three = readings("The list of ", "THE CLASS", "the class")
    same = analysis.steered(*three, layer=1, scale=0.0, n=4)
    assert same["says"].tolist() == same["steered_says"].tolist()
    there, back = (analysis.steered(*three, layer=1, scale=scale, n=4) for scale in (2.0, -2.0))
    assert there["steered_says"].tolist() != back["steered_says"].tolist()


def test_what_cannot_be_added_is_refused() -> None:
    reading, towards, away = readings("The list of ", "THE CLASS", "the class")
    with pytest.raises(InputError, match="has layers 0 to 3, got 4"):
        analysis.steered(reading, towards, away, layer=4)
    with pytest.raises(InputError, match="there is no direction"):
        analysis.steered(reading, towards, towards, layer=1)
    with pytest.raises(EditError, match="numbers can be added at its positions, got one"):
        rerun(reading, [edits.steer("decoder.1.resid_post", torch.ones(3))])
    with pytest.raises(EditError, match="must be finite numbers"):
        edits.steer("decoder.1.resid_post", torch.ones(3), float("inf"))


def test_an_addition_may_be_at_some_positions_only() -> None:
    [reading] = readings("The list of ")
    vector = torch.ones(reading["decoder.1.resid_post"].shape[-1])
    changed = rerun(reading, [edits.steer("decoder.1.resid_post", vector, 0.5, positions=[2])])
    moved = changed["decoder.1.resid_post"] - reading["decoder.1.resid_post"]
    torch.testing.assert_close(moved[0, 2], 0.5 * vector, rtol=0, atol=1e-5)
    assert not moved[0, 3].any()
