"""Residual: when is the answer decided, and by which parts? The residual stream is read after every sublayer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.compute import cached_runs
from pages.compute.call import picture_call
from pages.compute.picture import Mark, footer, of_each_run, panel, picture, shown, side_by_side, table, toolbar
from pages.controls import embed
from pages.controls.text import caption, escape_markdown, headline, signed, what_to_notice
from pages.controls.widgets import ask_token, ask_window, choose, validate_text, window_caption
from pages.state.inputs import MAX_TYPED
from pages.state.link import keep_widget_value, set_parameter, take_parameter
from pages.state.session import open_sidebar
from pages.state.view import ORIGINAL, View, prediction_panel, run_title
from xformer import analysis, viz
from xformer.adapters.huggingface_opening import CLASSES
from xformer.adapters.inputs import TokenizedText
from xformer.analysis.residual import decision_depths, explained_pair, lens_positions
from xformer.analysis.text_similarity import TextPooling, default_pooling, stream_names
from xformer.errors import InputError, UnavailableError
from xformer.formatting import percent
from xformer.tasks.batch import IGNORED
from xformer.viz.residual import answer_kind, thinned

WIDE = 8
"""Maximum number of positions for which two charts have about the same width."""
MAX_NUMBERS = 100_000_000
"""Largest number of logits computed for the notes of a lens; more would take seconds."""


SURE_OF = 0.9
"""Probability from which an answer counts as certain."""
SURE, OVER_CHANCE = 0.5, 3.0
"""A decided output has at least this final probability, and this multiple of a uniform guess or 0.9."""


def _least_sure(n_tokens: int) -> float:
    """Return the smallest final probability of a decided output among `n_tokens` options."""
    return max(SURE, min(OVER_CHANCE / n_tokens, 0.9))


def lens_panel(view: View, controls: DeltaGenerator, headline_at: DeltaGenerator) -> None:
    """Draw the logit lens of the run and one answer followed through its steps. Clicking a cell selects its position."""
    original, (run, before) = view.original(), view.compared
    positions = lens_positions(original)
    with controls:
        position = _ask_position(view)
        with st.popover("More"):
            shown_positions = ask_window(positions, "residual_from")
            st.caption("Click a cell to follow the answer at its position.")
    window = {"positions": shown_positions} if len(shown_positions) < len(positions) else {}
    is_followed = position in original.target_positions or position == original.open_output
    path = table(view, analysis.answer_path, run, position=position) if is_followed else None
    if path is not None:
        with headline_at:
            headline(lead_sentence(path, position, len(view.adapter.token_labels)))
    framed = {"position": position} if is_followed else {}
    calls = [picture_call(viz.lens, run, **window, **before, **framed, legend=False)]
    if path is not None:
        calls.append(picture_call(viz.answer_path, run, position=position, **before))
    wide = 1.7 if len(shown_positions) > WIDE else 1.3  # the lens has a column for each position
    for index, place in enumerate(st.columns([wide, 1][: len(calls)], gap="small")):
        with place.container(key=f"wide_lens_{index}"):
            shown(view, calls[index], f"lens_{index}", on_click=_follow if framed and not index else None)
    footer(view, "lens", calls)
    is_large = len(positions) * len(view.shape.layer_paths) * len(view.adapter.token_labels) > MAX_NUMBERS
    part = window if is_large else {}
    frames = {name: table(view, analysis.lens, one_run, **part) for name, one_run in view.runs().items()}
    with st.expander("How to read this"):
        margin = " Bars: the change that each step makes to the logit of the answer minus the strongest other token’s."
        st.markdown(_reading_guide(view, frames[ORIGINAL], positions, shown_positions) + margin * (path is not None))
        if is_large and window:
            st.markdown("The notes cover these positions only.")
    one = "class" if original.output == "token_class" else "token"
    n_tokens, judged, notes = len(view.adapter.token_labels), original.has_right_answer, []
    for name, frame in frames.items():
        prefix = f"{escape_markdown(run_title(name))}: " if len(frames) > 1 else ""
        notes.append(when_decided(frame, n_tokens, prefix, judged=judged, one=one))
    what_to_notice([*notes, _BLIND.replace("token", one)])


def _follow(cell: Mark) -> None:
    """Select the position of the clicked cell. A callback."""
    if "position" in cell:
        st.session_state["residual_pos"] = int(cell["position"])


def lead_sentence(path: pd.DataFrame, position: int, n_tokens: int) -> str:
    """Describe after which step the answer of `analysis.answer_path` keeps the lead, and after which it stays certain.

    Returns "" where it does not lead in the end, or hardly more likely than chance.
    """
    last = path.iloc[-1]
    if last["rank"] != 1 or last["answer_probability"] < _least_sure(n_tokens):
        return ""

    def since(holds: list[bool]) -> str:
        return str(path["point"].iloc[max((at + 1 for at, ok in enumerate(holds) if not ok), default=0)])

    answer, ahead = escape_markdown(str(last["answer"])), since([rank == 1 for rank in path["rank"]])
    leads = f"At position {position}, **{answer}** stays ahead"
    if last["answer_probability"] < SURE_OF:
        return f"{leads} after **{ahead}**, ending at {percent(last['answer_probability'], 0)}."
    sure = since([p >= SURE_OF for p in path["answer_probability"]])
    if sure == ahead:
        return f"{leads} and certain (≥ {SURE_OF:.0%}) after **{ahead}**."
    return f"{leads} after **{ahead}** and certain (≥ {SURE_OF:.0%}) after **{sure}**."


def _reading_guide(view: View, frame: pd.DataFrame, positions: Sequence[int], shown: Sequence[int]) -> str:
    """Explain how to read the lens."""
    run = view.original()
    norm = "the model’s final norm and its unembedding" if view.shape.final_norm else "the unembedding"
    outline = "✓ and the outline mark the right answer" if run.has_right_answer else "no right answer is known here"
    if run.target_positions and not run.has_right_answer:
        outline += f"; the outline marks where the top token is that of the top row, “{run.answer_name}”"
    which = "the decoder’s stream" if view.is_encoder_decoder else "the stream"
    left_out = f" The {positions[0]} positions before the answer are omitted." if positions[0] else ""
    moved = " Dashed frames: the token differs from the original." if view.is_changed else ""
    return (
        f"Logit lens: {which} after each step, decoded with {norm}; {outline}. The last row is the model’s actual "
        f"output.{left_out}{_thinning_note(frame)}{moved}{window_caption(positions, shown)}"
    )


MAX_BARS = 12
GOALS = {"logit": "its logit", "lead": "its lead"}
_NORMS = {
    "post": "With the scale of every later norm frozen at its value in this run, the parts sum to the logit.",
    "pre": "With the scale of the final norm frozen at its value in this run, the parts sum to the logit.",
    "none": "There is no norm between the stream and the logit, so the parts sum to the logit.",
}


def attribution_panel(view: View, controls: DeltaGenerator, headline_at: DeltaGenerator) -> None:
    """Draw the parts that sum to one output's logit, in every run."""
    with controls:
        position = _ask_position(view)
        with st.popover("More"):
            goal, typed = _ask_goal(view, position)
    original, (shown_run, before) = view.original(), view.compared
    is_lead, label = goal == "lead", view.adapter.token_labels
    # Without a known target, the changed run is explained for the token that the original predicts.
    known = int(original.example.labels[0, position]) != IGNORED
    token = typed if typed is not None or known or not before else original.explained(position)
    options = {"position": position, "token": token, "lead": is_lead}
    picture(view, "attribution", viz.attribution, shown_run, **before, **options)
    frames = {name: table(view, analysis.attribution, run, **options) for name, run in view.runs().items()}
    for name, run in view.runs().items():
        wanted, rival = explained_pair(run, position, token)
        figure = (run.logits[0, position, wanted] - (run.logits[0, position, rival] if is_lead else 0.0)).item()
        what = f"logit of {escape_markdown(label[wanted])}"
        what += f" − logit of {escape_markdown(label[rival])}" if is_lead else ""
        which = "" if not before else "Outlined, the original: " if name == ORIGINAL else f"Filled, {name}: "
        total = frames[name]["contribution"].sum()
        caption(
            f"{which}{what} = {figure:.4f} in the model; the parts sum to {total:.4f} "
            f"(difference {abs(total - figure):.0e}, rounding error)."
        )
    n_parts, unembedding = max(map(len, frames.values())), view.adapter.weights.unembedding()
    few = f" The {MAX_BARS} largest of {n_parts} parts have their own bar; the CSV lists all."
    few = few if n_parts > MAX_BARS + 1 else ""
    norm = "none" if view.shape.norm == "pre" and unembedding.norm is None else view.shape.norm
    cap = "" if unembedding.softcap is None else " The logit soft-cap is treated as a constant factor."
    caption(f"{_NORMS[norm]}{cap} A head’s part is z·W_O; its effect through later queries and keys is excluded.{few}")
    what_to_notice(largest_contributions(frames[view.shown], position))


