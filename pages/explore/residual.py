"""Residual: when is the answer decided, and which parts decide it? The stream read after every sublayer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.components.prediction_strip import prediction_strip
from pages.shared.lanes import lanes
from pages.shared.notebook import footer
from pages.shared.session import View, open_page
from xformer.analysis.residual import attribution, decided, lens, norms
from xformer.interventions import join
from xformer.tasks.batch import IGNORED
from xformer.viz.residual import attribution_chart, lens_chart, norm_chart

LOGIT, LEAD = "the right logit", "its lead"
GOALS = {"logit": LOGIT, "lead": LEAD}
WIDE = 8
"""Up to so many positions, two charts stand side by side; more stand one above the other."""


def page() -> None:
    view = open_page("Residual", "When is the answer decided?")
    original, changed = view.original(), view.changed()
    prediction_strip(lanes(view.task, original, changed, f"says, {view.what_changed()}"), key="strip")
    runs = {"original": original} if changed is None else {"original": original, view.what_changed(): changed}
    frames = {name: _lens(*_key(view, name)) for name in runs}
    _say_what_changed(view, original, changed)
    _lens_section(view, runs, frames)
    position, goal = _ask_position(view, original)
    view.share(pos=str(position), goal=goal)
    shares = _attribution_section(view, runs, position, goal)
    _norm_section(view, runs)
    _what_to_notice(view, runs, frames, shares, position)


def _key(view: View, name: str) -> tuple[str, tuple[int, ...], str, str]:
    own = name == "original"
    return view.model, view.source, resources.MASKS[0] if own else view.mask, "" if own else join(view.interventions)


@st.cache_data(max_entries=64, show_spinner=False)
def _lens(model: str, source: tuple[int, ...], mask: str, changes: str) -> pd.DataFrame:
    run, checkpoint = resources.run(model, source, mask, changes), resources.checkpoint(model)
    assert checkpoint.task is not None
    return lens(checkpoint.model, run.trace, checkpoint.task.vocabulary.labels, run.example.labels[0])


@st.cache_data(max_entries=64, show_spinner=False)
def _norms(model: str, source: tuple[int, ...], mask: str, changes: str) -> pd.DataFrame:
    return norms(resources.checkpoint(model).model, resources.run(model, source, mask, changes).trace)


@st.cache_data(max_entries=256, show_spinner=False)
def _attribution(
    model: str, source: tuple[int, ...], mask: str, changes: str, position: int, goal: str
) -> tuple[pd.DataFrame, float, int, int]:
    """The parts, the model's own figure, the right token and the strongest other one."""
    run = resources.run(model, source, mask, changes)
    logits = run.trace.logits[0, position]  # [vocab]
    token = int(run.example.labels[0, position])
    others = logits.clone()
    others[token] = float("-inf")
    rival = int(others.argmax())
    against = rival if goal == "lead" else None
    parts = attribution(resources.checkpoint(model).model, run.trace, position, token, against)
    figure = logits[token] - (logits[rival] if goal == "lead" else 0.0)
    return parts, figure.item(), token, rival


@st.cache_data(max_entries=256, show_spinner=False)
def _spec(picture: tuple, _draw: Callable[[], Any]) -> dict[str, Any]:
    """A chart as Vega-Lite, drawn once for everything that `picture` names: describing a chart takes longer than a run."""
    spec = _draw().to_dict()
    del spec["config"]  # the size of an empty chart outside a page
    return spec


def _reads(view: View, run: resources.Run) -> list[str]:
    example = run.example
    tokens = example.stream if example.target is None else example.target
    return [view.task.vocabulary.labels[token] for token in tokens[0].tolist()]


def _dark() -> bool:
    return st.context.theme.type == "dark"


def _places(n_charts: int, n_positions: int) -> list:
    """A container for each chart: side by side where there is room, the first with room for the names of the rows."""
    if n_charts == 2 and n_positions <= WIDE:
        return list(st.columns([4, 3], gap="small"))
    return [st.container() for _ in range(n_charts)]


def _title(name: str) -> str:
    return "Original" if name == "original" else f"With {name}"


def _say_what_changed(view: View, original: resources.Run, changed: resources.Run | None) -> None:
    n = len(original.answer)
    if changed is None:
        st.caption(f"{original.n_right} of {n} right, loss {original.loss:.4f} nats.")
    elif original.trace.logits.equal(changed.trace.logits):
        st.info(f"With {view.what_changed()} this model says exactly what it says anyway.", icon=":material/equal:")
    else:
        st.caption(
            f"With {view.what_changed()}, {changed.n_right} of {n} are right instead of {original.n_right}; "
            f"the loss goes from {original.loss:.4f} to {changed.loss:.4f} nats."
        )


