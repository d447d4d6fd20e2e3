"""The external models that visitors share: the list of them, one open copy of each, and their names in links and in code.

The operator of the server decides which there are. A visitor names one as "hf:NAME", never by a path.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path

from pages.shared.byte_cache import shared
from xformer.adapters import ModelAdapter, in_memory
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.load import open_model
from xformer.adapters.rehearsal import rehearse
from xformer.errors import ModelFileError
from xformer.memory import free_bytes
from xformer.model_files.models_here import PREFIX, catalogue, installed_model, models_folder, state_of
from xformer.model_files.store import Job, ModelStore, Step

MODELS = "models"
"""Stands for the folder of models in paths that visitors see."""
MOST_REHEARSALS = 2
_rehearsals = threading.BoundedSemaphore(MOST_REHEARSALS)
"""Held during a rehearsal, which takes a process of its own."""


def _load(id: str, step: Step) -> ModelAdapter:
    """Raises `ModelFileError` for a model whose inputs no screen can ask for."""
    model = open_model(catalogue().entry(id).path, step=step)
    if isinstance(model, HuggingFaceModel) and (why := not_shown(model)):
        raise ModelFileError(why)
    return model


def _check(id: str, step: Step) -> None:
    """Raises `CheckpointError` for a model that cannot be opened within the limits."""
    path = catalogue().entry(id).path
    step(0, 3, "checking it in a process of its own")
    _rehearsed(path, state_of(path))


@lru_cache(maxsize=100)
def _rehearsed(path: Path, state: object) -> None:
    """Rehearse a model, once for each state of its files."""
    if path != installed_model():  # that came with a package
        with _rehearsals:
            rehearse(path)


def not_shown(model: HuggingFaceModel) -> str:
    """Return why the screens cannot show a model, and what works instead, as one sentence; "" where they can."""
    main = str(getattr(model.opened.module, "main_input_name", "input_ids"))
    if model.output == "similarity":
        return (
            f"{model.name} compares texts with images, which the screens cannot show; they can show its text tower or its "
            "vision tower, saved alone."
        )
    if model.reads_tokens or (main == "pixel_values" and not model.shape.is_pair):
        return ""
    read = "images and texts" if main == "pixel_values" else "sounds"
    more = ', "decoder_input_ids": …' if model.shape.is_pair else ""
    return (
        f"{model.name} reads {read}, which the screens cannot show; in Python, "
        f'xformer.read(folder, {{"{main}": …{more}}}) shows what it computes.'
    )


def _needed(id: str) -> int:
    return catalogue().entry(id).needed


def _free() -> int:
    """Return the free bytes, after the answers of closed models are evicted: they keep the models in memory."""
    open_now = set(store.open_ids())
    shared.forget(lambda key: any(is_external(word) and word not in open_now for word in key))
    return free_bytes()


store: ModelStore[ModelAdapter] = ModelStore(_load, _needed, free=_free, check=_check)
"""The open external models of this server."""


def is_external(name: object) -> bool:
    """Whether a name is that of an external model, which may not exist."""
    return isinstance(name, str) and name.startswith(PREFIX)


def titles() -> dict[str, str]:
    """Return the titles of the models that can be opened, by their names in links; the one to open first comes first."""
    in_files = {id: entry.title for id, entry in catalogue().entries.items() if not entry.trouble}
    return in_memory.titles() | in_files


def first() -> str | None:
    """Return the model that is shown without a link, where the operator has named one that can be opened."""
    entry = catalogue().first
    return None if entry is None or entry.trouble else entry.id


def opened(name: str) -> ModelAdapter | None:
    """Return the model of a name, opened now if it is not; None where there is none. Raises `ModelFileError`."""
    if (found := in_memory.find(name)) is not None:
        return found
    if not is_external(name) or name not in catalogue().entries:
        return None
    with store.use(name) as model:
        return model


def opening(name: str) -> Job[ModelAdapter] | None:
    """Return the job that opens a model, one for all callers; None for a model of ours. Raises `ModelFileError`."""
    return store.start(name) if is_external(name) else None


def why_not(name: str) -> str | None:
    """Return why a model cannot be opened, as one sentence; None where it can, or where the name is not an external model's."""
    if name.startswith(in_memory.PREFIX) and in_memory.find(name) is None:
        return f"The model {name!r:.100} is not in memory any more; show it again with `xformer.show`."
    try:
        if is_external(name):
            catalogue().entry(name)
    except ModelFileError as error:
        return str(error)
    return None


def shown_path(name: str) -> str:
    """Return the path of a model as the code of a picture shows it: relative to the folder of models."""
    if name.startswith(in_memory.PREFIX):
        return name
    path, folder = catalogue().entry(name).path, models_folder()
    if folder is not None and path.is_relative_to(folder):
        return f"{MODELS}/{path.relative_to(folder).as_posix()}"
    return f"{MODELS}/{name.removeprefix(PREFIX)}"
