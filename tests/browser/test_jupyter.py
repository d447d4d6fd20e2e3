"""The attention view in JupyterLab, in Chromium, and in a notebook exported as HTML.

Skipped if JupyterLab is not installed: pip install 'xformer-studio[notebook]'.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import until
from tests.browser.serving import ROOT, stop

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_spec("jupyterlab") is None, reason="no JupyterLab: the widget was NOT tested in one"),
]
MAKE = """
import numpy as np
import xformer
draw = np.random.default_rng(0)
one, other = (draw.dirichlet(np.ones(5), (3, 1, 2, 4)) for _ in range(2))  # [layer, batch, head, query, key]
view = xformer.attention_view(
    tuple(one), query_tokens=["le", "chat", "dort", "."], key_tokens=["the", "cat", "is", "asleep", "."], changed=tuple(other)
)
view
""".strip()
TELL = """
was, now = (of[view.layer][0, view.head, view.query, view.key] for of in (one, other))
print("chosen", view.layer, view.head, view.query, view.key, f"{was:.4f}", f"{now:.4f}")
""".strip()


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import nbformat.v4 as nbformat
    from nbformat import write

    path = tmp_path_factory.mktemp("lab") / "view.ipynb"
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    write(nbformat.new_notebook(cells=[nbformat.new_code_cell(code) for code in (MAKE, TELL)], metadata=spec), path)
    return path


@pytest.fixture(scope="module")
def lab(notebook: Path) -> Iterator[str]:
    """The address of a JupyterLab that serves the notebook, isolated from the user's own settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = notebook.parent / "home"
    home.mkdir()
    options = {"port": port, "root_dir": notebook.parent, "open_browser": False, "allow_root": True, "port_retries": 0}
    command = [f"--ServerApp.{name}={value}" for name, value in options.items()]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *command, "--IdentityProvider.token=", "--ServerApp.password="],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(home), "JUPYTER_CONFIG_DIR": str(home)},
    )
    address = f"http://127.0.0.1:{port}"
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"{address}/api") as answer:
                if answer.status == 200:
                    break
        except OSError:
            assert server.poll() is None, "JupyterLab did not start"
            time.sleep(0.1)
    yield address
    stop(server)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(120_000)
    yield page
    page.close()


def choose(page: Page, view: Locator) -> str:
    """Select the second head with the keyboard, hover a cell, lock another one, and return the read-out of that one."""
    expect(view.locator(".head .name")).to_have_text("layer 1 · head 1")
    expect(view.locator(".stage .pane.matrix")).to_have_count(3)  # original, changed, difference
    view.locator(".grid .base").first.focus()
    page.keyboard.press("]")
    expect(view.locator(".head .name")).to_have_text("layer 1 · head 2")
    matrix = view.locator(".stage .pane.matrix .base").first
    box = matrix.bounding_box()
    assert box is not None
    matrix.hover(position={"x": 0.45 * box["width"], "y": 0.55 * box["height"]})
    expect(view.locator(".readout .text")).to_contain_text("query")
    hovered = view.locator(".readout .text").inner_text()
    matrix.click(position={"x": 0.6 * box["width"], "y": 0.8 * box["height"]})
    expect(view.locator(".readout .text")).not_to_have_text(hovered)
    return view.locator(".readout .text").inner_text()


def told_by_python(page: Page, cell: Locator) -> str:
    """Return the selection as printed by the second cell.

    The cell is run repeatedly, because a cell that is run right after a click may reach the kernel before the widget's message.
    """
    output = cell.locator(".jp-OutputArea-output")
    for _ in range(60):
        cell.locator(".jp-InputArea-editor").click()
        page.keyboard.press("Control+Enter")
        expect(output).to_contain_text(re.compile("chosen|Error"))
        if "chosen 0 1" in (text := output.inner_text()):
            return text
        page.wait_for_timeout(500)
    raise AssertionError(f"the click has not reached Python: {output.inner_text()}")


def test_widget_works_in_jupyterlab_and_in_an_exported_notebook(lab: str, notebook: Path, page: Page) -> None:
    page.goto(f"{lab}/lab/tree/view.ipynb?reset")
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    expect(cells).to_have_count(2)
    expect(page.get_by_role("button", name="Idle")).to_be_visible()
    cells.first.locator(".jp-InputArea-editor").click()
    page.keyboard.press("Control+Enter")
    view = cells.first.locator(".jp-OutputArea .av").first
    shown_text = choose(page, view)
    expect(cells.first.locator("iframe")).to_be_hidden()  # the fallback for exports, which the widget hides
    _, layer, head, query, key, was, now = told_by_python(page, cells.nth(1)).split()
    assert (layer, head) == ("0", "1")
    queries, keys = ["le", "chat", "dort", "."], ["the", "cat", "is", "asleep", "."]
    assert (
        f"query {query} '{queries[int(query)]}' → key {key} '{keys[int(key)]}': original {was} · changed {now}"
        in shown_text
    )

    page.keyboard.press("Control+s")
    until(lambda: "chosen" in notebook.read_text("utf-8"), page)
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(notebook)]
    subprocess.run(command, check=True, capture_output=True)
    page.context.set_offline(True)
    page.goto(notebook.with_suffix(".html").as_uri(), wait_until="domcontentloaded")
    assert "query" in choose(page, page.frame_locator("iframe[title=Attention]").locator(".av"))