def _lens_section(view: View, runs: dict[str, resources.Run], frames: dict[str, pd.DataFrame]) -> None:
    st.subheader("What the stream would say if it stopped here", anchor=False)
    norm = "the model’s last norm and its unembedding" if view.checkpoint.config.final_norm else "the unembedding"
    which = "the decoder’s stream" if view.task.config.architecture == "encoder-decoder" else "the stream"
    first = frames["original"]["position"].min()
    left_out = f" The {first} positions before the answer have nothing to get right and are left out." if first else ""
    st.caption(
        f"Logit lens: {which} after each step, read with {norm}. ✓ and the outline mark the right answer; "
        f"the last row of the stream is the model’s output itself.{left_out}"
    )
    n = frames["original"]["position"].nunique()
    beside = n <= WIDE
    for index, (place, (name, run)) in enumerate(zip(_places(len(runs), n), runs.items(), strict=True)):
        look: dict[str, Any] = {
            "dark": _dark(),
            "title": _title(name) if len(runs) > 1 else "",
            "named": index == 0 or not beside,
            "legend": len(runs) == 1 or not beside,
        }
        draw = partial(lens_chart, frames[name], _reads(view, run), **look)
        spec = _spec(("lens", *_key(view, name), *look.values()), draw)
        place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"lens_{index}")
    shown = view.what_changed() if view.is_changed else "original"
    run = runs[shown]
    table = pd.concat([frame.assign(run=name) for name, frame in frames.items()])
    lines = [
        "from xformer.analysis.residual import lens",
        "from xformer.viz.residual import lens_chart",
        f"example = checkpoint.task.example({list(run.example.source)})",
        "labels = checkpoint.task.vocabulary.labels",
        f"reads = [labels[t] for t in example.{'stream' if run.example.target is None else 'target'}[0]]",
        "lens_chart(lens(checkpoint.model, trace, labels, example.labels[0]), reads, dark=False)",
    ]
    footer(view, lines, table, "lens")


def _ask_position(view: View, run: resources.Run) -> tuple[int, str]:
    """Choose an output and what is explained; a link may name both."""
    labels = run.example.labels[0]
    positions = [index for index, label in enumerate(labels.tolist()) if label != IGNORED]
    first = "residual_followed" not in st.session_state
    st.session_state["residual_followed"] = True
    if first:
        for name, key, options in (("pos", "residual_pos", map(str, positions)), ("goal", "residual_goal", GOALS)):
            asked = st.query_params.get(name)
            if asked is not None and asked in list(options):
                st.session_state[key] = int(asked) if name == "pos" else asked
            elif asked is not None:
                what = "position" if name == "pos" else "view"
                st.warning(
                    f"The link asks for a {what} that is not here, so another is shown.", icon=":material/link_off:"
                )
    if st.session_state.get("residual_pos") not in positions:
        st.session_state["residual_pos"] = positions[0]
    st.session_state.setdefault("residual_goal", "logit")
    st.subheader("Who adds what to the right answer", anchor=False)
    reads, token = _reads(view, run), view.task.vocabulary.labels
    where, what = st.columns([3, 2])
    with where:
        position = st.select_slider(
            "Output at position",
            positions,
            format_func=lambda at: f"{at}: reads {reads[at]}, has to say {token[labels[at]]}",
            key="residual_pos",
            persist_state="session",
        )
    with what:
        goal = st.segmented_control(
            "Explain",
            list(GOALS),
            format_func=GOALS.__getitem__,
            required=True,
            key="residual_goal",
            persist_state="session",
            help="The lead is the right logit less that of the strongest other token. "
            "A logit alone may rise together with all the others; the lead is what makes the token win.",
        )
    return position, goal


def _attribution_section(view: View, runs: dict[str, resources.Run], position: int, goal: str) -> pd.DataFrame:
    """Draw the parts of every run; returns those of the run that counts."""
    label = view.task.vocabulary.labels
    found = {name: _attribution(*_key(view, name), position, goal) for name in runs}
    names = {token for _, _, token, _ in found.values()}
    target = f"the logit of {label[names.pop()]}" if len(names) == 1 else GOALS["logit"]
    target = target if goal == "logit" else f"the lead of {target.removeprefix('the logit of ')}"
    chart = attribution_chart({name: parts for name, (parts, *_) in found.items()}, target, dark=_dark())
    st.altair_chart(chart, theme="streamlit", width="stretch", key="attribution")
    for name, (parts, figure, token, rival) in found.items():
        of = f"logit of {label[token]}" + (f" − logit of {label[rival]}" if goal == "lead" else "")
        run = "" if len(found) == 1 else "Outlined, the original: " if name == "original" else f"Filled, {name}: "
        st.caption(
            f"{run}{of} = {figure:.4f} in the model; the parts sum to {parts['contribution'].sum():.4f} "
            f"(difference {abs(parts['contribution'].sum() - figure):.0e}, the rounding of the run)."
        )
    st.caption(
        _IDENTITY[view.checkpoint.config.norm]
        + " A head’s part is its z·W_O; what moved **which** way it looks is not in it."
    )
    shown = view.what_changed() if view.is_changed else "original"
    parts, _, token, rival = found[shown]
    against = f", against={rival}" if goal == "lead" else ""
    lines = [
        "from xformer.analysis.residual import attribution",
        "from xformer.viz.residual import attribution_chart",
        f"parts = attribution(checkpoint.model, trace, {position}, {token}{against})",
        f'attribution_chart({{"run": parts}}, "{target}", dark=False)',
    ]
    footer(view, lines, pd.concat([frame.assign(run=name) for name, (frame, *_) in found.items()]), "attribution")
    return parts


