"""Two language models on one text: their continuations or gap fillings, and where and why they differ.

Their vocabularies may differ, so only tokens that both have are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st

from pages.compare.comparison import ROUNDING, change_words, in_link
from pages.compare.panels import lens_panel, patterns_panel, rows_panel
from pages.components.elements import Lane, prediction_strip
from pages.compute import cached_runs, models
from pages.compute.background_job import interruptible_progress
from pages.compute.call import PictureContext, picture_call
from pages.compute.picture import footer, panel, picture, table, toolbar
from pages.controls.text import caption, escape_markdown, headline
from pages.controls.widgets import SHARE, choose, validate_text
from pages.state import link as link_of_screen
from pages.state.inputs import MAX_TYPED, lane_of
from pages.state.link import keep_widget_value
from pages.state.session import ScreenSelection
from pages.state.view import View, chip, toggle_edit
from xformer import analysis, viz
from xformer.adapters import ModelAdapter
from xformer.adapters.huggingface_opening import CLASSES
from xformer.adapters.inputs import TextWithGaps
from xformer.analysis.differences import (
    GeneratedText,
    at_position,
    first_difference,
    pieces,
    prediction_incompatibility,
    relabel,
)
from xformer.analysis.residual import WHOLE
from xformer.edit_links import join_edits, parse_edits
from xformer.errors import InputError, XformerError
from xformer.reading import Reading

CHANGED, OTHER_MASK = "changed", "other_mask"
"""The options for the same model: under the mask and changes of the other screens, and under another mask."""
PANELS = {
    "surprise": "Surprise",
    "apart": "Divergence",
    "attention": "Attention",
    "rows": "Heads",
    "lens": "Logit lens",
}
MAX_GAPS = 4
CONTEXT = PictureContext("compare")


@dataclass(frozen=True)
class TextVariant:
    """A language model under a mask and changes."""

    letter: str
    model: str
    mask: str = cached_runs.MASKS[0]
    edits: str = ""

    @property
    def adapter(self) -> ModelAdapter:
        return models.adapter(self.model)

    @property
    def title(self) -> str:
        """Letter, model and changes."""
        changes = change_words(self.mask, parse_edits(self.edits, self.adapter.shape), self.adapter)
        return ", ".join([f"{self.letter} · {models.title_of(self.model)}", *changes])

    def with_own_gaps(self, text: str, other: TextVariant) -> str:
        """Return a text typed for another model with this model's mask token."""
        typed_for, own = other.adapter.input, self.adapter.input
        if not (isinstance(typed_for, TextWithGaps) and isinstance(own, TextWithGaps)):
            return text
        return text.replace(str(typed_for.tokenizer.mask_token), str(own.tokenizer.mask_token))

    def that_fits(self, source: tuple[int, ...]) -> TextVariant:
        """Return a copy without changes at positions that an input does not have, and draw a chip for each of these."""
        changes = parse_edits(self.edits, self.adapter.shape)
        view = View(self.model, source, self.mask, self.adapter, changes).with_fitting_changes()
        for change in view.waiting:
            chip(view.name_of(change), change.text, partial(toggle_edit, change.text), is_waiting=True)
        return replace(self, edits=join_edits(view.edit_links))

    def reading(self, source: tuple[int, ...]) -> Reading:
        """Return the run of this variant on a text."""
        return cached_runs.run(self.model, source, self.mask, self.edits)

    def named(self, reading: Reading) -> Reading:
        """Return the run relabelled with the title of this variant."""
        return relabel(reading, self.title)


Pair = tuple[TextVariant, TextVariant]
Sources = Sequence[tuple[int, ...]]


def compares_texts(model: str) -> bool:
    """Return whether a model is an external model that reads a single text."""
    is_usable = model in models.external_titles() and not models.usable(model)
    return is_usable and not models.adapter(model).shape.is_encoder_decoder


