"""Generate docs/api.md: the signature and docstring of every public name, as plain Markdown for GitHub and MkDocs."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from types import ModuleType
from typing import Any

from pydantic import BaseModel

import xformer

WIDTH = 100
BEGIN = """# API

<!-- written by `make pages` from the code -->

Every public name with its docstring. Layers, heads, positions and neurons count from 0; shapes name the axes: `[batch, pos]`.
"""
MODULES = ("xformer.testing", "xformer.edits", "xformer.edit_links", "xformer.errors")
"""Further modules whose public functions and classes are listed."""
SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields", "Example")


def page() -> str:
    """Return the text of the page."""
    parts = [BEGIN]
    for package in (xformer, xformer.viz, xformer.analysis):
        parts += [_module(package), *(_entry(f"{package.__name__}.{name}", value) for name, value in _public(package))]
    for name in MODULES:
        module = import_module(name)
        parts += [_module(module), *(_entry(f"{name}.{own}", value) for own, value in _own(module))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _public(package: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in package.__all__:
        value = getattr(package, name)
        if not isinstance(value, ModuleType):
            yield name, value


def _own(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the functions and exceptions of a module. Classes of edits are omitted: the functions create them."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, Exception)):
            yield name, value


def _module(module: ModuleType) -> str:
    return f"## {module.__name__}\n\n{markdown(inspect.getdoc(module) or '')}"


def _entry(name: str, value: Any) -> str:
    parts = [f"### {name}"]
    if callable(value) and not (inspect.isclass(value) and not _has_init(value)):
        parts.append(f"```python\n{signature(name, value)}\n```")
    parts.append(markdown(inspect.getdoc(value) or ""))
    if inspect.isclass(value):
        parts += [_fields(value)] if issubclass(value, BaseModel) else [_members(value)]
    return "\n\n".join(part for part in parts if part)


def _has_init(value: type) -> bool:
    return "__init__" in vars(value) and not issubclass(value, BaseModel)


def signature(name: str, value: Any) -> str:
    """Return the signature as code, on several lines if one is too long."""
    try:
        found = inspect.signature(value)
    except ValueError:
        return f"{name}()"
    words, only = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not only:
            words.append("*")
        only = only or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        typed = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
        default = (
            "" if parameter.default is parameter.empty else f"{' = ' if typed else '='}{_value(parameter.default)}"
        )
        words.append(f"{stars}{parameter.name}{typed}{default}")
    is_class = inspect.isclass(value)
    end = "" if is_class or found.return_annotation is found.empty else f" -> {_annotation(found.return_annotation)}"
    line = f"{name}({', '.join(words)}){end}"
    return line if len(line) <= WIDTH else f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){end}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _value(default: Any) -> str:
    """Return a default as code: "Class()" for an object, "..." for a default factory."""
    text = repr(default)
    if "DEFAULT_FACTORY" in type(default).__name__:
        return "..."
    return f"{type(default).__name__}()" if "<" in text or len(text) > 60 else text


def _fields(config: type[BaseModel]) -> str:
    """Return the fields of a configuration with their descriptions."""
    lines = []
    for name, field in config.model_fields.items():
        default = "" if field.is_required() else f" = {_value(field.default)}"
        about = field.description or field.title
        lines.append(f"- `{name}{default}`" + (f": {about}" if about else ""))
    return "\n".join(["**Settings**", "", *lines])


def _members(value: type) -> str:
    """Return the public methods and properties of a class, each with the first sentence of its docstring."""
    lines = []
    for name, member in vars(value).items():
        text = first_sentence(inspect.getdoc(member) or "") if not name.startswith("_") else ""
        if isinstance(member, property) or type(member).__name__ == "cached_property":
            lines += [f"- `{name}`: {text}"] if text else []
        elif text and inspect.isroutine(getattr(value, name)):
            arguments = [
                f"{one.name}={_value(one.default)}" if one.default is not one.empty else one.name
                for one in inspect.signature(getattr(value, name)).parameters.values()
                if one.name != "self"
            ]
            lines.append(f"- `{name}({', '.join(arguments)})`: {text}")
    return "\n".join(["**Members**", "", *lines]) if lines else ""


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, up to a full stop before a space or the end."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[^.]{2}[.])\s+(?=[A-Z`∂])", paragraph)[0]


def markdown(text: str) -> str:
    """Convert a Google-style docstring to Markdown, with lists of arguments and examples as code."""
    out: list[str] = []
    blocks = re.split(rf"^({'|'.join(SECTIONS)}):\n", text, flags=re.MULTILINE)
    out.append(_prose(blocks[0]))
    for title, body in zip(blocks[1::2], blocks[2::2], strict=True):
        own, rest = _indented(body)
        if title == "Example":
            out.append(f"```python\n{own}\n```")
        elif title in ("Returns", "Yields"):
            out.append(f"**{title}** {' '.join(own.split())}")
        else:
            out.append(f"**{title}**\n\n{_list(own)}")
        out.append(_prose(rest))
    return "\n\n".join(part.strip() for part in out if part.strip())


def _indented(body: str) -> tuple[str, str]:
    """Split a text into its indented beginning, dedented, and the rest."""
    lines = body.splitlines()
    n = next((n for n, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return inspect.cleandoc("\n".join(lines[:n])), "\n".join(lines[n:])


def _prose(text: str) -> str:
    """Convert paragraphs; indented ones become code."""
    parts = []
    for is_code, blocks in groupby(re.split(r"\n\n", text.strip("\n")), _is_indented):
        if is_code:
            code = textwrap.dedent("\n\n".join(blocks))
            parts.append(f"```python\n{code}\n```")
            continue
        for block in blocks:
            is_drawing = re.search(r"^ +\S|├|└|│| {3,}", block, re.MULTILINE)
            parts.append(f"```text\n{block}\n```" if is_drawing else block)
    return "\n\n".join(parts)


def _is_indented(block: str) -> bool:
    return bool(block) and all(line.startswith("    ") for line in block.splitlines())


def _list(text: str) -> str:
    """Convert `name: meaning` items and their continuation lines to a list."""
    items = re.split(r"\n(?=\S)", text)
    lines = []
    for item in items:
        name, _, meaning = " ".join(item.split()).partition(": ")
        lines.append(f"- `{name}`: {meaning}" if meaning else f"- {name}")
    return "\n".join(lines)
