"""What a model answers by itself: a lane of what is typed, one of what it says, and one under the changes that are on."""

from __future__ import annotations

import streamlit as st

from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import resources
from pages.shared.patience import patience
from pages.shared.view import View
from xformer.interventions import changed_source

Predictions = tuple[tuple[int, float], ...]
"""Tokens, each with its probability."""


def answer_panel(view: View) -> None:
    """The lanes, and how many tokens are right."""
    task, label = view.own.task, view.subject.labels
    end = task.vocabulary.special.end
    lanes, sources = [typed(view)], (view.source, changed_source(view.interventions, view.source))
    answer, right = [], ()
    for (name, predictions), source in zip(predicted(view, "It answers", "it says").items(), sources, strict=False):
        answer = [*task.answer(list(source)), *([] if end is None else [end])]
        right = tuple(i < len(answer) and token == answer[i] for i, (token, _) in enumerate(predictions))
        lanes.append(Lane(name, tuple(label[t] for t, _ in predictions), right, tuple(p for _, p in predictions)))
    prediction_strip(lanes, key="prediction")
    how = "all at once" if view.shape.architecture == "encoder" else "one token after the other"
    is_all_right = len(right) == len(answer) and all(right)
    verdict = "Every token is right" if is_all_right else f"{sum(right)} of {len(answer)} right"
    under = f" with {view.what_changed()}" if view.is_changed else ""
    st.caption(f"{verdict}{under}. The model ran just now and said this {how}; a bar shows how sure it was.")


def typed(view: View) -> Lane:
    """The lane of what is typed."""
    return Lane("you type", tuple(view.subject.labels[token] for token in view.source))


def predicted(view: View, wait: str, name: str) -> dict[str, Predictions]:
    """What the model predicts token by token, and what it does under the changes, by the names of their lanes."""
    with patience(wait) as step:
        runs = {name: resources.decoded(view.model, view.source, step=step)}
        if view.is_changed:
            changed = view.what_changed()
            runs[f"{name}, {changed}"] = resources.decoded(*view.key(changed), step=step)
    return runs
