"""Neurons, compared with counts by hand, with loops, and with new runs of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import xformer
from tests.training.tiny import random_model, tiny_model, tiny_task
from xformer import edits
from xformer.adapters import BareModel, TaskModel
from xformer.analysis import neuron_survey
from xformer.analysis.ablation import logits_with_replacements
from xformer.analysis.feed_forward import (
    activity,
    direct_logit_effect,
    fires_above,
    promotion,
    top_neurons,
    writes_to_output_stream,
)
from xformer.analysis.neuron_survey import (
    LayerSurvey,
    Survey,
    exciting_inputs,
    firing,
    fitting,
    neurons,
    survey,
    triggers,
)
from xformer.errors import EditError, InputError
from xformer.model import Transformer
from xformer.model_shape import ModelShape
from xformer.reading import Reading, from_trace
from xformer.trace import Trace, record


def feed_forward_paths(model: Transformer) -> list[str]:
    return list(ModelShape.of(model.config).neurons)


def ran(architecture: str = "encoder", **options: object) -> tuple[Transformer, Trace]:
    model = random_model(architecture, **options).to(torch.get_default_dtype())
    draw = torch.Generator().manual_seed(5)
    target = torch.randint(1, 10, (2, 5), generator=draw) if architecture == "encoder-decoder" else None
    return model, record(model, torch.randint(1, 10, (2, 7), generator=draw), target)


def test_firing_shares_match_a_count_by_hand() -> None:
    """Of 5 neurons at 3 positions, one never fires, one once, one twice, two always: 9 of 15 cells."""
    post = torch.tensor([[0.0, 0.0, 0.5, 1.0, 2.0], [0.0, 0.3, 0.0, 1.0, 2.0], [0.0, 0.0, 0.1, 1.0, 2.0]])
    model = random_model("encoder", n_layers=1, d_ff=5)
    kept = {"encoder.0.ffn.post": post[None], "logits": torch.zeros(1, 3, 11)}
    row = firing(from_trace(model, Trace(model.config, torch.ones(1, 3).long(), None, (), kept))).iloc[0]
    assert row[["layer", "over", "neurons", "dead"]].tolist() == ["encoder.0.ffn", "this input", 5, 1]
    assert row[["share_dead", "share_ever", "share_at_once"]].tolist() == pytest.approx([1 / 5, 4 / 5, 9 / 15])


def tiny_subject(architecture: str = "encoder") -> TaskModel:
    task = tiny_task(architecture)
    return TaskModel(Transformer(tiny_model(task), torch.Generator().manual_seed(1)).eval(), task)


def tiny_survey(monkeypatch: pytest.MonkeyPatch, architecture: str, n: int, seed: int, batch: int) -> Survey:
    """Run a survey that keeps three inputs for each neuron, with `batch` inputs per batch."""
    adapter = tiny_subject(architecture)
    monkeypatch.setattr(neuron_survey, "BEST", 3)
    monkeypatch.setattr(neuron_survey, "MAX_TOKENS_AT_ONCE", batch * max(adapter.task.longest))
    return survey(adapter, n, seed)


@pytest.mark.parametrize("architecture", ["decoder", "encoder-decoder"])
def test_a_survey_is_the_sum_of_single_runs(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sampled input is run again alone, without padding, and counted in plain loops."""
    n = 23
    found = tiny_survey(monkeypatch, architecture, n, 7, batch=10)
    model, task = found.adapter.model, found.adapter.task
    fired: dict[str, list[int]] = {path: [0] * 8 for path in feed_forward_paths(model)}
    peaks: dict[str, list[list[tuple[float, int, int]]]] = {path: [[] for _ in range(8)] for path in fired}
    places = dict.fromkeys(fired, 0)
    for index in range(n):
        source = [token for token in found.inputs[index] if token <= task.vocabulary.symbols]
        source = source[: len(source) // 2] if architecture == "decoder" else source
        example = task.example(source)
        trace = record(model, example.input_ids, example.target)
        for path in fired:
            post = trace[f"{path}.post"][0].tolist()
            places[path] += len(post)
            for neuron in range(8):
                column = [row[neuron] for row in post]
                fired[path][neuron] += sum(value > 0 for value in column)
                peaks[path][neuron].append((max(column), index, column.index(max(column))))
    for path, counted in found.layers.items():
        assert counted.n_positions == places[path]
        assert counted.fired.tolist() == fired[path]
        for neuron in range(8):
            best = sorted(peaks[path][neuron], reverse=True)[:3]
            assert counted.peak[:, neuron].tolist() == pytest.approx([value for value, *_ in best], abs=1e-5)
            for (value, *where), place in zip(best, counted.places[:, neuron].tolist(), strict=True):
                if value > 0 and sum(other == value for other, *_ in peaks[path][neuron]) == 1:
                    assert place == where


def test_a_large_model_is_surveyed_over_fewer_inputs() -> None:
    task = tiny_task()
    small, large = (TaskModel(Transformer(tiny_model(task, d_ff=d_ff)), task) for d_ff in (8, 80_000))
    assert 16 == fitting(large, work=1.0) <= fitting(large, work=2e8) < fitting(large, work=1e9) < fitting(small) == 500


def test_a_survey_can_be_repeated_from_its_recipe(tmp_path: Path) -> None:
    adapter = tiny_subject()
    xformer.save(xformer.Checkpoint(adapter.model, adapter.task), tmp_path)
    found = survey(tmp_path, 30, 2)
    again = eval(str(found.code), {"xformer": xformer})
    assert again.layers["encoder.0.ffn"].fired.equal(found.layers["encoder.0.ffn"].fired)
    assert again.inputs == found.inputs != survey(tmp_path, 30, 3).inputs
    with pytest.raises(InputError, match="'model' has no task"):
        survey(BareModel(adapter.model), 30)  # pyright: ignore[reportArgumentType]


def test_exciting_inputs_are_the_peaks_of_the_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    found, task = tiny_survey(monkeypatch, "encoder-decoder", 30, 2, batch=30), tiny_task("encoder-decoder")
    *_, counted = found.layers.values()
    rows = exciting_inputs(found, layer=len(found.layers) - 1, neuron=3).to_dict("records")
    assert [row["activation"] for row in rows] == [peak for peak in counted.peak[:, 3].tolist() if peak > 0]
    for row, (index, position) in zip(rows, counted.places[:, 3].tolist(), strict=False):
        read = [task.vocabulary.labels[token] for token in (found.targets or found.inputs)[index]]
        assert (row["input"], row["position"], row["token"]) == (index, position, read[position])
        assert row["tokens"].split() == read


def ablated(reading: Reading, path: str, neurons: list[int]) -> list[torch.Tensor]:
    """Return the logits without a change, and with each of the neurons ablated."""
    parts = [(f"{path}.post", (slice(0),)), *((f"{path}.post", (..., neuron)) for neuron in neurons)]
    return list(logits_with_replacements(reading, parts))


PADDED = [
    ("decoder", {"valid": torch.tensor([[False, False, True, True, True, True, True], [True] * 7])}),
    ("encoder-decoder", {"target_valid": torch.tensor([[True, True, True, False, False], [True] * 5])}),
    ("encoder", {"mask": torch.stack([torch.ones(7, 7).tril(2), torch.ones(7, 7)]).bool()}),
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("architecture", "given"), PADDED)
def test_ablation_keeps_the_padding_and_the_mask_of_the_run(architecture: str, given: dict[str, object]) -> None:
    """The first of two inputs, padded or masked, compared with the same batch run again with the neuron ablated."""
    model, _ = ran(architecture)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 0, 0], [2, 7, 1, 8, 2, 8, 1]])
    target = torch.tensor([[3, 1, 4, 0, 0], [2, 7, 1, 8, 2]]) if architecture == "encoder-decoder" else None
    path = feed_forward_paths(model)[0]
    whole = record(model, tokens, target, **given)  # pyright: ignore[reportArgumentType]
    lifted = edits.replace(f"{path}.post", whole[f"{path}.post"] + 0.25)  # a value for each of the two inputs
    trace = record(model, tokens, target, edits=[lifted], **given)  # pyright: ignore[reportArgumentType]
    _, *again = ablated(from_trace(model, trace), path, [3, 7])
    plain = record(model, tokens, target, edits=[lifted, edits.ablate_neuron(path, 3)]).logits[0]
    for logits, neuron in zip(again, [3, 7], strict=True):
        changes = [lifted, edits.ablate_neuron(path, neuron)]
        alone = record(model, tokens, target, edits=changes, **given).logits[0]  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(logits, alone, rtol=1e-10, atol=1e-12, equal_nan=True)
    assert not torch.allclose(again[0], plain)