def _ask_position(view: View) -> int:
    """Ask for an output by its position; without outputs that can be followed, return the first position."""
    run = view.original()
    labels = run.example.labels[0].tolist()
    positions = [index for index, token in enumerate(labels) if token != IGNORED]
    if run.open_output is not None:
        positions.append(run.open_output)  # the prediction of the next token, whose target is unknown
    if not positions:
        return lens_positions(run)[0]
    reads, token = run.tokens_of("decoder"), view.adapter.token_labels
    verb = "should predict" if run.has_right_answer else "is followed by" if view.input.is_open_ended else "predicts"
    names = {
        at: f"{at}: reads {reads[at]}, {'predicts' if labels[at] == IGNORED else verb} {token[run.explained(at)]}"
        for at in positions
    }
    usual = positions[0] if run.has_right_answer or run.open_output is None else run.open_output
    ask = partial(choose, key="residual_pos", called="position", widget=st.selectbox, width=260, hide_label=True)
    return ask("pos", names, "Output at position", default=usual)


def _ask_goal(view: View, position: int) -> tuple[str, int | None]:
    """Ask for one of `GOALS`, and for another token to explain."""
    run = view.original()
    one = "class" if run.output in CLASSES else "token"
    lead = f"The lead is its logit minus that of the strongest other {one}. Only the lead decides which {one} is predicted."
    label = f"Explain the {answer_kind(run, position)} {one}’s …"
    goal = choose("goal", GOALS, label, key="residual_goal", help=lead)
    if view.task is not None:
        return goal, None
    explained = run.explained(position)
    token_typed = ask_token(view.adapter.token_labels, "token", explained, f"Another {one}")
    return goal, None if token_typed == explained else token_typed


