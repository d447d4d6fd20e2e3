"""What no browser sends: values of the wrong kind or that no widget offers, messages that are none, rights that are claimed."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.attack.ground import CONNECTIONS, Ground
from tests.attack.links import SCREENS
from tests.attack.visitor import PATIENCE, FindingError, Visitor
from xformer.presets import preset
from xformer.training.run_store import RunStore

ODD_JSON = ("null", "[]", "{}", '"\\ud800"', "1e999", '{"number": "\\ud800", "step": -1, "layer": 99, "head": [], "heads": {}}',
            '{"value": {"pixels": "zz", "order": {}, "own": 3}}', "[" * 500)  # fmt: skip
ODD_TEXT = ("", "no such option", "a" * 3000, "=1", "$x$ \x00 \x1b", "0123abcd", "😀")
KINDS: tuple[Callable[[WidgetState, random.Random], None], ...] = (
    lambda state, draw: setattr(state, "string_value", draw.choice(ODD_TEXT)),
    lambda state, draw: setattr(state, "json_value", draw.choice(ODD_JSON)),
    lambda state, draw: setattr(state, "json_trigger_value", draw.choice(ODD_JSON)),
    lambda state, draw: setattr(state, "double_value", draw.choice((-1e300, 1e300, 0.5, float("nan"), float("inf")))),
    lambda state, draw: setattr(state, "int_value", draw.choice((-(2**62), 2**62, -1, 0))),
    lambda state, draw: state.double_array_value.data.extend([draw.choice((-1.0, 1e18))] * draw.randrange(4)),
    lambda state, draw: state.int_array_value.data.extend([draw.choice((-1, 2**31 - 1))] * draw.randrange(4)),
    lambda state, draw: state.string_array_value.data.extend([draw.choice(ODD_TEXT)] * draw.randrange(4)),
    lambda state, draw: setattr(state, "bytes_value", b"\xff" * draw.randrange(9)),
    lambda state, draw: setattr(state, "bool_value", True),
    lambda state, draw: setattr(state, "trigger_value", True),
)
"""Every kind of value that the protocol knows; which one a widget takes the sender is free to ignore."""


def wrong_kinds(base: str, n: int, draw: random.Random) -> Iterator[str]:
    """Send a value of any kind for some widget, n times, on each screen in turn.

    Streamlit itself breaks off a run over a value of the wrong kind: then the screen of this very visitor says so. That the
    next run is well again, and that other visitors notice nothing, is what is asked for here.
    """
    for number in range(n):
        with Visitor(base) as visitor:
            screen = visitor.open(SCREENS[number % len(SCREENS)])
            if not screen.widgets:
                continue
            for _ in range(3):
                state = WidgetState(id=draw.choice(list(visitor.screen.widgets)))
                draw.choice(KINDS)(state, draw)
                try:
                    visitor.run(state)
                except FindingError as error:
                    if "a page broke" not in str(error):
                        raise
                    break
            with Visitor(base) as other:
                if not other.open(SCREENS[number % len(SCREENS)]).title:
                    raise FindingError("another visitor sees no page")
        yield "survived"


def fitting(base: str, n: int, draw: random.Random) -> Iterator[str]:
    """Send values of the right kind that the widget does not offer, n times: these the screens themselves have to bear."""
    number = tried = 0
    while tried < n:
        with Visitor(base) as visitor:
            visitor.open(SCREENS[number % len(SCREENS)])
            number += 1
            for _ in range(4):
                name = draw.choice(list(visitor.screen.widgets))
                if (state := _fitting(name, visitor.screen.widgets[name], draw)) is None:
                    continue
                key = name.split("-", 2)[-1]
                try:
                    visitor.run(state)
                except FindingError as error:
                    raise FindingError(f"{visitor.page or 'home'}, {key}: {state!r:.300}: {error}") from error
                tried += 1
                yield "survived"


def _fitting(name: str, widget: object, draw: random.Random) -> WidgetState | None:
    state, kind = WidgetState(id=name), type(widget).__name__
    if kind in ("TextInput", "Selectbox"):
        state.string_value = draw.choice(ODD_TEXT)
    elif kind in ("ButtonGroup", "MultiSelect"):
        return None  # Streamlit refuses what is none of the options, by breaking off the run
    elif kind in ("Button", "DownloadButton"):
        state.trigger_value = True
    elif kind == "Checkbox":
        state.bool_value = draw.random() < 0.5
    elif kind == "BidiComponent":
        state.json_value = draw.choice(ODD_JSON[:-1])
    else:
        return None
    return state


def garbage(base: str, n: int, draw: random.Random) -> Iterator[str]:
    """Send n messages that are none; a page that is asked for afterwards comes."""
    with Visitor(base) as visitor:
        visitor.open("runs")
        for _ in range(n):
            visitor.send(draw.randbytes(draw.choice((0, 1, 7, 100, 5000))))
            yield "survived"
        visitor.open("runs")


def frames(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Order runs about n times from where a frame of another site is, and as one that says that it is a frame.

    A browser sends no cookie from such a frame, regardless of the page in it. The owner of a run by itself may do all of it.
    """
    store, cookie = RunStore(ground.folder / "runs"), secrets.token_hex(16)
    run = store.add(preset("reverse-small"), owner=cookie, state="stopped")
    for number in range(n):
        claim = ("", False), ("", True), (cookie, True)
        sent, is_embedded = claim[number % len(claim)]
        with Visitor(ground.base, cookie=sent, is_embedded=is_embedded) as visitor:
            before = [(entry.id, entry.state, entry.deleted) for entry in store.entries()]
            for page, query, key in (
                ("train", "", "start_reverse-small"),
                ("train", f"run={run}", "run_resume"),
                ("runs", f"runs={run}", "runs_delete"),
            ):
                visitor.open(page, query)
                if page == "runs":
                    visitor.open_menu(f"runs_menu_{run}")
                if visitor.screen.find(key):
                    visitor.press(key)
            if [(entry.id, entry.state, entry.deleted) for entry in store.entries()] != before:
                raise FindingError(f"from a frame, cookie {bool(sent)}, embedded {is_embedded}: runs were changed")
        yield "looked on"
    with Visitor(ground.base, cookie=cookie) as visitor:
        visitor.open("runs", f"runs={run}")
        visitor.open_menu(f"runs_menu_{run}")
        visitor.press("runs_delete")
        if not store.entries(deleted=True):
            raise FindingError("the owner by itself may not delete its run: nothing was tried")
    yield "deleted by its owner"


