"""Steering is an addition to the stream and nothing else: the same as by hand, in our own models and in those of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_language_models import tokenizer
from xformer import analysis, edits
from xformer.analysis.generation import direction, steering_steps
from xformer.errors import EditError, InputError
from xformer.reading import Reading, rerun


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


@pytest.mark.xdist_group("transformers")
def test_so_it_is_in_a_stock_model_with_a_hook() -> None:
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
    ids, said = reading.trace.tokens, []
    with torch.no_grad():
        for _ in range(3):
            said.append(int(stock(input_ids=ids, use_cache=False).logits[0, -1].argmax()))
            ids = torch.cat([ids, torch.tensor([said[-1:]])], dim=1)
    assert table["steered_says"].tolist() == [reading.subject.labels[token] for token in said]
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
