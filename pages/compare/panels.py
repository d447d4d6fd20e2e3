"""The panels below the ruler: attention, logit lens and patching at one step; accuracy over many inputs and lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compare.comparison import SMALLEST_SHARE, Comparison, letter_in, on_other_inputs
from pages.compute import background_job
from pages.compute.background_job import BackgroundJob, JobReport, follow, kept_job, progress, show_problem
from pages.compute.call import PictureContext, heads_from_1, picture_call
from pages.compute.picture import footer, shown, side_by_side, table
from pages.controls.text import escape_markdown
from pages.controls.widgets import choose
from xformer import analysis, viz
from xformer.analysis.activation_patching import copying
from xformer.analysis.differences import ALL_ROWS, MEAN, deciding_layers, lens_divergence, pattern_incompatibility
from xformer.analysis.scoring import (
    HIGH,
    Agreement,
    count_agreement,
    has_mastered_its_training,
    iter_lengths_compared,
    longest_mastered_length,
)
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.layer_path import LayerPath, layer_title
from xformer.reading import Reading

Context = Comparison | PictureContext
ONE_LINE = 24
"""Maximum characters of a picture's title; a longer name is replaced by its letter."""
MAX_BLOCKS = 32
"""Larger patterns are pooled into at most this many blocks of rows and columns."""
ROUNDING = 1e-5
"""Differences of weights below this are float32 rounding errors."""
MAX_KEYS = 48
"""Longer rows are pooled into at most this many blocks of keys."""
CLEAREST_HEADS = 12
"""Number of heads drawn of models with more than `ALL_ROWS` heads."""
WHERE = {"here": "at the predicting position", "everywhere": "at all positions"}
SAMPLES = {number: f"{number:,} inputs" for number in (1000, 5000, 20000)}
DRAW = 1
"""The seed of the sampled inputs. It is fixed, so that a link always shows the same numbers."""
ACCURACIES = (("position", "token"), ("position", "exact"), ("length", "exact"))


def patterns_panel(context: Context, step: int, two: Sequence[Reading], bar: DeltaGenerator) -> dict[str, str]:
    """Draw the attention patterns of a layer and their difference, chosen in `bar`; return what the link keeps."""
    if reason := pattern_incompatibility(*two):
        st.info(f"{escape_markdown(reason)} “Heads” shows each model’s patterns.", icon=":material/compare_arrows:")
        return {}
    one = two[0]
    layers = {path: layer_title(path, is_encoder_decoder=one.is_encoder_decoder) for path in deciding_layers(one)}
    ask = partial(choose, widget=st.selectbox, hide_label=True)
    with bar:
        path = ask("layer", layers, "Layer", default=list(layers)[-1], key="compare_layer", width=190)
        numbers = {str(head): f"head {head}" for head in range(1, one[f"{path}.pattern"].shape[1] + 1)}
        heads = {"mean": "mean of heads"} | numbers if len(numbers) > 1 else numbers
        chosen = ask("head", heads, "Head", key="compare_head", width=160)
    head = MEAN if chosen == "mean" else int(chosen) - 1
    layer = [site.path for site in one.attention].index(path)
    options = {"layer": layer, "head": head, "max_blocks": MAX_BLOCKS}
    names = [reading.adapter.name for reading in two]
    letters = [letter_in(name) for name in names]
    short = [name if len(name) <= ONE_LINE else letter for name, letter in zip(names, letters, strict=True)]
    titles = {"one": short[0], "other": short[1], "difference": f"Difference: {letters[1]} − {letters[0]}"}
    frame = table(context, analysis.pattern_difference, two, **options)
    calls = [picture_call(viz.pattern_difference, two, **options, show=show, table=frame) for show in titles]
    side_by_side(context, calls, "compare_cells", titles=list(titles.values()))
    largest = frame.loc[frame["difference"].abs().idxmax()]
    if abs(largest["difference"]) < ROUNDING:
        st.markdown(f"The patterns of {letters[0]} and {letters[1]} are equal here to within {ROUNDING:g}.")
    else:
        cell = f"from query {_span(largest, 'query')} to key {_span(largest, 'key')}"
        st.markdown(f"The largest difference is {largest['difference']:+.3f}, {cell}.")
    is_pooled = largest["key"] != largest["key_end"]
    blocks = " A cell is a block: the mean over queries of the sum over keys." if is_pooled else ""
    st.caption(f"▶ predicts {context.unit} {step}. Blue: more weight in {letters[1]}; orange: less.{blocks}")
    footer(context, "patterns", calls, frame)
    return {"layer": path, "head": chosen}


def _span(row: pd.Series, at: str) -> str:
    """Format a position, or the first and last position of a block."""
    first, last = row.to_dict()[at], row.to_dict()[f"{at}_end"]
    return str(first) if first == last else f"{first}–{last}"


