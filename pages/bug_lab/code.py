"""The panel Code of the tab Your model: the source of the open model, with what each line computed for the sidebar's input.

Only files of this package and of the installed packages of the model's classes are shown. A model that was passed to
`xformer.show` also shows its own source.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import packages_distributions

import streamlit as st
from torch import nn

from pages.components.elements import code_view
from pages.compute import cached_runs, models
from pages.compute.byte_cache import MB, cached
from pages.controls.text import escape_markdown
from xformer.adapters import ModelAdapter
from xformer.adapters.any_module import AnyModule
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.load import MEMORY_PREFIX
from xformer.adapters.own_models import own_model
from xformer.doctor.check import FaultLocation
from xformer.errors import InputError, UnavailableError, XformerError
from xformer.layer_path import LayerPath
from xformer.program.inputs import ModuleInputs
from xformer.widgets.code_difference import Difference
from xformer.widgets.code_lines import CodeRun, run_code
from xformer.widgets.code_view import code_data, mark_of

KEPT = 128 * MB
"""Limit of the results that are kept while the lines are drawn; later ones have shapes only."""
LARGEST = 6 * MB
"""Limit of a view in bytes, below that of a message to the browser."""
SEEN = "The first error is seen in its result."
Place = tuple[str, str, int | None]
"""The activation or module of a finding, its cause, and its attention layer among all of the model."""


def code_panel(
    model: str, source: tuple[int, ...], place: FaultLocation | None, site: LayerPath | None, line: str
) -> None:
    """Draw the panel; it computes nothing until it is opened.

    Args:
        model: The name of the model.
        source: The input of the sidebar.
        place: The place of the first finding, if there is one.
        site: Its layer.
        line: The line that a finding names, as "model.py:38"; "" if none does.
    """
    panel = st.expander("Code", icon=":material/code:", key="doctor_code", on_change="rerun")
    if not panel.open:
        return
    sites = models.adapter(model).shape.attention
    layer = sites.index(site) if site in sites else None
    with panel:
        try:
            with st.spinner("Running the model line by line …"):
                data, words = _data(model, source, None if place is None else (place.name, place.cause, layer), line)
        except XformerError as error:
            st.info(f"The code of this model is not shown. {escape_markdown(str(error))}", icon=":material/code_off:")
            return
        st.caption(escape_markdown(words))
        code_view(key="doctor_code_view", data=data)


@cached
def _data(model: str, source: tuple[int, ...], place: Place | None, line: str = "") -> tuple[bytes, str]:
    """The packed view, and a sentence about it.

    Raises:
        InputError: The model cannot run on this input, or the view would be too large.
        UnavailableError: The source may not be shown.
    """
    cached_runs.check_memory(model, source)
    adapter = models.adapter(model)
    module, inputs = _call_of(adapter, source)
    try:
        run = run_code(module, inputs, keep_bytes=KEPT)
    except XformerError:
        raise
    except Exception as error:  # a module may raise anything
        raise InputError(f"It could not be run line by line: {type(error).__name__}.") from error
    if not model.startswith(MEMORY_PREFIX):
        run = run.only(shown_files(module))
    if not any(run.frames):
        raise UnavailableError("Its source is in no installed package.")
    mark, at = (None, "") if place is None else _mark(run, adapter, place)
    if named := mark_of(run, line):
        mark, at = named, run.operations[named.operation].address.module
    example = adapter.to_example(source)
    labels = () if example.target is not None else adapter.token_names(example.input_ids[0])
    data = code_data(run, labels, at=at, mark=mark)
    if len(data) > LARGEST:
        raise InputError(f"It has {len(run.operations):,} operations, too many for this page; use `xformer.code_view`.")
    words = [
        "What each line computed for this input.",
        run.steps,
        "" if mark is None else f"Marked: {mark.line}. {mark.reason}",
    ]
    return data, " ".join(filter(None, words))


def _call_of(adapter: ModelAdapter, source: tuple[int, ...]) -> tuple[nn.Module, ModuleInputs]:
    """The module of a model, and the arguments that it gets for an input of the sidebar."""
    if isinstance(adapter, AnyModule):
        return adapter.opened.module, adapter.given
    example = adapter.to_example(source)
    if isinstance(adapter, HuggingFaceModel):
        return adapter.opened.module, adapter.inputs_of(example)
    return own_model(adapter), tuple(one for one in (example.input_ids, example.target) if one is not None)


def shown_files(module: nn.Module) -> Callable[[str], bool]:
    """Return which files the app may show, as a function: those of this package and of the installed ones of the module."""
    installed = packages_distributions()
    names = {type(part).__module__.partition(".")[0] for part in module.modules()} & installed.keys()
    packages = (sys.modules[name] for name in ("xformer", *sorted(names)) if name in sys.modules)
    folders = [os.path.realpath(folder) + os.sep for package in packages for folder in getattr(package, "__path__", ())]
    return lambda file: file.endswith(".py") and os.path.realpath(file).startswith(tuple(folders))


def _mark(run: CodeRun, adapter: ModelAdapter, place: Place) -> tuple[Difference | None, str]:
    """The line of a finding, None if its place is no operation of this run; and the module in which it is."""
    name, cause, layer = place
    sites, found, head = adapter.shape.attention, run.operations.attentions, None
    if layer is not None and len(sites) == len(found):
        path = next((frame.owner[0].split(".") for frame in run.frames[found[layer].first][:1]), [])
        is_stack = not adapter.shape.is_encoder_decoder or sites[layer].stack in path
        head = found[layer].heads[0] if str(sites[layer].layer) in path and is_stack else None
    inside = [one for one in run.operations if name and f"{one.address.module}.".startswith(f"{name}.")]
    operation = None
    if cause == "input" and inside:
        operation = next((value.operation for value in inside[0].inputs if value.operation is not None), None)
    elif head is not None and head.kernel is None and cause in ("mask", "scores", "pattern", "z"):
        if len(found[layer or 0].heads) == 1 and not (cause == "mask" and head.is_masked_later):
            operation = {"pattern": head.normaliser.operation, "z": head.last}.get(cause, head.scores.operation)
    elif all(one.address.module == name for one in inside):  # a module without parts: what differs first is its result
        operation = next(reversed(inside), None)
    at = head.first.address.module if head is not None else ""
    if operation is None or not run.frames[operation.index]:
        return None, at
    line = str(run.frames[operation.index][0].line)
    return Difference(line, operation.index, SEEN), operation.address.module
