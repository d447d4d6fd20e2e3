"""“Who adds what”: one output’s logit as the sum of everything that was added to the stream."""

from __future__ import annotations

import streamlit as st

from pages.residual.notes import parts_notes
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import caption
from pages.shared.link import chose
from pages.shared.picture import heading, picture, table
from pages.shared.view import ORIGINAL, View
from pages.shared.widgets import ask_token, choose, seed
from xformer import analysis, viz
from xformer.adapters.huggingface_opening import CLASSES
from xformer.analysis.residual import explained_pair
from xformer.tasks.batch import IGNORED

MOST = 12
"""So many parts have bars of their own."""
GOALS = {"logit": "its logit", "lead": "its lead"}
_IDENTITY = {
    "post": "This model normalises after every sum, so a part passes every later norm on its way out. Each norm is taken "
    "as linear with the standard deviation frozen at its value in this run; then the parts sum to the logit exactly.",
    "pre": "Only the last norm stands between the stream and the logit. With its standard deviation frozen at its value in "
    "this run it is linear, and the parts sum to the logit exactly.",
    "none": "No norm stands between the stream and the logit, so the parts simply sum to it.",
}


def attribution_panel(view: View) -> None:
    """Ask for an output, draw the parts of every run, and say who adds the most."""
    heading("Who adds what to one output")
    position, goal, typed = _ask_output(view)
    original, changed = view.original(), view.changed()
    is_lead, label = goal == "lead", view.subject.labels
    # Where nobody knows the token, a changed run is asked about the one that the original says.
    known = int(original.example.labels[0, position]) != IGNORED
    token = typed if typed is not None or known or changed is None else original.explained(position)
    of = {"position": position, "token": token, "lead": is_lead}
    before = {} if changed is None else {"before": original}
    picture(view, "attribution", viz.attribution, changed or original, **before, **of)
    frames = {name: table(view, analysis.attribution, run, **of) for name, run in view.runs().items()}
    for name, run in view.runs().items():
        wanted, rival = explained_pair(run, position, token)
        figure = (run.logits[0, position, wanted] - (run.logits[0, position, rival] if is_lead else 0.0)).item()
        what = f"logit of {escape_markdown(label[wanted])}" + (
            f" − logit of {escape_markdown(label[rival])}" if is_lead else ""
        )
        which = "" if changed is None else "Outlined, the original: " if name == ORIGINAL else f"Filled, {name}: "
        total = frames[name]["contribution"].sum()
        caption(
            f"{which}{what} = {figure:.4f} in the model; the parts sum to {total:.4f} "
            f"(difference {abs(total - figure):.0e}, the rounding of the run)."
        )
    n_parts = max(map(len, frames.values()))
    few = (
        f" Of {n_parts} parts the {MOST} largest have a bar of their own; the CSV has them all."
        if n_parts > MOST + 1
        else ""
    )
    cap = " Its soft cap is taken as the factor that it is here." if _is_capped(view) else ""
    caption(
        _identity(view) + cap + f" A head’s part is its z·W_O; what moved **which** way it looks is not in it.{few}"
    )
    parts_notes(frames[view.shown], position)


def _identity(view: View) -> str:
    """Why the parts sum to the logit."""
    norm = view.subject.weights.unembedding().norm
    if view.shape.norm == "pre" and norm is None:
        return _IDENTITY["none"]
    return _IDENTITY[view.shape.norm].replace(
        "standard deviation", "divisor" if view.task is None else "standard deviation"
    )


def _is_capped(view: View) -> bool:
    return view.subject.weights.unembedding().softcap is not None


def _ask_output(view: View) -> tuple[int, str, int | None]:
    """Which output is explained, and what of it: its position, one of `GOALS`, and the token where another one was typed."""
    run = view.original()
    labels = run.example.labels[0].tolist()
    positions = [index for index, token in enumerate(labels) if token != IGNORED]
    if run.open_output is not None:
        positions.append(run.open_output)  # what comes after the last character nobody knows; the model says something
    reads, token = run.tokens_of("decoder"), view.subject.labels
    verb = "has to say" if run.has_right_answer else view.kind.verb if view.input.goes_on else "says"
    one = "class" if run.output in CLASSES else "token"

    def position_words(at: int) -> str:
        known = labels[at] != IGNORED
        return f"{at}: reads {reads[at]}, {verb if known else 'says'} {token[run.explained(at)]}"

    usual = positions[0] if run.has_right_answer or run.open_output is None else run.open_output
    seed("pos", positions, usual, key="residual_pos", called="position")
    where, what, which = (*st.columns([3, 2]), None) if view.task is not None else st.columns([4, 3, 4])
    with where:
        position = st.select_slider(
            "Output at position", positions, format_func=position_words, key="residual_pos", persist_state="session"
        )
        chose("pos", str(position))
    with what:
        goal = choose(
            "goal",
            GOALS,
            "logit",
            f"Explain the {_meant(view)} {one}’s …",
            key="residual_goal",
            help="The lead is its logit less that of the strongest other " + one + ". "
            "A logit alone may rise together with all the others; the lead is what makes one win.",
        )
    if which is None:
        return position, goal, None
    explained = run.explained(position)
    with which:
        token_typed = ask_token(
            token, "token", explained, one.capitalize(), help=f"Type another {one} to see what speaks for it."
        )
    return position, goal, None if token_typed == explained else token_typed


def _meant(view: View) -> str:
    """Which token is explained, in a word."""
    if view.original().has_right_answer:
        return "right"
    return view.kind.meant if view.input.goes_on else "predicted"
