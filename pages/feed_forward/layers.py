"""Pictures of whole feed-forward layers: all activations, how many neurons fire, and the experts of a mixture."""

from __future__ import annotations

from collections import Counter
from typing import Any

import streamlit as st
import torch
from streamlit.delta_generator import DeltaGenerator

from pages.feed_forward.neurons import Choice, surveyed
from pages.shared import models
from pages.shared.layout import headline, what_to_notice
from pages.shared.picture import heading, of_each_run, picture, table
from pages.shared.view import View
from pages.shared.widgets import ask_window, choose, shown_of
from xformer import analysis, viz
from xformer.formatting import percent
from xformer.site import layer_title
from xformer.viz.feed_forward import MOST_NEURONS_DRAWN, clear_limit, ranking_of
from xformer.viz.theme import signed_limit

STAGES = {"post": "after", "pre": "before"}
GATED = {"post": "their product", "pre": "the gate", "up": "what it gates"}
ORDERS = {"sorted": "sorted", "plain": "by number"}
_FUNCTIONS = {"relu": "ReLU", "gelu": "GELU", "swiglu": "SiLU"}
_OF_A_GATE = {
    "post": "What each adds, times its row of W₂: the nonlinearity of its gate × what that gates.",
    "pre": "What goes into the nonlinearity: blue lets through, orange is held back.",
    "up": "What is multiplied with the nonlinearity of the gate: where that holds back, this adds nothing.",
}


def activations_panel(view: View, choice: Choice, _: DeltaGenerator) -> None:
    """The activations of all neurons at all positions; every run in the order and on the scale of the original."""
    path, relu = choice.site.path, view.shape.activation == "relu"
    n, function = view.shape.neurons[path], _FUNCTIONS.get(view.shape.activation, "the nonlinearity")
    positions = range(len(view.original().tokens_of(choice.site.stack)))
    with choice.more:
        kept = [name for name in GATED if f"{path}.{name}" in view.original()]
        is_gated = "up" in kept
        words, asks = (GATED, "Neurons as …") if is_gated else (STAGES, f"{function} …")
        stages = {name: words[name] for name in kept}
        stage = choose("stage", stages, "post", asks, key=f"ff_stage{'_gated' * is_gated}", width="content")
        order = choose("order", ORDERS, "sorted", "Neurons", key="ff_order", width="content")
        shown = ask_window(positions, "ff_from")
        columns = ask_window(range(n), "ff_columns", most=MOST_NEURONS_DRAWN, name="columns", what="columns")
    runs = view.runs().values()
    whole = torch.cat([run[f"{path}.{stage}"][0] for run in runs])  # [pos of every run, d_ff]
    limit, largest = (of(whole.numpy(force=True)) for of in (clear_limit, signed_limit))
    of_each_run(
        view,
        "activations",
        viz.activations,
        layer=choice.layer,
        stage=stage,
        order=order,
        positions=shown if len(shown) < len(positions) else None,
        columns=columns if len(columns) < n else None,
        neuron=choice.neuron,
        limit=limit if len(runs) > 1 else None,
    )
    what = "Blue fires, orange is what ReLU cuts off." if stage == "pre" else "What ReLU lets through."
    if not relu:
        made = f"What {function} makes of them" if stage == "post" else f"What goes into {function}"
        what = f"{made}: blue is above 0, orange below."
    if is_gated:
        what = _OF_A_GATE[stage]
    drawn = ranking_of(view.original(), layer=choice.layer, order=order)[columns]
    mark = f" ▲ is neuron #{choice.neuron}." if choice.neuron in drawn else ""
    ablated = " The layer is ablated: its output is not added to the stream." if f"ablate:{path}" in view.on else ""
    beyond = (
        f" Colours end at {limit:.3g}; {int((whole.abs() > limit).sum())} activations are beyond, up to {largest:.3g}."
    )
    beyond = beyond if limit < largest else ""
    st.caption(
        f"{choice.title.capitalize()}: {n:,} neurons, one column each. {what}{mark}{beyond}{ablated}"
        f"{shown_of(range(n), columns, 'columns')}{shown_of(positions, shown)}"
    )
    share = (view.original()[f"{path}.post"][0] > 0).double().mean().item()
    whose = " in the original run" if view.is_changed else ""
    note = f"In {choice.title}, **{percent(share, 0)}** of the activations on this input are above 0{whose}."
    if stage == "post" and relu and not is_gated and share < 1:
        note += " Switch to **before** for the values that ReLU sets to 0."
    what_to_notice([note])


MEASURES = {
    "written": "Activity is |activation| × the norm of the vector that a neuron writes.",
    "activation": "The output vectors of this model’s neurons are not known, so activity is |activation|.",
}
FIRES = (
    "A neuron fires where its activity exceeds a millionth of the layer’s mean peak (the mean over neurons of the largest "
    "activity); one that never fires is dead."
)

