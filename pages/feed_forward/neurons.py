"""What a visitor looks at on this screen: a picture, a layer and a neuron. All three stand in the link."""

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
from pages.shared.position_window import ask_window, shown_of
from pages.shared.view import View, toggle_intervention
from pages.shared.widgets import choose, seed
from xformer import analysis, viz
from xformer.adapters import TaskModel
from xformer.analysis.feed_forward import Survey, activity, fitting, speaks_directly, surveying
from xformer.formatting import percent
from xformer.site import Site, layer_title
from xformer.viz.feed_forward import MOST_TOKENS_DRAWN
from xformer.viz.images import picture as images_picture

PICTURES = {"map": "All neurons", "token": "One token", "neuron": "One neuron", "firing": "How many fire"}
MOST_LAYERS_BESIDE = 8
"""Up to so many layers stand beside each other; more in a list."""
_PICTURE, NEURON = "ff_picture", "ff_neuron"


@dataclass(frozen=True)
class Choice:
    """A feed-forward layer and one of its neurons."""

    layer: int
    """Counted among the feed-forward layers, from 0."""
    site: Site
    title: str
    """As a person reads it: "layer 2"."""
    neuron: int


def ask_picture() -> str:
    """Which of `PICTURES`."""
    return choose("picture", PICTURES, "map", "Picture", key=_PICTURE, label_visibility="collapsed")


def ask_choice(view: View) -> Choice:
    """Which feed-forward layer, with the switch that mutes it; and the neuron that the visitor or the link has chosen, else the
    most active one of the layer."""
    run = view.original()
    sites, is_pair = run.feed_forward, view.is_pair
    titles = {
        site.path.removesuffix(".ffn"): layer_title(site.path, is_pair=is_pair).removeprefix("layer ") for site in sites
    }
    few = len(sites) <= MOST_LAYERS_BESIDE
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        look = {
            "widget": st.segmented_control if few else st.selectbox,
            "width": "content" if few else 180,
        }
        name = choose("layer", titles, list(titles)[-1], "Layer", key=f"ff_layer_{few}", **look)
        layer = list(titles).index(name)
        path, title = sites[layer].path, layer_title(sites[layer].path, is_pair=is_pair)
        switch(
            view,
            f"mute:{path}",
            f"Mute {title}",
            f"Bring {title} back",
            "The whole feed-forward layer adds nothing; the model runs again.",
        )
    mean = activity(run, layer=layer).mean(dim=0)  # [d_ff]
    seed("neuron", range(len(mean)), int(mean.argmax()), key=NEURON)
    chose("neuron", str(st.session_state[NEURON]))
    return Choice(layer, sites[layer], title, int(st.session_state[NEURON]))


def look_at(neuron: int) -> None:
    """Turn to one neuron. A callback."""
    st.session_state[NEURON], st.session_state[_PICTURE] = neuron, "neuron"


def switch(view: View, change: str, off: str, on: str, explained: str) -> None:
    """A button that takes a part out of the running model and, where it is out, brings it back."""
    is_off = change in view.on
    st.button(
        on if is_off else off,
        icon=":material/volume_up:" if is_off else ":material/volume_off:",
        on_click=toggle_intervention,
        args=(change,),
        key=f"{change.partition(':')[0]}_switch",
        help=explained,
    )


JOB = "ff_survey"

AT_ONCE = 0.5
"""Seconds of it before anything is drawn."""


@dataclass
class _Work:
    """A survey under way, which all visitors who wait for it drive on together."""

    steps: Iterator[Survey]
    lock: threading.Lock = field(default_factory=threading.Lock)
    latest: Survey | None = None
    is_done: bool = False

    def step(self) -> Survey:
        """One batch more, if there is one; what is known by then."""
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
    """What the neurons of a model did over the sample, as far as it was run: the rest is run while one looks at that.

    What was found is kept for whoever comes next. None, and it is said why, where there are no inputs to be had.
    """
    if view.task is None or view.input.missing:
        missing = view.input.missing or "Only for a model that was trained here it is known what to draw them from."
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
    """How much of the sample is run, and what all that is shown is about meanwhile."""
    if (found := job.latest) is not None and not found.is_final:
        far = f"{found.n_inputs:,} of {found.n_asked:,}"
        words = f"Running the model on sampled inputs: {far}"
        progress(job, "survey", found.n_inputs / found.n_asked, words, f"Stopped after {far} inputs.")


