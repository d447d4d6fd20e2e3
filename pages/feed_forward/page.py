"""Feed-forward: what do the neurons do? Which ones fire, on what, what they promote, and the effect of ablating them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
import torch
from streamlit.delta_generator import DeltaGenerator

from pages.components.elements import Lane, prediction_strip
from pages.compute import models
from pages.compute.call import is_dark, picture_call
from pages.compute.models import shown_path
from pages.compute.picture import Mark, footer, heading, of_each_run, panel, picture, shown, table, toolbar
from pages.controls import embed
from pages.controls.text import escape_markdown, headline, what_to_notice
from pages.controls.widgets import ask_window, choose, seed, window_caption
from pages.state.link import set_parameter
from pages.state.session import open_sidebar
from pages.state.view import View, prediction_panel, switch
from xformer import analysis, viz
from xformer.adapters import TaskModel
from xformer.analysis.feed_forward import MAX_TOKENS, activity
from xformer.analysis.neuron_survey import CANDIDATES, CLEARER, SHUFFLES, Survey, fitting
from xformer.components import FEED_FORWARDS
from xformer.formatting import percent
from xformer.layer_path import LayerPath
from xformer.reading import Reading
from xformer.viz.feed_forward import MAX_NEURONS_DRAWN, clear_limit, ranking_of, trigger_words
from xformer.viz.images import picture as image_of
from xformer.viz.theme import signed_limit

PICTURES = {"ranked": "Top neurons", "neuron": "One neuron", "map": "All neurons", "firing": "How many fire"}
_PICTURE, NEURON, MAP = "ff_picture", "ff_neuron", "ff_ranked"


@dataclass(frozen=True)
class NeuronChoice:
    """A feed-forward layer and one of its neurons."""

    layer: int
    """Counted among the feed-forward layers, from 0."""
    layer_path: LayerPath
    title: str
    """As on screen: "layer 2"."""
    neuron: int
    more: DeltaGenerator
    """The popover for further controls."""


def ask_choice(view: View) -> tuple[str, NeuronChoice]:
    """Ask for one of `PICTURES` and a layer. The neuron is the chosen one, at first the most active one."""
    run = view.original()
    titles = {site.path.removesuffix(".ffn"): view.layer_title(site.path) for site in run.feed_forward}
    picture = choose("picture", PICTURES, "Picture", key=_PICTURE, hide_label=True)
    ask = partial(choose, key="ff_layer", widget=st.selectbox, width=130, hide_label=True)
    # In deep language models, neurons a few layers before the last write the clearest tokens.
    usual = -1 - len(titles) // 7 if len(view.adapter.token_labels) > MAX_TOKENS else -1
    name = ask("layer", titles, "Layer", default=list(titles)[usual])
    layer, title = list(titles).index(name), titles[name]
    site, more = run.feed_forward[layer], st.popover("More")
    with more:
        _ablate_button(view, f"ablate:{site.path}", title, "ablate_layer")
    mean = activity(run, layer=layer).mean(dim=0)  # [d_ff]
    seed("neuron", range(len(mean)), int(mean.argmax()), key=NEURON)
    set_parameter("neuron", str(st.session_state[NEURON]))
    return picture, NeuronChoice(layer, site, title, int(st.session_state[NEURON]), more)


def _ablate_button(view: View, change: str, title: str, key: str) -> None:
    """Draw a button that ablates a layer or a neuron, or restores it."""
    label = f"Ablated: {title}" if change in view.on else f"Ablate {title} (set to zero)"
    help = "Sets its output to 0 at every position and runs the model again. A second click restores it."
    switch(label, change, change in view.on, key=key, help=help)


@st.cache_resource(max_entries=16, show_spinner=False)
def _survey(model: str, _subject: TaskModel) -> Survey:
    return replace(analysis.survey(_subject, fitting(_subject)), path=shown_path(model))


def surveyed(view: View) -> Survey | None:
    """Return the survey of the neurons over sampled inputs; None where no inputs can be sampled."""
    return None if view.task is None or view.input.no_sample_reason else _survey(view.model, view.own)


MANY = 0.2
"""Share of a layer's neurons from which a shared kind of trigger is a headline."""
FEW = 0.15
"""Largest share of a layer's neurons for which holding half of the activity is a headline."""
_KINDS = {
    "reads": "on {n} **input token{s}**",
    "says": "on {n} **predicted token{s}**",
    "position": "at {n} **position{s}**",
    "from_end": "at {n} **distance{s} from the end**",
}
_COUNTS = ("", "one", "two", "three")


