"""The lens ends in the logits and the parts sum to them; both are compared with runs of the model, with and without a part."""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_attachment import Written
from tests.training.tiny import random_model
from xformer import edits
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.huggingface_opening import example_inputs
from xformer.analysis.residual import answer_path, attribution, decision_depths, lens, norms, stream, stream_steps
from xformer.errors import EditError, UnavailableError
from xformer.model import Transformer
from xformer.reading import Reading, from_trace
from xformer.tasks.task import Example
from xformer.trace import Trace, record

VARIANTS: dict[str, dict[str, Any]] = {
    "post": {"norm": "post"},
    "post, norm at the end": {"norm": "post", "final_norm": True},
    "pre": {"norm": "pre"},
    "pre, biases": {"norm": "pre", "attention_bias": True},
    "post, biases": {"norm": "post", "attention_bias": True},
    "no norm": {"norm": "none"},
    "no feed-forward": {"norm": "pre", "d_ff": 0, "positions": "learned"},
    "rotary, tied": {"positions": "rotary", "tied_output": True, "output_bias": False, "ffn_bias": False},
    "scaled, gelu": {"norm": "none", "final_norm": True, "scale_embeddings": True, "activation": "gelu"},
}
CASES = [
    ("encoder", "post, biases"),
    ("decoder", "post, norm at the end"),
    ("decoder", "no feed-forward"),
    ("decoder", "rotary, tied"),
    ("decoder", "scaled, gelu"),
    ("encoder-decoder", "pre, biases"),
]
every_case = pytest.mark.parametrize(("architecture", "variant"), CASES)
N, N_TARGET = 7, 5


def ran(architecture: str, variant: str, **edit: object) -> tuple[Transformer, Trace]:
    model = random_model(architecture, **VARIANTS[variant]).to(torch.get_default_dtype())
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, 10, (2, N), generator=draw)
    target = torch.randint(1, 10, (2, N_TARGET), generator=draw) if architecture == "encoder-decoder" else None
    return model, record(model, tokens, target, **edit)  # pyright: ignore[reportArgumentType]


@every_case
def test_the_lens_ends_in_the_models_own_logits(architecture: str, variant: str) -> None:
    model, trace = ran(architecture, variant)
    reading = from_trace(model, trace)
    *others, last = map(reading.adapter.unembed, stream(reading).values())
    assert torch.equal(last, trace.logits)  # the same operations on the same numbers: bitwise equal
    assert len(others) == len(stream_steps(reading))
    assert all(not torch.allclose(other, trace.logits, atol=0.1) for other in others)


@pytest.mark.usefixtures("float64")
def test_the_lens_after_layer_1_matches_a_model_without_layer_2() -> None:
    """The model with layer 2 removed is run directly, without any lens."""
    model, trace = ran("encoder", "pre")
    middle = model.unembed(stream(from_trace(model, trace))["layer 1 · feed-forward"])
    del model.encoder.blocks[1]  # pyright: ignore
    torch.testing.assert_close(middle, model(trace.tokens), rtol=1e-10, atol=1e-10)


def test_the_lens_table_has_the_probabilities() -> None:
    model, trace = ran("decoder", "post")
    answers = torch.tensor([-100, -100, 3, 1, 4, 1, 5])
    frame = lens(from_trace(model, trace, answers))
    assert sorted(frame["position"].unique()) == [2, 3, 4, 5, 6]
    open_lens = lens(from_trace(model, trace))  # without answers, the likeliest token at every position
    assert list(open_lens.columns) == ["depth", "point", "position", "token", "probability"]
    assert (len(frame), len(open_lens)) == (5 * 5, 5 * N)
    for row in frame.to_dict("records"):
        x = list(stream(from_trace(model, trace)).values())[row["depth"]][0, row["position"]]
        p = F.linear(x, model.unembedding.weight, model.unembedding.bias).softmax(-1)  # pyright: ignore[reportArgumentType]
        answer, best = int(answers[row["position"]]), int(p.argmax())
        assert (row["token"], row["right"]) == (str(best), best == answer)
        assert (row["probability"], row["answer_probability"]) == pytest.approx(p[[best, answer]].tolist(), rel=1e-5)


def test_decided_finds_the_depth_from_which_the_answer_stays_right() -> None:
    right = {0: [0, 1, 1], 1: [1, 0, 1], 2: [1, 1, 1], 3: [1, 1, 0]}
    cells = ((position, depth, ok) for position, flags in right.items() for depth, ok in enumerate(flags))
    rows = [(position, depth, "abc"[depth], bool(ok)) for position, depth, ok in cells]
    found = decision_depths(pd.DataFrame(rows, columns=["position", "depth", "point", "right"]))
    assert found.to_dict("list") == {"position": [0, 1, 2], "depth": [1, 2, 0], "point": ["b", "c", "a"]}


