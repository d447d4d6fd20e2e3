"""Runs of models, cached for all visitors by model, input, mask and edits. Models are read-only."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pages.compute.background_job import OnStep
from pages.compute.byte_cache import budget, shared
from pages.compute.models import adapter, shown_path
from pages.controls.streamlit_compat import is_script_thread
from xformer import decoding, edits
from xformer.adapters import ModelAdapter
from xformer.decoding import Sampling
from xformer.edits import Edit
from xformer.memory import check_recording
from xformer.reading import ReadCall, Reading, prepare_inputs, read
from xformer.tasks.task import Example

MASKS = ("as trained", "causal", "full")
"""The available masks; the first is the model's own."""
MAX_IN_USE = 4
"""Maximum readings that a script run holds on to while the cache evicts others."""
PATIENCE_SECONDS = 60.0
"""Maximum seconds that a script run waits for memory, so that one that hangs does not block all others."""
RunKey = tuple[str, tuple[int, ...], str, str]
"""Model, source, mask and edits."""
Predictions = tuple[tuple[int, float], ...]
"""Tokens with their probabilities."""
Show = Callable[[Sequence[int]], object]
"""Shows the tokens that have been generated so far."""
SHOWN_EVERY = 0.3
"""Seconds between two updates of a text that is being generated."""


def mask_words(mask: str) -> list[str]:
    """Return the name of a mask as a list of changes; empty for the model's own mask."""
    return [] if mask == MASKS[0] else [f"{mask} mask"]


def check_memory(name: str, source: tuple[int, ...]) -> None:
    """Raise `InputError` if a model cannot read an input, or if recording the run would take too much memory."""
    _inputs(name, source, MASKS[0], "")


def run(name: str, source: tuple[int, ...], mask: str = MASKS[0], edits: str = "") -> Reading:
    """Run the model `name` on `source` under a mask and the edits of a link (see `xformer.edit_links`).

    Raises:
        InputError: The input is too long for the model.
        EditError: An edit does not fit the model.
    """
    key = name, source, mask, edits
    computed = _computed(key)
    return _handles.setdefault(key, SharedReading(key, computed.code))


class SharedReading(Reading):
    """A handle to a cached reading, which holds only its key.

    The reading is fetched from the cache on access and recomputed if it was evicted, so that no session, fragment or download
    holds activations.
    """

    def __init__(self, key: RunKey, code: ReadCall | str | None) -> None:
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "code", code)

    def __getattribute__(self, name: str) -> Any:
        if name in ("_key", "code", "__dict__"):
            return object.__getattribute__(self, name)
        return getattr(_computed(self._key), name)


_handles: weakref.WeakValueDictionary[RunKey, SharedReading] = weakref.WeakValueDictionary()


def _computed(key: RunKey) -> Reading:
    """Return the reading of a key, from the cache or computed.

    A missing reading is computed once its bytes fit into the budget next to those of all other script runs. A script run holds
    on to the readings that it used last, and to their bytes, until it ends; outside a script run, only while computing.
    """
    at = ("run", *key)
    run = _thread.__dict__.setdefault("run", _ScriptRun()) if is_script_thread() else _ScriptRun()
    found = run.readings.pop(key, None)
    if found is None:
        if shared.peek(at) is None:
            of, example, _ = _inputs(*key)
            n_bytes = of.recording_bytes(example)
            if not run.n_bytes:
                _admit(run, 2 * n_bytes if is_script_thread() else n_bytes)  # an original and a changed run
            elif len(run.readings) > 1:
                run.n_bytes += n_bytes  # without waiting, since it already holds other readings
            shared.sweep(more=n_bytes)
        found = shared.get(at, partial(_run, *key))
    run.readings[key] = found
    if len(run.readings) > MAX_IN_USE:
        del run.readings[next(iter(run.readings))]
    return found