_WHAT = {"stream": "the stream", "added": "each step’s output"}


def norms_panel(view: View, controls: DeltaGenerator, headline_at: DeltaGenerator) -> None:
    """Draw the norms of the stream or of each step's output, on one scale for all runs."""
    frames = [table(view, analysis.norms, run) for run in view.runs().values()]
    positions = sorted(frames[0]["position"].unique().tolist())
    with controls:
        what = choose("length", _WHAT, "Norm of", key="residual_length", hide_label=True)
        shown = ask_window(positions, "residual_from")
    limit = max(float(frame.loc[frame["what"] == what, "length"].max()) for frame in frames)
    window = shown if len(shown) < len(positions) else None
    of_each_run(view, "norms", viz.norms, what=what, limit=limit, positions=window)
    stream = "the decoder’s stream" if view.is_encoder_decoder else "the residual stream"
    reset = " Each norm of this model resets it." if view.shape.norm == "post" else ""
    lengths = {
        "stream": f"‖x‖, the norm of {stream} after each step.{reset}",
        "added": "‖f(x)‖, the norm of the vector that each step adds.",
    }
    caption(lengths[what] + _thinning_note(frames[-1]) + window_caption(positions, shown))
    what_to_notice(norm_notes(frames[-1], what, view.shape.norm))


