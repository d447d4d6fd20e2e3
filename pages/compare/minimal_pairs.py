"""Minimal pairs: two inputs through one model, and which of its parts carries the difference that they make."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compare.comparison import state
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import estimates, models, resources
from pages.shared import link as link_of_screen
from pages.shared.background_job import Job, follow
from pages.shared.byte_cache import shared
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.input_kinds.kind import MOST_TYPED
from pages.shared.layout import caption, what_to_notice
from pages.shared.link import asked, carry
from pages.shared.picture import footer, shown, table
from pages.shared.session import LookedAt, ask_model, wait_until_open
from pages.shared.widgets import ask_token, choose, not_here, typed
from xformer import analysis, viz
from xformer.adapters import ModelAdapter, TaskModel
from xformer.analysis.activation_patching import Cell, Measured, PartKind, cells, measuring
from xformer.analysis.activation_patching import measured as activation_patching_measured
from xformer.analysis.minimal_pairs import (
    MinimalPair,
    differing,
    one_token_changed,
    pairs,
    stacks_of,
    usual_answers,
    where_they_part,
    why_no_pair,
)
from xformer.errors import InputError, XformerError
from xformer.formatting import percent
from xformer.reading import Reading


def pairs_panel(looked: LookedAt, beside: DeltaGenerator) -> None:
    """Ask for the pair, show where it differs and what is measured, and draw the map; `beside` is room for buttons."""
    one_model(looked, ":material/compare_arrows:", partial(_pair, looked, beside))


def _pair(looked: LookedAt, beside: DeltaGenerator, subject: ModelAdapter, model: str, link: dict[str, str]) -> None:
    try:
        sources = ask_inputs(subject, model, beside)
    finally:
        link["other"] = str(st.session_state[SECOND])
    one, other = (resources.run(model, source) for source in sources)
    if why := why_no_pair(one, other):
        raise InputError(why)
    if looked.edits or looked.mask != resources.MASKS[0]:
        st.caption("The model is read as it was trained: what is changed on the other screens is left out here.")
    show_tokens(one, other)
    pair = ask_measure(one, other)
    link["output"] = str(pair.position)
    st.markdown(measured(pair))
    link |= map_panel(PairView(model), pair)


def one_model(looked: LookedAt, icon: str, draw: Callable[[ModelAdapter, str, dict[str, str]], None]) -> None:
    """Draw it once the model can be read; `draw` is given the model, its name, and the link to put into what it was asked."""
    with st.sidebar:
        model = ask_model()
    if problem := wait_until_open(model) or models.usable(model):
        st.error(escape_markdown(problem))
        return
    found: dict[str, str] = {}
    try:
        draw(models.subject(model), model, found)
    except XformerError as error:
        st.info(escape_markdown(str(error)), icon=icon)
    text = str(st.session_state.get("input", looked.input))
    link_of_screen.share(replace(looked, model=model, input=text).link | found)


FIRST, SECOND = "input", "pair_other"
"""The boxes; the first is the input of the other screens."""

_STATE = "pair_inputs"

DRAWN = 20
"""So many images are drawn to find one that shows something else."""


@dataclass
class _Proposed:
    """What this visit was proposed last: the second input follows the first until somebody types one."""

    model: str = ""
    second: str = ""


def ask_inputs(subject: ModelAdapter, model: str, beside: DeltaGenerator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two sources. Raises `InputError` with one sentence where one of them cannot be read."""
    _begin(subject, model)
    one, other = st.columns(2, gap="small")
    look: dict[str, Any] = {"persist_state": "session", "label_visibility": "collapsed", "help": subject.input.typed}
    one.text_input("First input", key=FIRST, icon=":material/looks_one:", **look)
    other.text_input("Second input", key=SECOND, icon=":material/looks_two:", **look)
    with beside:
        st.button("", icon=":material/swap_horiz:", key="pair_swap", help="Swap the two.", on_click=_swap)
        _examples(subject, model)
        if isinstance(subject, TaskModel) and not subject.input.missing and not subject.shape.image:
            st.button("Random", key="pair_random", on_click=_draw, args=(subject,))
    return _read(subject, FIRST, "first"), _read(subject, SECOND, "second")


