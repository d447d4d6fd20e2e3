"""What is measured in both runs of a minimal pair: at which output, and how far which answer is ahead of which other."""

from __future__ import annotations

import streamlit as st

from pages.components.prediction_strip import Lane, prediction_strip
from pages.shared.escape_markdown import escape_markdown
from pages.shared.link_widgets import choose
from pages.shared.token_search import ask_token
from xformer.analysis.minimal_pairs import MinimalPair, differing, stacks_of, usual_answers, where_they_part
from xformer.reading import Reading
from xformer.words import percent

_ABOUT = "pair_measured"


def show_tokens(one: Reading, other: Reading) -> None:
    """Both inputs, token under token; what differs is marked."""
    lanes = []
    for stack in stacks_of(one):
        moved = differing(one, other, stack)
        does = "writes" if one.is_pair and stack == "decoder" else "reads"
        tokens = [reading.tokens_of(stack) for reading in (one, other)]
        lanes.append(Lane(f"First {does}", tokens[0]))
        lanes.append(Lane(f"Second {does}", tokens[1], moved=tuple(at in moved for at in range(len(tokens[1])))))
    prediction_strip(lanes, key="pair_tokens")


def ask_measure(one: Reading, other: Reading) -> MinimalPair:
    """The output and the two answers; at first where they part, and what each says there. Raises `InputError`."""
    about = f"{one.recipe} {other.recipe}"
    if st.session_state.get(_ABOUT, about) != about:  # what was chosen was about other inputs
        for key in ("output", "answer", "instead"):
            st.session_state.pop(key, None)
    st.session_state[_ABOUT] = about
    usual, tokens, labels = where_they_part(one, other), one.tokens_of(one.output_stack), one.subject.labels
    n = one.logits.shape[1]
    names = tokens if len(tokens) == n else [""] * n
    places = {
        str(at): f"{at} · after {name}" if not _is_encoder(one) else f"{at} · {name}" for at, name in enumerate(names)
    }
    where, left, right = st.columns([2, 3, 3], gap="small", vertical_alignment="bottom")
    with where:
        at = int(choose("output", places, str(usual), "At output", widget=st.selectbox))
    said = usual_answers(one, other, at)
    with left:
        answer = ask_token(labels, "answer", said[0], "How far is", help="Empty: the first run’s likeliest token.")
    with right:
        instead = ask_token(labels, "instead", said[1], "ahead of", help="Empty: what the second run says instead.")
    return MinimalPair.of(one, other, (answer, instead), at)


def measured(pair: MinimalPair) -> str:
    """Both values of the measure, and what both runs believe, as Markdown."""
    names = _names(pair)
    said = []
    for which, run, value in (("First", pair.reading, pair.start), ("Second", pair.source, pair.goal)):
        p = run.logits[0, pair.position].softmax(dim=-1)
        shares = [f"{name} {percent(float(p[token]), 0)}" for name, token in zip(names, pair.answers, strict=True)]
        said.append(f"{which} **{signed(value)}** :small[:gray[{', '.join(shares)}]]")
    return f"{measure_name(pair)}: {' · '.join(said)}"


def measure_name(pair: MinimalPair) -> str:
    """What is measured, as Markdown."""
    return " − ".join(f"logit({name})" for name in _names(pair))


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _names(pair: MinimalPair) -> list[str]:
    return [escape_markdown(pair.reading.subject.labels[token]) for token in pair.answers]


def _is_encoder(reading: Reading) -> bool:
    return reading.subject.shape.architecture == "encoder"
