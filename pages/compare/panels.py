"""What a panel of Compare has to know of what is compared, whoever compares it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pandas as pd
import streamlit as st

from pages.compare.comparison import Comparison, state
from pages.shared.background_job import progress
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import choose, seed
from pages.shared.notebook import heads_from_1
from pages.shared.picture import footer, shown, table
from xformer import analysis, viz
from xformer.analysis.activation_patching import copying
from xformer.analysis.differences import ALL_ROWS, MEAN, deciding_layers, lens_divergence, why_incomparable
from xformer.analysis.scoring import (
    HIGH,
    Agreement,
    LengthsDone,
    comparing_lengths,
    count_agreement,
    has_mastered_its_training,
    how_far,
)
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.reading import Reading
from xformer.site import Site, layer_title


class Compared(Protocol):
    """Players before one input, or two runs on a text."""

    @property
    def model(self) -> str:
        """What the files of its pictures are named after."""
        ...

    @property
    def unit(self) -> str:
        """What one of its steps is called."""
        ...


ONE_LINE = 24
"""Characters of a title over one of three pictures; a longer name is given by its letter, so that they stand level."""

MOST_BUTTONS = 12
"""More layers are a list."""

MAX_BLOCKS = 32
"""Rows and columns of a pattern that are drawn one by one; longer ones are drawn in blocks."""

ROUNDING = 1e-5
"""Differences of weights below this are float32's rounding."""


def patterns_panel(comparison: Compared, step: int, two: Sequence[Reading]) -> dict[str, str]:
    """Draw where both looked, whole patterns of a layer; returns what the link keeps."""
    if reason := why_incomparable(*two):
        st.info(f"{escape_markdown(reason)} “heads” shows each player’s own.", icon=":material/compare_arrows:")
        return {}
    one = two[0]
    layers = {path: layer_title(path, is_pair=one.is_pair) for path in deciding_layers(one)}
    look: dict[str, Any] = {"label_visibility": "collapsed", "width": "content"}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        many = {"widget": st.selectbox, "width": 180} if len(layers) > MOST_BUTTONS else {}
        path = choose("layer", layers, list(layers)[-1], "Layer", key="compare_layer", **(look | many))
        n_heads = one[f"{path}.pattern"].shape[1]
        numbers = {str(head): str(head) for head in range(1, n_heads + 1)}
        heads = {"mean": "mean of heads"} | numbers if n_heads > 1 else numbers
        asked = choose("head", heads, next(iter(heads)), "Head", key="compare_head", **look)
    head = MEAN if asked == "mean" else int(asked) - 1
    options = {
        "layer": [site.path for site in one.attention].index(path),
        "head": head,
        "max_blocks": MAX_BLOCKS,
    }
    names = [reading.subject.name for reading in two]
    titles = {
        "one": names[0] if len(names[0]) <= ONE_LINE else names[0][0],
        "other": names[1] if len(names[1]) <= ONE_LINE else names[1][0],
        "difference": f"Difference: {names[1][0]} − {names[0][0]}",
    }
    frame = table(comparison, analysis.pattern_difference, two, **options)
    calls = [Call(viz.pattern_difference, (two,), {**options, "show": show, "table": frame}) for show in titles]
    for place, call, title in zip(st.columns(3, gap="small"), calls, titles.values(), strict=True):
        with place:
            st.markdown(f"**{escape_markdown(title)}**")
            shown(comparison, call, f"compare_cells_{call.options['show']}")
    st.caption(_summary(frame, names[0][0], names[1][0], comparison.unit))
    which = "the mean of its heads" if head == MEAN else f"head {head + 1}"
    size = frame["key_end"].iloc[0] - frame["key"].iloc[0] + 1
    blocks = (
        f" These are large patterns, so a cell stands for {size} queries and {size} keys: the weights on its keys are added "
        "up, and averaged over its queries."
        if size > 1
        else ""
    )
    st.caption(
        f"Who looks at whom in {layers[path]}, {which}: the row with ▶ decided {comparison.unit} {step}. In "
        f"the difference, blue is where the second looks more, orange where it looks less. Grey cells are masked.{blocks}"
    )
    footer(comparison, "patterns", calls, frame)
    return {"layer": path, "head": asked}


