"""Positions: how does the model know where a token is? Switch it off, look at its own kind, then at all kinds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st
from torch import Tensor

from pages.shared import resources
from pages.shared.components.prediction_strip import prediction_strip
from pages.shared.lanes import lanes
from pages.shared.notebook import footer
from pages.shared.session import View, open_page, toggle_intervention
from xformer.analysis import positions as analysis
from xformer.analysis.embeddings import vector_table
from xformer.interventions import join
from xformer.layers.positions import sinusoidal
from xformer.viz import positions as viz
from xformer.viz.attention import layer_title
from xformer.viz.embeddings import MOST_CELLS, vector_heatmap

OFF = "positions:off"
MOST = "most"
SIDES = {"encoder": "source", "decoder": "target"}
NAMES = {
    "sinusoidal": "Sinusoidal",
    "learned": "Learned",
    "mirror": "Mirror",
    "rotary": "Rotary",
    "alibi": "ALiBi",
    "none": "None",
}


def page() -> None:
    view = open_page("Positions", "How does the model know where a token is?")
    config = view.checkpoint.config
    watch = _switch_off(view)
    side = None
    if config.positions in analysis.ADDED and config.architecture == "encoder-decoder":
        side = _side()
    is_off = any(change.text == OFF for change in view.interventions)
    st.subheader(
        f"How this model does it: {NAMES[config.positions]}{' (switched off just now)' if is_off else ''}", anchor=False
    )
    waves = _own_kind(view, side)
    _kinds(view, side)
    _what_to_notice(view, side)
    more = {"side": side} if side else {}
    view.share(watch=watch, **more, **({"waves": "-".join(map(str, waves))} if waves else {}))


# Off, in the running model


def _switch_off(view: View) -> str:
    original, changed = view.original(), view.changed()
    prediction_strip(lanes(view.task, original, changed, f"says, {_what(view)}"), key="strip")
    n = len(original.answer)
    if view.checkpoint.config.positions == "none":
        st.info("This model has no positions that could be switched off.", icon=":material/info:")
        return MOST
    is_off = any(change.text == OFF for change in view.interventions)
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        st.button(
            "Switch the positions back on" if is_off else "Switch the positions off in the running model",
            icon=":material/location_on:" if is_off else ":material/location_off:",
            type="secondary" if is_off else "primary",
            on_click=toggle_intervention,
            args=(OFF,),
            key="positions_off",
        )
        if changed is None:
            st.caption(f"{original.n_right} of {n} right, loss {original.loss:.4f} nats.", width="stretch")
        else:
            st.caption(
                f"With {_what(view)}, {changed.n_right} of {n} are right instead of {original.n_right}; the loss goes "
                f"from {original.loss:.4f} to {changed.loss:.4f} nats. Outlined tokens changed.",
                width="stretch",
            )
    without, off = _pair(view)
    moved = analysis.attention_moved(without.trace, off.trace)
    path, head, watch = _watched(view, moved)
    columns = st.columns([1, 1, 1] if changed is not None else [1, 1], gap="large")
    runs = [("as it is", original)] if changed is None else [("the model’s own run", original), (_what(view), changed)]
    for index, (column, (name, run)) in enumerate(zip(columns, runs, strict=False)):
        with column:
            _attention(view, run, path, head, name, index)
    with columns[-1]:
        _moved(view, moved)
    return watch


def _pair(view: View) -> tuple[resources.Run, resources.Run]:
    """The run without and with positions off, under whatever else is changed."""
    rest = tuple(change for change in view.interventions if change.text != OFF)
    off = ",".join(word for word in (join(rest), OFF) if word)
    return (
        resources.run(view.model, view.source, view.mask, join(rest)),
        resources.run(view.model, view.source, view.mask, off),
    )


def _watched(view: View, moved: pd.DataFrame) -> tuple[str, int, str]:
    """The head on show: the one that moves most, or the one chosen."""
    paths = list(dict.fromkeys(moved["layer"]))
    is_pair = view.checkpoint.config.architecture == "encoder-decoder"
    most = moved.loc[moved["moved"].idxmax()]
    names = {
        f"{paths.index(row.layer) + 1}.{row.head + 1}": f"{layer_title(row.layer, is_pair=is_pair)} · head {row.head + 1}"
        for row in moved.itertuples()
    }
    where = names[f"{paths.index(most['layer']) + 1}.{most['head'] + 1}"]
    options = {MOST: f"the one that moves most: {where}", **names}
    _seed("watch", list(options), MOST)
    chosen = st.selectbox(
        "Attention of", list(options), format_func=options.__getitem__, key="watch", persist_state="session", width=420
    )
    if chosen == MOST:
        return most["layer"], int(most["head"]), MOST
    layer, _, head = chosen.partition(".")
    return paths[int(layer) - 1], int(head) - 1, chosen


def _attention(view: View, run: resources.Run, path: str, head: int, name: str, index: int) -> None:
    label, example = view.task.vocabulary.labels, run.example
    tokens = [label[token] for token in example.stream[0].tolist()]
    target = tokens if example.target is None else [label[token] for token in example.target[0].tolist()]
    queries = target if path.startswith("decoder") else tokens
    keys = tokens if path.endswith("cross_attn") else queries
    table = analysis.pattern_table(run.trace, path, head, queries, keys)
    st.markdown(f"**{layer_title(path, is_pair=example.target is not None)} · head {head + 1}**, {name}")
    st.altair_chart(viz.pattern_heatmap(table, dark=_dark()), width="stretch", key=f"pattern_{index}")
    lines = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        f"queries, keys = {queries}, {keys}",
        f'table = analysis.pattern_table(trace, "{path}", {head}, queries, keys)',
        "viz.pattern_heatmap(table, dark=False)",
    ]
    footer(view, lines, table, f"pattern{'-changed' if index else ''}", changed=index > 0)


def _moved(view: View, moved: pd.DataFrame) -> None:
    is_pair = view.checkpoint.config.architecture == "encoder-decoder"
    table = moved.assign(where=[layer_title(path, is_pair=is_pair) for path in moved["layer"]], head=moved["head"] + 1)
    st.markdown("**How far each head’s attention moves** when positions go off")
    st.altair_chart(viz.moved_bars(table, dark=_dark()), width="stretch", key="moved")
    st.caption("0: it looks where it looked before. 1: nothing of it is left where it was.")
    lines = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        "off = xformer.record(checkpoint.model, trace.tokens, trace.target, edits=[xformer.edits.zero_positions()])",
        "moved = analysis.attention_moved(trace, off)",
        'table = moved.assign(where=moved["layer"], head=moved["head"] + 1)',
        "viz.moved_bars(table, dark=False)",
    ]
    footer(view, lines, moved, "moved", changed=False)


# The model's own kind


def _own_kind(view: View, side: str | None) -> list[int]:
    config = view.checkpoint.config
    if config.positions in analysis.ADDED:
        return _added(view, side)
    if config.positions == "none":
        st.caption("Nothing is added and nothing is turned. A causal mask is then all that tells order.")
        return []
    n = min(config.max_len, 64)
    left, right = st.columns(2, gap="large")
    if config.positions == "alibi":
        with left:
            _alibi(view, n, 300)
        with right:
            st.caption("Nothing is added to the vectors: each head takes its slope times the distance off its scores.")
        return []
    with left:
        _rotary_waves(view, n, 300)
    with right:
        _rotary_offset(view, n, 300)
    return []


def _added(view: View, side: str | None) -> list[int]:
    config = view.checkpoint.config
    is_mirror = config.positions == "mirror"
    n = _length(view, side) if is_mirror else min(config.max_len, 128)
    vectors = analysis.added_positions(view.checkpoint.model, n, side)
    assert vectors is not None
    trained = None if is_mirror else _longest_trained(view, side)
    trained = trained if trained is not None and trained < n else None
    lines = [
        "from xformer.analysis import positions as analysis",
        "from xformer.viz import positions as viz",
        f"vectors = analysis.added_positions(checkpoint.model, {n}, {side!r})",
    ]
    _seed_waves(config.d_model)
    left, right = st.columns([3, 2], gap="large")
    with left:
        waves = st.multiselect(
            "Dimensions", list(range(config.d_model)), key="waves", persist_state="session", max_selections=8
        )
        waves = waves or [0]
        table = analysis.curve_table(vectors, waves)
        st.altair_chart(viz.curves(table, dark=_dark(), trained=trained), width="stretch", key="curves")
        st.caption(
            _about_waves(view, trained) + " Click a dimension in the legend to pick it out, again to take it back."
        )
        footer(
            view,
            [*lines, f"viz.curves(analysis.curve_table(vectors, {waves}), dark=False, trained={trained})"],
            table,
            "curves",
        )
    with right:
        shown = vectors[: max(1, MOST_CELLS // config.d_model)]
        heat = vector_table(shown, [""] * len(shown))
        st.altair_chart(
            vector_heatmap(heat, dark=_dark(), rows="position", height=390), width="stretch", key="position_matrix"
        )
        st.caption(
            f"{'All' if len(shown) == config.max_len or is_mirror else 'The first'} {len(shown)} positions × "
            f"{config.d_model} dimensions: a row is what is added to the token that stands there."
        )
        footer(
            view,
            [
                "from xformer.analysis.embeddings import vector_table",
                "from xformer.viz.embeddings import vector_heatmap",
                *lines[:1],
                f"vectors = analysis.added_positions(checkpoint.model, {len(shown) if not is_mirror else n}, {side!r})",
                f'vector_heatmap(vector_table(vectors, [""] * {len(shown)}), dark=False, rows="position")',
            ],
            heat,
            "matrix",
        )
    used = vectors[:trained] if trained else vectors
    band = analysis.by_offset(analysis.dot_products(used))
    st.altair_chart(viz.offset_band(band, dark=_dark(), title="P[i] · P[j]"), width="stretch", key="offsets")
    width = (band["high"] - band["low"]).max()
    st.caption(
        f"Dot product of two positions by how far apart they are, over the {len(used)} positions"
        f"{' that training showed it' if trained else ''}; the band runs from the lowest to the highest pair and is at "
        f"most {width:.3g} wide."
    )
    footer(
        view,
        [
            *lines,
            f"table = analysis.by_offset(analysis.dot_products(vectors[:{len(used)}]))",
            'viz.offset_band(table, dark=False, title="P[i] · P[j]")',
        ],
        band,
        "offsets",
    )
    return waves


# All kinds, side by side


def _kinds(view: View, side: str | None) -> None:
    config = view.checkpoint.config
    st.subheader("Six ways to tell a model where a token is", anchor=False)
    n = _longest_trained(view, side)
    st.caption(
        f"With this model’s sizes: d_model {config.d_model}, {config.n_heads} head{'s' if config.n_heads > 1 else ''} of "
        f"{config.d_head}, base {config.position_base:g}, {n} positions, the longest it saw in training. Upper picture: "
        "what is done, from its lowest (orange) to its highest value (blue); lower: what two positions make of each other."
    )
    for row in (analysis.KINDS[:3], analysis.KINDS[3:]):
        for column, kind in zip(st.columns(3, gap="medium"), row, strict=True):
            with column, st.container(border=True, height="stretch"):
                with st.container(horizontal=True, vertical_alignment="center"):
                    st.markdown(f"**{NAMES[kind]}**", width="content")
                    if kind == config.positions:
                        st.badge("this model", icon=":material/check:", color="green")
                _CARDS[kind](view, n, side)


def _card_sinusoidal(view: View, n: int, side: str | None) -> None:
    config = view.checkpoint.config
    _matrix_card(sinusoidal(n, config.d_model, config.position_base), "sinusoidal")
    st.caption(
        "Fixed waves are added, each longer than the one before. How alike two positions are depends on their "
        "offset alone. (Vaswani et al. 2017, §3.5)"
    )


def _card_learned(view: View, n: int, side: str | None) -> None:
    if view.checkpoint.config.positions == "learned":
        vectors = analysis.added_positions(view.checkpoint.model, n, side)
        assert vectors is not None
        _matrix_card(vectors, "learned")
    else:
        st.text("This model has learned no table, so there is none to draw.")
    st.caption(
        "One learned vector a position is added. Nothing makes offsets comparable but training, and a position "
        "that training never showed is noise. (Vaswani et al. 2017, §3.5)"
    )


def _card_mirror(view: View, n: int, side: str | None) -> None:
    if view.checkpoint.config.positions == "mirror":
        n = _length(view, side)
        vectors = analysis.added_positions(view.checkpoint.model, n, side)
        assert vectors is not None
        _matrix_card(vectors, "mirror")
    else:
        st.text("This model has learned no such tables. Its input would be counted like this:")
        length = _length(view, side)
        label = view.task.vocabulary.labels
        tokens = _tokens(view, side)
        st.dataframe(
            pd.DataFrame(
                {
                    "token": [label[token] for token in tokens],
                    "from start": range(length),
                    "from end": range(length - 1, -1, -1),
                }
            ),
            hide_index=True,
            height=230,
            key="mirror_table",
        )
    st.caption(
        "Two learned vectors are added: one for the distance from the start, one for the distance from the end. "
        "Reversal is then a single look-up."
    )


def _card_rotary(view: View, n: int, side: str | None) -> None:
    _rotary_waves(view, n, 150, key="card")
    _rotary_offset(view, n, 190, key="card")


def _card_alibi(view: View, n: int, side: str | None) -> None:
    _alibi(view, n, 330, key="card")
    st.caption(
        "Nothing is added to the vectors. Each head takes its own slope times the distance off its scores: far keys "
        "cost more. (Press et al. 2022, §3)"
    )


def _card_none(view: View, n: int, side: str | None) -> None:
    config = view.checkpoint.config
    st.text("Nothing is added, turned or taken off: every offset counts 0.")
    if config.positions != "none" and not config.causal and config.architecture == "encoder":
        apart = _blindness(view.model, tuple(_tokens(view, side)))
        st.metric("Largest difference", f"{apart:.1e}", help="Of any logit, between the two runs.", border=True)
        st.caption(
            "Tried just now: with positions off, this model read the input and the input backwards. The outputs "
            "are the same, mirrored, but for rounding: an encoder without positions sees a bag of tokens."
        )
    else:
        st.caption(
            "An encoder then sees a bag of tokens. A decoder still has its causal mask, which tells it how many "
            "tokens came before."
        )


_CARDS = {
    "sinusoidal": _card_sinusoidal,
    "learned": _card_learned,
    "mirror": _card_mirror,
    "rotary": _card_rotary,
    "alibi": _card_alibi,
    "none": _card_none,
}


def _matrix_card(vectors: Tensor, kind: str) -> None:
    shown = vectors[: max(1, MOST_CELLS // vectors.shape[1])]
    table = vector_table(shown, [""] * len(shown))
    st.altair_chart(
        vector_heatmap(table, dark=_dark(), rows="position", height=150, legend=False),
        width="stretch",
        key=f"card_matrix_{kind}",
    )
    band = analysis.by_offset(analysis.dot_products(vectors))
    st.altair_chart(
        viz.offset_band(band, dark=_dark(), title="P[i] · P[j]", height=190), width="stretch", key=f"card_offset_{kind}"
    )


def _rotary_waves(view: View, n: int, height: int, key: str = "own") -> None:
    config = view.checkpoint.config
    width = config.d_head + config.d_head % 2
    table = analysis.angle_table(n, width, config.position_base)
    heat = pd.DataFrame({"position": table["position"], "token": "", "dimension": table["pair"], "value": table["cos"]})
    st.altair_chart(
        vector_heatmap(
            heat,
            dark=_dark(),
            limit=1.0,
            rows="position",
            columns="pair: cos of its angle",
            height=height,
            legend=key == "own",
        ),
        width="stretch",
        key=f"rotary_waves_{key}",
    )


def _rotary_offset(view: View, n: int, height: int, key: str = "own") -> None:
    config = view.checkpoint.config
    width = config.d_head + config.d_head % 2
    band = analysis.by_offset(analysis.rotary_itself(n, width, config.position_base))
    st.altair_chart(
        viz.offset_band(band, dark=_dark(), title="turned q · k", height=height),
        width="stretch",
        key=f"rotary_offset_{key}",
    )
    st.caption(
        "Queries and keys are turned, pair by pair, by an angle that grows with the position; the score of a query "
        "with its own key then depends on the offset alone. (Su et al. 2021, §3.4)"
    )


def _alibi(view: View, n: int, height: int, key: str = "own") -> None:
    table = analysis.alibi_table(n, min(view.checkpoint.config.n_heads, 12))
    table = table.assign(head=table["head"] + 1)
    chart = viz.curves(table, dark=_dark(), by="head", x="offset", y="bias", height=height, legend="bottom")
    st.altair_chart(chart, width="stretch", key=f"alibi_{key}")


def _what_to_notice(view: View, side: str | None) -> None:
    config = view.checkpoint.config
    notes = []
    if config.positions != "none":
        without, off = _pair(view)
        n = len(without.answer)
        notes.append(
            f"Without positions {off.n_right} of {n} are right instead of {without.n_right}, and the loss goes from "
            f"{without.loss:.4f} to {off.loss:.4f} nats. "
            + (
                "The tokens are all still there; only **where** they stand is gone."
                if not config.causal
                else "What order is left comes from the **causal mask**, which still tells how many tokens came before."
            )
        )
    if config.positions in ("sinusoidal", "rotary"):
        waves, longest = analysis.wavelengths(config), _longest_trained(view, side)
        notes.append(
            f"The fastest wave turns once in {waves[0]:.2f} positions, the slowest in {waves[-1]:,.0f}. "
            f"{int((waves > 4 * longest).sum())} of the {len(waves)} waves do not get through a quarter of a turn in the "
            f"{longest} positions of the longest input in training: they hardly tell its positions apart."
        )
    if config.positions in ("learned", "mirror"):
        notes.append(
            "Look at the **band** of the dot products: a learned table is free to treat the same offset differently at "
            "different places, a sinusoidal one (below) is not."
        )
    notes.append(
        "The lower curves of **sinusoidal** and **rotary** are the same kind of sum, Σ cos(offset · ω): one adds its waves "
        "to the vectors, d_model wide; the other turns queries and keys by them, d_head wide (and here 1 at offset 0)."
    )
    with st.container(border=True):
        st.markdown("**What to notice**")
        for note in notes:
            st.markdown(note)


# Small things


def _about_waves(view: View, trained: int | None) -> str:
    shaded = f" Shaded: from position {trained} on, beyond the longest input in training." if trained else ""
    return {
        "sinusoidal": "Even dimensions are sines, odd ones cosines; the further right in the vector, the slower the wave.",
        "learned": "No shape is built in: each position’s numbers are learned, and stay random where training never came.",
        "mirror": "What is added to an input of this length: counted from the start, plus counted from the end.",
    }[view.checkpoint.config.positions] + shaded


def _what(view: View) -> str:
    return (
        "positions off"
        if [change.text for change in view.interventions] == [OFF] and view.mask == resources.MASKS[0]
        else view.what_changed()
    )


def _side() -> str:
    _seed("side", list(SIDES), "encoder")
    return str(
        st.segmented_control(
            "Which side", list(SIDES), format_func=SIDES.__getitem__, key="side", persist_state="session", required=True
        )
    )


def _tokens(view: View, side: str | None) -> list[int]:
    example = view.original().example
    stream = example.target if side == "decoder" else example.stream
    assert stream is not None
    return stream[0].tolist()


def _length(view: View, side: str | None) -> int:
    return len(_tokens(view, side))


def _longest_trained(view: View, side: str | None) -> int:
    """The most positions that training ever showed the model."""
    longest = view.task.example([1] * view.task.config.max_len)
    stream = longest.target if side == "decoder" and longest.target is not None else longest.stream
    return stream.shape[1]


@st.cache_data(max_entries=64, show_spinner=False)
def _blindness(name: str, tokens: tuple[int, ...]) -> float:
    import torch

    return analysis.order_blindness(resources.checkpoint(name).model, torch.tensor([tokens]))


def _seed(key: str, options: Sequence[str], default: str) -> None:
    """Give a widget its value: what the link asks for on the first run, else the usual one."""
    if st.session_state.get(key) in options:
        return
    asked = None if key in st.session_state else st.query_params.get(key)
    if asked is not None and asked not in options:
        st.warning(
            f"The link asks for a {key} that is not here, so the usual one is shown.", icon=":material/link_off:"
        )
    st.session_state[key] = asked if asked in options else default


def _seed_waves(d_model: int) -> None:
    """The dimensions on show: those of the link, else the fastest sine and cosine and a few slower waves."""
    usual = sorted(
        {
            0,
            min(1, d_model - 1),
            *(share * d_model // 8 * 2 for share in (1, 2, 3) if share * d_model // 8 * 2 < d_model),
        }
    )
    kept = st.session_state.get("waves")
    if kept and all(dimension < d_model for dimension in kept):
        return
    asked = "" if kept is not None else st.query_params.get("waves", "")
    words = [int(word) for word in asked.split("-") if word.isascii() and word.isdecimal() and len(word) < 6]
    found = list(dict.fromkeys(word for word in words if word < d_model))[:8]
    if asked and len(found) != len(asked.split("-")):
        st.warning("The link asks for dimensions that this model does not have.", icon=":material/link_off:")
    st.session_state["waves"] = found or usual


def _dark() -> bool:
    return st.context.theme.type == "dark"


page()
