"""A row of a run's metrics, read from a cell of the run store to which anything may have happened."""

from __future__ import annotations

from typing import Any

from xformer.training.entry import LARGEST, are_numbers, from_json, is_number

FIGURES = ("step", "steps", "loss", "learning_rate", "gradient_norm", "seconds", "tokens_per_second", "best_head_score",
           "held_out_loss", "held_out_token_accuracy", "held_out_exact_match", "held_out_samples")  # fmt: skip
"""What must be a number in a row of metrics, where it is there."""


def metrics_row(step: Any, text: Any) -> dict[str, Any] | None:
    """A row of metrics without what is garbled in it; None where it is none of that step."""
    try:
        row = from_json(text)
    except ValueError:
        return None
    if type(step) is not int or not 0 <= step <= LARGEST or not isinstance(row, dict) or row.get("step") != step:
        return None
    kept = {name: value for name, value in row.items() if name not in FIGURES or value is None or is_number(value)}
    if "scores" in kept and not _are_scores(kept["scores"]):
        del kept["scores"]
    if not isinstance(kept.get("note", ""), str):
        del kept["note"]
    return kept


def _are_scores(scores: Any) -> bool:
    return isinstance(scores, dict) and all(map(are_numbers, scores.values()))
