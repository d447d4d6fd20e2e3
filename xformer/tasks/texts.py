"""Texts for character models: Python's own documentation, tiny Shakespeare, or an uploaded file.

    python        the topics of Python's help() (465,048 characters in Python 3.11)
    shakespeare   tiny Shakespeare, if it was downloaded: data/tinyshakespeare.txt
    9f86d081…     an uploaded text, named by the first 16 digits of its SHA-256: data/9f86d081….txt

A model's settings contain one of these names and never a path, so that untrusted settings cannot read files. The folder is
`data/` next to `checkpoints/`, or XFORMER_DATA.
"""

from __future__ import annotations

import hashlib
import urllib.request
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from xformer.disk_quota import DiskQuota, allowed, disk_used, megabytes, texts_folder
from xformer.errors import InputError, QuotaExceededError
from xformer.files import write_atomically
from xformer.task_limits import MAX_VOCABULARY, PYTHON, SHAKESPEARE, is_sayable

MAX_BYTES = 8 * 1024**2
SHARE = 4
"""Texts may use one quarter of the disk quota, so that there is room for runs."""
FEWEST = 1_000
"""Smallest number of characters of a text; the held-out part of a shorter one would be too small."""
SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


def folder() -> Path:
    """Return the folder of texts."""
    return texts_folder()


def path_of(name: str) -> Path:
    """Return the file of a text."""
    return folder() / ("tinyshakespeare.txt" if name == SHAKESPEARE else f"{name}.txt")


def is_here(name: str) -> bool:
    """Return whether a text exists on this machine."""
    return name == PYTHON or path_of(name).is_file()


def title(name: str) -> str:
    """Return the human-readable name of a text."""
    titles = {PYTHON: "Python’s documentation", SHAKESPEARE: "tiny Shakespeare"}
    return titles.get(name, f"a text of your own ({name[:8]})")


@lru_cache(maxsize=8)
def read(name: str) -> str:
    """Read a text. Raises `InputError` if it is not on this machine."""
    if name == PYTHON:
        from pydoc_data.topics import topics

        return "\n".join(topics.values())
    try:
        return _checked(path_of(name).read_bytes())
    except FileNotFoundError:
        how = f"download it, or put it at {path_of(name)}" if name == SHAKESPEARE else "give its file once more"
        raise InputError(f"The text {title(name)} is not on this machine; {how}.") from None
    except OSError as error:
        raise InputError(f"The text {title(name)} cannot be read: {error.strerror}.") from None


def keep(content: bytes) -> str:
    """Store an uploaded text and return its name. Raises `InputError` if it cannot be used."""
    text = _checked(content).encode()
    name = hashlib.sha256(text).hexdigest()[:16]
    if not path_of(name).is_file():
        _write(name, text)
    return name


def download_shakespeare(timeout: float = 10.0) -> None:
    """Download tiny Shakespeare (1.1 MB) into the folder. Raises `InputError` if that fails."""
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=timeout) as answer:
            content = answer.read(MAX_BYTES + 1)
    except OSError as error:  # no network, an unknown host, a refused connection, a timeout
        why = getattr(error, "reason", error)
        what = f"Tiny Shakespeare could not be downloaded ({str(why) or type(why).__name__:.80})"
        raise InputError(f"{what}; without a network, put it at {path_of(SHAKESPEARE)}.") from None
    _write(SHAKESPEARE, _checked(content).encode())


def _write(name: str, text: bytes) -> None:
    """Write a text. Raises `InputError` if that exceeds the disk quota or fails."""
    kept, most = disk_used(folder()), allowed() // SHARE
    if kept + len(text) > most:
        raise QuotaExceededError(
            f"This text takes {megabytes(len(text))}. Texts on this server already take {megabytes(kept)}, and "
            f"{megabytes(most)} are allowed; the server's operator can allow more (XFORMER_MAX_DISK)."
        )
    DiskQuota().check(len(text), "This text")
    try:
        write_atomically(path_of(name), text)
    except OSError as error:
        raise InputError(f"The text could not be saved: {error.strerror or 'the disk refused it'}.") from error


def alphabet_of(text: str) -> str:
    """Return the distinct characters of a text, sorted. Raises `InputError` if there are too many."""
    found = "".join(sorted(set(text)))
    if len(found) > MAX_VOCABULARY:
        what = f"This text has {len(found):,} different characters, and at most {MAX_VOCABULARY:,} can be learned"
        raise InputError(f"{what}; use a text with fewer.")
    return found


@lru_cache(maxsize=4)
def encoded(name: str, alphabet: str) -> Int[Tensor, " pos"]:
    """Encode a text: each token is 1 + the index of the character in the alphabet. Other characters are dropped.

    So training can continue on a Python version whose documentation is slightly different.
    """
    token = {character: 1 + place for place, character in enumerate(alphabet)}
    return torch.tensor([token[character] for character in read(name) if character in token], dtype=torch.int16)


def _checked(content: bytes) -> str:
    """Decode and validate the text of a file: UTF-8, newlines as \\n, printable characters only."""
    if len(content) > MAX_BYTES:
        raise InputError(f"A text may have at most {MAX_BYTES // 1024**2} MB, and this one has more; use a part.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"This file is not UTF-8 text: byte {error.start:,} is invalid"
        raise InputError(f"{what}; save it as UTF-8 plain text.") from None
    text = "".join(c for c in text.replace("\r\n", "\n").replace("\r", "\n") if is_sayable(c))
    if len(text) < FEWEST:
        raise InputError(f"A text needs at least {FEWEST:,} characters, and this has {len(text):,}; give a longer one.")
    if len(alphabet_of(text)) < 2:
        raise InputError(f"A text needs at least 2 different characters, and this has only {text[0]!r}; give another.")
    return text