def layer_headline(known: pd.DataFrame, active: Sequence[float], title: str) -> str:
    """Describe what many neurons of a layer fire on, else how few hold half of its activity; "" where neither is clear.

    `known` has the columns of `analysis.triggers`; `active` is the activity of each neuron.
    """
    counts = known.loc[known["trigger"] != "none", "trigger"].value_counts()
    layer = title.capitalize()
    if len(counts) and counts.iloc[0] >= MANY * len(known) and (kind := str(counts.index[0])) in _KINDS:
        values = known.loc[known["trigger"] == kind, "on"].map(len)
        least, most = _COUNTS[values.min()], _COUNTS[values.max()]
        n = least if least == most else f"{least} {'or' if values.max() - values.min() == 1 else 'to'} {most}"
        where = _KINDS[kind].format(n=n, s="" if values.max() == 1 else "s")
        return f"{layer}: **{counts.iloc[0]} of {len(known):,}** neurons fire mostly {where} each."
    shares = np.sort(np.asarray(active, dtype=np.float64))[::-1].cumsum()
    few = int((shares < shares[-1] / 2).sum()) + 1
    if not shares[-1] or few > FEW * len(shares):
        return ""
    hold = "holds" if few == 1 else "hold"
    return f"{layer}: **{few} of {len(shares):,}** neurons {hold} half of the activity on this input."


CHANCE = f", only where a cosine is {CLEARER:g} times the largest of {SHUFFLES} shuffled vectors"


def story_headline(neurons: Sequence[dict[str, Any]], title: str) -> str:
    """Describe the first neuron that writes clear tokens, and how many do, from rows of `analysis.neurons`."""
    if not neurons or "promotes" not in neurons[0]:
        return ""
    layer, clear = title.capitalize(), [row for row in neurons if row["promotes"]]
    if not clear:
        return f"{layer}: none of the {len(neurons)} most active neurons writes tokens more clearly than chance."
    best = next((row for row in clear if row["trigger"] != "none"), clear[0])
    fires = "" if best["trigger"] == "none" else f" {escape_markdown(trigger_words(best['trigger'], best['on']))} and"
    return (
        f"{layer}: **#{best['neuron']}**{fires} writes **{escape_markdown(best['promotes'])}**. {len(clear)} of the "
        f"{len(neurons)} most active neurons write clear tokens."
    )


def ranked_panel(view: View, choice: NeuronChoice, headline_at: DeltaGenerator) -> None:
    """Draw the most active neurons by what they fire on. Clicking a neuron opens it."""
    run, found = view.changed() or view.original(), surveyed(view)
    with choice.more:
        orders = {"distinct": "one of each trigger first", "activity": "by activity"}
        order = choose("rank", orders, "Neurons", key="ff_rank")
        positions = range(len(run.tokens_of(choice.layer_path.stack)))
        window = ask_window(positions, "ff_from")
    part = window if len(window) < len(positions) else None
    known = table(view, analysis.triggers, found or run, layer=choice.layer)
    distinct, layer, is_large = order == "distinct", choice.layer, len(view.adapter.token_labels) > MAX_TOKENS
    call = picture_call(viz.neurons, run, layer=layer, distinct=distinct, survey=found, positions=part)
    with st.container(key="wide_neurons"):
        shown(view, call, MAP, on_click=_open)
    with headline_at:
        if is_large:
            stories = table(view, analysis.neurons, run, layer=layer, n=CANDIDATES)
            headline(story_headline(stories.to_dict("records"), choice.title))
        else:
            headline(layer_headline(known, activity(run, layer=layer).mean(dim=0).tolist(), choice.title))
    footer(view, "neurons", [call])
    source = f"{found.n_inputs:,} sampled inputs" if found else "this input alone"
    with st.expander("How to read this"):
        st.markdown(
            "A cell is one neuron’s activation at one position; each row has its own colour scale. → lists the tokens whose "
            f"logits the neuron raises most on the direct path{CHANCE * is_large}. Names come from {source}: at most three "
            "tokens or positions "
            f"hold half of the activation. {len(known[known['trigger'] == 'none']):,} of {len(known):,} neurons have no clear "
            f"trigger.{window_caption(positions, window)}"
        )
    what_to_notice(["Click a neuron to see the inputs that activate it most, and to ablate it."])


