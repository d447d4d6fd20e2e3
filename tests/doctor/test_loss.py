"""The loss of small models: its targets, its padding, its form and its first value, each wrong in one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.doctor.checking import TOKENS
from xformer.doctor.check import Finding
from xformer.doctor.checks.loss import AMBIGUOUS, NOT_CROSS_ENTROPY, TOO_SHORT, _scored
from xformer.doctor.diagnose import token_model_of

VOCAB, D = 53, 24


def flat(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return logits.flatten(0, 1), targets.flatten()


class TinyGPT(nn.Module):
    """One layer of causal attention, and a loss if there is a function for it."""

    def __init__(self, loss: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None, std: float = 0.3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.loss = nn.Embedding(VOCAB, D, padding_idx=0), nn.LayerNorm(D), loss
        self.attention, self.head = nn.MultiheadAttention(D, 3, batch_first=True), nn.Linear(D, VOCAB, bias=False)
        nn.init.normal_(self.head.weight, std=std)

    def logits(self, ids: Tensor) -> Tensor:
        n, x = ids.shape[1], self.embed(ids)
        future = torch.ones(n, n).triu(1).bool()
        return self.head(self.norm(x + self.attention(x, x, x, attn_mask=future, need_weights=False)[0]))

    def forward(self, idx: Tensor) -> Any:
        return self.logits(idx)


class WithTargets(TinyGPT):
    """Takes targets, as nanoGPT does."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.logits(idx)
        return logits, None if targets is None or self.loss is None else self.loss(logits, targets, idx)


class WithLabels(TinyGPT):
    """Takes labels, as models of Transformers do, and may ignore a mask."""

    def forward(self, ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None) -> Any:
        logits = self.logits(ids)
        return {"logits": logits} | (
            {"loss": self.loss(logits, labels, ids)} if labels is not None and self.loss else {}
        )


class OnItself(TinyGPT):
    """Returns the loss on its input."""

    def forward(self, idx: Tensor) -> Any:
        logits = self.logits(idx)
        return logits, self.loss(logits, idx, idx) if self.loss else None


class Probabilities(TinyGPT):
    def forward(self, idx: Tensor) -> Tensor:
        return self.logits(idx).softmax(dim=-1)


