"""Pack rollouts for the ruler that steps through them in a browser, which then asks nobody again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from xformer.analysis.comparison import joint_labels
from xformer.analysis.generation import Rollout, divergence_by_step, first_divergence, predictions_by_step
from xformer.viz.theme import HEAD_HUES, PLAYER_HUES


def pack_rollouts(rollouts: Sequence[Rollout], k: int = 8) -> dict[str, Any]:
    """All steps of all players as plain JSON, with the k likeliest tokens of each step.

    Tokens are indices of `labels`; numbers are rounded to 6 decimals; an infinite KL is null.
    """
    steps, pairs = predictions_by_step(rollouts), divergence_by_step(rollouts)
    labels = joint_labels([rollout.contender for rollout in rollouts])
    place = {label: index for index, label in enumerate(labels)}
    players = []
    for rollout in rollouts:
        own = steps.loc[steps["player"] == rollout.name]
        tops = [rollout.top(step, k) for step in range(len(rollout))]
        players.append(
            {
                "name": rollout.name,
                "has_right_answer": rollout.has_right_answer,
                "predicted": [place[label] for label in own["token"]],
                "answer": [place[rollout.labels[token]] for token in rollout.answer],
                "answer_probability": _round(own["answer_probability"].dropna()),
                "top": [[place[rollout.labels[token]] for token, _ in top] for top in tops],
                "top_probability": [_round(p for _, p in top) for top in tops],
                **{column: _round(own[column]) for column in ("probability", "drawn", "entropy")},
            }
        )
    first = rollouts[0]
    return {
        "labels": list(labels),
        "reads": [first.labels[token] for token in first.example.source],
        "divergence": first_divergence(rollouts),
        "players": players,
        "pairs": [
            {
                "one": group["one"].iloc[0],
                "other": group["other"].iloc[0],
                "same_context": group["same_context"].tolist(),
                **{column: _round(group[column]) for column in ("kl", "kl_back", "total_variation")},
            }
            for _, group in pairs.groupby("pair", sort=False)
        ],
        "hues": PLAYER_HUES,
        "pair_hues": HEAD_HUES[4:],
        "is_sampled": any(rollout.contender.sampling.temperature for rollout in rollouts),
        "is_decoder": any(rollout.contender.writes for rollout in rollouts),
    }


def _round(values: Iterable[float]) -> list[float | None]:
    return [round(value, 6) if isfinite(value) else None for value in values]
