"""A picture of the app in somebody's slides: a page of another server with the iframe in it that the app itself copies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FrameLocator, expect

from tests.browser.conftest import Visit

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
LINK = "/attention?model=reverse&input=3+7+12+9&mask=causal&head=3.2"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def slides(tmp_path: Path) -> Iterator[str]:
    """The address of another server, which shows what lies in `tmp_path`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def scrolls(frame: FrameLocator) -> bool:
    return bool(frame.get_by_test_id("stMain").evaluate("main => main.scrollHeight > main.clientHeight"))


def test_the_copied_iframe_shows_the_picture_alone_in_a_page_of_somebody_else(
    app: str, visit: Callable[..., Visit], browser: Browser, slides: str, tmp_path: Path
) -> None:
    page = visit(app, LINK).page
    page.wait_for_function("location.search.includes('panel=')")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as iframe").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("The iframe is copied.")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f'<iframe src="{app}/attention?')
    for said in ("mask=causal", "head=3.2", "embed=true", "embed_options=light_theme", 'width="1280" height="720"'):
        assert said in copied
    assert "panel=" not in copied  # nobody asked for the one that is shown anyway

    (tmp_path / "slide.html").write_text(f"<!doctype html><body style='margin: 0'>{copied}")
    context = browser.new_context(viewport={"width": 1300, "height": 740})
    try:
        slide = context.new_page()
        slide.goto(f"{slides}/slide.html")
        frame = slide.frame_locator("iframe")
        expect(frame.locator(".av .head .name")).to_have_text("layer 3 · head 2")
        expect(frame.locator(".st-key-chip_mask")).to_be_visible()
        for hidden in ("stSidebar", "stHeading", "stDataFrame"):
            expect(frame.get_by_test_id(hidden).filter(visible=True)).to_have_count(0)
        assert not scrolls(frame)
        frame.locator(".av .grid .base").focus()
        slide.keyboard.press("]")
        expect(frame.locator(".av .head .name")).to_have_text("layer 3 · head 3")
        frame.locator(".st-key-chip_mask button").click()  # what is changed can be taken back there
        expect(frame.locator(".st-key-chip_mask")).to_have_count(0)

        show = "src => { document.querySelector('iframe').src = src }"
        slide.evaluate(show, f"{app}/compare?embed=true&embed_options=dark_theme")
        frame.get_by_role("button", name="Play").click()
        expect(frame.get_by_role("button", name="Pause")).to_be_visible()
        assert not scrolls(frame)
        expect(frame.get_by_test_id("stApp")).to_have_css("background-color", "rgb(16, 20, 28)")
        slide.evaluate(show, f"{app}/first_principles?embed=true&step=qkv")
        expect(frame.get_by_text("each by its value")).to_be_visible()
        expect(frame.get_by_test_id("stVegaLiteChart").filter(visible=True)).to_have_count(6)
        assert not scrolls(frame)
        slide.evaluate(show, f"{app}/?embed=true&model=reverse")
        frame.locator(".st-key-diagram").get_by_text("Self-attention").first.click()
        expect(frame.locator(".av .head .name")).to_be_visible()
        expect(frame.get_by_test_id("stSidebar").filter(visible=True)).to_have_count(0)
        assert slide.url == f"{slides}/slide.html"
    finally:
        context.close()