def _begin(subject: ModelAdapter, model: str) -> None:
    """What stands in the boxes: what the link asks for, what was typed, or a second input that belongs to the first."""
    visit, wanted, proposed = st.session_state, asked("other"), _proposed()
    text = str(visit.get(FIRST, ""))
    if not text or (model != proposed.model and not _fits(subject, text)):
        visit[FIRST] = text = subject.input.default
    if wanted is not None:
        visit[SECOND] = wanted
    elif visit.get(SECOND, "") == proposed.second or (
        model != proposed.model and not _fits(subject, str(visit[SECOND]))
    ):
        visit[SECOND] = proposed.second = propose(subject, model, text)
    proposed.model = model
    carry(FIRST)
    carry(SECOND)


def propose(subject: ModelAdapter, model: str, text: str) -> str:
    """The second input to a first one: the same where no change is known to matter, or it cannot be read."""

    def make() -> str:
        try:
            other = one_token_changed(subject, subject.input.read(text))
        except InputError:
            return text
        if other is None and subject.shape.image:
            return _another_image(subject, text)
        return text if other is None else subject.input.text(other)

    return shared.get(("second input", model, text), make)


def _another_image(subject: ModelAdapter, text: str) -> str:
    """One that shows something else: no single patch makes another digit."""
    answer = subject.frame(subject.input.read(text)).answer
    drawn = (subject.input.random(seed) for seed in range(DRAWN if not subject.input.missing else 0))
    return next((other for other in drawn if subject.frame(subject.input.read(other)).answer != answer), text)


def _examples(subject: ModelAdapter, model: str) -> None:
    drawer = st.popover("Pairs", key="pair_examples", on_change="rerun")
    if not drawer.open:  # each takes a moment to be made
        return
    with drawer:
        found = shared.get(("pairs", model), lambda: pairs(subject))
        if not found:
            st.caption("No pairs are known for this model. Type two inputs that differ in a token.")
        for purpose, texts in found.items():
            st.button(
                purpose, on_click=_type, args=texts, width="stretch", type="tertiary", key=f"pair_example_{purpose}"
            )


def _read(subject: ModelAdapter, key: str, which: str) -> tuple[int, ...]:
    try:
        return subject.input.read(typed(st.session_state[key], MOST_TYPED))
    except InputError as error:
        raise InputError(f"The {which} input: {error}") from None


def _fits(subject: ModelAdapter, text: str) -> bool:
    try:
        subject.frame(subject.input.read(text))
    except InputError:
        return False
    return True


def _proposed() -> _Proposed:
    return st.session_state.setdefault(_STATE, _Proposed())


def _type(one: str, other: str) -> None:
    st.session_state[FIRST], st.session_state[SECOND] = one, other


def _swap() -> None:
    _type(str(st.session_state[SECOND]), str(st.session_state[FIRST]))


def _draw(subject: ModelAdapter) -> None:
    text = subject.input.random(random.getrandbits(32))
    _type(text, _proposed().second)  # a second one is made for it


_ABOUT = "pair_measured"


def show_tokens(one: Reading, other: Reading) -> None:
    """Both inputs, token under token; what differs is marked."""
    lanes = []
    for stack in stacks_of(one):
        moved = differing(one, other, stack)
        does = "writes" if one.is_pair and stack == "decoder" else "reads"
        tokens = [reading.tokens_of(stack) for reading in (one, other)]
        lanes.append(Lane(f"First {does}", tokens[0]))
        lanes.append(Lane(f"Second {does}", tokens[1], moved=tuple(at in moved for at in range(len(tokens[1])))))
    prediction_strip(lanes, key="pair_tokens")


