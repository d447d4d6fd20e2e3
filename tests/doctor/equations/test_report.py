"""Each bug is found by name in fresh, shipped and briefly trained models, and correct models have no mistakes."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import torch

import xformer
from tests.doctor.equations.confusion import CONSEQUENCES, NOT_IN_A_TRACE, bugs_of, fresh, kinds, shipped, trained_with
from tests.layers.reference import FITTING
from xformer import edits
from xformer.doctor.equations.report import Mistake, check_trace, mistakes_frame, too_few_rows, varied_inputs
from xformer.doctor.faults import BUGS
from xformer.errors import InputError
from xformer.presets import PRESETS
from xformer.tasks import Task


def check_named(bug: str, found: list[str]) -> None:
    assert found[:1] == [bug]
    assert set(found[1:]) <= CONSEQUENCES.get(bug, set())


def shows(bug: str, model: xformer.Transformer, task: Task | None) -> bool:
    """Return whether the bug is visible; padding bugs need inputs with padding."""
    return BUGS[bug].shows != "with padding" or not bool(varied_inputs(model.config, task).valid.all())


HERE = {name: one for name, one in reversed(PRESETS.items()) if not Task(one.task).rule.no_sample_reason}
PRESETS_TRIED = {one.model.architecture: name for name, one in HERE.items()}
"""One preset of each architecture."""
SHIPPED_TRIED = ("reverse-modern", "reverse-seq2seq", "digits")
"""Trained weights, other components, and images."""
TRIED_IN_SHIPPED = {
    "no_scale", "no_residual", "residual_after_norm", "gate_and_up_swapped", "kv_heads_tiled", "cross_roles_swapped",
    "causal_off_by_one", "dead_neurons",
}  # fmt: skip


@pytest.mark.parametrize("name", [*PRESETS_TRIED.values(), *SHIPPED_TRIED])
def test_each_bug_is_named(name: str) -> None:
    if name in PRESETS_TRIED.values():
        model, task = fresh(name, most_layers=2), Task(PRESETS[name].task)
        assert kinds(model, task) == kinds(model, None) == []
    else:
        model, task = shipped(name).model, shipped(name).task
    for bug in bugs_of(model.config):
        if name in SHIPPED_TRIED and bug.name not in TRIED_IN_SHIPPED:
            continue
        found = kinds(bug.broken(model), task)
        if bug.name in NOT_IN_A_TRACE:
            assert found == []
        elif shows(bug.name, model, task):
            check_named(bug.name, found)


def test_a_bug_is_named_in_a_model_trained_with_it() -> None:
    check_named("no_scale", trained_with(BUGS["no_scale"]))


def test_every_bug_is_tested_on_some_model() -> None:
    configs = [fresh(name).config for name in PRESETS_TRIED.values()]
    configs += [shipped(name).config for name in SHIPPED_TRIED]
    assert {bug.name for config in configs for bug in bugs_of(config)} == set(BUGS)


@pytest.mark.parametrize("name", [*SHIPPED_TRIED, "characters", "modular", "reverse-mirror"])
def test_no_false_alarms_on_varied_and_short_inputs(name: str) -> None:
    model, task = shipped(name).model, shipped(name).task
    assert task is not None
    assert kinds(model, task) == []
    source = task.draw(0)
    examples = [task.example(source)]
    for shorter in (source[:2], source[:1], [source[0]] * 7):
        with suppress(InputError):  # a sum needs two numbers, an image all its pixels
            examples.append(task.example(shorter))
    for example in examples:
        assert check_trace(xformer.record(model, example.input_ids, example.target)).mistakes == []


NORMS = ("pre", "post", "none")


@pytest.mark.parametrize(
    ("architecture", "positions", "norm"), [(*kind, NORMS[number % 3]) for number, kind in enumerate(FITTING[::2])]
)
def test_no_false_alarms_on_any_fresh_architecture(architecture: str, positions: str, norm: str) -> None:
    """Cover each position encoding, cycling through architectures, norms and two sets of options."""
    options: dict[str, object] = {"d_ff": 0, "attention_bias": True}
    if FITTING.index((architecture, positions)) % 2:
        options = {"d_ff": 37, "see_self": architecture == "encoder"}
        options |= {"init": "normal", "init_scale": 0.1, "embed_std": 0.02}
    config = xformer.ModelConfig(
        architecture=architecture, vocab_size=11, d_model=12, n_layers=2, n_heads=3, max_len=19, norm=norm,
        positions=positions, **options,
    )  # fmt: skip
    model = xformer.Transformer(config, torch.Generator().manual_seed(5)).eval()
    trace = varied_inputs(config).record(model)
    found = check_trace(trace).mistakes + check_trace(trace, model=model).mistakes
    for tokens in ([[3]], [[3, 5]], [[3, 3, 3, 3]], [[1, 2, 3, 4, 5, 6, 7]]):
        given = torch.tensor(tokens)
        found += check_trace(xformer.record(model, given, given[:, :5] if "-" in architecture else None)).mistakes
    # Without norms, tiny embeddings do give uniform patterns: a note, not an error.
    assert [mistake for mistake in found if mistake.severity != "note"] == []


def of(bug: str, architecture: str = "encoder", **options: object) -> list[Mistake]:
    """Return the mistakes in a fresh model with prime sizes (d_head 5, so 1/√d_head = 0.447) on one batch."""
    given = {"architecture": architecture, "vocab_size": 23, "d_model": 13, "n_layers": 2, "n_heads": 3, "d_head": 5}
    config = xformer.ModelConfig(**{**given, "d_ff": 37, "max_len": 19, "embed_std": 1.0, **options})
    model = xformer.Transformer(config, torch.Generator().manual_seed(3)).eval()
    inputs = varied_inputs(config)
    trace = inputs.record(BUGS[bug].broken(model))
    return check_trace(trace, valid=inputs.valid, target_valid=inputs.target_valid).mistakes


def test_findings_contain_the_measured_numbers() -> None:
    scaled = of("scaled_after_softmax")[0]
    assert scaled.numbers["sum"] == pytest.approx(1 / math.sqrt(5), rel=1e-6)
    assert scaled.where == ("encoder.0.attn", "encoder.1.attn")
    unscaled = of("no_scale")[0]
    assert unscaled.numbers["factor"] == pytest.approx(1, rel=1e-5)
    assert unscaled.numbers["one_over_root_d_head"] == pytest.approx(1 / math.sqrt(5))
    leak = of("causal_off_by_one", "decoder")[0]
    assert leak.numbers["weight_on_the_next"] == pytest.approx(1)
    assert 0 < leak.numbers["weight_on_later_tokens"] < 1
    assert of("identical_heads")[0].where[0] == "encoder.0.attn heads 0 and 1"
    assert of("dead_neurons")[0].numbers["neurons"] == 37
    assert of("softmax_of_nothing")[0].where == ("encoder.0.attn.pattern",)


def test_wrong_scales_and_rows_that_do_not_sum_to_one_are_found() -> None:
    model, tokens = fresh("reverse"), torch.arange(1, 12)[None]
    found = check_trace(xformer.record(model, tokens, edits=[edits.scale("encoder.2.attn.scores", 0.5)])).mistakes
    assert [(mistake.kind, mistake.where) for mistake in found] == [("wrong_scale", ("encoder.2.attn",))]
    assert found[0].numbers["factor"] == pytest.approx(0.125, rel=1e-5)  # half of 1/√16
    smaller = edits.scale("encoder.2.attn.pattern", 0.9, heads=[1])
    found = check_trace(xformer.record(model, tokens, edits=[smaller])).mistakes
    assert [mistake.kind for mistake in found] == ["rows_not_one"]


def test_the_first_nan_is_located() -> None:
    model, tokens = fresh("reverse"), torch.arange(1, 12)[None]
    trace = xformer.record(model, tokens)
    trace.activations["encoder.1.ffn.post"] = torch.full_like(trace["encoder.1.ffn.post"], float("nan"))
    found = check_trace(trace).mistakes
    assert [(mistake.kind, mistake.where) for mistake in found] == [("not_finite", ("encoder.1.ffn.post",))]


@pytest.mark.parametrize("name", ["reverse", "addition"])
def test_mixed_positions_are_not_reported_as_split_by_view(name: str) -> None:
    """Values taken from neighbouring positions match no row of the stream under any view."""
    model = shipped(name).model
    inputs = varied_inputs(model.config, shipped(name).task)
    trace = inputs.record(model)
    path = trace.attention_layers()[0]
    trace.activations[f"{path}.v"] = trace[f"{path}.v"].roll(1, dims=2).abs()
    found = {mistake.kind for mistake in check_trace(trace).mistakes}
    assert found & {"split_by_view", "wrong_projection"} == {"wrong_projection"}


def test_invalid_traces_and_masks_are_refused() -> None:
    model, tokens = fresh("reverse"), torch.arange(1, 12)[None]
    with pytest.raises(InputError, match="needs the attention patterns"):
        check_trace(xformer.record(model, tokens, keep=["logits"]))
    with pytest.raises(InputError, match="valid must be boolean"):
        check_trace(xformer.record(model, tokens), valid=torch.ones(1, 5).bool())
    only = xformer.record(model, tokens, keep=["*.pattern"])
    assert check_trace(only).mistakes == []  # checks whose activations were not recorded are skipped
    assert too_few_rows(only)
    assert not too_few_rows(varied_inputs(model.config).record(model))


def test_findings_as_a_table() -> None:
    row, *_ = mistakes_frame(of("no_scale")).to_dict("records")
    assert list(row) == ["severity", "kind", "where", "finding", "numbers"]
    assert (row["kind"], "factor 1" in row["numbers"]) == ("no_scale", True)
    assert mistakes_frame([]).empty
