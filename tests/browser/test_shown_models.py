"""A model in the memory of a script, opened in a browser by the link that `xformer.show` prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visiting

pytestmark = pytest.mark.browser
SCRIPT = """
import pickle, sys, torch, xformer
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    def forward(self, x):
        return self.attention(x, x, x)[0]
class Kept: ...
threads = torch.get_num_threads()
xformer.show(Own(), torch.randn(1, 5, 8), wait=False)
sys.stdin.readline()
assert torch.get_num_threads() == threads
pickle.dumps(Kept())  # __main__ is still the script
print("unchanged", flush=True)
sys.stdin.readline()  # keep serving
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    root = Path(__file__).parents[2]
    environment = {"PATH": "", "PYTHONPATH": str(root), "XFORMER_RUNS": str(tmp_path / "runs"), "HOME": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        yield process
        process.kill()


def test_the_link_of_a_script_opens_its_model(script: subprocess.Popen[str], visit: Visiting) -> None:
    assert script.stdin is not None
    assert script.stdout is not None
    address, _, query = script.stdout.readline().removeprefix("Open ").strip().partition("/attention")
    page = visit(address, f"/attention{query}").page
    expect(page.locator(".av .grid")).to_be_visible()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("Own")
    for token in ("3", "4"):
        expect(page.locator(".av")).to_contain_text(token)
    script.stdin.write("\n")
    script.stdin.flush()
    assert "unchanged\n" in iter(script.stdout.readline, "")