def straight(logits: Tensor, targets: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(*flat(logits, targets))


def shifted(logits: Tensor, targets: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(*flat(logits[:, :-1], targets[:, 1:]))


def on_input(logits: Tensor, _: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(*flat(logits, ids))


def by_hand(logits: Tensor, targets: Tensor, _: Tensor) -> Tensor:
    chosen = logits.log_softmax(dim=-1)[:, 1:].gather(-1, targets[:, :-1, None])
    return -chosen.mean()


def outside(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(*flat(model(batch[:, :-1]), batch[:, 1:]))


def outside_ignored(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(*flat(model(batch[:, :-1]), batch[:, 1:]), ignore_index=0)


def outside_same(model: nn.Module, batch: Tensor) -> Tensor:
    x = y = batch[:, :-1]
    return F.cross_entropy(*flat(model(x), y))


def outside_twice(model: nn.Module, batch: Tensor) -> Tensor:
    x, y = batch[:, :-1], batch[:, 1:]
    return F.cross_entropy(*flat(model(x)[:, :-1], y[:, 1:]))


def outside_softmax(model: nn.Module, batch: Tensor) -> Tensor:
    probabilities = model(batch)[:, :-1].softmax(dim=-1)
    return F.cross_entropy(*flat(probabilities, batch[:, 1:]), ignore_index=0)


def outside_sum(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(*flat(model(batch)[:, :-1], batch[:, 1:]), ignore_index=0, reduction="sum")


def diagnosed(model: nn.Module, inputs: Any = TOKENS, **options: Any) -> Finding:
    [finding] = xformer.diagnose(model.eval(), inputs, checks=["loss"], causal=True, **options).findings
    return finding


NEXT, SAME = TOKENS.roll(-1, dims=1).index_fill(1, torch.tensor([12]), -100), TOKENS
PADDED, NEXT_PADDED = (one.index_fill(1, torch.tensor([at]), 0) for one, at in ((TOKENS, 12), (NEXT, 11)))
MASK = torch.ones_like(TOKENS).index_fill(1, torch.arange(9, 13), 0)
RIGHT: dict[str, tuple[nn.Module, Any, dict[str, Any]]] = {
    "targets": (WithTargets(straight), TOKENS, {}),
    "targets shifted inside": (WithTargets(shifted), TOKENS, {}),
    "labels": (WithLabels(shifted), TOKENS, {}),
    "a batch": (WithTargets(straight), {"idx": TOKENS, "targets": NEXT}, {}),
    "a batch of labels": (WithLabels(shifted), {"ids": TOKENS, "labels": SAME}, {}),
    "padding ignored": (
        WithLabels(shifted),
        {"ids": TOKENS, "attention_mask": MASK, "labels": SAME.masked_fill(MASK == 0, -100)},
        {},
    ),
    "on itself": (OnItself(shifted), TOKENS, {}),
    "a function": (TinyGPT(), TOKENS, {"loss": outside_ignored}),
}
WRONG: dict[str, tuple[str, str, str, nn.Module, Any, dict[str, Any]]] = {
    "input": ("broken", "targets_not_shifted", "flat(logits, ids)", WithTargets(on_input), TOKENS, {}),
    "itself": ("broken", "targets_not_shifted", "flat(logits, targets)", OnItself(straight), TOKENS, {}),
    "labels": ("unusual", "targets_not_shifted", "flat(logits, targets)", WithLabels(straight), TOKENS, {}),
    "a batch": (
        "broken", "targets_not_shifted", "flat(logits, targets)", WithTargets(straight), {"idx": TOKENS, "targets": SAME}, {},
    ),
    "twice": (
        "broken", "targets_shifted_twice", "flat(logits[:, :-1]", WithTargets(shifted), {"idx": TOKENS, "targets": NEXT}, {},
    ),
    "back": ("broken", "targets_shifted_back", "chosen.mean()", OnItself(by_hand), TOKENS, {}),
    "outside": ("broken", "targets_not_shifted", "flat(model(x), y)", TinyGPT(), TOKENS, {"loss": outside_same}),
    "outside, twice": ("broken", "targets_shifted_twice", "y[:, 1:]", TinyGPT(), TOKENS, {"loss": outside_twice}),
    "padding": ("broken", "padding_in_loss", "batch[:, 1:])", TinyGPT(), TOKENS, {"loss": outside}),
    "padded batch": (
        "broken", "padding_in_loss", "targets[:, 1:]", WithLabels(shifted),
        {"ids": TOKENS, "attention_mask": MASK, "labels": SAME}, {},
    ),
    "one padding": (
        "broken", "padding_in_loss", "flat(logits, targets)", WithTargets(straight),
        {"idx": PADDED, "targets": NEXT_PADDED}, {},
    ),
    "softmax": ("broken", "softmax_before_loss", "flat(probabilities", TinyGPT(), TOKENS, {"loss": outside_softmax}),
    "probabilities": (
        "broken", "softmax_before_loss", "ignore_index=0", Probabilities(), TOKENS, {"loss": outside_ignored},
    ),
    "sum": ("unusual", "loss_summed", 'reduction="sum"', TinyGPT(), TOKENS, {"loss": outside_sum}),
    "first": ("unusual", "initial_loss", "self.head(", WithTargets(straight, std=5.0), TOKENS, {}),
    "first, with a specification": (
        "broken", "initial_loss", "self.head(", WithTargets(straight, std=5.0), TOKENS, {"spec": "gpt"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT)
def test_right_loss_holds(case: str) -> None:
    model, inputs, options = RIGHT[case]
    found = diagnosed(model, inputs, **options)
    assert found.verdict == "holds", found


@pytest.mark.parametrize("case", WRONG)
def test_wrong_loss_is_named_at_its_line(case: str) -> None:
    verdict, cause, text, model, inputs, options = WRONG[case]
    found = diagnosed(model, inputs, **options)
    assert (found.verdict, found.cause) == (verdict, cause), found
    assert found.line.startswith("test_loss.py:")
    assert text in found.remedy


def test_first_loss_is_given_with_the_spread_of_the_logits() -> None:
    sentence = diagnosed(WithTargets(straight, std=5.0)).sentence
    assert "guessing among 53 tokens gives ln 53 = 3.97: the logits have a standard deviation of 2" in sentence
    assert "since head.weight has one of 4.9" in sentence
    trained = WithTargets(straight, std=5.0)
    nn.init.normal_(trained.norm.weight, mean=1.0, std=0.1)
    assert diagnosed(trained).verdict == "holds"  # a trained model is confident


def test_model_without_a_loss_is_told_how_to_give_one() -> None:
    found = diagnosed(TinyGPT())
    assert found.verdict == "not applicable"
    assert "loss=function" in found.sentence
    assert diagnosed(WithTargets(lambda logits, *_: logits.square().mean())).verdict == "not applicable"


def test_formula_that_agrees_by_chance_is_told_apart_by_another_batch() -> None:
    verdicts, n_first = list[str](), 0
    for seed in range(12):
        model = WithTargets(straight, std=0.005)
        torch.manual_seed(seed)
        nn.init.normal_(model.head.weight, std=0.005)
        token_model = token_model_of(model, TOKENS)
        tokens = torch.cat([TOKENS, token_model.other_tokens(TOKENS)])
        labels = token_model.other_tokens(tokens, seed=2)
        logits = model(tokens)[0].detach()
        n_first += len(_scored(float(straight(logits, labels, tokens)), logits, tokens, labels, 1e-5)) > 1
        verdicts.append(diagnosed(model).verdict)
    assert n_first  # one batch is not enough for some
    assert verdicts == ["holds"] * 12


def test_loss_with_which_several_formulas_agree_is_not_judged() -> None:
    found = diagnosed(WithTargets(straight, std=1e-7))
    assert (found.verdict, found.sentence) == ("not applicable", AMBIGUOUS)
    smoothed = WithTargets(lambda logits, targets, _: F.cross_entropy(*flat(logits, targets), label_smoothing=0.1))
    assert diagnosed(smoothed).sentence == NOT_CROSS_ENTROPY


def straight_ignoring(logits: Tensor, targets: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(*flat(logits, targets), ignore_index=-1)


def test_loss_of_three_tokens_is_not_called_another_loss() -> None:
    for inputs, sentence in (
        (TOKENS[:, :3], TOO_SHORT),
        (TOKENS[:, :4], "The loss is the mean over all labelled tokens."),
    ):
        [found] = xformer.diagnose(WithTargets(straight_ignoring), inputs, checks=["accumulation"]).findings
        assert found.sentence == sentence
