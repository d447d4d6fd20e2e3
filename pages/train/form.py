"""The form for the settings of a run. It starts from the values of a preset and validates changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from types import NoneType
from typing import Any, get_args

import streamlit as st

from pages.compute import run_commands, visible_runs
from pages.controls.text import escape_markdown
from pages.controls.widgets import file_box
from xformer.config import Config, ModelConfig, TaskConfig, TrainConfig
from xformer.errors import XformerError
from xformer.presets import PRESETS, Preset
from xformer.task_limits import PYTHON, SHAKESPEARE, TASK_LIMITS
from xformer.tasks import Task, texts
from xformer.training.jobs import with_text

AUTO = "auto"
"""The option for None."""
KINDS: dict[str, type[Config]] = {"task": TaskConfig, "model": ModelConfig, "train": TrainConfig}
PROBLEM, GIVEN = "text_problem", "text_given"


@dataclass(frozen=True)
class Field:
    """One setting of a config, with its label and choices from `xformer.config`."""

    of: str
    """The config it belongs to, one of `KINDS`."""
    name: str
    label: str
    help: str
    options: tuple[Any, ...]
    """The choices; empty for a number or a switch."""


def _fields(of: str, names: Iterable[str]) -> tuple[Field, ...]:
    found = {name: KINDS[of].model_fields[name] for name in names}
    return tuple(
        Field(of, name, field.title or name, field.description or "", _choices(field.annotation))
        for name, field in found.items()
    )


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the choices of an annotated field; empty for a number, a switch or a text."""
    first, *others = get_args(annotation) or (None,)
    if NoneType in others:
        return (AUTO, True, False)
    return get_args(first) if Ellipsis in others else get_args(annotation)


def _others(of: str, *left_out: str) -> tuple[Field, ...]:
    """Return all fields of a config except some, so that new settings appear in the form automatically."""
    return _fields(of, [name for name in KINDS[of].model_fields if name not in left_out])


_MODEL = ("n_layers", "n_heads", "d_model", "d_ff", "positions", "norm")
_FROM_THE_TASK = ("architecture", "vocab_size", "pad_token", "start_token", "end_token", "image", "patch")
_TRAIN = ("steps", "batch_size", "peak_lr", "warmup", "seed", "target")

TASK = _others("task", "patch", "text", "alphabet")
MODEL, MODEL_MORE = _fields("model", _MODEL), _others("model", *_MODEL, *_FROM_THE_TASK)
TRAIN, TRAIN_MORE = _fields("train", _TRAIN), _others("train", *_TRAIN, "lr_changes")
EVERYTHING = (*TASK, *MODEL, *MODEL_MORE, *TRAIN, *TRAIN_MORE)
TRAINING = (*TRAIN, *TRAIN_MORE)
TASK_NAME, ARCHITECTURE = TASK[:2]


def put(preset: Preset, form: str, fields: Sequence[Field] = EVERYTHING) -> None:
    """Put the settings of a preset into a form. A callback, or before the form is drawn."""
    model, task, train = preset.model.to_json(), preset.task.to_json(), preset.train.to_json()
    derived = {  # the value that means "derived from other settings", and whether the preset has the derived value
        "d_head": (0, model["d_head"] * model["n_heads"] == model["d_model"]),
        "d_value": (0, model["d_value"] == model["d_head"]),
        "causal": (None, model["causal"] == (model["architecture"] != "encoder")),
        "final_norm": (None, model["final_norm"] == (model["norm"] == "pre")),
    }
    model |= {name: value for name, (value, is_derived) in derived.items() if is_derived}
    values = {"model": model, "task": task, "train": train}
    begin = {(field.of, field.name): values[field.of][field.name] for field in fields}
    st.session_state[f"{form}:begin"] = {name: AUTO if value is None else value for name, value in begin.items()}
    st.session_state[f"{form}:version"] = st.session_state.get(f"{form}:version", 0) + 1


def is_filled(form: str) -> bool:
    """Whether a form has settings."""
    return f"{form}:begin" in st.session_state


def ask(fields: Sequence[Field], form: str, columns: int = 3) -> None:
    """Draw fields in columns; a field that does not apply to the chosen task is disabled."""
    for field, place in zip(fields, cycle(st.columns(columns)), strict=False):
        with place:
            _ask(field, form)


def settings(preset: Preset, form: str, fields: Sequence[Field] = EVERYTHING) -> Preset:
    """Return a preset with the values of a form and the vocabulary of its task. Raises `ConfigError` if they are invalid."""
    values: dict[str, dict[str, Any]] = {of: {} for of in KINDS}
    for field in fields:
        value = _value(field, form)
        values[field.of][field.name] = None if value == AUTO else tuple(value) if isinstance(value, list) else value
    if values["task"].get("architecture", preset.task.architecture) != "encoder":
        values["task"]["end_token"] = False
    # fields that are not in the form (text, patches) come from a preset of that task
    name = values["task"].get("name", preset.task.name)
    task = next((other.task for other in (preset, *PRESETS.values()) if other.task.name == name), preset.task)
    task_config = task.replace(**values["task"])
    train = preset.train.replace(**values["train"], lr_changes=())
    if not values["model"]:
        return replace(preset, task=task_config, train=train)
    task = Task(task_config)
    special = task.vocabulary.special
    if task_config.architecture != "encoder-decoder":
        values["model"]["tied_source"] = False
    sizes = {"vocab_size": len(task.vocabulary), "image": task.image_side, "patch": task_config.patch}
    tokens = {"pad_token": special.pad, "end_token": special.end, "start_token": special.start}
    model = preset.model.replace(**values["model"], architecture=task_config.architecture, **sizes, **tokens)
    task.check_fits(model)
    recipe = preset.train.replace(lr_changes=(), snapshot_every=train.snapshot_every)
    if (model, task_config, train) == (preset.model, preset.task, recipe):
        return replace(preset, train=train)
    title = f"{task_config.name.capitalize()}, {model.n_layers} × {model.n_heads} heads, width {model.d_model}"
    return Preset("own", title, "A model with your own settings.", model, task_config, train)


