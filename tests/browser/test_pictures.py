"""Every picture of every tab of every screen has visible marks, in both themes: the pixels of a screenshot are sampled."""

from __future__ import annotations

import io
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, TimeoutError

from tests.browser.conftest import PATIENCE, quiet

pytestmark = pytest.mark.browser

TABS = {
    "/?model=reverse": ("more", ("What is inside", "How long it can go")),
    "/embeddings?model=reverse": ("embeddings_show", ()),
    "/positions?model=reverse": ("positions_show", ()),
    "/masks?model=reverse&rule=causal,window:2": ("library", ("FlexAttention",)),
    "/attention?model=reverse-small&mask=causal": ("panel", ("scores", "step by step", "why here?", "rollout")),
    "/feed_forward?model=reverse": ("ff_picture", ()),
    "/residual?model=reverse": ("residual_picture", ()),
    "/compare?model=reverse&panel=attention": ("compare_panel", ()),
    "/compare?model=reverse&compare=pairs": ("pair_part", ()),
    "/first_principles": ("principle_step", ("1 ", "2 ", "3 ", "4 ", "5 ", "6 ", "7 ")),
    "/bug_lab?bug=no_scale": ("bug_tab", ("Browse", "Find")),
    "/train?run=new": ("train_group", ("Quick",)),
}
"""The links, each with the key of its tabs and the tabs that have pictures; () stands for all."""

HEIGHT = 1400
SMALL = 2.5
"""The largest cell of a heatmap, or the largest bar, is at least this many pixels high and wide."""
VISIBLE = 40
"""Difference of a colour channel from the background at which a pixel belongs to a mark; grid lines have less."""

COUNT_RUNS = """
const STATE = "data-test-script-state";
window.runs = 0, window.isRedrawn = false;
const isEnd = (one) => one.oldValue === "running" && one.target.getAttribute(STATE) === "notRunning";
new MutationObserver((changes) => {
    runs += changes.filter(isEnd).length;
    isRedrawn ||= changes.some((one) => one.type === "childList" && one.target.closest?.("[data-testid=stMain]"));
}).observe(document, { subtree: true, childList: true, attributeFilter: [STATE], attributeOldValue: true });
"""
"""Count the runs of the script that have ended, and note a change of the elements."""
HAS_RUN = "() => runs || (isRedrawn && document.querySelector('[data-test-script-state=notRunning]'))"
"""React may draw a short run at once, so that its state is never seen as running."""

PICTURES = """() => {
    const found = [], bounds = (element) => {
        const { x, y, width, height } = element.getBoundingClientRect();
        return [x, y, width, height];
    };
    const union = (boxes) => {
        const ends = boxes.map(([x, y, w, h]) => [x, y, x + w, y + h]);
        const [x, y] = [0, 1].map((at) => Math.min(...ends.map((box) => box[at])));
        const [right, down] = [2, 3].map((at) => Math.max(...ends.map((box) => box[at])));
        return [x, y, right - x, down - y];
    };
    const sides = (boxes) => [2, 3].map((at) => Math.max(...boxes.map((box) => box[at])));
    const marksOf = (group) => [...group.querySelectorAll("path, line, text, image")].map(bounds);
    const vega = (picture) => {
        const svg = picture.querySelector("svg.marks"), canvas = picture.querySelector("canvas.marks");
        if (canvas) {  // a map without its axes and legend
            const [x, y, width, height] = bounds(canvas);
            return { marks: [x + width / 3, y + height / 4, width / 3, height / 4] };
        }
        const every = [...(svg?.querySelectorAll(".role-mark") ?? [])];
        const groups = every.filter((one) => !one.closest(".role-legend, .role-axis"));
        const boxes = groups.flatMap(marksOf).filter(([, , width, height]) => width + height > 0);
        const cells = groups.filter((one) => one.matches(".mark-rect")).map(marksOf).filter((some) => some.length);
        return boxes.length ? { marks: union(boxes), sizes: cells.map(sides) } : { blank: true };
    };
    const look = (element) => {
        const [, , width, height] = bounds(element);
        if (element.matches("[data-testid=stVegaLiteChart]")) found.push(vega(element));
        const plotly = element.matches(".js-plotly-plot") && element.querySelector(".gl-container, .plot");
        if (plotly) found.push({ marks: bounds(plotly) });
        const isPart = element.closest("[data-testid=stVegaLiteChart], [data-testid=stDataFrame], .js-plotly-plot, button");
        if (!isPart && element.matches("canvas:not(.over), img, svg") && width > 60 && height > 60)
            found.push({ marks: bounds(element) });
    };
    const visit = (root) => {
        for (const element of root.querySelectorAll("*")) {
            if (element.shadowRoot) visit(element.shadowRoot);
            look(element);
        }
    };
    visit(document.querySelector("[data-testid=stMain]"));
    return found;
}"""


def problems(page: Page) -> list[str]:
    """Return what is wrong with the pictures on the page; that there are none is wrong too."""
    pictures: list[dict[str, Any]] = page.evaluate(PICTURES)
    found = [] if pictures else ["there is no picture"]
    found += [f"picture {number} has no marks" for number, one in enumerate(pictures, 1) if one.get("blank")]
    if found:
        return found  # without a screenshot, which takes long
    screen = np.asarray(Image.open(io.BytesIO(page.screenshot(type="jpeg", quality=90))))  # [row, column, channel]
    ground = screen[HEIGHT - 3, -3].astype(int)
    for number, picture in enumerate(pictures, 1):
        x, y, width, height = (round(side) for side in picture["marks"])
        pixels = screen[max(0, y) : y + max(1, height), max(0, x) : x + max(1, width)]
        if not pixels.size:
            continue  # below the window
        if (abs(pixels - ground).max(axis=-1) > VISIBLE).sum() < 40:
            found.append(f"the marks of picture {number} cannot be seen")
        found += [
            f"picture {number} has rows of {size} pixels" for size in picture.get("sizes", ()) if min(size) < SMALL
        ]
    return found


def test_every_picture_has_visible_marks_in_both_themes(app: str, browser: Browser) -> None:
    size: Any = {"width": 1280, "height": HEIGHT}
    context = browser.new_context(viewport=size, reduced_motion="reduce", color_scheme="dark")
    context.add_init_script(COUNT_RUNS)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    blank = []

    def look(name: str) -> None:
        deadline = time.monotonic() + 15
        while (found := problems(page)) and time.monotonic() < deadline:
            page.wait_for_timeout(50)
        blank.extend(f"{name}: {problem}" for problem in found)

    theme = "dark"
    for link, (key, some) in TABS.items():
        page.goto(app + link)
        tabs = page.locator(f".st-key-{key} button")
        tabs.first.wait_for()
        quiet(page)
        for tab in some or tabs.all_inner_texts():
            button = tabs.filter(has_text=tab).first
            if button.get_attribute("aria-checked") != "true":
                page.evaluate("runs = 0, isRedrawn = false")
                button.click()
                with suppress(TimeoutError):  # a tab that measures something keeps running
                    page.wait_for_function(HAS_RUN, timeout=3000)
            look(f"{link}, {tab}, in the {theme} theme")
        theme = "light" if theme == "dark" else "dark"
        page.emulate_media(color_scheme=theme)  # changes the page without a run, and is kept for the next link
        look(f"{link}, the last tab, changed to the {theme} theme")
    context.close()
    assert blank == []