def ask_measure(one: Reading, other: Reading) -> MinimalPair:
    """The output and the two answers; at first where they part, and what each says there. Raises `InputError`."""
    about = f"{one.recipe} {other.recipe}"
    if st.session_state.get(_ABOUT, about) != about:  # what was chosen was about other inputs
        for key in ("output", "answer", "instead"):
            st.session_state.pop(key, None)
    st.session_state[_ABOUT] = about
    usual, tokens, labels = where_they_part(one, other), one.tokens_of(one.output_stack), one.subject.labels
    n = one.logits.shape[1]
    names = tokens if len(tokens) == n else [""] * n
    places = {
        str(at): f"{at} · after {name}" if not _is_encoder(one) else f"{at} · {name}" for at, name in enumerate(names)
    }
    where, left, right = st.columns([2, 3, 3], gap="small", vertical_alignment="bottom")
    with where:
        at = int(choose("output", places, str(usual), "At output", widget=st.selectbox))
    said = usual_answers(one, other, at)
    with left:
        answer = ask_token(labels, "answer", said[0], "How far is", help="Empty: the first run’s likeliest token.")
    with right:
        instead = ask_token(labels, "instead", said[1], "ahead of", help="Empty: what the second run says instead.")
    return MinimalPair.of(one, other, (answer, instead), at)


def measured(pair: MinimalPair) -> str:
    """Both values of the measure, and what both runs believe, as Markdown."""
    names = _names(pair)
    said = []
    for which, run, value in (("First", pair.reading, pair.start), ("Second", pair.source, pair.goal)):
        p = run.logits[0, pair.position].softmax(dim=-1)
        shares = [f"{name} {percent(float(p[token]), 0)}" for name, token in zip(names, pair.answers, strict=True)]
        said.append(f"{which} **{signed(value)}** :small[:gray[{', '.join(shares)}]]")
    return f"{measure_name(pair)}: {' · '.join(said)}"


def measure_name(pair: MinimalPair) -> str:
    """What is measured, as Markdown."""
    return " − ".join(f"logit({name})" for name in _names(pair))


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _names(pair: MinimalPair) -> list[str]:
    return [escape_markdown(pair.reading.subject.labels[token]) for token in pair.answers]


def _is_encoder(reading: Reading) -> bool:
    return reading.subject.shape.architecture == "encoder"


WHAT = {
    "stream": "A cell is the stream at one position, after one layer.",
    "head": "A cell is one head, at all positions.",
    "neurons": "A cell is a group of neighbouring neurons of a layer, at all positions: each layer is cut into equal ones.",
}

WORTH_A_WORD = 0.1
"""A part that carries less of the difference is not named."""

APART = 1.5
"""So many times the next largest one carries what stands apart."""

HALF = 0.5

NEARLY_NOTHING = 0.005
"""Nothing is said to be so many times as much as that."""


def cell_name(row: Mapping[Hashable, Any], part: PartKind) -> str:
    """A cell in words, as Markdown; `row` is that of the table."""
    if part == "head":
        return f"{row['where']} · head {row['head'] + 1}"
    if part == "neurons":
        return f"{row['where']} · neurons {row['first_neuron']} to {row['last_neuron']}"
    return f"{row['where']} · position {row['position']} “{escape_markdown(str(row['token']))}”"


def map_notes(pair: MinimalPair, table: pd.DataFrame, part: PartKind) -> Iterator[str]:
    """The notes under a map, of what is measured in `table`."""
    if part == "stream":
        yield from _handed_over(pair, table)
    else:
        yield from _largest(table, part)


def _largest(table: pd.DataFrame, part: PartKind) -> Iterator[str]:
    """The part that carries most, if it is well above the next; else that none is. Only of parts that are measured."""
    there = table.dropna(subset="measured")
    if len(there) < 2:
        return
    rows = sorted(there.to_dict("records"), key=lambda row: -abs(row["measured"]))[:2]
    names, (share, rest) = [cell_name(row, part) for row in rows], [row["measured"] for row in rows]
    what = "head" if part == "head" else "group of neurons"
    among = "" if len(there) == len(table) else f" of the {len(there)} that are measured"
    if abs(share) < WORTH_A_WORD:
        yield f"No {what}{among} alone carries a tenth of the difference."
    elif abs(share) < APART * abs(rest):
        yield (
            f"No {what}{among} stands apart: {names[0]} carries {signed(share)} of the difference, {names[1]} {signed(rest)}."
        )
    else:
        more = f", {share / rest:.1f} times as much as the next" if share * rest >= NEARLY_NOTHING * abs(share) else ""
        yield f"**{names[0]}** alone carries {signed(share)} of the difference{more}{among}."


