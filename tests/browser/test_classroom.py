"""A lecturer and students, each in a browser: following, questions, exercises, and a server killed during a vote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Server, Visit, Visiting, see, visiting

SCREEN = "/attention?model=reverse&input=3+7+12+9&mask=as+trained&head=3.1"


def open_room(visit: Visiting, address: str) -> tuple[Visit, str]:
    """Open a room as a lecturer on Attention; return the visit and the room's code."""
    lecturer = visit(address, SCREEN)
    page = lecturer.page
    page.locator(".st-key-present button").first.click()
    page.get_by_role("button", name="Open a room").click()
    code = page.locator(".st-key-join h2").inner_text().replace(" ", "")
    page.keyboard.press("Escape")
    return lecturer, code


def join(visit: Visiting, address: str, code: str, **how: object) -> Visit:
    """Join a room as a student with a phone."""
    student = visit(address, "/join", width=390, **how)
    student.page.get_by_role("textbox").fill(f"{code[:3]} {code[3:].lower()}")
    student.page.get_by_role("button", name="Join").click()
    expect(student.page.locator(".dot.on")).to_be_visible()
    return student


def ask(page: Page, **choices: str) -> None:
    """Ask a question; `mask` and `kind` override the defaults."""
    page.locator(".st-key-present button").first.click()
    page.get_by_role("button", name="Ask a question").click()
    expect(page.locator(".st-key-ask_kind")).to_be_visible()
    expect(page.locator(".st-key-attention")).to_be_hidden()  # it shows the answer
    if "kind" in choices:
        page.locator(".st-key-ask_kind").get_by_text(choices["kind"]).click()
    if "mask" in choices:
        page.locator(".st-key-ask_mask").get_by_text(choices["mask"]).click()
    page.locator(".st-key-ask_now button").click()
    expect(page.locator(".st-key-room_question h2")).to_be_visible()


def mask_on(student: Visit) -> str:
    return student.page.evaluate("xformerRoom.page.state.mask")


def shows_mask(student: Visit, mask: str) -> None:
    student.page.wait_for_function(f"window.xformerRoom?.page?.state.mask === '{mask}'")


@dataclass
class Room:
    """A lecturer on Attention and two students, with no open question; each test restores this state."""

    code: str
    lecturer: Visit
    one: Visit
    two: Visit


@pytest.fixture(scope="module")
def room(browser: Browser, tabs: list[Page], app: str) -> Iterator[Room]:
    with visiting(browser, tabs) as visit:
        lecturer, code = open_room(visit, app)
        room = Room(code, lecturer, join(visit, app, code), join(visit, app, code, theme="dark"))
        # Wait for the head in the lecturer's link.
        room.one.page.wait_for_function("window.xformerRoom?.page?.state.layer === 2")
        yield room


def test_students_follow_explore_and_return(room: Room) -> None:
    lecturer, student, other = room.lecturer, room.one, room.two
    lecturer.page.locator(".st-key-present button").first.click()
    see(lecturer.page, "2 students here")
    lecturer.page.keyboard.press("Escape")
    shows_mask(student, "trained")
    student.page.get_by_label("Input").fill("1 2 3")
    expect(student.page.get_by_text("You are exploring on your own.")).to_be_visible()
    lecturer.page.locator(".st-key-mask").get_by_text("causal").click()
    shows_mask(other, "causal")
    expect(other.page.locator(".answer").last).to_have_text(re.compile("^Changed.*1 of 4 right"))
    assert mask_on(student) == "trained", "a student who explores is not disturbed"
    student.page.get_by_role("button", name="Back to the lecture").click()
    shows_mask(student, "causal")
    assert student.page.evaluate("document.documentElement.scrollWidth") == 390, "the page does not scroll horizontally"
    for one in (lecturer, student, other):
        assert not one.problems


