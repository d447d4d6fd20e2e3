"""Text that visitors typed never reaches Markdown unescaped: a check of the source of all pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.pages.conftest import ROOT, Open, parsed


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


MARKDOWN = words(
    "error warning info success exception caption markdown toast title header subheader badge metric write button "
    "download_button link_button popover expander checkbox toggle status spinner heading switch start_button"
)
"""Functions that render their first argument as Markdown; `text`, `code` and table cells show it literally."""
FROM_ANYONE = words(
    "error exception why reason problem wrong words message text typed name title label labels token tokens symbol "
    "take_parameter validate_text asked file_name tag tags story about"
)
"""Names of variables and attributes that may hold or quote the text of a visitor."""
UNESCAPED = {*FROM_ANYONE, "title_of", "why_not"}
"""Calls that may return such a text."""
SAFE = {"escape_markdown", "len", "int", "float", "duration", "percent", "megabytes", "join_words"}
"""Calls that return escaped text or a number."""
OURS = {
    "attention/head_scores.py": {"name"},
    "attention/heads.py": {"words"},
    "attention/one_cell.py": {"found.removed.writer.name", "one.title", "title_of(run, cell)"},
    "bug_lab/browse.py": {"curves.title", "title", "why", "words"},  # escaped where it is created
    "classroom/present.py": {"label"},  # a code of letters
    "classroom/stage.py": {"words"},  # of buttons, or escaped where it is created
    "compare/panels.py": {"name"},  # escaped where it is created
    "compare/sidebar.py": {"words"},
    "first_principles/sentence.py": {"why"},  # of the questions, which are ours
    "embeddings/page.py": {"name"},
    "feed_forward/page.py": {"choice.title", "label", "words"},  # of a layer, or escaped where it is created
    "home/panels.py": {"label", "published.title"},
    "home/zoom.py": {"title"},  # what to type, and whether the model has learned its task
    "positions/page.py": {"kind.title"},
    "runs/chosen.py": {"title", "words"},
    "runs/page.py": {"PRESETS[SHIPPED].title", "words"},
    "controls/text.py": {"text"},  # passed by callers, which are checked here too
    "compute/cell_steps.py": {"layer.title"},
    "compute/picture.py": {"text"},
    "state/session.py": {"run_commands.why_not()", "title", "words"},  # a constant; of screens
    "state/view.py": {"label"},  # of buttons that change the run, escaped where it is created
    "controls/widgets.py": {"label"},
    "train/form.py": {"field.label", "words"},
    "train/run.py": {"CURVES[what].title", "title"},
    "train/setup.py": {"about", "reason", "title", "words"},  # of presets and sweeps; a constant
    "train/status.py": {"label", "words"},  # of buttons, or escaped where it is created
}
"""By file, expressions that hold only text of this program despite their names; each was checked by hand."""


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
    """Yield each call that renders Markdown, with the rendered expressions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in MARKDOWN and not ast.unparse(node.func).startswith("texts."):  # these name a text
                named = [word.value for word in node.keywords if word.arg in ("help", "body", "label")]
                yield node, [*node.args[:1], *named]


def unescaped(expression: ast.expr) -> Iterator[str]:
    """Yield the parts of an expression that may hold a visitor's text and do not go through `escape_markdown`."""
    parts: list[ast.expr] = []
    match expression:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in SAFE:
            return
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in UNESCAPED:
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
    """Return the expressions in a source that are rendered as Markdown and may hold a visitor's text."""
    return [part for _, read in calls(tree) for one in read for part in unescaped(one)]


def test_no_page_renders_typed_text_as_markdown() -> None:
    for file in sorted((ROOT / "pages").rglob("*.py")):
        name = file.relative_to(ROOT / "pages").as_posix()
        assert set(shown_unescaped(parsed(file))) == OURS.get(name, set()), name


def test_an_error_quotes_typed_text_literally(open_page: Open) -> None:
    app = open_page("pages/attention/page.py", model="reverse-small")
    for text in ("$x$ `a` a\\b", ":red[a] :material/delete:", "<b>x</b> https://evil.example me@evil.example"):
        app.text_input(key="input").set_value(text).run()
        [shown] = [error.value for error in app.error]
        assert not re.search(r"(?<!\\)[$`<>\[\]_*]|:(?=[\w/])|@(?=\w)", shown), shown
