"""Two models that read texts, one of them made elsewhere: what each says, the character at which they part, and why there.

Their tokens may be of different vocabularies, so nothing here compares tokens unless both have the same.
"""

from __future__ import annotations

import streamlit as st

from pages.compare.comparison import in_link
from pages.compare.gaps import gaps_panel
from pages.compare.text_player import TextPlayer, surprise
from pages.compare.text_runs import runs_panel
from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared import link as link_of_screen
from pages.shared import models, resources
from pages.shared.escape_markdown import escape_markdown
from pages.shared.input_kinds.kind import MOST_TYPED
from pages.shared.layout import caption
from pages.shared.link import carry
from pages.shared.link_widgets import choose
from pages.shared.patience import patience
from pages.shared.session import LookedAt
from pages.shared.typed import typed
from xformer.adapters.inputs import TextWithGaps
from xformer.analysis.differences import SaidText, parting, pieces
from xformer.errors import InputError, XformerError

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
