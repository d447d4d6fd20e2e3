"""More about a model: its accuracy by input length, its training, and the sizes of published models."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
import torch

from pages.components.attention_view import attention_choice, attention_view
from pages.compute.background_job import BackgroundJob, follow, kept_job, progress
from pages.compute.byte_cache import cached
from pages.compute.call import PictureCall
from pages.compute.models import card_of_model
from pages.compute.picture import footer, heading, shown
from pages.controls.text import escape_markdown
from pages.controls.widgets import SHARE, choose
from pages.state.view import View
from xformer import ModelConfig, Transformer, record, viz
from xformer.analysis.scoring import HIGH, has_mastered_its_training, iter_accuracy_by_length, longest_mastered_length
from xformer.analysis.tables import TableSoFar
from xformer.counting import CountedPart, count_with_projections_to, n_parameters, parameters_by_part
from xformer.formatting import percent
from xformer.presets import PUBLISHED, credit
from xformer.reading import Reading, from_trace
from xformer.tasks import Task
from xformer.trace import Trace
from xformer.viz.packing import AnyLayer, pack, pattern_layers

FIRST_WORK = 0.3
"""Seconds of work before anything is drawn."""
KEY = "published_attention"
N_SOURCE, N_TARGET = 12, 9
OVERCOUNT = "base, over-counted"
CONTEXT = 1024


def how_long_panel(view: View) -> None:
    """Draw the accuracy by input length as it is measured, and how far the model generalises."""
    original = view.original()
    job = kept_job("lengths", view.model, lambda: iter_accuracy_by_length(original), FIRST_WORK)
    follow(job, partial(_curve, view, original, job))


def _curve(view: View, original: Reading, job: BackgroundJob[TableSoFar]) -> None:
    found = job.latest
    if found is None:
        st.info(escape_markdown(job.problem), icon=":material/info:")
        return
    task, table = view.own.task, found.table
    if not found.is_final:
        words = f"{found.done} of {found.total} lengths"
        progress(job, "how_long_bar", found.done / found.total, words, f"{words} are measured.")
    heading(_sentence(task, table) if found.is_final else "")
    call = PictureCall(viz.accuracy_by_length, (original,), {"unit": task.rule.unit, "table": table})
    shown(view, call, "how_long")
    st.caption(
        f"{table['samples'].iloc[0]} new inputs of each length, measured just now for the unchanged model. The band is the "
        "95% interval of the exact match; the shaded lengths are those of its training."
    )
    footer(view, "how_long", [call], lambda: table)


def _sentence(task: Task, table: pd.DataFrame) -> str:
    """Describe the length up to which the model generalises, if it is good at its training lengths."""
    shortest, longest, least = task.config.min_len, task.config.max_len, percent(HIGH, 0)
    if not has_mastered_its_training(table):
        return f"Trained on {shortest} to {longest} {task.rule.unit}, it does not get {least} right at all of these lengths"
    far = longest_mastered_length(table)
    if far is None:
        return f"Trained on {shortest} to {longest} {task.rule.unit}, it already fails at {longest + 1}"
    return f"Trained on at most {longest} {task.rule.unit}, it gets {least} or more right at every length up to {far}"


def training_panel(view: View) -> None:
    """Draw the training of a model and its score on unseen inputs, from its card."""
    card = card_of_model(view.model)
    if isinstance(about := card.get("about"), str):
        st.text(about)
    if of := credit(card.get("preset")):
        st.caption(of)
    figures, recipe = card.get("figures") or card.get("reported"), card.get("train")
    if not isinstance(figures, dict) or not isinstance(recipe, dict):
        st.caption("The model had not been scored at this step." if recipe else "It has no record of its training.")
        return
    measure, value = "Exact match", percent(figures["exact_match"])
    meaning = "The share of answers that are right in full."
    if view.input.is_open_ended:
        measure, value = f"Bits per {view.input.unit}", f"{figures['loss'] / math.log(2):.3f}"
        meaning = f"Guessing at random would need {math.log2(len(view.input.replacements)):.2f}."
    seed = figures.get("seed", card["seed"])
    tiles = (
        (measure + figures.get("at", ""), value, meaning),
        ("Unseen inputs", f"{figures['samples']:,}", f"Drawn with seed {seed}."),
        ("Training steps", f"{card['step']:,}", f"{recipe['batch_size']} inputs each."),
        ("Training time", f"{card['seconds']:.1f} s", f"On a {card['device'].upper()}."),
    )
    for place, (label, number, help) in zip(st.columns(4), tiles, strict=True):
        place.metric(label, number, help=help, border=True)
    if isinstance(edges := figures.get("edge_cases"), dict):
        st.caption(edge_cases(edges))
    st.caption(
        f"Seed {card['seed']}, AdamW, learning rate up to {recipe['peak_lr']:g}, "
        f"warm-up over {recipe['warmup']:.0%} of the steps, then {recipe['decay']} decay."
    )


def edge_cases(edges: dict[str, Any]) -> str:
    """Describe the score on the edge cases of a task, which random inputs hardly ever contain."""
    share, n = edges["exact_match"], edges["samples"]
    right = f"all {n:,}" if share == 1.0 else f"{round(share * n):,} of {n:,} ({percent(share)})"
    return f"On the edge cases of its task, which random inputs hardly ever contain, it gets {right} completely right."


def published_panel() -> None:
    """Draw the parameter count of a published model, computed and as printed, and a forward pass with random weights."""
    options = {name: model.title for name, model in PUBLISHED.items()} | {OVERCOUNT: "Base, over-counted"}
    chosen = choose("paper", options, next(iter(options)), "Configuration", label_visibility="collapsed")
    if chosen == OVERCOUNT:
        _overcount()
        return
    published = PUBLISHED[chosen]
    config, n = published.model, n_parameters(published.model)
    st.markdown(
        f"**{n:,}** by formula; **{published.printed / 1e6:.0f} M** printed in {published.source}: "
        f"a difference of **{n - published.printed:+,}**."
    )
    show_parts(parameters_by_part(config))
    st.caption(published.note)
    if st.button(f"Run {published.title} on random tokens", icon=":material/play_arrow:", key=f"run_{chosen}"):
        st.session_state["paper_ran"] = chosen
    if st.session_state.get("paper_ran") == chosen:
        _forward(config)


def show_parts(parts: tuple[CountedPart, ...]) -> None:
    """Draw a table of parameters with one row per part."""
    total = sum(part.count for part in parts)
    rows = [
        {"part": part.name, "how it is counted": part.formula, "numbers": part.count, "share": part.count / total}
        for part in parts
    ]
    columns = {"numbers": st.column_config.NumberColumn(format="localized"), "share": SHARE}
    st.dataframe(pd.DataFrame(rows), hide_index=True, column_config=columns)


@cached
def forward(config: ModelConfig) -> tuple[list[AnyLayer], Trace, float, float]:
    """Run a new model on random tokens and return its patterns, trace, seconds, and loss on random targets in nats."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model = Transformer(config, draw).eval()
        source = torch.randint(1, config.vocab_size, (1, N_SOURCE), generator=draw)  # [batch, pos]
        target = torch.randint(1, config.vocab_size, (1, N_TARGET), generator=draw)  # [batch, pos]
        begun = time.perf_counter()
        trace = record(model, source, target, keep=["*.pattern", "*.mask", "logits"])
        seconds = time.perf_counter() - begun
    labels = torch.randint(1, config.vocab_size, (N_TARGET,), generator=draw)  # [pos]
    loss = torch.nn.functional.cross_entropy(trace.logits[0], labels).item()
    return pattern_layers(from_trace(model, trace)), trace, seconds, loss


