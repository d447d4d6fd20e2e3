"""Lessons: their format, the truth of their texts, and that each verdict of the page equals Python's result."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import xformer
from pages.classroom import routes
from tests.browser.live.engine import Engine, pages_from_disk
from tools import live_site
from xformer import edits, playlist
from xformer.errors import InputError
from xformer.files import snapshot_file
from xformer.live import lesson as lessons
from xformer.live.export import live_page, pack_model
from xformer.live.export import opened as opened_model
from xformer.live.lesson import Exercise, Lesson, Predict

NAMES = lessons.ORDER
FRONT = '+++\ntitle = "T"\nsummary = "S"\nminutes = 5\ncheckpoint = "reverse-small"\ninput = "3 7 12 9"\n+++\n'
STEP = FRONT + "## One\n"


def block(kind: str, *lines: str) -> str:
    return STEP + "\n".join([f"```{kind}", *lines, "```", ""])


EXERCISE = ('goal = "breaks"', 'task = "Do it."', 'hint = "Like this."', "at_most = 1")
PREDICT = (
    'ask = "cell"', 'question = "Where?"', 'reveal = "There."', 'site = "encoder.0.attn"', "head = 0", "query = 1",
)  # fmt: skip
CHOICE = ('ask = "choice"', 'question = "How?"', 'reveal = "So."', 'measure = { of = "right" }')
CHOICES = 'choices = [{ text = "a", at_least = 1 }, { text = "b", at_least = 0 }]'
WRONG = {
    "no front matter": ("## One\n", "line 1: A lesson must begin with TOML between two +++ lines, got ## One; for example +++"),
    "minutes are no number": (FRONT.replace("5", '"5"'), "line 4: The field minutes must be a whole number from 1, got '5';"),
    "no model": (FRONT.replace('checkpoint = "reverse-small"\n', ""), "either a checkpoint or a preset to train, got title"),
    "an unknown field": (FRONT.replace("checkpoint", "summary2"), "line 5: The front matter may have the fields title, sum"),
    "no steps": (FRONT, "line 8: A lesson needs at least one step, got none; for example ## A step."),
    "text before the first step": (FRONT + "Text.\n", "line 8: The text must begin with a step's title"),
    "two exercises": (block("exercise", *EXERCISE, "```", "```exercise", *EXERCISE), "line 8: A step may have at most one"),
    "a head without number": (block("show", 'ablate = ["encoder.0.attn"]'), "line 10: The field ablate must be a list of"),
    "TOML of a block": (block("show", 'mask = "full"', "layer = = 1"), "line 11: The state must be valid TOML"),
    "another goal's field": (block("exercise", *EXERCISE, 'token = "3"'), "line 14: The exercise breaks may have the fields"),
    "a start that is not allowed": (
        block("exercise", *EXERCISE, "start = { positions = false }"),
        "An exercise may only start with changes that it allows or keeps, got positions; for example keep = ['positions'].",
    ),
    "a layer that is none": (block("predict", *PREDICT[:3], 'site = "layer 1"'), "line 13: The field site must be the path"),
    "a choice without bound": (block("predict", *CHOICE, CHOICES.replace(", at_least = 0", "")), "The choice needs text, at_"),
    "bounds that fall": (block("predict", *CHOICE, CHOICES), "values of the choices must increase, got [1, 0]; for example"),
    "nested": (block("show", "mask = " + "[" * 5000), "not nested too deeply"),
    "nested front": ("+++\ntitle = " + "[" * 5000 + "\n+++\n", "not nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_named_with_its_line_the_rule_and_what_works(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        lessons.parse(text, "mine.md")
    message = str(caught.value)
    assert message.startswith("mine.md, line ")
    assert sentence in message
    assert re.search(r", got .+; for example .+\.$", message, re.DOTALL)


def test_a_lesson_is_parsed_into_its_parts() -> None:
    text = block("show", 'mask = "causal"') + "Some *text*.\n\n```python\nx = 1\n```\n\n## Two & three\n"
    lesson = lessons.parse(text + block("predict", *PREDICT).removeprefix(STEP) + "\nMore.\n")
    assert [(step.title, step.line) for step in lesson.steps] == [("One", 8), ("Two & three", 18)]
    show, text = lesson.steps[0].parts
    assert show == lessons.Show({"mask": "causal"})
    assert isinstance(text, lessons.Text)
    assert text.html.startswith("<p>Some <em>text</em>.</p>\n<pre><code")
    asked = lesson.predictions[0]
    assert asked == Predict("cell", "Where?", "<p>There.</p>\n", {}, {"site": "encoder.0.attn", "head": 0, "query": 1})
    part = {"kind": "predict", "ask": "cell", "question": "Where?", "reveal": "<p>There.</p>\n", "state": {}}
    assert lesson.to_json()["steps"][1]["parts"][0] == part | dict(asked.details)


def test_no_html_of_the_text_and_no_image_reaches_the_page() -> None:
    markup = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[a](javascript:alert(1))"]
    for markdown in [*markup, "![a](http://b.test/a)"]:
        [part] = lessons.parse(f"{STEP}Before {markdown} after.\n\n{markdown}\n").steps[0].parts
        assert isinstance(part, lessons.Text)
        assert not re.search(r"<(script|img)|href=\"javascript", part.html)


MODELS = (
    (block("show", 'ablate = ["encoder.7.attn.0"]'), "line 8: The model has the heads {'encoder.0.attn': 1, 'encod"),
    (block("predict", *PREDICT).replace("head = 0", "head = 3"), "got encoder.0.attn, head 3; for example encoder.0"),
    (block("exercise", 'goal = "predicts"', *EXERCISE[1:], "output = 0", 'token = "99"'), "model's vocabulary, got 99"),
    (block("show", 'input = "3 99"'), "The model must be able to read each input, got '3 99' ("),
)


def test_a_lesson_names_only_what_its_model_has() -> None:
    for text, sentence in MODELS:
        with pytest.raises(InputError, match=re.escape(sentence)):
            lessons.check(lessons.parse(text), "checkpoints/reverse-small")


# ── the shipped lessons


def shipped(name: str) -> Lesson:
    return lessons.shipped()[name]


def test_every_list_of_the_lessons_has_their_order() -> None:
    assert set(NAMES) == {path.stem for path in lessons.FOLDER.glob("*.md")}
    table = re.findall(r"^\| \[(.+)\]\(lessons/(.+)\.md\)", Path("docs/lessons.md").read_text("utf-8"), re.MULTILINE)
    assert table == [(lesson.title, name) for name, lesson in lessons.shipped().items()]
    assert [(one.title, name) for name, one in playlist.shipped().items()] == table
    assert tuple(routes.lessons()) == NAMES


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each lesson's model; one model is trained here, in seconds."""
    docs = Path("docs/lessons")
    return {name: lessons.model_of(shipped(name), docs, tmp_path_factory.mktemp(name)) for name in NAMES}


