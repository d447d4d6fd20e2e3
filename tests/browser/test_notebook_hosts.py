"""The attention view in other notebooks than JupyterLab. marimo and Notebook 7 run; VS Code and Colab are simulated.

The simulation is a page that says of its theme what the outputs of VS Code and of Colab say, and has a model that answers as
anywidget's; neither VS Code's renderer nor Colab's is in it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, TimeoutError, expect

import xformer
from tests.browser.serving import ROOT, stop

pytestmark = pytest.mark.browser
DARK, LIGHT = "dark", "light"
CODE = 'import xformer\nview = xformer.attention_view(xformer.read("checkpoints/reverse", "3 7 12 9"), layer=2)\nview'
THEME = "(view) => [...view.closest('.ground').classList].pop()"


@pytest.fixture(params=[LIGHT, DARK])
def theme(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def page(browser: Browser, theme: str) -> Iterator[Page]:
    """A page of a visitor whose system prefers the other theme than the notebook has."""
    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=LIGHT if theme == DARK else DARK)
    page.set_default_timeout(60_000)
    yield page
    page.close()


def is_readable(view: Locator, theme: str) -> None:
    """Check that the view is drawn, in the theme of the notebook, and reacts."""
    expect(view.locator(".head .name")).to_have_text("layer 3 · head 1")
    assert view.evaluate(THEME) == theme
    letters = view.locator(".head .name").evaluate("node => getComputedStyle(node).color.match(/\\d+/g).slice(0, 3)")
    assert (sum(map(int, letters)) > 380) == (theme == DARK)  # light on dark
    view.locator(".grid .base").first.focus()
    view.page.keyboard.press("]")
    expect(view.locator(".head .name")).to_have_text("layer 3 · head 2")


PAGES = {
    "vscode": '<html><body class="vscode-{theme}" data-vscode-theme-kind="vscode-{theme}" style="background:transparent">',
    "colab": '<html theme="{theme}"><body style="background:transparent">',
    "color-scheme": '<html style="color-scheme:{theme}"><body>',
    "modern colours": '<html><body style="background:color(srgb {level} {level} {level})">',
}
RENDER = """
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const state = %s, sent = {};
for (const name of ["_planes", "_exact"]) state[name] = new DataView(bytes(state[name]).buffer);
const set = (name, value) => { sent[name] = state[name] = value; };
const model = { get: (name) => state[name], set, on() {}, off() {}, save_changes() {} };
window.sent = sent;
const widget = await import(URL.createObjectURL(new Blob([%s], { type: "text/javascript" })));
widget.default.render({ model, el: document.querySelector("#output") });
"""


@pytest.mark.parametrize("host", list(PAGES))
def test_the_view_follows_the_theme_of_a_simulated_notebook(host: str, page: Page, theme: str, tmp_path: Path) -> None:
    view = xformer.attention_view(xformer.read("checkpoints/reverse", "3 7 12 9"), layer=2)
    state = {name: getattr(view, name) for name in ("_style", "_page_class", "layer", "head", "query", "key")}
    state |= {name: b64encode(getattr(view, name)).decode() for name in ("_planes", "_exact")}
    script = RENDER % (json.dumps(state), json.dumps(str(view._esm)))
    start = PAGES[host].format(theme=theme, level=0.1 if theme == DARK else 1)
    script = script.replace("</", "<\\/")
    (tmp_path / "page.html").write_text(f'{start}<div id="output"></div><script type="module">{script}</script>')
    page.goto((tmp_path / "page.html").as_uri())
    is_readable(page.locator(".av").first, theme)
    assert page.evaluate("window.sent.head") == 1


@contextmanager
def running(command: list[str], port: int, folder: Path, path: str) -> Iterator[str]:
    """Run a notebook server while the block runs, isolated from the user's own settings."""
    home = {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "JUPYTER_CONFIG_DIR": str(folder / "jupyter"),
    }
    if (lab := find_spec("jupyterlab")) is not None and lab.origin:  # its files, if it belongs to another environment
        share = Path(lab.origin).parents[4] / "share" / "jupyter"
        home |= {"JUPYTER_PATH": str(share), "JUPYTERLAB_DIR": str(share / "lab")}
    environment = os.environ | home | {"PYTHONPATH": str(ROOT)}
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([sys.executable, "-m", *command], cwd=folder, env=environment, **output)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                    if answer.status == 200:
                        break
            except OSError:
                assert server.poll() is None, command
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(server)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


