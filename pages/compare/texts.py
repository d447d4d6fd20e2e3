"""Two models that read texts, one of them made elsewhere: what each says, the character at which they part, and why there.

Their tokens may be of different vocabularies, so nothing here compares tokens unless both have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from pages.compare.comparison import in_link
from pages.compare.panels import lens_panel, patterns_panel, rows_panel
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import link as link_of_screen
from pages.shared import models, resources
from pages.shared.call import Call
from pages.shared.escape_markdown import escape_markdown
from pages.shared.input_kinds.kind import MOST_TYPED
from pages.shared.layout import caption
from pages.shared.link import carry
from pages.shared.patience import patience
from pages.shared.picture import footer, panel, picture, table
from pages.shared.session import LookedAt
from pages.shared.widgets import choose, typed
from xformer import analysis, viz
from xformer.adapters import ModelAdapter
from xformer.adapters.huggingface_opening import CLASSES
from xformer.adapters.inputs import TextWithGaps
from xformer.analysis.differences import (
    SaidText,
    bits_per_character,
    deciding_at,
    named,
    parting,
    pieces,
    why_not_apart,
)
from xformer.analysis.residual import WHOLE
from xformer.errors import InputError, XformerError
from xformer.interventions import parse
from xformer.reading import Reading

_CHANGED = "changed"


def compares_texts(model: str) -> bool:
    """Whether a model is one of others that goes on with a text, or fills its gaps."""
    return model in models.foreign_titles() and not models.usable(model) and not models.subject(model).shape.is_pair


def why_no_text(model: str) -> str:
    """Why this screen has nothing to compare of a model that says no tokens, as one sentence; "" where it has."""
    subject = models.subject(model)
    if subject.input.kind == "picture":
        return f"{models.title_of(model)} reads pictures, and this screen compares what models say to a text."
    if getattr(subject, "output", "") == "vectors":
        return f"{models.title_of(model)} gives vectors and no predictions, so there are none to compare."
    return ""


def texts_panel(looked: LookedAt) -> None:
    """Ask for the other model and the text; let both go on with it."""
    a, title = TextPlayer("A", looked.model), escape_markdown(models.title_of(looked.model))
    others = _others(looked)
    link = in_link(looked)
    one, two = st.columns([2, 3], vertical_alignment="bottom")
    one.markdown(f"**A** · {title}")
    if not others:
        st.info(
            f"There is no second model here that {_does(looked.model)}. Change something on another screen and come back."
        )
        link_of_screen.share(link)
        return
    with two:
        other = choose("with", others, next(iter(others)), "B", key="compare_with", widget=st.selectbox)
    b = TextPlayer("B", a.model, looked.mask, looked.edits) if other == _CHANGED else TextPlayer("B", other)
    carry("input")
    st.text_input("Text", key="input", persist_state="session")
    link |= {"with": other, "input": str(st.session_state["input"])}
    link_of_screen.share(link)
    if why := models.usable(b.model):
        st.error(escape_markdown(why))
        return
    if _kind(b.model) != _kind(a.model):
        st.info(
            f"{escape_markdown(models.title_of(b.model))} is no model that {_does(a.model)}.", icon=":material/info:"
        )
        return
    try:
        text = typed(st.session_state["input"], MOST_TYPED)
        sources = [player.subject.input.read(player.in_its_words(text, a)) for player in (a, b)]
        if not a.subject.input.goes_on:
            gaps_panel((a, b), sources)
            link_of_screen.share(link | runs_panel((a, b), sources))
            return
        with patience("Both go on with the text") as step:
            runs = [
                resources.decoded(player.model, source, player.mask, player.changes, step=step)
                for player, source in zip((a, b), sources, strict=True)
            ]
    except (InputError, XformerError) as error:
        st.error(escape_markdown(str(error)), icon=":material/edit:")
        return
    said = [SaidText.of(player.subject.input.plain, run) for player, run in zip((a, b), runs, strict=True)]
    lanes = [_lane(player, run) for player, run in zip((a, b), runs, strict=True)]
    prediction_strip(lanes, key="compare_texts")
    caption(_where(*said))
    _table(*said)
    caption(surprise((a, b), sources, text))
    link_of_screen.share(link | runs_panel((a, b), sources))


def _others(looked: LookedAt) -> dict[str, str]:
    """What it can be compared with: itself under the changes of the other screens, and all else that goes on with a text."""
    found, kind = {}, _kind(looked.model)
    if looked.edits or looked.mask != resources.MASKS[0]:
        found[_CHANGED] = f"{models.title_of(looked.model)}, with what is changed on the other screens"
    foreign = {name: title for name, title in models.foreign_titles().items() if name != looked.model}
    own = [
        name for name in models.shipped() if kind == "next_token" and not models.usable(name) and _kind(name) == kind
    ]
    return found | foreign | {name: models.title_of(name) for name in own}


def _kind(model: str) -> str:
    """What it puts out: only models that put out the same are compared."""
    subject = models.subject(model)
    if isinstance(subject.input, TextWithGaps):
        return "masked_token"
    return "next_token" if subject.input.goes_on else getattr(subject, "output", "next_token")


def _does(model: str) -> str:
    words = {
        "next_token": "goes on with a text",
        "masked_token": "fills the gaps of a text",
        "sequence_class": "names a class of a text",
        "token_class": "names a class of each token",
        "answer_span": "finds an answer in a text",
        "next_sentence": "says whether one sentence follows another",
    }
    return words.get(_kind(model), "predicts the same")


def _lane(player: TextPlayer, run: tuple[tuple[int, float], ...]) -> Lane:
    labels = player.subject.labels
    return Lane(f"{player.letter} says", tuple(labels[token] for token, _ in run), probability=tuple(p for _, p in run))


def _where(one: SaidText, other: SaidText) -> str:
    at = parting(one, other)
    if at is None:
        n = min(len(one.text), len(other.text))
        return f"They say the same, as far as both go: {n} characters."
    same = f"{at} characters that are the same" if at != 1 else "1 character that is the same"
    before = f"after {same}" if at else "at the first character"
    return f"They part {before}. Each took its likeliest token each time; a bar shows how sure it was."


def _table(one: SaidText, other: SaidText) -> None:
    frame = pieces(one, other)
    if frame.empty:
        return
    for name in ("A says", "B says"):
        frame[name] = frame[name].str.replace(" ", "·").str.replace("\n", "↵")
    share = st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent")
    st.dataframe(frame, hide_index=True, column_config={"p of A": share, "p of B": share}, key="compare_pieces")
    st.caption(
        "The text cut where both have the end of a token, with the product of its tokens’ probabilities; the last row is where "
        "they part."
    )


@dataclass(frozen=True)
class TextPlayer:
    """A model under a mask and changes."""

    letter: str
    model: str
    mask: str = resources.MASKS[0]
    changes: str = ""

    @property
    def subject(self) -> ModelAdapter:
        return models.subject(self.model)

    @property
    def title(self) -> str:
        """What it is called beside another one."""
        changed, changes = resources.mask_words(self.mask), parse(self.changes, self.subject.shape)
        changed += [changes[0].label] if len(changes) == 1 else [f"{len(changes)} changes"] if changes else []
        return ", ".join([f"{self.letter} · {models.title_of(self.model)}", *changed])

    def in_its_words(self, text: str, other: TextPlayer) -> str:
        """A text that was typed for another model: what is missing is written by each in its own way."""
        theirs, ours = other.subject.input, self.subject.input
        if not (isinstance(theirs, TextWithGaps) and isinstance(ours, TextWithGaps)):
            return text
        return text.replace(str(theirs.tokenizer.mask_token), str(ours.tokenizer.mask_token))

    def reading(self, source: tuple[int, ...]) -> Reading:
        """Its run on a text."""
        return resources.run(self.model, source, self.mask, self.changes)

    def named(self, reading: Reading) -> Reading:
        """The same run, as that of the model under its title."""
        return named(reading, self.title)


def surprise(players: tuple[TextPlayer, TextPlayer], sources: list[tuple[int, ...]], text: str) -> str:
    """How far each expected what was typed, for each character; and whether tokens can be compared at all."""
    said = []
    for player, source in zip(players, sources, strict=True):
        run = player.reading(source)
        if len(run.answer) < 1 or run.example.target is not None:
            continue
        n = len(text) - len(player.subject.input.plain(source[: len(source) - len(run.answer)]))
        if n > 0:
            said.append(f"{player.letter} {bits_per_character(run.loss, len(run.answer), n):.2f}")
    typed_text = (
        f"Bits for each character of what was typed, after its first token: {', '.join(said)}. " if said else ""
    )
    labels = [player.subject.labels for player in players]
    same = (
        "Both have the same tokens."
        if labels[0] == labels[1]
        else "They cut a text into different tokens, so what needs a common vocabulary, like the distance of two distributions "
        "over it, cannot be said."
    )
    return typed_text + same


PANELS = {"apart": "how far apart", "attention": "where they looked", "rows": "heads", "lens": "when decided"}

ROUNDING = 1e-6
"""Nats: a divergence below it is float32's rounding."""