State = dict[str, Any]
NONE: State = {
    "replace": {}, "mask": "trained", "drawn": [], "ablate": [], "cut": [], "positions": True, "step": None,
    "layer": 0, "head": 0, "query": None, "key": None, "tab": "attention",
}  # fmt: skip
CUT = "encoder.0.attn.0"
CROSS = "decoder.0.cross_attn"
SOLUTIONS: dict[str, list[State]] = {
    "attention": [
        {"cut": [f"{CUT}.0.4"]},
        {"cut": [f"{CUT}.0.4", f"{CUT}.0.3"]},
        {"input": "3 19 11 8 13 10 2 11 6 11 19 10 8 11 4 18"},
    ],
    "cross-attention": [
        {"cut": [f"{CROSS}.0.0.3"]},
        {"cut": [f"{CROSS}.1.2.1", f"{CROSS}.1.2.2"]},
        {"cut": [f"{CROSS}.0.3.0", f"{CROSS}.1.3.0"]},
    ],
    "heads": [
        {"ablate": ["encoder.0.attn.0"]},
        {"ablate": [*(f"encoder.3.attn.{n}" for n in range(4)), "encoder.2.attn.1"]},
        {"input": "3 1 4 7 19 4 13 3 12 4 2 1"},
    ],
    "induction": [{"cut": ["decoder.1.attn.0.5.1"]}, {"replace": {"5": "9"}}, {"input": "5 5 5"}],
    "masks": [
        {"input": "3 3 3"},
        {"cut": [f"encoder.1.attn.0.{q}.{k}" for q, k in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 3), (2, 4)]]},
        {"cut": [f"encoder.1.attn.0.0.{k}" for k in (2, 3, 4)]},
    ],
    "positions": [{"input": "7 7 7"}, {"input": "7 16"}],
    "scores": [{"cut": [f"{CUT}.0.3", f"{CUT}.0.1"]}, {"input": "9 12 12"}],
    "training": [{}, {}],
}