def _open(cell: Mark) -> None:
    """Open the clicked neuron. A callback."""
    if "neuron" in cell:
        st.session_state[NEURON], st.session_state[_PICTURE] = int(cell["neuron"]), "neuron"


def ablation_note(row: dict[str, Any], *, judged: bool) -> str:
    """Describe the effect of ablating a neuron, from its row of `analysis.neurons`; "" where it is unknown."""
    change, flips = float(row["loss_change"]), int(row["flips"])
    if math.isnan(change):
        return ""
    outputs = "answer" if judged else "prediction"
    changed = f" and {flips} {outputs}{'s' if flips != 1 else ''}" if flips else ""
    note = f"Ablating **#{row['neuron']}** changes the loss by {change:+.2g} nats{changed} on this input."
    return note.replace("-", "−")


MAX_POSITIONS_BESIDE = 12
"""The bars of up to this many positions are next to the sampled inputs; the bars of more are above them."""


def one_neuron_panel(view: View, choice: NeuronChoice, headline_at: DeltaGenerator) -> None:
    """Draw one neuron: its trigger, its activations on this input, what it promotes, and its top activating inputs."""
    path, found = choice.layer_path.path, surveyed(view)
    with choice.more:
        last = view.shape.neurons[path] - 1
        number = st.number_input(f"Neuron (0 to {last})", 0, last, step=1, key=NEURON, persist_state="session")
        choice = replace(choice, neuron=int(number))
        _ablate_button(view, f"ablate:{path}.{choice.neuron}", f"#{choice.neuron}", "ablate_neuron")
        positions = range(len(view.original().tokens_of(choice.layer_path.stack)))
        window = ask_window(positions, "ff_from")
    original, (run, before) = view.original(), view.compared
    layer, only = choice.layer, [choice.neuron]
    row = table(view, analysis.neurons, original, layer=layer, only=only, ablate=True, survey=found).iloc[0].to_dict()
    with headline_at:
        if row["trigger"] != "none":
            words, share = escape_markdown(trigger_words(row["trigger"], row["on"])), percent(row["share"], 0)
            headline(f"**#{choice.neuron}** {words}: {share} of its activation (uniform: {percent(row['even'], 0)}).")
    left, right = st.columns([3, 4]) if len(window) <= MAX_POSITIONS_BESIDE else (st.container(), st.container())
    part = window if len(window) < len(positions) else None
    calls = [picture_call(viz.neuron, run, layer=layer, neuron=choice.neuron, positions=part, **before)]
    with left:
        st.markdown(f"**#{choice.neuron} on this input**{window_caption(positions, window)}")
        shown(view, calls[0], "neuron")
    if "promotes" in row and row["activation"]:
        calls.append(picture_call(viz.promotion, original, layer=layer, only=only, position=int(row["peak"])))
        st.markdown(f"**What #{choice.neuron} promotes** at position {row['peak']}, on the direct path")
        with st.container(key="wide_promotion"):
            shown(view, calls[1], "promotion")
    footer(view, "neuron", calls)
    with right:
        st.markdown(f"**Sampled inputs that activate #{choice.neuron} most**, with the position outlined")
        if found is None:
            missing = view.input.no_sample_reason or "The task of this model is not known."
            st.info(f"No inputs can be sampled. {missing}", icon=":material/info:")
        else:
            exciting_inputs(view, choice, found)
    what_to_notice([ablation_note(row, judged=original.has_right_answer)])


