"""Two language models on one text: their continuations or gap fillings, and where and why they differ.

Their vocabularies may differ, so tokens are compared only where both have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from pages.compare.comparison import PictureContext, in_link
from pages.compare.panels import lens_panel, patterns_panel, rows_panel
from pages.compare.steering import lane_of
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import link as link_of_screen
from pages.shared import models, resources
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.inputs import MOST_TYPED
from pages.shared.layout import caption, headline
from pages.shared.link import carry
from pages.shared.patience import patience
from pages.shared.picture import footer, panel, picture, table, toolbar
from pages.shared.session import LookedAt
from pages.shared.widgets import choose, typed
from xformer import analysis, viz
from xformer.adapters import ModelAdapter
from xformer.adapters.huggingface_opening import CLASSES
from xformer.adapters.inputs import TextWithGaps
from xformer.analysis.differences import (
    GeneratedText,
    at_position,
    bits_per_character,
    first_difference,
    pattern_incompatibility,
    pieces,
    prediction_incompatibility,
    relabel,
)
from xformer.analysis.residual import WHOLE
from xformer.errors import XformerError
from xformer.interventions import parse
from xformer.reading import Reading

CHANGED = "changed"
"""The option for the same model under the mask and changes of the other screens."""
ABILITIES = {
    "next_token": "continues a text",
    "masked_token": "fills the gaps of a text",
    "sequence_class": "classifies a text",
    "token_class": "classifies each token",
    "answer_span": "finds an answer in a text",
    "next_sentence": "tells whether one sentence follows another",
}
PANELS = {"apart": "Divergence", "attention": "Attention", "rows": "Heads", "lens": "Logit lens"}
ROUNDING = 1e-6
"""Divergences in nats below this are float32 rounding errors."""
MOST_GAPS = 4
SHARE = st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent")
CONTEXT = PictureContext()


@dataclass(frozen=True)
class TextVariant:
    """A language model under a mask and changes."""

    letter: str
    model: str
    mask: str = resources.MASKS[0]
    changes: str = ""

    @property
    def subject(self) -> ModelAdapter:
        return models.subject(self.model)

    @property
    def title(self) -> str:
        """Letter, model and changes."""
        changed, changes = resources.mask_words(self.mask), parse(self.changes, self.subject.shape)
        changed += [changes[0].label] if len(changes) == 1 else [f"{len(changes)} changes"] if changes else []
        return ", ".join([f"{self.letter} · {models.title_of(self.model)}", *changed])

    def with_own_gaps(self, text: str, other: TextVariant) -> str:
        """A text typed for another model, with this model's mask token."""
        theirs, ours = other.subject.input, self.subject.input
        if not (isinstance(theirs, TextWithGaps) and isinstance(ours, TextWithGaps)):
            return text
        return text.replace(str(theirs.tokenizer.mask_token), str(ours.tokenizer.mask_token))

    def reading(self, source: tuple[int, ...]) -> Reading:
        """Its run on a text."""
        return resources.run(self.model, source, self.mask, self.changes)

    def named(self, reading: Reading) -> Reading:
        """The same run with the title of this variant."""
        return relabel(reading, self.title)


Pair = tuple[TextVariant, TextVariant]
Sources = Sequence[tuple[int, ...]]


def compares_texts(model: str) -> bool:
    """Whether a model is an external one that reads a single text."""
    return model in models.external_titles() and not models.usable(model) and not models.subject(model).shape.is_pair


def no_text_reason(model: str) -> str:
    """Why this screen has nothing to compare of a model without token predictions, as one sentence; "" where it has."""
    subject = models.subject(model)
    if subject.input.kind == "picture":
        return f"{models.title_of(model)} reads pictures, and this screen compares predictions on texts."
    if getattr(subject, "output", "") == "vectors":
        return f"{models.title_of(model)} outputs vectors and no predictions, so there are none to compare."
    return ""


def texts_panel(looked: LookedAt) -> None:
    """Ask for the other model and the text; compare what both predict."""
    a, link, others = TextVariant("A", looked.model), in_link(looked), _others(looked)
    st.sidebar.markdown(f"**A** · {escape_markdown(models.title_of(a.model))}")
    if not others:
        st.info(
            f"There is no second model here that {_ability(a.model)}. Change something on another screen and come back."
        )
        link_of_screen.share(link)
        return
    with st.sidebar:
        other = choose("with", others, usual_other(a.model, list(others)), "B", key="compare_with", widget=st.selectbox)
    b = TextVariant("B", a.model, looked.mask, looked.edits) if other == CHANGED else TextVariant("B", other)
    carry("input")
    st.sidebar.text_input("Text", key="input", persist_state="session")
    link |= {"with": other, "input": str(st.session_state["input"])}
    link_of_screen.share(link)
    if reason := models.usable(b.model):
        st.error(escape_markdown(reason))
        return
    if _output(b.model) != _output(a.model):
        title = escape_markdown(models.title_of(b.model))
        st.info(f"{title} is no model that {_ability(a.model)}.", icon=":material/info:")
        return
    both = (a, b)
    try:
        text = typed(st.session_state["input"], MOST_TYPED)
        sources = [variant.subject.input.read(variant.with_own_gaps(text, a)) for variant in both]
        if a.subject.input.goes_on:
            _continuations(both, sources, text)
        else:
            _gaps(both, sources)
    except XformerError as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return
    link_of_screen.share(link | _runs(both, sources))


