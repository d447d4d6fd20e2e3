"""Minimal pairs: two inputs of one model, and the components that carry the difference of their predictions."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compare.comparison import PictureContext, state
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import estimates, models, resources
from pages.shared import link as link_of_screen
from pages.shared.background_job import Job, follow
from pages.shared.byte_cache import shared
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.inputs import MOST_TYPED
from pages.shared.layout import caption, headline
from pages.shared.link import asked, carry
from pages.shared.picture import footer, shown, table, toolbar
from pages.shared.session import LookedAt, ask_model, wait_until_open
from pages.shared.widgets import ask_token, choose, not_here, typed
from xformer import analysis, viz
from xformer.adapters import ModelAdapter, TaskModel
from xformer.analysis.activation_patching import Cell, Measured, PartKind, cells, measured, measuring
from xformer.analysis.minimal_pairs import (
    MinimalPair,
    differing,
    differing_output,
    one_token_changed,
    pair_incompatibility,
    pairs,
    stacks_of,
    usual_answers,
)
from xformer.errors import InputError, XformerError
from xformer.formatting import percent
from xformer.reading import Reading

FIRST, SECOND = "input", "pair_other"
"""The keys of the text fields; the first is the input of the other screens."""
IMAGES_TRIED = 20
"""Images that are tried to find one with another answer."""
PARTS = {"stream": "stream", "head": "heads", "neurons": "neurons"}
METHODS = {"exact": "measured", "quick": "estimated"}
HOW = {
    "exact": "Measured by one run per cell.",
    "quick": "Estimated for all cells from a few backward passes (integrated gradients).",
}
WHAT = {
    "stream": "A cell is the residual stream at one position, after one layer; it carries the difference from ½ on.",
    "head": "A cell is one head, at all positions.",
    "neurons": "A cell is a group of neighbouring neurons, at all positions. All groups of a layer have the same size.",
}
AT_ONCE = 1.5
"""Seconds of measuring before the page shows a progress bar."""
BUDGET = 0.6
"""Seconds of measuring in one run of the page."""
SMALLEST_SHARE = 0.1
"""A component that carries a smaller share of the difference is not named."""
STANDS_OUT = 1.5
"""A component stands out where it carries this many times as much as the next."""
HALF = 0.5
SMALLEST_RATIO = 0.005
"""A ratio to a share that is relatively smaller than this is not stated."""
JOB, CELL, MAP = "pair_map", "pair_cell", "pair_picture"


def one_model(looked: LookedAt, icon: str, draw: Callable[[ModelAdapter, str, dict[str, str]], None]) -> None:
    """Draw a panel about one model, chosen in the sidebar.

    Args:
        looked: The state of the other screens.
        icon: The icon of a message where the panel cannot be drawn.
        draw: Called with the model, its name, and a dict for what the link keeps.
    """
    with st.sidebar:
        model = ask_model()
    if problem := wait_until_open(model) or models.usable(model):
        st.error(escape_markdown(problem))
        return
    link: dict[str, str] = {}
    try:
        draw(models.subject(model), model, link)
    except XformerError as error:
        st.info(escape_markdown(str(error)), icon=icon)
    text = str(st.session_state.get(FIRST, looked.input))
    link_of_screen.share(replace(looked, model=model, input=text).link | link)


def pairs_panel(looked: LookedAt) -> None:
    """Ask for the pair and draw its patching map."""
    one_model(looked, ":material/compare_arrows:", partial(_pair, looked))


def _pair(looked: LookedAt, subject: ModelAdapter, model: str, link: dict[str, str]) -> None:
    try:
        sources = _ask_inputs(subject, model)
    finally:
        link["other"] = str(st.session_state[SECOND])
    one, other = (resources.run(model, source) for source in sources)
    if reason := pair_incompatibility(one, other):
        raise InputError(reason)
    finding, bar = st.container(), toolbar()
    with bar:
        part = cast(PartKind, choose("part", PARTS, "stream", "Part", key="pair_part", label_visibility="collapsed"))
        cell_at = st.container(width=210)
        with st.popover("More", key="pair_more"):
            pair = _ask_measure(one, other)
            method = choose("method", METHODS, "exact", "Values", key="pair_method")
    link["output"] = str(pair.position)
    link |= _map(PictureContext(model), pair, part, method, finding, cell_at)
    if looked.edits or looked.mask != resources.MASKS[0]:
        st.caption("The model as it was trained, without the mask and the changes of the other screens.")


@dataclass
class _Proposed:
    """The last proposed second input: it follows the first one until the visitor types another."""

    model: str = ""
    second: str = ""


def _proposed() -> _Proposed:
    return st.session_state.setdefault("pair_inputs", _Proposed())


def _ask_inputs(subject: ModelAdapter, model: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The two inputs as tokens. Raises `InputError` where one cannot be read."""
    _begin(subject, model)
    look: dict[str, Any] = {"persist_state": "session", "help": subject.input.typed}
    st.sidebar.text_input("First input", key=FIRST, **look)
    st.sidebar.text_input("Second input", key=SECOND, **look)
    with st.sidebar.container(horizontal=True, gap="small"):
        st.button("", icon=":material/swap_horiz:", key="pair_swap", help="Swap the two inputs", on_click=_swap)
        _examples(subject, model)
        if isinstance(subject, TaskModel) and not subject.input.missing and not subject.shape.image:
            st.button("Random", key="pair_random", on_click=_draw, args=(subject,))
    return _read(subject, FIRST, "first"), _read(subject, SECOND, "second")