def _summary(frame: pd.DataFrame, a: str, b: str, unit: str) -> str:
    """The largest difference of two patterns, in words."""
    largest = frame.loc[frame["difference"].abs().idxmax()]
    if abs(largest["difference"]) < ROUNDING:
        return f"{a} and {b} look alike here, to within {ROUNDING:g}: any difference is in what they do with it."
    row = frame.loc[frame["decides"]]
    here = row.loc[row["difference"].abs().idxmax()]
    is_pooled = largest["query"] != largest["query_end"]
    deciding = f"rows with the one that decided this {unit}" if is_pooled else f"row that decided this {unit}"
    return (
        f"The largest difference is {largest['difference']:+.3f}, from query {_span(largest, 'query')} to key "
        f"{_span(largest, 'key')}; in the {deciding} it is {here['difference']:+.3f}, to key {_span(here, 'key')}"
        + ("." if is_pooled else f" ({escape_markdown(str(here['key_token']))}).")
    )


def _span(row: pd.Series, at: str) -> str:
    """A position, or the block of positions from its first to its last."""
    first, last = row.to_dict()[at], row.to_dict()[f"{at}_end"]
    return str(first) if first == last else f"{first}–{last}"


MAX_KEYS = 48
"""Keys of a row that are drawn one by one; longer rows are drawn in blocks."""

CLEAREST_HEADS = 12
"""Of more than `ALL_ROWS` heads those that tell most."""


def rows_panel(comparison: Compared, step: int, readings: Sequence[Reading], two: tuple[int, int]) -> None:
    """The row that decided, in every layer and head of every player; of many heads those in which the `two` differ."""
    options = {"pair": two, "n_heads": CLEAREST_HEADS, "max_keys": MAX_KEYS}
    st.markdown(_rows_summary(comparison, step, readings, two))
    kinds = list(dict.fromkeys(Site.parse(path).does for one in readings for path in deciding_layers(one)))
    frame = table(comparison, analysis.decision_rows, readings, **options)
    calls = []
    for does in kinds:
        places = [place for _ in range(0, len(readings), 2) for place in st.columns(2, gap="medium")]
        for index, (place, reading) in enumerate(zip(places, readings, strict=False)):
            name = escape_markdown(reading.subject.name)
            with place:
                if does not in {Site.parse(path).does for path in deciding_layers(reading)}:
                    st.caption(f"{name} has no {does} here.")
                    continue
                st.markdown(f"**{name}**" if len(kinds) == 1 else f"**{name}: {does}**")
                calls.append(
                    Call(viz.decision_rows, (readings,), {**options, "show": index, "does": does, "table": frame})
                )
                shown(comparison, calls[-1], f"compare_look_{does}_{index}")
    footer(comparison, "rows", calls, lambda: heads_from_1(frame, no_head="mean"))


def _rows_summary(comparison: Compared, step: int, readings: Sequence[Reading], two: tuple[int, int]) -> str:
    """What the rows are, and which of them where not all are drawn."""
    what = f"**The row that decided {comparison.unit} {step}**"
    layers = [[one[f"{path}.pattern"].shape[1] for path in deciding_layers(one)] for one in readings]
    if max(sum(n_heads + 1 for n_heads in of_one) for of_one in layers) <= ALL_ROWS:
        return f"{what}, in every layer and head."
    one, other = (readings[at] for at in two)
    which = (
        f"in which {one.subject.name[0]} and {other.subject.name[0]} differ most"
        if why_incomparable(one, other) is None
        else "that look at one key most of all"
    )
    return (
        f"{what}, in the {CLEAREST_HEADS} heads {which}; the CSV has the same rows, "
        "“where they looked” every layer and head."
    )


