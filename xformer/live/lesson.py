"""Lessons: Markdown files whose steps show a model, ask for a prediction, and check exercises by running the model.

A lesson begins with TOML between `+++` lines. Each step begins with `## `; fenced blocks named `show`, `predict` and `exercise`
contain TOML. docs/lessons.md describes the format; the lessons are in docs/lessons/, in the order of `ORDER`.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from xformer import installed
from xformer.errors import InputError
from xformer.files import read_text, write_atomically
from xformer.layer_path import PATH

ORDER = ("attention", "scores", "heads", "masks", "positions", "cross-attention", "induction", "training")
"""The names of the shipped lessons. Each builds on those before it, and every list of lessons is in this order."""
FOLDER = installed.APP / "docs" / "lessons"
Table = Mapping[str, Any]
MAX_BYTES = 1_000_000
"""Largest size of a lesson in bytes."""
EDITS = ("ablate", "cut", "mask", "positions", "replace", "step")
"""The kinds of changes in a state. An exercise may also allow "input"."""
_HEAD, _CUT, _CELL = rf"{PATH}\.\d+", rf"{PATH}\.(\d+|\*)\.\d+\.\d+", r"\d+\.\d+"


class _Rule(NamedTuple):
    """The values that a field accepts, their description, and an example in TOML."""

    accepts: Callable[[Any], bool]
    words: str
    example: str


_Fields = Mapping[str, _Rule]


def _one_of(*values: str) -> _Rule:
    return _Rule(lambda value: value in values, f"one of {', '.join(values)}", f'"{values[0]}"')


def _listed(pattern: str, words: str, example: str) -> _Rule:
    def accepts(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(one, str) and re.fullmatch(pattern, one) for one in value)

    return _Rule(accepts, f"a list of {words}", f'["{example}"]')


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


_TEXT = _Rule(lambda value: isinstance(value, str) and bool(value.strip()), "a text", '"3 7 12 9"')
_COUNT = _Rule(lambda value: type(value) is int and 0 <= value < 1_000_000, "a whole number from 0", "2")
_AT_LEAST_1 = _Rule(lambda value: type(value) is int and 1 <= value < 1_000_000, "a whole number from 1", "2")
_NUMBER = _Rule(_is_number, "a number", "0.5")
_TABLE = _Rule(lambda value: isinstance(value, dict), "a table", '{ input = "3 7 12 9" }')
_SITE = _Rule(lambda value: bool(re.fullmatch(PATH, str(value))), "the path of an attention layer", '"encoder.0.attn"')

_STATE = {
    "input": _TEXT,
    "replace": _Rule(
        lambda value: (
            isinstance(value, dict)
            and all(at.isdecimal() and isinstance(text, str) for at, text in value.items())
        ),
        "a table of positions and tokens",
        '{ "2" = "7" }',
    ),
    "mask": _one_of("trained", "causal", "full", "drawn"),
    "drawn": _listed(_CELL, "cells, query and key", "2.0"),
    "ablate": _listed(_HEAD, "heads", "encoder.1.attn.2"),
    "cut": _listed(_CUT, "cells of heads", "encoder.1.attn.2.0.3"),
    "positions": _Rule(lambda value: isinstance(value, bool), "true or false", "false"),
    "step": _COUNT, "layer": _COUNT, "head": _COUNT, "query": _COUNT, "key": _COUNT,
    "tab": _one_of("attention", "scene", "arithmetic", "feed_forward", "lens", "decode"),
}  # fmt: skip
_FRONT = {
    "title": _TEXT, "summary": _TEXT, "minutes": _AT_LEAST_1, "input": _TEXT, "checkpoint": _TEXT,
    "preset": _TEXT, "seed": _COUNT, "steps": _AT_LEAST_1, "snapshot_every": _AT_LEAST_1,
}  # fmt: skip
_MEASURE = {
    "of": _one_of("right", "same", "anti_diagonal", "previous", "weight"),
    "site": _SITE, "head": _COUNT, "query": _COUNT, "key": _COUNT,
}  # fmt: skip
_CHOICE = {"text": _TEXT, "at_least": _NUMBER, "state": _TABLE}
_PREDICT = {
    "ask": _one_of("cell", "token", "choice"), "question": _TEXT, "reveal": _TEXT, "state": _TABLE, "site": _SITE,
    "head": _COUNT, "query": _COUNT, "output": _COUNT, "measure": _TABLE, "best": _one_of("highest", "lowest"),
    "choices": _Rule(
        lambda value: isinstance(value, list) and len(value) > 1 and all(isinstance(one, dict) for one in value),
        "a list of at least two tables", '[{ text = "no", at_least = 0 }, { text = "yes", at_least = 1 }]',
    ),
}  # fmt: skip
_EXERCISE = {
    "goal": _one_of("breaks", "wrong_input", "right_input", "attends", "same_answer", "first_step", "predicts"),
    "task": _TEXT, "hint": _TEXT, "start": _TABLE, "allow": _listed("|".join((*EDITS, "input")), "changes", "ablate"),
    "keep": _listed("|".join(EDITS), "changes", "positions"),
    "at_most": _AT_LEAST_1, "at_least": _NUMBER, "shortest": _AT_LEAST_1, "longest": _AT_LEAST_1, "site": _SITE,
    "head": _COUNT, "query": _COUNT, "key": _COUNT, "output": _COUNT, "token": _TEXT, "measure": _TABLE,
}  # fmt: skip
_OF_ALL = ("ask", "question", "reveal", "state", "goal", "task", "hint", "start", "allow")
ASKS = {"cell": ("site", "head", "query"), "token": ("output",), "choice": ("measure", "choices")}
"""The required fields of each kind of prediction besides `question` and `reveal`."""
GOALS = {
    "breaks": (("at_most",), ("ablate", "cut")),
    "wrong_input": ((), ("input",)),
    "right_input": ((), ("input",)),
    "attends": (("at_most", "site", "query", "key"), ("ablate", "cut")),
    "same_answer": (("at_least",), ("ablate", "cut")),
    "first_step": (("measure", "at_least"), ("step",)),
    "predicts": (("at_most", "output", "token"), ("ablate", "cut")),
}
"""The required fields of each goal besides `task` and `hint`, and the changes that it allows by default."""
_OF_MEASURE = {
    "right": (), "same": (), "anti_diagonal": ("site", "head"), "previous": ("site", "head"),
    "weight": ("site", "head", "query", "key"),
}  # fmt: skip


@dataclass(frozen=True)
class Text:
    """Text of a step, rendered from Markdown to HTML."""

    html: str


@dataclass(frozen=True)
class Show:
    """A state that the page shows. Fields that it does not set are as in an unchanged run."""

    state: Table


@dataclass(frozen=True)
class Predict:
    """A question about a run. The page computes the outcome after the learner has answered."""

    ask: str
    question: str
    reveal: str
    """The explanation shown with the outcome, as HTML."""
    state: Table
    details: Table
    """The head, output or measure that the question is about."""


@dataclass(frozen=True)
class Exercise:
    """A goal for the learner's state. The page runs the model to check whether it is reached."""

    goal: str
    task: str
    hint: str
    start: Table
    """The initial state."""
    allow: tuple[str, ...]
    """The kinds of changes that the learner may make."""
    details: Table
    """The limits, and the head, output or measure that the goal is about."""