def test_the_neuron_table_matches_runs_of_the_model() -> None:
    model, trace = ran("decoder")
    answers = torch.tensor([-100, -100, 3, 1, 4, 1, 5])
    run = from_trace(model, trace, answers)
    table = neurons(run, layer=1, position=3, n=5, ablate=True)
    post = trace["decoder.1.ffn.post"][0, 3].tolist()
    rows = model.get_parameter("decoder.blocks.1.ffn.weight_out").norm(dim=0).tolist()
    written = [abs(value) * row for value, row in zip(post, rows, strict=True)]
    order = sorted(range(17), key=lambda neuron: -written[neuron])[:5]
    assert table["neuron"].tolist() == order == top_neurons(run, layer=1, position=3, n=5)

    def loss(logits: torch.Tensor) -> float:
        return torch.nn.functional.cross_entropy(logits[0], answers, ignore_index=-100).item()

    for row in table.to_dict("records"):
        neuron = row["neuron"]
        assert row["activation"] == post[neuron]
        assert row["activity"] == pytest.approx(written[neuron])
        effect = direct_logit_effect(run, 1)[neuron].tolist()
        ranked = sorted(range(11), key=lambda token: -effect[token])
        assert row["promotes"] == f"{ranked[0]} {ranked[1]} {ranked[2]}"
        assert row["suppresses"] == f"{ranked[-1]} {ranked[-2]} {ranked[-3]}"
        ablated_logits = record(model, trace.tokens[:1], edits=[edits.ablate_neuron("decoder.1.ffn", neuron)]).logits
        assert row["loss_change"] == pytest.approx(loss(ablated_logits) - loss(trace.logits[:1]), abs=1e-5)
        assert row["flips"] == int((ablated_logits.argmax(-1) != trace.logits[:1].argmax(-1))[0, 2:].sum())
    assert table["flips"].any()