def lens_panel(comparison: Compared, step: int, readings: Sequence[Reading], two: tuple[int, int]) -> None:
    """Draw the lens of everyone at the position that decided a step; the rule is where the `two` part."""
    sentence, parts = lens_sentence(comparison, step, [readings[at] for at in two])
    st.markdown(sentence)
    known = "✓ marks the right token, the" if readings[0].has_right_answer else "The"
    line = "; below the line the two differ to the end" if parts else ""
    st.caption(
        "What the stream would say if it stopped there, from the embedding down to the output (the logit lens). "
        f"{known} colour how sure it is{line}."
    )
    shapes: dict[tuple[str, ...], list[Reading]] = {}
    for reading in readings:
        points = tuple(table(comparison, analysis.decision_lens, [reading])["point"])
        shapes.setdefault(points, []).append(reading)
    calls = []
    widths = [len(group) + 1 for group in shapes.values()]  # the names of the points take the room of a player
    for place, group in zip(st.columns(widths, gap="medium"), shapes.values(), strict=True):
        pair = tuple(group.index(readings[at]) for at in two if readings[at] in group)
        calls.append(Call(viz.decision_lens, (group,), {"pair": pair} if parts and len(pair) == 2 else {}))
        with place:
            shown(comparison, calls[-1], f"compare_lens_{len(calls) - 1}")
    footer(comparison, "lens", calls, lambda: table(comparison, analysis.decision_lens, readings))


def lens_sentence(comparison: Compared, step: int, two: Sequence[Reading]) -> tuple[str, bool]:
    """Where the two part in the lens, in words, and whether they do."""
    a, b = (reading.subject.name[0] for reading in two)
    both = table(comparison, analysis.decision_lens, two)
    try:
        divergence = lens_divergence(both)
    except InputError as error:
        return escape_markdown(str(error)), False
    if divergence is None:
        return f"In the lens {a} and {b} end in the same likeliest token at {comparison.unit} {step}.", False
    depth, point = divergence
    said = [escape_markdown(str(token)) for token in both.loc[both["depth"] == depth, "token"]]
    return (
        f"At {comparison.unit} {step} the likeliest tokens of {a} and {b} differ to the end from **{point}** on: "
        f"{said[0]} against {said[1]}.",
        True,
    )


AT_ONCE = 1.2
"""Seconds that the panel may take before it says how far it is."""

WORTH_A_WORD = 0.1
"""A part that restores less than this share carries nothing worth a sentence."""

WHERE = {"here": "at the deciding position", "everywhere": "at all positions"}


def patching_panel(comparison: Comparison, step: int, two: Sequence[Reading]) -> dict[str, str]:
    """Draw both directions and the table; or say in one sentence why nothing can be copied."""
    where = choose("copied", WHERE, "here", "Copied", key="compare_copied", label_visibility="collapsed")
    frame = _frame(comparison, step, two, where)
    if frame is None:
        return {"copied": where}
    st.markdown(result(frame))
    options = {"everywhere": where == "everywhere", "table": frame}
    calls = [Call(viz.patching, (two,), {**options, "out_of": out_of}) for out_of in (0, 1)]
    for place, call in zip(st.columns(2, gap="medium"), calls, strict=True):
        with place:
            shown(comparison, call, f"compare_patch_{call.options['out_of']}")
    st.caption(
        "Share of the logit difference between the two answers that a copy restores: 0 leaves the run as it was, 1 makes it "
        "the other's; beyond both ends is possible. ⇒ marks a copy that turns the answer."
    )
    st.dataframe(
        frame.drop(columns="difference"),
        hide_index=True,
        height=260,
        column_config={"restored": st.column_config.NumberColumn(format="%+.4f", help="The share that it carries.")},
        key="compare_patch_table",
    )
    footer(comparison, "patching", calls, heads_from_1(frame, 1))
    return {"copied": where}


