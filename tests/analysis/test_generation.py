"""Decoded steps, compared with a plain loop over the model itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

import xformer
from tests.adapters.families import FAMILIES
from tests.analysis.duel import CHECKPOINTS, SOURCE, of_family, random_variant, shipped, variant_of
from tests.training.tiny import ARCHITECTURES
from xformer import analysis, edits
from xformer.analysis.comparison import Variant
from xformer.analysis.generation import (
    CONTINUATION_LENGTH,
    DecodedSteps,
    decode_steps,
    direction,
    divergence_by_step,
    first_divergence,
    kl,
    likeliest_tokens,
    next_tokens,
    predictions_by_step,
    total_variation,
)
from xformer.decoding import Sampling
from xformer.errors import EditError, InputError, UnavailableError
from xformer.reading import Reading, rerun
from xformer.trace import record
from xformer.viz.generation import pack_steps

# Cached and full passes add the same < 100 products per number in different orders, in float32 (6e-8 each).
ROUNDING = 2e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_trace_of_a_step_ends_in_its_prediction(architecture: str) -> None:
    variant = random_variant("random", architecture, edits=(edits.zero_positions(),))
    for forced in (False, True):
        result = decode_steps(variant, SOURCE, forced=forced)
        assert result.read == (result.answer if forced else result.predicted)
        p = result.probabilities.double()  # float32: they sum to 1 up to about 1e-6
        entropy = Categorical(p / p.sum(dim=-1, keepdim=True)).entropy() / math.log(2)
        torch.testing.assert_close(result.entropy(), entropy, rtol=0, atol=1e-5)
        for step in range(len(result)):
            reading = result[step]
            [p] = reading.probabilities
            torch.testing.assert_close(p, result.probabilities[step], rtol=0, atol=ROUNDING)
            assert reading.predicted == result.predicted[step : step + 1] == (int(p.argmax()),)
            assert reading.answer == result.answer[step : step + 1]
            trace = reading.trace
            if architecture != "encoder":
                read = trace.tokens if architecture == "decoder" else trace.target
                assert read is not None
                assert read[0, len(read[0]) - step :].tolist() == list(result.read[:step])


def test_the_same_seed_samples_the_same_tokens() -> None:
    plain, before, found = random_variant("random", "encoder-decoder"), torch.get_rng_state(), set()
    for seed in range(4):
        options = {"sampling": Sampling(temperature=2.0), "seed": seed}
        first, second = (decode_steps(variant_of("one", plain.model, plain.task, **options), SOURCE) for _ in range(2))
        assert first.predicted == second.predicted
        assert all(first.drawn_from[step, token] > 0 for step, token in enumerate(first.predicted))
        found.add(first.predicted)
    assert len(found) > 1
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_an_edge_applies_once_its_position_is_decoded(architecture: str) -> None:
    layer = "decoder.0.attn" if architecture == "decoder" else "decoder.0.self_attn"
    late = 9 if architecture == "decoder" else 4
    masked = edits.mask_edges(layer, [(late, key) for key in range(2, late + 1)])
    variant = random_variant("random", architecture, edits=(masked,))
    example = variant.to_example(SOURCE)
    whole = record(variant.model, example.input_ids, example.target, edits=variant.edits)
    plain = record(variant.model, example.input_ids, example.target)
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


def test_a_loaded_variant_has_its_changes_and_its_code() -> None:
    where = str(CHECKPOINTS / "reverse-decoder")
    sampling = Sampling(temperature=2.0, top_k=5)
    changes = "ablate:decoder.1.attn.0,token:1.9"
    loaded = Variant.load(where, "cut", causal=False, edits=changes, sampling=sampling, seed=3)
    assert loaded.edits == (edits.set_causal(False), edits.ablate_head("decoder.1.attn", 0))
    assert (loaded.name, loaded.sampling, loaded.seed) == ("cut", sampling, 3)
    assert loaded.to_example([3, 7, 12]).source == (3, 9, 12)
    run = decode_steps(loaded, [3, 7, 12], forced=True)
    again = eval(run[2].code, {"xformer": xformer})
    assert torch.equal(again.logits, run[2].logits)
    assert (again.target_positions, again.answer) == (run[2].target_positions, run[2].answer)
    assert again.adapter.name == "cut"
    assert Variant.load(where, "own").code == f"xformer.analysis.Variant.load({where!r}, 'own')"
    assert decode_steps(random_variant("nowhere", "encoder"), SOURCE)[0].code is None


def test_inputs_that_cannot_be_decoded_are_refused_with_the_reason() -> None:
    variant = random_variant("random", "encoder")
    for sentence, call in (
        ("needs a name", lambda: variant_of("", variant.model, variant.task)),
        ("reads at most 17", lambda: decode_steps(variant, [1] * 18)),
        ("has steps 0 to 4, got 5", lambda: decode_steps(variant, SOURCE)[5]),
        ("in training mode", lambda: variant_of("busy", variant.model.train(), variant.task)),
    ):
        with pytest.raises(InputError, match=sentence):
            call()


def test_the_continuation_of_a_text_has_no_right_answer() -> None:
    variant = shipped("characters")
    text = variant.task.vocabulary.read("The list of ")
    after, along = decode_steps(variant, text), decode_steps(variant, text, forced=True)
    assert (len(after), after.answer) == (CONTINUATION_LENGTH, ())
    assert [after[step].target_positions for step in (0, 1)] == [(11,), (12,)]
    assert (len(along), len(along.answer)) == (11, 11)
    assert {(one.has_right_answer, one.right) for one in (after, along)} == {(False, ())}
    torch.testing.assert_close(after[3].probabilities[0], after.probabilities[3], rtol=0, atol=ROUNDING)


def two_of(architecture: str, *, forced: bool = False, seeds: tuple[int, int] = (0, 1)) -> list[DecodedSteps]:
    variants = [random_variant(f"seed {seed}", architecture, seed=seed) for seed in seeds]
    return [decode_steps(variant, SOURCE, forced=forced) for variant in variants]


def test_divergences_match_torch() -> None:
    draw = torch.Generator().manual_seed(2)
    p, q = (torch.randn(13, 11, generator=draw, dtype=torch.float64).mul(3).softmax(-1) for _ in range(2))
    # double precision, sums of 11 terms below 20 each
    torch.testing.assert_close(kl(p, q), kl_divergence(Categorical(p), Categorical(q)), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(total_variation(p, q), (p - q).clamp(min=0).sum(dim=-1), rtol=0, atol=1e-6)
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.75, 0.0])
    assert kl(p, q).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-15)
    assert total_variation(p, q).item() == 0.25
    assert kl(p, torch.tensor([1.0, 0.0, 0.0])).item() == math.inf
    assert kl(torch.tensor([1.0, 0.0, 0.0]), p).item() == pytest.approx(math.log(2), abs=1e-15)


def test_the_first_divergence_may_be_late_and_in_one_of_three_runs() -> None:
    a, b = two_of("encoder")
    *before, last = a.steps
    late = replace(a, steps=(*before, replace(last, predicted=(last.predicted + 1) % 8)))
    assert first_divergence([a, late]) == len(a) - 1
    assert first_divergence([a, a, late]) == len(a) - 1
    assert first_divergence([a]) is None
    assert first_divergence([a, late, b]) == first_divergence([a, b])


def test_only_free_running_contexts_differ_after_a_divergence() -> None:
    free, forced = two_of("decoder", seeds=(2, 3)), two_of("decoder", forced=True, seeds=(2, 3))
    step = first_divergence(free)
    assert step is not None
    frame = divergence_by_step(free)
    assert frame["same_context"].tolist() == [at <= step for at in frame["step"]]
    assert divergence_by_step(forced)["same_context"].all()
    steps = predictions_by_step(free)
    both = steps[steps["step"] < min(map(len, free))]
    assert both["same_context"].tolist() == [at <= step for at in both["step"]]


def test_a_comparison_of_one_run_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="needs two models or more, got 1"):
        pack_steps(two_of("decoder")[:1])


def test_vocabularies_are_joined_by_labels() -> None:
    encoder, decoder = random_variant("encoder", "encoder"), random_variant("decoder", "decoder")
    runs = [decode_steps(variant, SOURCE, forced=True) for variant in (encoder, decoder)]
    assert [len(run) for run in runs] == [5, 6]  # an encoder has no end token
    frame = divergence_by_step(runs)
    assert frame["step"].tolist() == [0, 1, 2, 3, 4]
    for step, row in frame.iterrows():
        p, q = runs[0].probabilities[step].double(), runs[1].probabilities[step].double()  # pyright: ignore
        p, q = p / p.sum(), q / q.sum()
        assert row["total_variation"] == pytest.approx(((p - q[:8]).abs().sum() + q[8:].sum()).item() / 2, abs=1e-12)
        assert row["kl"] == pytest.approx((p * (p / q[:8]).log()).sum().item(), abs=1e-10)
        assert row["kl_back"] == math.inf  # only the decoder can predict "end"
    assert all(pair["kl_back"] == [None] * 5 for pair in pack_steps(runs)["pairs"])
    json.dumps(pack_steps(runs), allow_nan=False)
    for light, dark in (pair for name in ("hues", "pair_hues") for pair in pack_steps(runs)[name]):
        assert light != dark
        assert (len(light), light[0], len(dark), dark[0]) == (7, "#", 7, "#"), "a colour for each theme"


def test_the_table_of_predictions_has_the_values_of_the_runs() -> None:
    runs = two_of("encoder-decoder")
    frame = predictions_by_step(runs)
    assert len(frame) == sum(map(len, runs))
    assert frame["step"].is_monotonic_increasing
    for row in frame.drop(columns="same_context").to_dict("records"):
        one, step = next(one for one in runs if one.name == row["model"]), row["step"]
        token, answer = one.predicted[step], one.answer[step]
        assert row == {
            "step": step,
            "model": one.name,
            "token": one.labels[token],
            "probability": one.probabilities[step, token].item(),
            "drawn": 1.0,  # greedy
            "answer": one.labels[answer],
            "answer_probability": one.probabilities[step, answer].item(),
            "right": token == answer,
            "entropy": one.entropy()[step].item(),
        }


def test_likeliest_tokens_include_those_of_every_run_and_the_right_one() -> None:
    runs = two_of("decoder", forced=True)
    for step in (0, 5):
        at, right = likeliest_tokens(runs, step, 2), runs[0].labels[runs[0].answer[step]]
        expected = {one.labels[token] for one in runs for token in one.probabilities[step].topk(2).indices.tolist()}
        expected.add(right)
        assert (set(at["token"]), len(at), set(at["step"])) == (expected, 2 * len(expected), {step})
        assert max(at["probability"].iloc[:2]) == max(at["probability"])  # the likeliest token comes first
        assert set(at[at["right"]]["token"]) == {right}
        predicted = at[at["predicted"]].set_index("model")["token"].to_dict()
        assert predicted == {one.name: one.labels[one.predicted[step]] for one in runs}
    with pytest.raises(InputError, match="have steps 0 to 5, got 6"):
        likeliest_tokens(runs, 6, 2)


def test_next_tokens_are_a_softmax_at_a_temperature() -> None:
    story = xformer.read("checkpoints/characters", "The list of ")
    logits = story.logits[0, -1].double()
    for temperature in (0.5, 1.0, 2.0):
        found = next_tokens(story, temperature=temperature, k=3)
        p = torch.exp(logits / temperature) / torch.exp(logits / temperature).sum()
        assert found["probability"].tolist() == pytest.approx(p.sort(descending=True).values[:3].tolist(), rel=1e-9)
        assert found["token"].tolist() == [story.adapter.token_labels[token] for token in p.topk(3).indices.tolist()]
    assert next_tokens(story, temperature=0, k=2)["probability"].tolist() == [1.0, 0.0]
    with pytest.raises(InputError, match="0 or larger, got -1"):
        next_tokens(story, temperature=-1)
    with pytest.raises(UnavailableError, match="no next token"):
        next_tokens(xformer.read("checkpoints/reverse", "3 7 12 9"))


@pytest.fixture(scope="module")
def three() -> list[Reading]:
    """A text to continue, and the two texts that define the steering direction."""
    return [xformer.read("checkpoints/characters", text) for text in ("The list of ", "THE CLASS", "the class")]


def test_steering_matches_a_hook_on_the_original_model() -> None:
    reading, towards, away = (of_family("Llama", text) for text in ("the cat sat on", "the dog flew", "a bird saw it"))
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
    assert table["steered_says"].tolist() == [reading.adapter.token_labels[token] for token in predicted]
    assert table["says"].tolist() != table["steered_says"].tolist()


def test_invalid_steering_is_refused(three: list[Reading]) -> None:
    reading, towards, away = three
    with pytest.raises(InputError, match="has layers 0 to 3, got 4"):
        analysis.steered(reading, towards, away, layer=4)
    with pytest.raises(InputError, match="there is no direction"):
        analysis.steered(reading, towards, towards, layer=1)
    with pytest.raises(EditError, match="numbers can be added at its positions, got one"):
        rerun(reading, [edits.steer("decoder.1.resid_post", torch.ones(3))])
    with pytest.raises(EditError, match="must be finite numbers"):
        edits.steer("decoder.1.resid_post", torch.ones(3), float("inf"))