def test_of_a_large_vocabulary_only_tokens_beyond_chance_are_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neuron_survey, "MAX_TOKENS", 4)
    model, trace = ran("decoder")
    run = from_trace(model, trace, torch.tensor([-100, -100, 3, 1, 4, 1, 5]))
    silent = neurons(run, layer=1, n=17)
    assert set(silent["promotes"]) | set(silent["suppresses"]) == {""}  # of a model with random weights
    matrix = run.adapter.weights.unembedding().matrix
    neuron = int(silent["neuron"][16])
    with torch.no_grad():
        model.get_parameter("decoder.blocks.1.ffn.weight_out")[:, neuron] = matrix[6] - matrix.mean(dim=0)
    monkeypatch.setattr(neuron_survey, "CLEARER", 1.0)
    told = neurons(run, layer=1, n=17, distinct=True).set_index("neuron").loc[neuron]
    assert told["promotes" if told["activation"] >= 0 else "suppresses"].startswith("6 ")


def test_the_encoder_of_an_encoder_decoder_promotes_no_tokens() -> None:
    model, trace = ran("encoder-decoder")
    run = from_trace(model, trace, [1, 2, 3, 4, 5])
    assert [writes_to_output_stream(run, layer) for layer in range(4)] == [False, False, True, True]
    table = neurons(run, layer=0, position=3, n=2, ablate=True)
    assert not {"promotes", "suppresses"} & set(table.columns)
    assert (table["loss_change"] != 0).any()
    with pytest.raises(EditError, match="not unembedded"):
        promotion(run, layer=0, position=3)


