"""The panels of Home: the scene, the predictions for the input, and more about a model."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
import torch

from pages.components.attention_view import attention_choice, attention_view
from pages.components.elements import Lane, prediction_strip
from pages.compute import cached_runs
from pages.compute.background_job import BackgroundJob, follow, interruptible_progress, kept_job, progress
from pages.compute.byte_cache import cached
from pages.compute.cached_runs import Predictions
from pages.compute.call import is_dark, picture_call
from pages.compute.models import card_of_model
from pages.compute.picture import footer, heading, shown
from pages.controls.text import caption, escape_markdown
from pages.controls.widgets import SHARE, choose, choose_unlinked
from pages.state.inputs import lane_of, right_places, show_image, test_predictions
from pages.state.session import part
from pages.state.view import View, editing
from xformer import ModelConfig, Transformer, analysis, record, viz
from xformer.analysis.images import misclassified
from xformer.analysis.scoring import HIGH, has_mastered_its_training, iter_accuracy_by_length, longest_mastered_length
from xformer.analysis.tables import TableSoFar
from xformer.counting import CountedPart, count_with_projections_to, n_parameters, parameters_by_part
from xformer.edit_links import changed_source
from xformer.formatting import percent
from xformer.presets import PUBLISHED, credit
from xformer.reading import Reading, from_trace
from xformer.tasks import Task, texts
from xformer.tasks.images import digit_images
from xformer.tasks.rules.digits import Digits
from xformer.trace import Trace
from xformer.viz.images import picture
from xformer.viz.packing import AnyLayer, pack, pattern_layers
from xformer.widgets.scene_data import MAX_TOKENS as SCENE_TOKENS

LENGTHS = (100, 200, 400, 800)
TEMPERATURES = {0.0: "greedy", 0.5: "careful", 0.8: "usual", 1.2: "daring"}
MAX_GAPS, MAX_TOKENS = 4, 8
MAX_MISTAKES = 12


def answer_panel(view: View) -> None:
    """Draw the input and the answer of a task model, and the number of right tokens."""
    task = view.own.task
    end = task.vocabulary.special.end
    lanes, sources = [_typed_lane(view)], (view.source, changed_source(view.edit_links, view.source))
    answer, right = [], ()
    for (name, predictions), source in zip(_predictions(view).items(), sources, strict=False):
        answer = [*task.answer(list(source)), *([] if end is None else [end])]
        right = right_places([token for token, _ in predictions], answer)
        lanes.append(lane_of(view.adapter, name, predictions, right))
    is_encoder = view.shape.architecture == "encoder"
    if view.is_changed or not is_encoder or len(view.source) >= SCENE_TOKENS:  # otherwise the scene shows this answer
        prediction_strip(lanes, key="prediction")
    how = "all at once" if is_encoder else "one token after the other"
    edit = " Click a token in the picture to change it." if editing(view) else ""
    is_all_right = len(right) == len(answer) and all(right)
    verdict = "All tokens right" if is_all_right else f"{sum(right)} of {len(answer)} right"
    under = f" with {view.change_summary()}" if view.is_changed else ""
    st.caption(f"{verdict}{under}, predicted {how}.{edit}")


def _typed_lane(view: View) -> Lane:
    return Lane("you type", tuple(view.adapter.token_labels[token] for token in view.source))


def _predictions(view: View) -> dict[str, Predictions]:
    """Return the decoded tokens of the unchanged and, if any, the changed model, by the names of their lanes."""
    with interruptible_progress("Decoding") as step:
        runs = {"model": cached_runs.decoded(view.model, view.source, step=step)}
        if view.is_changed:
            changed = view.change_summary()
            runs[f"model, {changed}"] = cached_runs.decoded(*view.key(changed), step=step)
    return runs


def continuation_panel(view: View) -> None:
    """Draw the likeliest continuation of a text as a strip, and a longer sampled one."""
    lanes = [lane_of(view.adapter, name, predictions) for name, predictions in _predictions(view).items()]
    prediction_strip([_typed_lane(view), *lanes], key="prediction")
    unit = view.input.unit
    caption(f"Greedy decoding: the likeliest {unit} each time; a bar is its probability. There is no right answer.")
    part(sample_panel, view)


def sample_panel(view: View, temperature: float | None = None) -> None:
    """Draw a sampled continuation of a text, and the choice of its length and, if none is given, of the temperature."""
    units = view.input.units
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.markdown("**A sampled continuation**", width="content")
        help = "Temperature 0, 0.5, 0.8 or 1.2: the higher, the more often a less likely token is sampled."
        ask = partial(choose_unlinked, "Temperature", TEMPERATURES, "story_temperature", default=0.8, help=help)
        drawn_at: float = ask() if temperature is None else temperature
        lengths = {n: str(n) for n in LENGTHS} | {LENGTHS[-1]: f"{LENGTHS[-1]} {units}"}
        n = choose_unlinked(units.capitalize(), lengths, "story_length", default=LENGTHS[0])
        wanted = (view.model, view.source)
        if view.task is None and st.session_state.get("story_wanted") != wanted:  # a large model takes a while
            write = partial(st.session_state.__setitem__, "story_wanted", wanted)
            st.button("Let it write", icon=":material/edit:", key="story_write", on_click=write)
            return
        if st.button("Again", icon=":material/refresh:", key="story_again", help="Another sample."):
            st.session_state["story_seed"] = st.session_state.get("story_seed", 0) + 1
    text = st.empty()

    def show(tokens: Sequence[int]) -> None:
        text.code(view.input.decode([*view.original().ids(), *tokens]), language=None, wrap_lines=True)

    with interruptible_progress("Generating") as step:
        seed = st.session_state.get("story_seed", 0)
        show(cached_runs.continuation(view.model, view.source, n, drawn_at, seed, step=step, show=show))
    st.caption(_window(view))


def _window(view: View) -> str:
    """Describe how much of the text the model reads at once."""
    if view.task is None:
        return f"It reads at most {view.shape.max_len:,} {view.input.units}, including its own, and then stops."
    read, title = view.task.config.max_len, escape_markdown(texts.title(view.task.config.text))
    how = "beyond that, each new one replaces the first one, and the model reads the rest again"
    if view.is_encoder_decoder:
        how = f"its encoder reads the last {read}, its decoder writes {read} more, and so on"
    return f"It was trained on {title} and reads at most {read} {view.input.units} at once: {how}."


def filled_panel(view: View) -> None:
    """Draw the predictions at the gaps of a text with the likeliest tokens at the first gaps, or the decoded target."""
    original, changed = view.original(), view.changed()
    run = changed or original
    prediction_strip(view.kind.rows(original, changed, f"predicts, {view.change_summary()}"), key="prediction")
    if not run.target_positions:
        return
    if view.is_encoder_decoder:
        caption("Greedy decoding; a bar is the probability of a token.")
        return
    if run.answer == tuple(run.ids()[position] for position in run.target_positions):
        caption("This text has no gaps: each position shows the token that the model finds likeliest there.")
        return
    shown = run.target_positions[:MAX_GAPS]
    for column, position in zip(st.columns(max(2, len(shown))), shown, strict=False):
        p = run.logits[0, position].softmax(dim=-1).topk(min(MAX_TOKENS, view.shape.vocab_size))
        names = [view.adapter.token_labels[token] for token in p.indices.tolist()]
        frame = pd.DataFrame({"token": names, "probability": p.values.tolist()})
        with column:
            st.markdown(f"**Position {position}**: {escape_markdown(run.tokens[position])}")
            st.dataframe(frame, hide_index=True, column_config={"probability": SHARE}, key=f"gap_{position}")
    left = len(run.target_positions) - len(shown)
    more = f" {left} more gaps are not shown." if left else ""
    caption(f"The likeliest tokens at each gap; there is no right answer.{more}")


def class_panel(view: View) -> None:
    """Draw the image, the probabilities of the classes, and whether the likeliest one is right."""
    run, before = view.compared
    call = picture_call(viz.classes, run, **before)
    at, bars = st.columns([1, 4], gap="large", vertical_alignment="center")
    with at:
        st.image(picture(run.example.input_ids[0].numpy(), dark=is_dark(), scale=24), width=192)
    with bars:
        shown(view, call, "classes")
    st.caption(_verdict(view, run))
    footer(view, "classes", [call])


def _verdict(view: View, run: Reading) -> str:
    with_changes = f" with {view.change_summary()} (the frames are the original)" if view.is_changed else ""
    predicts = f"The model predicts **{run.predicted[0]}**{with_changes} with {percent(run.probability[0], 1)}"
    if not run.has_right_answer:
        return f"{predicts}. The digit of a drawn image is not known, so this is neither right nor wrong."
    rule, [right], [of_right] = view.own.task.rule, run.answer, run.probability_of_answer
    assert isinstance(rule, Digits)
    verdict = "which is right" if run.right[0] else f"**which is wrong**: {right} gets {percent(of_right, 1)}"
    return f"Test image {rule.test_number(view.source)} is a {right}. {predicts}, {verdict}."


def mistakes_panel(view: View) -> None:
    """Draw the test images that the model gets wrong, with buttons to show one on all screens."""
    predictions = test_predictions(view.model)
    wrong = misclassified(predictions)
    heading(f"{len(wrong)} of {len(predictions)} test images wrong")
    if wrong.empty:
        st.caption("The model gets all of them right.")
        return
    first = f"; the first {MAX_MISTAKES} are shown" if len(wrong) > MAX_MISTAKES else ""
    st.caption(f"For the unchanged model, highest probability first{first}. “Show” makes one the input of all screens.")
    pixels = digit_images()[1].pixels.numpy()
    columns = st.columns(min(MAX_MISTAKES, max(6, len(wrong))), gap="small")
    for column, row in zip(columns, wrong.head(MAX_MISTAKES).to_dict("records"), strict=False):
        image = int(row["image"])
        with column:
            st.image(picture(pixels[image], dark=is_dark(), scale=10), width=80)
            st.caption(f"is **{row['digit']}**, predicted **{row['predicted']}** with {percent(row['probability'], 0)}")
            st.button("Show", key=f"wrong_{image}", on_click=show_image, args=(image,), width="stretch")
    footer(view, "wrong", [picture_call(analysis.mistakes, view.original())], wrong)


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
    call = picture_call(viz.accuracy_by_length, original, unit=task.rule.unit, table=table)
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
    chosen = choose("paper", options, "Configuration", hide_label=True)
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
