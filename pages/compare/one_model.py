"""Comparisons within one model: activation patching between two inputs, and steering."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compare.comparison import SMALLEST_SHARE, state
from pages.components.elements import Lane, prediction_strip
from pages.compute import cached_runs, models
from pages.compute.background_job import (
    OnStep,
    describe_estimates,
    follow_measuring,
    interruptible_progress,
    measuring_job,
)
from pages.compute.byte_cache import shared
from pages.compute.call import PictureContext, picture_call
from pages.compute.picture import footer, shown, table, toolbar
from pages.controls.text import caption, escape_markdown, headline, signed
from pages.controls.widgets import ask_token, choose, seed, validate_text
from pages.state import link as link_of_screen
from pages.state.inputs import MAX_TYPED, can_read, lane_of, offer_examples
from pages.state.link import keep_widget_value, take_parameter
from pages.state.session import ScreenSelection, ask_model, wait_until_open
from xformer import analysis, viz
from xformer.adapters import ModelAdapter, TaskModel
from xformer.analysis.activation_patching import Measured, PartKind, cells, measured, measuring
from xformer.analysis.differences import GeneratedText, first_difference
from xformer.analysis.generation import steering_steps
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
PARTS = {"stream": "stream", "head": "heads", "neurons": "neurons"}
METHODS = {"exact": "measured", "quick": "estimated"}
CELLS = {
    "stream": "A cell is the residual stream at one position, after one layer.",
    "head": "A cell is one head, at all positions.",
    "neurons": "A cell is a group of neighbouring neurons, at all positions.",
}
STANDS_OUT = 1.5
"""A component stands out where it carries this many times as much as the next."""
HALF = 0.5
CELL, MAP = "pair_cell", "compare_map"
N = 16
"""Tokens per continuation; each steered token takes a full run."""
SCALES = [scale / 4 for scale in range(-20, 21)]
DEFAULT_DEPTH = 0.7
TEXTS = {"towards": "It was terrible", "away": "It was wonderful"}
TEXTS_OF_CHARACTERS = {"towards": "THE CLASS OF", "away": "the class of"}
LABELS = {"input": "Text", "towards": "Towards", "away": "Away from"}


def one_model(selection: ScreenSelection, draw: Callable[..., None]) -> None:
    """Draw a panel about one model, chosen in the sidebar.

    Args:
        selection: The state of the other screens.
        draw: Called with the selection, the model, its name, and a dict to which it adds what the link keeps.
    """
    with st.sidebar:
        model = ask_model()
    if problem := wait_until_open(model) or models.usable(model):
        st.error(escape_markdown(problem))
        return
    link: dict[str, str] = {}
    try:
        draw(selection, models.adapter(model), model, link)
    except XformerError as error:
        st.info(escape_markdown(str(error)), icon=":material/info:")
    text = str(st.session_state.get(FIRST, selection.input))
    link_of_screen.share(replace(selection, model=model, input=text).link | link)


def pairs_panel(selection: ScreenSelection, adapter: ModelAdapter, model: str, link: dict[str, str]) -> None:
    """Ask for the pair and draw its patching map."""
    try:
        sources = _ask_inputs(adapter, model)
    finally:
        link["other"] = str(st.session_state[SECOND])
    one, other = (cached_runs.run(model, source) for source in sources)
    if reason := pair_incompatibility(one, other):
        raise InputError(reason)
    finding = st.container()
    with toolbar():
        part = cast(PartKind, choose("part", PARTS, "Part", key="pair_part", hide_label=True))
        cell_at = st.container(width=210)
        with st.popover("More", key="pair_more"):
            pair = _ask_measure(one, other)
            method = choose("method", METHODS, "Values", key="pair_method")
    link["output"] = str(pair.position)
    link |= _map(PictureContext(model), pair, part, method, finding, cell_at)
    if selection.edits or selection.mask != cached_runs.MASKS[0]:
        st.caption("This is the model as trained, without the mask and the changes of the other screens.")


def _ask_inputs(adapter: ModelAdapter, model: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ask for the two inputs; return their tokens. Raises `InputError` where one cannot be read."""
    _begin(adapter, model)
    for label, key in (("First input", FIRST), ("Second input", SECOND)):
        st.sidebar.text_input(label, key=key, persist_state="session", help=adapter.input.format_hint)
    with st.sidebar.container(horizontal=True, gap="small"):
        st.button("", icon=":material/swap_horiz:", key="pair_swap", help="Swap the two inputs", on_click=_swap)
        _examples(adapter, model)
    return _read(adapter, FIRST), _read(adapter, SECOND)