Part = Text | Show | Predict | Exercise


@dataclass(frozen=True)
class LessonStep:
    """One step of a lesson: its title, its parts in order, and the line on which it begins."""

    title: str
    parts: tuple[Part, ...]
    line: int


@dataclass(frozen=True)
class Lesson:
    """A lesson with validated blocks.

    Attributes:
        title: The title.
        summary: One sentence on its topic.
        minutes: The approximate duration.
        input: The default input of its states.
        steps: The steps.
        checkpoint: The name or path of the model; "" if `preset` is set.
        preset: The preset that is trained when the lesson is built; "" if `checkpoint` is set.
        train: Training settings that override the preset: seed, steps, snapshot_every.
    """

    title: str
    summary: str
    minutes: int
    input: str
    steps: tuple[LessonStep, ...]
    checkpoint: str = ""
    preset: str = ""
    train: Table = field(default_factory=dict)

    @property
    def exercises(self) -> list[Exercise]:
        """All exercises, in order."""
        return [part for step in self.steps for part in step.parts if isinstance(part, Exercise)]

    @property
    def predictions(self) -> list[Predict]:
        """All predictions, in order."""
        return [part for step in self.steps for part in step.parts if isinstance(part, Predict)]

    @property
    def exercise_steps(self) -> tuple[int, ...]:
        """The steps that have an exercise, counted from 0."""
        steps = enumerate(self.steps)
        return tuple(at for at, step in steps if any(isinstance(part, Exercise) for part in step.parts))

    def to_json(self) -> dict[str, Any]:
        """Return the lesson in the form that the page reads."""

        def part_of(part: Part) -> dict[str, Any]:
            values = dict(vars(part))
            details = values.pop("details", {})
            return {"kind": type(part).__name__.lower()} | values | details

        steps = [{"title": step.title, "parts": [part_of(part) for part in step.parts]} for step in self.steps]
        return {
            "title": self.title, "summary": self.summary, "minutes": self.minutes, "input": self.input, "steps": steps,
        }  # fmt: skip