def _begin(subject: ModelAdapter, model: str) -> None:
    """Fill the text fields: from the link, else as typed, else with a second input proposed for the first."""
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
    """A second input for a first one; the same where no change of one token is known to matter."""

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
    """An image with another answer: no single patch makes another digit."""
    answer = subject.frame(subject.input.read(text)).answer
    drawn = (subject.input.random(seed) for seed in range(IMAGES_TRIED if not subject.input.missing else 0))
    return next((other for other in drawn if subject.frame(subject.input.read(other)).answer != answer), text)


def _examples(subject: ModelAdapter, model: str) -> None:
    drawer = st.popover("Pairs", key="pair_examples", on_change="rerun")
    if not drawer.open:  # the examples take a moment to compute
        return
    with drawer:
        found = shared.get(("pairs", model), lambda: pairs(subject))
        if not found:
            st.caption("No pairs are known for this model. Type two inputs that differ in a token.")
        look: dict[str, Any] = {"width": "stretch", "type": "tertiary"}
        for purpose, texts in found.items():
            st.button(purpose, on_click=_type, args=texts, key=f"pair_example_{purpose}", **look)


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


def _type(one: str, other: str) -> None:
    st.session_state[FIRST], st.session_state[SECOND] = one, other


def _swap() -> None:
    _type(str(st.session_state[SECOND]), str(st.session_state[FIRST]))


def _draw(subject: ModelAdapter) -> None:
    _type(subject.input.random(random.getrandbits(32)), _proposed().second)  # a second input is proposed for it


def _show_tokens(one: Reading, other: Reading) -> None:
    """Show both inputs token under token, with the differences marked."""
    lanes = []
    for stack in stacks_of(one):
        moved = differing(one, other, stack)
        verb = "writes" if one.is_pair and stack == "decoder" else "reads"
        first, second = (reading.tokens_of(stack) for reading in (one, other))
        lanes.append(Lane(f"First {verb}", first))
        lanes.append(Lane(f"Second {verb}", second, moved=tuple(at in moved for at in range(len(second)))))
    prediction_strip(lanes, key="pair_tokens")


def _ask_measure(one: Reading, other: Reading) -> MinimalPair:
    """Ask for the output position and the two answers whose logits are compared. Raises `InputError`."""
    about = f"{one.recipe} {other.recipe}"
    if st.session_state.get("pair_measured", about) != about:  # the choices belong to other inputs
        for key in ("output", "answer", "instead"):
            st.session_state.pop(key, None)
    st.session_state["pair_measured"] = about
    default, tokens, labels = differing_output(one, other), one.tokens_of(one.output_stack), one.subject.labels
    n, after = one.logits.shape[1], "" if one.subject.shape.architecture == "encoder" else "after "
    names = tokens if len(tokens) == n else [""] * n
    positions = {str(at): f"{at} · {after}{name}" for at, name in enumerate(names)}
    at = int(choose("output", positions, str(default), "At output", widget=st.selectbox))
    one_token, other_token = usual_answers(one, other, at)
    answer = ask_token(labels, "answer", one_token, "Logit of", help="Empty: the first run’s likeliest token.")
    other_answer = ask_token(
        labels, "instead", other_token, "minus logit of", help="Empty: the second run’s likeliest other token."
    )
    return MinimalPair.of(one, other, (answer, other_answer), at)


