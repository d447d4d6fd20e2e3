"""A hook of mkdocs: a live page of each shipped model and the lessons become files of the documentation's site.

`make docs` runs it. On GitHub the links of the documentation lead to a lesson's Markdown and to a model's folder; in the site
they lead to the pages in which the model runs.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODELS = sorted(path.parent.name for path in ROOT.glob("checkpoints/*/model.safetensors"))
LESSONS = sorted(path.stem for path in ROOT.glob("docs/lessons/*.md"))


def pages() -> Iterator[tuple[str, Callable[[], str]]]:
    """The path of each page in the site, and what makes its text."""
    from xformer.live import lesson
    from xformer.live.export import live_page

    def built(name: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "lesson.html"
            lesson.build(ROOT / "docs" / "lessons" / f"{name}.md", out)
            return out.read_text("utf-8")

    for name in MODELS:
        yield f"live/{name}.html", lambda name=name: live_page(ROOT / "checkpoints" / name)
    for name in LESSONS:
        yield f"lessons/{name}.html", lambda name=name: built(name)


def linked(markdown: str) -> str:
    """The Markdown of a page with links to live pages in place of those to lessons and checkpoints."""
    markdown = re.sub(r"\]\(lessons/([\w-]+)\.md\)", r"](lessons/\1.html)", markdown)
    return re.sub(r"\]\(\.\./checkpoints/([\w-]+)\)", r"](live/\1.html)", markdown)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the files of the site."""
    from mkdocs.structure.files import File

    for path, make in pages():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead the links of a page to the live pages."""
    return linked(markdown)
