"""Each bug is found by name in fresh, shipped and briefly trained models, and correct models have no findings."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import torch

import xformer
from tests.doctor.equations.confusion import CONSEQUENCES, NOT_IN_A_TRACE, bugs_of, fresh, kinds, shipped, trained_with
from tests.layers.reference import FITTING
from xformer import edits
from xformer.doctor.equations.report import Finding, diagnose, examination, findings_frame, too_few_rows
from xformer.doctor.faults import BUGS
from xformer.errors import InputError
from xformer.presets import PRESETS
from xformer.tasks import Task


def check_named(bug: str, found: list[str]) -> None:
    assert found[:1] == [bug]
    assert set(found[1:]) <= CONSEQUENCES.get(bug, set())


def shows(bug: str, model: xformer.Transformer, task: Task | None) -> bool:
    """Return whether the bug is visible; padding bugs need an examination with padding."""
    return BUGS[bug].shows != "with padding" or not bool(examination(model.config, task).valid.all())


HERE = {name: one for name, one in reversed(PRESETS.items()) if not Task(one.task).rule.no_sample_reason}
PRESETS_TRIED = {one.model.architecture: name for name, one in HERE.items()}
"""One preset of each architecture."""
SHIPPED_TRIED = ("reverse-modern", "reverse-seq2seq", "digits")
"""Trained weights, other components, and images."""
TRIED_IN_SHIPPED = {
    "no-scale", "no-residual", "residual-after-norm", "gate-and-up-swapped", "kv-heads-tiled", "cross-roles-swapped",
    "causal-off-by-one", "dead-neurons",
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
    check_named("no-scale", trained_with(BUGS["no-scale"]))


def test_every_bug_is_tested_on_some_model() -> None:
    configs = [fresh(name).config for name in PRESETS_TRIED.values()]
    configs += [shipped(name).config for name in SHIPPED_TRIED]
    assert {bug.name for config in configs for bug in bugs_of(config)} == set(BUGS)


@pytest.mark.parametrize("name", [*SHIPPED_TRIED, "characters", "modular", "reverse-mirror"])
def test_no_false_alarms_on_examinations_and_short_inputs(name: str) -> None:
    model, task = shipped(name).model, shipped(name).task
    assert task is not None
    assert kinds(model, task) == []
    source = task.draw(0)
    examples = [task.example(source)]
    for shorter in (source[:2], source[:1], [source[0]] * 7):
        with suppress(InputError):  # a sum needs two numbers, an image all its pixels
            examples.append(task.example(shorter))
    for example in examples:
        assert diagnose(xformer.record(model, example.input_ids, example.target)).findings == []


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
    trace = examination(config).record(model)
    found = diagnose(trace).findings + diagnose(trace, model=model).findings
    for tokens in ([[3]], [[3, 5]], [[3, 3, 3, 3]], [[1, 2, 3, 4, 5, 6, 7]]):
        given = torch.tensor(tokens)
        found += diagnose(xformer.record(model, given, given[:, :5] if "-" in architecture else None)).findings
    # Without norms, tiny embeddings do give uniform patterns: a note, not an error.
    assert [finding for finding in found if finding.severity != "note"] == []


def of(bug: str, architecture: str = "encoder", **options: object) -> list[Finding]:
    """Return the findings in a fresh model with prime sizes (d_head 5, so 1/√d_head = 0.447) on one batch."""
    given = {"architecture": architecture, "vocab_size": 23, "d_model": 13, "n_layers": 2, "n_heads": 3, "d_head": 5}
    config = xformer.ModelConfig(**{**given, "d_ff": 37, "max_len": 19, "embed_std": 1.0, **options})
    model = xformer.Transformer(config, torch.Generator().manual_seed(3)).eval()
    inputs = examination(config)
    trace = inputs.record(BUGS[bug].broken(model))
    return diagnose(trace, valid=inputs.valid, target_valid=inputs.target_valid).findings


def test_findings_contain_the_measured_numbers() -> None:
    scaled = of("scaled-after-softmax")[0]
    assert scaled.numbers["sum"] == pytest.approx(1 / math.sqrt(5), rel=1e-6)
    assert scaled.where == ("encoder.0.attn", "encoder.1.attn")
    unscaled = of("no-scale")[0]
    assert unscaled.numbers["factor"] == pytest.approx(1, rel=1e-5)
    assert unscaled.numbers["one_over_root_d_head"] == pytest.approx(1 / math.sqrt(5))
    leak = of("causal-off-by-one", "decoder")[0]
    assert leak.numbers["weight_on_the_next"] == pytest.approx(1)
    assert 0 < leak.numbers["weight_on_later_tokens"] < 1
    assert of("identical-heads")[0].where[0] == "encoder.0.attn heads 0 and 1"
    assert of("dead-neurons")[0].numbers["neurons"] == 37
    assert of("softmax-of-nothing")[0].where == ("encoder.0.attn.pattern",)


def test_wrong_scales_and_rows_that_do_not_sum_to_one_are_found() -> None:
    model, tokens = fresh("reverse"), torch.arange(1, 12)[None]
    found = diagnose(xformer.record(model, tokens, edits=[edits.scale("encoder.2.attn.scores", 0.5)])).findings
    assert [(finding.kind, finding.where) for finding in found] == [("wrong-scale", ("encoder.2.attn",))]
    assert found[0].numbers["factor"] == pytest.approx(0.125, rel=1e-5)  # half of 1/√16
    smaller = edits.scale("encoder.2.attn.pattern", 0.9, heads=[1])
    found = diagnose(xformer.record(model, tokens, edits=[smaller])).findings
    assert [finding.kind for finding in found] == ["rows-not-one"]


def test_the_first_nan_is_located() -> None:
    model, tokens = fresh("reverse"), torch.arange(1, 12)[None]
    trace = xformer.record(model, tokens)
    trace.activations["encoder.1.ffn.post"] = torch.full_like(trace["encoder.1.ffn.post"], float("nan"))
    found = diagnose(trace).findings
    assert [(finding.kind, finding.where) for finding in found] == [("not-finite", ("encoder.1.ffn.post",))]


@pytest.mark.parametrize("name", ["reverse", "addition"])
def test_mixed_positions_are_not_reported_as_split_by_view(name: str) -> None:
    """Values taken from neighbouring positions match no row of the stream under any view."""
    model = shipped(name).model
    inputs = examination(model.config, shipped(name).task)
    trace = inputs.record(model)
    path = trace.attention_layers()[0]
    trace.activations[f"{path}.v"] = trace[f"{path}.v"].roll(1, dims=2).abs()
    found = {finding.kind for finding in diagnose(trace).findings}
    assert found & {"split-by-view", "wrong-projection"} == {"wrong-projection"}


def test_invalid_traces_and_masks_are_refused() -> None:
    model, tokens = fresh("reverse"), torch.arange(1, 12)[None]
    with pytest.raises(InputError, match="needs the attention patterns"):
        diagnose(xformer.record(model, tokens, keep=["logits"]))
    with pytest.raises(InputError, match="valid must be boolean"):
        diagnose(xformer.record(model, tokens), valid=torch.ones(1, 5).bool())
    only = xformer.record(model, tokens, keep=["*.pattern"])
    assert diagnose(only).findings == []  # checks whose activations were not recorded are skipped
    assert too_few_rows(only)
    assert not too_few_rows(examination(model.config).record(model))


def test_findings_as_a_table() -> None:
    row, *_ = findings_frame(of("no-scale")).to_dict("records")
    assert list(row) == ["severity", "kind", "where", "finding", "numbers"]
    assert (row["kind"], "factor 1" in row["numbers"]) == ("no-scale", True)
    assert findings_frame([]).empty
