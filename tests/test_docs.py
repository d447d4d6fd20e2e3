"""The documentation matches the code: gallery, glossary, API, notebooks, links and examples."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair
import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from tools import doc_pages, gallery, live_site

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
HELPERS = {"save", "draw_as_images", "themed"}
"""Public names of `xformer.viz` that are not pictures."""


def test_gallery_has_every_picture_with_description_call_and_image() -> None:
    calls = [call for _, calls in gallery.SCREENS.values() for call in calls]
    wanted = {*xformer.viz.__all__, "attention_view"} - HELPERS
    drawn = {gallery.title_of(call) for call in calls}
    assert drawn == wanted, "name its call in tools/gallery.py, then make gallery"
    text = (DOCS / "gallery.md").read_text("utf-8")
    assert text == gallery.page(), "make gallery"
    images = re.findall(r"!\[.*?\]\((gallery/.+?)\)", text)
    assert len(images) == len(calls) == len(set(images)) == len(list(DOCS.glob("gallery/*")))
    assert sum(path.stat().st_size for path in DOCS.glob("gallery/*")) < 2_000_000


def test_generated_pages_match_the_code() -> None:
    assert {"::: xformer.read", "::: xformer.viz.lens", "::: xformer.edits.patch_from"} <= set(
        live_site.api().split("\n\n")
    )
    text = (DOCS / "glossary.md").read_text("utf-8")
    assert text == doc_pages.glossary(text), "make pages"
    assert "**query**" in text


def traces() -> Iterator[xformer.Trace]:
    """Yield traces of models with every kind of positions and every architecture."""
    for positions in ("sinusoidal", "learned", "rotary", "alibi", "none"):
        for architecture in ("encoder", "decoder", "encoder-decoder"):
            config = xformer.ModelConfig(
                architecture=architecture, vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_head=4, d_ff=8,
                norm="pre", positions=positions, max_len=8,
            )  # fmt: skip
            more = [torch.tensor([[4, 5]])] if architecture == "encoder-decoder" else []
            yield xformer.record(xformer.Transformer(config), torch.tensor([[1, 2, 3]]), *more)


def test_glossary_lists_exactly_the_activations() -> None:
    recorded = {name for trace in traces() for name in trace}
    table = (DOCS / "glossary.md").read_text("utf-8").split("## Activations")[1].split("External models")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for cell in row for name in re.findall(r"`([\w.]+)`", cell)}
    assert len(rows) > 20
    generic = {
        re.sub(r"^(encoder|decoder)\.", "STACK.", re.sub(r"\.(self_|cross_)?attn\.", ".ATTN.", name))
        for name in recorded
    }
    written = {name.replace(".0.", ".N.") for name in generic}
    assert written == listed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the cells without a kernel, in one namespace and with fewer training steps."""
    monkeypatch.chdir(ROOT)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with altair.renderers.enable("default"):  # notebooks select another
        for cell in cells(path):
            if cell["cell_type"] == "code":
                shortened = "".join(cell["source"]).replace("steps=100", "steps=20")
                source = re.sub(r"\btrained\(\d+\)", "trained(5)", shortened)
                exec(compile(source, path.name, "exec"), namespace)
    assert any(isinstance(value, xformer.Reading) for value in namespace.values())


def cells(path: Path) -> list[dict]:
    """Return the cells of a notebook."""
    return json.loads(path.read_text("utf-8"))["cells"]


def test_navigation_has_every_page_and_links_resolve() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in [*DOCS.glob("*.md"), *NOTEBOOKS, DOCS / "api.md"]}
    assert pages == set(re.findall(r": (\S+\.(?:md|ipynb))\n", (ROOT / "mkdocs.yml").read_text("utf-8")))
    for file in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        for link in re.findall(r"\]\((?!http|#)([^)#\s]+)", file.read_text("utf-8")):
            assert (file.parent / link).exists() or link == "api.md", f"{file.name}: {link}"


def test_badges_open_the_notebooks_of_the_repository_that_builds_the_site() -> None:
    for path in NOTEBOOKS:
        shown = live_site.badges(path.relative_to(DOCS).as_posix(), "someone/fork")
        assert f"/github/someone/fork/blob/main/docs/notebooks/{path.name}" in shown
        assert f"/gh/someone/fork/main?urlpath=lab/tree/docs/notebooks/{path.name}" in shown
    assert live_site.badges("notebooks/first_look.ipynb", "") == ""


def test_examples_of_coming_from_other_libraries_run() -> None:
    text = (DOCS / "coming-from.md").read_text("utf-8")
    ours = re.findall(r"^\*\*xformer\*\*\n\n```python\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    theirs = re.findall(r"^\*\*(BertViz|TransformerLens|nnsight|captum)\*\*$", text, re.MULTILINE)
    assert len(ours) == len(theirs) == text.count("```python") / 2 == 10
    names: dict[str, Any] = {"model": FAMILIES["GPT-2"].make(), "tokenizer": tokenizer()}
    for block in ours:
        exec(compile(block, "coming-from.md", "exec"), names)
    reading = names["reading"]
    torch.testing.assert_close(reading["decoder.0.attn.z"].transpose(1, 2), reading["blocks.0.attn.hook_z"])
    assert names["gradient"].shape == names["hidden"].shape


def test_examples_of_the_doctor_page_give_the_shown_output() -> None:
    text = (DOCS / "is-my-attention-right.md").read_text("utf-8")
    code = "\n".join(re.findall(r"```python\n(>>>.*?)```", text, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(code, {}, "is-my-attention-right.md", None, 0)
    failures: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(
        test, out=failures.append
    )
    assert results.attempted > 20
    assert not failures, "".join(failures)