def rounding(parts: pd.DataFrame) -> float:
    """Return the tolerance for float64: a few thousand operations, each rounded by 2⁻⁵³ of its operands, of the parts' size."""
    assert not parts["part"].isin(["rounding", "unattributed"]).any()  # with these, any parts would sum to the logit
    return 2**-53 * 5000 * (1 + float(parts["contribution"].abs().sum()))


@every_case
@pytest.mark.usefixtures("float64")
def test_the_parts_sum_to_the_logit(architecture: str, variant: str) -> None:
    model, trace = ran(architecture, variant)
    logits = trace.logits[0, 2]
    for lead, wanted in ((False, logits[4]), (True, logits[4] - logits[[*range(4), *range(5, 11)]].max())):
        parts = attribution(from_trace(model, trace), position=2, token=4, lead=lead)
        assert parts["contribution"].sum() == pytest.approx(wanted.item(), abs=rounding(parts))


def test_the_contribution_of_a_sublayer_that_was_not_found_is_unattributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the last feed-forward layer in the list, its contribution is missing, including its bias."""
    model, trace = ran("decoder", "pre, biases")
    reading = from_trace(model, trace)
    complete = attribution(reading, position=3, token=4)
    *kept, last = stream_steps(reading)
    end = dataclasses.replace(kept[-1], after=last.after)  # the logits are still computed from the end of the stream
    monkeypatch.setattr("xformer.analysis.residual.stream_steps", lambda _: [*kept[:-1], end])
    parts = attribution(reading, position=3, token=4)
    assert parts["part"].iloc[-1] == "unattributed"
    of_biases = [frame.set_index("part")["contribution"]["sublayers' biases"] for frame in (complete, parts)]
    wanted = complete.set_index("part")["contribution"][last.title] + of_biases[0] - of_biases[1]
    assert parts["contribution"].iloc[-1] == pytest.approx(wanted, abs=1e-4)
    assert abs(wanted) > 0.01


def test_in_low_precision_the_last_part_is_the_rounding() -> None:
    dtype = torch.bfloat16
    exact = attribution(from_trace(*ran("decoder", "pre")), position=3, token=4)
    model = random_model("decoder", **VARIANTS["pre"]).to(dtype)
    trace = record(model, torch.randint(1, 10, (2, N), generator=torch.Generator().manual_seed(5)))
    parts = attribution(from_trace(model, trace), position=3, token=4)
    assert parts["contribution"].sum() == pytest.approx(trace.logits[0, 3, 4].item(), abs=1e-9)
    assert parts["part"].iloc[-1] == "rounding"
    size, eps = exact["contribution"].abs().sum(), torch.finfo(dtype).eps
    assert abs(parts["contribution"].iloc[-1]) <= 2 * eps * size
    assert (parts["contribution"].iloc[:-1] - exact["contribution"]).abs().max() <= 8 * eps * size


@pytest.mark.usefixtures("float64")
def test_without_norms_a_contribution_of_the_last_layer_equals_the_effect_of_ablating_it() -> None:
    """Only the sum comes after these parts, so ablating one lowers the logit by exactly its contribution."""
    model, trace = ran("encoder-decoder", "no norm")
    last = stream_steps(from_trace(model, trace))[-1].layer_path.path
    parts = attribution(from_trace(model, trace), position=2, token=4)
    attention = last.replace("ffn", "cross_attn")
    # ablating the feed-forward layer, the last sublayer, removes its contribution and its bias
    without_ffn = record(model, trace.tokens, trace.target, edits=[edits.scale(f"{last}.out", 0.0)])
    bias = _bias(model, last) @ model.unembedding.weight[4]  # pyright: ignore
    part = parts[(parts["layer"] == 1) & (parts["kind"] == "feed_forward")]["contribution"].item()
    assert part == pytest.approx((trace.logits - without_ffn.logits)[0, 2, 4].item() - bias.item(), abs=1e-10)
    # a head, with the feed-forward output held fixed
    hold = edits.replace(f"{last}.out", trace[f"{last}.out"])
    without_head = record(model, trace.tokens, trace.target, edits=[edits.ablate_head(attention, 1), hold])
    rows = parts[(parts["layer"] == 1) & (parts["head"] == 1)]
    cost = (trace.logits - without_head.logits)[0, 2, 4].item()  # a difference of numbers in the thousands
    assert rows["contribution"].iloc[-1] == pytest.approx(cost, rel=1e-12, abs=1e-10)


def _bias(model: Transformer, path: str) -> Tensor:
    stack, layer, part = path.split(".")
    bias = getattr(getattr(model, stack).blocks[int(layer)], part).bias_out
    assert bias is not None
    return bias.detach()


@pytest.mark.usefixtures("float64")
def test_post_norm_contributions_are_gradient_times_input_with_detached_scales() -> None:
    """The same numbers are computed independently: autograd through the equations, with each norm's σ detached."""
    model, trace = ran("encoder", "post, biases")
    assert model.encoder is not None
    position, token = 3, 4
    parts, x = [], (trace["embed"] + trace["pos_embed"])[0, position].requires_grad_()
    names = ["embedding"]
    parts.append(x)
    for index, block in enumerate(model.encoder.blocks):
        for kind, norm in (("attn", block.attn_residual.norm), ("ffn", block.ffn_residual.norm)):  # pyright: ignore
            out = trace[f"encoder.{index}.{kind}.out"][0, position].clone().requires_grad_()
            names.append(f"{index}.{kind}")
            parts.append(out)
            total = x + out
            sigma = (total.var(correction=0) + norm.eps).sqrt().detach()
            x = norm.weight.detach() * (total - total.mean()) / sigma + norm.bias.detach()
    logit = x @ model.unembedding.weight[token].detach()  # pyright: ignore
    gradients = torch.autograd.grad(logit, parts)
    expected = {name: (g @ part).item() for name, g, part in zip(names, gradients, parts, strict=True)}
    found = attribution(from_trace(model, trace), position=position, token=token)
    own = found[found["kind"].isin(["embedding", "positions"])]["contribution"].sum()
    assert own == pytest.approx(expected["embedding"], abs=1e-11)
    for index in range(2):
        for kind, name in (("attn", "attention"), ("ffn", "feed_forward")):
            rows = found[(found["layer"] == index) & (found["kind"] == name)]
            bias = (gradients[names.index(f"{index}.{kind}")] @ _bias(model, f"encoder.{index}.{kind}")).item()
            assert rows["contribution"].sum() + bias == pytest.approx(expected[f"{index}.{kind}"], abs=1e-11)