MARIMO = f"""
import marimo

app = marimo.App()


@app.cell
def _():
    {CODE.replace(chr(10), chr(10) + "    ")}
    return (view,)
"""


def test_marimo(page: Page, theme: str, tmp_path: Path) -> None:
    if find_spec("marimo") is None:
        pytest.skip("no marimo: the view was NOT tested in it; see make packages")
    (tmp_path / "config" / "marimo").mkdir(parents=True)
    (tmp_path / "config" / "marimo" / "marimo.toml").write_text(f'[display]\ntheme = "{theme}"\n')
    (tmp_path / "view.py").write_text(MARIMO)
    port = free_port()
    command = ["marimo", "run", "view.py", "--headless", "--no-token", "--port", str(port)]
    with running(command, port, tmp_path, "/health") as address:
        page.goto(address)
        is_readable(page.locator(".av").first, theme)


def notebook(*sources: str) -> str:
    """The content of a notebook with these cells."""
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{at}",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": source,
        }
        for at, source in enumerate(sources)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


def jupyter(program: str, port: int, theme: str, folder: Path) -> list[str]:
    """The command of a Jupyter server, with the theme of its pages in its settings."""
    overrides = folder / "jupyter" / "labconfig"
    overrides.mkdir(parents=True)
    settings = {"@jupyterlab/apputils-extension:themes": {"theme": f"JupyterLab {theme.title()}"}}
    (overrides / "default_setting_overrides.json").write_text(json.dumps(settings))
    options = {"port": port, "root_dir": folder, "open_browser": False, "allow_root": True, "port_retries": 0}
    return [program, *(f"--ServerApp.{name}={value}" for name, value in options.items()), "--IdentityProvider.token="]


def test_notebook_7(page: Page, theme: str, tmp_path: Path) -> None:
    if find_spec("notebook") is None:
        pytest.skip("no notebook: the view was NOT tested in Notebook 7; see make packages")
    (tmp_path / "view.ipynb").write_text(notebook(CODE))
    port = free_port()
    with running(jupyter("notebook", port, theme, tmp_path), port, tmp_path, "/api") as address:
        page.goto(f"{address}/notebooks/view.ipynb")
        view = page.locator(".jp-OutputArea .av")
        for _ in range(20):  # a cell that is run before the kernel is ready may stay as it is
            page.locator(".jp-CodeCell .jp-InputArea-editor").first.click()
            page.keyboard.press("Control+Enter")
            with suppress(TimeoutError):
                view.first.wait_for(timeout=5000)
                break
        is_readable(view.first, theme)


@pytest.mark.skipif(find_spec("jupyterlab") is None, reason="no JupyterLab: the picture was NOT tested in one")
def test_a_notebook_that_is_not_trusted_shows_a_picture(page: Page, theme: str, tmp_path: Path) -> None:
    view = xformer.attention_view(xformer.read("checkpoints/reverse", "3 7 12 9"), layer=2)
    book = json.loads(notebook(CODE))
    data = {"text/html": view._page(), "text/plain": "AttentionView"}
    book["cells"][0]["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": data}]
    (tmp_path / "view.ipynb").write_text(json.dumps(book))  # written by somebody else
    port = free_port()
    with running(jupyter("jupyterlab", port, theme, tmp_path), port, tmp_path, "/api") as address:
        page.goto(f"{address}/lab/tree/view.ipynb?reset")
        output = page.locator(".jp-Notebook .jp-OutputArea").first
        picture = output.locator('img[alt^="All heads"]')
        expect(picture).to_be_visible()
        assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [4 * 68, 4 * 68]
        assert output.locator("iframe").count() == 0