def _begin(adapter: ModelAdapter, model: str) -> None:
    """Fill the text fields from the link, else as typed, else with a second input that is proposed for the first."""
    session, wanted, visit_state = st.session_state, take_parameter("other"), state()
    if model != visit_state.pair_model:  # it may not be able to read text typed for another model
        session.update({key: "" for key in (FIRST, SECOND) if not can_read(adapter, str(session.get(key, "")))})
        visit_state.pair_model = model
    session[FIRST] = session.get(FIRST) or adapter.input.default
    if wanted is not None:
        session[SECOND] = wanted
    elif session.get(SECOND, "") in ("", visit_state.pair_proposed):
        session[SECOND] = visit_state.pair_proposed = propose(adapter, model, str(session[FIRST]))
    keep_widget_value(FIRST)
    keep_widget_value(SECOND)


def propose(adapter: ModelAdapter, model: str, text: str) -> str:
    """Propose a second input; return `text` itself where no change of one token is known to matter."""

    def make() -> str:
        if not can_read(adapter, text):
            return text
        source = adapter.input.read(text)
        if adapter.shape.image and not adapter.input.no_sample_reason:  # changing one patch does not make another digit
            answer, drawn = adapter.to_example(source).answer, map(adapter.input.random, range(IMAGES_TRIED))
            return next((one for one in drawn if adapter.to_example(adapter.input.read(one)).answer != answer), text)
        other = one_token_changed(adapter, source)
        return text if other is None else adapter.input.text(other)

    return shared.get(("second input", model, text), make)


def _examples(adapter: ModelAdapter, model: str) -> None:
    drawer = st.popover("Pairs", key="pair_examples", on_change="rerun")
    if not drawer.open:  # the examples take a moment to compute
        return
    with drawer:
        found: dict[str, tuple[str, str]] = shared.get(("pairs", model), lambda: pairs(adapter))
        if not found:
            st.caption("No pairs are known for this model. Type two inputs that differ in one token.")
        offer_examples(found, _set_texts, key="pair_example")


def _read(adapter: ModelAdapter, key: str) -> tuple[int, ...]:
    try:
        return adapter.input.read(validate_text(st.session_state[key], MAX_TYPED))
    except InputError as error:
        raise InputError(f"The {'first' if key == FIRST else 'second'} input: {error}") from None


def _set_texts(one: str, other: str) -> None:
    st.session_state[FIRST], st.session_state[SECOND] = one, other


def _swap() -> None:
    _set_texts(str(st.session_state[SECOND]), str(st.session_state[FIRST]))


def _show_tokens(one: Reading, other: Reading) -> None:
    """Show the tokens of both inputs, one input below the other, with the differences marked."""
    lanes = []
    for stack in stacks_of(one):
        moved = differing(one, other, stack)
        verb = "writes" if one.is_encoder_decoder and stack == "decoder" else "reads"
        first, second = (reading.tokens_of(stack) for reading in (one, other))
        lanes.append(Lane(f"First {verb}", first))
        lanes.append(Lane(f"Second {verb}", second, moved=tuple(at in moved for at in range(len(second)))))
    prediction_strip(lanes, key="pair_tokens")


