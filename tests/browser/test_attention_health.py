"""A training that another program recorded, in a real Chromium: seen in Runs and Train, imported, and followed live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect

from benchmarks.health import GPT
from tests.browser.conftest import Visit, see, until
from tests.browser.serving import launch, stop
from xformer.integrations import AttentionHealth

pytestmark = pytest.mark.browser
Visiting = Callable[..., Visit]


def health_of(runs: Path, name: str) -> tuple[AttentionHealth, GPT]:
    torch.manual_seed(0)
    model = GPT(19, d_model=12, n_heads=3, max_len=11, fault="leaking mask")
    probe = torch.arange(14).reshape(2, 7)
    return AttentionHealth(probe, every=2, out=runs, causal=True, steps=6, name=name), model


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> AttentionHealth:
    """A model with a leaking mask, recorded at four steps in a folder of its own."""
    health, model = health_of(tmp_path_factory.mktemp("recorded") / "runs", "theirs")
    for step in (0, 2, 4, 6):
        health.step(model, step, loss=3.0 - step / 4)
        with torch.no_grad():
            model.token.weight.mul_(3.0)
    health.close()
    return health


@pytest.fixture(scope="module")
def served(browser: Browser, recorded: AttentionHealth) -> Iterator[str]:
    """The app on the folder of the recorded training."""
    server, address = launch(XFORMER_RUNS=str(recorded.out))
    yield address
    stop(server)


def test_runs_shows_its_picture_and_an_alarm_leads_to_its_frame(
    recorded: AttentionHealth, served: str, visit: Visiting
) -> None:
    visitor = visit(served, "/runs")
    page = visitor.page
    card = page.locator(f".st-key-card_{recorded.run}")
    expect(card.get_by_role("img", name="Attention of layer")).to_be_visible()
    expect(card).to_contain_text("1 alarm")
    page.locator(f".st-key-runs_menu_{recorded.run} button").first.click()
    see(page, "Its weights are not here")
    page.get_by_role("link", name="Step 0: leak").click()
    page.wait_for_function("() => location.pathname === '/train' && new URL(location).searchParams.get('step') === '0'")
    see(page, "step 0 of 6")
    assert visitor.problems == []


def test_a_training_in_progress_is_followed(recorded: AttentionHealth, served: str, visit: Visiting) -> None:
    health, model = health_of(Path(str(recorded.out)), "in progress")
    health.step(model, 0, loss=3.0)
    visitor = visit(served, f"/train?run={health.run}")
    page = visitor.page
    try:
        see(page, "step 0 of 6")
        health.step(model, 2, loss=2.0)
        see(page, "step 2 of 6")
        page.get_by_test_id("stMainBlockContainer").get_by_role("button", name="Stop").click()
        until(lambda: bool(health.step(model, 4)) or health.should_stop, page)
    finally:
        health.close()
    see(page, "Finished after")
    assert visitor.problems == []