def _both_values(pair: MinimalPair) -> str:
    """The logit difference and both probabilities in both runs, as Markdown."""
    names, runs = _names(pair), []
    for which, run, value in (("First", pair.reading, pair.start), ("Second", pair.source, pair.goal)):
        p = run.logits[0, pair.position].softmax(dim=-1)  # [vocab]
        shares = [f"{name} {percent(float(p[token]), 0)}" for name, token in zip(names, pair.answers, strict=True)]
        runs.append(f"{which} **{signed(value)}** :small[:gray[{', '.join(shares)}]]")
    return f"{_logit_difference(pair)}: {' · '.join(runs)}"


def _logit_difference(pair: MinimalPair) -> str:
    return " − ".join(f"logit({name})" for name in _names(pair))


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign and a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _names(pair: MinimalPair) -> list[str]:
    return [escape_markdown(pair.reading.subject.labels[token]) for token in pair.answers]


def _map(
    context: PictureContext,
    pair: MinimalPair,
    part: PartKind,
    method: str,
    finding: DeltaGenerator,
    cell_at: DeltaGenerator,
) -> dict[str, str]:
    """Measure and draw the patching map, its finding above it; returns what the link keeps.

    Raises `InputError` where there is nothing to patch.
    """
    of = cells(pair, part)
    options = {"part": part, "answers": pair.answers, "position": pair.position}
    estimated = table(context, analysis.patching_map, pair.reading, pair.source, **options)
    about = "|".join([context.model, str(pair.reading.recipe), str(pair.source.recipe), str(options)])
    job = _measure(pair, of, estimated["estimated"].tolist(), about)
    shares = {} if job.latest is None else job.latest.shares
    both = estimated.assign(measured=pd.Series(shares, dtype=float))
    with finding:
        headline(map_headline(pair, both, part))
    with cell_at:
        chosen = _ask_cell(both, part, pair)
    if job.problem:
        st.info(escape_markdown(job.problem), icon=":material/grid_on:")
    if job.latest is None or not job.latest.is_final:
        follow(job, partial(estimates.bar, job, "pair_exact", "cells"), BUDGET)
    exact = True if len(shares) == len(of) else sorted(shares)
    options |= {"exact": exact, "show": METHODS[method], "chosen": chosen, "table": both}
    call = Call(viz.patching_map, (pair.reading, pair.source), options)
    shown(context, call, MAP, on_select=_follow_click, selection_mode="cell")
    footer(context, "patching", [call], both)
    grey = " Dark grey: not measured." if method == "exact" and exact is not True else ""
    caption(f"0: nothing changes; 1: the logit difference becomes that of the second input.{grey}")
    st.markdown(_of_cell(pair, of[chosen], both.to_dict("records")[chosen], part, about))
    _show_tokens(pair.reading, pair.source)
    with st.expander("How it is measured", key="pair_details"):
        st.markdown(_both_values(pair))
        st.markdown(f"{WHAT[part]} Each cell alone is replaced by its value in the second run. {HOW[method]}")
        st.markdown(estimates.how_far_to_trust(both, "cells"))
    return {"cell": str(chosen)}


def _measure(pair: MinimalPair, of: list[Cell], first: list[float], about: str) -> Job[Measured]:
    """The job that measures all cells; finished results are shared by all visits."""
    key = ("exact map", about)
    job: Job[Measured] | None = state().job(JOB, about)
    if job is None:
        known: Measured | None = shared.peek(key)
        job = state().begin(JOB, about, measuring(pair, of, first) if known is None else iter([known]))
        estimates.begin(job, AT_ONCE)
    if job.latest is not None and job.latest.is_final and shared.peek(key) is None:
        shared.put(key, job.latest)
    return job


def _ask_cell(frame: pd.DataFrame, part: PartKind, pair: MinimalPair) -> int:
    """The cell that is clicked in the map or chosen from the list, measured and large ones first."""
    rows = frame.to_dict("records")
    sizes = pd.DataFrame(frame.filter(["measured", "estimated"]).abs())
    order = sizes.sort_values(by=["measured", "estimated"], ascending=False).index.tolist()
    about, wanted = (part, pair.reading.recipe, pair.source.recipe), asked("cell")
    if wanted is not None and wanted.isascii() and wanted.isdecimal() and len(wanted) < 7 and int(wanted) < len(frame):
        st.session_state[CELL] = int(wanted)
    elif wanted is not None:
        not_here("cell")
    if st.session_state.get(CELL) not in order or (
        wanted is None and st.session_state.get(f"{CELL}_of", about) != about
    ):
        here = [
            at for at, row in enumerate(rows) if row.get("position") == pair.position and abs(row["measured"]) >= HALF
        ]
        st.session_state[CELL] = (here or order)[0]
    st.session_state[f"{CELL}_of"] = about
    names = {at: cell_name(row, part) for at, row in enumerate(rows)}
    look: dict[str, Any] = {"label_visibility": "collapsed", "help": "Click a cell of the map, or choose one here."}
    return st.selectbox("Cell, the largest first", order, format_func=names.__getitem__, key=CELL, **look)