def _ask_measure(one: Reading, other: Reading) -> MinimalPair:
    """Ask for the output position and the two answers whose logits are compared. Raises `InputError`."""
    about = f"{one.code} {other.code}"
    if st.session_state.get("pair_measured", about) != about:  # the choices belong to other inputs
        for key in ("output", "answer", "instead"):
            st.session_state.pop(key, None)
    st.session_state["pair_measured"] = about
    default, tokens, labels = differing_output(one, other), one.tokens_of(one.output_stack), one.adapter.token_labels
    n, after = one.logits.shape[1], "" if one.adapter.shape.architecture == "encoder" else "after "
    names = tokens if len(tokens) == n else [""] * n
    positions = {str(at): f"{at} · {after}{name}" for at, name in enumerate(names)}
    at = int(choose("output", positions, "At output", default=str(default), widget=st.selectbox))
    one_token, other_token = usual_answers(one, other, at)
    help = "Empty: the most likely {} of the {} run."
    answer = ask_token(labels, "answer", one_token, "Logit of", help=help.format("token", "first"))
    rival = ask_token(labels, "instead", other_token, "minus logit of", help=help.format("other token", "second"))
    return MinimalPair.of(one, other, (answer, rival), at)


def _both_values(pair: MinimalPair) -> str:
    """Format the logit difference and both probabilities in both runs, as Markdown."""
    runs, labels = [], pair.reading.adapter.token_labels
    for which, run, value in (("First", pair.reading, pair.start), ("Second", pair.source, pair.goal)):
        p = run.logits[0, pair.position].softmax(dim=-1)  # [vocab]
        shares = (f"{escape_markdown(labels[token])} {percent(float(p[token]), 0)}" for token in pair.answers)
        runs.append(f"{which} **{signed(value)}** :small[:gray[{', '.join(shares)}]]")
    return f"{_logit_difference(pair)}: {' · '.join(runs)}"


def _logit_difference(pair: MinimalPair) -> str:
    return " − ".join(f"logit({escape_markdown(pair.reading.adapter.token_labels[token])})" for token in pair.answers)


def _map(
    context: PictureContext,
    pair: MinimalPair,
    part: PartKind,
    method: str,
    finding: DeltaGenerator,
    cell_at: DeltaGenerator,
) -> dict[str, str]:
    """Measure and draw the patching map, under its finding; return what the link keeps.

    Raises `InputError` where there is nothing to patch.
    """
    all_cells = cells(pair, part)
    options = {"part": part, "answers": pair.answers, "position": pair.position}
    estimated = table(context, analysis.patching_map, pair.reading, pair.source, **options)
    about = "|".join([context.model, str(pair.reading.code), str(pair.source.code), str(options)])
    known: Measured | None = shared.peek(("exact map", about))

    def work() -> Iterator[Measured]:
        return measuring(pair, all_cells, estimated["estimated"].tolist()) if known is None else iter([known])

    job = measuring_job("pair_job", about, work)
    shares = {} if job.latest is None else job.latest.shares
    both = estimated.assign(measured=pd.Series(shares, dtype=float))
    with finding:
        headline(map_headline(pair, both, part))
    with cell_at:
        chosen = _ask_cell(both, part, about)
    if job.latest is None or not job.latest.is_final:
        follow_measuring(job, "pair_exact", "cells")
    elif known is None:
        shared.put(("exact map", about), job.latest)
    exact = True if len(shares) == len(all_cells) else sorted(shares)
    options |= {"exact": exact, "show": METHODS[method], "chosen": chosen, "table": both}
    call = picture_call(viz.patching_map, pair.reading, pair.source, **options)
    shown(context, call, MAP, on_click=lambda cell: st.session_state.update({CELL: int(cell["cell"])}))
    footer(context, "patching", [call], both)
    grey = " Dark grey: not measured." if method == "exact" and exact is not True else ""
    caption(f"0: nothing changes; 1: the logit difference becomes that of the second input.{grey}")
    _explain(pair, part, both, chosen, all_cells[chosen])
    return {"cell": str(chosen)}


