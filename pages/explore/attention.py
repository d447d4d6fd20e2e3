"""Attention: who looks at whom, in every layer and head? Under the model's own mask, and under another beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import streamlit as st

from pages.shared import resources
from pages.shared.change_panel import change_panel, follow_cutting_click
from pages.shared.components.attention_view import Selection, attention_choice, attention_view, choose_attention
from pages.shared.components.prediction_strip import prediction_strip
from pages.shared.lanes import lanes
from pages.shared.notebook import footer
from pages.shared.rollout_panel import rollout_panel
from pages.shared.session import View, open_page
from pages.shared.stages_panel import stages_panel
from xformer.analysis.heads import SCORES, head_scores, pattern_scores
from xformer.viz.attention import layer_title, pattern_frame, pattern_layers
from xformer.viz.packing import PatternLayer, pack

KEY = "attention"
PANELS = ("scores of all heads", "step by step", "change the run", "rollout")


def page() -> None:
    view = open_page("Attention", "Who looks at whom, in every layer and head?")
    original, changed = view.original(), view.changed()
    prediction_strip(lanes(view.task, original, changed, f"says, {view.what_changed()}"), key="strip")
    _say_what_changed(view, original, changed)

    layers = _layers(view, original)
    other = None if changed is None else _layers(view, changed)
    best, weight = _telling_head(view, original, [layer.name for layer in layers])
    _follow_the_link(layers, best)
    chosen = attention_choice(KEY, layers)
    chosen = attention_view(pack(layers, other, selected=(chosen.layer, chosen.head)), key=KEY)
    follow_cutting_click(layers[chosen.layer], chosen)
    shown = other or layers
    _footer(view, shown[chosen.layer], chosen.head)
    view.share(head=_head_text(chosen), panel=_ask_panel())
    panel = st.session_state["panel"]
    if panel == "change the run":
        change_panel(view, shown[chosen.layer], chosen)
    elif panel == "step by step":
        query, key = _cell(chosen, shown[chosen.layer])
        stages_panel(view, changed or original, shown[chosen.layer], chosen.head, query, key)
    elif panel == "scores of all heads":
        _score_table(view, changed or original)
    else:
        rollout_panel(view, changed or original)
    _what_to_notice(view, layers[best.layer].title, best.head + 1, weight)


def _footer(view: View, layer: PatternLayer, head: int) -> None:
    lines = [
        "from xformer.viz.attention import head_chart, head_frame",
        f'head_chart(head_frame(trace, "{layer.name}", {head}, {layer.query_labels!r}, {layer.key_labels!r}))',
    ]
    frame = pattern_frame(layer.pattern[head], layer.allowed[head], layer.query_labels, layer.key_labels)
    footer(view, lines, frame, "pattern")


def _ask_panel() -> str:
    """Which panel stands under the picture; the others are not computed."""
    asked = st.query_params.get("panel")
    st.session_state.setdefault("panel", asked if asked in PANELS else PANELS[0])
    st.segmented_control(
        "Panel", PANELS, required=True, key="panel", persist_state="session", label_visibility="collapsed"
    )
    return st.session_state["panel"]


def _head_text(chosen: Selection) -> str:
    """The chosen head, and the locked cell where there is one, for the link: "3.2" or "3.2.0-5"."""
    text = f"{chosen.layer + 1}.{chosen.head + 1}"
    return text if chosen.query is None or chosen.key is None else f"{text}.{chosen.query}-{chosen.key}"


def _cell(chosen: Selection, layer: PatternLayer) -> tuple[int, int]:
    """The locked cell; where only a row is locked, or nothing, the strongest cell of the row or of the first query."""
    query = 0 if chosen.query is None else chosen.query
    if chosen.key is not None:
        return query, chosen.key
    return query, int(layer.pattern[chosen.head, query].argmax())


def _layers(view: View, run: resources.Run) -> list[PatternLayer]:
    label, example = view.task.vocabulary.labels, run.example
    tokens = [label[token] for token in example.stream[0].tolist()]
    target = None if example.target is None else [label[token] for token in example.target[0].tolist()]
    return pattern_layers(run.trace, tokens, target)


def _follow_the_link(layers: list[PatternLayer], best: Selection) -> None:
    """Choose the head that a link names, else the telling one, whenever the model changes; then the visitor chooses."""
    heads = [item.pattern.shape[0] for item in layers]
    if st.session_state.get("heads_shown") == heads:
        return
    first_visit = "heads_shown" not in st.session_state
    st.session_state["heads_shown"] = heads
    asked = st.query_params.get("head") if first_visit else None
    if asked is None:
        choose_attention(KEY, best)
        return
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,5})-(\d{1,5}))?", asked, re.ASCII)
    if match and 1 <= int(match[1]) <= len(heads) and 1 <= int(match[2]) <= heads[int(match[1]) - 1]:
        cell = (None, None) if match[3] is None else (int(match[3]), int(match[4]))
        choose_attention(KEY, Selection(int(match[1]) - 1, int(match[2]) - 1, *cell))
        return
    choose_attention(KEY, best)
    st.warning(
        "The link asks for a head that this model does not have, so another is shown.", icon=":material/link_off:"
    )


def _telling_head(view: View, run: resources.Run, paths: Sequence[str]) -> tuple[Selection, float]:
    """The head with the most of what this task needs, and how much: on the answer's source wherever it is known."""
    score = _TELLING.get(view.task.config.name)
    best, most = Selection(len(paths) - 1, 0), 0.0
    if score is None:
        return best, most
    n = len(run.example.source)
    for layer, path in enumerate(paths):
        pattern = run.trace[f"{path}.pattern"][0]  # [head, query, key]
        # A decoder's answer looks back at its source; elsewhere queries and keys start together.
        start = n if view.task.config.architecture == "decoder" else 0
        pattern = pattern[:, start : start + n, :n]
        weights = pattern_scores(pattern)[:, SCORES.index(score)]  # [head]
        if weights.max().item() > most:
            best, most = Selection(layer, int(weights.argmax())), weights.max().item()
    return best, most