def begun(lesson: Lesson, exercise: Exercise) -> State:
    return NONE | {"input": lesson.input} | dict(exercise.start)


def wrong(exercise: Exercise, state: State, solved: State) -> list[State]:
    """Return states near a solution that do not solve it: the start, one change too few or too many, or one not allowed."""
    found = [state, solved | {"mask": "full" if solved["mask"] == "causal" else "causal"}]
    found += [solved | {"positions": not solved["positions"]}, solved | {"input": "99"}, solved | {"step": 5}]
    if "at_most" in exercise.details:
        path = exercise.details.get("site", CROSS if CROSS in str(solved) else "encoder.0.attn")
        found.append(solved | {"cut": [*solved["cut"], *(f"{path}.0.{q}.{k}" for q in (0, 1) for k in (0, 1))]})
    return found + [solved | {kind: solved[kind][:-1]} for kind in ("cut", "ablate") if solved[kind] != state[kind]]


TRUTHS = {
    "attention": [3, 2], "cross-attention": [2, 1], "heads": [2, 1], "induction": [1, 1, 1], "masks": [1, 0],
    "positions": [3, 1], "scores": [2, 1, 1], "training": [1, 1],
}  # fmt: skip
"""The right answer to each prediction, according to the text after it."""


def test_the_numbers_in_the_texts_are_those_of_the_models(folders: dict[str, Path]) -> None:
    def run(name: str, text: str, *changes: Any) -> xformer.Reading:
        return xformer.read(f"checkpoints/{name}", text, edits=list(changes))

    def says(reading: xformer.Reading) -> list[str]:
        return [reading.adapter.token_labels[token] for token in reading.predicted]

    plain, nowhere = "3 7 12 9", edits.zero_positions()
    scores = run("reverse-mirror", plain)["encoder.0.attn.scores"][0, 0, 0].tolist()
    assert scores == pytest.approx([-3.48, -2.55, -3.32, 9.86], abs=0.005)
    cut = run("reverse-mirror", plain, edits.mask_edges("encoder.0.attn", [(0, 3)]))
    assert float(cut["encoder.0.attn.pattern"][0, 0, 0, 1]) == pytest.approx(0.54, abs=0.01)
    assert says(run("reverse-small", plain, nowhere)) == ["12", "9", "12", "9", "end"]
    assert says(run("reverse-small", "9 12 7 3", nowhere)) == ["9", "12", "9", "12", "end"]
    for head in range(4):
        six = run("reverse", "5 1 8 2 9 4", edits.ablate_head("encoder.2.attn", head))
        assert six["encoder.2.attn.pattern"][0, head].flip(0).diagonal().mean() > 0.95
        assert all(six.right) == (head != 0)
    lost = [edits.ablate_head("decoder.0.self_attn", head) for head in (0, 1)]
    assert set(says(run("reverse-seq2seq", plain, *lost))) == {"end"}
    assert not all(run("reverse-small", " ".join(map(str, range(1, 17)))).right)
    early = xformer.read(snapshot_file(folders["training"], 60), plain)
    assert list(early.right) == [False] * 4 + [True]


