"""No page hands words that anyone can have typed to something that reads Markdown: read off the source of all pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.pages.conftest import ROOT, Open, parsed

MARKDOWN = set(
    re.findall(
        r"\w+",
        "error warning info success exception caption markdown toast title header subheader badge metric write button "
        "download_button link_button popover expander checkbox toggle status spinner heading",
    )
)
"""What reads its first argument as Markdown; `text`, `code` and the cells of tables show letters."""
FROM_ANYONE = set(
    re.findall(
        r"\w+",
        "error exception why reason problem wrong said words message text typed name title label labels token tokens symbol "
        "asked file_name tag tags story about",
    )
)
"""Names of variables and attributes that may hold text of a visitor, or quote it."""
SAFE = {"escape_markdown", "len", "int", "float", "duration", "percent", "megabytes", "join_words"}
"""Calls that make a text harmless, or a number."""
OURS = {
    "attention/head_scores.py": {"name"},
    "attention/heads.py": {"label"},
    "attention/one_cell.py": {"found.removed.writer.name", "layer.title", "one.title", "title_of(run, cell)"},
    "bug_lab/browse.py": {"curves.title", "title", "why", "words"},  # escaped where it is made
    "classroom/present.py": {"label"},  # a code of letters
    "classroom/stage.py": {"words"},  # of buttons, or escaped where it is made
    "compare/panels.py": {"name"},  # escaped where it is made
    "compare/sidebar.py": {"words"},
    "embeddings/page.py": {"name"},
    "feed_forward/pictures.py": {"choice.title", "title", "words"},  # of a layer, or escaped where it is made
    "home/more.py": {"label", "published.title"},
    "positions/panels.py": {"kind.title"},
    "runs/chosen.py": {"title", "words"},
    "runs/page.py": {"PRESETS[SHIPPED].title", "words"},
    "shared/layout.py": {"text"},  # the callers hand it over, and are read here too
    "shared/picture.py": {"text"},
    "shared/session.py": {"name", "title", "words"},  # of a package that is known here, and of screens
    "shared/widgets.py": {"label"},
    "train/form.py": {"field.label", "words"},
    "train/run.py": {"CURVES[what].title", "title"},
    "train/setup.py": {"about", "title", "words"},  # of presets and sweeps
    "train/status.py": {"words"},
}
"""By file, expressions that hold words of this program, in spite of their names; each was looked at."""


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
    """Each call of something that reads Markdown, with the expressions it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in MARKDOWN and not ast.unparse(node.func).startswith("texts."):  # which name a text
                read = [
                    *node.args[:1],
                    *(word.value for word in node.keywords if word.arg in ("help", "body", "label")),
                ]
                yield node, read


def unescaped(expression: ast.expr) -> Iterator[str]:
    """The parts of an expression that may be anyone's words and go through no `escape_markdown`."""
    parts: list[ast.expr] = []
    match expression:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in SAFE:
            return
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in {
            *FROM_ANYONE,
            "title_of",
            "why_not",
        }:
            yield ast.unparse(expression)
        case ast.Call(func=func, args=args, keywords=keywords):
            parts = [*args, *(word.value for word in keywords)]
            parts += [func.value] if isinstance(func, ast.Attribute) else []
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if name in FROM_ANYONE:
                yield ast.unparse(expression)
        case ast.IfExp(body=body, orelse=orelse):
            parts = [body, orelse]
        case ast.Subscript(value=value) | ast.FormattedValue(value=value, format_spec=None):
            parts = [value]
        case ast.FormattedValue():
            return  # a number has a format
        case _:
            parts = [child for child in ast.iter_child_nodes(expression) if isinstance(child, ast.expr)]
    for part in parts:
        yield from unescaped(part)


def shown_unescaped(tree: ast.Module) -> list[str]:
    """The expressions in a source that are shown as Markdown and may be anyone's words."""
    return [part for _, read in calls(tree) for one in read for part in unescaped(one)]


def test_no_page_reads_what_anyone_typed_as_markdown() -> None:
    for file in sorted((ROOT / "pages").rglob("*.py")):
        name = file.relative_to(ROOT / "pages").as_posix()
        assert set(shown_unescaped(parsed(file))) == OURS.get(name, set()), name


def test_an_error_repeats_what_was_typed_letter_by_letter(open_page: Open) -> None:
    app = open_page("pages/attention/page.py", model="reverse-small")
    for text in ("$x$ `a` a\\b", ":red[a] :material/delete:", "<b>x</b> https://evil.example me@evil.example"):
        app.text_input(key="input").set_value(text).run()
        [shown] = [error.value for error in app.error]
        assert not re.search(r"(?<!\\)[$`<>\[\]_*]|:(?=[\w/])|@(?=\w)", shown), shown
