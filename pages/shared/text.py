"""Text on a screen: what visitors typed, shown letter by letter, and technical terms in plain English.

    st.markdown(escape_markdown(name))
    st.caption(text, help=explained(text))
    what_to_notice(notes)                    # pages.shared.layout: explains by itself

A backslash before each punctuation mark disarms what Markdown grammar sees. Streamlit and GitHub dialect also look through
the finished text, where no backslash is left: for addresses, `:streamlit:` and arrows. An invisible word joiner parts those.
"""

from __future__ import annotations

import re
import string

_MARKS = re.compile(f"([{re.escape(string.punctuation)}])")
_FOUND_LATER = re.compile(
    r":(?=[\w/+])"  # http://…, mailto:…, :streamlit:, :material/…
    r"|@(?=\w)"  # me@example.org
    r"|\bwww(?=\.)"
    r"|[-<>=~](?=[-<>=~])",  # -> <- -- >= ~=
    re.IGNORECASE,
)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
"""At the start of a line four spaces would make it code."""
WORD_JOINER = "\N{WORD JOINER}"


def escape_markdown(text: str) -> str:
    """The Markdown that shows a text letter by letter."""
    text = _INDENT.sub(lambda indent: "\N{NO-BREAK SPACE}" * len(indent[0]), text)
    return _MARKS.sub(r"\\\1", _FOUND_LATER.sub(rf"\g<0>{WORD_JOINER}", text))


WORDS = {
    "logit": "the score a model gives to a token before the scores are made into probabilities; higher is likelier",
    "softmax": "makes scores into positive shares that sum to 1: e to the power of each, divided by the sum",
    "nats": "logarithms of probabilities: a loss of 0 is certain and 0.69 a coin; an advantage of 1 is odds of 2.7 to 1",
    "bits": "how many yes-or-no answers are missing; one bit is 0.69 nats",
    "KL": "Kullback–Leibler divergence: how far one set of probabilities is from another, in nats; 0 where they are equal",
    "TV": "total variation: half the sum of the differences of two sets of probabilities; 0 is equal, 1 has nothing in common",
    "entropy": "how spread out probabilities are: 0 when all is in one place, most when everything is equally likely",
    "loss": "what training makes small: −ln of the probability of each right token, on average",
    "residual stream": "the vector of a position on its way through the model: every layer reads it and adds to it",
    "unembedding": "the last matrix: it gives every token of the vocabulary its logit",
    "embedding": "the vector that a token begins as, learned in training",
    "logit lens": "what the model would say if its last layer were this one: the stream read by the unembedding",
    "attribution": "splitting a logit into what each part of the model added to it",
    "post-norm": "the norm comes after each sum, as in the paper of 2017",
    "pre-norm": "the norm comes before each part and leaves the stream itself as it is, as in most models today",
    "norm": "sets the length of a vector to a usual size, then scales it number by number; or that length itself",
    "head": "one of several attentions side by side in a layer, each with a pattern of its own",
    "pattern": "how much each position (row) looks at each other (column); every row sums to 1",
    "query": "what a position looks for; its product with a key is their score",
    "key": "what a position offers to be found by",
    "value": "what a position hands over to those who look at it",
    "mask": "says which positions may not be looked at; their score becomes −∞ and their weight 0",
    "causal": "a position sees itself and what stands before it, never what comes after",
    "anti-diagonal": "from the lower left to the upper right: the first looks at the last, the second at the last but one",
    "diagonal": "from the upper left to the lower right: every position looks at itself",
    "induction head": "finds the last time that the present token stood there, and looks at what came after it",
    "sink": "a position, often the first, that is looked at when there is nothing to look for",
    "rollout": "attention multiplied through the layers, as if nothing but attention moved anything",
    "cross-attention": "attention from the decoder's positions to the encoder's",
    "greedy": "takes the likeliest token each time",
    "temperature": "divides the logits before the softmax: below 1 is surer, above 1 more varied, 0 always the likeliest",
    "teacher forcing": "the model is given the right tokens so far, not its own",
    "neuron": "one of the numbers in the middle of a feed-forward layer; it writes that number times a vector of its own",
    "activity": "how much a neuron writes: |activation| × the norm of its vector; |activation| where that is out of reach",
    "fires": "a neuron fires where its activity is more than a millionth of its layer's mean peak",
    "dead": "a neuron that fires nowhere: it writes (almost) nothing at any position",
    "standard error": "how far an average is likely off by chance; beyond three of them chance is a poor explanation",
    "cosine": "how alike the directions of two vectors are: 1 the same, 0 unrelated, −1 opposite",
    "PCA": "principal component analysis: the directions in which vectors differ most, as axes of a picture",
    "ablation": "running the model without a part, to see what that part did",
    "patching": "putting a part of one run into another, to see what it carries",
}
"""Each word, and what it means. A longer one is not taken for the shorter one inside it."""

_LOWER = {word.lower(): word for word in WORDS}
_LONGEST_FIRST = "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True))
_FIND = re.compile(rf"(?<![\w-])({_LONGEST_FIRST})(?:e?s)?(?![\w-])", re.IGNORECASE)


def words_in(text: str, *, except_for: set[str] | None = None) -> list[str]:
    """The words of the field in a text, each once, in its order; KL and TV in capitals only, like all that are all capitals."""
    matches = (match[1] for match in _FIND.finditer(text.replace("\\", "").replace("*", "")))
    found = dict.fromkeys(_LOWER[one.lower()] for one in matches if not _LOWER[one.lower()].isupper() or one.isupper())
    return [word for word in found if word not in (except_for or ())]


def explained(text: str, *, except_for: set[str] | None = None) -> str | None:
    """What the words of the field in a text mean, as Markdown for `help=`; None where it uses none."""
    found = words_in(text, except_for=except_for)
    return "\n\n".join(f"**{word}**: {WORDS[word]}." for word in found) or None