def _ask(field: Field, form: str) -> None:
    # A default, not a session value, so that a rerun of the page does not overwrite what the visitor is typing.
    begin = _begin(field, form)
    is_off, help = not _is_used(field, form), field.help or None
    common: dict[str, Any] = {"key": _key(field, form), "help": help, "disabled": is_off, "persist_state": "session"}
    options = _options(field, form)
    if field.name == "dropout_sites":
        st.multiselect(field.label, options, default=begin, **common)
    elif options:
        index = options.index(begin) if begin in options else 0
        st.selectbox(field.label, options, index=index, format_func=_option_label, **common)
    elif isinstance(begin, bool):
        st.toggle(field.label, value=begin, **common)
    elif isinstance(begin, float):
        step = 0.1 if begin == 0 else float(f"{abs(begin) / 10:.0e}")
        st.number_input(field.label, value=begin, step=step, format="%g", **common)
    else:
        st.number_input(field.label, value=begin, step=1, **common)


def _value(field: Field, form: str) -> Any:
    value = st.session_state.get(_key(field, form), _begin(field, form))
    options = _options(field, form)
    return options[0] if options and not isinstance(value, list) and value not in options else value


def _key(field: Field, form: str) -> str:
    """Return the key of a field's widget. It changes with each preset that is put into the form."""
    return f"{form}_{st.session_state[form + ':version']}_{field.of}_{field.name}"


def _begin(field: Field, form: str) -> Any:
    return st.session_state[f"{form}:begin"][field.of, field.name]


def _options(field: Field, form: str) -> tuple[Any, ...]:
    return TASK_LIMITS[_value(TASK_NAME, form)].architectures if field is ARCHITECTURE else field.options


def _is_used(field: Field, form: str) -> bool:
    if field.name == "train_share":
        return _value(TASK_NAME, form) == "modular"
    if field.name in ("end_token", "causal"):
        return _value(ARCHITECTURE, form) == "encoder"
    return field.name != "tied_source" or _value(ARCHITECTURE, form) == "encoder-decoder"


def _option_label(option: Any) -> str:
    return {True: "yes", False: "no"}[option] if isinstance(option, bool) else str(option).replace("_", " ")


def text_choice(preset: Preset, then: Callable[[Preset], None]) -> None:
    """Draw the choice of the text that a character model learns: an included one, the visitor's own, or tiny Shakespeare.

    Args:
        preset: The preset with the current text.
        then: Called in a callback with the preset for the newly chosen text.
    """
    given: list[str] = st.session_state.setdefault(GIVEN, [])  # uploaded texts, offered to this visitor only
    options = list(dict.fromkeys((PYTHON, SHAKESPEARE, *given, preset.task.text)))
    st.session_state["text"] = preset.task.text

    def follow(fetch: Callable[[], None] = lambda: None, name: str = "") -> None:
        try:
            fetch()
            then(with_text(preset, name or st.session_state["text"]))
        except (XformerError, OSError) as error:
            st.session_state[PROBLEM] = str(error)

    def take(content: bytes, _: str) -> str:
        name = run_commands.keep_text(content)
        if name not in given:
            given.append(name)
        then(with_text(preset, name))
        text = texts.read(name)
        return f"{len(text):,} characters, {len(set(text)):,} of them distinct."

    titles = {name: texts.title(name) + ("" if texts.is_here(name) else " (not downloaded)") for name in options}
    help = "The last 10% of the text is held out: training never reads it."
    st.selectbox("Text", options, format_func=titles.__getitem__, key="text", on_change=follow, help=help)
    if not visible_runs.is_open():
        st.caption(
            ":material/group: A text that you upload is visible only to you. Once you train on it, everyone on this server can "
            "see the run and passages of the text."
        )
    most = texts.MAX_BYTES // 1024**2
    kinds = ["txt", "md", "csv", "py", "json", "html", "xml"]
    file_box(f"Your own text: UTF-8, up to {most} MB", kinds, most, take, key="text_file")
    if not texts.is_here(SHAKESPEARE):
        download = partial(follow, run_commands.download_shakespeare, SHAKESPEARE)
        words = "Download tiny Shakespeare (1.1 MB)"
        st.button(words, icon=":material/download:", on_click=download, key="text_download")
    if problem := st.session_state.pop(PROBLEM, ""):
        st.error(escape_markdown(problem), icon=":material/error:")