def test_a_lesson_becomes_one_page_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from xformer.__main__ import main

    name, out = "masks", tmp_path / "page.html"
    assert main(["lesson", "build", f"docs/lessons/{name}.md", "--out", str(out)]) == 0
    assert f"written to {out}" in capsys.readouterr().out
    page = out.read_text("utf-8")
    assert f"<title>{shipped(name).title}</title>" in page
    assert len(page) < 1_000_000
    assert main(["lesson", "build", f"docs/lessons/{name}.md", "--out", str(tmp_path)]) == 1
    assert "--out must name a file ending in .html" in capsys.readouterr().err


# ── verdicts


JUDGE = """async ([model, made, exercises]) => {
  const { makeLive } = await import("/live/run.js"), { verdict, judged, outcome } = await import("/live/exercises.js");
  const live = await makeLive(Uint8Array.from(atob(model), (letter) => letter.charCodeAt(0)));
  return {
    verdicts: exercises.map(([exercise, states]) => states.map((state) => verdict(exercise, state, live))),
    truths: made.map((asked) => ({ ...outcome(asked, live), judged: [0, 1].map((guess) => judged(asked, guess, live)) })),
  };
}"""


@pytest.fixture(scope="module")
def engine(browser: Browser) -> Iterator[Engine]:
    tab = Engine(browser)
    yield tab
    tab.page.close()


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_is_solved_by_its_solution_alone_and_a_lesson_says_what_is_so(
    name: str, folders: dict[str, Path], engine: Engine
) -> None:
    lesson = shipped(name)
    _, model, snapshots = opened_model(folders[name])
    parts = [part | {"input": lesson.input} for step in lesson.to_json()["steps"] for part in step["parts"]]
    asked, exercises = ([part for part in parts if part["kind"] == kind] for kind in ("predict", "exercise"))
    steps, states = [step for step, _ in snapshots], []
    for exercise, changes in zip(lesson.exercises, SOLUTIONS[name], strict=True):
        start = begun(lesson, exercise)
        solved = start | changes
        at_steps = [start | {"step": step} for step in steps]
        states.append(at_steps if exercise.goal == "first_step" else [solved, *wrong(exercise, start, solved)])
    packed = base64.b64encode(pack_model(model, snapshots, lesson.input)).decode()
    found = engine.page.evaluate(JUDGE, [packed, asked, list(zip(exercises, states, strict=True))])
    for exercise, own, verdicts in zip(lesson.exercises, states, found["verdicts"], strict=True):
        right = [state for state, verdict in zip(own, verdicts, strict=True) if verdict["solved"]]
        assert len(right) == 1, exercise.task
        assert exercise.goal == "first_step" or right == own[:1]
        for verdict in verdicts:
            assert re.fullmatch(r"\S.*[.]", verdict["sentence"]), verdict
            assert not re.search(r"undefined|NaN|null|\[object|TypeError|Infinity", verdict["sentence"]), verdict
    for truth, expected in zip(found["truths"], TRUTHS[name], strict=True):
        assert truth["truth"] == expected
        assert [one["right"] for one in truth["judged"]] == [guess == expected for guess in (0, 1)]


# ── the panel


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Page]]:
    """`opened()`: the page of the lesson on masks, without a network; no error may appear in it."""
    file = tmp_path_factory.mktemp("lessons") / "masks.html"
    lessons.build("docs/lessons/masks.md", file)
    with pages_from_disk(browser) as open_file:
        yield lambda: open_file(file)


