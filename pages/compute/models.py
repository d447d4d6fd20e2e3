"""The available models, by their names in links.

reverse            the folder checkpoints/reverse
3fa9c1d2@200       step 200 of a run; 3fa9c1d2 alone means its latest step
hf:SmolLM2         an external model; the server's operator decides which exist, and visitors never name a path
memory:mine        a model in the memory of a notebook, see `xformer.show`
"""

from __future__ import annotations

import os
import re
import threading
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from pages.compute import visible_runs
from pages.compute.byte_cache import cached, shared
from pages.compute.visible_runs import steps_of
from xformer import Checkpoint, load
from xformer.adapters import ModelAdapter, TaskModel
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.load import MEMORY_PREFIX, in_memory, open_model, titles_in_memory, try_in_subprocess
from xformer.errors import ModelFileError, RunStoreError, UnavailableError, XformerError
from xformer.files import snapshot_file
from xformer.memory import free_bytes
from xformer.model_files.models_here import PREFIX, catalogue, installed_model, models_folder, state_of
from xformer.model_files.store import ModelStore, ReportProgress
from xformer.training.card import card_of, valid_fields

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "checkpoints"
RUNS, MODELS = Path("runs"), Path("models")
"""Placeholders for the folders of runs and of external models in paths shown to visitors, which hide the server's paths."""
_RUN = re.compile(r"([0-9a-f]{8})(?:@(\d{1,9}))?", re.ASCII)
_rehearsals = threading.BoundedSemaphore(2)
"""Limits concurrent rehearsals, each of which starts a process."""


def _load(id: str, step: ReportProgress) -> ModelAdapter:
    """Open an external model. Raises `ModelFileError` if no screen can ask for its inputs."""
    model = open_model(catalogue().entry(id).path, step=step)
    if isinstance(model, HuggingFaceModel) and (why := unsupported_reason(model)):
        raise ModelFileError(why)
    return model


def _check(id: str, step: ReportProgress) -> None:
    """Raise `CheckpointError` if a model cannot be opened within the limits."""
    path = catalogue().entry(id).path
    step(0, 3, "checking it in a separate process")
    _rehearsed(path, state_of(path))


@lru_cache(maxsize=100)
def _rehearsed(path: Path, state: object) -> None:
    """Rehearse a model, once for each state of its files."""
    if path != installed_model():  # a model from an installed package is trusted
        with _rehearsals:
            try_in_subprocess(path)


def unsupported_reason(model: HuggingFaceModel) -> str:
    """Return why the screens cannot show a model, as one sentence; "" if they can."""
    is_of_images = getattr(model.opened.module, "main_input_name", "") == "pixel_values"
    is_of_images = is_of_images and not model.shape.is_encoder_decoder
    if model.output != "similarity" and (model.reads_tokens or is_of_images):
        return ""
    return (
        f"The screens have no input field for what {model.name} reads; in Python, `xformer.read(folder, inputs)` takes a "
        "dictionary of its inputs."
    )


def _free() -> int:
    """Return the free bytes after evicting the cached results of closed models, which keep those models in memory."""
    open_now = set(external_store.open_ids())
    shared.forget(lambda key: any(is_external(word) and word not in open_now for word in key))
    return free_bytes()


external_store = ModelStore(_load, lambda id: catalogue().entry(id).needed, free=_free, check=_check)


def is_external(name: object) -> bool:
    """Whether a name has the form of an external model's; the model may not exist."""
    return isinstance(name, str) and name.startswith(PREFIX)


def external_titles() -> dict[str, str]:
    """Return the available external models and models in memory: their titles by their names in links."""
    in_files = {id: entry.title for id, entry in catalogue().entries.items() if not entry.trouble}
    return titles_in_memory() | in_files


def first() -> str | None:
    """Return the model to show without a link, if the operator has named one and it can be opened."""
    entry = catalogue().first
    return None if entry is None or entry.trouble else entry.id


def shipped() -> tuple[str, ...]:
    """Return the names of the shipped checkpoints, the default first. Reads the folder on each call, which takes 0.1 ms."""
    names = sorted(entry.name for entry in os.scandir(FOLDER) if os.path.exists(f"{entry.path}/model.safetensors"))
    return tuple(sorted(names, key=lambda name: (name != "reverse-small", name != "reverse")))


def run_and_step(name: str) -> tuple[str, int | None] | None:
    """Return the run and the step (None for the latest) of a name; None if the name is not that of a run."""
    match = _RUN.fullmatch(name)
    if match is None or name in shipped():
        return None
    return match[1], None if match[2] is None else int(match[2])


def resolved(name: str) -> str | None:
    """Return the name with its step made explicit, or None if there is no such model."""
    return _look_up(name)[0]


def why_not(name: str) -> str | None:
    """Return why the model of a link cannot be opened; None if it can, or if the name is not recognised at all."""
    return _look_up(name)[1]