LITTLE_LOSS = 0.01
"""A change of the loss, in nats, below which silencing a neuron does next to nothing."""

_NUMBER, _TEXT = st.column_config.NumberColumn, st.column_config.TextColumn

_COLUMNS: dict[str, Any] = {
    "neuron": _NUMBER("neuron", format="%d", width=60),
    "activation": _NUMBER("activation", format="%.3f", width=80),
    "activity": _NUMBER(
        "activity",
        format="%.3f",
        width=70,
        help="|activation| × the norm of the vector that it writes; |activation| where that vector is out of reach.",
    ),
    "originally": _NUMBER("originally", format="%.3f", width=80),
    "promotes": _TEXT("promotes", width=90, help="The three logits that it raises most, on the direct path."),
    "suppresses": _TEXT("suppresses", width=90, help="The three that it lowers most."),
    "loss_change": _NUMBER(
        "if silenced", format="%+.1e", width=85, help="By how many nats the loss changes; the model was run for it."
    ),
    "flips": _NUMBER("flips", format="%d", width=50, help="How many of the likeliest tokens become others."),
}

_DIRECT = {
    "post": "This direct path ignores the norms and layers that follow, so signs tell more than sizes.",
    "pre": "This direct path ignores the last norm and the layers that follow.",
    "none": "This direct path ignores the layers that follow.",
}


def token_neurons_panel(view: View, choice: Choice) -> None:
    """Ask for a position, show its neurons in the run that is shown, and say whether one of them matters."""
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
    if speaks_directly(run, choice.layer) and "promotes" in frame:
        calls.append(Call(viz.promotion, (run,), of))
        left, right = st.columns([5, 4] if changed is None else [3, 2])
        with left:
            _rows(view, frame, position)
        with right:
            shown(view, calls[1], "promotion")
            n = len(view.subject.labels)
            few = (
                f" Shown are the {MOST_TOKENS_DRAWN} of {n:,} tokens that change most." if n > MOST_TOKENS_DRAWN else ""
            )
            st.caption(
                "Activation × its row of W₂, through the unembedding: what it adds to each logit here. "
                f"{_DIRECT[view.shape.norm]}{few}"
            )
    elif not run.has_logits:
        _rows(view, frame, position)
        st.caption(
            "This model has no logits: no tokens can be read off its neurons, and there is no loss to measure what "
            "silencing one does."
        )
    elif "promotes" not in frame and speaks_directly(run, choice.layer):
        _rows(view, frame, position)
        st.caption(
            "No single matrix leads from these neurons to the logits, so no tokens can be read off them directly."
        )
    else:
        _rows(view, frame, position)
        st.caption(
            "These neurons stand in the encoder: what they write reaches the output only through the decoder’s "
            "cross-attention, so no tokens can be read off them directly."
        )
    footer(view, "neurons", calls, frame)
    if notes := silencing_notes(frame, position, judged=view.original().has_right_answer):
        what_to_notice(notes)


def _rows(view: View, frame: pd.DataFrame, position: int) -> None:
    """The table; choosing a row turns to that neuron."""

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
    where = f"With {view.shown}, position" if view.is_changed else "Position"
    st.caption(f"{where} {position}. Choose a row to look closer at that neuron.")


def silencing_notes(frame: pd.DataFrame, position: int, *, judged: bool) -> list[str]:
    """What silencing the neurons of `analysis.neurons` does; nothing where that is not known."""
    known = frame.loc[frame["loss_change"].notna()]
    if known.empty or not bool((known["activity"] > 0).any()):
        return [] if bool((frame["activity"] > 0).any()) else [f"No neuron writes anything at position {position}."]
    biggest = known.loc[known["loss_change"].abs().idxmax()]
    change, flips = float(biggest["loss_change"]), int(biggest["flips"])
    said = f"{change:+.2g} nats".replace("-", "−")
    outputs = "answers" if judged else "predictions"
    moved = f" and changes {flips} {outputs[:-1] if flips == 1 else outputs}" if flips else ""
    first = (
        f"Of the {len(known)} most active neurons at position {position}, silencing **#{int(biggest['neuron'])}** moves the "
        f"loss the most, by {said}{moved}."
    )
    if not known["flips"].any() and abs(change) < LITTLE_LOSS:
        first += " So none of them matters by itself on this input. Mute the whole layer for comparison."
    return [first]