_TELLING = {"reverse": "anti-diagonal", "copy": "diagonal"}


def _say_what_changed(view: View, original: resources.Run, changed: resources.Run | None) -> None:
    n = len(original.answer)
    if changed is None:
        given = "" if view.task.config.architecture == "encoder" else ", each token given the right ones before it"
        st.caption(f"{original.n_right} of {n} right, loss {original.loss:.4f} nats{given}.")
        return
    what = view.what_changed()
    if original.trace.logits.equal(changed.trace.logits):
        st.info(f"With {what} this model does exactly what it does anyway: nothing changes.", icon=":material/equal:")
        return
    st.caption(
        f"With {what}, {changed.n_right} of {n} are right instead of {original.n_right}; "
        f"the loss goes from {original.loss:.4f} to {changed.loss:.4f} nats. Outlined tokens changed."
    )


def _score_table(view: View, run: resources.Run) -> None:
    n = len(run.example.source)
    positions, keys = range(n), None
    if view.task.config.architecture == "decoder":
        where = st.segmented_control("Look", _SCOPES, default=_SCOPES[0], required=True, key="scope")
        if where == _SCOPES[0]:  # the output that says the answer's i-th token stands at n + i
            positions, keys = range(n, 2 * n), range(n)
    st.caption(
        "Shares of a head's attention, averaged over the numbers of this input; special tokens are left out"
        f"{f', with {view.what_changed()}' if view.is_changed else ''}. Choose a row to enlarge that head; "
        "click a column to sort."
    )
    table = head_scores(run.trace, positions, keys)
    if table["induction"].isna().all():
        table = table.drop(columns="induction")
    paths = list(run.trace.attention_layers())
    is_pair = run.example.target is not None
    table.insert(0, "where", [layer_title(path, is_pair=is_pair) for path in table["layer"]])
    table["head"] += 1
    share = {
        name: st.column_config.ProgressColumn(name, width=95, min_value=0.0, max_value=1.0, format="%.3f", help=text)
        for name, text in _HELP.items()
    }
    entropy = st.column_config.NumberColumn("entropy (bits)", width=95, format="%.2f", help=_ENTROPY)
    event = st.dataframe(
        table.drop(columns="layer"),
        hide_index=True,
        column_config=share | {"entropy": entropy},
        on_select="rerun",
        selection_mode="single-row",
        key="scores",
    )
    rows = event.selection.rows
    if rows and st.session_state.get("scores_followed") != (rows[0], view.model):
        st.session_state["scores_followed"] = (rows[0], view.model)
        row = table.iloc[rows[0]]
        choose_attention(KEY, Selection(paths.index(row["layer"]), int(row["head"]) - 1))
        st.rerun()
    footer(
        view,
        [
            "from xformer.analysis.heads import head_scores",
            f"head_scores(trace, {positions!r}" + (")" if keys is None else f", {keys!r})"),
        ],
        table,
        "scores",
    )


_SCOPES = ("from the answer back to the source", "within the source")
_HELP = {
    "diagonal": "Weight on the token itself: key = query.",
    "anti-diagonal": "Weight on the mirrored token: key = length − 1 − query. Reversal needs this.",
    "previous": "Weight on the token before, over the queries that have one.",
    "next": "Weight on the token after, over the queries that have one.",
    "first": "Weight on the first token.",
    "induction": "Weight on what followed an earlier occurrence of the same token, over the queries whose token came before.",
}
_ENTROPY = "How spread out a row is: −Σ p log₂ p. 0 bits is a single key; log₂(keys) is all alike."


def _what_to_notice(view: View, layer: str, head: int, weight: float) -> None:
    notes = {
        "reverse": "Look for an **anti-diagonal**: the output at position i looks at the token at length − 1 − i, which it "
        f"has to say. Here {layer}, head {head} comes closest: {weight:.0%} of its attention is there. Layers before the "
        "flip are diffuse: they work out how long the input is.",
        "sort": "No picture repeats from input to input: where a position looks depends on **which numbers** stand "
        "there, not on where they stand. Change one number and watch whole rows move.",
        "copy": f"Look for a **diagonal**: every position looks at itself. {layer}, head {head} does so with {weight:.0%}.",
    }
    with st.container(border=True):
        st.markdown("**What to notice**")
        st.markdown(notes[view.task.config.name])
        st.markdown(
            "Set the mask to **Causal**: a position that may not look ahead cannot see the token it needs, and the first "
            "half of the answer falls apart. Hatched grey cells are masked, which is not the same as a weight of zero."
            if view.task.config.architecture == "encoder"
            else "Set the mask to **Full**: the model was trained never to look ahead, so what it now sees is noise to it. "
            "Hatched grey cells are masked, which is not the same as a weight of zero."
        )


page()
