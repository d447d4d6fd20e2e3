"""The search finds the input that a plain loop over the same inputs finds, and ends."""

from __future__ import annotations

import pytest

from tests.analysis.duel import random_variant, shipped, variant_of
from tests.analysis.test_scoring import sources_of
from tests.training.tiny import ARCHITECTURES
from xformer import edits
from xformer.analysis import comparison as module
from xformer.analysis.comparison import search
from xformer.analysis.generation import decode_steps, first_divergence
from xformer.edits import Edit
from xformer.errors import InputError


@pytest.mark.parametrize(
    ("architecture", "changes"), [*((name, ()) for name in ARCHITECTURES), ("decoder", (edits.set_causal(False),))]
)
def test_search_finds_the_first_input_where_two_models_differ(architecture: str, changes: tuple[Edit, ...]) -> None:
    """Includes a change that lets a model see ahead. The twin differs in one neuron, so on few inputs."""
    one = random_variant("one", architecture, seed=1)
    stack = "encoder" if architecture == "encoder" else "decoder"
    twin = variant_of("twin", one.model, one.task, (edits.ablate_neuron(f"{stack}.1.ffn", 3), *changes))

    def differs(source: list[int]) -> bool:
        return first_divergence([decode_steps(variant, source, forced=True) for variant in (one, twin)]) is not None

    expected = next(source for source in sources_of(one, 40, 4) if differs(source))
    *_, last = search([one, twin], within=40, seed=4)
    assert last.found == tuple(expected)


def test_a_search_ends_with_a_result_or_after_all_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    one, other = random_variant("one", "decoder"), random_variant("other", "decoder", seed=1)
    reports = list(search([one, variant_of("twin", one.model, one.task)], within=23))
    assert [(report.n_compared, report.found) for report in reports] == [(n, None) for n in (7, 14, 21, 23)]
    assert [report.n_compared for report in search([one, other], within=70)] == [7]
    with pytest.raises(InputError, match="needs two models"):
        next(search([one]))


def test_an_end_token_after_the_other_answer_ended_is_no_difference() -> None:
    """Both models are always right, but only the decoder has an end token."""
    *_, last = search([shipped("reverse"), shipped("reverse-decoder")], within=11)
    assert (last.n_compared, last.found) == (11, None)
