"""Solutions as students write them: right ones pass in any style, wrong ones fail with their cause, cell and line."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.assignments import FOLDER, PLAIN, Variant, variants
from xformer import assignments
from xformer.assignments.grading import (
    LocalCode,
    Result,
    _reproduces,
    _wrong_run,
    cases,
    expected,
    first_wrong_cell,
    grade,
)  # fmt: skip
from xformer.assignments.student import run_case
from xformer.assignments.task import TaskPart
from xformer.assignments.tasks import TASKS
from xformer.assignments.worker import loaded

WRONG, RIGHT = variants("wrong_solutions.txt"), variants("right_variants.txt")
PARTS = [part for task in TASKS.values() for part in task.parts]


def graded(variant: Variant, folder: Path) -> Result:
    path = folder / "solution.py"
    path.write_text(variant.text)
    return grade(TASKS[variant.task], LocalCode(vars(loaded(path))))


@pytest.mark.parametrize("style", ["plain", "einsum", "loops"])
def test_a_right_solution_passes(style: str) -> None:
    report = assignments.check(loaded(FOLDER / "solutions" / f"{style}.py"))
    assert report.ok, report
    assert len(report.results) == 10


@pytest.mark.parametrize("variant", RIGHT, ids=lambda one: f"{one.task}: {one.name}")
def test_a_right_variant_passes(variant: Variant, tmp_path: Path) -> None:
    result = graded(variant, tmp_path)
    assert result.status == "passed", result


def test_there_are_enough_variants() -> None:
    assert len(RIGHT) >= 20
    assert len(WRONG) >= 50
    assert min(Counter(one.task for one in WRONG).values()) >= 5


@pytest.mark.parametrize("variant", WRONG, ids=lambda one: f"{one.task}: {one.name}")
def test_a_wrong_solution_is_named_at_its_line(variant: Variant, tmp_path: Path) -> None:
    result = graded(variant, tmp_path)
    assert (result.status, result.cause) == ("failed", variant.name)
    assert (result.cell is not None) == (variant.name not in ("raises_error", "changes_its_input"))
    found = int(result.place.line.removeprefix("solution.py:")) if result.place.line else 0
    assert found in (variant.lines or (0,))
    assert len(result.hints) == 3


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_wrong_formulas_are_wrong_and_told_apart(part: TaskPart) -> None:
    """Otherwise a mistake would have two names, and none would be given."""
    for mistake in part.wrongs:
        runs = [_wrong_run(part, (mistake,), at) for at in range(len(cases(part)))]
        wrong = [
            first_wrong_cell(run.outputs[name], right, cases(part)[at].free)
            for at, run in enumerate(runs)
            if run.problem is None
            for name, right in expected(part, at).items()
        ]
        assert any(wrong), (mistake.cause, mistake.what)
        same = {one.cause for one in part.wrongs if _reproduces(part, (one,), runs)}
        assert same == {mistake.cause}
        assert mistake.sentence


def test_two_mistakes_at_once_are_both_named(tmp_path: Path) -> None:
    code = """
def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(mask, -1e9)
    weights = softmax(scores)
    return weights @ v, weights
"""
    result = graded(Variant("attention", "", PLAIN + code, ()), tmp_path)
    assert result.cause == "scale_missing"
    assert "not divided by √d_head" in result.sentence
    assert "hides what it should show" in result.sentence


def test_an_unknown_mistake_gets_no_name() -> None:
    def softmax(scores, dim=-1):
        return torch.softmax(scores * 1.1, dim)

    [result] = assignments.check(softmax).results
    assert (result.status, result.cause, result.place.line) == ("failed", "", "")
    assert result.cell is not None
    assert result.cell.index == {"axis 0": 0, "axis 1": 0, "axis 2": 0, "axis 3": 0}


@pytest.mark.parametrize("task", ["attention", "multi_head_attention", "layer_norm_and_block"])
def test_the_doctor_reads_what_no_mistake_explains(task: str, tmp_path: Path) -> None:
    code = """
