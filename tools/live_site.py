"""MkDocs hook: add the live pages of the shipped models, the lessons and the API to the documentation site.

`make docs` runs it. On GitHub, links in the documentation point to the Markdown of a lesson and to the folder of a model;
in the site, they point to the pages in which the model runs.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
MODELS = sorted(path.parent.name for path in ROOT.glob("checkpoints/*/model.safetensors"))


def pages() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the path of each page in the site, and a function that returns its HTML."""
    from xformer.live import lesson
    from xformer.live.export import live_page

    for name in MODELS:
        yield f"live/{name}.html", lambda name=name: live_page(ROOT / "checkpoints" / name)
    for name in lesson.ORDER:
        yield f"lessons/{name}.html", lambda name=name: lesson.page(lesson.FOLDER / f"{name}.md")


def linked(markdown: str) -> str:
    """Return the Markdown of a page with its links to lessons and checkpoints replaced by links to live pages."""
    markdown = re.sub(r"\]\(lessons/([\w-]+)\.md\)", r"](lessons/\1.html)", markdown)
    return re.sub(r"\]\(\.\./checkpoints/([\w-]+)\)", r"](live/\1.html)", markdown)


def api() -> str:
    """Return the page of the API, which mkdocstrings fills: every public name of the packages, and of these modules."""
    names = ("xformer", "xformer.viz", "xformer.analysis", "xformer.masks", "xformer.assignments")
    packages = [import_module(name) for name in names]
    modules = [import_module(f"xformer.{name}") for name in ("testing", "edits", "edit_links", "errors")]
    parts = [
        "# API",
        "Every public name. Layers, heads, positions and neurons count from 0; shapes name the axes: `[batch, pos]`.",
    ]
    for module in (*packages, *modules):
        names = (
            module.__all__
            if module in packages
            else [name for name, value in vars(module).items() if _is_own(value, module)]
        )
        parts.append(f"## {module.__name__}")
        parts += [
            f"::: {module.__name__}.{name}" for name in names if not isinstance(getattr(module, name), ModuleType)
        ]
    return "\n\n".join(parts)


def _is_own(value: Any, module: ModuleType) -> bool:
    """Whether a value is a public function or exception of a module; the functions of `edits` create its classes."""
    if getattr(value, "__module__", "") != module.__name__ or value.__name__.startswith("_"):
        return False
    return inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, Exception))


def on_files(files: Any, config: Any) -> Any:
    """Add the live pages and the API to the files of the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "api.md", content=api()))
    for path, make in pages():
        files.append(File.generated(config, path, content=make()))
    return files


def badges(notebook: str, repository: str) -> str:
    """Return links that open a notebook of docs/ in Colab and in Binder; "" without a repository, as in a checkout.

    Args:
        notebook: Its path in docs/.
        repository: The owner and name on GitHub, as the variable GITHUB_REPOSITORY has it in a workflow.
    """
    if not repository:
        return ""
    path = f"docs/{notebook}"
    colab = f"https://colab.research.google.com/github/{repository}/blob/main/{path}"
    binder = f"https://mybinder.org/v2/gh/{repository}/main?urlpath=lab/tree/{path}"
    first = "there, run <code>%pip install 'xformer-studio[viz]'</code> first"
    return f'<p><a href="{colab}">Open in Colab</a> · <a href="{binder}">Open in Binder</a> ({first})</p>'


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Begin the page of a notebook with the links that open it, and point its links to the pages of the site."""
    notebook = page.file.src_uri
    if not notebook.endswith(".ipynb"):
        return html
    html = re.sub(r'href="(\.\./[\w-]+)\.md(#[^"]*)?"', r'href="\1.html\2"', html)
    return badges(notebook, os.environ.get("GITHUB_REPOSITORY", "")) + html


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point the links of a page to the live pages."""
    return linked(markdown)
