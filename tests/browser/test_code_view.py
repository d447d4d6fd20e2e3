"""The saved code view: hover and focus show a tensor, a click keeps it, and two sources stand side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import xformer
from tests.browser.conftest import Visiting
from tests.widgets.test_code_view import SOURCE, TOKENS, gpt, llama

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page, wrong = browser.new_page(viewport={"width": 1280, "height": 720}), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    page.close()
    assert not wrong


def test_hover_and_focus_show_a_tensor_and_a_click_keeps_it(page: Page, tmp_path: Path) -> None:
    xformer.code_view(gpt(), TOKENS).save_html(tmp_path / "code.html")
    page.goto((tmp_path / "code.html").as_uri())
    title, source = page.locator(".detail h3"), page.locator(".source")
    place = source.bounding_box()
    expect(title).to_have_text("softmax")
    page.locator(".line", has_text="masked_fill").locator("code").hover()
    expect(title).to_have_text("masked_fill")
    page.locator("figcaption").hover()
    expect(title).to_have_text("softmax")  # the chosen one returns
    line = page.locator(".line", has_text="scores / math.sqrt")
    line.locator("button").focus()
    expect(title).to_have_text("div")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(title).not_to_have_text("div")  # that of the next line
    page.locator(".detail canvas").focus()
    expect(title).to_have_text("div")
    expect(page.locator(".line.chosen code")).to_have_text("    scores = scores / math.sqrt(k.shape[-1])")
    assert source.bounding_box() == place


@pytest.mark.parametrize("width", [1280, 390])
def test_sources_stand_side_by_side_or_below_each_other(page: Page, tmp_path: Path, width: int) -> None:
    changed = tmp_path / "broken.py"
    changed.write_text(SOURCE.read_text().replace("scores / math.sqrt", "scores * math.sqrt"))
    xformer.code_view(gpt(), TOKENS, changed=gpt(changed)).save_html(tmp_path / "code.html")
    page.set_viewport_size({"width": width, "height": 720})
    page.goto((tmp_path / "code.html").as_uri())
    line = page.locator(".line.differs")
    expect(line.locator("code")).to_have_text(
        ["    scores = scores / math.sqrt(k.shape[-1])", "    scores = scores * math.sqrt(k.shape[-1])"]
    )
    expect(line).to_be_in_viewport()
    expect(page.locator(".detail h4")).to_have_text(["original", "changed"])
    first, second = (one.bounding_box() for one in line.locator("code").all())
    assert first is not None
    assert second is not None
    assert (second["x"] > first["x"] + 200, second["y"] > first["y"] + 20) == (width == 1280, width == 390)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_choosing_a_layer_changes_all_functions_of_it(page: Page, tmp_path: Path) -> None:
    xformer.code_view(llama(), TOKENS).save_html(tmp_path / "code.html")
    page.goto((tmp_path / "code.html").as_uri())
    page.get_by_label("Call of LlamaAttention.forward").select_option("model.layers.1.self_attn")
    expect(page.get_by_label("Call of LlamaMLP.forward")).to_have_value("1")
    line = page.locator(".line.chosen")
    expect(line).to_contain_text("softmax")  # the same line of the other layer
    expect(page.locator(".detail .steps .chosen")).to_have_text("softmax")
    page.locator("summary", has_text="LlamaModel.forward").click()
    page.locator(".line", has_text="decoder_layer(").last.locator("button").click()
    expect(page.locator(".detail .steps button")).to_have_text(["model.layers.0", "model.layers.1"])


def test_the_bug_lab_shows_the_code_of_the_open_model(app: str, visit: Visiting) -> None:
    page = visit(app, "/bug_lab?tab=yours&model=reverse-small&input=3+7+2+5").page
    page.locator(".st-key-doctor_code summary").click()
    expect(page.locator(".code-view .line.chosen")).to_contain_text("softmax")
    page.locator(".code-view .line", has_text="@ k.transpose").first.hover()
    expect(page.locator(".code-view .detail h3")).to_have_text("matmul")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