@dataclass(frozen=True)
class TwoRuns:
    """What the panels ask of what is compared."""

    model: str = "compare"
    unit: str = "position"


def runs_panel(players: Sequence[TextPlayer], sources: Sequence[tuple[int, ...]]) -> dict[str, str]:
    """Ask for a panel and a position, and draw; returns what the link keeps."""
    runs = [player.reading(source) for player, source in zip(players, sources, strict=True)]
    if any(run.is_pair or run.output in WHOLE for run in runs):  # nothing is said at each position
        return {}
    about = TwoRuns()
    is_apart = why_not_apart(*runs) is None
    panels = PANELS if is_apart else {name: words for name, words in PANELS.items() if name != "apart"}
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        shown = choose("panel", panels, next(iter(panels)), "Panel", key="texts_panel", label_visibility="collapsed")
        at = _ask_position(about, runs, is_apart=is_apart)
    places = (at, _beside(runs, at))
    if shown == "apart":
        st.markdown(_furthest(about, runs))
        picture(about, "apart", viz.beliefs_apart, runs, at=at)  # type: ignore[arg-type]
        believes = "believes comes next" if runs[0].subject.input.goes_on else "believes of each position"
        st.caption(
            f"How far what {players[1].letter} {believes} is from what {players[0].letter} believes: "
            "KL(A ‖ B) in nats at each position, 0 where they believe the same."
        )
        return {"panel": shown, "position": str(at)}
    two = [player.named(deciding_at(run, place)) for run, place, player in zip(runs, places, players, strict=True)]
    if shown == "attention":
        more: dict[str, str] = {}
        panel(lambda: more.update(patterns_panel(about, at, two)))
        return {"panel": shown, "position": str(at), **more}
    panel(rows_panel if shown == "rows" else lens_panel, about, at, two, (0, 1))
    return {"panel": shown, "position": str(at)}