def parse(text: str, name: str = "the lesson") -> Lesson:
    """Parse a lesson.

    Args:
        text: The Markdown with its front matter.
        name: The name of the lesson in error messages, such as its file name.

    Returns:
        The lesson.

    Raises:
        InputError: The text breaks a rule. The message names the line, the rule, the value received and a valid example.

    Example:
        >>> from xformer.live.lesson import parse
        >>> lesson = parse('''+++
        ... title = "Masks"
        ... summary = "What a mask hides."
        ... minutes = 5
        ... checkpoint = "reverse-small"
        ... input = "3 7 12 9"
        ... +++
        ... ## No looking ahead
        ... Under a causal mask the first position sees *itself* alone.
        ...
        ... ```show
        ... mask = "causal"
        ... ```
        ... ''')
        >>> [type(part).__name__ for part in lesson.steps[0].parts]
        ['Text', 'Show']
    """
    where = _Place(name, 1)
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "+++" or "+++" not in (rest := [line.strip() for line in lines[1:]]):
        where.fail("A lesson must begin with TOML between two +++ lines", f"{lines[0]:.40}", "+++")
    end = rest.index("+++") + 1
    required = ("title", "summary", "minutes", "input")
    front = _table("\n".join(lines[1:end]), where.at(2), "front matter", _FRONT, required)
    if ("checkpoint" in front) == ("preset" in front):
        rule = "The front matter must name either a checkpoint or a preset to train"
        where.fail(rule, _names(front), 'checkpoint = "reverse"')
    train = {name: front.pop(name) for name in ("seed", "steps", "snapshot_every") if name in front}
    if train and "preset" not in front:
        where.fail("Training settings need a preset", _names(train), 'preset = "reverse-small"')
    steps = _steps("\n".join(lines[end + 1 :]), where.at(end + 2))
    return Lesson(**front, train=train, steps=steps)


def load(path: str | Path) -> Lesson:
    """Load a lesson from a file.

    Args:
        path: The Markdown file.

    Returns:
        The lesson.

    Raises:
        InputError: The file breaks a rule, or cannot be read.

    Example:
        >>> from xformer.live import lesson
        >>> lesson.load("docs/lessons/masks.md").title
        'Masks'
    """
    return parse(read_text(path, MAX_BYTES), Path(path).name)


@cache
def shipped() -> Mapping[str, Lesson]:
    """Return the shipped lessons by name, in their order.

    Example:
        >>> from xformer.live import lesson
        >>> next(iter(lesson.shipped().values())).title
        'What attention is'
    """
    return {name: load(FOLDER / f"{name}.md") for name in ORDER}


def page(path: str | Path, app: Table | None = None) -> str:
    """Return the HTML page of a lesson, which runs its model offline.

    If the lesson names a preset, it is trained first, and the page contains its snapshots. The browser stores the learner's
    progress under the name of the file.

    Args:
        path: The Markdown file.
        app: Where the app continues after the lesson: the `title` of a screen and its `link`. The page shows the link only at
            its address in the app, not in a saved file.

    Returns:
        The HTML.

    Raises:
        InputError: The lesson breaks a rule, or names a layer, head or input that is invalid for its model.

    Example:
        >>> from xformer.live import lesson
        >>> lesson.page("docs/lessons/masks.md").startswith("<!doctype html>")
        True
    """
    from xformer.live.export import live_page  # imported here because it imports torch

    path, lesson = Path(path), load(path)
    values = lesson.to_json() | {"name": path.stem, "app": app, "next": None}
    if path.stem in ORDER[:-1]:
        following = ORDER[ORDER.index(path.stem) + 1]
        values["next"] = {"name": following, "title": shipped()[following].title}
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(lesson, path.parent, Path(folder))
        check(lesson, model, path.name)
        return live_page(model, lesson.input, lesson=values)


