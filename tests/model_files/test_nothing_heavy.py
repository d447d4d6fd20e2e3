"""The start of the app and of every command imports nothing that only an external model needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import importlib, pkgutil, sys
import xformer, xformer.model_files, xformer.__main__, xformer.cli
for package in (xformer.model_files, xformer.cli):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    assert len([name for name in sys.modules if name.startswith(package.__name__)]) > 5
print(*sorted({"transformers", "tokenizers", "gguf", "huggingface_hub", "accelerate"} & set(sys.modules)))
from xformer.model_files import catalogue, fetch
print(list(catalogue({"XFORMER_MODELS": ""}).entries))
"""


def test_importing_all_of_it_imports_none_of_them() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "[]"]