def _ask_position(about: TwoRuns, runs: Sequence[Reading], *, is_apart: bool) -> int:
    tokens = runs[0].tokens
    usual = len(tokens) - 1 if runs[0].open_output is not None else runs[0].asked[-1]
    if is_apart:
        apart = table(about, analysis.beliefs_apart, runs)["kl"].tolist()
        usual = apart.index(max(apart)) if max(apart) > ROUNDING else usual
    names = {str(at): f"{at} · {token}" for at, token in enumerate(tokens)}
    wanted = choose("position", names, str(usual), "Position", key="texts_position", widget=st.selectbox)
    return int(wanted)


def _beside(runs: Sequence[Reading], at: int) -> int:
    """The position of the other run that has read as much of the text."""
    one, other = ([len(run.subject.input.plain(run.ids()[: n + 1])) for n in range(len(run.tokens))] for run in runs)
    return max((place for place, end in enumerate(other) if end <= one[at]), default=0)


def _furthest(about: TwoRuns, runs: Sequence[Reading]) -> str:
    row = max(table(about, analysis.beliefs_apart, runs).to_dict("records"), key=lambda row: row["kl"])
    if row["kl"] <= ROUNDING:
        return f"What they believe is equal to within {ROUNDING:g} nats at every position of this text."
    is_same = row["one_says"] == row["other_says"]
    if runs[0].output == "token_class":
        same = "the same class is" if is_same else "different classes are"
    else:
        same = "the same token is" if is_same else "different tokens are"
    says = ", ".join(
        f"{letter} {escape_markdown(str(row[f'{which}_says']))} ({row[f'{which}_probability']:.3f})"
        for letter, which in (("A", "one"), ("B", "other"))
    )
    reads = "after" if runs[0].subject.input.goes_on else "which reads"
    return (
        f"They are furthest apart at position {row['position']}, {reads} {escape_markdown(str(row['token']))}: "
        f"{row['kl']:.3g} nats (KL), where {same} likeliest: {says}."
    )