def no_text_reason(model: str) -> str:
    """Explain in one sentence why a model without token predictions cannot be compared here; "" where it can."""
    adapter = models.adapter(model)
    if adapter.input.kind == "picture":
        return f"{models.title_of(model)} reads pictures, but this screen compares predictions on texts."
    if adapter.output == "vectors":
        return f"{models.title_of(model)} outputs vectors and no predictions, so there is nothing to compare."
    return ""


def texts_panel(selection: ScreenSelection) -> None:
    """Ask for the other model and the text, and compare the predictions of both models."""
    a, link, others = TextVariant("A", selection.model), in_link(selection), _others(selection)
    st.sidebar.markdown(f"**A** · {escape_markdown(models.title_of(a.model))}")
    if not others:
        st.info("No other model here has this kind of output. Set a mask or make a change on another screen to compare the "
                "model with itself.")  # fmt: skip
        link_of_screen.share(link)
        return
    with st.sidebar:
        usual = usual_other(a.model, list(others))
        other = choose("with", others, "B", default=usual, key="compare_with", widget=st.selectbox)
        keep_widget_value("input")
        st.text_input("Text", key="input", persist_state="session")
    of_itself = {CHANGED: (a.model, selection.mask, selection.edits), OTHER_MASK: (a.model, _other_mask(a.model))}
    b = TextVariant("B", *of_itself.get(other, (other,)))
    link |= {"with": other, "input": str(st.session_state["input"])}
    link_of_screen.share(link)
    try:
        if reason := models.usable(b.model):
            raise InputError(reason)
        if _output(b.model) != _output(a.model):
            raise InputError(f"{models.title_of(b.model)} has another kind of output; choose another model.")
        text = validate_text(st.session_state["input"], MAX_TYPED)
        sources = [variant.adapter.input.read(variant.with_own_gaps(text, a)) for variant in (a, b)]
        both = (a, b.that_fits(sources[1]))
        below = (_continuations if a.adapter.input.is_open_ended else _gaps)(both, sources)
        link |= _runs(both, sources)
        below()
    except XformerError as error:
        st.info(escape_markdown(str(error)), icon=":material/info:")
        return
    link_of_screen.share(link)


def _others(selection: ScreenSelection) -> dict[str, str]:
    """Return the models to compare with: the same model with changes or another mask, and all with the same output."""
    found, output = {}, _output(selection.model)
    if selection.edits or selection.mask != cached_runs.MASKS[0]:
        found[CHANGED] = f"{models.title_of(selection.model)}, with the changes of the other screens"
    external = {name: title for name, title in models.external_titles().items() if name != selection.model}
    if not models.adapter(selection.model).shape.is_read_only:
        external[OTHER_MASK] = f"{models.title_of(selection.model)}, with {_other_mask(selection.model)} mask"
    own = models.shipped() if output == "next_token" else []
    own = [name for name in own if not models.usable(name) and _output(name) == output]
    return found | external | {name: models.title_of(name) for name in own}


def _other_mask(model: str) -> str:
    return "full" if models.adapter(model).shape.is_causal else "causal"


def usual_other(model: str, others: Sequence[str]) -> str:
    """Return the first of the other models that predicts the same kind of tokens, else the first one."""

    def kind(name: str) -> tuple[str, bool]:
        return _output(name), models.adapter(name).input.is_open_ended

    def fits(name: str) -> bool:
        return name in (CHANGED, OTHER_MASK) or (not models.usable(name) and kind(name) == kind(model))

    return next(filter(fits, others), others[0])


def _output(model: str) -> str:
    """Return the kind of a model's output; only models with the same kind are compared."""
    adapter = models.adapter(model)
    if isinstance(adapter.input, TextWithGaps):
        return "masked_token"
    return "next_token" if adapter.input.is_open_ended else adapter.output