def _thinning_note(frame: pd.DataFrame) -> str:
    """Return a sentence for the caption where not all steps are drawn, else ""."""
    n_points = len(set(frame["depth"]))
    n_drawn = len(set(thinned(frame)["depth"]))
    return f" {n_drawn} of {n_points} steps are drawn: early layers share a row." if n_drawn < n_points else ""


def norm_notes(frame: pd.DataFrame, what: str, norm: str) -> list[str]:
    """Describe how the mean norm changes over the steps, or which step adds most; empty for small differences."""
    means = frame.loc[frame["what"] == what].groupby(["depth", "point"])["length"].mean().reset_index()
    if what == "stream":
        first, last = means.iloc[0]["length"], means.iloc[-1]["length"]
        if norm == "post" or not first or 0.8 < last / first < 1.25:
            return []
        how, needed = ("grows", "longer") if last > first else ("shrinks", "shorter")
        grown = f"Averaged over positions, the norm of the stream {how} from {first:.1f} to {last:.1f}"
        return [f"{grown}: later steps must add {needed} vectors to rotate it by the same angle."]
    steps = means.iloc[1:]  # the first is the embedding itself
    most, least = steps.loc[steps["length"].idxmax()], steps.loc[steps["length"].idxmin()]
    if most["length"] < 1.25 * least["length"]:
        return []
    return [
        f"Averaged over positions, **{most['point']}** adds the longest vectors ({most['length']:.1f}) and "
        f"**{least['point']}** the shortest ({least['length']:.1f}). A large norm alone does not mean a large effect on the "
        "output: the direction counts."
    ]


_BLIND = (
    "The logit lens has blind spots: early layers may hold the answer in a direction that the unembedding does not read, so "
    "another token in an early row does not prove that the answer is still unknown."
)


def when_decided(frame: pd.DataFrame, n_tokens: int, prefix: str, *, judged: bool = True, one: str = "token") -> str:
    """Describe after which steps a run's outputs stay correct or, without right answers, stay the same.

    Only outputs that end with a probability far above chance count as decided.
    """
    last = frame.loc[frame["depth"] == frame["depth"].max()].set_index("position")
    if not judged:  # the final prediction counts as right
        frame = frame.assign(right=frame["token"] == frame["position"].map(last["token"]))
    least = _least_sure(n_tokens)
    sure = last.index[last["probability"] >= least]
    settled = decision_depths(frame)
    n_correct, settled = len(settled), settled.loc[settled["position"].isin(sure)]
    total, unsure = len(last), n_correct - len(settled)
    what = "stay correct" if judged else "no longer change"
    if settled.empty:
        mean = percent(last["probability"].mean(), 0)
        end = f"No final prediction {'is correct with' if judged else 'has'} a probability of {least:.0%} or more"
        return f"{prefix}{end}, so none is decided: the top {one} gets {mean}{' on average' if total > 1 else ''}."
    if total == 1:
        verb = "stays correct" if judged else "no longer changes"
        return f"{prefix}The output {verb} after **{settled.iloc[0]['point']}**."
    counts = settled["point"].value_counts()
    order = [point for point in dict.fromkeys(frame.sort_values("depth")["point"]) if point in counts]
    found = ", ".join(f"{counts[point]} after **{point}**" for point in order)
    wrong = total - n_correct
    rest = f"; {unsure} more, ending below {least:.0%}" if unsure else ""
    rest += f"; {wrong} end{'s' if wrong == 1 else ''} wrong" if wrong else ""
    return f"{prefix}Of {total} outputs, these {what}: {found}{rest}."