def test_no_result_is_seen_before_the_reveal(room: Room) -> None:
    lecturer, one, two, page = room.lecturer, room.one, room.two, room.lecturer.page
    ask(page, mask="causal")
    expect(page.locator(".st-key-attention")).to_have_count(0)  # the lecturer's screen shows only the question
    for student in (one, two):
        expect(student.page.locator(".card .map")).to_be_visible()
        expect(student.page.locator(".live")).to_be_hidden()
        expect(student.page.get_by_role("button", name="Explore on my own")).to_be_hidden()
    one.page.locator("[data-answer='0.0']").click()
    two.page.locator("[data-answer='0.3']").click()
    see(page, "2 of 2 answered")
    assert page.locator(".st-key-room_question .cell").all_inner_texts() == [""] * 16, "votes are shown on demand"
    page.get_by_role("button", name="Show the votes").click()
    expect(page.locator(".st-key-room_question [data-answer='0.3']")).to_have_text("50%")
    expect(page.locator(".truth")).to_have_count(0)

    page.get_by_role("button", name="Discuss, then vote again").click()
    see(two.page, "Once more, after your discussion")
    one.page.locator("[data-answer='0.0']").click()
    two.page.locator("[data-answer='0.0']").click()
    see(page, "2 of 2 answered")
    page.get_by_role("button", name="Reveal").click()
    shares = "Before the discussion 50% right (1 of 2), after it 100% right (2 of 2)"
    for seen in (page, one.page, two.page):
        see(seen, shares)
        expect(seen.locator("[data-answer='0.0'].truth")).to_be_visible()
        expect(seen.locator("[data-answer='0.3'].truth")).to_have_count(0)  # hidden by the causal mask
    see(two.page, "Your answer is right.")
    shows_mask(two, "causal")
    see(page, "1 of 4 right")  # the lecturer's screen also runs the model
    page.get_by_role("button", name="Back to the lecture").click()
    expect(one.page.locator(".card")).to_be_hidden()
    for visitor in (lecturer, one, two):
        assert not visitor.problems


def test_vote_survives_a_server_that_is_killed(room: Room, server: Server) -> None:
    lecturer, one, two = room.lecturer.page, room.one.page, room.two.page
    ask(lecturer, kind="What will it answer?", mask="as trained")
    one.locator(".card .option").get_by_text("3", exact=True).click()  # the last symbol of the reversed input
    see(one, "Your answer is in.")
    server.kill()
    see(two, "Connecting …")
    two.locator(".card .option").get_by_text("12", exact=True).click()
    see(two, "Sending …")
    server.start()
    see(two, "Your answer is in.")
    see(lecturer, "2 of 2 answered")
    lecturer.get_by_role("button", name="Discuss, then vote again").click()
    see(two, "Once more, after your discussion")
    two.locator(".card .option").get_by_text("3", exact=True).click()
    see(lecturer, "1 of 2 answered")
    lecturer.get_by_role("button", name="Reveal").click()
    twice = "Among those who answered twice (1): before the discussion 0% right (0 of 1), after it 100% right (1 of 1)."
    for seen in (lecturer, one):
        see(seen, f"100% right (1 of 1). {twice}")
    expect(two.locator(".card .bar.truth")).to_have_count(1)
    two.reload()
    see(two, "Your answer is right.")
    lecturer.get_by_role("button", name="Back to the lecture").click()
    expect(lecturer.locator(".st-key-attention .head .name")).to_have_count(1)
    for visitor in (room.lecturer, room.one, room.two):
        visitor.problems.clear()  # from the time without a server


def test_an_own_question_has_answers_to_choose_from(room: Room) -> None:
    student, page = room.one, room.lecturer.page
    page.locator(".st-key-present button").first.click()
    page.get_by_role("button", name="Ask a question").click()
    page.locator(".st-key-ask_kind").get_by_text("Your own question").click()
    page.locator(".st-key-ask_own_text input").fill("<b>Ready?</b>")
    page.locator(".st-key-ask_own_text input").press("Tab")
    page.locator(".st-key-ask_now button").click()
    see(student.page, "<b>Ready?</b>")
    student.page.locator(".card").get_by_text("yes").click()
    see(page, "1 of 2 answered")
    expect(page.locator("[class*=st-key-right_answer_] input")).to_have_value("none: an opinion")
    page.get_by_role("button", name="Reveal").click()
    see(student.page, "100% · 1")
    expect(student.page.get_by_text("right (")).to_have_count(0)  # a question of opinion has no right answer
    page.get_by_role("button", name="Back to the lecture").click()


