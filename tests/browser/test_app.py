"""The screens in Chromium: partial reruns, the scene, themes, changes by click, edited tokens, charts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import WebSocket, expect

from tests.browser.conftest import Visit, Visiting, click, click_in_scene, quiet, see, until

pytestmark = pytest.mark.browser


def pixels(visit: Visit) -> bytes:
    """Return a screenshot of the attention view once it is drawn."""
    visit.page.locator(".st-key-attention [data-ms]").first.wait_for()
    return visit.page.locator(".st-key-attention").screenshot()


def test_hovering_sends_nothing_and_a_toggle_reruns_neither_title_nor_model_selector(app: str, visit: Visiting) -> None:
    visitor = visit(app, "")
    page, came, sent = visitor.page, list[str](), list[object]()

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: came.append(str(frame)))
        socket.on("framesent", lambda frame: sent.append(frame))

    page.on("websocket", listen)
    attention_ready(visitor.open("/attention?model=reverse&panel=change+the+run"))
    assert sent
    assert any("Which token attends to which" in frame for frame in came)
    see(page, "6 of 6 right")

    sent.clear()
    view = page.locator(".st-key-attention")
    grid, detail = view.locator(".grid").first, view.locator(".detail").first
    drawn = grid.screenshot(), detail.screenshot()
    view.locator(".chip").nth(2).hover()  # hovering a token highlights its row and its column
    until(lambda: grid.screenshot() != drawn[0], page)
    until(lambda: detail.screenshot() != drawn[1], page)
    box = detail.locator("canvas").first.bounding_box()
    assert box is not None
    for step in range(10):
        page.mouse.move(box["x"] + box["width"] * (0.4 + 0.04 * step), box["y"] + box["height"] / 2)
    expect(view).to_contain_text("query")
    assert sent == []
    name, link = view.locator(".head .name"), page.url
    chosen = name.inner_text()
    grid.locator("canvas").first.focus()
    page.keyboard.press(".")
    expect(name).not_to_have_text(chosen)
    page.wait_for_function("(old) => location.href !== old", arg=link)
    quiet(page)

    before, mask = pixels(visitor), page.locator(".st-key-mask")
    for toggle, says in (
        (mask.get_by_text("causal", exact=True), "with causal mask"),
        (page.locator("[class*='st-key-switch_positions'] button").first, "causal mask + 1 change"),
        (page.locator(".st-key-chip_mask button"), "with 1 change"),  # the sidebar follows
    ):
        came.clear()
        toggle.click()
        see(page, says)
        quiet(page)
        assert not [frame for frame in came if "Which token attends to which" in frame or "Open a model" in frame]
        if says == "with causal mask":
            see(page, "right instead of 6")
            expect(page.locator(".st-key-attention")).to_contain_text("changed − original")
            until(lambda: pixels(visitor) != before, page)
            page.wait_for_function("() => new URL(location).searchParams.get('mask') === 'causal'")
    expect(mask.get_by_role("radio", name="as trained")).to_have_attribute("aria-checked", "true")
    assert visitor.problems == []


SCREENS = ("embeddings", "positions", "attention", "feed_forward", "residual")


def test_tokens_of_the_scene_can_be_edited_and_its_heads_and_their_cells_enlarged(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/?mask=as+trained&model=reverse&input=4+9+2+11")
    page = visitor.page
    scene = page.locator(".st-key-scene")
    expect(scene.locator(".play")).to_be_visible()
    scene.locator(".time").evaluate("node => { node.value = 1000; node.dispatchEvent(new Event('input')); }")
    expect(scene.locator(".says")).to_have_text("4 of 4 answers right")
    scene.locator(".back").click()
    expect(scene.locator(".says")).to_have_text("The last vectors become probabilities")
    click_in_scene(scene, "Token 0: ")
    scene.locator(".edit").fill("19")
    scene.locator(".edit").press("Enter")
    page.wait_for_function("() => new URL(location).searchParams.get('input') === '19 9 2 11'")
    expect(page.locator(".st-key-input input")).to_have_value("19 9 2 11")
    click_in_scene(scene, "head 1. Click")
    expect(page.locator(".st-key-zoom .head .name")).to_have_text(re.compile(r"layer \d · head 1"))
    page.wait_for_url(re.compile(r"zoom=\d\.1(&|$)"))
    matrix = page.locator(".st-key-zoom .pane.matrix .base").first
    matrix.click(position={"x": 150, "y": 150})
    expect(page.locator(".st-key-steps .says")).to_have_text(re.compile(r"^S\["))
    page.wait_for_url(re.compile(r"zoom=\d\.1\.\d-\d(&|$)"))
    quiet(page)
    page.keyboard.press("Escape")
    expect(page.locator(".st-key-zoom .head .name")).to_be_visible()
    quiet(page)
    page.keyboard.press("Escape")
    expect(scene.locator(".play")).to_be_visible()
    quiet(page)
    scene.locator("canvas").press("ArrowDown")
    scene.locator("canvas").press("Enter")  # the keyboard does what the mouse does
    expect(page.locator(".st-key-zoom .head .name")).to_have_text("layer 1 · head 1")
    expect(page.locator("body > canvas")).to_have_count(0)  # what grew has landed
    page.wait_for_url(re.compile(r"zoom=1\.1(&|$)"))
    quiet(page)
    page.go_back()  # each level is an entry in the history
    expect(scene.locator(".play")).to_be_visible()
    assert "zoom" not in page.url
    page.go_forward()
    expect(page.locator(".st-key-zoom .head .name")).to_have_text("layer 1 · head 1")
    assert visitor.problems == []


def test_every_screen_has_no_errors_in_both_themes(app: str, visit: Visiting) -> None:
    """Each screen is opened in one theme and then switched to the other."""
    visitor = visit(app, "/?model=reverse&mask=causal")
    page, theme, light = visitor.page, "light", "rgb(255, 255, 255)"

    def look(screen: str) -> None:
        background = expect(page.get_by_test_id("stApp"))
        (background.to_have_css if theme == "light" else background.not_to_have_css)("background-color", light)
        # The text at the end of the screen.
        ends_with = {"": "How it was trained", "positions": "attend to without positions"}
        see(page, ends_with.get(screen, "What to notice"))
        expect(page.get_by_test_id("stException")).to_have_count(0)
        expect(page.get_by_test_id("stAlertContentError")).to_have_count(0)
        assert visitor.problems == []

    for screen in ("", *SCREENS):
        if screen:
            click(page, screen)
            quiet(page)
        look(screen)
        theme = "dark" if theme == "light" else "light"
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        look(screen)


def attention_ready(visitor: Visit) -> None:
    """Wait until the picture is drawn and the link names its head, which takes another script run."""
    expect(visitor.page.locator(".st-key-attention")).to_contain_text("exact values")
    visitor.page.wait_for_function("() => new URL(location).searchParams.get('head')")
    quiet(visitor.page)


def click_cell(visitor: Visit, query: int, key: int) -> None:
    """Click a cell of the enlarged matrix, searching first along a row for the key, then down for the query."""
    box = visitor.page.locator(".st-key-attention .detail canvas").first.bounding_box()
    assert box is not None
    readout = visitor.page.locator(".st-key-attention .readout").first
    wanted = re.compile(rf"^query {query} .*→ key {key} ")
    x, y = box["x"] + 20, box["y"] + box["height"] / 2
    while x < box["x"] + box["width"]:
        visitor.page.mouse.move(x, y)
        if f"→ key {key} " in readout.inner_text():
            break
        x += 12
    y = box["y"] + 20
    while y < box["y"] + box["height"]:
        visitor.page.mouse.move(x, y)
        if wanted.match(readout.inner_text()):
            visitor.page.mouse.click(x, y)
            return
        y += 12
    raise AssertionError(f"no cell of the matrix reads {wanted.pattern}")


def test_a_click_locks_a_cell_and_cutting_it_changes_the_prediction_and_the_link(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/attention?mask=as+trained&model=reverse-mirror&input=4+9+2+11+5&panel=change+the+run")
    page = visitor.page
    attention_ready(visitor)
    click_cell(visitor, query=0, key=4)
    expect(page.locator(".st-key-attention")).to_contain_text("locked")
    page.get_by_role("button", name="Cut 0 · 4 → 4 · 5", exact=True).click()
    see(page, "4 of 5 right instead of 5")
    expect(page.locator(".st-key-chips")).to_contain_text("0 may not attend to 4")
    page.wait_for_function("() => location.search.includes('cut')")
    link = page.url
    other = visit(app, link.removeprefix(app))  # a new visitor
    see(other.page, "4 of 5 right instead of 5")
    expect(other.page.locator(".st-key-attention")).to_contain_text("locked")
    other.page.locator(".st-key-chips button").first.click()
    see(other.page, "5 of 5 right")
    assert visitor.problems == other.problems == []


def test_tokens_of_the_strip_are_edited_in_place(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/residual?mask=as+trained&model=reverse&input=3+7+12")
    page = visitor.page
    strip, typed = page.locator(".st-key-strip"), page.locator(".st-key-input input")
    cells = strip.locator(".lane").first.locator(".token")
    cells.nth(1).click()
    page.keyboard.type("5")
    page.keyboard.press("Enter")
    expect(typed).to_have_value("3 5 12")
    page.wait_for_function("() => new URL(location).searchParams.get('input') === '3 5 12'")
    expect(cells.nth(1)).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Delete")
    strip.locator(".add").click()  # before the answer to the removal, which draws the tokens again
    page.keyboard.type("99")
    expect(cells).to_have_text(["5", "12", ""])
    page.keyboard.press("Enter")
    expect(strip.get_by_role("alert")).to_contain_text("“99” is not one")
    page.keyboard.press("Escape")
    expect(cells).to_have_text(["5", "12", "+"])
    assert visitor.problems == []


def test_words_are_not_covered(app: str, visit: Visiting) -> None:
    changes = "mask=causal&edits=ablate:encoder.0.attn.0,positions:off"
    page = visit(app, f"/attention?model=reverse-small&input=3+7+12&{changes}&panel=rollout", theme="dark").page
    see(page, "Undo all")
    expect(page.locator("h1 span span").first).to_be_hidden()
    title = page.locator("h1 span").first.bounding_box()
    chips = page.locator("div:has(> .st-key-chips)").bounding_box()
    assert title is not None
    assert chips is not None
    assert title["x"] < chips["x"]
    assert page.locator("h1").evaluate("h1 => h1.scrollWidth <= h1.clientWidth")

    chart = page.get_by_test_id("stVegaLiteChart").first
    chart.hover()
    frame = page.get_by_test_id("stFullScreenFrame").filter(has=chart)
    button, picture = frame.get_by_test_id("stElementToolbar").bounding_box(), chart.bounding_box()
    assert button is not None
    assert picture is not None
    assert button["x"] >= picture["x"] + picture["width"]
    assert button["y"] >= picture["y"]

    share = page.get_by_role("button", name="Share")
    share.click()
    page.mouse.move(0, 0)
    text = page.get_by_test_id("stApp").evaluate("app => getComputedStyle(app).color")
    expect(share).to_have_css("color", text)


def test_the_prediction_that_continues_a_text_is_in_view(app: str, visit: Visiting) -> None:
    page = visit(app, "/residual?model=characters&input=To+be,+or+not+to+be,+that+is+the+question:+whether").page
    strip = page.locator(".st-key-strip .strip")
    expect(strip.locator(".token").last).to_be_in_viewport(ratio=0.9)
    assert strip.evaluate("strip => strip.scrollLeft") > 0


def test_a_click_selects_a_head_and_another_picture_removes_it_from_the_link(app: str, visit: Visiting) -> None:
    visitor = visit(app, "/positions?mask=as+trained&model=reverse&input=3+7+12+9+4+11&edits=positions:off")
    page = visitor.page
    page.wait_for_function("() => new URL(location).searchParams.get('watch') === 'most'")
    quiet(page)
    page.get_by_test_id("stVegaLiteChart").nth(2).get_by_text("6%", exact=True).first.click()
    page.wait_for_function("() => new URL(location).searchParams.get('watch') === '1.2'")
    quiet(page)
    page.get_by_test_id("stMain").get_by_text("Sinusoidal", exact=True).click()
    page.wait_for_function("() => new URL(location).searchParams.get('show') === 'own'")
    quiet(page)
    assert "watch=" not in page.url
    assert "edits=positions" in page.url
    assert visitor.problems == []