def largest_contributions(parts: pd.DataFrame, position: int) -> list[str]:
    """Name the part that adds the most to an output, and the part that subtracts the most."""
    named = parts.loc[parts["kind"] != "bias"]
    best, worst = named.nlargest(1, "contribution").iloc[0], named.nsmallest(1, "contribution").iloc[0]
    found = []
    if best["contribution"] > 0:
        found.append(f"**{best['part']}** adds the most ({signed(best['contribution'])})")
    if worst["contribution"] < 0:
        found.append(f"**{worst['part']}** subtracts the most ({signed(worst['contribution'])})")
    notes = [f"At position {position}, {' and '.join(found) or 'no part adds or subtracts anything'}."]
    if best["contribution"] > 0 and best["kind"] in ("attention", "feed_forward"):
        what = "head" if best["head"] >= 0 else "layer"
        screen = "Attention" if best["kind"] == "attention" else "Feed-forward"
        notes.append(
            f"Ablate that {what} (set to zero) on the {screen} screen: its bar disappears, and the bars of later layers may "
            "change because they read its output."
        )
    return notes


MORE_TEXTS = ("Although the movie took its time, I loved all of it.", "The train to the airport leaves at noon.")
"""Texts to compare with the default input: a paraphrase, and another subject."""

MAX_TEXTS = 8

MAX_LINES = 4
"""Largest number of texts for which each pair has a line over the layers."""

CLEAR = 0.02
"""Cosines closer together than this are not ranked."""

ALL_ALIKE = 0.5
"""Where even the smallest cosine is above this, a single cosine is not informative."""

_KEY = "similar_texts"

_MEANS = {
    "mean": "the mean over all positions of a text, special tokens included",
    "last": "the vector at the last position of a text",
    "first": "the vector at the first position of a text",
    "own": "the model’s own embedding of a text",
}


def similarity_panel(view: View, controls: DeltaGenerator, headline_at: DeltaGenerator) -> None:
    """Draw the cosine similarities of whole texts, with a choice of pooling and layer."""
    names = stream_names(view.adapter)  # raises before any widget is drawn
    texts, usual, last = _ask_texts(view), default_pooling(view.adapter), len(names) - 1
    poolings = {name: name for name in _MEANS if name != "own" or "pooled" in view.original()}
    left, right = st.columns(2, gap="medium", vertical_alignment="bottom")
    with left:
        pooling = cast(TextPooling, choose("pooling", poolings, "Pooling", default=usual, key="similar_pooling"))
    with right:
        layer = last if pooling == "own" else _ask_layer(last)
    if not texts:
        return
    options = {"texts": texts, "pooling": None if pooling == usual else pooling}
    frame = table(view, analysis.similarity, view.original(), **options)
    options |= {"layer": None if layer == last else layer}
    calls = [picture_call(viz.similarity, view.original(), **options)]
    if pooling != "own" and len(texts) <= MAX_LINES:
        calls.append(picture_call(viz.similarity, view.original(), **options, what="layers"))
    side_by_side(view, calls, "similarity", widths=[3, 2][: len(calls)])
    footer(view, "similarity", calls, frame)
    where = "at the output" if layer == last else "of the embeddings" if layer == 0 else f"after layer {layer}"
    left_out = " Active changes are ignored here." if view.is_changed else ""
    other = "" if pooling == usual else f"; the default for this model is {_MEANS[usual]}"
    caption(f"Cosine similarities {where}. A text’s vector is {_MEANS[pooling]}{other}.{left_out}")
    what_to_notice(similarity_notes(frame.loc[frame["layer"] == layer], texts))