def _explain(pair: MinimalPair, part: PartKind, both: pd.DataFrame, chosen: int, cell: Any) -> None:
    """Describe the chosen cell, and how the map was made."""
    row = both.to_dict("records")[chosen]
    share = measured(pair, [cell])[0] if math.isnan(row["measured"]) else row["measured"]
    moves = f"moves {_logit_difference(pair)} from {signed(pair.start)} to {signed(pair.start + share * pair.gap)}"
    st.markdown(
        f"**{cell_name(row, part)}**: estimated {signed(row['estimated'], 3)}, measured **{signed(share, 3)}**. "
        f"Patching it alone {moves}."
    )
    _show_tokens(pair.reading, pair.source)
    with st.expander("How it is measured", key="pair_details"):
        st.markdown(_both_values(pair))
        st.markdown(
            f"{CELLS[part]} One cell at a time is replaced by its value in the second run, and the rest of the model is "
            "recomputed. The estimates come from a few backward passes (integrated gradients)."
        )
        st.markdown(describe_estimates(both, "cells"))


def _ask_cell(frame: pd.DataFrame, part: PartKind, about: str) -> int:
    """Ask for a cell, by a click in the map or in a list that begins with measured and large cells."""
    sizes = pd.DataFrame(frame.filter(["measured", "estimated"]).abs())
    order: list[int] = sizes.sort_values(by=["measured", "estimated"], ascending=False).index.tolist()
    if st.session_state.get(f"{CELL}_of", about) != about:
        st.session_state.pop(CELL, None)
    st.session_state[f"{CELL}_of"] = about
    seed("cell", order, order[0], key=CELL)
    names = [cell_name(row, part) for row in frame.to_dict("records")]
    ask = partial(st.selectbox, "Cells, the largest first", order, key=CELL, label_visibility="collapsed")
    return ask(format_func=lambda at: names[at], help="Click a cell of the map, or choose one here.")


def cell_name(row: Mapping[Hashable, Any], part: PartKind) -> str:
    """Return the name of a cell as Markdown, given its row of the table."""
    if part == "head":
        return f"{row['where']} · head {row['head'] + 1}"
    if part == "neurons":
        return f"{row['where']} · neurons {row['first_neuron']} to {row['last_neuron']}"
    return f"{row['where']} · position {row['position']} · {escape_markdown(str(row['token']))}"


def map_headline(pair: MinimalPair, table: pd.DataFrame, part: PartKind) -> str:
    """Describe what the measured cells of a map show; "" where it could be wrong."""
    return _path_sentence(pair, table) if part == "stream" else _largest_effect(table, part)


def _largest_effect(table: pd.DataFrame, part: PartKind) -> str:
    """Name the measured component that carries most of the difference, or state that none stands out."""
    rows = sorted(table.dropna(subset="measured").to_dict("records"), key=lambda row: -abs(row["measured"]))
    if len(rows) < 2:
        return ""
    (name, share), (next_name, rest) = ((cell_name(row, part), row["measured"]) for row in rows[:2])
    kind = "head" if part == "head" else "group of neurons"
    among = "" if len(rows) == len(table) else f" (of {len(rows)} measured)"
    if abs(share) < SMALLEST_SHARE:
        return f"No {kind}{among} alone carries a tenth of the difference."
    if abs(share) < STANDS_OUT * abs(rest):
        return f"No {kind}{among} stands out: {name} carries {signed(share)} of the difference, {next_name} {signed(rest)}."
    return f"**{name}** alone carries {signed(share)} of the difference, the next one {signed(rest)}{among}."


def _path_sentence(pair: MinimalPair, table: pd.DataFrame) -> str:
    """State up to which layer the changed position carries the difference, and from which one the output position does."""
    changed = differing(pair.reading, pair.source, pair.reading.output_stack)
    if pair.reading.is_encoder_decoder or len(changed) != 1 or changed[0] == pair.position:
        return ""
    if bool(table.loc[table["position"].isin([changed[0], pair.position]), "measured"].isna().any()):
        return ""
    begin, end = _carrying_layers(table, changed[0], first=True), _carrying_layers(table, pair.position, first=False)
    if not begin:
        return ""
    then = f", position {pair.position} from **{end[0]}** on." if end else "."
    return f"Position {changed[0]} carries the difference up to **{begin[-1]}**{then}"


