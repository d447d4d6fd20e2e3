"""The models of others that visitors share: which there are, one open copy of each, and its name as a link and as code have it.

Whoever serves decides which there are; a visitor names one as "hf:NAME", never a path.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pages.shared.byte_cache import shared
from xformer.adapters import ModelAdapter
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.load import open_model
from xformer.adapters.rehearsal import rehearse
from xformer.errors import ModelFileError
from xformer.memory import free_bytes
from xformer.model_files.models_here import PREFIX, catalogue, models_folder, state_of
from xformer.model_files.packages import installed_model
from xformer.model_files.shared_job import Job, Step
from xformer.model_files.store import ModelStore

MODELS = "models"
"""What a visitor reads of the folder of models, which is nobody's business on a server."""


def _load(id: str, step: Step) -> ModelAdapter:
    """Raises `ModelFileError` for a model that reads what no screen can ask for."""
    path = catalogue().entry(id).path
    step(0, 3, "trying it in a process of its own")
    _rehearsed(path, state_of(path))
    model = open_model(path, step=step)
    if isinstance(model, HuggingFaceModel) and (why := _not_shown(model)):
        raise ModelFileError(why)
    return model


@lru_cache(maxsize=100)
def _rehearsed(path: Path, state: object) -> None:
    """Try a model out where it can hurt nobody, once for each state of its files."""
    if path != installed_model():  # that came with a package
        rehearse(path)


def _not_shown(model: HuggingFaceModel) -> str:
    """Why the screens cannot show a model, as one sentence that says what works instead; "" where they can."""
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
    """Bytes that are free, once what was said by models that are no longer open is forgotten: it holds on to them."""
    open_now = set(store.open_ids())
    shared.forget(lambda key: any(is_foreign(word) and word not in open_now for word in key))
    return free_bytes()


store: ModelStore[ModelAdapter] = ModelStore(_load, _needed, free=_free)
"""One a server."""


def is_foreign(name: object) -> bool:
    """Whether a name is one of these, there or not."""
    return isinstance(name, str) and name.startswith(PREFIX)


def titles() -> dict[str, str]:
    """Those that can be opened: their names in links, and what a person calls them. The one to be open first comes first."""
    return {id: entry.title for id, entry in catalogue().entries.items() if not entry.trouble}


def first() -> str | None:
    """The one that a visitor without a link is shown, where whoever serves has named one that can be opened."""
    entry = catalogue().first
    return None if entry is None or entry.trouble else entry.id


def opened(name: str) -> ModelAdapter | None:
    """The model of that name, opened now where it is not; None where there is none. Raises `ModelFileError` with the reason."""
    if not is_foreign(name) or name not in catalogue().entries:
        return None
    with store.use(name) as model:
        return model


def opening(name: str) -> Job[ModelAdapter] | None:
    """The job that opens it, one for all who wait; None for a model of ours. Raises `ModelFileError` where it cannot be."""
    return store.start(name) if is_foreign(name) else None


def why_not(name: str) -> str | None:
    """Why it cannot be opened, as one sentence; None where it can, or where it is the name of none of these."""
    try:
        if is_foreign(name):
            catalogue().entry(name)
    except ModelFileError as error:
        return str(error)
    return None


def shown_path(name: str) -> str:
    """Where it lies, as the code at a picture writes it: from the folder of models, whatever that is called here."""
    path, folder = catalogue().entry(name).path, models_folder()
    if folder is not None and path.is_relative_to(folder):
        return f"{MODELS}/{path.relative_to(folder).as_posix()}"
    return f"{MODELS}/{name.removeprefix(PREFIX)}"