def build(path: str | Path, out: str | Path) -> None:
    """Write the page of a lesson to an HTML file.

    Args:
        path: The Markdown file.
        out: The file to write.

    Raises:
        InputError: The lesson breaks a rule, or names a layer, head or input that is invalid for its model.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from xformer.live import lesson
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     lesson.build("docs/lessons/masks.md", f"{folder}/masks.html")
        ...     Path(f"{folder}/masks.html").exists()
        True
    """
    write_atomically(out, page(path).encode())


def model_of(lesson: Lesson, folder: Path, out: Path) -> Path:
    """Return the path of a lesson's model: a checkpoint, by name or relative to `folder`, or a preset trained into `out`."""
    if lesson.preset:
        from xformer.presets import preset
        from xformer.training.loop import train

        chosen = preset(lesson.preset)
        out = out / lesson.preset  # the page uses the folder as the model's name
        train(replace(chosen, train=chosen.train.replace(**lesson.train)), out=out, device="cpu")
        return out
    named = installed.shipped(Path("checkpoints") / lesson.checkpoint)
    return named if named.exists() else folder / lesson.checkpoint


def check(lesson: Lesson, model: Any, name: str = "the lesson") -> None:
    """Raise `InputError` if a lesson names a layer, head, token or input that is invalid for its model."""
    from xformer.reading import read

    reading = read(model, lesson.input, keep=["logits"])
    heads, labels = reading.adapter.shape.heads, reading.adapter.token_labels
    for step in lesson.steps:
        where, states = _Place(name, step.line), list[Table]()
        for part in step.parts:
            if isinstance(part, Text):
                continue
            states.append(part.start if isinstance(part, Exercise) else part.state)
            details = {} if isinstance(part, Show) else part.details
            states += [one["state"] for one in details.get("choices", ()) if "state" in one]
            for one in (details, details.get("measure", {})):
                site, head = one.get("site"), one.get("head", 0)
                if site is not None and (site not in heads or head >= heads[site]):
                    where.fail(f"The model has the heads {heads}", f"{site}, head {head}", next(iter(heads)))
            if (token := details.get("token")) is not None and token not in labels:
                where.fail("A token must be in the model's vocabulary", token, labels[1])
        for state in states:
            for head in [*state.get("ablate", ()), *(one.rsplit(".", 2)[0] for one in state.get("cut", ()))]:
                site, _, number = head.rpartition(".")
                if site not in heads or (number != "*" and int(number) >= heads[site]):
                    where.fail(f"The model has the heads {heads}", head, f"{next(iter(heads))}.0")
            text = state.get("input", lesson.input)
            try:
                read(model, text, keep=["logits"])
            except InputError as error:
                where.fail("The model must be able to read each input", f"{text!r} ({error})", lesson.input)


class _Place(NamedTuple):
    """A line of a file, for error messages."""

    name: str
    line: int

    def at(self, line: int) -> _Place:
        return self._replace(line=line)

    def fail(self, rule: str, got: object, example: object) -> NoReturn:
        raise InputError(f"{self.name}, line {self.line}: {rule}, got {got!s:.200}; for example {example}.")


def _names(values: Sequence[str] | Table) -> str:
    return ", ".join(values) or "none"


