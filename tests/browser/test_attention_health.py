"""A training recorded by another program, in Chromium: followed live on Train, and listed on Runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.browser.conftest import Visiting, see, until
from tests.integrations.faulty_gpt import GPT
from xformer.integrations import AttentionHealth

pytestmark = pytest.mark.browser


def test_a_training_is_followed_and_an_alarm_links_to_its_step(app_runs: Path, app: str, visit: Visiting) -> None:
    torch.manual_seed(0)
    model = GPT(19, d_model=12, n_heads=3, max_len=11, fault="leaking mask")
    health = AttentionHealth(torch.arange(14).reshape(2, 7), every=2, out=app_runs, causal=True, steps=6, name="theirs")
    health.step(model, 0, loss=3.0)
    visitor = visit(app, f"/train?run={health.run}")
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
    other = visit(app, f"/runs?runs={health.run}")  # the table of the first visitor may be open
    page = other.page
    page.locator(f".st-key-runs_menu_{health.run} button").first.click()
    see(page, "Its weights are not on this server")
    page.get_by_role("link", name="Step 0: leak").click()
    page.wait_for_function("() => location.pathname === '/train' && new URL(location).searchParams.get('step') === '0'")
    see(page, "step 0 of 6")
    assert visitor.problems == other.problems == []
