"""Models in the memory of a script, opened in a browser by the links that `xformer.show` prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit

pytestmark = pytest.mark.browser
SCRIPT = """
import pickle, sys, torch, transformers, xformer
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    def forward(self, x):
        return self.attention(x, x, x)[0]
class Kept: ...
threads = torch.get_num_threads()
config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
xformer.show(transformers.GPT2LMHeadModel(config), [4, 8, 15, 16], wait=False)
xformer.show(Own(), torch.randn(1, 5, 8), wait=False)
sys.stdin.readline()
assert torch.get_num_threads() == threads
pickle.dumps(Kept())  # the main module is still that of the script
print("as it was", flush=True)
sys.stdin.readline()  # serves on
"""
SHOWN = {"GPT2LMHeadModel": ["15", "16"], "Own": ["3", "4"]}
"""The titles of its models, each with some tokens of its input."""


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


def test_links_of_a_script_open_its_models(script: subprocess.Popen[str], visit: Callable[..., Visit]) -> None:
    assert script.stdin is not None
    assert script.stdout is not None
    links = [script.stdout.readline().removeprefix("Open ").strip() for _ in SHOWN]
    for link, (title, tokens) in zip(links, SHOWN.items(), strict=True):
        address, _, query = link.partition("/attention")
        page = visit(address, f"/attention{query}").page
        expect(page.locator(".av .grid")).to_be_visible()
        expect(page.get_by_role("combobox", name="Model")).to_have_value(title)
        for token in tokens:
            expect(page.locator(".av")).to_contain_text(token)
    script.stdin.write("\n")
    script.stdin.flush()
    assert "as it was\n" in iter(script.stdout.readline, "")