TOKENS_AROUND = 12
"""Tokens of a long input shown on each side of the position."""
IMAGES_IN_A_ROW = 4


def exciting_inputs(view: View, choice: NeuronChoice, found: Survey) -> None:
    """Draw the sampled inputs with the largest activations of the neuron."""
    call = picture_call(analysis.exciting_inputs, found, layer=choice.layer, neuron=choice.neuron)
    rows = call.make().to_dict("records")
    if not rows:
        nothing = f"This neuron writes nothing on any {view.input.sample_noun}: it is dead there."
        st.info(nothing, icon=":material/block:")
        return
    if view.shape.image:
        _images(view, found, rows)
    else:
        _texts(choice, found, rows)
    footer(view, "exciting", [call])


def _texts(choice: NeuronChoice, found: Survey, rows: list[dict[str, Any]]) -> None:
    labels, texts, lanes = found.adapter.token_labels, found.read_by(choice.layer_path), []
    for row in rows:
        ids = texts[row["input"]]
        start = max(0, min(row["position"] - TOKENS_AROUND, len(ids) - 2 * TOKENS_AROUND))
        piece = range(start, min(len(ids), start + 2 * TOKENS_AROUND))
        tokens = tuple(labels[ids[at]] for at in piece)
        lanes.append(Lane(f"{row['activation']:.3f}", tokens, moved=tuple(at == row["position"] for at in piece)))
    prediction_strip(lanes, key="exciting")
    stack = "; the tokens are those of the decoder" if texts is found.targets else ""
    st.caption(f"Searched {found.n_inputs:,} inputs of the task (seed {found.seed}), each listed at most once{stack}.")


def _images(view: View, found: Survey, rows: list[dict[str, Any]]) -> None:
    size = view.shape.patch * 12
    places = [place for _ in range(0, len(rows), IMAGES_IN_A_ROW) for place in st.columns(IMAGES_IN_A_ROW)]
    for place, row in zip(places, rows, strict=False):
        with place:
            image = image_of(np.array(found.inputs[row["input"]]), dark=is_dark(), scale=12)
            st.image(framed(image, row["position"] - 1, size) if row["position"] else image, width=96)
            st.caption(f"{row['activation']:.3f} at {row['token']}")
    st.caption(f"Searched {found.n_inputs:,} test images; each is listed at most once. “class” is the class token.")