def _look_up(name: str) -> tuple[str | None, str | None]:
    """Return the name with its step made explicit, or None and the reason; (None, None) for an unrecognised name."""
    asked = run_and_step(name)
    if asked is None:
        exact, similar = _guesses(name)
        if exact or len(similar) == 1:
            return exact or similar[0], None
        titles = [title_of(id) for id in similar]
        titles = titles or get_close_matches(name, [*shipped(), *external_titles().values()], cutoff=0.8)
        if titles:
            return None, f"There is no model “{name[:100]}”; did you mean {', '.join(titles)}?"
        return None, _why_not_external(name)
    run, step = asked
    try:
        entry, steps = visible_runs.entry(run), steps_of(run)
    except RunStoreError as error:
        return None, str(error)
    if entry.deleted is not None:
        return None, f"The run “{entry.name}” was deleted."
    if not steps:
        return None, f"The run “{entry.name}” is {entry.state} and has no weights yet."
    if step not in (None, *steps):
        others = f"it has those of {len(steps)} others, up to step {steps[-1]:,}"
        return None, f"The run “{entry.name}” has no weights of step {step:,}; {others}."
    return f"{run}@{steps[-1] if step is None else step}", None


def _guesses(name: str) -> tuple[str | None, list[str]]:
    """Return the shipped or external model that matches a typed name exactly, and all models whose names start with it.

    Case, punctuation and the organisation are ignored: "HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2".
    """
    available = {name: name for name in shipped()} | external_titles()
    if name in available:
        return name, []

    def plain(text: str) -> str:
        return re.sub(r"[\W_]", "", text.removeprefix(PREFIX).rpartition("/")[2]).casefold()

    wanted = plain(name)
    exact = next((id for id, title in available.items() if plain(title) == wanted), None)
    return exact, [id for id, title in available.items() if wanted and plain(title).startswith(wanted)]


def _why_not_external(name: str) -> str | None:
    if name.startswith(MEMORY_PREFIX) and in_memory(name) is None:
        return f"The model {name!r:.100} is no longer in memory; show it again with `xformer.show`."
    try:
        if is_external(name):
            catalogue().entry(name)
    except ModelFileError as error:
        return str(error)
    return None


def path_of(name: str) -> Path:
    """Return the folder or the file that holds a model."""
    asked = run_and_step(name)
    if asked is None:
        return FOLDER / name
    run, step = asked
    folder = visible_runs.store().folder_of(run)
    file = snapshot_file(folder, step or 0)
    return file if step is not None and file.exists() else folder


@cached
def checkpoint(name: str) -> Checkpoint:
    """Load a checkpoint by its name, with the step of a run made explicit. Raises `CheckpointError` if it is invalid."""
    return load(path_of(name))


def external(name: str) -> ModelAdapter | None:
    """Return an external model or one in memory, opening it if necessary; None for other names. Raises `ModelFileError`."""
    if not is_external(name):
        return in_memory(name)
    with external_store.use(name) as model:
        return model


def adapter(name: str) -> ModelAdapter:
    """Return the adapter of a model by its name, with the step of a run made explicit.

    Raises `CheckpointError` or `ModelFileError` if it cannot be opened, and `UnavailableError` if it has no task.
    """
    if (found := external(name)) is not None:
        return found
    chosen = checkpoint(name)
    if chosen.task is None:
        raise UnavailableError(f"The model {title_of(name)} names no task, so it has no input.")
    return TaskModel(chosen.model, chosen.task, name)


def title_of(name: str) -> str:
    """Return a model's title on screen; for a run, its name and step."""
    asked = run_and_step(name)
    if asked is None:
        return name if name in shipped() else external_titles().get(name, name)
    try:
        return f"{visible_runs.entry(asked[0]).name}, step {asked[1]:,}"
    except RunStoreError:
        return name


def usable(name: str) -> str | None:
    """Return why a model cannot be shown to the visitor; None if it can."""
    try:
        if (asked := run_and_step(name)) is not None:
            visible_runs.entry(asked[0])
        adapter(name)
    except UnavailableError as error:
        return str(error)
    except XformerError as error:
        return f"The model {title_of(name)} cannot be opened. {error}"
    return None


def card_of_model(name: str) -> dict[str, Any]:
    """Return the card of a model: how it was trained.

    That of a run is read from the run store on each call, because the run may be renamed or scored at any time.
    """
    asked = run_and_step(name)
    if asked is None:
        return valid_fields(checkpoint(name).card) if name in shipped() else {}
    try:
        entry = visible_runs.entry(asked[0])
        step = entry.step if asked[1] is None else asked[1]
        rows = [row for row in visible_runs.store().rows(entry.id) if row["step"] <= step]
    except RunStoreError:
        return {}
    found = card_of(entry, rows, step) | {"about": f"Step {step:,} of the run “{entry.name}”. {entry.about}".rstrip()}
    if rows and "figures" not in found:  # use the last report up to that step
        last = rows[-1]
        at = {} if last["step"] == step else {"at": f" at step {last['step']:,}"}
        found["reported"] = {name: last.get(f"held_out_{name}") for name in ("loss", "exact_match", "samples")} | at
    return valid_fields(found)


def shown_path(name: str) -> str:
    """Return a model's path as shown in the code of a picture: relative to the project, or below `RUNS` or `MODELS`."""
    if name.startswith(MEMORY_PREFIX):
        return name
    if is_external(name):
        path, folder = catalogue().entry(name).path, models_folder()
        if folder is None or not path.is_relative_to(folder):
            return f"{MODELS}/{name.removeprefix(PREFIX)}"
        return (MODELS / path.relative_to(folder)).as_posix()
    path = path_of(name)
    for folder, shown in ((ROOT, Path()), (visible_runs.store().folder, RUNS)):
        if path.is_relative_to(folder):
            return (shown / path.relative_to(folder)).as_posix()
    return str(path)