@pytest.mark.usefixtures("float64")
def test_the_parts_of_an_edited_run_sum_to_its_logit() -> None:
    changes = [edits.ablate_head("decoder.0.self_attn", 1), edits.scale("decoder.0.ffn.out", 0.0)]
    model, trace = ran("encoder-decoder", "pre, biases", edits=changes)
    parts = attribution(from_trace(model, trace), position=2, token=4)
    assert parts["contribution"].sum() == pytest.approx(trace.logits[0, 2, 4].item(), abs=rounding(parts))
    assert parts.query("layer == 0 and head == 1")["contribution"].iloc[0] == 0
    assert parts.query("layer == 0 and kind == 'feed_forward'")["contribution"].item() == 0


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["decoder.1.resid_post", "log*", "decoder.?.resid_mid"])
def test_an_edited_stream_is_refused(name: str) -> None:
    with pytest.raises(EditError, match="the stream itself"):
        attribution(from_trace(*ran("encoder-decoder", "pre", edits=[edits.scale(name, 1.0)])), position=2, token=4)
    of_encoder = edits.scale("encoder.0.resid_mid", 2.0)  # not the output stack
    model, trace = ran("encoder-decoder", "pre", edits=[of_encoder])
    parts = attribution(from_trace(model, trace), position=2, token=4)
    assert parts["contribution"].sum() == pytest.approx(trace.logits[0, 2, 4].item(), abs=rounding(parts))


def test_padding_is_left_out_of_lens_and_norms() -> None:
    model = random_model("encoder")
    trace = record(model, torch.tensor([[3, 1, 4, 0, 0]]), pad=0)
    alone = record(model, torch.tensor([[3, 1, 4]]))
    for analyse in (norms, lens):
        ours, own = analyse(from_trace(model, trace)), analyse(from_trace(model, alone))
        assert ours.drop(columns=ours.columns[-1]).equals(own.drop(columns=own.columns[-1]))
        assert ours.iloc[:, -1].tolist() == pytest.approx(own.iloc[:, -1].tolist(), rel=1e-4)


def test_norms_are_those_of_the_stream_and_of_the_added_vectors() -> None:
    model, trace = ran("encoder-decoder", "pre")
    frame = norms(from_trace(model, trace))
    points = list(stream(from_trace(model, trace)).values())
    zero = torch.zeros_like(points[0])
    for (depth, what), rows in frame.groupby(["depth", "what"]):
        before = points[depth - 1] if what == "added" and depth else zero  # with pre-norm, the difference of two points
        wanted = (points[depth] - before)[0].square().sum(dim=-1).sqrt().tolist()
        assert rows["length"].tolist() == pytest.approx(wanted, rel=1e-4)


POSITION, TOKEN = 3, 5


