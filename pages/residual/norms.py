"""“How long the stream is”: a heatmap of its lengths, or of the lengths of what each step adds, by step and position."""

from __future__ import annotations

import pandas as pd

from pages.shared.layout import caption, what_to_notice
from pages.shared.picture import heading, of_each_run, table
from pages.shared.position_window import ask_window, shown_of
from pages.shared.view import View
from pages.shared.widgets import choose
from xformer import analysis, viz
from xformer.viz.residual import MOST_POINTS

_WHAT = {"stream": "the stream", "added": "what each step adds"}


def norms_panel(view: View) -> None:
    """Draw the lengths of every run, on one scale."""
    heading("How long the stream is")
    frames = [table(view, analysis.norms, run) for run in view.runs().values()]
    positions = sorted(frames[0]["position"].unique().tolist())
    what = choose("length", _WHAT, "stream", "The length of …", key="residual_length")
    shown = ask_window(positions, "residual_from")
    of_each_run(
        view,
        "norms",
        viz.norms,
        what=what,
        limit=max(float(frame.loc[frame["what"] == what, "length"].max()) for frame in frames),
        positions=shown if len(shown) < len(positions) else None,
    )
    caption(_caption(view, what, frames[-1], positions, shown))
    if notes := norm_notes(frames[-1], what, view.shape.norm):
        what_to_notice(notes)


def _caption(view: View, what: str, frame: pd.DataFrame, positions: list[int], shown: list[int]) -> str:
    which = "the decoder’s stream" if view.is_pair else "the residual stream"
    said = (
        f"‖x‖, the length of {which} after each step."
        if what == "stream"
        else "‖f(x)‖, the length of what a step adds."
    )
    if view.shape.norm == "post":
        said += " Each norm of this model resets the length of the stream" + (
            ", and what a step adds is measured before that." if what == "added" else "."
        )
    n_points = len(set(frame["depth"]))
    thin = f" Of {n_points} steps {MOST_POINTS} are drawn." if n_points > MOST_POINTS else ""
    return said + thin + shown_of(positions, shown)


def norm_notes(frame: pd.DataFrame, what: str, norm: str) -> list[str]:
    """How the average length goes from the first step to the last, or which step adds most; nothing where that is no news."""
    means = frame.loc[frame["what"] == what].groupby(["depth", "point"])["length"].mean().reset_index()
    if what == "stream":
        first, last = means.iloc[0]["length"], means.iloc[-1]["length"]
        if norm == "post" or not first or 0.8 < last / first < 1.25:
            return []
        return [
            f"On average over the positions the stream {'grows' if last > first else 'shrinks'} from {first:.1f} to "
            f"{last:.1f}: what a later step adds has to be that much {'longer' if last > first else 'shorter'} to turn it "
            "by the same angle."
        ]
    steps = means.iloc[1:]  # the first is the embedding itself
    most, least = steps.loc[steps["length"].idxmax()], steps.loc[steps["length"].idxmin()]
    if most["length"] < 1.25 * least["length"]:
        return []
    return [
        f"On average over the positions **{most['point']}** adds the most ({most['length']:.1f}) and **{least['point']}** the "
        f"least ({least['length']:.1f}). Long is not important: what counts is how it lies to what is read out."
    ]
