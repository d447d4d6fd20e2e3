"""Where plays of one input part: the first step that they answer differently, and how far apart they are at every step.

    KL(p‖q) = Σ p ln(p / q)      in nats; 0 for p = q, ∞ where q excludes what p allows    (Kullback and Leibler 1951)
    TV(p,q) = ½ Σ |p − q|        from 0 to 1

p and q are what the models believe, before temperature and the like. Players whose vocabularies differ are compared token
by token by their labels; a token that a player does not have has probability 0 for it.
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

from xformer.analysis.players import Play, joint_labels, to_joint
from xformer.errors import InputError


def first_parting(plays: Sequence[Play]) -> int | None:
    """The first step at which two players that both take it say different tokens; None where there is none."""
    for step in range(max(map(len, plays))):
        if len({play.labels[play.said[step]] for play in plays if step < len(play)}) > 1:
            return step
    return None


def kl(p: Float[Tensor, "*step vocab"], q: Float[Tensor, "*step vocab"]) -> Float[Tensor, "*step"]:
    """KL(p‖q) in nats, in double precision; exactly 0 for equal p and q."""
    p, q = _normalised(p), _normalised(q)
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(dim=-1).clamp(min=0)


def total_variation(p: Float[Tensor, "*step vocab"], q: Float[Tensor, "*step vocab"]) -> Float[Tensor, "*step"]:
    """Half the summed differences: the largest difference in probability that any set of tokens has."""
    return (_normalised(p) - _normalised(q)).abs().sum(dim=-1) / 2


def same_context(one: Play, other: Play, step: int) -> bool:
    """Whether two players had read the same when they decided a step.

    An encoder never reads what it said, so two of them always have. Otherwise it ends with the first token that they went
    on with differently.
    """
    if one.example.source != other.example.source:
        return False
    if all(play.player.model.config.architecture == "encoder" for play in (one, other)):
        return True
    went_on = [[play.labels[token] for token in play.read[:step]] for play in (one, other)]
    return went_on[0] == went_on[1]


def step_frame(plays: Sequence[Play]) -> pd.DataFrame:
    """One row per step and player.

    Columns: step, player, token, probability (the model's, of that token), drawn (its probability under the sampling rule),
    answer, answer_probability, right (None where there is no right answer), entropy in bits, same_context (as all others that
    take the step). Where nobody knows how a text goes on, answer is "" and its probability NaN.
    """
    _check_names(plays)
    rows: list[dict[str, Any]] = []
    for play in plays:
        entropy = play.entropy().tolist()
        right = play.right
        for step, said in enumerate(play.said):
            answer = play.answer[step] if step < len(play.answer) else None
            rows.append(
                {
                    "step": step,
                    "player": play.player.name,
                    "token": play.labels[said],
                    "probability": play.probability(step),
                    "drawn": play.drawn_from[step, said].item(),
                    "answer": "" if answer is None else play.labels[answer],
                    "answer_probability": nan if answer is None else play.probabilities[step, answer].item(),
                    "right": right[step] if step < len(right) else None,
                    "entropy": entropy[step],
                    "same_context": all(same_context(play, other, step) for other in plays if step < len(other)),
                }
            )
    return pd.DataFrame(rows).sort_values("step", kind="stable", ignore_index=True)


def pair_frame(plays: Sequence[Play]) -> pd.DataFrame:
    """One row per step and pair of players that both take it.

    Columns: step, one, other, pair, kl (of one from other), kl_back (of other from one), total_variation, same_token,
    same_context.
    """
    _check_names(plays)
    labels = joint_labels([play.player for play in plays])
    spread = [_spread(play, labels) for play in plays]
    rows: list[dict[str, Any]] = []
    for (one, p), (other, q) in combinations(zip(plays, spread, strict=True), 2):
        n = min(len(one), len(other))
        there, back, apart = kl(p[:n], q[:n]).tolist(), kl(q[:n], p[:n]).tolist(), total_variation(p[:n], q[:n])
        for step, variation in enumerate(apart.tolist()):
            rows.append(
                {
                    "step": step,
                    "one": one.player.name,
                    "other": other.player.name,
                    "pair": f"{one.player.name} | {other.player.name}",
                    "kl": there[step],
                    "kl_back": back[step],
                    "total_variation": variation,
                    "same_token": one.labels[one.said[step]] == other.labels[other.said[step]],
                    "same_context": same_context(one, other, step),
                }
            )
    columns = ["step", "one", "other", "pair", "kl", "kl_back", "total_variation", "same_token", "same_context"]
    return pd.DataFrame(rows, columns=columns).sort_values("step", kind="stable", ignore_index=True)


def top_frame(plays: Sequence[Play], k: int = 5, steps: Sequence[int] | None = None) -> pd.DataFrame:
    """One row per step, token and player, for every token among the k likeliest of any of them, likeliest first.

    Columns: step, token, player, probability, drawn, right, said. The right token is always there, where there is one. A
    player whose vocabulary lacks a token gives it 0.
    """
    _check_names(plays)
    labels = joint_labels([play.player for play in plays])
    beliefs = [_spread(play, labels) for play in plays]
    drawn = [_spread(play, labels, drawn=True) for play in plays]
    rows: list[dict[str, Any]] = []
    for step in range(max(map(len, plays))) if steps is None else steps:
        here = [index for index, play in enumerate(plays) if step < len(play)]
        if not here:
            raise InputError(f"The players take the steps 0 to {max(map(len, plays)) - 1}, got {step}.")
        answers = {plays[i].labels[plays[i].answer[step]] for i in here if step < len(plays[i].answer)}
        chosen = {labels.index(answer) for answer in answers}
        for index in here:
            chosen.update(beliefs[index][step].topk(min(k, len(labels))).indices.tolist())
        highest = torch.stack([beliefs[index][step] for index in here]).amax(dim=0)  # [joint vocab]
        for token in sorted(chosen, key=lambda token: (-highest[token].item(), token)):
            for index in here:
                play = plays[index]
                right = play.has_right_answer and labels[token] == play.labels[play.answer[step]]
                rows.append(
                    {
                        "step": step,
                        "token": labels[token],
                        "player": play.player.name,
                        "probability": beliefs[index][step, token].item(),
                        "drawn": drawn[index][step, token].item(),
                        "right": right,
                        "said": labels[token] == play.labels[play.said[step]],
                    }
                )
    return pd.DataFrame(rows)


def payload(plays: Sequence[Play], k: int = 8) -> dict[str, Any]:
    """All steps of all players as plain JSON for one message to a browser, which then steps through it on its own.

    Tokens are indices of `labels`; numbers are rounded to 6 decimals; an infinite KL is null.
    """
    _check_names(plays)
    labels = joint_labels([play.player for play in plays])
    pairs = pair_frame(plays)
    players = []
    for play in plays:
        place = to_joint(play.player, labels).tolist()
        tops = [play.top(step, k) for step in range(len(play))]
        answered = enumerate(play.answer[: len(play)])
        answer_probability = [play.probabilities[step, token].item() for step, token in answered]
        players.append(
            {
                "name": play.player.name,
                "ended": play.ended,
                "forced": play.forced,
                "has_right_answer": play.has_right_answer,
                "said": [place[token] for token in play.said],
                "answer": [place[token] for token in play.answer],
                "probability": _round([play.probability(step) for step in range(len(play))]),
                "answer_probability": _round(answer_probability),
                "entropy": _round(play.entropy().tolist()),
                "top": [[place[token] for token, _ in top] for top in tops],
                "top_probability": [_round([p for _, p in top]) for top in tops],
            }
        )
    apart = [
        {
            "one": group["one"].iloc[0],
            "other": group["other"].iloc[0],
            "same_context": group["same_context"].tolist(),
            **{column: _round(group[column].tolist()) for column in ("kl", "kl_back", "total_variation")},
        }
        for _, group in pairs.groupby("pair", sort=False)
    ]
    return {"labels": list(labels), "parting": first_parting(plays), "players": players, "pairs": apart}


def _spread(play: Play, labels: tuple[str, ...], *, drawn: bool = False) -> Float[Tensor, "step joint"]:
    """A play's probabilities over the joint labels."""
    p = (play.drawn_from if drawn else play.probabilities).double()
    return p.new_zeros(len(p), len(labels)).index_copy(1, to_joint(play.player, labels), p)


def _normalised(p: Tensor) -> Float[Tensor, "*step vocab"]:
    """In double precision and summing to 1, so that a KL cannot come out negative by float32's rounding."""
    p = p.double()
    return p / p.sum(dim=-1, keepdim=True)


def _check_names(plays: Sequence[Play]) -> None:
    names = [play.player.name for play in plays]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"Players need different names to be told apart, got {names}; for example ['first', 'second']."
        )


def _round(values: Sequence[float]) -> list[float | None]:
    return [None if value == float("inf") else round(value, 6) for value in values]
