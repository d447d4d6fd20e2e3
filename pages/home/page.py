"""Home: what is this model, and where does my input go?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import streamlit as st

from pages.components.model_diagram import model_diagram
from pages.components.prediction_strip import Lane, prediction_strip
from pages.home.continuation import going_on_panel
from pages.home.predicted_class import class_panel, mistakes_panel
from pages.home.published_sizes import published_panel, show_parts
from pages.shared import models, resources, screens
from pages.shared.ask import choose
from pages.shared.patience import patience
from pages.shared.session import View, open_page
from xformer.counting import n_parameters, parameters_by_part
from xformer.interventions import changed_source, join
from xformer.sources import credit
from xformer.viz.diagram import diagram
from xformer.words import percent

LEARNED = 0.5
"""From so many answers wholly right on, what a model does is said without an “at least”."""


def page() -> None:
    view = open_page("See a transformer think", "Where does my input go?")
    st.markdown(f"**{view.task.rule.does}**{_has_it_learned(view)}")
    if view.task.rule.is_open_ended:
        going_on_panel(view)
    elif view.task.rule.is_image:
        class_panel(view)
    else:
        _prediction(view)
    more = {name: words for name, words in MORE.items() if name != "wrong" or view.task.rule.is_image}
    shown = choose("more", more, "inside", "More about this model", label_visibility="collapsed")
    view.share()
    SHOW[shown](view)


def _has_it_learned(view: View) -> str:
    """What is known of how well the model does what its task asks for; nothing where it does it as a rule."""
    card = models.card(view.model)
    figures = card.get("figures") or card.get("reported")
    if not isinstance(figures, dict):
        return " At least that is its task; nobody has scored whether it does."
    if view.task.rule.is_open_ended or figures["exact_match"] >= LEARNED:
        return ""
    share = percent(figures["exact_match"], 1)
    return f" At least that is its task: at this step it gets {share} of unseen inputs wholly right."


def _prediction(view: View) -> None:
    label = view.task.vocabulary.labels
    end = view.task.vocabulary.special.end
    shown = [Lane("you type", tuple(label[token] for token in view.source))]
    with patience("It answers") as step:
        runs = [("it says", view.source, resources.decoded(view.model, view.source, step=step))]
        changed = ()
        if view.is_changed:
            changed = resources.decoded(view.model, view.source, view.mask, join(view.interventions), step=step)
    if view.is_changed:
        reads = changed_source(view.interventions, view.source)
        runs.append((f"it says, {view.what_changed()}", reads, changed))
    answer: list[int] = []
    for name, source, said in runs:
        answer = [*view.task.answer(list(source)), *([] if end is None else [end])]
        right = tuple(i < len(answer) and token == answer[i] for i, (token, _) in enumerate(said))
        shown.append(Lane(name, tuple(label[t] for t, _ in said), right, tuple(p for _, p in said)))
    prediction_strip(shown, key="prediction")
    how = "all at once" if view.task.config.architecture == "encoder" else "one token after the other"
    right = shown[-1].right
    verdict = (
        "Every token is right" if len(right) == len(answer) and all(right) else f"{sum(right)} of {len(answer)} right"
    )
    under = f" with {view.what_changed()}" if view.is_changed else ""
    st.caption(f"{verdict}{under}. The model ran just now and said this {how}; a bar shows how sure it was.")


def _inside(view: View) -> None:
    """The picture of the model, each box of it the way to its screen."""
    st.caption(
        "This is what your input passes through. Click a box to see what happens to it there; **Attention** is a good one "
        "to begin with. Model, input and mask are chosen in the sidebar, and stay when you go on."
    )
    example = view.original().example
    n_target = None if example.target is None else example.target.shape[1]
    config = view.checkpoint.config
    picture = diagram(config, config.n_positions(example.stream.shape[1]), n_target)
    target = model_diagram(picture, available=frozenset(screens.screens()), key="diagram")
    if target is not None:
        st.switch_page(screens.file_of(target))  # what is in the sidebar goes along


def _parameters(view: View) -> None:
    config = view.checkpoint.config
    st.subheader(f"{n_parameters(config):,} learned numbers", anchor=False)
    show_parts(parameters_by_part(config))


def _card(view: View) -> None:
    card = models.card(view.model)
    if isinstance(about := card.get("about"), str):
        st.text(about)
    if of := credit(card.get("preset")):
        st.caption(of)
    figures, recipe = card.get("figures") or card.get("reported"), card.get("train")
    if not isinstance(figures, dict) or not isinstance(recipe, dict):
        st.caption(
            "Nothing had been scored yet at this step." if recipe else "This model carries no record of its training."
        )
        return
    tiles = st.columns(4)
    if view.task.rule.is_open_ended:
        tiles[0].metric(
            f"Bits per character{figures.get('at', '')}",
            f"{figures['loss'] / math.log(2):.3f}",
            help=f"The loss on text it never read, {figures['loss']:.4f} nats, in bits. Knowing nothing, it would need "
            f"{math.log2(view.task.config.symbols):.2f}.",
            border=True,
        )
    else:
        tiles[0].metric(
            f"{'Images right' if view.task.rule.is_image else 'Exact match'}{figures.get('at', '')}",
            percent(figures["exact_match"]),
            help="Images whose digit it says." if view.task.rule.is_image else "Whole sequences right.",
            border=True,
        )
    seed = figures.get("seed", card["seed"])
    tiles[1].metric("On unseen inputs", f"{figures['samples']:,}", help=f"From seed {seed}.", border=True)
    tiles[2].metric("Training steps", f"{card['step']:,}", help=f"{recipe['batch_size']} inputs each.", border=True)
    tiles[3].metric("Training time", f"{card['seconds']:.1f} s", help=f"On a {card['device'].upper()}.", border=True)
    if isinstance(edges := figures.get("edge_cases"), dict):
        st.caption(edge_cases(edges))
    st.caption(
        f"Seed {card['seed']}, AdamW, learning rate up to {recipe['peak_lr']:g}, "
        f"warm-up over {recipe['warmup']:.0%} of the steps, then {recipe['decay']} decay."
    )


def edge_cases(edges: dict[str, Any]) -> str:
    """How well a model does on the inputs at the edge of its task, which chance hardly ever draws."""
    share, n = edges["exact_match"], edges["samples"]
    right = f"all {n:,}" if share == 1.0 else f"{round(share * n):,} of {n:,} ({percent(share)})"
    return f"On the edge cases of its task, which chance hardly ever draws, it gets {right} wholly right."


MORE = {
    "inside": "What is inside",
    "wrong": "What it gets wrong",
    "training": "How it was trained",
    "numbers": "Its learned numbers",
    "paper": "The paper’s sizes",
}
"""What else there is to see of a model, by the word that the link writes."""
SHOW: dict[str, Callable[[View], None]] = {
    "inside": _inside,
    "wrong": mistakes_panel,
    "training": _card,
    "numbers": _parameters,
    "paper": lambda _: published_panel(),
}

page()