def texts(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Send text where the protocol is binary, n times: the connection is closed with a code, and the log has no traceback."""
    before = ground.log.stat().st_size
    for _ in range(n):
        with Visitor(ground.base) as visitor:
            if draw.random() < 0.5:
                visitor.open()
            visitor.send(draw.choice(("", "{}", "rerun", "😀" * 1000)))
            try:
                for _ in range(100):
                    visitor.socket.recv(timeout=PATIENCE)
                raise FindingError("the connection stays open after a text")
            except ConnectionClosed as closed:
                if closed.rcvd is None or closed.rcvd.code != 1008:
                    raise FindingError(f"a text ended the connection with {closed}") from closed
        yield "closed"
    with Visitor(ground.base) as visitor:
        visitor.open()
    log = ground.log.read_bytes()[before:]
    if b"Traceback" in log or b"Error" in log:
        raise FindingError(f"the log says {log[-500:]!r}")


def crowds(ground: Ground, n: int, draw: random.Random) -> Iterator[str]:
    """Open n connections from one address and leave them idle: so many stay as are allowed, and another address comes in."""
    with ExitStack() as idle:
        accepted = 0
        for _ in range(n):
            try:
                idle.enter_context(Visitor(ground.base))
                accepted += 1
                yield "accepted"
            except InvalidStatus:
                yield "refused"
        if not 0 < accepted <= CONNECTIONS:
            raise FindingError(f"{accepted} connections of {n} were accepted, and {CONNECTIONS} are allowed")
        idle.enter_context(Visitor(ground.base, headers={"X-Forwarded-For": "203.0.113.8"})).open()
    deadline = time.monotonic() + PATIENCE
    while True:  # the server hears of it a moment later
        try:
            with Visitor(ground.base) as visitor:
                visitor.open()
                return
        except InvalidStatus as error:
            if time.monotonic() > deadline:
                raise FindingError("the address stays locked out after all is closed") from error
            time.sleep(0.05)