def result(frame: pd.DataFrame) -> str:
    """What the copies say, in one sentence: the smallest part each way that carries most, where one carries anything."""
    words = []
    for _, part in frame.groupby(["source", "into"], sort=False):
        heads = part[part["component"] != "residual"]
        best = (heads if len(heads) else part).iloc[0]
        a, b = str(best["source"])[0], str(best["into"])[0]
        if abs(best["restored"]) < WORTH_A_WORD:
            words.append(
                f"no part of {a} but the whole stream restores as much as {WORTH_A_WORD:g} of the difference in {b}"
            )
            continue
        turns = (
            f" and turns the answer to {escape_markdown(str(best['says']))}"
            if best["turns"]
            else " and does not turn the answer"
        )
        words.append(
            f"**{best['part']}** of {a} copied into {b} restores {best['restored']:+.2f} of the difference{turns}"
        )
    sentence = "; ".join(words) + "."
    return sentence[0].upper() + sentence[1:]


def _frame(comparison: Comparison, step: int, two: Sequence[Reading], where: str) -> pd.DataFrame | None:
    """The frame of both directions; None while it is being made, and where it cannot be, which is said."""
    about = "|".join([comparison.about, str(step), *(reading.subject.name for reading in two), where])
    job = state().work_on("patching", about, lambda: copying(two, everywhere=where == "everywhere"), AT_ONCE)
    if job.problem:
        st.info(escape_markdown(job.problem), icon=":material/content_copy:")
        return None
    report = job.latest
    if report is not None and report.frame is not None:
        return report.frame
    done, total = (0, 1) if report is None else (report.done, report.total)
    progress(job, "compare_patch", done / total, f"{done} of {total} copies")
    return None


SAMPLES = (1000, 5000, 20000)

DRAW = 1
"""The seed of the inputs: the same for everybody, so that a link shows the same numbers."""

PICTURES = (("position", "token"), ("position", "exact"), ("length", "exact"))


def many_panel(comparison: Comparison) -> dict[str, str]:
    """Count a little in every run of the page, and draw what has been counted so far."""
    seed("samples", SAMPLES, SAMPLES[0], key="compare_samples")
    job = state().job("many", comparison.players)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="compare_many_bar"):
        samples = st.segmented_control(
            "Inputs",
            SAMPLES,
            format_func=lambda n: f"{n:,} inputs",
            required=True,
            key="compare_samples",
            persist_state="session",
            label_visibility="collapsed",
            width="content",
        )
        st.button(
            "Count",
            type="primary",
            key="compare_count",
            on_click=_start,
            args=(comparison,),
            icon=":material/functions:",
        )
        if job is not None and job.is_running:
            job.advance()
        report: Agreement | None = None if job is None else job.latest
        if job is not None and report is not None:
            st.progress(report.done / report.samples, f"{report.done:,} of {report.samples:,}", width=240)
            if job.is_running:
                st.button("Cancel", key="compare_count_cancel", on_click=job.cancel)
    if job is not None and job.problem:
        st.info(escape_markdown(job.problem), icon=":material/functions:")
    elif report is None:
        st.caption(
            f"Fresh inputs of the task {comparison.input.name}, none of them trained on, the same for all. Each player’s "
            "likeliest token is counted, given the right answer so far; no dice are thrown and no tokens replaced."
        )
    else:
        _show(comparison, report)
    return {"samples": str(samples)}


def _start(comparison: Comparison) -> None:
    samples = int(st.session_state["compare_samples"])
    work = count_agreement(comparison.contenders(), samples=samples, seed=DRAW)
    state().begin("many", comparison.players, work)


