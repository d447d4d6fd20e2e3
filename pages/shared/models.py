"""The models that can be chosen, by the name that a link carries: a shipped checkpoint, or a step of a run.

reverse            the folder checkpoints/reverse
3fa9c1d2@200       step 200 of a run;  3fa9c1d2 alone is the latest step that it has
hf:SmolLM2         an external model on this server, see `external_models`
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pages.shared import external_models, run_store
from pages.shared.byte_cache import kept
from pages.shared.run_weights import steps_of
from xformer import Checkpoint, load
from xformer.adapters import ModelAdapter, TaskModel, in_memory
from xformer.errors import RunStoreError, UnavailableError, XformerError
from xformer.model_files.models_here import PREFIX
from xformer.training.card import believed
from xformer.training.snapshots import snapshot_file
from xformer.training.transfer import card_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "checkpoints"
_RUN = re.compile(r"([0-9a-f]{8})(?:@(\d{1,9}))?", re.ASCII)


def shipped() -> tuple[str, ...]:
    """The names of the shipped checkpoints, the default model first. The folder is read each time: that takes 0.1 ms."""
    names = sorted(entry.name for entry in os.scandir(FOLDER) if os.path.exists(f"{entry.path}/model.safetensors"))
    first = [name for name in ("reverse-small", "reverse") if name in names]
    return tuple(first + [name for name in names if name not in first])


def run_and_step(name: str) -> tuple[str, int | None] | None:
    """The run and the step that a name means; None when it is a shipped checkpoint's."""
    match = _RUN.fullmatch(name)
    if match is None or name in shipped():
        return None
    return match[1], None if match[2] is None else int(match[2])


def resolved(name: str) -> str | None:
    """The name with its step written out, or None where there is no such model."""
    asked = run_and_step(name)
    if asked is None:
        exact, similar = _guesses(name)
        return exact or (similar[0] if len(similar) == 1 else None)
    run, step = asked
    try:
        steps = [] if run_store.entry(run).deleted is not None else steps_of(run)
    except RunStoreError:
        return None
    if not steps or step not in (None, *steps):
        return None
    return f"{run}@{steps[-1] if step is None else step}"


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


def why_not(name: str) -> str | None:
    """Why the run or external model of a link cannot be opened; None where the link names neither."""
    asked = run_and_step(name)
    if asked is None:
        similar = [title_of(one) for one in _guesses(name)[1]]
        similar = similar or get_close_matches(name, [*shipped(), *external_titles().values()], cutoff=0.8)
        if similar and not resolved(name):
            return f"There is no model “{name[:100]}”; did you mean {', '.join(similar)}?"
        return external_models.why_not(name)
    run, step = asked
    try:
        entry, steps = run_store.entry(run), steps_of(run)
    except RunStoreError as error:
        return str(error)
    if entry.deleted is not None:
        return f"The run “{entry.name}” was deleted."
    if not steps or step is None:
        return f"The run “{entry.name}” is {entry.state} and has no weights to look at yet."
    return f"The run “{entry.name}” keeps no weights of step {step:,}, but of {len(steps)} others, up to step {steps[-1]:,}."


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


def external_titles() -> dict[str, str]:
    """The models that are not ours and can be chosen here: their names in links, and what a person calls them."""
    return external_models.titles()


def external(name: str) -> ModelAdapter | None:
    """A model that is not ours by its name in links; None where there is none of that name.

    Raises `ModelFileError` where it cannot be opened.
    """
    return external_models.opened(name)


def subject(name: str) -> ModelAdapter:
    """What is read under a name, the step of a run written out.

    Raises `CheckpointError` when it cannot be trusted, `UnavailableError` when nothing can be typed into it.
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


RUNS = Path("runs")
"""The folder of runs as shown to visitors; the server's path stays private."""


def shown_path(name: str) -> str:
    """A model's path as code at a picture shows it: relative to the project, or to `RUNS`."""
    if external_models.is_external(name) or name.startswith(in_memory.PREFIX):
        return external_models.shown_path(name)
    path = path_of(name)
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    folder = run_store.store().folder
    return str(RUNS / path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
