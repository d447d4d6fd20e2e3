"""The models that can be chosen, by the name that a link carries.

reverse            the folder checkpoints/reverse
3fa9c1d2@200       step 200 of a run;  3fa9c1d2 alone is the latest step that it has
hf:SmolLM2         an external model: the operator of the server decides which there are, a visitor never names a path
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

from pages.shared import run_store
from pages.shared.byte_cache import kept, shared
from pages.shared.run_store import steps_of
from xformer import Checkpoint, load
from xformer.adapters import ModelAdapter, TaskModel
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.load import MEMORY_PREFIX, in_memory, open_model, rehearse, titles_in_memory
from xformer.errors import ModelFileError, RunStoreError, UnavailableError, XformerError
from xformer.files import snapshot_file
from xformer.memory import free_bytes
from xformer.model_files.models_here import PREFIX, catalogue, installed_model, models_folder, state_of
from xformer.model_files.store import ModelStore, Step
from xformer.training.card import believed, card_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "checkpoints"
RUNS, MODELS = Path("runs"), Path("models")
"""Stand for the folders of runs and of external models in paths that visitors see; the server's own stay private."""
_RUN = re.compile(r"([0-9a-f]{8})(?:@(\d{1,9}))?", re.ASCII)
_rehearsals = threading.BoundedSemaphore(2)
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
    """Why the screens cannot show a model, as one sentence; "" where they can."""
    is_of_images = getattr(model.opened.module, "main_input_name", "") == "pixel_values" and not model.shape.is_pair
    if model.output != "similarity" and (model.reads_tokens or is_of_images):
        return ""
    return (
        f"The screens cannot ask for what {model.name} reads; in Python, `xformer.read(folder, inputs)` takes a dictionary "
        "of its inputs."
    )


def _free() -> int:
    """The free bytes, after the answers of closed models are evicted: they keep the models in memory."""
    open_now = set(external_store.open_ids())
    shared.forget(lambda key: any(is_external(word) and word not in open_now for word in key))
    return free_bytes()


external_store: ModelStore[ModelAdapter] = ModelStore(
    _load, lambda id: catalogue().entry(id).needed, free=_free, check=_check
)
"""The open external models of this server."""


def is_external(name: object) -> bool:
    """Whether a name is that of an external model, which may not exist."""
    return isinstance(name, str) and name.startswith(PREFIX)


def external_titles() -> dict[str, str]:
    """The models that are not ours and can be chosen here: their names in links, and what a person calls them."""
    in_files = {id: entry.title for id, entry in catalogue().entries.items() if not entry.trouble}
    return titles_in_memory() | in_files


def first() -> str | None:
    """The model that is shown without a link, where the operator has named one that can be opened."""
    entry = catalogue().first
    return None if entry is None or entry.trouble else entry.id


def shipped() -> tuple[str, ...]:
    """The names of the shipped checkpoints, the default model first. The folder is read each time: that takes 0.1 ms."""
    names = sorted(entry.name for entry in os.scandir(FOLDER) if os.path.exists(f"{entry.path}/model.safetensors"))
    return tuple(sorted(names, key=lambda name: (name != "reverse-small", name != "reverse")))


def run_and_step(name: str) -> tuple[str, int | None] | None:
    """The run and the step that a name means; None when it is a shipped checkpoint's."""
    match = _RUN.fullmatch(name)
    if match is None or name in shipped():
        return None
    return match[1], None if match[2] is None else int(match[2])


def resolved(name: str) -> str | None:
    """The name with its step written out, or None where there is no such model."""
    return _looked_up(name)[0]


def why_not(name: str) -> str | None:
    """Why the run or external model of a link cannot be opened; None where the link names neither."""
    return _looked_up(name)[1]


def _looked_up(name: str) -> tuple[str | None, str | None]:
    """The name with its step written out, or None and why there is no such model; None twice where it names nothing."""
    asked = run_and_step(name)
    if asked is None:
        exact, similar = _guesses(name)
        if exact or len(similar) == 1:
            return exact or similar[0], None
        titles = [title_of(one) for one in similar]
        titles = titles or get_close_matches(name, [*shipped(), *external_titles().values()], cutoff=0.8)
        if titles:
            return None, f"There is no model “{name[:100]}”; did you mean {', '.join(titles)}?"
        return None, _why_not_external(name)
    run, step = asked
    try:
        entry, steps = run_store.entry(run), steps_of(run)
    except RunStoreError as error:
        return None, str(error)
    if entry.deleted is not None:
        return None, f"The run “{entry.name}” was deleted."
    if not steps:
        return None, f"The run “{entry.name}” is {entry.state} and has no weights to look at yet."
    if step not in (None, *steps):
        others = f"of {len(steps)} others, up to step {steps[-1]:,}"
        return None, f"The run “{entry.name}” keeps no weights of step {step:,}, but {others}."
    return f"{run}@{steps[-1] if step is None else step}", None


