"""`make readme-pictures`: record the pictures of the README, which are screenshots of the running app.

    python -m tools.readme_pictures [--out docs]

animation.webp     a run in the scene of Home, then a mask on Attention; the slider of the scene selects each frame
any-model.png      Home with SmolLM2, which `make models` fetches
train.png          a model that has just learned to reverse
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

from benchmarks.chromium import chromium, server

DOCS = Path(__file__).parents[1] / "docs"
LINK = "model=reverse&input=3+7+12+9+1+5&embed=true"
SIZE = (960, 540)
MAX_BYTES = 2_000_000
N_FRAMES = 56
"""Number of frames of the scene."""
FIRST = 60
"""Slider value of the first frame, of 1000; a still image of this frame already shows the tokens."""
FRAME, ANSWER, VIEW = 110, 1800, 2400
"""Display times in milliseconds: a frame of the scene, its last frame, a view of Attention."""
PATIENCE = 60_000
MOVE = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })) }"
Frame = tuple[Image.Image, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCS, help="the output folder")
    folder = parser.parse_args().out
    with server("-m", "streamlit", "run", "app.py") as address, chromium() as browser:
        for name, size, show in (("any-model", (1280, 720), home), ("train", (1280, 900), train)):
            page = window(browser, size)
            show(page, address)
            page.wait_for_timeout(VIEW)
            shot(page).quantize().save(folder / f"{name}.png", optimize=True)
        page = window(browser, SIZE)
        frames = [*scene(page, address), *attention(page, address)]
    out = folder / "animation.webp"
    images, milliseconds = zip(*frames, strict=True)
    images[0].save(out, save_all=True, append_images=images[1:], duration=milliseconds, loop=0, quality=80, method=6)
    size = out.stat().st_size
    print(f"{len(frames)} frames, {sum(milliseconds) / 1000:.0f} s, {size:,} bytes, written to {out}")
    if size > MAX_BYTES:
        sys.exit(f"That is more than {MAX_BYTES:,} bytes; record fewer frames.")


def window(browser: Browser, size: tuple[int, int]) -> Page:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.set_default_timeout(PATIENCE)
    return page


def home(page: Page, address: str) -> None:
    """Show Home with a language model whose run is over."""
    page.goto(address)
    page.locator(".st-key-next_add").wait_for()
    page.wait_for_timeout(VIEW)  # until the recorded run is gone
    page.locator(".st-key-scene .time").evaluate(MOVE, 1000)


def train(page: Page, address: str) -> None:
    """Train a small model to its end."""
    page.goto(f"{address}/train?run=new")
    page.locator(".st-key-start_reverse-small").get_by_role("button").first.click()
    page.get_by_text("Finished after").first.wait_for()


def scene(page: Page, address: str) -> Iterator[Frame]:
    """Yield the frames of a run, from the tokens to the answers."""
    page.goto(f"{address}/?{LINK}")
    time = page.locator(".st-key-scene .time")
    time.wait_for()
    page.wait_for_timeout(2000)
    for number in range(N_FRAMES):
        time.evaluate(MOVE, FIRST + round((1000 - FIRST) * number / (N_FRAMES - 1)))
        page.wait_for_timeout(60)
        yield shot(page), FRAME if number < N_FRAMES - 1 else ANSWER


def attention(page: Page, address: str) -> Iterator[Frame]:
    """Yield a view of the heads, and one that compares them with the same heads under a causal mask."""
    for mask in ("", "&mask=causal"):
        page.goto(f"{address}/attention?{LINK}&head=3.2{mask}")
        page.locator(".av .grid").wait_for()
        page.wait_for_timeout(2500)
        yield shot(page), VIEW


def shot(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


if __name__ == "__main__":
    main()