def _others(looked: LookedAt) -> dict[str, str]:
    """The models to compare with: the same under the changes of the other screens, and all with the same kind of output."""
    found, output = {}, _output(looked.model)
    if looked.edits or looked.mask != resources.MASKS[0]:
        found[CHANGED] = f"{models.title_of(looked.model)}, with what is changed on the other screens"
    external = {name: title for name, title in models.external_titles().items() if name != looked.model}
    own = models.shipped() if output == "next_token" else []
    own = [name for name in own if not models.usable(name) and _output(name) == output]
    return found | external | {name: models.title_of(name) for name in own}


def usual_other(model: str, others: Sequence[str]) -> str:
    """The first of the other models that predicts the same of a text, else the first one."""

    def kind(name: str) -> tuple[str, bool]:
        return _output(name), models.subject(name).input.goes_on

    fits = (name for name in others if name == CHANGED or (not models.usable(name) and kind(name) == kind(model)))
    return next(fits, others[0])


def _output(model: str) -> str:
    """The kind of a model's output: only models with the same kind are compared."""
    subject = models.subject(model)
    if isinstance(subject.input, TextWithGaps):
        return "masked_token"
    return "next_token" if subject.input.goes_on else getattr(subject, "output", "next_token")


def _ability(model: str) -> str:
    return ABILITIES.get(_output(model), "predicts the same")


def _continuations(both: Pair, sources: Sources, text: str) -> None:
    """Draw both continuations and where they differ."""
    with patience("Both models continue the text") as step:
        runs = [
            resources.decoded(variant.model, source, variant.mask, variant.changes, step=step)
            for variant, source in zip(both, sources, strict=True)
        ]
    lanes = [lane_of(one.subject, f"{one.letter} predicts", run) for one, run in zip(both, runs, strict=True)]
    one, other = (GeneratedText.of(variant.subject.input.plain, run) for variant, run in zip(both, runs, strict=True))
    at, n = first_difference(one, other), min(len(one.text), len(other.text))
    if at is None:
        headline(f"The continuations are the same, as far as both go: {n} characters.")
    else:
        same = f"after {at} equal character{'s' if at != 1 else ''}" if at else "at the first character"
        headline(f"The continuations differ {same}.")
    prediction_strip(lanes, key="compare_texts")
    frame = pieces(one, other)
    if not frame.empty:
        for name in ("A says", "B says"):
            frame[name] = frame[name].str.replace(" ", "·").str.replace("\n", "↵")
        st.dataframe(frame, hide_index=True, column_config={"p of A": SHARE, "p of B": SHARE}, key="compare_pieces")
    caption(_surprise(both, sources, text))


def _surprise(both: Pair, sources: Sources, text: str) -> str:
    """The bits per character of the typed text under each model, and whether their vocabularies are the same."""
    bits = []
    for variant, source in zip(both, sources, strict=True):
        run = variant.reading(source)
        if len(run.answer) < 1 or run.example.target is not None:
            continue
        n = len(text) - len(variant.subject.input.plain(source[: len(source) - len(run.answer)]))
        if n > 0:
            bits.append(f"{variant.letter} {bits_per_character(run.loss, len(run.answer), n):.2f}")
    measured = f"Bits per character of the typed text: {', '.join(bits)}. " if bits else ""
    is_same = both[0].subject.labels == both[1].subject.labels
    return measured + ("Both have the same tokens." if is_same else "Their tokens differ: no KL divergence.")


def _runs(both: Pair, sources: Sources) -> dict[str, str]:
    """Compare both runs position by position; returns what the link keeps.

    A position of the first run is compared with the last token of the other that ends where it ends, or before.
    """
    runs = [variant.reading(source) for variant, source in zip(both, sources, strict=True)]
    if any(run.is_pair or run.output in WHOLE for run in runs):  # there is no prediction at each position
        return {}
    has_divergence = prediction_incompatibility(*runs) is None
    panels = {name: title for name, title in PANELS.items() if has_divergence or name != "apart"}
    bar = toolbar()
    with bar:
        usual = "rows" if not has_divergence and pattern_incompatibility(*runs) else next(iter(panels))
        shown = choose("panel", panels, usual, "Panel", key="texts_panel", label_visibility="collapsed")
        at = _ask_position(runs, has_divergence=has_divergence)
    link = {"panel": shown, "position": str(at)}
    if shown == "apart":
        st.markdown(_largest_divergence(runs))
        picture(CONTEXT, "apart", viz.prediction_difference, runs, at=at)  # type: ignore[arg-type]
        st.caption("KL(A ‖ B) of the predicted distributions in nats at each position; 0 where they are equal.")
        return link
    positions = (at, _aligned(runs, at))
    two = [one.named(at_position(run, place)) for one, run, place in zip(both, runs, positions, strict=True)]
    if shown == "attention":
        panel(lambda: link.update(patterns_panel(CONTEXT, at, two, bar)))
    else:
        panel(rows_panel if shown == "rows" else lens_panel, CONTEXT, at, two, (0, 1))
    return link