def reading_of(family: str, *changes: object) -> Reading:
    """Run a tiny model of a family whose norm weights differ from 1."""
    model = FAMILIES[family].make()
    draw = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += 0.3 * torch.randn(weight.shape, generator=draw)
    adapter = HuggingFaceModel.open(model, object())
    inputs = example_inputs(model, 4)
    stream, target = inputs["input_ids"], inputs.get("decoder_input_ids")
    example = Example((), (), stream, target, stream, stream if target is None else target)
    return from_trace(adapter, adapter.record(example, edits=changes))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("family", ["BART", "Gemma2", "GPT-NeoX", "T5"])
def test_the_parts_of_external_models_sum_to_the_logit(family: str) -> None:
    reading = reading_of(family)
    logits = reading.logits[0, POSITION]
    near = 2e-5 * float(logits.abs().max())
    parts, lead = (attribution(reading, position=POSITION, token=TOKEN, lead=lead) for lead in (False, True))
    assert parts["contribution"].sum() == pytest.approx(float(logits[TOKEN]), abs=near)
    assert "unattributed" not in set(parts["part"])
    assert parts.loc[parts["head"] >= 0, "head"].tolist()[:6] == list(range(6))  # each head, in order
    others = torch.cat([logits[:TOKEN], logits[TOKEN + 1 :]])
    assert lead["contribution"].sum() == pytest.approx(float(logits[TOKEN] - others.max()), abs=2 * near)


def test_a_logit_that_is_not_a_sum_is_refused() -> None:
    with pytest.raises(UnavailableError, match="not a sum"):
        attribution(reading_of("BERT"), position=POSITION, token=TOKEN)


def test_a_parallel_block_has_a_single_point_of_the_stream() -> None:
    reading = reading_of("GPT-NeoX")
    points = stream(reading)
    assert list(points) == ["embedding", "layer 1 · attention and feed-forward", "layer 2 · attention and feed-forward"]
    added = norms(reading).query("what == 'added' and depth == 2 and position == 1")["length"].item()
    before, after = list(points.values())[1:]
    assert added == pytest.approx(float((after - before)[0, 1].norm()), rel=1e-4)
    torch.testing.assert_close(reading.adapter.unembed(after), reading.logits, rtol=1e-4, atol=1e-4)


def test_the_lens_gives_no_verdict_on_the_token_after_a_text() -> None:
    reading = xformer.read("checkpoints/characters", "The list")
    chart = xformer.viz.lens(reading).to_dict()
    rows = [row for table in chart["datasets"].values() for row in table if "verdict" in row]
    last, others = ([row for row in rows if (row["position"] == reading.open_output) == at] for at in (True, False))
    assert {(row["answer"], row["right"]) for row in last} == {("?", False)}
    verdicts = [{row["verdict"] for row in group} for group in (last, others)]
    assert (verdicts[0] & {"yes", "no"}, verdicts[1]) == (set(), {"yes", "no"})


def test_answer_path_has_probability_rank_and_contribution_at_each_point() -> None:
    model, trace = ran("decoder", "pre, biases")
    reading = from_trace(model, trace)
    path = answer_path(reading, position=3)
    answer = reading.explained(3)
    for row, x in zip(path.to_dict("records"), stream(reading).values(), strict=True):
        p = reading.adapter.unembed(x)[0, 3].softmax(dim=-1)
        assert row["answer_probability"] == pytest.approx(p[answer].item(), rel=1e-5)
        assert row["rank"] == p.argsort(descending=True).tolist().index(answer) + 1
    parts = attribution(reading, position=3, lead=True)
    of_steps = parts.loc[~parts["kind"].isin(["bias", "others"]), "contribution"].sum()
    assert path["adds"].sum() == pytest.approx(of_steps)
    second = parts.loc[(parts["layer"] == 1) & (parts["kind"] == "attention"), "contribution"].sum()
    assert path.set_index("point")["adds"]["layer 2 · attention"] == pytest.approx(second)


class LastOnly(Written):
    """Computes the logits of the last position only, as nanoGPT does without targets."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, [-1], :])


def test_the_lens_reads_all_positions_of_a_model_that_returns_the_last() -> None:
    torch.manual_seed(0)
    model, ids = LastOnly().eval(), torch.tensor([[3, 1, 4, 1, 5]])
    reading = xformer.read(model, ids)
    table = lens(reading)
    final = table.loc[table["depth"] == table["depth"].max()]
    p = Written.forward(model, ids)[0].softmax(dim=-1)  # [pos, vocab]
    assert final["position"].tolist() == list(range(5))
    assert final["token"].tolist() == [str(token) for token in p.argmax(dim=-1).tolist()]
    assert final["probability"].tolist() == pytest.approx(p.amax(dim=-1).tolist(), abs=1e-5)
    for explain in (attribution, answer_path):
        with pytest.raises(UnavailableError, match="returns outputs at 1 positions, but its stream has 5"):
            explain(reading, position=0)