MOST_POSITIONS_BESIDE = 12
"""Up to so many positions, the neuron's bars have room beside the sampled inputs; more stand above them."""


def one_neuron_panel(view: View, choice: Choice) -> None:
    """Ask for a neuron and show it."""
    heading("One neuron")
    path, last = choice.site.path, view.shape.neurons[choice.site.path] - 1
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        look: dict[str, Any] = {"min_value": 0, "max_value": last, "step": 1, "width": 180}
        number = st.number_input(f"Neuron (0 to {last})", key=NEURON, persist_state="session", **look)
        choice = replace(choice, neuron=int(number))
        switch(
            view,
            f"neuron:{path}.{choice.neuron}",
            f"Silence #{choice.neuron}",
            f"Let #{choice.neuron} speak again",
            "It stays at 0 at every position; the model runs again.",
        )
        fires = st.empty()
    original, changed = view.original(), view.changed()
    before: dict[str, Any] = {} if changed is None else {"before": original}
    positions = range(len(original.tokens_of(choice.site.stack)))
    shown = ask_window(positions, "ff_from")
    left, right = st.columns([3, 4]) if len(shown) <= MOST_POSITIONS_BESIDE else (st.container(), st.container())
    with left:
        st.markdown(f"**#{choice.neuron} on this input**")
        picture(
            view,
            "neuron",
            viz.neuron,
            changed or original,
            layer=choice.layer,
            neuron=choice.neuron,
            positions=shown if len(shown) < len(positions) else None,
            **before,
        )
        if more := shown_of(positions, shown):
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
"""Of a long exciting input, so many tokens before the position and as many from it on are shown."""

IMAGES_IN_A_ROW = 4


def exciting_inputs(view: View, choice: Choice, found: Survey) -> None:
    """Show them, the most exciting first, with the lines that find them."""
    call = Call(analysis.exciting_inputs, (found,), {"layer": choice.layer, "neuron": choice.neuron})
    table = call.make()
    if table.empty and not found.is_final:
        st.info(
            f"It writes nothing on the {found.n_inputs:,} inputs that were run so far.", icon=":material/hourglass:"
        )
        return
    if table.empty:
        on = "them" if view.shape.image else "the sample"
        st.info(
            f"It writes nothing on any {view.input.sampled}: this neuron is dead on {on}.",
            icon=":material/do_not_disturb_on:",
        )
        return
    if view.shape.image:
        _images(view, found, table)
    else:
        _texts(view, choice, found, table)
    footer(view, "exciting", [call])


def _texts(view: View, choice: Choice, found: Survey, table: pd.DataFrame) -> None:
    labels, texts, lanes, is_cut = found.subject.labels, found.read_by(choice.site), [], False
    for row in table.to_dict("records"):
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


def _images(view: View, found: Survey, table: pd.DataFrame) -> None:
    size, rows = view.shape.patch * 12, table.to_dict("records")
    for start in range(0, len(rows), IMAGES_IN_A_ROW):
        columns = st.columns(IMAGES_IN_A_ROW)
        for column, row in zip(columns, rows[start : start + IMAGES_IN_A_ROW], strict=False):
            with column:
                image = images_picture(np.array(found.inputs[row["input"]]), dark=is_dark(), scale=12)
                st.image(framed(image, row["position"] - 1, size) if row["position"] else image, width=96)
                st.caption(f"{row['activation']:.3f} at {row['token']}")
    which = "all " if found.is_final else ""
    st.caption(
        f"Searched {which}{found.n_inputs:,} test images; each counts once. “class” stands for no place: the class token."
    )


def framed(image: np.ndarray, number: int, size: int) -> np.ndarray:
    """The picture with a frame around its patch of that number."""
    row, column = divmod(number, image.shape[1] // size)
    top, left = row * size, column * size
    out = image.copy()
    inside = out[top + 2 : top + size - 2, left + 2 : left + size - 2].copy()
    out[top : top + size, left : left + size] = (214, 94, 0)
    out[top + 2 : top + size - 2, left + 2 : left + size - 2] = inside
    return out
