"""Two runs on one text, compared position by position against PyTorch's own divergence."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_language_models import tokenizer
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.analysis.differences import AT_ONCE, beliefs_apart, deciding_at, gap_fillings, named
from xformer.errors import InputError
from xformer.reading import Reading

pytestmark = pytest.mark.xdist_group("transformers")
TEXT = "the cat sat on the mat and the dog sat on the bird near the cat in the end"
CHANGE = "silence:decoder.0.attn.2"


@pytest.fixture(scope="module")
def two() -> list[Reading]:
    model = HuggingFaceModel.open(FAMILIES["Llama"].make(), tokenizer(), "llama")
    return [xformer.read(model, TEXT), xformer.read(model, TEXT, changes=CHANGE)]


def test_the_distance_at_each_position_is_pytorch_s(two: list[Reading]) -> None:
    found = beliefs_apart(two)
    assert len(found) == len(two[0].tokens) > AT_ONCE  # more than one portion
    p, q = (run.logits[0].double().log_softmax(dim=-1) for run in two)
    torch.testing.assert_close(
        torch.tensor(found["kl"]), F.kl_div(q, p, reduction="none", log_target=True).sum(dim=-1), rtol=1e-6, atol=1e-9
    )
    assert found["other_says"].tolist() == [two[1].subject.labels[token] for token in q.argmax(dim=-1)]
    assert beliefs_apart([two[0], two[0]])["kl"].max() == 0


def test_what_has_no_common_vocabulary_is_refused_with_the_reason(two: list[Reading]) -> None:
    other = xformer.read("checkpoints/characters", "def f(x):")
    with pytest.raises(InputError, match="llama and characters have different vocabularies"):
        beliefs_apart([two[0], other])
    with pytest.raises(InputError, match="give both the same text"):
        beliefs_apart([two[0], xformer.read(two[0].subject, "the cat")])


def test_one_output_is_asked_for_where_it_is_wanted(two: list[Reading]) -> None:
    last = len(two[0].tokens) - 1
    for position in (0, 3, last):
        one = named(deciding_at(two[0], position), "A")
        assert one.asked == (position,)
        assert one.subject.name == "A"
        assert set(xformer.analysis.decision_lens([one])["position"]) == {position}
        assert len(xformer.analysis.decision_lens([one])) == 5  # before the blocks, and after each part of both
    with pytest.raises(InputError, match=f"outputs 0 to {last}, got {last + 1}"):
        deciding_at(two[0], last + 1)


def test_a_gap_has_the_likeliest_of_both() -> None:
    model = HuggingFaceModel.open(FAMILIES["BERT"].make(), tokenizer(), "bert")
    runs = [
        named(xformer.read(model, "the [MASK] sat on [MASK]", changes=changes), name)
        for name, changes in (("A", ""), ("B", "silence:encoder.0.attn.1"))
    ]
    found = gap_fillings(runs, k=3)
    assert set(found["gap"]) == {0, 1}
    for gap, position in enumerate(runs[0].asked):
        for run in runs:
            rows = found[(found["gap"] == gap) & (found["player"] == run.subject.name)].set_index("token")
            p = run.logits[0, position].softmax(dim=-1)
            for value, token in zip(*p.topk(3), strict=True):
                assert rows["probability"][run.subject.labels[token]] == pytest.approx(value.item())
