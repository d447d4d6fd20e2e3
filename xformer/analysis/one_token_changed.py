"""Another input beside one: the same but for a token that matters, so that the two are a minimal pair.

Where there is a right answer, the change is the one that alters the fewest outputs of it; in a text of ours the one that
changes most what the model expects next. Of pairs for models of others some are known, see `known_pairs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from string import ascii_lowercase

import torch

from xformer.errors import InputError
from xformer.subjects import Subject, TaskModel
from xformer.subjects.foreign.purposes import known_pairs
from xformer.tasks.task import Example

LAST = 8
"""So many characters before the last one of a text are tried: what is said stands at the last one itself."""
TRIED = 6
"""So many other symbols are tried at each place where there is a right answer."""


def pairs(subject: Subject) -> dict[str, tuple[str, str]]:
    """Minimal pairs for a model, by what each is about; nothing where none is known and none can be made."""
    if known := known_pairs(subject.name):
        return known
    if subject.shape.image:
        return {}
    found = {}
    for purpose, text in subject.input.examples().items():
        try:
            other = one_token_changed(subject, subject.input.read(text))
        except InputError:  # an example that is meant to be too long
            continue
        if other is not None:
            found[purpose] = text, subject.input.text(other)
    return found


def one_token_changed(subject: Subject, source: Sequence[int]) -> tuple[int, ...] | None:
    """The same source with one token replaced; None where no such change is known to matter."""
    source = tuple(source)
    for pair in known_pairs(subject.name).values():
        texts = [subject.input.read(text) for text in pair]
        if source in texts:
            return texts[1 - texts.index(source)]
    if not isinstance(subject, TaskModel) or subject.shape.image:
        return None
    example = subject.frame(source)
    candidates = list(_candidates(subject, example))
    if not candidates:
        return None
    if subject.has_right_answer(example):
        changed = [sum(a != b for a, b in zip(one.answer, example.answer, strict=True)) for one in candidates]
        best = min((n, at) for at, n in enumerate(changed) if n) if any(changed) else None
        return None if best is None else candidates[best[1]].source
    if example.target is not None:
        return None
    rows = torch.cat([example.stream, *(one.stream for one in candidates)])
    logits = subject.record(replace(example, stream=rows), keep=("logits",)).logits
    expected = logits[:, -1].softmax(dim=-1)  # [1 + candidate, vocab]
    return candidates[int((expected[1:] - expected[0]).abs().sum(dim=-1).argmax())].source


def _candidates(subject: TaskModel, example: Example) -> Iterator[Example]:
    """The same with one token replaced, laid out as it is; from the middle on, so that both ends stay what they are."""
    source, symbols = example.source, subject.input.replacements
    n = len(source)
    is_text = subject.input.goes_on
    places = range(max(0, n - 1 - LAST), n - 1) if is_text else sorted(range(n), key=lambda at: abs(at - n // 2))
    for at in places:
        tried = [symbols[(source[at] - symbols[0] + step) % len(symbols)] for step in range(1, 1 + TRIED)]
        if is_text:  # a small letter for another one
            is_small = {token: subject.labels[token] in ascii_lowercase for token in (*symbols, source[at])}
            tried = [token for token in symbols if is_small[token] and is_small[source[at]]]
        for token in tried:
            other = (*source[:at], token, *source[at + 1 :])
            try:
                if token != source[at] and subject.input.read(subject.input.text(other)) == other:
                    framed = subject.frame(other)
                    if framed.stream.shape == example.stream.shape and framed.labels.shape == example.labels.shape:
                        yield framed
            except InputError:  # not every sequence of symbols is an input
                continue