def _handed_over(pair: MinimalPair, table: pd.DataFrame) -> Iterator[str]:
    """Up to which layer the difference is at the position of the changed token, and from which on where the answer is given."""
    stack = pair.reading.output_stack
    changed = differing(pair.reading, pair.source, stack)
    if pair.reading.is_pair or len(changed) != 1 or changed[0] == pair.position:
        return
    if bool(table.loc[table["position"].isin([changed[0], pair.position]), "measured"].isna().any()):
        return
    begin, end = _carrying(table, changed[0], first=True), _carrying(table, pair.position, first=False)
    if begin:
        until = f"**{begin[-1]}**" + (
            f"; at position {pair.position}, which says it, from **{end[0]}** on." if end else "."
        )
        yield f"At position {changed[0]}, where they differ, the stream carries half of the difference or more up to {until}"


def _carrying(table: pd.DataFrame, position: int, *, first: bool) -> list[str]:
    """The layers after which a position carries half or more: one stretch from the first on, or one to the last; else none."""
    column = [row for row in table.to_dict("records") if row["position"] == position]
    carries = [row["measured"] >= HALF for row in column]
    is_one_stretch = carries == sorted(carries, reverse=first)
    return [row["where"] for row in column if row["measured"] >= HALF] if is_one_stretch else []


PARTS = {"stream": "stream × position", "head": "heads", "neurons": "neurons"}

METHODS = {"exact": "measured", "quick": "estimated"}

AT_ONCE = 1.5
"""Seconds of measuring before the page shows how far it is."""

BUDGET = 0.6
"""Seconds of it in one run of the page; a few cells of a large model take as long."""

PAIR_MAP_DRAWN = {
    "exact": "Measured by a run for each cell.",
    "quick": "Estimated for all cells from a few backward passes (integrated gradients); see above how far to trust that.",
}

JOB, CELL, MAP = "pair_map", "pair_cell", "pair_picture"


class PairView:
    """What the files and the kept tables of these pictures are named after."""

    def __init__(self, model: str) -> None:
        self.model = model


def map_panel(view: PairView, pair: MinimalPair) -> dict[str, str]:
    """Choose what is patched, measure it and draw it; what the link remembers. Raises `InputError` where there is nothing."""
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        part = cast(PartKind, choose("part", PARTS, "stream", "Part", key="pair_part", label_visibility="collapsed"))
        method = choose("method", METHODS, "exact", "Values", key="pair_method", label_visibility="collapsed")
        cell_at = st.container()
    of = cells(pair, part)
    options = {"part": part, "answers": pair.answers, "position": pair.position}
    estimated = table(view, analysis.patching_map, pair.reading, pair.source, **options)
    about = "|".join([view.model, str(pair.reading.recipe), str(pair.source.recipe), str(options)])
    job = _measure(pair, of, estimated["estimated"].tolist(), about)
    shares = {} if job.latest is None else job.latest.shares
    both = estimated.assign(measured=pd.Series(shares, dtype=float))
    with cell_at:
        chosen = _ask_cell(both, part, pair)
    st.markdown(_of_cell(pair, of[chosen], both.to_dict("records")[chosen], part, about))
    st.markdown(estimates.how_far_to_trust(both, "cells"))
    if job.problem:
        st.info(escape_markdown(job.problem), icon=":material/grid_on:")
    follow(job, partial(estimates.bar, job, "pair_exact", "cells"), BUDGET)
    exact = True if len(shares) == len(of) else sorted(shares)
    show = METHODS[method]
    grey = " Dark grey cells are not measured." if method == "exact" and exact is not True else ""
    call = Call(
        viz.patching_map,
        (pair.reading, pair.source),
        {**options, "exact": exact, "show": show, "chosen": chosen, "table": both},
    )
    shown(view, call, MAP, on_select=_follow_click, selection_mode="cell")
    caption(
        f"{WHAT[part]} Each alone is given what it was in the second run: 0 leaves the first run as it was, 1 makes it the "
        f"second’s, beyond both ends is possible. {PAIR_MAP_DRAWN[method]}{grey}"
    )
    footer(view, "patching", [call], both)
    if notes := list(map_notes(pair, both, part)):
        what_to_notice(notes)
    return {"cell": str(chosen)}