class _ScriptRun:
    """The readings that a script run used last, and the bytes reserved for them."""

    def __init__(self) -> None:
        self.readings: dict[RunKey, Reading] = {}
        self.n_bytes = 0


_thread = threading.local()  # each script run has its own thread, which ends with it
_admitted: weakref.WeakSet[_ScriptRun] = weakref.WeakSet()
_admission = threading.Lock()


def _admit(run: _ScriptRun, n_bytes: int, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the reserved bytes of all script runs fit into the budget, at most `seconds`."""
    until = time.monotonic() + seconds
    while True:
        with _admission:
            others = sum(other.n_bytes for other in _admitted if other is not run)
            if not others or others + n_bytes <= budget() or time.monotonic() >= until:
                run.n_bytes = n_bytes
                _admitted.add(run)
                return
        time.sleep(0.05)


def _run(name: str, source: tuple[int, ...], mask: str, edits: str) -> Reading:
    of, *_ = _inputs(name, source, mask, edits)
    reading = read(of, source, edits=[*mask_edits(mask), edits])
    typed = of.input.text(source)
    return replace(reading, code=ReadCall(shown_path(name), typed, causality(mask), edits))


def decoded(
    name: str, source: tuple[int, ...], mask: str = MASKS[0], edits: str = "", *, step: OnStep | None = None
) -> Predictions:
    """Return the greedy output of a model under a mask and edits: each token with its probability.

    For open-ended text it generates `Input.continuation_length` tokens. `step(done, of)` is called to report progress.
    """

    def make() -> Predictions:
        of, example, changed = _inputs(name, source, mask, edits)
        n = of.input.continuation_length if of.input.is_open_ended else None
        return _all(of.steps(example, n, edits=changed), n or len(example.answer), step)

    return shared.get(("decoded", name, source, mask, edits), make)


def continuation(
    name: str, source: tuple[int, ...], n: int, temperature: float, seed: int, *, step: OnStep, show: Show
) -> tuple[int, ...]:
    """Return `n` tokens sampled after a text at a temperature (0: the likeliest each time).

    `show` is called repeatedly with the tokens generated so far, `step(done, of)` to report progress.
    """

    def make() -> Predictions:
        of, example, _ = _inputs(name, source, MASKS[0], "")
        sampling, draw = Sampling(temperature=temperature), torch.Generator().manual_seed(seed)
        return _all(of.steps(example, n, sampling=sampling, generator=draw), n, step, show)

    return tuple(token for token, _ in shared.get(("continued", name, source, n, temperature, seed), make))


def _all(steps: Iterable[decoding.Step], n: int, step: OnStep | None, show: Show = lambda tokens: None) -> Predictions:
    """Return the generated tokens, each with its probability."""
    generated: list[tuple[int, float]] = []
    shown = time.monotonic()
    for decoded in steps:
        generated.append((decoded.token, decoded.probabilities[decoded.token].item()))
        if step is not None:
            step(len(generated), n)
        if time.monotonic() - shown > SHOWN_EVERY:
            shown = time.monotonic()
            show([token for token, _ in generated])
    return tuple(generated)


def _inputs(name: str, source: tuple[int, ...], mask: str, edits: str) -> tuple[ModelAdapter, Example, list[Edit]]:
    """Return the model, the example it reads after token replacements, and the edits of its run."""
    of = adapter(name)
    _, example, run = prepare_inputs(of, source, [*mask_edits(mask), edits])
    n_heads = sum(of.shape.heads.values())
    check_recording(of.recording_bytes(example), n_heads, example.input_ids.shape[1], allowed_bytes=budget())
    return of, example, run


def causality(mask: str) -> bool | None:
    """Return whether one of `MASKS` imposes a causal or a full mask; None for the model's own."""
    return None if mask == MASKS[0] else mask == "causal"


def mask_edits(mask: str) -> list[Edit]:
    """Return the edits that replace the model's own mask with one of `MASKS`."""
    return [] if (causal := causality(mask)) is None else [edits.set_causal(causal)]
