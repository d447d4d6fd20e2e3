"""Requests of untrusted visitors: odd links, values that no widget sends, and twenty visitors at once."""

from __future__ import annotations

import os
import random
import secrets
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch
from urllib.parse import quote

from streamlit.proto.WidgetStates_pb2 import WidgetState

from tests.attack.damaged import originals
from tests.attack.visitor import Visitor
from tests.browser.serving import launch, stop
from tests.trials import Kind
from xformer.checkpoints import Checkpoint, from_bytes, to_bytes
from xformer.training.run_store import RunStore

SCREENS = (
    "", "embeddings", "positions", "attention", "feed_forward", "residual", "train", "runs", "compare", "first_principles",
    "bug_lab", "learn",
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
ODD_JSON = ("null", "[]", "{}", '"\\ud800"', "1e999", '{"number": "\\ud800", "step": -1, "layer": 99, "head": [], "heads": {}}',
            '{"value": {"pixels": "zz", "order": {}, "own": 3}}')  # fmt: skip
ODD_TEXT = ("", "no such option", "a" * 3000, "=1", "$x$ \x00 \x1b", "0123abcd", "😀")


class Ground(NamedTuple):
    """A server to attack."""

    base: str
    store: RunStore
    log: Path
    """The output of the server."""

    def check(self) -> None:
        """Raise an error if the server no longer responds."""
        with urllib.request.urlopen(f"{self.base}/_stcore/health", timeout=30) as answer:
            assert answer.read() == b"ok"


@contextmanager
def served() -> Iterator[Ground]:
    """Run a multi-user server on 127.0.0.1 with its own temporary folder."""
    with tempfile.TemporaryDirectory(prefix="xformer-attack-", ignore_cleanup_errors=True) as folder:
        runs, data = Path(folder) / "runs", Path(folder) / "data"
        settings = {"XFORMER_RUNS": str(runs), "XFORMER_DATA": str(data), "XFORMER_OPEN": "0"}
        log = Path(folder) / "server.log"
        with patch.dict(os.environ, settings):
            server, base = launch(("-m", "tests.attack.watched"), log=log)
        try:
            with Visitor(base) as visitor:
                visitor.open()  # waits until the libraries are loaded
            yield Ground(base, RunStore(runs), log)
        finally:
            stop(server)


def links(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Open n odd links on all screens in turn: each must give a page, possibly with a message, without an exception."""
    with Visitor(ground.base) as visitor:
        for number in range(n):
            link = {name: draw.choice(VALUES) for name in draw.sample(NAMES, draw.randrange(1, 8))}
            if draw.random() < 0.7:
                link["model"] = draw.choice(MODELS)
            query = "&".join(f"{name}={value if '%' in value else quote(value)}" for name, value in link.items())
            screen = visitor.open(SCREENS[number % len(SCREENS)], query)
            yield "a sentence" if screen.words else "a page"
    ground.check()


def forged(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Send n values that no widget offers; the screens must handle them. Streamlit itself rejects values of a wrong type."""
    tried = 0
    with Visitor(ground.base) as visitor:
        while tried < n:
            page = draw.choice(SCREENS)
            visitor.open(page)
            for name in draw.sample(list(visitor.screen.widgets), k=min(6, len(visitor.screen.widgets))):
                if name in visitor.screen.widgets and (state := _fitting(name, visitor.screen.widgets[name], draw)):
                    try:
                        visitor.run(state)
                    except AssertionError as error:
                        raise AssertionError(f"{page or 'home'}, {name}: {state!r:.300}: {error}") from error
                    tried += 1
                    yield "survived"
    ground.check()


def _fitting(name: str, widget: object, draw: random.Random) -> WidgetState | None:
    state, kind = WidgetState(id=name), type(widget).__name__
    if kind in ("TextInput", "Selectbox"):
        state.string_value = draw.choice(ODD_TEXT)
    elif kind in ("Button", "DownloadButton"):
        state.trigger_value = True
    elif kind == "Checkbox":
        state.bool_value = draw.random() < 0.5
    elif kind == "BidiComponent":
        state.json_value = draw.choice(ODD_JSON)
    else:  # Streamlit rejects a value outside the options by aborting the run
        return None
    return state


def crowd(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Send n visits in total from up to twenty concurrent visitors, with secrets in inputs, edits and uploads.

    No visitor may receive a secret of another.
    """
    visitors = min(n, 20)
    looks = [
        [draw.choice(("", "attention", "residual", "compare")) for _ in range(n // visitors)] for _ in range(visitors)
    ]
    with ThreadPoolExecutor(visitors) as pool:
        found = list(pool.map(partial(_visit, ground), looks))
    for secret, seen in found:
        assert seen <= secret, f"a visitor received {seen - secret}, secrets of another visitor"
        yield from ("kept",) * len(secret)
    assert any(seen for _, seen in found), "no visitor received even their own secrets, so nothing was tested"
    ground.check()


def _visit(ground: Ground, pages: list[str]) -> tuple[set[bytes], set[bytes]]:
    """Visit pages as one visitor. Returns the visitor's own secrets, and all secrets that the visitor received."""
    mine: set[bytes] = set()

    def canary() -> str:
        mine.add(word := f"canary{secrets.token_hex(6)}".encode())
        return word.decode()

    with Visitor(ground.base) as visitor:
        for page in pages:
            visitor.open(page, f"model=reverse&input={canary()}")
            visitor.open(page, f"model=reverse&input=3 7 12&edits={canary()}")
            visitor.open("first_principles", f"text=the {canary()}")
            visitor.open("", f"model=characters&input=The {canary()} and more")
            visitor.open("runs", f"find={canary()}")
            visitor.open("train")
        visitor.open("runs")
        good, name = from_bytes(originals()["import"]), canary()
        content = to_bytes(Checkpoint(good.model, good.task, {**good.card, "name": name, "about": canary()}))
        visitor.upload("runs_import", f"{canary()}.safetensors", content)
        [entry] = [entry for entry in ground.store.entries() if entry.owner == visitor.cookie]
        assert (entry.name, bool(entry.private)) == (name, True)
        with Visitor(ground.base, cookie=secrets.token_hex(16)) as stranger:  # a stranger with the link
            stranger.open("train", f"run={entry.id}")
            stranger.open("runs", f"runs={entry.id}")
            stranger.open("", f"model={entry.id}@{entry.step}")
            stranger.open("compare", f"a={entry.id}&b=reverse")
            assert not stranger.seen, f"a stranger received {stranger.seen}"
        return mine, visitor.seen


def kinds(ground: Ground) -> list[Kind]:
    """Return the kinds of attacks on this server."""
    return [
        Kind("odd links", partial(links, ground), 11, 480),
        Kind("forged values", partial(forged, ground), 4, 250),
        Kind("secrets of a crowd", partial(crowd, ground), 2, 40),
    ]