def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) * 0.21  # <-
    scores = scores.masked_fill(~mask, -1e9) if mask is not None else scores
    weights = softmax(scores)
    return weights @ v, weights
"""
    result = graded(Variant(task, "", PLAIN + code, ()), tmp_path)
    assert (result.cause, result.place.text) == ("scale_other", "scores = q @ k.transpose(-2, -1) * 0.21  # <-")
    assert "0.21" in result.sentence


def test_the_first_wrong_cell_has_named_axes() -> None:
    def causal_mask(n):
        return torch.ones(n, n).tril(1).bool()

    [result] = assignments.check(causal_mask).results
    assert str(result.cell) == "n = 5: output[query 0, key 1] is True, expected False"


def test_the_data_type_is_kept() -> None:
    def softmax(scores, dim=-1):
        return torch.softmax(scores.float(), dim)

    [result] = assignments.check(softmax).results
    assert (result.cause, result.cell and result.cell.case) == ("dtype_not_kept", "scores in float64")


def test_a_module_without_gradient_is_told_so(tmp_path: Path) -> None:
    code = """
class MultiHeadAttention(MultiHeadAttention):
    def forward(self, x, mask=None):
        return super().forward(x.detach(), mask).detach()
"""
    result = graded(Variant("multi_head_attention", "", PLAIN + code, ()), tmp_path)
    assert result.cause == "no_gradient"


@pytest.mark.parametrize("name", ["softmax", "attention", "MultiHeadAttention", "LayerNorm", "next_token_loss"])
def test_the_right_formula_is_that_of_pytorch(name: str) -> None:
    """The reference is not written twice by the same hand."""

    def attention(q, k, v, mask=None):
        eye = torch.eye(k.shape[2], dtype=v.dtype).expand(*k.shape[:2], -1, -1)
        fused = partial(F.scaled_dot_product_attention, q, k, attn_mask=mask)
        return fused(v), fused(eye)

    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model, n_heads):
            super().__init__()
            self.n_heads = n_heads
            self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model) for _ in range(4))

        def forward(self, x, mask=None):
            given = (self.query, self.key, self.value)
            weight, bias = torch.cat([one.weight for one in given]), torch.cat([one.bias for one in given])
            hidden = None if mask is None else (~mask).expand(len(x), self.n_heads, *mask.shape[-1:] * 2).flatten(0, 1)
            made, _ = F.multi_head_attention_forward(
                *(x.transpose(0, 1),) * 3, x.shape[-1], self.n_heads, weight, bias, None, None, False, 0.0,
                self.output.weight, self.output.bias, attn_mask=hidden,
            )  # fmt: skip
            return made.transpose(0, 1)

    def next_token_loss(logits, tokens, ignore_index=-100):
        return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], ignore_index=ignore_index)

    own = {
        "softmax": lambda scores, dim=-1: torch.softmax(scores, dim), "attention": attention,
        "MultiHeadAttention": MultiHeadAttention,
        "LayerNorm": nn.LayerNorm, "next_token_loss": next_token_loss,
    }[name]  # fmt: skip
    [part] = [one for one in PARTS if one.name == name]
    for at, case in enumerate(cases(part)):
        ran = run_case(part, own, case)
        assert ran.problem is None, ran.problem
        for output, right in expected(part, at).items():
            free = torch.tensor(False) if case.free is None else case.free
            torch.testing.assert_close(ran.outputs[output].masked_fill(free, 0), right.masked_fill(free, 0))


def test_a_line_of_a_notebook_is_that_of_its_cell() -> None:
    names = {}
    exec(
        compile(
            "import torch\ndef causal_mask(n):\n    return torch.ones(n, n).tril(1).bool()",
            "/tmp/ipykernel_7/12.py",
            "exec",
        ),
        names,
    )
    assert assignments.check(names, task="causal_mask").results[0].place.line == "cell:3"