def _table(
    given: str | Table, where: _Place, what: str, fields: _Fields, needs: Sequence[str] = (), known: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a table, given as such or as TOML, after checking its fields.

    All fields in `needs` must be present, no others than the `known` ones (default: all) are allowed, and each value must
    satisfy the rule of its field.
    """
    lines = given.splitlines() if isinstance(given, str) else []
    try:
        table = tomllib.loads(given) if isinstance(given, str) else dict(given)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        at = where.at(where.line + int(found[1]) - 1) if found else where
        at.fail(f"The {what} must be valid TOML ({error})", next(iter(lines), "nothing"), "a = 1")
    except RecursionError:
        where.fail(f"The {what} must be TOML that is not nested too deeply", next(iter(lines), ""), "a = 1")
    for name in needs:
        if name not in table:
            where.fail(f"The {what} needs {_names(needs)}", _names(table), f"{name} = {fields[name].example}")
    known = known or tuple(fields)
    for name, value in table.items():
        line = next((n for n, one in enumerate(lines) if re.match(rf"\s*{re.escape(name)}\s*[=.]", one)), 0)
        at = where.at(where.line + line)
        if name not in known:
            at.fail(f"The {what} may have the fields {_names(known)}", name, known[0])
        rule = fields[name]
        if not rule.accepts(value):
            at.fail(f"The field {name} must be {rule.words}", repr(value), f"{name} = {rule.example}")
    return table


def _state(table: Any, where: _Place) -> dict[str, Any]:
    return _table(table, where, "state", _STATE)


def _fields_of(
    text: str, where: _Place, what: str, fields: _Fields, needs: Sequence[str], optional: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a prediction or an exercise, and the subset that is specific to its kind."""
    given = _table(text, where, what, fields, needs, tuple(dict.fromkeys((*needs, *optional))))
    details = {name: value for name, value in given.items() if name not in _OF_ALL}
    if "measure" in details:
        required = ("of", *_OF_MEASURE.get(str(details["measure"].get("of")), ()))
        details["measure"] = _table(details["measure"], where, "measure", _MEASURE, required, required)
    return given, details


def _predict(text: str, where: _Place) -> Predict:
    first = ("ask", "question", "reveal")
    ask = _table(text, where, "prediction", _PREDICT, first)["ask"]
    optional = ("state", "best") if ask == "choice" else ("state",)
    given, details = _fields_of(text, where, f"prediction of a {ask}", _PREDICT, (*first, *ASKS[ask]), optional)
    if ask == "choice":
        fields = ("text", "state" if "best" in details else "at_least")
        details["choices"] = [_table(one, where, "choice", _CHOICE, fields, fields) for one in details["choices"]]
        for one in details["choices"]:
            _state(one.get("state", {}), where)
        bounds = [one.get("at_least", n) for n, one in enumerate(details["choices"])]
        if bounds != sorted(set(bounds)):
            where.fail("The at_least values of the choices must increase", bounds, [0, 0.5, 1])
    return Predict(
        ask, given["question"], _markdown().render(given["reveal"]), _state(given.get("state", {}), where), details
    )


def _exercise(text: str, where: _Place) -> Exercise:
    first = ("goal", "task", "hint")
    goal = _table(text, where, "exercise", _EXERCISE, first)["goal"]
    needs, allowed = GOALS[goal]
    optional = ["start", "allow", "at_most", "shortest", "longest", "keep", *(["head"] if goal == "attends" else [])]
    given, details = _fields_of(text, where, f"exercise {goal}", _EXERCISE, (*first, *needs), optional)
    allow = tuple(given.get("allow", allowed))
    start = _state(given.get("start", {}), where)
    if more := [kind for kind in EDITS if kind in start and kind not in (*allow, *details.get("keep", ()))]:
        where.fail("An exercise may only start with changes that it allows or keeps", _names(more), f"keep = {more}")
    return Exercise(goal, given["task"], given["hint"], start, allow, details)


def _markdown() -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).disable("image").enable("table")


def _steps(text: str, where: _Place) -> tuple[LessonStep, ...]:
    """Return the steps of the Markdown after the front matter."""
    blocks: dict[str, Callable[[str, _Place], Part]] = {
        "show": lambda text, place: Show(_state(text, place)), "predict": _predict, "exercise": _exercise,
    }  # fmt: skip
    markdown = _markdown()
    tokens = iter(markdown.parse(text))
    found: list[tuple[str, int, list[Any]]] = []  # title, line and parts; a text part is a list of Markdown tokens
    for token in tokens:
        line = where.line + (token.map[0] if token.map else 0)
        if token.type == "heading_open" and token.level == 0 and token.tag in ("h1", "h2"):
            title = next(tokens).content
            if token.tag == "h1":
                where.at(line).fail("The title of a lesson must be in the front matter", f"# {title}", "## A step")
            next(tokens)  # skip heading_close
            found.append((title, line, []))
            continue
        if not found:
            where.at(line).fail("The text must begin with a step's title", token.content or token.type, "## A step")
        parts = found[-1][2]
        kind = token.info.strip() if token.type == "fence" else ""
        if kind in blocks:
            parts.append(blocks[kind](token.content, where.at(line + 1)))
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(token)
        else:
            parts.append([token])
    if not found:
        where.fail("A lesson needs at least one step", "none", "## A step")
    steps = []
    for title, line, parts in found:
        tasks = [type(part).__name__.lower() for part in parts if isinstance(part, Predict | Exercise)]
        if len(tasks) > 1:
            where.at(line).fail("A step may have at most one prediction or exercise", _names(tasks), "two steps")
        render = markdown.renderer.render
        texts = (Text(render(part, markdown.options, {})) if isinstance(part, list) else part for part in parts)
        steps.append(LessonStep(title, tuple(texts), line))
    return tuple(steps)
