"""Live pages in Chromium, opened from the disk with every request refused: typing, clicking and dragging run the model."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import xformer
from tests.browser.conftest import Visit
from tests.browser.live.engine import pages_from_disk
from xformer import edits
from xformer.checkpoints import Checkpoint
from xformer.live.export import live_page, pack_model
from xformer.model import Transformer

pytestmark = pytest.mark.browser
Opening = Callable[..., Page]
MIRROR = "reverse-mirror"
"""The smallest shipped model: one layer with one head."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The live page of a shipped model; "timeline" is a model with three snapshots."""
    folder = tmp_path_factory.mktemp("live")

    def written(name: str) -> Path:
        file = folder / f"{name}.html"
        if not file.exists():
            text = timeline_page() if name == "timeline" else live_page(f"checkpoints/{name}")
            file.write_text(text, encoding="utf-8")
        return file

    return written


def timeline_page() -> str:
    """Return the page of the smallest model with two earlier snapshots, which have random weights."""
    trained = xformer.load(f"checkpoints/{MIRROR}")
    early = [Transformer(trained.model.config, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    earlier = [Checkpoint(model, trained.task, trained.card) for model in early]
    snapshots = list(zip((0, 10, 20), [*earlier, trained], strict=True))
    whole = live_page(trained)
    model = base64.b64encode(pack_model(trained, snapshots)).decode()
    return re.sub(r'(id="model">)[^<]*', rf"\g<1>{model}", whole, count=1)


@pytest.fixture(scope="module")
def opened(browser: Browser, files: Callable[[str], Path]) -> Iterator[Opening]:
    """`opened("reverse-mirror", "mask=causal")`: the page with that state, without a network; no error may appear in it."""
    with pages_from_disk(browser) as open_file:
        yield lambda name, state="", **look: open_file(files(name), state, **look)


@pytest.fixture(scope="module")
def mirror(opened: Opening) -> Callable[[str], Page]:
    """`mirror("mask=causal")`: the page of the smallest model goes to that state."""
    page = opened(MIRROR)

    def go(fragment: str) -> Page:
        page.evaluate(GO, fragment)
        return page

    return go


GO = """(fragment) => new Promise((done) => {
    addEventListener("hashchange", () => done(), { once: true });
    location.hash = `${fragment}&n=${performance.now()}`;
})"""


def state(page: Page) -> dict[str, str]:
    """The state in the fragment of the address."""
    return {name: values[0] for name, values in parse_qs(page.evaluate("location.hash.slice(1)")).items()}


def shown(page: Page, line: int = -1) -> list[str]:
    """Return the predicted tokens of a line: the first is the original run, the second the changed one."""
    chips = page.locator(".answer").all()[line].locator(".predicted")
    return [text.removesuffix(" ✗") for text in chips.all_inner_texts()]


def expected(name: str, text: str, *changes: Any) -> list[str]:
    """Return the predictions of PyTorch."""
    reading = xformer.read(f"checkpoints/{name}", text, edits=list(changes))
    best = reading.logits[0].argmax(dim=-1)
    return [reading.adapter.token_labels[int(best[at])] for at in reading.target_positions]


def draw_every_tab(page: Page, width: int) -> None:
    for tab in page.get_by_role("tab").all():
        tab.click()
        expect(tab).to_have_attribute("aria-selected", "true")
        panel = page.locator(".panel:visible")
        expect(panel).to_have_count(1)
        assert panel.inner_text().strip()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("main").evaluate(UNNAMED) == []


UNNAMED = """main => [...main.querySelectorAll("button, input, select, canvas")].filter((node) => node.checkVisibility()
  && !(node.getAttribute("aria-label") || node.labels?.length || node.textContent.trim())).map((node) => node.outerHTML)"""


def test_what_is_typed_runs_the_model(mirror: Callable[[str], Page]) -> None:
    page = mirror("tab=lens")
    page.get_by_label("Input").fill("5 2 8 1 6")
    assert shown(page) == expected(MIRROR, "5 2 8 1 6") == ["6", "1", "8", "2", "5"]
    assert page.locator(".lens tbody tr").last.locator("td").all_inner_texts() == shown(page)
    assert state(page)["input"] == "5 2 8 1 6"
    page.get_by_label("Input").fill("5 2 99")
    expect(page.get_by_role("alert")).to_contain_text("99")
    assert shown(page) == ["6", "1", "8", "2", "5"]  # the last picture stays


def test_each_change_runs_beside_the_original_and_is_undone(opened: Opening, mirror: Callable[[str], Page]) -> None:
    page = mirror("input=3+7+12+9&query=0&key=3")
    original = expected(MIRROR, "3 7 12 9")
    page.get_by_label("Mask").select_option("causal")
    assert shown(page) == expected(MIRROR, "3 7 12 9", edits.set_causal(True)) != original
    page.get_by_label("Mask").select_option("drawn")
    cut = expected(MIRROR, "3 7 12 9", edits.mask_edges("encoder.0.attn", [(0, 3)]))
    assert cut != original
    page.get_by_role("button", name="Query 0 · 3, key 3 · 9: shown").click()
    assert shown(page) == cut
    assert state(page)["drawn"] == "0.3"
    page.get_by_role("button", name="Query 0 · 3, key 3 · 9: hidden").click()
    assert shown(page) == original
    page.get_by_label("Mask").select_option("trained")
    page.get_by_role("button", name="Cut query 0 → key 3").click()
    assert shown(page) == cut
    page.get_by_role("button", name="Restore query 0 → key 3").click()
    expect(page.locator(".answer")).to_have_count(1)
    page.get_by_role("button", name="Ablate").click()
    changed = expected(MIRROR, "3 7 12 9", edits.ablate_head("encoder.0.attn", 0))
    assert changed != original
    assert (shown(page, 0), shown(page, 1)) == (original, changed)
    assert state(page)["ablate"] == "encoder.0.attn.0"
    again = opened(MIRROR, page.evaluate("location.hash.slice(1)"))  # the address holds the whole state
    assert shown(again) == changed
    page.get_by_role("button", name="Undo").click()
    assert shown(page) == original
    assert "ablate" not in state(page)


def test_the_arithmetic_of_a_cell_ends_at_its_weight(mirror: Callable[[str], Page]) -> None:
    page = mirror("input=3+7+12+9&tab=arithmetic&query=0&key=3")
    reading = xformer.read(f"checkpoints/{MIRROR}", "3 7 12 9")
    q, k = (reading[f"encoder.0.attn.{name}"][0, 0] for name in "qk")
    score = float(q[0] @ k[3]) / q.shape[1] ** 0.5
    page.get_by_role("button", name="One part forward").click()
    drawn = page.evaluate("window.xformerLive.page.matrices.data.matrices.map(({ name, values }) => [name, values])")
    matrices = dict(drawn)
    assert matrices["S"][0][3] == pytest.approx(score, abs=1e-4)
    assert matrices["A"][0] == pytest.approx(reading["encoder.0.attn.pattern"][0, 0, 0].tolist(), abs=1e-5)
    out = reading["encoder.0.attn.out"][0, 0]  # of one head without a bias it is all that attention writes
    assert matrices["Y"][0] == pytest.approx(out[:4].tolist(), abs=1e-4)


def test_on_a_phone_every_tab_draws_and_decoding_says_the_answer_token_by_token(opened: Opening) -> None:
    page = opened("reverse-seq2seq", "input=3+7+12+9&tab=decode", width=390, touch=True, theme="dark")
    assert page.locator(".decoding .chip").all_inner_texts() == ["9", "12", "7", "3", "end"]
    page.get_by_role("button", name="One token forward").click()
    expect(page.locator(".decoding [role=status]")).to_contain_text("Token 2 of 5: “12”")
    draw_every_tab(page, 390)


def test_a_drawn_digit_is_named_and_every_tab_draws_it(opened: Opening) -> None:
    page = opened("digits")
    page.get_by_role("button", name="Another digit").click()
    assert shown(page)
    pad = page.get_by_role("application", name="An image of 8 by 8 pixels.")
    page.get_by_role("button", name="Clear").click()
    box = pad.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 10, steps=5)
    page.mouse.up()
    assert state(page)["input"].startswith("drawn ")
    assert shown(page) == expected("digits", state(page)["input"])
    draw_every_tab(page, 1280)


def test_a_training_is_dragged_through(opened: Opening) -> None:
    page = opened("timeline", "input=3+7+12+9")
    trained = shown(page)
    assert trained == ["9", "12", "7", "3"]
    page.get_by_role("slider", name="Step of the training").fill("0")
    assert state(page)["step"] == "0"
    assert shown(page) != trained
    page.get_by_role("slider", name="Step of the training").fill("2")
    assert shown(page) == trained


def test_nothing_of_a_result_is_seen_before_the_reveal(mirror: Callable[[str], Page]) -> None:
    page = mirror("input=3+7+12+9")
    page.evaluate("window.xformerLive.page.hide(true)")
    assert page.locator(".predicted").count() == page.locator(".attention canvas").count() == 0
    page.evaluate("window.xformerLive.page.onCell((cell) => { window.guess = cell })")
    page.get_by_role("button", name="Query 0 · 3, key 3 · 9").click()
    assert page.evaluate("window.guess") == {"layer": 0, "head": 0, "query": 0, "key": 3}
    page.evaluate("window.xformerLive.page.hide(false)")
    assert shown(page) == ["9", "12", "7", "3"]


def test_a_screen_gives_its_model_with_the_input_the_mask_and_the_changes(
    app: str, visit: Callable[..., Visit], files: Callable[[str], Path], opened: Opening
) -> None:
    where = "/attention?model=reverse-small&input=5+2+8+1&mask=causal&edits=ablate:encoder.1.attn.0&head=2.1.0-1"
    page = visit(app, where).page
    page.locator(".st-key-footer_pattern button").first.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Live page").click()
    download.value.save_as(files(MIRROR).with_name("downloaded.html"))
    live = opened("downloaded")
    changes = [edits.set_causal(True), edits.ablate_head("encoder.1.attn", 0)]
    assert shown(live, 1) == expected("reverse-small", "5 2 8 1", *changes)
    first = live.evaluate("window.xformerLive.page.state")
    assert (first["layer"], first["head"], first["query"], first["key"]) == (1, 0, 0, 1)
    live.get_by_role("button", name="Undo").click()
    assert shown(live) == expected("reverse-small", "5 2 8 1")
    live.reload()
    expect(live.locator(".answer")).to_have_count(1)
