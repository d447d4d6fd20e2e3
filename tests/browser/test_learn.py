"""Learn, First principles and the Bug lab in Chromium: a lesson to its end, numbers that are predicted and computed, a game."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from pages.bug_lab.game import round_of
from tests.browser.conftest import Visiting, see
from tests.browser.live.test_lessons import take
from xformer.analysis.principles import Sentence
from xformer.doctor.faults import BUGS

pytestmark = pytest.mark.browser


def test_a_visitor_takes_the_first_lesson_from_learn_to_its_end(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/learn")
    page, card = visitor.page, visitor.page.locator(".lessons .card").first
    expect(card).to_contain_text("Not started")
    expect(card.locator(".go")).to_have_text("Start →")
    card.click()
    page.wait_for_function("window.xformerLive")
    page.locator(".lesson-next").click()
    page.get_by_role("link", name="← Learn").click()
    expect(card).to_contain_text("Step 2 of 8")
    card.click()
    expect(page.locator(".lesson-progress")).to_have_text("2 / 8")
    page.get_by_role("button", name="Start again").click()
    take(page, "attention")
    on = page.locator(".lesson-on a")
    expect(on).to_contain_text(["Next lesson: Why a head looks there", "Go on in the app: Home", "Back to Learn"])
    assert [link.get_attribute("href") for link in on.all()] == [
        "/lesson/scores", "/?model=reverse-mirror&input=3+7+12+9&mask=as+trained", "/learn",
    ]  # fmt: skip
    on.last.click()
    expect(card).to_contain_text("✓ Done3 of 3 solved")
    expect(page.locator(".lessons .next")).to_have_attribute("data-lesson", "scores")
    expect(page.locator(".lessons .about").first).to_contain_text("1 of 8 lessons done.")
    assert visitor.problems == []


def cell(page: Page, name: str, row: int, column: int) -> Locator:
    return page.locator(f".matrices [data-at='[\"{name}\",{row},{column}]']")


def written(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def test_a_click_shows_a_computation_and_words_and_vectors_are_edited_in_place(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/first_principles?text=to+be+or+not")
    page = visitor.page
    page.emulate_media(reduced_motion="reduce")
    mixed = Sentence("to be or not").average()
    says, terms = page.locator(".matrices .says"), page.locator(".matrices .sum .result")
    expect(says).to_have_text("Y, row “1 · be”: each row of X times its weight in A, added up")
    expect(page.locator(".matrices .blank")).to_have_count(0)
    cell(page, "S", 2, 0).click()
    products = (mixed.x[2] * mixed.x[0]).tolist()
    expect(terms).to_have_text([*map(written, products), written(sum(products))])
    expect(says).to_contain_text(f"row “2 · or” of X · row “0 · to” of X = {written(mixed.scores[2, 0].item())}")
    see(page, "“or” takes")
    page.locator(".matrices svg").press("ArrowRight")
    expect(says).to_contain_text("S[2 · or, 1 · be]")
    cell(page, "A", 1, 1).click()
    expect(page.locator(".matrices .sum .target")).to_have_text([written(one) for one in mixed.weights[1].tolist()])
    cell(page, "X", 0, -1).click()
    page.locator(".matrices .typed").fill("<b>to</b>")
    page.locator(".matrices .typed").press("Enter")
    page.wait_for_function("() => new URL(location).searchParams.get('text') === '<b>to</b> be or not'")
    expect(cell(page, "X", 0, -1)).to_have_text("0 · <b>to</b>")
    cell(page, "X", 3, 1).click()
    page.locator(".matrices .typed").fill("-2,5")
    page.locator(".matrices .typed").press("Enter")
    expect(cell(page, "X", 3, 1)).to_contain_text("−2.50")
    page.locator("h1").click()
    page.keyboard.press("n")
    see(page, "S is no longer symmetric")
    cell(page, "Q", 1, 2).click()
    expect(says).to_contain_text("row “1 · be” of X · column 3 of W_Q")
    assert visitor.problems == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_number_of_each_matrix_is_predicted_and_then_computed(app: str, visit: Visiting, width: int) -> None:
    visitor = visit(app, "/first_principles?text=to+be+or+not&predict=1", width=width)
    page, mixed = visitor.page, Sentence("to be or not").average()
    page.emulate_media(reduced_motion="reduce")
    verdict = page.locator(".matrices .verdict")
    scores, weights = mixed.scores[1], mixed.weights[1]
    other = max((0, 2, 3), key=lambda at: scores[at].item())  # a word and itself are no question
    expect(page.locator(".matrices .says")).to_contain_text(f"Predict S[1 · be, {mixed.names[other]}] = row")
    expect(page.locator(".matrices .blank")).to_have_count(3 * 16)  # S, A and Y of four words
    expect(page.locator(".st-key-headline")).to_have_count(0)  # it tells a weight
    assert page.locator(".matrices .asked").evaluate(  # the last frame is around the question mark
        "mark => { const { x, width } = mark.previousSibling.getBBox(); return mark.x.baseVal[0].value === x + width / 2; }"
    )
    page.get_by_role("button", name=written(scores[other].item()), exact=True).click()
    expect(verdict).to_have_text(f"✓ Right: S[1 · be, {mixed.names[other]}] = {written(scores[other].item())}.")
    expect(page.locator(".matrices .sum .result").last).to_have_text(written(scores[other].item()))
    expect(page.locator(".matrices .blank")).to_have_count(2 * 16)
    page.keyboard.press("Enter")
    best = int(weights.argmax())
    expect(page.locator(".matrices .says")).to_contain_text(f"Predict A[1 · be, {mixed.names[best]}]")
    page.keyboard.press("1")  # the smallest
    expect(verdict).to_contain_text(f"✗ Not 0.25: A[1 · be, {mixed.names[best]}] = {written(weights[best].item())}.")
    expect(verdict).to_contain_text("That is 1 ÷ 4, the same weight for all.")
    expect(page.locator(".matrices .sum .target")).to_have_text([written(one) for one in weights.tolist()])
    expect(page.locator(".matrices .count")).to_have_text("Predicted 1 of 2")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.keyboard.press("Enter")
    page.locator(".matrices .skip").click()
    expect(page.locator(".matrices .blank")).to_have_count(0)
    see(page, "of its new vector from")  # the headline
    page.reload()
    expect(page.locator(".matrices .count")).to_have_text("Predicted 1 of 2")
    assert visitor.problems == []


@pytest.mark.parametrize("width", [1280, 390])
def test_a_round_of_the_bug_lab_costs_points_for_wrong_answers(app: str, visit: Visiting, width: int) -> None:
    visitor, now = visit(app, "/bug_lab?round=2", width=width), round_of(2)
    page, rounds = visitor.page, visitor.page.locator(".bug-rounds li")
    wrong = next(name for name in now.choices if name != now.bug)
    expect(rounds).to_have_text(["1", "2", "3", "4", "5", "6", "7"])
    page.locator(f".st-key-bug_side_{'AB'[now.broken]} button").click()
    page.locator(".st-key-bug_choices").get_by_role("button", name=BUGS[wrong].title, exact=True).click()
    see(page, f"Not “{BUGS[wrong].title}”, whose sign is: {BUGS[wrong].look_for}")
    page.locator(".st-key-bug_choices").get_by_role("button", name=BUGS[now.bug].title, exact=True).click()
    see(page, "4 of 6 points.")
    expect(rounds).to_have_text(["1", "+4", "3", "4", "5", "6", "7"])
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert visitor.problems == []