def test_lecturer_sees_which_students_have_solved_an_exercise(room: Room) -> None:
    student, page = room.two, room.lecturer.page
    page.locator(".st-key-present button").first.click()
    student.page.get_by_text("Me", exact=True).click()
    student.page.get_by_label("Nickname").fill("Mia *bold*")
    student.page.get_by_label("Nickname").press("Tab")
    page.locator(".st-key-room_lesson input").click()
    page.get_by_role("option", name="Masks").click()
    expect(student.page.locator(".lesson-title")).to_have_text("Masks")
    page.keyboard.press("Escape")
    work = page.locator(".st-key-room_work")
    expect(work.get_by_text("Mia *bold*")).to_be_visible()
    expect(work.locator("h2")).to_have_text("4. Masks")
    lesson = page.frame_locator(".lesson-frame")
    expect(lesson.locator(".grid canvas").first).to_be_visible()  # the lecturer sees the model
    lesson.locator(".lesson-next").click()
    expect(student.page.locator(".lesson-progress")).to_have_text("2 / 7")
    expect(page.locator(".st-key-room_step input")).to_have_value("2. Take the future away")
    page.locator(".st-key-room_step input").click()
    page.get_by_role("option", name="6. How many connections are needed?").click()
    expect(student.page.locator(".lesson h2").first).to_have_text("How many connections are needed?")
    expect(work.locator(".trying").first).to_be_visible()
    expect(lesson.locator(".lesson-progress")).to_have_text("6 / 7")
    expect(work.locator(".counted")).to_have_text(re.compile(r"^0 of \d solved step 6$"))

    cut = {"0.attn.0": "0.0 1.0 2.0", "1.attn.0": "0.0 0.1 0.2 1.0 1.1 2.0 2.2"}
    cells = [f"encoder.{head}.{cell}" for head, all_of in cut.items() for cell in all_of.split()]
    student.page.evaluate("cut => xformerRoom.page.show({ cut })", cells)
    expect(student.page.locator(".lesson-verdict.solved")).to_be_visible()
    expect(work.locator(".solved")).to_be_visible()
    expect(work.locator(".counted strong")).to_have_text("1")
    with page.expect_download() as download:
        page.get_by_role("button", name="Results as CSV").click()
    header, *lines = download.value.path().read_text("utf-8").splitlines()
    assert header == "student,lesson,step,tries,seconds,solved,stuck"
    assert [line.rpartition(",True")[2] for line in lines if line.startswith("Mia *bold*,masks,6,")] == [",False"]

    expect(page.get_by_text("Show Mia")).to_have_count(0)  # requires the student's consent
    student.page.get_by_label("The lecturer may show what I do").check()
    page.get_by_role("button", name="Show Mia *bold*'s work").click()
    expect(page.locator(".st-key-chips button").first).to_be_visible()
    assert "cut%3Aencoder.1.attn.0.2-2" in page.url
    page.get_by_role("button", name="Back to the exercises").click()
    expect(work).to_be_visible()
    page.get_by_role("button", name="End the lesson").click()
    expect(student.page.locator(".lesson-title")).to_have_count(0)
    student.page.get_by_role("button", name="Delete my data").click()
    see(student.page, "Your data has been deleted.")
    assert not student.problems


def test_a_room_ends(room: Room) -> None:
    lecturer, student = room.lecturer, room.one
    lecturer.page.locator(".st-key-present button").first.click()
    lecturer.page.get_by_role("button", name="End the room").click()
    expect(student.page.get_by_text("This room has ended.").first).to_be_visible()
    student.page.reload()
    see(student.page, f"There is no room {room.code}")
