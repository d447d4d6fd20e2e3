"""Trained external models for the tests that need one; without them a skip that says how to fetch them.

    model = real_model("SmolLM2-135M-Instruct")     # the folder; `make models` fetches it into models/

XFORMER_REAL_MODELS names another folder than models/. No test fetches anything by itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xformer.model_files import PACKAGES, inspect

ROOT = Path(__file__).parents[1]


def real_model(name: str) -> Path:
    """The folder of a model that a package carries, as it was fetched."""
    assert name in PACKAGES, f"{name} is none of {', '.join(PACKAGES)}"
    folder = Path(os.environ.get("XFORMER_REAL_MODELS") or ROOT / "models") / name
    if not folder.exists():
        pytest.skip(f"{folder} is not there: `make models` fetches it ({PACKAGES[name].n_bytes / 1e6:.0f} MB)")
    inspect(folder)  # what is there and broken fails
    return folder