@pytest.mark.browser
def test_a_lesson_asks_before_it_shows_and_checks_each_change(opened: Callable[..., Page]) -> None:
    page = opened()
    progress, outcome, verdict = (page.locator(f".lesson-{part}") for part in ("progress", "outcome", "verdict"))
    page.keyboard.press("ArrowRight")
    expect(progress).to_have_text("2 / 7")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(progress).to_have_text("1 / 7")
    page.get_by_label("Input", exact=True).click()
    page.keyboard.press("ArrowRight")  # moves the cursor in the input
    expect(progress).to_have_text("1 / 7")

    page.get_by_role("button", name="Next").click()
    assert page.evaluate("location.hash").endswith("lesson=1")
    expect(page.locator(".lesson h2")).to_have_text("Take the future away")
    expect(page.get_by_text("The result is hidden until you have answered.")).to_be_visible()
    expect(page.locator(".predicted")).to_have_count(0)
    page.get_by_role("button", name="All are right").click()
    expect(outcome).to_contain_text("Your guess: “All are right”. Some are right: the share of right outputs is 0.40.")
    expect(outcome).to_contain_text("A mask does not make a model worse in general.")
    expect(page.locator(".predicted").first).to_be_visible()
    page.get_by_role("button", name="Answer again").click()
    expect(outcome).to_have_count(0)

    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Query 0 · 3, key 1 · 7").click()
    expect(page.locator(".lesson-says")).to_contain_text("The question is about query 1 of layer 2, head 1.")
    page.get_by_role("button", name="Query 1 · 7, key 0 · 3").click()
    expect(outcome).to_contain_text("Your guess: key 0, which is right. Query 1 looks most at key 0, “3”")

    page.get_by_role("button", name="Next").click()
    expect(verdict).to_have_text("Not yet. The model answers “3 3 3 3 end”; right would be “9 12 7 3 end”.")
    expect(verdict).to_have_attribute("aria-live", "polite")
    field = page.get_by_label("Input", exact=True)
    field.fill("3 3")
    expect(verdict).to_have_text("Not yet. This input has 2 tokens; at least 3 are wanted.")
    page.get_by_role("combobox", name="Mask").select_option("full")
    expect(verdict).to_have_text("Not yet. This exercise keeps the causal mask, and you have changed that.")
    page.get_by_role("button", name="Start over").click()
    field.fill("3 3 3")
    expect(verdict).to_have_text("Solved. The model is right: “3 3 3 end”.")
    expect(page.locator(".lesson-bar .done")).to_have_count(2)  # the guess was right too


CELL = """([q, k]) => {
    const { parts, state } = xformerLive.page.view, shown = parts.matrices.filter((one) => !one.node.hidden);
    const pane = shown.find(({ role }) => role === "changed" && shown.length > 1) ?? shown[0], { plot } = pane;
    const box = pane.layered.base.getBoundingClientRect(), { queries, keys } = state.layer;
    const query = (q + queries) % queries, key = (k + keys) % keys;
    const at = [box.left + plot.x + (key + 0.5) * plot.w / keys, box.top + plot.y + (query + 0.5) * plot.h / queries];
    const isCut = pane.source.codes[query * keys + key] === 255;
    return { at, isCut, isFree: pane.layered.node.contains(document.elementFromPoint(...at)), scrolled: scrollY };
}"""
"""Where a cell of the enlarged head is, whether it is drawn as cut, and whether it can be clicked, or something covers it."""
MOVE = """() => {
    const range = document.querySelector(".lesson input[type=range]"), verdict = document.querySelector(".lesson-verdict");
    for (range.value = 0; !verdict.classList.contains("solved"); range.value++) range.dispatchEvent(new Event("input"));
}"""


