"""“When it is decided”: the logit lens after every sublayer, and from where on each output stays what it ends as."""

from __future__ import annotations

import pandas as pd

from pages.residual.notes import lens_notes
from pages.shared.inputs import InputKind
from pages.shared.layout import WIDE, caption, places
from pages.shared.picture import heading, of_each_run, table
from pages.shared.position_window import ask_window, shown_of
from pages.shared.view import ORIGINAL, View
from xformer import analysis, viz
from xformer.analysis.logit_lens import looked_at
from xformer.viz.residual import MOST_POINTS

MOST_NUMBERS = 100_000_000
"""Of what the stream would say at each step, so many numbers are worked out at a time: seconds, with a large vocabulary."""


def lens_panel(view: View) -> None:
    """Draw the lens of every run, the cells that a change moved marked, and say when the outputs are decided."""
    heading("What the stream would say if it stopped here")
    positions = looked_at(view.original())
    shown = ask_window(positions, "residual_from")
    is_large = len(positions) * len(view.shape.sites) * len(view.subject.labels) > MOST_NUMBERS
    look = {"positions": shown} if is_large and len(shown) < len(positions) else {}
    frames = {name: table(view, analysis.lens, run, **look) for name, run in view.runs().items()}
    beside = len(shown) <= WIDE and len(frames) > 1
    of_each_run(
        view,
        "lens",
        viz.lens,
        places=[
            place.container(key=f"wide_lens_{index}") for index, place in enumerate(places(len(frames), len(shown)))
        ],
        look=lambda index: {"named": index == 0, "legend": index == 1} if beside else {},
        positions=shown if len(shown) < len(positions) else None,
    )
    caption(_what(view, frames[ORIGINAL], positions, shown))
    if look:
        caption("The notes are about these positions alone.")
    one = "class" if view.original().output == "token_class" else "token"
    lens_notes(frames, len(view.subject.labels), judged=view.original().has_right_answer, one=one)


def _outline(view: View) -> str:
    """What the outline marks."""
    run = view.original()
    if run.has_right_answer:
        return "✓ and the outline mark the right answer"
    if not run.asked:
        return "nobody knows what is right here"
    if view.input.goes_on or view.input.kind != "text":
        return view.kind.outline.format(one=view.input.one)
    if view.is_pair:
        return "the outline marks where the likeliest token is the next one of the target"
    if run.answer == tuple(run.ids("decoder")[at] for at in run.asked):  # a text without gaps
        return "the outline marks where the likeliest token is the one that stands there"
    return InputKind.outline


def _what(view: View, frame: pd.DataFrame, positions: list[int], shown: list[int]) -> str:
    """What the picture is, under this model and this input."""
    norm = "the model’s last norm and its unembedding" if view.shape.final_norm else "the unembedding"
    which = "the decoder’s stream" if view.is_pair else "the stream"
    outline = _outline(view)
    first, n_points = positions[0], len(set(frame["depth"]))
    left_out = f" The {first} positions before the answer have nothing to get right and are left out." if first else ""
    thin = f" Of {n_points} steps {MOST_POINTS} are drawn." if n_points > MOST_POINTS else ""
    moved = " A dashed frame: another token than in the original." if view.is_changed else ""
    return (
        f"Logit lens: {which} after each step, read with {norm}; {outline}. The last row of the stream is the model’s output "
        f"itself.{left_out}{thin}{moved}{shown_of(positions, shown)}"
    )
