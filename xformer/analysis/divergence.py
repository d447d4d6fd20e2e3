"""Where rollouts of one input part: the first step that they answer differently, and how far apart they are at every step.

    KL(p‖q) = Σ p ln(p / q)      in nats; 0 for p = q, ∞ where q excludes what p allows    (Kullback and Leibler 1951)
    TV(p,q) = ½ Σ |p − q|        from 0 to 1

p and q are what the models believe, before temperature and the like. Contenders whose vocabularies differ are compared token
by token by their labels; a token that a contender does not have has probability 0 for it. In the tables, as on the screen, a
contender is a player.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import nan
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.analysis.comparison import check_names, joint_labels, to_joint
from xformer.analysis.token_rollout import Rollout
from xformer.errors import InputError


def first_divergence(rollouts: Sequence[Rollout]) -> int | None:
    """The first step at which two that both take it say different tokens; None where there is none."""
    for step in range(max(map(len, rollouts))):
        if len({one.labels[one.predicted[step]] for one in rollouts if step < len(one)}) > 1:
            return step
    return None


def kl(p: Float[Tensor, "*step vocab"], q: Float[Tensor, "*step vocab"]) -> Float[Tensor, "*step"]:
    """KL(p‖q) in nats, in double precision; exactly 0 for equal p and q."""
    p, q = _normalised(p), _normalised(q)
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(dim=-1).clamp(min=0)


def total_variation(p: Float[Tensor, "*step vocab"], q: Float[Tensor, "*step vocab"]) -> Float[Tensor, "*step"]:
    """Half the summed differences: the largest difference in probability that any set of tokens has."""
    return (_normalised(p) - _normalised(q)).abs().sum(dim=-1) / 2


def same_context(one: Rollout, other: Rollout, step: int) -> bool:
    """Whether two had read the same when they decided a step.

    An encoder never reads what it said, so two of them always have. Otherwise it ends with the first token that they went
    on with differently.
    """
    if one.example.source != other.example.source:
        return False
    if not (one.contender.writes or other.contender.writes):
        return True
    went_on = [[rollout.labels[token] for token in rollout.read[:step]] for rollout in (one, other)]
    return went_on[0] == went_on[1]


def predictions_by_step(rollouts: Sequence[Rollout]) -> pd.DataFrame:
    """One row per step and player.

    Columns: step, player, token, probability (the model's, of that token), drawn (its probability under the sampling rule),
    answer, answer_probability, right (None where there is no right answer), entropy in bits, same_context (as all others that
    take the step). Where nobody knows how a text goes on, answer is "" and its probability NaN.
    """
    check_names([rollout.contender for rollout in rollouts])
    rows: list[dict[str, Any]] = []
    for rollout in rollouts:
        entropy, right = rollout.entropy().tolist(), rollout.right
        for step, token in enumerate(rollout.predicted):
            answer = rollout.answer[step] if step < len(rollout.answer) else None
            rows.append(
                {
                    "step": step,
                    "player": rollout.name,
                    "token": rollout.labels[token],
                    "probability": rollout.probability(step),
                    "drawn": rollout.drawn_from[step, token].item(),
                    "answer": "" if answer is None else rollout.labels[answer],
                    "answer_probability": nan if answer is None else rollout.probabilities[step, answer].item(),
                    "right": right[step] if step < len(right) else None,
                    "entropy": entropy[step],
                    "same_context": all(same_context(rollout, other, step) for other in rollouts if step < len(other)),
                }
            )
    return pd.DataFrame(rows).sort_values("step", kind="stable", ignore_index=True)


def divergence_by_step(rollouts: Sequence[Rollout]) -> pd.DataFrame:
    """One row per step and pair of players that both take it.

    Columns: step, one, other, pair, kl (of one from other), kl_back (of other from one), total_variation, same_token,
    same_context.
    """
    beliefs = _beliefs(rollouts)
    frames = []
    for (one, p), (other, q) in combinations(zip(rollouts, beliefs, strict=True), 2):
        n = min(len(one), len(other))
        tokens = [[rollout.labels[token] for token in rollout.predicted[:n]] for rollout in (one, other)]
        frames.append(
            pd.DataFrame(
                {
                    "step": range(n),
                    "one": one.name,
                    "other": other.name,
                    "pair": f"{one.name} | {other.name}",
                    "kl": kl(p[:n], q[:n]).tolist(),
                    "kl_back": kl(q[:n], p[:n]).tolist(),
                    "total_variation": total_variation(p[:n], q[:n]).tolist(),
                    "same_token": [a == b for a, b in zip(*tokens, strict=True)],
                    "same_context": [same_context(one, other, step) for step in range(n)],
                }
            )
        )
    return pd.concat(frames).sort_values("step", kind="stable", ignore_index=True)


def likeliest_tokens(rollouts: Sequence[Rollout], step: int, k: int = 5) -> pd.DataFrame:
    """One row per token and player, for every token among the k likeliest of any of them at a step, likeliest first.

    Columns: step, token, player, probability, drawn, right, predicted. The right token is always there, where there is one. A
    player whose vocabulary lacks a token gives it 0.
    """
    labels = joint_labels([rollout.contender for rollout in rollouts])
    taking = [
        (rollout, p[step], q[step])
        for rollout, p, q in zip(rollouts, _beliefs(rollouts), _beliefs(rollouts, drawn=True), strict=True)
        if 0 <= step < len(rollout)
    ]
    if not taking:
        raise InputError(f"The players take the steps 0 to {max(map(len, rollouts)) - 1}, got {step}.")
    shown = {labels.index(one.labels[one.answer[step]]) for one, _, _ in taking if step < len(one.answer)}
    for _, p, _ in taking:
        shown.update(p.topk(min(k, len(labels))).indices.tolist())
    highest = torch.stack([p for _, p, _ in taking]).amax(dim=0)  # [joint vocab]
    return pd.DataFrame(
        {
            "step": step,
            "token": labels[token],
            "player": one.name,
            "probability": p[token].item(),
            "drawn": q[token].item(),
            "right": one.has_right_answer and labels[token] == one.labels[one.answer[step]],
            "predicted": labels[token] == one.labels[one.predicted[step]],
        }
        for token in sorted(shown, key=lambda token: (-highest[token].item(), token))
        for one, p, q in taking
    )


def _beliefs(rollouts: Sequence[Rollout], *, drawn: bool = False) -> list[Float[Tensor, "step joint"]]:
    """Everybody's probabilities over the joint labels."""
    contenders = [rollout.contender for rollout in rollouts]
    check_names(contenders)
    labels = joint_labels(contenders)
    found = []
    for rollout in rollouts:
        p = (rollout.drawn_from if drawn else rollout.probabilities).double()
        found.append(p.new_zeros(len(p), len(labels)).index_copy(1, to_joint(rollout.contender, labels), p))
    return found


def _normalised(p: Tensor) -> Float[Tensor, "*step vocab"]:
    """In double precision and summing to 1, so that a KL cannot come out negative by float32's rounding."""
    p = p.double()
    return p / p.sum(dim=-1, keepdim=True)