def solve(page: Page, exercise: Exercise, solution: State) -> None:
    """Reach the solution as a learner does; nothing that a click or a tap needs may lie outside the window."""
    site = "(path) => xformerLive.model.sites.findIndex((one) => one.path === path)"
    press = page.touchscreen.tap if page.evaluate("navigator.maxTouchPoints") else page.mouse.click
    for kind in ("ablate", "cut"):
        for change in solution.get(kind, []):
            path, _, rest = change.partition("attn.")
            head, *cell = map(int, rest.split("."))
            select = (
                "([layer, head]) => xformerLive.page.show({ layer, head, query: null, key: null }, { isOther: true })"
            )
            page.evaluate(select, [page.evaluate(site, f"{path}attn"), head])
            if cell:
                assert page.evaluate(CELL, [-1, -1])["isFree"]
                there = page.evaluate(CELL, cell)
                assert (there["isFree"], there["isCut"], there["scrolled"]) == (True, False, 0), (change, there)
                press(*there["at"])
            page.locator(".lesson-acts").get_by_role("button", name="Cut query" if cell else "Ablate").click()
            assert not cell or page.evaluate(CELL, cell)["isCut"], change
    for at, token in solution.get("replace", {}).items():
        page.get_by_label(f"Token {at}: ").fill(token)
        page.get_by_label(f"Token {at}: ").press("Enter")
    if "input" in solution:
        page.get_by_label("Input", exact=True).fill(solution["input"])
    if exercise.goal == "first_step":
        page.evaluate(MOVE)
    expect(page.locator(".lesson-verdict.solved")).to_have_text(re.compile("^Solved. "))
    assert page.evaluate("scrollY") == 0


def take(page: Page, name: str) -> None:
    """Take a lesson to its end: answer its predictions, and solve its exercises."""
    solutions, truths, width = iter(SOLUTIONS[name]), iter(TRUTHS[name]), page.evaluate("innerWidth")
    for step in shipped(name).steps:
        expect(page.locator(".lesson h2")).to_have_text(step.title)
        for part in step.parts:
            if isinstance(part, Predict):
                options = page.locator(".lesson-options")
                if part.ask == "token":
                    options.locator("select").select_option(str(next(truths)))
                else:
                    options.get_by_role("button").nth(next(truths)).click()
                expect(page.locator(".lesson-outcome.right")).to_be_visible()
            if isinstance(part, Exercise):
                solve(page, part, next(solutions))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(".lesson-next").click()
    counts = [f"{n} of {n}" for n in (len(shipped(name).exercises), len(shipped(name).predictions))]
    expect(page.locator(".lesson-count")).to_contain_text(counts)


@pytest.mark.browser
@pytest.mark.parametrize("name", NAMES)
def test_every_lesson_is_solved_without_scrolling_on_a_laptop_and_a_phone(
    name: str, folders: dict[str, Path], tmp_path: Path, browser: Browser
) -> None:
    lesson, file = shipped(name), tmp_path / f"{name}.html"
    given = lesson.to_json() | {"name": name, "next": {"name": "next", "title": "Next"}, "app": None}
    file.write_text(live_page(folders[name], lesson.input, lesson=given), "utf-8")
    with pages_from_disk(browser) as open_file:
        for width, height, theme in ((1280, 720, "light"), (390, 844, "dark")):
            page = open_file(file, width=width, height=height, touch=width == 390, theme=theme)
            take(page, name)
            expect(page.locator(".lesson-on a")).to_have_count(0)  # a file leads nowhere
        page.goto(file.as_uri())
        page.reload()  # another fragment of the same address does not load it again
        expect(page.locator(".lesson-progress")).to_have_text("End")
        page.get_by_role("button", name="Start again").click()
        expect(page.locator(".lesson-progress")).to_have_text(f"1 / {len(lesson.steps)}")
        expect(page.locator(".lesson-bar .done")).to_have_count(0)


def test_the_links_of_the_documentation_lead_to_live_pages_in_the_site() -> None:
    text = "[a](lessons/masks.md), [b](../checkpoints/reverse-small), [c](lessons.md), [d](models.md#a)"
    linked = "[a](lessons/masks.html), [b](live/reverse-small.html), [c](lessons.md), [d](models.md#a)"
    assert live_site.linked(text) == linked
    paths = [path for path, _ in live_site.pages()]
    assert len(paths) == len(set(paths)) == 15 + 8
    for page in ("lessons.md", "models.md"):
        made = re.findall(r"\]\(((?:live|lessons)/\S+)\)", live_site.linked((Path("docs") / page).read_text("utf-8")))
        assert {path for path in paths if path.startswith("lessons" if page == "lessons.md" else "live")} == set(made)
