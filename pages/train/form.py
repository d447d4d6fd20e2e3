"""The form for the settings of a run: it shows those of a preset, and says what a visitor made of them, validated.

put(preset, "own")                  the form "own" shows a preset's settings
ask(TASK, "own")                    draw a group of fields
settings(preset, "own")             what the form says; raises ConfigError
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import NoneType
from typing import Any, get_args

import streamlit as st

from pages.shared import run_commands, run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.widgets import file_box
from xformer.config import Config, ModelConfig, TaskConfig, TrainConfig
from xformer.errors import XformerError
from xformer.presets import PRESETS, Preset
from xformer.task_limits import PYTHON, SHAKESPEARE, TASK_LIMITS
from xformer.tasks import Task, texts
from xformer.training.jobs import with_text

AUTO = "auto"
"""What stands for None."""

KINDS: dict[str, type[Config]] = {"task": TaskConfig, "model": ModelConfig, "train": TrainConfig}


@dataclass(frozen=True)
class Field:
    """One setting: `of` is "task", "model" or "train", `options` those of a choice; without any it is a number or a switch."""

    of: str
    name: str
    label: str
    help: str
    options: tuple[Any, ...]


def _fields(of: str, names: Iterable[str]) -> tuple[Field, ...]:
    found = {name: KINDS[of].model_fields[name] for name in names}
    return tuple(
        Field(of, name, one.title or name, one.description or "", _fields_options(one.annotation))
        for name, one in found.items()
    )


def _fields_options(kind: Any) -> tuple[Any, ...]:
    """The values to choose from; none of a number, a switch or a text."""
    first, *others = get_args(kind) or (None,)
    if NoneType in others:
        return (AUTO, True, False)
    return get_args(first) if Ellipsis in others else get_args(kind)


def _others(of: str, *left_out: str) -> tuple[Field, ...]:
    """All fields but some, so that a new setting is in the form by itself."""
    return _fields(of, [name for name in KINDS[of].model_fields if name not in left_out])


_MODEL = ("n_layers", "n_heads", "d_model", "d_ff", "positions", "norm")

_FROM_THE_TASK = ("architecture", "vocab_size", "pad_token", "start_token", "end_token", "image", "patch")

_TRAIN = ("steps", "batch_size", "peak_lr", "warmup", "seed", "target")

TASK = _others("task", "patch", "text", "alphabet")

MODEL, MODEL_MORE = _fields("model", _MODEL), _others("model", *_MODEL, *_FROM_THE_TASK)

TRAIN, TRAIN_MORE = _fields("train", _TRAIN), _others("train", *_TRAIN, "lr_changes")

EVERYTHING = (*TASK, *MODEL, *MODEL_MORE, *TRAIN, *TRAIN_MORE)

TRAINING = (*TRAIN, *TRAIN_MORE)


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


PROBLEM, GIVEN = "text_problem", "text_given"


def text_choice(preset: Preset, then: Callable[[Preset], None]) -> None:
    """Draw the choice; where another text is chosen, `then` is called with the preset made for it, as a callback.

    A text that a visitor gave is one of the options for this visitor only; who has its name (a link, settings) may use it too.
    """
    given: list[str] = st.session_state.setdefault(GIVEN, [])
    options = list(dict.fromkeys((PYTHON, SHAKESPEARE, *given, preset.task.text)))
    st.session_state["text"] = preset.task.text

    def follow(name: str) -> None:
        try:
            then(with_text(preset, name))
        except XformerError as error:
            st.session_state[PROBLEM] = str(error)

    def chosen() -> None:
        follow(st.session_state["text"])

    def take(content: bytes, _: str) -> str:
        name = run_commands.keep_text(content)
        if name not in given:
            given.append(name)
        follow(name)
        if PROBLEM in st.session_state:  # one message: it can be learned, or why not
            return ""
        text = texts.read(name)
        return f"{len(text):,} characters, {len(set(text)):,} of them different."

    def download() -> None:
        try:
            run_commands.download_shakespeare()
        except (XformerError, OSError) as error:
            st.session_state[PROBLEM] = str(error)
        else:
            follow(SHAKESPEARE)

    st.selectbox(
        "Text",
        options,
        format_func=lambda name: texts.title(name) + ("" if texts.is_here(name) else " (not here yet)"),
        key="text",
        on_change=chosen,
        help="The last 10 % of it are held out: training never reads them.",
    )
    if not run_store.is_open():
        st.caption(
            ":material/group: A text that you give is yours alone until you train on it: then everyone on this server sees "
            "the run, and passages of the text with it."
        )
    most = texts.MOST_BYTES // 1024**2
    kinds = ["txt", "md", "csv", "py", "json", "html", "xml"]
    file_box(f"A text of your own: UTF-8, up to {most} MB", kinds, most, take, key="text_file")
    if not texts.is_here(SHAKESPEARE):
        st.button(
            "Download tiny Shakespeare (1.1 MB)", icon=":material/download:", on_click=download, key="text_download"
        )
    if wrong := st.session_state.pop(PROBLEM, ""):
        st.error(escape_markdown(wrong), icon=":material/error:")
