"""The neurons of a feed-forward layer: the choice of one, the most active ones of a token, and one on sampled inputs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared.background_job import Job, follow, progress
from pages.shared.call import Call
from pages.shared.layout import is_dark, what_to_notice
from pages.shared.link import chose
from pages.shared.models import shown_path
from pages.shared.picture import footer, heading, picture, shown, table
from pages.shared.view import View, toggle_intervention
from pages.shared.widgets import ask_window, choose, seed, shown_of
from xformer import analysis, viz
from xformer.adapters import TaskModel
from xformer.analysis.feed_forward import Survey, activity, fitting, speaks_directly, surveying
from xformer.formatting import percent
from xformer.site import Site, layer_title
from xformer.viz.feed_forward import MOST_TOKENS_DRAWN
from xformer.viz.images import picture as image_of

PICTURES = {"map": "All neurons", "token": "One token", "neuron": "One neuron", "firing": "How many fire"}
MOST_LAYERS_BESIDE = 8
"""More layers are chosen from a list."""
_PICTURE, NEURON = "ff_picture", "ff_neuron"


@dataclass(frozen=True)
class Choice:
    """A feed-forward layer and one of its neurons."""

    layer: int
    """Counted among the feed-forward layers, from 0."""
    site: Site
    title: str
    """As on screen: "layer 2"."""
    neuron: int


def ask_picture() -> str:
    """Ask for one of `PICTURES`."""
    return choose("picture", PICTURES, "map", "Picture", key=_PICTURE, label_visibility="collapsed")


def ask_choice(view: View) -> Choice:
    """Ask for a layer, beside the button that ablates it. Without a chosen neuron, the most active one is taken."""
    run = view.original()
    sites, is_pair = run.feed_forward, view.is_pair
    titles = {
        site.path.removesuffix(".ffn"): layer_title(site.path, is_pair=is_pair).removeprefix("layer ") for site in sites
    }
    few = len(sites) <= MOST_LAYERS_BESIDE
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        widget, width = (st.segmented_control, "content") if few else (st.selectbox, 180)
        name = choose("layer", titles, list(titles)[-1], "Layer", key=f"ff_layer_{few}", widget=widget, width=width)
        layer = list(titles).index(name)
        path, title = sites[layer].path, layer_title(sites[layer].path, is_pair=is_pair)
        _ablate_button(view, f"ablate:{path}", title, "ablate_layer")
    mean = activity(run, layer=layer).mean(dim=0)  # [d_ff]
    seed("neuron", range(len(mean)), int(mean.argmax()), key=NEURON)
    chose("neuron", str(st.session_state[NEURON]))
    return Choice(layer, sites[layer], title, int(st.session_state[NEURON]))


def look_at(neuron: int) -> None:
    """Show one neuron. A callback."""
    st.session_state[NEURON], st.session_state[_PICTURE] = neuron, "neuron"


def _ablate_button(view: View, change: str, title: str, key: str) -> None:
    """A button that ablates a layer or a neuron, or takes that back."""
    is_on = change in view.on
    st.button(
        f"Ablated: {title}" if is_on else f"Ablate {title} (set to zero)",
        type="primary" if is_on else "secondary",
        on_click=toggle_intervention,
        args=(change,),
        key=key,
        help="Its output is 0 at every position; the model runs again. A second click takes it back.",
    )


JOB = "ff_survey"
AT_ONCE = 0.5
"""Seconds of the survey before anything is drawn."""


@dataclass
class _Work:
    """A running survey, shared and advanced by all visitors who wait for it."""

    steps: Iterator[Survey]
    lock: threading.Lock = field(default_factory=threading.Lock)
    latest: Survey | None = None
    is_done: bool = False

    def step(self) -> Survey:
        """Run one more batch, if there is one, and return the counts so far."""
        with self.lock:
            found = None if self.is_done else next(self.steps, None)
            self.is_done = found is None or found.is_final
            self.latest = found or self.latest
            assert self.latest is not None
            return self.latest


@st.cache_resource(max_entries=16, show_spinner=False)
def _work(model: str, _subject: TaskModel) -> _Work:
    return _Work(replace(found, path=shown_path(model)) for found in surveying(_subject, fitting(_subject)))


def _driven(work: _Work) -> Iterator[Survey]:
    while True:
        yield work.step()


def surveyed(view: View) -> Survey | None:
    """The counts over sampled inputs so far; the rest runs while the page is open, and the result is shared by all visitors.

    Shows why and returns None where no inputs can be sampled.
    """
    if view.task is None or view.input.missing:
        missing = view.input.missing or "The task of this model is not known."
        st.info(f"No inputs can be sampled. {missing}", icon=":material/info:")
        return None
    job: Job[Survey] | None = st.session_state.get(JOB)
    if job is None or job.about != view.model:
        job = st.session_state[JOB] = Job(_driven(_work(view.model, view.own)), view.model)
        job.advance(AT_ONCE)
    found = job.latest
    assert found is not None
    with st.container(key="survey_bar"):
        follow(job, partial(_bar, job))
    return found


def _bar(job: Job[Survey]) -> None:
    """The progress of the survey."""
    if (found := job.latest) is not None and not found.is_final:
        far = f"{found.n_inputs:,} of {found.n_asked:,}"
        words = f"Running the model on sampled inputs: {far}"
        progress(job, "survey", found.n_inputs / found.n_asked, words, f"Stopped after {far} inputs.")


LITTLE_LOSS = 0.01
"""A change of the loss, in nats, that is too small to matter."""
_NUMBER, _TEXT = st.column_config.NumberColumn, st.column_config.TextColumn
_COLUMNS: dict[str, Any] = {
    "neuron": _NUMBER("neuron", format="%d", width=60),
    "activation": _NUMBER("activation", format="%.3f", width=80),
    "activity": _NUMBER(
        "activity", format="%.3f", width=70, help="|activation| × the norm of the output vector, if known."
    ),
    "originally": _NUMBER("originally", format="%.3f", width=80),
    "promotes": _TEXT("promotes", width=90, help="The three logits that it raises most, on the direct path."),
    "suppresses": _TEXT("suppresses", width=90, help="The three that it lowers most."),
    "loss_change": _NUMBER("if ablated", format="%+.1e", width=85, help="Measured change of the loss, in nats."),
    "flips": _NUMBER("flips", format="%d", width=50, help="How many predictions change."),
}
_DIRECT = {
    "post": "This direct path ignores the norms and layers that follow, so signs tell more than sizes.",
    "pre": "This direct path ignores the last norm and the layers that follow.",
    "none": "This direct path ignores the layers that follow.",
}


def token_neurons_panel(view: View, choice: Choice) -> None:
    """The most active neurons at one position: a table, what they promote, and whether ablating one matters."""
    heading(f"The most active neurons of one {view.input.one}")
    original, changed = view.original(), view.changed()
    run = changed or original
    reads = run.tokens_of(choice.site.stack)
    seed("pos", range(len(reads)), 0, key="ff_pos", called="position")
    position = st.select_slider(
        "Position",
        range(len(reads)),
        format_func=lambda at: f"{at}: reads {reads[at]}",
        key="ff_pos",
        persist_state="session",
    )
    chose("pos", str(position))
    of = {"layer": choice.layer, "position": position}
    before = {} if changed is None else {"before": original}
    calls = [Call(analysis.neurons, (run,), {**of, **before})]
    frame = table(view, analysis.neurons, run, **of, **before)
    is_direct = speaks_directly(run, choice.layer)
    if is_direct and "promotes" in frame:
        calls.append(Call(viz.promotion, (run,), of))
        left, right = st.columns([5, 4] if changed is None else [3, 2])
        with left:
            _rows(view, frame, position)
        with right:
            shown(view, calls[1], "promotion")
            n = len(view.subject.labels)
            few = f" The {MOST_TOKENS_DRAWN} of {n:,} tokens that change most." if n > MOST_TOKENS_DRAWN else ""
            direct = _DIRECT[view.shape.norm]
            st.caption(
                f"Direct effect on each logit: activation × its row of W₂, through the unembedding. {direct}{few}"
            )
    else:
        _rows(view, frame, position)
        if not run.has_logits:
            st.caption("This model has no logits, so neurons promote no tokens and ablating one changes no loss.")
        elif is_direct:
            st.caption(
                "No single matrix leads from these neurons to the logits, so the tokens they promote are unknown."
            )
        else:
            st.caption(
                "These neurons are in the encoder and reach the logits only through the decoder’s cross-attention."
            )
    footer(view, "neurons", calls, frame)
    if notes := ablation_notes(frame, position, judged=view.original().has_right_answer):
        what_to_notice(notes)


def _rows(view: View, frame: pd.DataFrame, position: int) -> None:
    """The table; a click on a row shows that neuron."""

    def follow() -> None:
        for row in st.session_state["ff_table"].selection.rows:
            look_at(int(frame["neuron"].iloc[row]))

    unknown = [] if bool(frame["flips"].any()) else ["flips"]
    unknown += ["loss_change"] if bool(frame["loss_change"].isna().all()) else []
    st.dataframe(
        frame.drop(columns=unknown),
        hide_index=True,
        column_config=_COLUMNS,
        on_select=follow,
        selection_mode="single-row",
        key="ff_table",
    )
    changed = f"With {view.shown}, position" if view.is_changed else "Position"
    st.caption(f"{changed} {position}. Click a row to see that neuron.")


def ablation_notes(frame: pd.DataFrame, position: int, *, judged: bool) -> list[str]:
    """The largest measured effect of ablating one neuron of `analysis.neurons`; nothing where none was measured."""
    known = frame.loc[frame["loss_change"].notna()]
    if known.empty or not bool((known["activity"] > 0).any()):
        return [] if bool((frame["activity"] > 0).any()) else [f"No neuron writes anything at position {position}."]
    biggest = known.loc[known["loss_change"].abs().idxmax()]
    change, flips = float(biggest["loss_change"]), int(biggest["flips"])
    nats = f"{change:+.2g} nats".replace("-", "−")
    outputs = "answers" if judged else "predictions"
    moved = f" and changes {flips} {outputs[:-1] if flips == 1 else outputs}" if flips else ""
    note = (
        f"Of the {len(known)} most active neurons at position {position}, ablating **#{int(biggest['neuron'])}** changes the "
        f"loss the most, by {nats}{moved}."
    )
    if not known["flips"].any() and abs(change) < LITTLE_LOSS:
        note += " None of them matters by itself on this input. Ablate the whole layer for comparison."
    return [note]


MOST_POSITIONS_BESIDE = 12
"""The bars of more positions stand above the sampled inputs, not beside them."""


def one_neuron_panel(view: View, choice: Choice) -> None:
    """Ask for a neuron; show its activations on this input and the sampled inputs with the largest ones."""
    heading("One neuron")
    path, last = choice.site.path, view.shape.neurons[choice.site.path] - 1
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        look: dict[str, Any] = {"min_value": 0, "max_value": last, "step": 1, "width": 180}
        number = st.number_input(f"Neuron (0 to {last})", key=NEURON, persist_state="session", **look)
        choice = replace(choice, neuron=int(number))
        _ablate_button(view, f"ablate:{path}.{choice.neuron}", f"#{choice.neuron}", "ablate_neuron")
        fires = st.empty()
    original, changed = view.original(), view.changed()
    before: dict[str, Any] = {} if changed is None else {"before": original}
    positions = range(len(original.tokens_of(choice.site.stack)))
    window = ask_window(positions, "ff_from")
    left, right = st.columns([3, 4]) if len(window) <= MOST_POSITIONS_BESIDE else (st.container(), st.container())
    with left:
        st.markdown(f"**#{choice.neuron} on this input**")
        picture(
            view,
            "neuron",
            viz.neuron,
            changed or original,
            layer=choice.layer,
            neuron=choice.neuron,
            positions=window if len(window) < len(positions) else None,
            **before,
        )
        if more := shown_of(positions, window):
            st.caption(more.strip())
    with right:
        st.markdown(f"**Where #{choice.neuron} writes most in the sampled inputs**, the position outlined")
        found = surveyed(view)
        if found is None:
            return
        exciting_inputs(view, choice, found)
    fired, total = int(found.fired[path][choice.neuron]), found.n_positions[path]
    most = f", most at an activation of **{found.peak[path][0, choice.neuron].item():.3f}**" if fired else ""
    fires.markdown(
        f"fires at **{percent(fired / total, 1)}** of the {total:,} tokens of {found.n_inputs:,} sampled inputs{most}"
    )


TOKENS_AROUND = 12
"""Tokens of a long input shown on each side of the position."""
IMAGES_IN_A_ROW = 4


def exciting_inputs(view: View, choice: Choice, found: Survey) -> None:
    """The sampled inputs with the largest activations of the neuron."""
    call = Call(analysis.exciting_inputs, (found,), {"layer": choice.layer, "neuron": choice.neuron})
    rows = call.make().to_dict("records")
    if not rows and not found.is_final:
        st.info(f"It writes nothing on the first {found.n_inputs:,} inputs.", icon=":material/hourglass:")
        return
    if not rows:
        on = "them" if view.shape.image else "the sample"
        st.info(f"It writes nothing on any {view.input.sampled}: this neuron is dead on {on}.", icon=":material/block:")
        return
    if view.shape.image:
        _images(view, found, rows)
    else:
        _texts(choice, found, rows)
    footer(view, "exciting", [call])


def _texts(choice: Choice, found: Survey, rows: list[dict[str, Any]]) -> None:
    labels, texts, lanes, is_cut = found.subject.labels, found.read_by(choice.site), [], False
    for row in rows:
        whole = texts[row["input"]]
        start = max(0, min(row["position"] - TOKENS_AROUND, len(whole) - 2 * TOKENS_AROUND))
        piece = range(start, min(len(whole), start + 2 * TOKENS_AROUND))
        is_cut = is_cut or len(piece) < len(whole)
        tokens = tuple(labels[whole[at]] for at in piece)
        lanes.append(Lane(f"{row['activation']:.3f}", tokens, moved=tuple(at == row["position"] for at in piece)))
    prediction_strip(lanes, key="exciting")
    more = " The tokens are those that the decoder reads." if texts is found.targets else ""
    more += f" Of long inputs the {2 * TOKENS_AROUND} tokens around that position are shown." if is_cut else ""
    st.caption(f"Searched {found.n_inputs:,} inputs of the task, seed {found.seed}; each input counts once.{more}")


def _images(view: View, found: Survey, rows: list[dict[str, Any]]) -> None:
    size = view.shape.patch * 12
    for start in range(0, len(rows), IMAGES_IN_A_ROW):
        columns = st.columns(IMAGES_IN_A_ROW)
        for column, row in zip(columns, rows[start : start + IMAGES_IN_A_ROW], strict=False):
            with column:
                image = image_of(np.array(found.inputs[row["input"]]), dark=is_dark(), scale=12)
                st.image(framed(image, row["position"] - 1, size) if row["position"] else image, width=96)
                st.caption(f"{row['activation']:.3f} at {row['token']}")
    which = "all " if found.is_final else ""
    st.caption(f"Searched {which}{found.n_inputs:,} test images; each counts once. “class” is the class token.")


def framed(image: np.ndarray, number: int, size: int) -> np.ndarray:
    """A copy of the image with a frame around one patch."""
    row, column = divmod(number, image.shape[1] // size)
    top, left = row * size, column * size
    out = image.copy()
    inside = out[top + 2 : top + size - 2, left + 2 : left + size - 2].copy()
    out[top : top + size, left : left + size] = (214, 94, 0)
    out[top + 2 : top + size - 2, left + 2 : left + size - 2] = inside
    return out