def gated_model() -> Any:
    """Build a Llama with random weights. In its last layer, neuron 3 is strongly negative everywhere, neuron 4 is 0 everywhere,
    and neuron 5 writes the zero vector."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2, num_key_value_heads=3)).eval()
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_()
        mlp.gate_proj.weight[3] *= 5
        mlp.up_proj.weight[3] = -mlp.gate_proj.weight[3]  # silu(g) · −g is never above 0
        mlp.up_proj.weight[4] = 0.0
        mlp.down_proj.weight[:, 5] = 0.0
    return model.requires_grad_(False)


GATED_INPUT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def test_a_strongly_negative_gated_neuron_is_active_and_one_that_writes_nothing_is_dead() -> None:
    model = gated_model()
    given: list[torch.Tensor] = []
    down = model.model.layers[1].mlp.down_proj
    handle = down.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0][0]))
    model(GATED_INPUT)
    handle.remove()
    post = given[0]  # [pos, d_ff]: the activations, captured independently
    assert post[:, 3].max() <= 0
    assert post[:, 5].abs().min() > 0.01
    norms = [(post[:, n, None] * down.weight[:, n]).norm(dim=-1) for n in range(20)]
    written = torch.stack(norms, dim=1)  # [pos, d_ff]
    at = int(written[:, 3].argmax())
    assert written[at].argmax() == 3
    reading = xformer.read(model, GATED_INPUT)
    # These are sums of hundreds of terms in another order.
    torch.testing.assert_close(activity(reading, layer=1), written, rtol=1e-4, atol=1e-3)
    for position in range(8):
        wanted = written[position].argsort(descending=True)[:6].tolist()
        assert top_neurons(reading, layer=1, position=position, n=6) == wanted
    table = neurons(reading, layer=1, position=at, n=4)
    first = table.iloc[0]
    assert (first["neuron"], first["activation"] < 0 < first["activity"]) == (3, True)
    assert table["activity"].tolist() == pytest.approx(written[at].sort(descending=True).values[:4].tolist(), rel=1e-4)
    effect = direct_logit_effect(reading, 1, [3])[0]  # for a positive activation; this one is negative
    found = [first[name].split(" ")[0] for name in ("promotes", "suppresses")]
    assert found == [reading.adapter.token_labels[int(at)] for at in (effect.argmin(), effect.argmax())]
    row = firing(reading).iloc[1]
    assert row[["dead", "neurons", "measure"]].tolist() == [2, 20, "written"]  # 4 and 5, not 3
    assert row["share_at_once"] == pytest.approx(18 / 20)


def test_a_neuron_below_a_millionth_of_its_layers_mean_peak_is_dead() -> None:
    post = torch.ones(4, 10)
    norms = torch.full((10,), 2.0)
    post[:, 0], post[:, 1], post[:, 2] = 1e-9, -1e-4, 0.0
    fires = post.abs() > fires_above(post.abs().amax(dim=0), norms)
    assert fires.any(dim=0).tolist() == [False, True, False, *[True] * 7]
    norms[9] = 0.0
    assert not (post.abs() > fires_above(post.abs().amax(dim=0), norms))[:, 9].any()
    assert not (torch.zeros(4, 10).abs() > fires_above(torch.zeros(10), norms)).any()  # a layer of dead neurons


def test_a_trigger_holds_half_of_the_activation_and_three_times_its_even_share() -> None:
    post = torch.zeros(8, 5)
    post[2, 0], post[[2, 5], 1], post[:, 2], post[[1, 2, 3, 4], 3] = 3.0, 1.0, 1.0, 1.0
    tokens = torch.tensor([[1, 2, 7, 3, 4, 7, 5, 6]])
    model = random_model("encoder", n_layers=1, d_ff=5)
    kept = {"encoder.0.ffn.post": post[None], "logits": torch.zeros(1, 8, 11)}
    found = triggers(from_trace(model, Trace(model.config, tokens, None, (), kept)), layer=0)
    assert found.iloc[:2, 1:].to_numpy().tolist() == [["reads", ("7",), 1.0, 0.25]] * 2
    assert found["trigger"].tolist()[2:] == ["none", "none", "none"]


def test_triggers_of_a_survey_distinguish_tokens_and_positions() -> None:
    """Neuron 0 fires on the token 3 and neuron 1 at position 1, by their weights; neuron 2 fires everywhere."""
    found = survey(tiny_subject(), 60, 3)
    counted: LayerSurvey = found.layers["encoder.0.ffn"]
    for kind, (sums, count) in counted.tallies.items():
        assert int(count.sum()) == counted.n_positions
        for other, _ in counted.tallies.values():
            torch.testing.assert_close(sums.sum(dim=0)[3:], other.sum(dim=0)[3:], rtol=1e-4, atol=1e-3)
        only = torch.zeros_like(sums)
        only[3 if kind == "reads" else slice(None), 0] = 1.0
        only[1 if kind == "position" else slice(None), 1] = 1.0
        only[:, 2] = count.float()
        sums[:, :3] = only[:, :3]
    counted.fired[:3] = counted.n_positions
    rows = triggers(found, layer=0)[["trigger", "on"]].to_numpy().tolist()
    assert rows[:3] == [["reads", ("3",)], ["position", (1,)], ["none", ()]]
    counted.fired[0] = 3  # too few firings
    assert triggers(found, layer=0)["trigger"].iloc[0] == "none"