def framed(image: np.ndarray, number: int, size: int) -> np.ndarray:
    """Return a copy of the image with a frame around one patch."""
    row, column = divmod(number, image.shape[1] // size)
    out = image.copy()
    patch = out[row * size : (row + 1) * size, column * size : (column + 1) * size]
    inside = patch[2:-2, 2:-2].copy()
    patch[:] = (214, 94, 0)
    patch[2:-2, 2:-2] = inside
    return out


STAGES = {"post": "after", "pre": "before"}
GATED = {"post": "the product", "pre": "the gate", "up": "the gated value"}
ORDERS = {"sorted": "sorted", "plain": "by number"}
_OF_A_GATE = {
    "post": "The activation that multiplies each neuron’s row of W₂: the nonlinearity of its gate × its gated value.",
    "pre": "The input of the nonlinearity: blue passes, orange is suppressed.",
    "up": "The value that is multiplied with the nonlinearity of the gate; where the gate is closed, it has no effect.",
}


def activations_panel(view: View, choice: NeuronChoice, _: DeltaGenerator) -> None:
    """Draw the activations of all neurons at all positions; all runs use the order and the scale of the original."""
    path, component = choice.layer_path.path, FEED_FORWARDS.get(view.shape.activation)
    n, function = view.shape.neurons[path], "the nonlinearity" if component is None else component.title
    positions = range(len(view.original().tokens_of(choice.layer_path.stack)))
    with choice.more:
        kept = [name for name in GATED if f"{path}.{name}" in view.original()]
        is_gated = "up" in kept
        words, prompt = (GATED, "Value shown") if is_gated else (STAGES, f"{function}: before or after")
        stages = {name: words[name] for name in kept}
        stage = choose("stage", stages, prompt, default="post", key=f"ff_stage{'_gated' * is_gated}", width="content")
        order = choose("order", ORDERS, "Neurons", key="ff_order", width="content")
        shown = ask_window(positions, "ff_from")
        columns = ask_window(range(n), "ff_columns", most=MAX_NEURONS_DRAWN, name="columns", what="columns")
    runs = view.runs().values()
    values = torch.cat([run[f"{path}.{stage}"][0] for run in runs]).numpy(force=True)  # [pos of all runs, d_ff]
    limit, largest = clear_limit(values), signed_limit(values)
    part = {"positions": shown if len(shown) < len(positions) else None, "limit": limit if len(runs) > 1 else None}
    part |= {"layer": choice.layer, "stage": stage, "order": order, "neuron": choice.neuron}
    of_each_run(view, "activations", viz.activations, columns=columns if len(columns) < n else None, **part)
    closing = {"pre": f"The input of {function}: blue fires, orange is set to 0.", "post": f"The output of {function}."}
    what = f"The {'output' if stage == 'post' else 'input'} of {function}: blue is above 0, orange below."
    what = _OF_A_GATE[stage] if is_gated else closing[stage] if component and component.closes else what
    drawn = ranking_of(view.original(), layer=choice.layer, order=order)[columns]
    mark = f" ▲ is neuron #{choice.neuron}." if choice.neuron in drawn else ""
    beyond = f" The colour scale ends at {limit:.3g}; the maximum is {largest:.3g}." if limit < largest else ""
    st.caption(
        f"{choice.title.capitalize()}: {n:,} neurons, one column each. {what}{mark}{beyond}"
        f"{window_caption(range(n), columns, 'columns')}{window_caption(positions, shown)}"
    )
    share = (view.original()[f"{path}.post"][0] > 0).double().mean().item()
    which = " in the original run" if view.is_changed else ""
    what_to_notice([f"In {choice.title}, **{percent(share, 0)}** of the activations on this input are above 0{which}."])


MEASURES = {
    "written": "Activity is |activation| × the norm of the vector that a neuron writes.",
    "activation": "The output vectors of this model’s neurons are unknown, so activity is |activation|.",
}
FIRES = (
    "A neuron fires where its activity exceeds a millionth of the layer’s mean peak (each neuron’s largest activity, averaged "
    "over neurons). A neuron that never fires is dead."
)

OVER = {"sample": "many inputs", "input": "this input"}


def firing_panel(view: View, choice: NeuronChoice, headline_at: DeltaGenerator) -> None:
    """Draw the shares of firing and dead neurons of all layers, on this input or over sampled inputs."""
    found = surveyed(view)
    options = {name: words for name, words in OVER.items() if name == "input" or found is not None}
    with choice.more:
        over = choose("over", options, "Counted over", key="ff_over")
    counted: Reading | Survey
    (counted, before), over_what = view.compared, "this input alone"
    if over == "sample" and found is not None:
        kind = "test images" if view.shape.image else "inputs sampled from the task"
        counted, before, over_what = found, {}, f"{found.n_inputs:,} {kind}, the model as trained"
    which = f", {view.shown}" if before else ""
    picture(view, "activity", viz.firing, counted, **before)
    row = analysis.firing(counted).set_index("layer").loc[choice.layer_path.path].to_dict()
    with headline_at:
        headline(firing_note(row, choice.title, which, view.input.unit))
    component = FEED_FORWARDS.get(view.shape.activation)
    zero = f" A {component.title} output of 0 writes nothing." if component and component.closes else ""
    with st.expander("How this is counted"):
        st.markdown(f"{MEASURES[row['measure']]} {FIRES}{zero} Counted on {over_what}.")


def firing_note(row: dict[str, Any], title: str, which: str = "", one: str = "token") -> str:
    """Describe the dead and firing neurons of a layer, from its row of `analysis.firing`; `one` is the word for a position."""
    dead = "none" if row["dead"] == 0 else f"**{row['dead']:,}**"
    verb = "is" if row["dead"] <= 1 else "are"
    return (
        f"In {title}, {dead} of {row['neurons']:,} neurons {verb} dead on {row['over']}{which}, "
        f"and **{percent(row['share_at_once'], 0)}** fire at an average {one}."
    )


def experts_panel(view: View) -> None:
    """Draw the router's choices in a layer, and how evenly they are spread."""
    heading("The experts of each token")
    sites = view.original().feed_forward
    numbers = [at for at, site in enumerate(sites) if site.path in view.shape.experts]
    layers = {str(at + 1): view.layer_title(sites[at].path) for at in numbers}
    ask = partial(choose, key="ff_mixture", widget=st.selectbox, width=180)
    layer = int(ask("mixture", layers, "Layer", default=next(reversed(layers)))) - 1
    of_each_run(view, "experts", viz.expert_weights, layer=layer)
    found = table(view, analysis.expert_weights, view.changed() or view.original(), layer=layer)
    n, n_experts = len(set(found["position"])), view.shape.experts[sites[layer].path]
    counts = found.loc[found["weight"] != 0, "expert"].value_counts()
    k, expert, times = counts.sum() / n, counts.index[0], counts.iloc[0]
    never = n_experts - len(counts)
    unused = f"{never or 'none'} {'is' if never < 2 else 'are'}"
    st.caption(
        f"{n_experts} experts, {k:.3g} of them per token; the colour is the weight of an expert’s output. Expert {expert} is "
        f"chosen most often, for {times} of {n} tokens ({percent(times / n, 0)}; uniform: {percent(k / n_experts, 0)}); "
        f"{unused} never chosen."
    )


def without_neurons(view: View) -> None:
    """Explain that the model has no feed-forward layers, and offer shipped models that have them."""
    n = view.shape.n_layers
    what = f"This model has no feed-forward layers: its {n} layer{'s are' if n > 1 else ' is'} attention only."
    if view.shape.without_attention:
        what = "No feed-forward layer was found in the blocks with attention; what other blocks compute is not read."
    st.info(what, icon=":material/hub:")
    usable = [name for name in models.shipped() if not models.usable(name)]
    others = {name: d_ff for name in usable if (d_ff := max(models.adapter(name).shape.neurons.values(), default=0))}
    if others:
        st.markdown("These models have feed-forward layers:")
    with st.container(horizontal=True):
        for name, d_ff in others.items():
            words = f"{name} · {d_ff} neurons per layer"
            st.button(words, on_click=st.session_state.__setitem__, args=("model", name), key=f"use_{name}")


PANELS = {"ranked": ranked_panel, "neuron": one_neuron_panel, "map": activations_panel, "firing": firing_panel}


def _feed_forward(view: View) -> None:
    prediction_panel(view)
    if view.shape.experts:
        panel(experts_panel, view)
    if view.original().feed_forward and not view.shape.neurons:
        none = "The feed-forward layers of this model have no individual neurons, as in a mixture of experts."
        st.info(none, icon=":material/info:")
    elif view.original().feed_forward:
        # Only the chosen picture is computed.
        with embed.picture():
            with st.container(gap=None):
                headline_at = st.container()
                with toolbar():
                    picture, choice = ask_choice(view)
            panel(PANELS[picture], view, choice, headline_at)
    else:
        without_neurons(view)
    view.share()


if __name__ == "__main__":
    open_sidebar("Feed-forward", "What do the neurons do?").on_each_change(_feed_forward)