def _ask_texts(view: View) -> list[str]:
    """Ask for texts, one per line; where they cannot be read, show an error and return an empty list."""
    first = view.input.text(view.source)
    if (wanted := take_parameter("texts")) is not None:
        st.session_state[_KEY] = wanted
    elif st.session_state.get("similar_input") != (view.model, first):  # a new input replaces the first line
        lines = str(st.session_state.get(_KEY, "\n".join(["", *MORE_TEXTS]))).splitlines()
        st.session_state[_KEY] = "\n".join([first, *lines[1:]])
    st.session_state["similar_input"] = (view.model, first)
    keep_widget_value(_KEY)
    help = f"Two to {MAX_TEXTS} texts."
    written = st.text_area("Texts, one per line", key=_KEY, persist_state="session", height=122, help=help)
    set_parameter("texts", written)
    try:
        texts = [line.strip() for line in validate_text(written, MAX_TYPED).splitlines() if line.strip()]
        if not 2 <= len(texts) <= MAX_TEXTS:
            raise InputError(f"Type 2 to {MAX_TEXTS} texts, one per line, got {len(texts)}.")
        for text in texts:
            cached_runs.check_memory(view.model, view.input.read(text))
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return []
    return texts


def _ask_layer(last: int) -> int:
    """Ask for a layer; 0 is the embeddings."""
    names = {at: str(at) for at in range(last + 1)} | {last: f"{last}: output", 0: "0: embeddings"}
    ask = partial(choose, key="similar_layer", called="layer", widget=st.select_slider)
    return ask("after", names, "After layer", default=last)


def similarity_notes(frame: pd.DataFrame, texts: Sequence[str]) -> list[str]:
    """Name the two most similar texts where that is clear, and report where all texts are similar.

    `frame` is one layer of `analysis.similarity`.
    """
    pairs = frame.loc[frame["first"] < frame["second"]].sort_values("cosine", ascending=False)
    if len(pairs) < 2:
        return []
    notes, cosines, (first, second) = [], pairs["cosine"].tolist(), pairs[["first", "second"]].iloc[0]
    if cosines[0] - cosines[1] > CLEAR and texts[first] != texts[second]:
        best, after = (f"{cosine:.2f}".replace("-", "−") for cosine in cosines[:2])
        notes.append(f"Texts **{first + 1}** and **{second + 1}** are most similar: {best}. The next pair has {after}.")
    if cosines[-1] > ALL_ALIKE and cosines[0] - cosines[-1] > CLEAR:
        least = f"{cosines[-1]:.2f}"
        notes.append(f"Even the least similar pair has {least}: compare the cosines with each other, not with 1.")
    return notes


PICTURES = {"lens": "Logit lens", "parts": "Logit attribution", "norms": "Norms"}
WITHOUT_LENS = {"similarity": "Similarity of texts", "norms": PICTURES["norms"]}
"""The pictures for a model whose stream is not read as predictions."""
PANELS = {"lens": lens_panel, "parts": attribution_panel, "norms": norms_panel, "similarity": similarity_panel}


def _residual(view: View) -> None:
    prediction_panel(view)
    pictures = PICTURES  # only the chosen one is computed
    if reason := no_lens_reason(view):
        st.info(escape_markdown(reason), icon=":material/info:")
        reads_texts = isinstance(view.input, TokenizedText) and not view.is_encoder_decoder
        pictures = {name: words for name, words in WITHOUT_LENS.items() if reads_texts or name == "norms"}
    with embed.picture():
        with st.container(gap=None):
            headline_at, controls = st.container(), toolbar()
        with controls:
            shown = choose("picture", pictures, "Picture", key="residual_picture", hide_label=True)
        panel(PANELS[shown], view, controls, headline_at)
    view.share()


def no_lens_reason(view: View) -> str:
    """Explain in one sentence why the stream of a model cannot be read as predictions; "" where it can."""
    run = view.original()
    if not run.has_logits:
        return "This model has no logits, so there is no logit lens and no attribution."
    try:
        table(view, analysis.lens, run, positions=lens_positions(run)[:1])
    except UnavailableError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    open_sidebar("Residual", "When is the answer decided?").on_each_change(_residual)
