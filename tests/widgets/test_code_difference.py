"""The first line of two modules whose tensors differ: planted faults, and changes that are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.widgets.test_code_view import SOURCE, TOKENS, gpt
from xformer.widgets.code_view import code_view

FAULTS = {
    "scores / math.sqrt(k.shape[-1])": [
        "scores * math.sqrt(k.shape[-1])", "scores / math.sqrt(D_MODEL)", "scores / math.sqrt(N_HEADS)", "scores / k.shape[-1]",
        "scores * 1.0",
    ],
    "torch.ones(length, length, dtype=torch.bool).triu(1)": [
        "torch.ones(length, length, dtype=torch.bool).triu(2)", "torch.ones(length, length, dtype=torch.bool).tril(-1)",
        "torch.ones(length, length, dtype=torch.bool).triu(0)",
    ],
    'scores.masked_fill(future, float("-inf"))': ["scores.masked_fill(future, 0.0)", "scores + future"],
    "scores.softmax(dim=-1)": ["scores.softmax(dim=-2)", "scores.softmax(dim=1)", "scores.sigmoid()"],
    "z.transpose(1, 2).reshape(batch, length, D_MODEL)": ["z.reshape(batch, length, D_MODEL)"],
    "q @ k.transpose(-2, -1)": ["k @ q.transpose(-2, -1)"],
    "pattern @ v  # ": ["pattern.transpose(-2, -1) @ v  # "],
    "x + self.attention(self.norm1(x))": [
        "self.attention(self.norm1(x))", "x + self.attention(x)", "self.norm1(x) + self.attention(self.norm1(x))",
    ],
    "F.gelu(self.up(self.norm2(x)))": [
        "F.relu(self.up(self.norm2(x)))", "F.gelu(self.up(x))", 'F.gelu(self.up(self.norm2(x)), approximate="tanh")',
    ],
    "x + self.down(hidden)": ["self.down(hidden)"],
    "self.token(tokens) + self.position(positions)": [
        "self.token(tokens)", "self.token(tokens) * 2 + self.position(positions)",
    ],
    "torch.arange(tokens.shape[1])": ["torch.arange(tokens.shape[1]) + 1", "torch.arange(tokens.shape[1]).flip(0)"],
    "self.head(self.norm(x))": ["self.head(x)"],
}  # fmt: skip


@pytest.mark.parametrize(("right", "wrong"), [(right, wrong) for right, wrongs in FAULTS.items() for wrong in wrongs])
def test_a_planted_difference_is_found_at_its_line(right: str, wrong: str, tmp_path: Path) -> None:
    source = SOURCE.read_text()
    assert source.count(right) == 1
    changed = tmp_path / "broken.py"
    changed.write_text(source.replace(right, wrong))
    view = code_view(gpt(changed), TOKENS, changed=gpt())
    number = source[: source.index(right)].count("\n") + 1
    assert view.difference is not None
    assert view.difference.line == f"broken.py:{number}"


SAME = {
    "scores.masked_fill(future": ["scores.masked_fill(future", "scores.masked_fill(future | torch.zeros_like(future)"],
    "scores.softmax(dim=-1)": ["(scores * 2 / 2).softmax(dim=-1)", "scores.log_softmax(dim=-1).exp()"],
}


@pytest.mark.parametrize(("one", "same"), [(one, same) for one, others in SAME.items() for same in others])
def test_operations_that_change_no_number_are_no_difference(one: str, same: str, tmp_path: Path) -> None:
    changed = tmp_path / "same.py"
    changed.write_text(SOURCE.read_text().replace(one, same))
    assert code_view(gpt(), TOKENS, changed=gpt(changed)).difference is None


def test_a_run_of_other_inputs_can_be_compared() -> None:
    view = code_view(gpt(), TOKENS, changed=torch.tensor([[3, 1, 2, 0, 8, 4]]))
    assert view.difference is not None
    assert "embedding differs" in view.difference.reason