def _follow_click() -> None:
    for cell in st.session_state[MAP]["selection"].get("cell", []):
        st.session_state[CELL] = int(cell["cell"])


def _of_cell(pair: MinimalPair, cell: Cell, row: Mapping[Hashable, Any], part: PartKind, about: str) -> str:
    """The logit difference with this cell alone replaced: estimated and measured."""
    share = shared.get(("exact cell", about, cell.name, str(cell.where)), lambda: measured(pair, [cell])[0])
    return (
        f"**{cell_name(row, part)}**: estimated {signed(row['estimated'], 3)}, measured **{signed(share, 3)}**. Replacing it "
        f"alone moves {_logit_difference(pair)} from {signed(pair.start)} to {signed(pair.start + share * pair.gap)}."
    )


def cell_name(row: Mapping[Hashable, Any], part: PartKind) -> str:
    """The name of a cell as Markdown; `row` is that of the table."""
    if part == "head":
        return f"{row['where']} · head {row['head'] + 1}"
    if part == "neurons":
        return f"{row['where']} · neurons {row['first_neuron']} to {row['last_neuron']}"
    return f"{row['where']} · position {row['position']} “{escape_markdown(str(row['token']))}”"


def map_headline(pair: MinimalPair, table: pd.DataFrame, part: PartKind) -> str:
    """The finding in the measured cells of a map; "" where it could be wrong."""
    return _moves(pair, table) if part == "stream" else _largest(table, part)


def _largest(table: pd.DataFrame, part: PartKind) -> str:
    """The component that carries most, where it stands out; else that none does. Only of measured components."""
    there = table.dropna(subset="measured")
    if len(there) < 2:
        return ""
    rows = sorted(there.to_dict("records"), key=lambda row: -abs(row["measured"]))[:2]
    names, (share, rest) = [cell_name(row, part) for row in rows], [row["measured"] for row in rows]
    kind = "head" if part == "head" else "group of neurons"
    among = "" if len(there) == len(table) else f" of the {len(there)} that are measured"
    if abs(share) < SMALLEST_SHARE:
        return f"No {kind}{among} alone carries a tenth of the difference."
    if abs(share) < STANDS_OUT * abs(rest):
        return f"No {kind}{among} stands out: {names[0]} carries {signed(share)} of the difference, {names[1]} {signed(rest)}."
    ratio = f", {share / rest:.1f} times as much as the next" if share * rest >= SMALLEST_RATIO * abs(share) else ""
    return f"**{names[0]}** alone carries {signed(share)} of the difference{ratio}{among}."


def _moves(pair: MinimalPair, table: pd.DataFrame) -> str:
    """The layer up to which the changed position carries the difference, and from which on the output position does."""
    changed = differing(pair.reading, pair.source, pair.reading.output_stack)
    if pair.reading.is_pair or len(changed) != 1 or changed[0] == pair.position:
        return ""
    if bool(table.loc[table["position"].isin([changed[0], pair.position]), "measured"].isna().any()):
        return ""
    begin, end = _carrying(table, changed[0], first=True), _carrying(table, pair.position, first=False)
    if not begin:
        return ""
    then = f", position {pair.position} from **{end[0]}** on." if end else "."
    return f"Position {changed[0]} carries the difference up to **{begin[-1]}**{then}"


def _carrying(table: pd.DataFrame, position: int, *, first: bool) -> list[str]:
    """The layers after which a position carries half or more, where they are the first or the last ones; else none."""
    column = [row for row in table.to_dict("records") if row["position"] == position]
    carries = [row["measured"] >= HALF for row in column]
    is_one_stretch = carries == sorted(carries, reverse=first)
    return [row["where"] for row in column if row["measured"] >= HALF] if is_one_stretch else []
