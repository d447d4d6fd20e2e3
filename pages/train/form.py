"""The form for the settings of a run: it shows those of a preset, and says what a visitor made of them, validated.

put(preset, "own")                  the form "own" shows a preset's settings
ask(TASK, "own")                    draw a group of fields
settings(preset, "own")             what the form says; raises ConfigError
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import streamlit as st

from pages.train.fields import AUTO, EVERYTHING, KINDS, TASK, Field
from xformer.config import TaskConfig
from xformer.presets import PRESETS, Preset
from xformer.task_limits import TASK_LIMITS
from xformer.tasks import Task


def put(preset: Preset, form: str, fields: Sequence[Field] = EVERYTHING) -> None:
    """Have a form show the settings of a preset. A callback, or before the form is drawn."""
    model, task, train = preset.model.to_json(), preset.task.to_json(), preset.train.to_json()
    follows = {  # what a field is set to, and whether it only says what others do
        "d_head": (0, model["d_head"] * model["n_heads"] == model["d_model"]),
        "d_value": (0, model["d_value"] == model["d_head"]),
        "causal": (None, model["causal"] == (model["architecture"] != "encoder")),
        "final_norm": (None, model["final_norm"] == (model["norm"] == "pre")),
    }
    model |= {name: value for name, (value, is_so) in follows.items() if is_so}
    values = {"model": model, "task": task, "train": train}
    begin = {(field.of, field.name): values[field.of][field.name] for field in fields}
    st.session_state[f"{form}:begin"] = {name: AUTO if value is None else value for name, value in begin.items()}
    st.session_state[f"{form}:version"] = st.session_state.get(f"{form}:version", 0) + 1


def is_filled(form: str) -> bool:
    """Whether it shows settings already."""
    return f"{form}:begin" in st.session_state


def ask(fields: Sequence[Field], form: str, columns: int = 3) -> None:
    """Draw fields in columns; a field that means nothing for the chosen task is disabled."""
    for field, place in zip(fields, cycle(st.columns(columns)), strict=False):
        with place:
            _ask(field, form)


def settings(preset: Preset, form: str, fields: Sequence[Field] = EVERYTHING) -> Preset:
    """A preset with the values that the form holds; sizes of the vocabulary follow from the task.

    Raises `ConfigError` with one plain sentence when they break a rule.
    """
    values: dict[str, dict[str, Any]] = {of: {} for of in KINDS}
    for field in fields:
        value = _value(field, form)
        values[field.of][field.name] = None if value == AUTO else tuple(value) if isinstance(value, list) else value
    if values["task"].get("architecture", preset.task.architecture) != "encoder":
        values["task"]["end_token"] = False
    task_config = _task_like(preset, values["task"])
    train = preset.train.replace(**values["train"], lr_changes=())
    if not values["model"]:
        return replace(preset, task=task_config, train=train)
    task = Task(task_config)
    special = task.vocabulary.special
    if task_config.architecture != "encoder-decoder":
        values["model"]["tied_source"] = False
    model = preset.model.replace(
        **values["model"],
        architecture=task_config.architecture,
        vocab_size=len(task.vocabulary),
        pad_token=special.pad,
        end_token=special.end,
        start_token=special.start,
        image=task.image_side,
        patch=task_config.patch,
    )
    task.check_fits(model)
    recipe = preset.train.replace(lr_changes=(), snapshot_every=train.snapshot_every)
    if (model, task_config, train) == (preset.model, preset.task, recipe):
        return replace(preset, train=train)
    title = f"{task_config.name.capitalize()}, {model.n_layers} × {model.n_heads} heads, width {model.d_model}"
    return Preset("own", title, "A model with settings of its own.", model, task_config, train)


def _task_like(preset: Preset, values: dict[str, Any]) -> TaskConfig:
    """The task with the values of the form; what the form does not ask (a text, the patches) is as in a preset of that task."""
    name = values.get("name", preset.task.name)
    alike = (preset, *PRESETS.values())
    task = next((other.task for other in alike if other.task.name == name), preset.task)
    return task.replace(**values)


def _ask(field: Field, form: str) -> None:
    # A default, not an entry of the session: a page that looks at a run every second must not overwrite what is being typed.
    begin = _begin(field, form)
    common: dict[str, Any] = {
        "key": _key(field, form),
        "help": field.help or None,
        "disabled": not _means_something(field, form),
        "persist_state": "session",
    }
    options = _options(field, form)
    if field.name == "dropout_sites":
        st.multiselect(field.label, options, default=begin, **common)
    elif options:
        index = options.index(begin) if begin in options else 0
        st.selectbox(field.label, options, index=index, format_func=_word, **common)
    elif isinstance(begin, bool):
        st.toggle(field.label, value=begin, **common)
    elif isinstance(begin, float):
        st.number_input(field.label, value=begin, step=_tenth(begin), format="%g", **common)
    else:
        st.number_input(field.label, value=begin, step=1, **common)


def _value(field: Field, form: str) -> Any:
    value = st.session_state.get(_key(field, form), _begin(field, form))
    options = _options(field, form)
    return options[0] if options and not isinstance(value, list) and value not in options else value


def _key(field: Field, form: str) -> str:
    """The key of a field's widget: another one for each preset that was put into the form, so that it begins anew."""
    return f"{form}_{st.session_state[form + ':version']}_{field.of}_{field.name}"


def _begin(field: Field, form: str) -> Any:
    return st.session_state[f"{form}:begin"][field.of, field.name]


def _options(field: Field, form: str) -> tuple[Any, ...]:
    return TASK_LIMITS[_value(TASK[0], form)].architectures if field is TASK[1] else field.options


def _means_something(field: Field, form: str) -> bool:
    if field.name not in ("end_token", "tied_source", "causal"):
        return field.name != "train_share" or _value(TASK[0], form) == "modular"
    return _value(TASK[1], form) == ("encoder-decoder" if field.name == "tied_source" else "encoder")


def _word(option: Any) -> str:
    return {True: "yes", False: "no"}[option] if isinstance(option, bool) else str(option).replace("_", " ")


def _tenth(value: float) -> float:
    return 0.1 if value == 0 else float(f"{abs(value) / 10:.0e}")