def rows_panel(context: Context, step: int, readings: Sequence[Reading], two: tuple[int, int]) -> None:
    """Draw the attention row that predicts a step, in all heads or, with many heads, in those where the `two` differ most."""
    options = {"pair": two, "n_heads": CLEAREST_HEADS, "max_blocks": MAX_KEYS}
    n_rows = max(sum(one[f"{path}.pattern"].shape[1] + 1 for path in deciding_layers(one)) for one in readings)
    which = "every layer and head" if n_rows <= ALL_ROWS else f"the {CLEAREST_HEADS} heads that stand out most"
    st.markdown(f"**The row that predicts {context.unit} {step}**, in {which}.")
    kinds = [{LayerPath.parse(path).kind_label: None for path in deciding_layers(one)} for one in readings]
    every = list(dict.fromkeys(kind for of_one in kinds for kind in of_one))
    frame = table(context, analysis.decision_rows, readings, **options)
    calls = []
    for kind in every:
        places = [place for _ in range(0, len(readings), 2) for place in st.columns(2, gap="medium")]
        for index, (place, reading) in enumerate(zip(places, readings, strict=False)):
            name = escape_markdown(reading.adapter.name)
            with place:
                if kind not in kinds[index]:
                    st.caption(f"{name} has no {kind} here.")
                    continue
                st.markdown(f"**{name}**" if len(every) == 1 else f"**{name}: {kind}**")
                draw = partial(picture_call, viz.decision_rows, readings, **options)
                calls.append(draw(show=index, kind_label=kind, table=frame))
                shown(context, calls[-1], f"compare_look_{kind}_{index}")
    footer(context, "rows", calls, lambda: heads_from_1(frame, no_head="mean"))


def lens_panel(context: Context, step: int, readings: Sequence[Reading], two: tuple[int, int]) -> None:
    """Draw the logit lens at the position that predicts a step, with a line where the `two` diverge."""
    sentence, parts = _lens_divergence(context, step, [readings[at] for at in two])
    st.markdown(sentence)
    st.caption("The logit lens: the most likely token after each layer (✓ right). The colour is its probability.")
    shapes: dict[tuple[str, ...], list[Reading]] = {}
    for reading in readings:
        points = tuple(table(context, analysis.decision_lens, [reading])["point"])
        shapes.setdefault(points, []).append(reading)
    calls = []
    for group in shapes.values():
        pair = tuple(group.index(readings[at]) for at in two if readings[at] in group)
        calls.append(picture_call(viz.decision_lens, group, **({"pair": pair} if parts and len(pair) == 2 else {})))
    widths = [len(group) + 1 for group in shapes.values()]  # the row labels take as much width as one model
    side_by_side(context, calls, "compare_lens", widths=widths)
    footer(context, "lens", calls, lambda: table(context, analysis.decision_lens, readings))


def _lens_divergence(context: Context, step: int, two: Sequence[Reading]) -> tuple[str, bool]:
    """Describe where the two diverge in the lens; return the sentence, and whether they diverge."""
    a, b = (letter_in(reading.adapter.name) for reading in two)
    both = table(context, analysis.decision_lens, two)
    try:
        divergence = lens_divergence(both)
    except InputError as error:
        return escape_markdown(str(error)), False
    if divergence is None:
        return f"In the lens {a} and {b} end with the same most likely token at {context.unit} {step}.", False
    depth, point = divergence
    one, other = (escape_markdown(str(token)) for token in both.loc[both["depth"] == depth, "token"])
    sentence = f"At {context.unit} {step} the most likely tokens of {a} and {b} differ from **{point}** on to the end"
    return f"{sentence}: {one} and {other}.", True


def _job(kind: str, about: str, work: Callable[[], Iterator[JobReport]], what: str) -> BackgroundJob[Any]:
    """Return the job of a panel, with a progress bar while it runs. `what` is the plural noun for the counted items."""
    job: BackgroundJob[Any] = kept_job(f"compare_{kind}_job", about, work, background_job.AT_ONCE)

    def bar() -> None:
        if (found := job.latest) is not None and not found.is_final:
            total = found.samples if isinstance(found, Agreement) else found.total
            words = f"{found.done:,} of {total:,} {what}"
            progress(job, f"compare_{kind}_bar", found.done / total, words, f"{words} are done.")

    show_problem(job)
    if job.is_running or job.cancelled:
        follow(job, bar)
    return job


def patching_panel(comparison: Comparison, step: int, two: Sequence[Reading], bar: DeltaGenerator) -> dict[str, str]:
    """Patch parts of each run into the other and draw what they restore; return what the link keeps."""
    with bar:
        where = choose("copied", WHERE, "Copied", key="compare_copied", hide_label=True)
    about = "|".join([comparison.about, str(step), *(reading.adapter.name for reading in two), where])
    everywhere = where == "everywhere"
    report = _job("patching", about, lambda: copying(two, everywhere=everywhere), "copies").latest
    if report is None or not report.is_final:
        return {"copied": where}
    st.markdown(_patching_result(report.table))
    options = {"everywhere": everywhere, "table": report.table}
    calls = [picture_call(viz.patching, two, **options, out_of=out_of) for out_of in (0, 1)]
    side_by_side(comparison, calls, "compare_patch")
    st.caption("Restored share of the logit difference: 0 is none, 1 is the other model’s. ⇒: the prediction changes.")
    footer(comparison, "patching", calls, heads_from_1(report.table, 1))
    return {"copied": where}