def _forward(config: ModelConfig) -> None:
    with st.spinner("Initialising its weights …"):
        layers, trace, seconds, loss = forward(config)
    chance = math.log(config.vocab_size)
    st.markdown(
        f"The model has just run with random weights: {n_parameters(config):,} parameters, {N_SOURCE} source and {N_TARGET} "
        f"target tokens, logits {list(trace.logits.shape)} in **{seconds * 1e3:,.0f} ms**. Its loss on random tokens is "
        f"**{loss:.2f}** nats; random guessing gives ln {config.vocab_size:,} = {chance:.2f}."
    )
    chosen = attention_choice(KEY, layers)
    attention_view(pack(layers, selected=(chosen.layer, chosen.head)), key=KEY)
    st.caption("All layers and heads, untrained. The trained models on the other screens have learned their patterns.")


def _overcount() -> None:
    config = PUBLISHED["transformer-base"].model
    sizes = {"d_model": 512, "n_layers": 6, "d_ff": 2048, "vocab_size": 32_000}
    wrong = count_with_projections_to(CONTEXT, **sizes)
    n_wrong = sum(part.count for part in wrong)
    n_correct = sum(part.count for part in count_with_projections_to(config.d_model, **sizes))
    st.markdown(
        f"**{n_wrong:,}**: the count for the base model if q, k, v and the output are projected to the length of the "
        f"context, {CONTEXT:,}, instead of d_model, {config.d_model}. The correct count is **{n_correct:,}**; the difference "
        f"of {n_wrong - n_correct:,} is 18 attentions × 4 projections × ({config.d_model} × {config.d_model} + "
        f"{config.d_model}). The number of weights of a transformer does not depend on the length of a text."
    )
    show_parts(wrong)