def _continuations(both: Pair, sources: Sources) -> Callable[[], None]:
    """State where the continuations differ; return a function that draws them."""
    with interruptible_progress("Both models continue the text") as step:
        runs = [
            cached_runs.decoded(variant.model, source, variant.mask, variant.edits, step=step)
            for variant, source in zip(both, sources, strict=True)
        ]
    one, other = (GeneratedText.of(variant.adapter.input.decode, run) for variant, run in zip(both, runs, strict=True))
    at = first_difference(one, other)
    same = f"are identical in the {min(len(one.text), len(other.text))} characters that both have"
    headline(f"The continuations {same if at is None else f'differ from character **{at + 1}** on'}.")

    def draw() -> None:
        lanes = [lane_of(one.adapter, f"{one.letter} predicts", run) for one, run in zip(both, runs, strict=True)]
        prediction_strip(lanes, key="compare_texts")
        frame = pieces(one, other)
        if not frame.empty:
            for name in ("A says", "B says"):
                frame[name] = frame[name].str.replace(" ", "·").str.replace("\n", "↵")
            shares = {"p of A": SHARE, "p of B": SHARE}
            with st.expander("The continuations piece by piece", key="texts_pieces"):
                st.dataframe(frame, hide_index=True, column_config=shares, key="compare_pieces")

    return draw


def _runs(both: Pair, sources: Sources) -> dict[str, str]:
    """Compare both runs position by position; return what the link keeps.

    Each position of the first run is compared with the last token of the other run that ends at the same character or before.
    """
    runs = [variant.reading(source) for variant, source in zip(both, sources, strict=True)]
    if any(run.is_encoder_decoder or run.output in WHOLE for run in runs):  # there is no prediction at each position
        return {}
    panels = dict(PANELS)
    if prediction_incompatibility(*runs) is not None:
        del panels["apart"]
    if not runs[0].adapter.input.is_open_ended:
        del panels["surprise"]
    usual = next(name for name in ("apart", "surprise", "rows") if name in panels)
    bar = toolbar()
    with bar:
        chosen = choose("panel", panels, "Panel", default=usual, key="texts_panel", hide_label=True)
        at = -1 if chosen == "surprise" else _ask_position(runs, has_divergence="apart" in panels)
    if chosen == "surprise":
        named = [one.named(run) for one, run in zip(both, runs, strict=True)]
        picture(CONTEXT, "surprise", viz.surprise_by_character, named, key="compare_surprise")  # type: ignore[arg-type]
        shares = [f"{letter} {share:.2f}" for letter, run in zip("AB", named, strict=True) for share in _bits(run)]
        if shares:
            caption(f"Bits per character of this text: {', '.join(shares)}.")
        return {"panel": chosen}
    link = {"panel": chosen, "position": str(at)}
    if chosen == "apart":
        picture(CONTEXT, "apart", viz.prediction_difference, runs, position=at, key="compare_apart")  # type: ignore[arg-type]
        st.markdown(_largest_divergence(runs))
        caption("KL(A ‖ B) of the predicted distributions in nats; 0 where they are equal.")
        return link
    positions = (at, _aligned(runs, at))
    two = [one.named(at_position(run, place)) for one, run, place in zip(both, runs, positions, strict=True)]
    if chosen == "attention":
        panel(lambda: link.update(patterns_panel(CONTEXT, at, two, bar)))
    else:
        panel(rows_panel if chosen == "rows" else lens_panel, CONTEXT, at, two, (0, 1))
    return link


def _bits(run: Reading) -> list[float]:
    """Return the bits per character of a run; empty for a text of one token, which is not predicted."""
    bits: Any = table(CONTEXT, analysis.surprise_by_character, [run])
    return [] if bits.empty else [bits["bits"].sum() / bits["to"].max()]


def _ask_position(runs: Sequence[Reading], *, has_divergence: bool) -> int:
    """Ask for a position, at first the one with the largest divergence."""
    tokens = runs[0].tokens
    default = len(tokens) - 1 if runs[0].open_output is not None else runs[0].target_positions[-1]
    if has_divergence:
        kl = table(CONTEXT, analysis.prediction_difference, runs)["kl"].tolist()
        default = kl.index(max(kl)) if max(kl) > ROUNDING else default
    names = {str(at): f"{at} · {token}" for at, token in enumerate(tokens)}
    ask = partial(choose, key="texts_position", widget=st.selectbox, hide_label=True, width=160)
    return int(ask("position", names, "Position", default=str(default)))