def _guesses(name: str) -> tuple[str | None, list[str]]:
    """The shipped or external model of a name that a person types, and all whose names begin with it.

    Case, punctuation and the organisation do not count: "HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2".
    """
    there = {one: one for one in shipped()} | external_titles()
    if name in there:
        return name, []

    def plain(text: str) -> str:
        return re.sub(r"[\W_]", "", text.removeprefix(PREFIX).rpartition("/")[2]).casefold()

    wanted = plain(name)
    exact = next((one for one, title in there.items() if plain(title) == wanted), None)
    return exact, [one for one, title in there.items() if wanted and plain(title).startswith(wanted)]


def _why_not_external(name: str) -> str | None:
    if name.startswith(MEMORY_PREFIX) and in_memory(name) is None:
        return f"The model {name!r:.100} is not in memory any more; show it again with `xformer.show`."
    try:
        if is_external(name):
            catalogue().entry(name)
    except ModelFileError as error:
        return str(error)
    return None


def path_of(name: str) -> Path:
    """The folder or the file that holds a model."""
    asked = run_and_step(name)
    if asked is None:
        return FOLDER / name
    run, step = asked
    folder = run_store.store().folder_of(run)
    file = snapshot_file(folder, step or 0)
    return file if step is not None and file.exists() else folder


@kept
def checkpoint(name: str) -> Checkpoint:
    """A model by its name, the step of a run written out. Raises `CheckpointError` when it cannot be trusted."""
    return load(path_of(name))


def external(name: str) -> ModelAdapter | None:
    """A model that is not ours, opened now if it is not; None where the name means none. Raises `ModelFileError`."""
    if not is_external(name):
        return in_memory(name)
    with external_store.use(name) as model:
        return model


def subject(name: str) -> ModelAdapter:
    """What is read under a name, the step of a run written out.

    Raises `CheckpointError` or `ModelFileError` when it cannot be opened, `UnavailableError` when it has no input.
    """
    if (found := external(name)) is not None:
        return found
    chosen = checkpoint(name)
    if chosen.task is None:
        raise UnavailableError(f"The model {title_of(name)} names no task, so it has no input.")
    return TaskModel(chosen.model, chosen.task, name)


def title_of(name: str) -> str:
    """A model's title on screen: a checkpoint's name, or a run's with its step."""
    asked = run_and_step(name)
    if asked is None:
        return name if name in shipped() else external_titles().get(name, name)
    try:
        return f"{run_store.entry(asked[0]).name}, step {asked[1]:,}"
    except RunStoreError:
        return name


def usable(name: str) -> str | None:
    """Why a model cannot be shown to the visitor; None when it can."""
    try:
        if (asked := run_and_step(name)) is not None:
            run_store.entry(asked[0])
        subject(name)
    except UnavailableError as error:
        return str(error)
    except XformerError as error:
        return f"The model {title_of(name)} cannot be opened. {error}"
    return None


def card_of_model(name: str) -> dict[str, Any]:
    """How a model was trained. Of a run's step it is read from the store, where it may be renamed or scored at any time."""
    asked = run_and_step(name)
    if asked is None:
        return believed(checkpoint(name).card) if name in shipped() else {}
    try:
        entry = run_store.entry(asked[0])
        step = entry.step if asked[1] is None else asked[1]
        rows = [row for row in run_store.store().rows(entry.id) if row["step"] <= step]
    except RunStoreError:
        return {}
    found = card_of(entry, rows, step) | {"about": f"Step {step:,} of the run “{entry.name}”. {entry.about}".rstrip()}
    if rows and "figures" not in found:  # as it was last reported up to that step
        last = rows[-1]
        at = {} if last["step"] == step else {"at": f" at step {last['step']:,}"}
        found["reported"] = {name: last.get(f"held_out_{name}") for name in ("loss", "exact_match", "samples")} | at
    return believed(found)


def shown_path(name: str) -> str:
    """A model's path as code at a picture shows it: relative to the project, or to `RUNS` or `MODELS`."""
    if name.startswith(MEMORY_PREFIX):
        return name
    if is_external(name):
        path, folder = catalogue().entry(name).path, models_folder()
        if folder is None or not path.is_relative_to(folder):
            return f"{MODELS}/{name.removeprefix(PREFIX)}"
        return (MODELS / path.relative_to(folder)).as_posix()
    path = path_of(name)
    for folder, shown in ((ROOT, Path()), (run_store.store().folder, RUNS)):
        if path.is_relative_to(folder):
            return (shown / path.relative_to(folder)).as_posix()
    return str(path)