MOST_GAPS = 4


def gaps_panel(players: Sequence[TextPlayer], sources: Sequence[tuple[int, ...]]) -> None:
    """What each says at each place that it is asked about, and of the first gaps the alternatives with their probabilities."""
    runs = [player.named(player.reading(source)) for player, source in zip(players, sources, strict=True)]
    prediction_strip([_gaps_lane(player, run) for player, run in zip(players, runs, strict=True)], key="compare_gaps")
    word, several = _outputs(runs[0])
    if word == "token" and any(run.answer == tuple(run.ids()[at] for at in run.asked) for run in runs):
        caption("Nothing is missing from this text: at each place stands the token that each finds likeliest there.")
        return
    found = table(TwoRuns(), analysis.gap_fillings, runs)
    numbers = found["gap"].unique().tolist()[:MOST_GAPS]
    share = st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent")
    for place, number in zip(st.columns(max(2, len(numbers))), numbers, strict=False):
        one = found[found["gap"] == number].pivot(index="token", columns="player", values="probability")
        one = one.reindex(columns=[run.subject.name for run in runs]).sort_values(runs[0].subject.name, ascending=False)
        with place:
            st.markdown(f"**{_asked(runs[0], number)}**")
            st.dataframe(
                one.rename_axis(word).rename(
                    columns=dict(zip(one.columns, (player.letter for player in players), strict=True))
                ),
                column_config={player.letter: share for player in players},
                key=f"compare_gap_{number}",
            )
    caption(
        f"The likeliest {several} of each with what both give them; nobody knows what is right. Empty: it has no such {word}."
    )
    footer(TwoRuns(), "gaps", [Call(analysis.gap_fillings, (runs,))])


def _outputs(run: Reading) -> tuple[str, str]:
    """One of the things that it chooses among, and several."""
    if run.output == "answer_span":
        return "position", "positions"
    return ("class", "classes") if run.output in CLASSES else ("token", "tokens")


def _asked(run: Reading, number: int) -> str:
    """What one of the outputs is about."""
    if run.output == "answer_span":
        return ("Start", "End")[number]
    if run.output == "token_class":
        return f"Position {run.asked[number]}, {escape_markdown(run.tokens[run.asked[number]])}"
    return "Class" if run.output in CLASSES else f"Gap {number + 1}"


def _gaps_lane(player: TextPlayer, run: Reading) -> Lane:
    said = tuple(run.subject.labels[token] for token in run.predicted)
    return Lane(f"{player.letter} says", said, probability=run.probability)