def _aligned(runs: Sequence[Reading], at: int) -> int:
    """Return the last position at which the other run has read no more of the text."""
    one, other = ([len(run.adapter.input.decode(run.ids()[: n + 1])) for n in range(len(run.tokens))] for run in runs)
    return max((place for place, end in enumerate(other) if end <= one[at]), default=0)


def _largest_divergence(runs: Sequence[Reading]) -> str:
    row = table(CONTEXT, analysis.prediction_difference, runs).nlargest(1, "kl").to_dict("records")[0]
    if row["kl"] <= ROUNDING:
        return f"The predicted distributions are equal to within {ROUNDING:g} nats at every position of this text."
    if math.isinf(row["kl"]):
        none = "one model gives no probability to what the other can predict: KL is infinite there"
        return f"At {where_of(row)}, {none}."
    predictions = ", ".join(
        f"{letter} predicts {escape_markdown(str(row[f'{name}_says']))} ({row[f'{name}_probability']:.3f})"
        for letter, name in (("A", "one"), ("B", "other"))
    )
    return f"The largest divergence is at {where_of(row)}: {row['kl']:.3g} nats (KL); {predictions}."


def where_of(row: Mapping[str, Any]) -> str:
    """Return the position and the token of a row, such as "position 3 · cat"."""
    return f"position {row['position']} · {escape_markdown(str(row['token']))}"


def _gaps(both: Pair, sources: Sources) -> Callable[[], None]:
    """Draw the predictions of both models at each gap; return a function that draws the alternatives at the first gaps."""
    runs = [variant.named(variant.reading(source)) for variant, source in zip(both, sources, strict=True)]
    lanes = []
    for variant, run in zip(both, runs, strict=True):
        tokens = tuple(run.adapter.token_labels[token] for token in run.predicted)
        lanes.append(Lane(f"{variant.letter} predicts", tokens, probability=run.probability))
    prediction_strip(lanes, key="compare_gaps")
    return partial(_alternatives, runs, [variant.letter for variant in both])


def _alternatives(runs: Sequence[Reading], letters: Sequence[str]) -> None:
    """Draw the most likely options at the first gaps, with their probabilities in both models."""
    has_classes = runs[0].output in CLASSES or runs[0].output == "answer_span"
    if not has_classes and any(run.answer == tuple(run.ids()[at] for at in run.target_positions) for run in runs):
        caption("This text has no gaps. Each position shows the most likely token there.")
        return
    found = table(CONTEXT, analysis.gap_fillings, runs)
    numbers = found["gap"].unique().tolist()[:MAX_GAPS]
    for place, number in zip(st.columns(max(2, len(numbers))), numbers, strict=False):
        one = found[found["gap"] == number].pivot(index="token", columns="model", values="probability")
        one = one.reindex(columns=[run.adapter.name for run in runs]).set_axis(letters, axis=1)
        with place:
            st.markdown(f"**{_gap_name(runs[0], number)}**")
            one = one.sort_values(letters[0], ascending=False)
            st.dataframe(one, column_config=dict.fromkeys(letters, SHARE), key=f"compare_gap_{number}")
    caption("The most likely options of each model, with their probabilities in both. Empty: not an option there.")
    footer(CONTEXT, "gaps", [picture_call(analysis.gap_fillings, runs)])


def _gap_name(run: Reading, number: int) -> str:
    if run.output == "answer_span":
        return ("Start", "End")[number]
    if run.output == "token_class":
        return f"Position {run.target_positions[number]}, {escape_markdown(run.tokens[run.target_positions[number]])}"
    return "Class" if run.output in CLASSES else f"Gap {number + 1}"
