"""The neurons of a feed-forward layer by name, and one of them: what it fires on, what it promotes, what ablating it does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import headline, is_dark, what_to_notice
from pages.shared.link import chose
from pages.shared.models import shown_path
from pages.shared.picture import footer, shown, table
from pages.shared.view import View, toggle_intervention
from pages.shared.widgets import ask_window, choose, seed, shown_of
from xformer import analysis, viz
from xformer.adapters import TaskModel
from xformer.analysis.feed_forward import Survey, activity, fitting
from xformer.formatting import percent
from xformer.site import Site, layer_title
from xformer.viz.feed_forward import trigger_words
from xformer.viz.images import picture as image_of

PICTURES = {"ranked": "By name", "neuron": "One neuron", "map": "All neurons", "firing": "How many fire"}
OLD_PICTURES = {"token": "ranked"}
_PICTURE, NEURON, MAP = "ff_picture", "ff_neuron", "ff_ranked"


@dataclass(frozen=True)
class Choice:
    """A feed-forward layer and one of its neurons."""

    layer: int
    """Counted among the feed-forward layers, from 0."""
    site: Site
    title: str
    """As on screen: "layer 2"."""
    neuron: int
    more: DeltaGenerator
    """The popover for what is not needed at first."""


def ask_choice(view: View) -> tuple[str, Choice]:
    """Ask for one of `PICTURES` and a layer, in the row of controls. Without a chosen neuron, the most active one is taken."""
    run = view.original()
    titles = {site.path.removesuffix(".ffn"): layer_title(site.path, is_pair=view.is_pair) for site in run.feed_forward}
    hidden: dict[str, Any] = {"label_visibility": "collapsed"}
    picture = choose("picture", PICTURES, "ranked", "Picture", key=_PICTURE, old=OLD_PICTURES, **hidden)
    look: dict[str, Any] = {"widget": st.selectbox, "width": 130, **hidden}
    name = choose("layer", titles, list(titles)[-1], "Layer", key="ff_layer", **look)
    layer = list(titles).index(name)
    path, title = run.feed_forward[layer].path, titles[name]
    more = st.popover("More")
    with more:
        _ablate_button(view, f"ablate:{path}", title, "ablate_layer")
    mean = activity(run, layer=layer).mean(dim=0)  # [d_ff]
    seed("neuron", range(len(mean)), int(mean.argmax()), key=NEURON)
    chose("neuron", str(st.session_state[NEURON]))
    return picture, Choice(layer, run.feed_forward[layer], title, int(st.session_state[NEURON]), more)


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


@st.cache_resource(max_entries=16, show_spinner=False)
def _survey(model: str, _subject: TaskModel) -> Survey:
    return replace(analysis.survey(_subject, fitting(_subject)), path=shown_path(model))


def surveyed(view: View) -> Survey | None:
    """What the neurons did over sampled inputs; None where no inputs can be sampled."""
    return None if view.task is None or view.input.missing else _survey(view.model, view.own)


MANY = 0.2
"""A kind of trigger that so large a share of a layer has is worth a headline."""
FEW = 0.15
"""And so is a share of the neurons that holds half of the activity, where it is no larger."""
_KINDS = {
    "reads": "on a token that they **read**",
    "says": "to **say** a token",
    "position": "at a **position**",
    "from_end": "at a distance **from the end**",
}


def layer_headline(known: pd.DataFrame, active: Sequence[float], title: str) -> str:
    """What most neurons of a layer fire on, else how few hold half of its activity; "" where neither is clear.

    `known` has the rows of `analysis.triggers`, `active` the activity of each neuron.
    """
    counts = known.loc[known["trigger"] != "none", "trigger"].value_counts()
    if len(counts) and counts.iloc[0] >= MANY * len(known) and counts.index[0] in _KINDS:
        return (
            f"{title.capitalize()}: **{counts.iloc[0]} of {len(known):,}** neurons fire {_KINDS[str(counts.index[0])]}."
        )
    shares = np.sort(np.asarray(active, dtype=np.float64))[::-1].cumsum()
    few = int((shares < shares[-1] / 2).sum()) + 1
    if not shares[-1] or few > FEW * len(shares):
        return ""
    verb = "holds" if few == 1 else "hold"
    return f"{title.capitalize()}: **{few} of {len(shares):,}** neurons {verb} half of the activity on this input."


MOST_POSITIONS = 24


def ranked_panel(view: View, choice: Choice, says: DeltaGenerator) -> None:
    """The most active neurons by what they fire on; a click on one opens it."""
    run, found = view.changed() or view.original(), surveyed(view)
    with choice.more:
        orders = {"distinct": "one of each trigger first", "activity": "by activity"}
        order = choose("rank", orders, "distinct", "Neurons", key="ff_rank")
        positions = range(len(run.tokens_of(choice.site.stack)))
        window = ask_window(positions, "ff_from", most=MOST_POSITIONS)
    of: dict[str, Any] = {"layer": choice.layer, "distinct": order == "distinct", "survey": found}
    known = table(view, analysis.triggers, found or run, layer=choice.layer)
    with says:
        headline(layer_headline(known, activity(run, layer=choice.layer).mean(dim=0).tolist(), choice.title))
    call = Call(viz.neurons, (run,), of | ({"positions": window} if len(window) < len(positions) else {}))
    with st.container(key="wide_neurons"):
        shown(view, call, MAP, on_select=_open_clicked, selection_mode="cell")
    footer(view, "neurons", [call])
    whose = f"{found.n_inputs:,} sampled inputs" if found else "this input alone"
    with st.expander("How to read this"):
        st.markdown(
            f"A cell is one neuron’s activation at one position. Each row has its own colours. "
            f"→ are the tokens whose logits it raises most, on the "
            f"direct path. Names come from {whose}: at most three tokens or positions hold half of a neuron’s activation, "
            f"and three times their even share. {len(known[known['trigger'] == 'none']):,} of {len(known):,} neurons of "
            f"this layer have no clear trigger.{shown_of(positions, window)}"
        )
    what_to_notice(["Click a neuron to see the inputs that excite it most, and to ablate it."])


def _open_clicked() -> None:
    """Show the neuron that was clicked. A callback."""
    cells = st.session_state[MAP].selection.get("cell", [])
    if cells and "neuron" in cells[0]:
        st.session_state[NEURON], st.session_state[_PICTURE] = int(cells[0]["neuron"]), "neuron"


LITTLE_LOSS = 0.01
"""A change of the loss, in nats, that is too small to matter."""


def ablation_note(row: dict[str, Any], *, judged: bool) -> str:
    """What ablating a neuron does, from its row of `analysis.neurons`; "" where that is not known."""
    change, flips = float(row["loss_change"]), int(row["flips"])
    if math.isnan(change):
        return ""
    outputs = "answer" if judged else "prediction"
    if not flips and abs(change) < LITTLE_LOSS:
        return (
            f"Ablating **#{row['neuron']}** alone hardly matters on this input: the loss changes by {change:+.1g} nats."
        )
    moved = f" and {flips} {outputs}{'s' if flips != 1 else ''}" if flips else ""
    return f"Ablating **#{row['neuron']}** changes the loss by {change:+.2g} nats{moved} on this input.".replace(
        "-", "−"
    )


MOST_POSITIONS_BESIDE = 12
"""The bars of more positions stand above the sampled inputs, not beside them."""


def one_neuron_panel(view: View, choice: Choice, says: DeltaGenerator) -> None:
    """One neuron: what it fires on, its activations on this input, what it promotes, and the inputs that excite it most."""
    path, found = choice.site.path, surveyed(view)
    with choice.more:
        last = view.shape.neurons[path] - 1
        look: dict[str, Any] = {"min_value": 0, "max_value": last, "step": 1}
        number = st.number_input(f"Neuron (0 to {last})", key=NEURON, persist_state="session", **look)
        choice = replace(choice, neuron=int(number))
        _ablate_button(view, f"ablate:{path}.{choice.neuron}", f"#{choice.neuron}", "ablate_neuron")
        positions = range(len(view.original().tokens_of(choice.site.stack)))
        window = ask_window(positions, "ff_from")
    original, changed = view.original(), view.changed()
    before: dict[str, Any] = {} if changed is None else {"before": original}
    one: dict[str, Any] = {"layer": choice.layer, "only": [choice.neuron]}
    row = table(view, analysis.neurons, original, **one, ablate=True, survey=found).iloc[0].to_dict()
    with says:
        words = escape_markdown(trigger_words(row["trigger"], row["on"]))
        headline(
            ""
            if row["trigger"] == "none"
            else f"**#{choice.neuron}** {words}: {percent(row['share'], 0)} of its activation, "
            f"{percent(row['even'], 0)} if it were even."
        )
    left, right = st.columns([3, 4]) if len(window) <= MOST_POSITIONS_BESIDE else (st.container(), st.container())
    of = {"positions": window if len(window) < len(positions) else None, **before}
    calls = [Call(viz.neuron, (changed or original,), {"layer": choice.layer, "neuron": choice.neuron, **of})]
    with left:
        st.markdown(f"**#{choice.neuron} on this input**{shown_of(positions, window)}")
        shown(view, calls[0], "neuron")
    if "promotes" in row and row["activation"]:
        calls.append(Call(viz.promotion, (original,), {**one, "position": int(row["peak"])}))
        st.markdown(f"**What #{choice.neuron} promotes** at position {row['peak']}, on the direct path")
        with st.container(key="wide_promotion"):
            shown(view, calls[1], "promotion")
    footer(view, "neuron", calls)
    with right:
        st.markdown(f"**Where #{choice.neuron} fires most in sampled inputs**, the position outlined")
        if found is None:
            missing = view.input.missing or "The task of this model is not known."
            st.info(f"No inputs can be sampled. {missing}", icon=":material/info:")
        else:
            exciting_inputs(view, choice, found)
    if note := ablation_note(row, judged=original.has_right_answer):
        what_to_notice([note])


TOKENS_AROUND = 12
"""Tokens of a long input shown on each side of the position."""
IMAGES_IN_A_ROW = 4


def exciting_inputs(view: View, choice: Choice, found: Survey) -> None:
    """The sampled inputs with the largest activations of the neuron."""
    call = Call(analysis.exciting_inputs, (found,), {"layer": choice.layer, "neuron": choice.neuron})
    rows = call.make().to_dict("records")
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
    st.caption(f"Searched {found.n_inputs:,} test images; each counts once. “class” is the class token.")


def framed(image: np.ndarray, number: int, size: int) -> np.ndarray:
    """A copy of the image with a frame around one patch."""
    row, column = divmod(number, image.shape[1] // size)
    top, left = row * size, column * size
    out = image.copy()
    inside = out[top + 2 : top + size - 2, left + 2 : left + size - 2].copy()
    out[top : top + size, left : left + size] = (214, 94, 0)
    out[top + 2 : top + size - 2, left + 2 : left + size - 2] = inside
    return out
