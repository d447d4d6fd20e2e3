"""“When it is decided”: the logit lens after every sublayer, and from where on each output stays what it ends as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd
import streamlit as st

from pages.shared import resources
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.inputs import MOST_TYPED, InputKind
from pages.shared.layout import WIDE, caption, places, run_title, what_to_notice
from pages.shared.link import asked, carry, chose
from pages.shared.picture import footer, heading, of_each_run, picture, shown, table
from pages.shared.view import ORIGINAL, View
from pages.shared.widgets import ask_token, ask_window, choose, seed, shown_of, typed
from xformer import analysis, viz
from xformer.adapters import ModelAdapter
from xformer.adapters.huggingface_opening import CLASSES
from xformer.analysis.logit_lens import decided, looked_at
from xformer.analysis.residual import explained_pair
from xformer.analysis.text_similarity import Pooling, default_pooling, is_causal, projects, stream_names
from xformer.errors import InputError
from xformer.formatting import percent
from xformer.tasks.batch import IGNORED
from xformer.viz.residual import MOST_POINTS

MOST_NUMBERS = 100_000_000
"""Of what the stream would say at each step, so many numbers are worked out at a time: seconds, with a large vocabulary."""


def lens_panel(view: View) -> None:
    """Draw the lens of every run, the cells that a change moved marked, and say when the outputs are decided."""
    heading("What the stream would say if it stopped here")
    positions = looked_at(view.original())
    shown = ask_window(positions, "residual_from")
    is_large = len(positions) * len(view.shape.sites) * len(view.subject.labels) > MOST_NUMBERS
    look = {"positions": shown} if is_large and len(shown) < len(positions) else {}
    frames = {name: table(view, analysis.lens, run, **look) for name, run in view.runs().items()}
    beside = len(shown) <= WIDE and len(frames) > 1
    of_each_run(
        view,
        "lens",
        viz.lens,
        places=[
            place.container(key=f"wide_lens_{index}") for index, place in enumerate(places(len(frames), len(shown)))
        ],
        look=lambda index: {"named": index == 0, "legend": index == 1} if beside else {},
        positions=shown if len(shown) < len(positions) else None,
    )
    caption(_what(view, frames[ORIGINAL], positions, shown))
    if look:
        caption("The notes are about these positions alone.")
    one = "class" if view.original().output == "token_class" else "token"
    lens_notes(frames, len(view.subject.labels), judged=view.original().has_right_answer, one=one)


def _outline(view: View) -> str:
    """What the outline marks."""
    run = view.original()
    if run.has_right_answer:
        return "✓ and the outline mark the right answer"
    if not run.target_positions:
        return "nobody knows what is right here"
    if view.input.goes_on or view.input.kind != "text":
        return view.kind.outline.format(one=view.input.one)
    if view.is_pair:
        return "the outline marks where the likeliest token is the next one of the target"
    if run.answer == tuple(run.ids("decoder")[at] for at in run.target_positions):  # a text without gaps
        return "the outline marks where the likeliest token is the one that stands there"
    return InputKind.outline


def _what(view: View, frame: pd.DataFrame, positions: Sequence[int], shown: Sequence[int]) -> str:
    """What the picture is, under this model and this input."""
    norm = "the model’s last norm and its unembedding" if view.shape.final_norm else "the unembedding"
    which = "the decoder’s stream" if view.is_pair else "the stream"
    outline = _outline(view)
    first, n_points = positions[0], len(set(frame["depth"]))
    left_out = f" The {first} positions before the answer have nothing to get right and are left out." if first else ""
    thin = f" Of {n_points} steps {MOST_POINTS} are drawn." if n_points > MOST_POINTS else ""
    moved = " A dashed frame: another token than in the original." if view.is_changed else ""
    return (
        f"Logit lens: {which} after each step, read with {norm}; {outline}. The last row of the stream is the model’s output "
        f"itself.{left_out}{thin}{moved}{shown_of(positions, shown)}"
    )


MOST = 12
"""So many parts have bars of their own."""

GOALS = {"logit": "its logit", "lead": "its lead"}

_IDENTITY = {
    "post": "This model normalises after every sum, so a part passes every later norm on its way out. Each norm is taken "
    "as linear with the standard deviation frozen at its value in this run; then the parts sum to the logit exactly.",
    "pre": "Only the last norm stands between the stream and the logit. With its standard deviation frozen at its value in "
    "this run it is linear, and the parts sum to the logit exactly.",
    "none": "No norm stands between the stream and the logit, so the parts simply sum to it.",
}


def attribution_panel(view: View) -> None:
    """Ask for an output, draw the parts of every run, and say who adds the most."""
    heading("Who adds what to one output")
    position, goal, typed = _ask_output(view)
    original, changed = view.original(), view.changed()
    is_lead, label = goal == "lead", view.subject.labels
    # Where nobody knows the token, a changed run is asked about the one that the original says.
    known = int(original.example.labels[0, position]) != IGNORED
    token = typed if typed is not None or known or changed is None else original.explained(position)
    of = {"position": position, "token": token, "lead": is_lead}
    before = {} if changed is None else {"before": original}
    picture(view, "attribution", viz.attribution, changed or original, **before, **of)
    frames = {name: table(view, analysis.attribution, run, **of) for name, run in view.runs().items()}
    for name, run in view.runs().items():
        wanted, rival = explained_pair(run, position, token)
        figure = (run.logits[0, position, wanted] - (run.logits[0, position, rival] if is_lead else 0.0)).item()
        what = f"logit of {escape_markdown(label[wanted])}" + (
            f" − logit of {escape_markdown(label[rival])}" if is_lead else ""
        )
        which = "" if changed is None else "Outlined, the original: " if name == ORIGINAL else f"Filled, {name}: "
        total = frames[name]["contribution"].sum()
        caption(
            f"{which}{what} = {figure:.4f} in the model; the parts sum to {total:.4f} "
            f"(difference {abs(total - figure):.0e}, the rounding of the run)."
        )
    n_parts = max(map(len, frames.values()))
    few = (
        f" Of {n_parts} parts the {MOST} largest have a bar of their own; the CSV has them all."
        if n_parts > MOST + 1
        else ""
    )
    cap = " Its soft cap is taken as the factor that it is here." if _is_capped(view) else ""
    caption(
        _identity(view) + cap + f" A head’s part is its z·W_O; what moved **which** way it looks is not in it.{few}"
    )
    parts_notes(frames[view.shown], position)


def _identity(view: View) -> str:
    """Why the parts sum to the logit."""
    norm = view.subject.weights.unembedding().norm
    if view.shape.norm == "pre" and norm is None:
        return _IDENTITY["none"]
    return _IDENTITY[view.shape.norm].replace(
        "standard deviation", "divisor" if view.task is None else "standard deviation"
    )


def _is_capped(view: View) -> bool:
    return view.subject.weights.unembedding().softcap is not None


def _ask_output(view: View) -> tuple[int, str, int | None]:
    """Which output is explained, and what of it: its position, one of `GOALS`, and the token where another one was typed."""
    run = view.original()
    labels = run.example.labels[0].tolist()
    positions = [index for index, token in enumerate(labels) if token != IGNORED]
    if run.open_output is not None:
        positions.append(run.open_output)  # what comes after the last character nobody knows; the model says something
    reads, token = run.tokens_of("decoder"), view.subject.labels
    verb = "has to say" if run.has_right_answer else view.kind.verb if view.input.goes_on else "says"
    one = "class" if run.output in CLASSES else "token"

    def position_words(at: int) -> str:
        known = labels[at] != IGNORED
        return f"{at}: reads {reads[at]}, {verb if known else 'says'} {token[run.explained(at)]}"

    usual = positions[0] if run.has_right_answer or run.open_output is None else run.open_output
    seed("pos", positions, usual, key="residual_pos", called="position")
    where, what, which = (*st.columns([3, 2]), None) if view.task is not None else st.columns([4, 3, 4])
    with where:
        position = st.select_slider(
            "Output at position", positions, format_func=position_words, key="residual_pos", persist_state="session"
        )
        chose("pos", str(position))
    with what:
        goal = choose(
            "goal",
            GOALS,
            "logit",
            f"Explain the {_meant(view)} {one}’s …",
            key="residual_goal",
            help="The lead is its logit less that of the strongest other " + one + ". "
            "A logit alone may rise together with all the others; the lead is what makes one win.",
        )
    if which is None:
        return position, goal, None
    explained = run.explained(position)
    with which:
        token_typed = ask_token(
            token, "token", explained, one.capitalize(), help=f"Type another {one} to see what speaks for it."
        )
    return position, goal, None if token_typed == explained else token_typed


def _meant(view: View) -> str:
    """Which token is explained, in a word."""
    if view.original().has_right_answer:
        return "right"
    return view.kind.meant if view.input.goes_on else "predicted"


_WHAT = {"stream": "the stream", "added": "what each step adds"}


def norms_panel(view: View) -> None:
    """Draw the lengths of every run, on one scale."""
    heading("How long the stream is")
    frames = [table(view, analysis.norms, run) for run in view.runs().values()]
    positions = sorted(frames[0]["position"].unique().tolist())
    what = choose("length", _WHAT, "stream", "The length of …", key="residual_length")
    shown = ask_window(positions, "residual_from")
    of_each_run(
        view,
        "norms",
        viz.norms,
        what=what,
        limit=max(float(frame.loc[frame["what"] == what, "length"].max()) for frame in frames),
        positions=shown if len(shown) < len(positions) else None,
    )
    caption(_caption(view, what, frames[-1], positions, shown))
    if notes := norm_notes(frames[-1], what, view.shape.norm):
        what_to_notice(notes)


def _caption(view: View, what: str, frame: pd.DataFrame, positions: Sequence[int], shown: Sequence[int]) -> str:
    which = "the decoder’s stream" if view.is_pair else "the residual stream"
    said = (
        f"‖x‖, the length of {which} after each step."
        if what == "stream"
        else "‖f(x)‖, the length of what a step adds."
    )
    if view.shape.norm == "post":
        said += " Each norm of this model resets the length of the stream" + (
            ", and what a step adds is measured before that." if what == "added" else "."
        )
    n_points = len(set(frame["depth"]))
    thin = f" Of {n_points} steps {MOST_POINTS} are drawn." if n_points > MOST_POINTS else ""
    return said + thin + shown_of(positions, shown)


def norm_notes(frame: pd.DataFrame, what: str, norm: str) -> list[str]:
    """How the average length goes from the first step to the last, or which step adds most; nothing where that is no news."""
    means = frame.loc[frame["what"] == what].groupby(["depth", "point"])["length"].mean().reset_index()
    if what == "stream":
        first, last = means.iloc[0]["length"], means.iloc[-1]["length"]
        if norm == "post" or not first or 0.8 < last / first < 1.25:
            return []
        return [
            f"On average over the positions the stream {'grows' if last > first else 'shrinks'} from {first:.1f} to "
            f"{last:.1f}: what a later step adds has to be that much {'longer' if last > first else 'shorter'} to turn it "
            "by the same angle."
        ]
    steps = means.iloc[1:]  # the first is the embedding itself
    most, least = steps.loc[steps["length"].idxmax()], steps.loc[steps["length"].idxmin()]
    if most["length"] < 1.25 * least["length"]:
        return []
    return [
        f"On average over the positions **{most['point']}** adds the most ({most['length']:.1f}) and **{least['point']}** the "
        f"least ({least['length']:.1f}). Long is not important: what counts is how it lies to what is read out."
    ]


SURE = 0.5
"""A probability from which on an output counts as decided …"""

OVER_CHANCE = 3.0
"""… and so many times what a guess among all tokens would have."""

_BLIND = (
    "A lens can be blind: early layers may hold the answer in a direction that the unembedding does not read. Another token in "
    "an early row may mean “not yet written in the output’s language” rather than “not yet known”."
)


def lens_notes(frames: Mapping[str, pd.DataFrame], n_tokens: int, *, judged: bool, one: str = "token") -> None:
    """The notes on the `lens` frames of all runs of a model with so many tokens, or classes (`one` of them)."""
    notes = [
        when_decided(
            frame, n_tokens, "" if len(frames) == 1 else f"{escape_markdown(run_title(name))}: ", judged=judged, one=one
        )
        for name, frame in frames.items()
    ]
    what_to_notice([*notes, _BLIND.replace("token", one)])


def when_decided(frame: pd.DataFrame, n_tokens: int, prefix: str, *, judged: bool = True, one: str = "token") -> str:
    """From which step on a run's outputs stay right (or, where nothing is right, stay what they end as), in a sentence.

    Only outputs that end with a probability that no guess would have are said to be decided.
    """
    last = frame.loc[frame["depth"] == frame["depth"].max()].set_index("position")
    if not judged:  # what each output ends as takes the place of the right answer
        frame = frame.assign(right=frame["token"] == frame["position"].map(last["token"]))
    least = max(SURE, min(OVER_CHANCE / n_tokens, 0.9))
    sure = last.index[last["probability"] >= least]
    settled = decided(frame)
    n_correct, settled = len(settled), settled.loc[settled["position"].isin(sure)]
    total, unsure = len(last), n_correct - len(settled)
    what = "stay what they end as" if not judged else "become right for good"
    if settled.empty:
        mean = percent(last["probability"].mean(), 0)
        share = f"the likeliest {one} gets {mean}{' on average' if total > 1 else ''} in the end"
        if not judged:
            return f"{prefix}Nothing is decided: {share}, and none gets {least:.0%}."
        if n_correct:
            some = f"{n_correct} of {total} outputs {'is' if n_correct == 1 else 'are'} right, but not with {least:.0%} or more"
            return f"{prefix}{some}, so none counts as decided: {share}."
        return f"{prefix}No output is right in the end, so none is ever decided for good."
    if total == 1:
        verb = "becomes right for good" if judged else "stays what it ends as"
        return f"{prefix}The output {verb} after **{settled.iloc[0]['point']}**."
    counts = Counter(settled["point"])
    order = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    found = ", ".join(f"{counts[point]} after **{point}**" for point in order if counts[point])
    wrong = total - n_correct
    rest = f"; {unsure} more, but with less than {least:.0%} in the end" if unsure else ""
    rest += f"; {wrong} end{'s' if wrong == 1 else ''} wrong" if wrong else ""
    return f"{prefix}Of {total} outputs, these {what}: {found}{rest}."


def parts_notes(parts: pd.DataFrame, position: int) -> None:
    """The notes on the `attribution` parts of the output at `position`."""
    what_to_notice(who_adds(parts, position))


def who_adds(parts: pd.DataFrame, position: int) -> list[str]:
    """Which part adds the most to an output and which takes away the most, as far as any does."""
    named = parts.loc[parts["kind"] != "bias"]
    best, worst = named.nlargest(1, "contribution").iloc[0], named.nsmallest(1, "contribution").iloc[0]
    notes = []
    if best["contribution"] > 0:
        against = (
            f", and **{worst['part']}** takes away the most ({_signed(worst['contribution'])})"
            if worst["contribution"] < 0
            else ""
        )
        notes.append(
            f"At position {position}, **{best['part']}** adds the most ({_signed(best['contribution'])}){against}."
        )
    elif worst["contribution"] < 0:
        notes.append(
            f"At position {position} no part adds anything, and **{worst['part']}** takes away the most "
            f"({_signed(worst['contribution'])})."
        )
    else:
        notes.append(f"At position {position} no part adds anything or takes anything away.")
    if best["contribution"] > 0 and best["kind"] in ("attention", "feed_forward"):
        how = "Silence that head" if best["head"] >= 0 else "Mute that layer"
        where = "Attention" if best["kind"] == "attention" else "Feed-forward"
        notes.append(
            f"{how} on the {where} screen and come back: its bar is gone, and bars of later layers may move, because they "
            "read what it wrote."
        )
    return notes


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


MORE_TEXTS = ("Although the movie took its time, I loved all of it.", "The train to the airport leaves at noon.")
"""Beside the default input: one that says the same in other words, and one about something else."""

MOST_TEXTS = 8

MOST_LINES = 4
"""Up to so many texts each pair has a line over the layers."""

CLEAR = 0.02
"""Cosines that are closer than this are not ranked."""

ALL_ALIKE = 0.5
"""From such a smallest cosine on, a cosine by itself says little."""

_KEY = "similar_texts"

_POOLINGS = {"mean": "mean", "last": "last", "first": "first", "own": "own"}

_MEANS = {
    "mean": "the mean over all positions of a text, special tokens included",
    "last": "the vector at the last position of a text",
    "first": "the vector at the first position of a text",
    "own": "the one vector that the model itself makes of a text",
}


def similarity_panel(view: View) -> None:
    """Ask for texts, how their vectors are pooled and after which layer; draw their cosines."""
    heading("How alike texts are to this model")
    names = stream_names(view.subject)  # raises before anything is asked for
    texts = _ask_texts(view)
    usual = default_pooling(view.subject)
    poolings = {name: words for name, words in _POOLINGS.items() if name != "own" or "pooled" in view.original()}
    left, right = st.columns(2, gap="medium", vertical_alignment="bottom")
    with left:
        pooling = cast(Pooling, choose("pooling", poolings, usual, "Pooling", key="similar_pooling"))
    last = len(names) - 1
    layer = last
    if pooling != "own":
        with right:
            layer = _ask_layer(last)
    if not texts:
        return
    options: dict[str, Any] = {"texts": texts} | ({} if pooling == usual else {"pooling": pooling})
    frame = table(view, analysis.similarity, view.original(), **options)
    look: dict[str, Any] = options if layer == last else options | {"layer": layer}
    calls = [Call(viz.similarity, (view.original(),), look)]
    if pooling != "own" and len(texts) <= MOST_LINES:
        calls.append(Call(viz.similarity, (view.original(),), {**look, "what": "layers"}))
    for index, (place, call) in enumerate(zip(st.columns([3, 2][: len(calls)], gap="medium"), calls, strict=True)):
        with place:
            shown(view, call, f"similarity_{index}")
    footer(view, "similarity", calls, frame)
    where = "at the output" if layer == last else "of the embeddings" if layer == 0 else f"after layer {layer}"
    left_out = " The changes that are on are left out here." if view.is_changed else ""
    caption(
        f"Cosines {where}: 1 is the same direction, 0 a right angle, −1 the opposite. A text’s vector is {_MEANS[pooling]}"
        f"{_reason(view.subject, pooling, usual)}.{left_out}"
    )
    if notes := similarity_notes(frame.loc[frame["layer"] == layer], texts):
        what_to_notice(notes)


def _ask_texts(view: View) -> list[str]:
    """The texts, one a line; nothing where they cannot be read, which is said."""
    first = view.input.text(view.source)
    if (wanted := asked("texts")) is not None:
        st.session_state[_KEY] = wanted
    elif st.session_state.get("similar_input") != (view.model, first):  # another input takes the first line
        lines = str(st.session_state.get(_KEY, "\n".join(["", *MORE_TEXTS]))).splitlines()
        st.session_state[_KEY] = "\n".join([first, *lines[1:]])
    st.session_state["similar_input"] = (view.model, first)
    carry(_KEY)
    written = st.text_area(
        "Texts, one a line", key=_KEY, persist_state="session", height=122, help=f"Two to {MOST_TEXTS} texts."
    )
    chose("texts", written)
    try:
        texts = [line.strip() for line in typed(written, MOST_TYPED).splitlines() if line.strip()]
        if not 2 <= len(texts) <= MOST_TEXTS:
            raise InputError(f"Type 2 to {MOST_TEXTS} texts, one a line, got {len(texts)}.")
        for text in texts:
            resources.check_memory(view.model, view.input.read(text))
    except InputError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return []
    return texts


def _ask_layer(last: int) -> int:
    """After which layer; 0 is what enters the first one."""
    seed("after", range(last + 1), last, key="similar_layer", called="layer")
    layer = st.select_slider(
        "After layer",
        range(last + 1),
        format_func=lambda at: "0: embeddings" if at == 0 else f"{at}: output" if at == last else str(at),
        key="similar_layer",
        persist_state="session",
    )
    chose("after", str(layer))
    return layer


def _reason(subject: ModelAdapter, pooling: str, usual: str) -> str:
    """Why the vectors are pooled in this way."""
    if pooling != usual:
        return f"; usual for this model is {_MEANS[usual]}"
    if getattr(subject, "pooling", None) == pooling:
        return ", as the 1_Pooling of its folder says"
    if projects(subject):
        return ", which its class projects for this use"
    if is_causal(subject):
        return ", the only one that sees all of it"
    return ": its folder names no pooling, and every position sees the whole text"


def similarity_notes(frame: pd.DataFrame, texts: Sequence[str]) -> list[str]:
    """Which two texts are most alike, where that is clear, and whether all are so alike that a cosine alone says little.

    `frame` has one layer of `analysis.similarity`.
    """
    pairs = frame.loc[frame["first"] < frame["second"]].sort_values("cosine", ascending=False).to_dict("records")
    notes = []
    if len(pairs) > 1 and pairs[0]["cosine"] - pairs[1]["cosine"] > CLEAR:
        best, next_one = pairs[0], pairs[1]
        one, other = texts[best["first"]], texts[best["second"]]
        if one != other:
            notes.append(
                f"Texts **{best['first'] + 1}** and **{best['second'] + 1}** are most alike: {_number(best['cosine'])}. Next "
                f"come {next_one['first'] + 1} and {next_one['second'] + 1} with {_number(next_one['cosine'])}."
            )
    if len(pairs) > 1 and pairs[-1]["cosine"] > ALL_ALIKE and pairs[0]["cosine"] - pairs[-1]["cosine"] > CLEAR:
        notes.append(
            f"Even the least alike two have {_number(pairs[-1]['cosine'])}: compare the cosines with each other, not with 1."
        )
    return notes


def _number(cosine: float) -> str:
    return f"{cosine:.2f}".replace("-", "−")