def _patching_result(frame: pd.DataFrame) -> str:
    """Name the component that restores most in each direction, where it restores enough."""
    sentences = []
    for _, part in frame.groupby(["source", "into"], sort=False):
        heads = part[part["component"] != "residual"]
        best = (heads if len(heads) else part).iloc[0]
        a, b = (letter_in(best[name]) for name in ("source", "into"))
        if abs(best["restored"]) < SMALLEST_SHARE:
            sentences.append(f"No component of {a} restores as much as {SMALLEST_SHARE:g} of the difference in {b}.")
            continue
        turns = f" and changes the prediction to {escape_markdown(str(best['says']))}" if best["turns"] else ""
        sentences.append(f"**{best['part']}** of {a} restores {best['restored']:+.2f} of the difference in {b}{turns}.")
    return " ".join(sentences)


def many_panel(comparison: Comparison) -> dict[str, str]:
    """Count correct answers over many new inputs of the task; return what the link keeps."""
    samples = choose("samples", SAMPLES, "Inputs", key="compare_samples", hide_label=True)
    loaded, about = comparison.loaded(), f"{comparison.about_variants}|{samples}"
    job = _job("many", about, lambda: on_other_inputs(count_agreement(loaded, samples=samples, seed=DRAW)), "inputs")
    if job.latest is not None and not job.is_running:
        _show_counts(comparison, job.latest)
    return {"samples": str(samples)}


def _show_counts(comparison: Comparison, counted: Agreement) -> None:
    st.markdown(_accuracies(comparison, counted))
    accuracies = [picture_call(viz.accuracy, counted, by=by, measure=measure) for by, measure in ACCURACIES]
    side_by_side(comparison, accuracies, "compare_accuracy")
    confusions = [picture_call(viz.confusion, counted, model=name) for name in comparison.names]
    titles = [f"{name}: predicted vs. correct tokens" for name in comparison.names]
    side_by_side(comparison, confusions, "compare_confusion", titles=titles)
    st.caption("Predictions: most likely tokens under teacher forcing. Bands: 95% confidence intervals (Wilson 1927).")

    def every_accuracy() -> pd.DataFrame:
        kinds = ("all", "position", "length")
        frames = [analysis.accuracy(counted, by).rename(columns={by: "at"}).assign(by=by) for by in kinds]
        return pd.concat(frames, ignore_index=True)

    footer(comparison, "accuracy", [*accuracies, *confusions], every_accuracy)


def _accuracies(comparison: Comparison, counted: Agreement) -> str:
    """Describe the accuracies and the agreement; for a text, how often the next token is the most likely one."""
    is_judged = comparison.has_right_answer
    figures, pairs = (
        frame.loc[frame["measure"] == ("exact" if is_judged else "token")].to_dict("records")
        for frame in (analysis.accuracy(counted), analysis.same_answers(counted))
    )
    shares = [
        f"**{letter_in(row['model'])}** {percent(row['share'], 1)} ({percent(row['low'], 1)} to {percent(row['high'], 1)})"
        for row in figures
    ]
    agree = [f"{letter_in(row['one'])} and {letter_in(row['other'])} {percent(row['share'], 1)}" for row in pairs]
    what, same = f"Top-1 accuracy in {counted.done:,} windows of text", "Same token"
    if is_judged:
        what, same = f"Exact match on {counted.done:,} new inputs", "Same answer"
    return f"{what}: {', '.join(shares)}. {same}: {', '.join(agree)}."


def lengths_panel(comparison: Comparison) -> dict[str, str]:
    """Draw the accuracy by length of the input."""
    loaded = comparison.loaded()
    job = _job("lengths", comparison.about_variants, lambda: on_other_inputs(iter_lengths_compared(loaded)), "lengths")
    if job.latest is None:
        return {}
    frame = job.latest.table
    if job.latest.is_final:
        st.markdown(_longest_lengths(frame))
    call = picture_call(viz.lengths_compared, loaded, unit=comparison.input.task.rule.unit, table=frame)
    shown(comparison, call, "compare_lengths")
    n = frame["samples"].iloc[0]
    st.caption(f"{n} new inputs per length. Bands: 95% confidence intervals. Filled: lengths of the training.")
    footer(comparison, "lengths", [call], lambda: frame)
    return {}


def _longest_lengths(frame: pd.DataFrame) -> str:
    """Name the length up to which each model generalises; omit models that have not mastered their training lengths."""
    words = []
    for name, own in frame.groupby("model", sort=False):
        length = longest_mastered_length(own) if has_mastered_its_training(own) else None
        if length is not None:
            words.append(f"**{letter_in(str(name))}** up to {length}")
    least = percent(HIGH, 0)
    return f"At least {least} right at every length from its training lengths on: {', '.join(words)}." if words else ""