def _carrying_layers(table: pd.DataFrame, position: int, *, first: bool) -> list[str]:
    """Return the layers after which a position carries half or more, if these are the first or the last ones; else none."""
    column = table[table["position"] == position]
    carries = (column["measured"] >= HALF).tolist()
    return column["where"][carries].tolist() if carries == sorted(carries, reverse=first) else []


def steering_panel(selection: ScreenSelection, adapter: ModelAdapter, model: str, link: dict[str, str]) -> None:
    """Ask for the text, the two texts of the direction, layer and scale; draw both continuations."""
    if not adapter.input.is_open_ended or adapter.shape.is_encoder_decoder:
        raise InputError("This model does not continue texts; choose one that does, like characters.")
    texts = {name: _ask_text(adapter, name) for name in LABELS}
    sources = [adapter.input.read(validate_text(one, MAX_TYPED)) for one in texts.values()]
    readings = tuple(cached_runs.run(model, source) for source in sources)
    finding = st.container()
    with toolbar():
        layer, scale = _ask_strength(adapter)
    link |= texts | {"layer": str(layer), "scale": f"{scale:g}"}
    context, how = PictureContext(model), {"layer": layer - 1, "scale": scale}
    with interruptible_progress("Decoding with steering") as step:
        scales = table(context, analysis.steering_by_scale, *readings, layer=layer - 1)
        by_scale = picture_call(viz.steering_by_scale, *readings, **how, table=scales)
        shown(context, by_scale, "compare_steering")
        own = cached_runs.decoded(model, tuple(readings[0].example.source))[:N]
        steered = shared.get(("steered", model, repr(link)), partial(_decode, *readings, step=step, **how))
    runs = {"unsteered": own, "steered": steered}
    at = first_difference(*(GeneratedText.of(adapter.input.decode, run) for run in runs.values()))
    what = "the continuation is the same" if at is None else f"the continuation differs from character **{at + 1}** on"
    with finding:
        headline(f"Steered after layer {layer} at scale {scale:g}, {what}.")
    prediction_strip([lane_of(adapter, name, run) for name, run in runs.items()], key="compare_steered")
    footer(context, "steered", [by_scale, picture_call(analysis.steered, *readings, **how, n=N)])
    with st.expander("How it is steered", key="steering_details"):
        st.markdown(
            "At every step, scale × (stream at the last token of “Towards” − stream at the last token of “Away from”) is added "
            "to the residual stream after that layer, at all positions (Turner et al. 2023; Rimsky et al. 2024). Decoding is "
            "greedy."
        )


def _ask_text(adapter: ModelAdapter, name: str) -> str:
    key, wanted = (name, None) if name == "input" else (f"steering_{name}", take_parameter(name))
    texts = TEXTS_OF_CHARACTERS if isinstance(adapter, TaskModel) else TEXTS
    if wanted is not None or not st.session_state.get(key):
        st.session_state[key] = wanted or texts.get(name, adapter.input.default)
    keep_widget_value(key)
    return str(st.sidebar.text_input(LABELS[name], key=key, persist_state="session"))


def _ask_strength(adapter: ModelAdapter) -> tuple[int, float]:
    """Ask for the layer, counted from 1, and the scale."""
    n = adapter.shape.n_layers
    layers = range(1, n + 1)
    seed("layer", layers, max(1, round(DEFAULT_DEPTH * n)), key="steering_layer")
    seed("scale", SCALES, 1.0, key="steering_scale")
    layer = st.select_slider("After layer", layers, key="steering_layer", width=320) if n > 1 else 1
    scale = st.select_slider("Scale", SCALES, format_func="{:g}".format, key="steering_scale", width=320)
    return layer, scale


def _decode(reading: Reading, towards: Reading, away: Reading, *, step: OnStep, **how: Any) -> cached_runs.Predictions:
    tokens = []
    for one in steering_steps(reading, towards, away, n=N, **how):
        tokens.append((one.token, one.probabilities[one.token].item()))
        step(len(tokens), N)
    return tuple(tokens)