_IDENTITY = {
    "post": "This model normalises after every sum, so a part passes every later norm on its way out. Each norm is taken "
    "as linear with the standard deviation frozen at its value in this run; then the parts sum to the logit exactly.",
    "pre": "Only the last norm stands between the stream and the logit. With its standard deviation frozen at its value in "
    "this run it is linear, and the parts sum to the logit exactly.",
    "none": "No norm stands between the stream and the logit, so the parts simply sum to it.",
}


def _norm_section(view: View, runs: dict[str, resources.Run]) -> None:
    st.subheader("How long the stream is, and how much each step adds", anchor=False)
    frames = {name: _norms(*_key(view, name)) for name in runs}
    everything = pd.concat([frame.assign(run=name) for name, frame in frames.items()])
    limits = everything.groupby("what")["length"].max()
    first = {"stream": "The stream", "added": "What each step adds"}
    for index, (name, run) in enumerate(runs.items()):
        suffix = "" if len(runs) == 1 else f", {name}"
        n = frames[name]["position"].nunique()
        for place, (what, title) in zip(_places(2, n), first.items(), strict=True):
            beside = n <= WIDE
            limit = float(limits[what])
            look: dict[str, Any] = {
                "dark": _dark(),
                "title": title + suffix,
                "named": what == "stream" or not beside,
                "legend": not beside,
            }
            draw = partial(norm_chart, frames[name], what, _reads(view, run), limit, **look)
            spec = _spec((what, *_key(view, name), limit, *look.values()), draw)
            place.vega_lite_chart(spec, theme="streamlit", width="stretch", key=f"norm_{what}_{index}")
    if view.checkpoint.config.norm == "post":
        st.caption("Each norm of this model resets the length of the stream; what a step adds is measured before that.")
    run = runs[view.what_changed() if view.is_changed else "original"]
    lines = [
        "from xformer.analysis.residual import norms",
        "from xformer.viz.residual import norm_chart",
        f"reads = {_reads(view, run)}",
        "frame = norms(checkpoint.model, trace)",
        'norm_chart(frame, "added", reads, frame["length"].max(), dark=False)',
    ]
    footer(view, lines, everything, "norms")


def _what_to_notice(
    view: View, runs: dict[str, resources.Run], frames: dict[str, pd.DataFrame], parts: pd.DataFrame, position: int
) -> None:
    with st.container(border=True):
        st.markdown("**What to notice**")
        for name in runs:
            st.markdown(_when(frames[name], "" if len(runs) == 1 else f"{_title(name)}: "))
        best = parts[parts["kind"] != "bias"].nlargest(1, "contribution").iloc[0]
        worst = parts.nsmallest(1, "contribution").iloc[0]
        st.markdown(
            f"At position {position}, **{best['part']}** adds the most ({_signed(best['contribution'])})"
            + (
                f" and **{worst['part']}** works against it the most ({_signed(worst['contribution'])})"
                if worst["contribution"] < 0
                else ""
            )
            + ". Silence that part on the Attention or Feed-forward screen and come back: its bar goes, and others may move, "
            "because later layers read what it wrote."
        )
        st.markdown(
            "A lens can be blind: early layers may hold the answer in a direction that the unembedding does not read. "
            "A wrong token in an early row means “not yet written in the output’s language”, not “not yet known”."
        )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _when(frame: pd.DataFrame, prefix: str) -> str:
    """When a run's outputs come to stay right, in a sentence."""
    settled = decided(frame)
    total = frame["position"].nunique()
    if settled.empty:
        return f"{prefix}no output is right in the end, so none was ever decided for good."
    counts = Counter(settled["point"])
    order = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    told = ", ".join(f"{counts[point]} after **{point}**" for point in order if counts[point])
    never = total - len(settled)
    return (
        f"{prefix}{total} outputs, of which these become right for good: {told}"
        + (f"; {never} end{'s' if never == 1 else ''} wrong" if never else "")
        + "."
    )


page()
