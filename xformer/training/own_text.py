"""A preset of characters on another text: its alphabet follows from the text, and the sizes of the model from the alphabet."""

from __future__ import annotations

from dataclasses import replace

from xformer.errors import ConfigError
from xformer.presets import Preset
from xformer.task_limits import TASK_LIMITS
from xformer.tasks import Task, texts


def with_text(preset: Preset, name: str) -> Preset:
    """The same model and recipe for the text of that name (see `xformer.tasks.texts`).

    Raises `ConfigError` for a preset of another task, `InputError` where the text is not here.
    """
    if not TASK_LIMITS[preset.task.name].is_text:
        raise ConfigError(
            f"Only the task characters reads a text, got the preset {preset.name!r}; for example 'characters'."
        )
    if name == preset.task.text:
        return preset
    alphabet = texts.alphabet_of(texts.read(name))
    task = Task(preset.task.replace(text=name, alphabet=alphabet, symbols=len(alphabet)))
    special = task.vocabulary.special
    model = preset.model.replace(
        vocab_size=len(task.vocabulary),
        pad_token=special.pad,
        end_token=special.end,
        start_token=special.start,
    )
    title = f"{preset.title.split(' of ')[0]} of {texts.title(name)}"
    return replace(preset, title=title, model=model, task=task.config)
