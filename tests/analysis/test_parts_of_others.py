"""The parts of a logit of models that are not ours sum to it, whatever norms, biases, factors and caps a family has."""

from __future__ import annotations

import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.real_models import real_model
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.huggingface_opening import example_inputs
from xformer.analysis.logit_lens import lens_logits
from xformer.analysis.residual import attribution, norms, stream
from xformer.edits import ablate_head
from xformer.errors import UnavailableError
from xformer.reading import Reading, from_trace, read
from xformer.tasks.task import Example

pytestmark = pytest.mark.xdist_group("transformers")
BY_HEADS = [
    "GPT-2",
    "GPT-NeoX",
    "OPT",
    "Llama",
    "Qwen3",
    "Gemma2",
    "Mixtral",
    "Granite",
    "T5",
    "BART",
    "Marian",
    "BLOOM",
    "GPT-J",
]
NOT_A_SUM = ["BERT", "DistilBERT"]
POSITION, TOKEN = 3, 5


def reading_of(family: str, *edits: object) -> Reading:
    """One run of a tiny model of a family, its norms' weights no ones."""
    model = FAMILIES[family].make()
    draw = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += 0.3 * torch.randn(weight.shape, generator=draw)
    subject = HuggingFaceModel.open(model, object())
    inputs = example_inputs(model, 4)
    stream, target = inputs["input_ids"], inputs.get("decoder_input_ids")
    example = Example((), (), stream, target, stream, stream if target is None else target)
    return from_trace(subject, subject.record(example, edits=edits))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("family", BY_HEADS)
def test_the_parts_sum_to_the_logit(family: str) -> None:
    reading = reading_of(family)
    logits = reading.logits[0, POSITION]
    near = 2e-5 * float(logits.abs().max())
    parts = attribution(reading, position=POSITION, token=TOKEN)
    assert parts["contribution"].sum() == pytest.approx(float(logits[TOKEN]), abs=near)
    assert "unattributed" not in set(parts["part"])
    assert set(parts["head"]) >= set(range(6))  # each head has a part of its own
    lead = attribution(reading, position=POSITION, token=TOKEN, lead=True)
    others = torch.cat([logits[:TOKEN], logits[TOKEN + 1 :]])
    assert lead["contribution"].sum() == pytest.approx(float(logits[TOKEN] - others.max()), abs=2 * near)


@pytest.mark.parametrize("family", ["GPT-NeoX", "Llama", "Gemma2"])
def test_a_head_that_says_nothing_adds_nothing(family: str) -> None:
    parts = attribution(reading_of(family, ablate_head("decoder.1.attn", 2)), position=POSITION, token=TOKEN)
    of_head = parts[(parts["layer"] == 1) & (parts["head"] == 2)]["contribution"]
    assert of_head.item() == 0
    assert (parts[(parts["head"] >= 0)]["contribution"] == 0).sum() == 1


@pytest.mark.parametrize("family", NOT_A_SUM)
def test_where_a_logit_is_no_sum_it_says_so(family: str) -> None:
    with pytest.raises(UnavailableError, match="no sum"):
        attribution(reading_of(family), position=POSITION, token=TOKEN)


def test_a_parallel_block_has_one_point_of_the_stream() -> None:
    reading = reading_of("GPT-NeoX")
    points = stream(reading)
    assert list(points) == ["embedding", "layer 1 · attention and feed-forward", "layer 2 · attention and feed-forward"]
    added = norms(reading).query("what == 'added' and depth == 2 and position == 1")["length"].item()
    before, after = list(points.values())[1:]
    assert added == pytest.approx(float((after - before)[0, 1].norm()), rel=1e-4)
    torch.testing.assert_close(list(lens_logits(reading).values())[-1], reading.logits, rtol=1e-4, atol=1e-4)


def test_the_parts_of_a_real_model_sum_to_its_logit() -> None:
    reading = read(real_model("SmolLM2-135M-Instruct"), "The capital of France is")
    position = reading.open_output
    assert position is not None
    token = reading.explained(position)
    assert reading.subject.labels[token] == "·Paris"
    parts = attribution(reading, position=position)
    assert parts["contribution"].sum() == pytest.approx(float(reading.logits[0, position, token]), abs=1e-3)
    assert len(parts) == 30 * (9 + 1) + 1 + 3  # heads and feed-forward layers, the token, output bias, norms and biases


def test_what_follows_a_text_nobody_knows_so_the_lens_claims_nothing_there() -> None:
    reading = xformer.read("checkpoints/characters", "The list")
    chart = xformer.viz.lens(reading).to_dict()
    rows = [row for table in chart["datasets"].values() for row in table if "verdict" in row]
    last = [row for row in rows if row["position"] == reading.open_output]
    others = [row for row in rows if row["position"] != reading.open_output]
    assert {(row["answer"], row["right"], row["verdict"]) for row in last} == {("?", False, "nobody knows")}
    assert {row["verdict"] for row in others} == {"yes", "no"}