def _ask_position(runs: Sequence[Reading], *, has_divergence: bool) -> int:
    """The position; at first that of the largest divergence."""
    tokens = runs[0].tokens
    default = len(tokens) - 1 if runs[0].open_output is not None else runs[0].target_positions[-1]
    if has_divergence:
        kl = table(CONTEXT, analysis.prediction_difference, runs)["kl"].tolist()
        default = kl.index(max(kl)) if max(kl) > ROUNDING else default
    names = {str(at): f"{at} · {token}" for at, token in enumerate(tokens)}
    look: dict[str, Any] = {"label_visibility": "collapsed", "width": 160}
    return int(choose("position", names, str(default), "Position", key="texts_position", widget=st.selectbox, **look))


def _aligned(runs: Sequence[Reading], at: int) -> int:
    """The position of the other run that has read as much of the text."""
    one, other = ([len(run.subject.input.plain(run.ids()[: n + 1])) for n in range(len(run.tokens))] for run in runs)
    return max((place for place, end in enumerate(other) if end <= one[at]), default=0)


def _largest_divergence(runs: Sequence[Reading]) -> str:
    row = max(table(CONTEXT, analysis.prediction_difference, runs).to_dict("records"), key=lambda row: row["kl"])
    if row["kl"] <= ROUNDING:
        return f"The predicted distributions are equal to within {ROUNDING:g} nats at every position of this text."
    kind = ("class is", "classes are") if runs[0].output == "token_class" else ("token is", "tokens are")
    which = f"the same {kind[0]}" if row["one_says"] == row["other_says"] else f"different {kind[1]}"
    likeliest = ", ".join(
        f"{letter} {escape_markdown(str(row[f'{name}_says']))} ({row[f'{name}_probability']:.3f})"
        for letter, name in (("A", "one"), ("B", "other"))
    )
    reads = "after" if runs[0].subject.input.goes_on else "which reads"
    return (
        f"The largest divergence is at position {row['position']}, {reads} {escape_markdown(str(row['token']))}: "
        f"{row['kl']:.3g} nats (KL), where {which} likeliest: {likeliest}."
    )


def _gaps(both: Pair, sources: Sources) -> None:
    """Draw the predictions of both at each gap, and the alternatives at the first gaps with their probabilities."""
    runs = [variant.named(variant.reading(source)) for variant, source in zip(both, sources, strict=True)]
    lanes = []
    for variant, run in zip(both, runs, strict=True):
        tokens = tuple(run.subject.labels[token] for token in run.predicted)
        lanes.append(Lane(f"{variant.letter} predicts", tokens, probability=run.probability))
    prediction_strip(lanes, key="compare_gaps")
    word, words = _option_names(runs[0])
    if word == "token" and any(run.answer == tuple(run.ids()[at] for at in run.target_positions) for run in runs):
        caption("This text has no gaps: at each position stands the token that the model finds likeliest there.")
        return
    found = table(CONTEXT, analysis.gap_fillings, runs)
    numbers = found["gap"].unique().tolist()[:MOST_GAPS]
    letters = [variant.letter for variant in both]
    for place, number in zip(st.columns(max(2, len(numbers))), numbers, strict=False):
        one = found[found["gap"] == number].pivot(index="token", columns="model", values="probability")
        one = one.reindex(columns=[run.subject.name for run in runs]).set_axis(letters, axis=1)
        one = one.sort_values(letters[0], ascending=False).rename_axis(word)
        with place:
            st.markdown(f"**{_gap_name(runs[0], number)}**")
            st.dataframe(one, column_config=dict.fromkeys(letters, SHARE), key=f"compare_gap_{number}")
    caption(f"The likeliest {words} of each model with their probability in both. Empty: not a {word} of that model.")
    footer(CONTEXT, "gaps", [Call(analysis.gap_fillings, (runs,))])


def _option_names(run: Reading) -> tuple[str, str]:
    """The word for one of the options that a model chooses among, and its plural."""
    if run.output == "answer_span":
        return "position", "positions"
    return ("class", "classes") if run.output in CLASSES else ("token", "tokens")


def _gap_name(run: Reading, number: int) -> str:
    if run.output == "answer_span":
        return ("Start", "End")[number]
    if run.output == "token_class":
        return f"Position {run.target_positions[number]}, {escape_markdown(run.tokens[run.target_positions[number]])}"
    return "Class" if run.output in CLASSES else f"Gap {number + 1}"