def _show(comparison: Comparison, counted: Agreement) -> None:
    st.markdown(_many_summary(counted, has_right_answer=comparison.has_right_answer))
    calls = [Call(viz.accuracy, (counted,), {"by": by, "measure": measure}) for by, measure in PICTURES]
    for index, (place, call) in enumerate(zip(st.columns(3, gap="medium"), calls, strict=True)):
        with place:
            shown(comparison, call, f"compare_share_{index}")
    footer(comparison, "accuracy", calls, lambda: _whole(counted))
    st.caption(
        "Bands are 95 % intervals (Wilson 1927). Left: each token by its place in the answer; middle: all right up to "
        "there; right: whole answers by length."
    )
    st.markdown("**How often two say the same**")
    st.dataframe(
        analysis.same_answers(counted),
        hide_index=True,
        column_config={name: st.column_config.NumberColumn(format="percent") for name in ("share", "low", "high")},
        key="compare_pairs",
    )
    footer(comparison, "pairs", [Call(analysis.same_answers, (counted,))])
    st.markdown("**What is said for what is right**")
    calls = [Call(viz.confusion, (counted,), {"player": name}) for name in comparison.names]
    for index, (place, call) in enumerate(zip(st.columns(len(calls), gap="small"), calls, strict=True)):
        with place:
            st.markdown(f"**{escape_markdown(comparison.names[index])}**")
            shown(comparison, call, f"compare_confusion_{index}")
    footer(comparison, "confusion", calls, lambda: analysis.confusion(counted))


def _whole(counted: Agreement) -> pd.DataFrame:
    """Every accuracy in one table."""
    by = {
        by: analysis.accuracy(counted, by).rename(columns={by: "at"}).assign(by=by)
        for by in ("all", "position", "length")
    }
    return pd.concat(by.values(), ignore_index=True)


def _many_summary(counted: Agreement, *, has_right_answer: bool) -> str:
    """Accuracies and agreement in words; of texts how often it is the very next token, which nobody calls right."""
    measure = "exact" if has_right_answer else "token"
    figures, pairs = (
        frame.loc[frame["measure"] == measure].to_dict("records")
        for frame in (analysis.accuracy(counted), analysis.same_answers(counted))
    )
    words = [
        f"**{row['player'][0]}** {percent(row['share'], 1)} ({percent(row['low'], 1)} to {percent(row['high'], 1)})"
        for row in figures
    ]
    together = [f"{row['one'][0]} and {row['other'][0]} {percent(row['share'], 1)}" for row in pairs]
    what = (
        "Whole answers right of"
        if has_right_answer
        else "The next token of the text, likeliest of all to them, in windows:"
    )
    agree = "The same answer" if has_right_answer else "The same token"
    return f"{what} {counted.done:,}: {', '.join(words)}. {agree}: {', '.join(together)}."


LENGTHS_AT_ONCE = 0.3
"""Seconds of counting before anything is drawn."""


def lengths_panel(comparison: Comparison) -> None:
    """Draw the curves as far as they are counted; the sentence when they are complete."""
    contenders = comparison.contenders()
    job = state().work_on("lengths", comparison.players, lambda: comparing_lengths(contenders), LENGTHS_AT_ONCE)
    found: LengthsDone | None = job.latest
    if found is None:
        st.info(escape_markdown(job.problem), icon=":material/info:")
        return
    table = found.frame()
    if found.is_final:
        st.markdown(sentence(table))
    else:
        words = f"{found.done} of {found.total} lengths"
        progress(job, "compare_lengths_bar", found.done / found.total, words, f"{words} are counted.")
    unit = comparison.input.task.rule.unit
    call = Call(viz.lengths_compared, (contenders,), {"unit": unit, "table": table})
    shown(comparison, call, "compare_lengths")
    st.caption(
        f"{found.rows[0]['samples']} fresh inputs of each length, the same for all players, each under its own changes; bands "
        "are 95 % intervals. Points are filled where a player’s training had inputs of that length."
    )
    footer(comparison, "lengths", [call], lambda: table)


def sentence(table: pd.DataFrame) -> str:
    """How far each player goes beyond its training, in words; nothing of one that has not mastered what it was trained on."""
    least, words = percent(HIGH, 0), []
    for name, own in table.groupby("player", sort=False):
        letter = str(name).split(" ")[0]
        far = how_far(own) if has_mastered_its_training(own) else None
        if far is not None:
            words.append(f"**{letter}** up to {far}")
    return f"At least {least} right at every length from its training on: {', '.join(words)}." if words else ""
