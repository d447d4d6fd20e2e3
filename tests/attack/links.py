"""Odd links for every screen: each is a page with perhaps a sentence, and none breaks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from urllib.parse import quote

from tests.attack.visitor import Visitor

SCREENS = (
    "", "embeddings", "positions", "attention", "feed_forward", "residual", "train", "runs", "compare", "first_principles",
    "bug_lab",
)  # fmt: skip
NAMES = (
    "model", "input", "mask", "edits", "layer", "head", "query", "key", "panel", "step", "pair", "a", "b", "c", "d", "mode",
    "reads", "run", "runs", "find", "sort", "order", "state", "tag", "x", "y", "curves", "smooth", "side", "pos", "goal",
    "draw", "paper", "text", "seed", "row", "vector", "bug", "own", "more", "window", "embed",
    "compare", "other", "output", "answer", "instead", "part", "method", "cell",
)  # fmt: skip
MODELS = ("reverse", "reverse-seq2seq", "characters", "digits", "reverse-small@3", "0123abcd@5", "../x", "")
VALUES = (
    "", "-1", "0", "1e309", "nan", "99999999999999999999", "%ED%A0%80", "%00", "%FF%FE", "../../etc/passwd", "$x$",
    "<script>alert(1)</script>", ":material/delete:", "1 2 3", "3 7 12 9", "silence:encoder.0.attn.99", "token:0.1",
    "cut:encoder.0.attn.0.0.0", "a~b~c", "reverse~top_k-99999999999999", "reverse~temperature-nan", "'; DROP TABLE runs; --",
    "pairs", "head", "exact",
    "true", "[]", "{}", "∞", "😀" * 50, "a" * 5000, ",".join(["1"] * 2000), "drawn 16 16", "test -1", "test 99999999",
)  # fmt: skip


def attempts(base: str, n: int, draw: random.Random) -> Iterator[str]:
    """Follow n odd links, each screen in turn."""
    with Visitor(base) as visitor:
        for number in range(n):
            page = SCREENS[number % len(SCREENS)]
            link = {name: draw.choice(VALUES) for name in draw.sample(NAMES, draw.randrange(1, 8))}
            if draw.random() < 0.7:
                link["model"] = draw.choice(MODELS)
            query = "&".join(f"{name}={value if '%' in value else quote(value)}" for name, value in link.items())
            screen = visitor.open(page, query)
            yield "a sentence" if screen.words else "a page"