def _measure(pair: MinimalPair, of: list[Cell], first: list[float], about: str) -> Job[Measured]:
    """The measuring of all cells, as far as it is; what was measured in another visit is not measured again."""
    job: Job[Measured] | None = state().job(JOB, about)
    if job is None:
        known: Measured | None = shared.peek(("exact map", about))
        job = state().begin(JOB, about, measuring(pair, of, first) if known is None else iter([known]))
        estimates.begin(job, AT_ONCE)
    if job.latest is not None and job.latest.is_final and shared.peek(("exact map", about)) is None:
        shared.put(("exact map", about), job.latest)
    return job


def _ask_cell(frame: pd.DataFrame, part: PartKind, pair: MinimalPair) -> int:
    """The cell to measure: clicked in the map or chosen from the list; the measured ones come first, the largest first."""
    rows = frame.to_dict("records")
    sizes = pd.DataFrame(frame.filter(["measured", "estimated"]).abs())
    order = sizes.sort_values(by=["measured", "estimated"], ascending=False).index.tolist()
    about = (part, pair.reading.recipe, pair.source.recipe)
    wanted = asked("cell")
    if wanted is not None and not (
        wanted.isascii() and wanted.isdecimal() and len(wanted) < 7 and int(wanted) < len(frame)
    ):
        not_here("cell")
        wanted = None
    if wanted is not None:
        st.session_state[CELL] = int(wanted)
    elif st.session_state.get(f"{CELL}_of", about) != about or st.session_state.get(CELL) not in order:
        here = [
            at for at, row in enumerate(rows) if row.get("position") == pair.position and abs(row["measured"]) >= HALF
        ]
        st.session_state[CELL] = (here or order)[0]
    st.session_state[f"{CELL}_of"] = about
    names = {at: f"{cell_name(row, part)}: {_value(row)}" for at, row in enumerate(rows)}
    look: dict[str, Any] = {
        "key": CELL,
        "label_visibility": "collapsed",
        "help": "Click a cell of the map, or choose one here.",
    }
    return st.selectbox("Cell to measure, the largest first", order, format_func=names.__getitem__, **look)


def _value(row: Mapping[Hashable, Any]) -> str:
    """What a cell carries, measured where that is known."""
    missing = pd.isna(row["measured"])
    return f"estimated {signed(row['estimated'], 3)}" if missing else signed(row["measured"], 3)


def _follow_click() -> None:
    for cell in st.session_state[MAP]["selection"].get("cell", []):
        st.session_state[CELL] = int(cell["cell"])


def _of_cell(pair: MinimalPair, cell: Cell, row: Mapping[Hashable, Any], part: PartKind, about: str) -> str:
    """What becomes of the measure with this cell alone replaced, measured now."""
    share = shared.get(
        ("exact cell", about, cell.name, str(cell.where)), lambda: activation_patching_measured(pair, [cell])[0]
    )
    return (
        f"**{cell_name(row, part)}**: estimated {signed(row['estimated'], 3)}, measured **{signed(share, 3)}**. With it alone "
        f"put in, {measure_name(pair)} goes from {signed(pair.start)} to {signed(pair.start + share * pair.gap)}."
    )