OVER = {"sample": "many inputs", "input": "this input"}


def firing_panel(view: View, choice: Choice, says: DeltaGenerator) -> None:
    """The shares of firing and dead neurons of all layers, on this input or over sampled inputs."""
    found = surveyed(view)
    options = {name: words for name, words in OVER.items() if name == "input" or found is not None}
    with choice.more:
        over = choose("over", options, next(iter(options)), "Counted over", key="ff_over")
    original, changed = view.original(), view.changed()
    counted, over_what, which = changed or original, "this input alone", ""
    before: dict[str, Any] = {} if changed is None else {"before": original}
    if over == "sample" and found is not None:
        kind = "test images" if view.shape.image else "inputs sampled from the task"
        counted, before, over_what = found, {}, f"{found.n_inputs:,} {kind}, the model as trained"
    elif changed is not None:
        which = f", {view.shown}"
    picture(view, "activity", viz.firing, counted, **before)
    row = analysis.firing(counted).set_index("layer").loc[choice.site.path].to_dict()
    with says:
        headline(firing_note(row, choice.title, which, view.input.one))
    relu = " The 0 of a ReLU writes nothing." if view.shape.activation == "relu" else ""
    with st.expander("How this is counted"):
        st.markdown(f"{MEASURES[row['measure']]} {FIRES}{relu} Counted on {over_what}.")


def firing_note(row: dict[str, Any], title: str, which: str = "", one: str = "token") -> str:
    """The firing and dead neurons of a layer, from its row of `analysis.firing`; `one` names a position."""
    dead = "none" if row["dead"] == 0 else f"**{row['dead']:,}**"
    verb = "is" if row["dead"] <= 1 else "are"
    return (
        f"In {title}, {dead} of {row['neurons']:,} neurons {verb} dead on {row['over']}{which}, "
        f"and at an average {one} **{percent(row['share_at_once'], 0)}** fire at once."
    )


def experts_panel(view: View) -> None:
    """The router's choices in a layer, and how evenly they are spread."""
    heading("Which experts each token takes")
    sites = view.original().feed_forward
    layers = {
        str(at + 1): layer_title(site.path, is_pair=view.is_pair)
        for at, site in enumerate(sites)
        if site.path in view.shape.experts
    }
    wanted = choose(
        "mixture", layers, next(reversed(layers)), "Layer", key="ff_mixture", widget=st.selectbox, width=180
    )
    layer = int(wanted) - 1
    of_each_run(view, "experts", viz.expert_weights, layer=layer)
    found = table(view, analysis.expert_weights, view.changed() or view.original(), layer=layer)
    n, n_experts = len(set(found["position"])), view.shape.experts[sites[layer].path]
    counts = Counter(found.loc[found["weight"] != 0, "expert"].tolist())
    k, [(expert, times)] = counts.total() / n, counts.most_common(1)
    never = n_experts - len(counts)
    st.caption(
        f"{n_experts} experts, {k:.3g} of them for a token; the colour is the weight with which an expert’s output is added. "
        f"Expert {expert} is taken by most: {times} of {n} tokens ({percent(times / n, 0)}; an even share is "
        f"{percent(k / n_experts, 0)})."
        + (f" {never} {'expert is' if never == 1 else 'experts are'} taken by none." if never else "")
    )


def without_neurons(view: View) -> None:
    """For a model without feed-forward layers: shipped models that have some, and how well this one does."""
    n = view.shape.n_layers
    st.info(
        f"This model has no feed-forward layers: its {n} layer{'s are' if n > 1 else ' is'} attention only.",
        icon=":material/hub:",
    )
    usable = [name for name in models.shipped() if not models.usable(name)]
    others = {name: d_ff for name in usable if (d_ff := max(models.subject(name).shape.neurons.values(), default=0))}
    if others:
        st.markdown("These models have some:")
        with st.container(horizontal=True):
            for name, d_ff in others.items():
                st.button(f"{name} · {d_ff} neurons per layer", on_click=_use_model, args=(name,), key=f"use_{name}")
    original = view.original()
    if notes := attention_alone(original.n_correct, len(original.answer), judged=original.has_right_answer):
        what_to_notice(notes)


def attention_alone(n_correct: int, n: int, *, judged: bool) -> list[str]:
    """How much a model gets right without neurons; nothing below one half, or without right answers."""
    if not judged or 2 * n_correct < n:
        return []
    return [f"The model as trained gets {n_correct} of {n} right on this input without a single neuron."]


def _use_model(name: str) -> None:
    st.session_state["model"] = name
