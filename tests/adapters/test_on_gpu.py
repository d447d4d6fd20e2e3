"""A model gives the same readings and tables on a GPU as on the CPU."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
import torch

import xformer
import xformer.analysis
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer.errors import XformerError
from xformer.reading import Reading

pytestmark = [
    pytest.mark.cuda,
    # from PyTorch, at the first backward pass of a thread
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]


def own(name: str, device: str) -> Reading:
    checkpoint = xformer.load(f"checkpoints/{name}")
    return xformer.read(xformer.Checkpoint(checkpoint.model.to(device), checkpoint.task), "3 7 12 9")


def family(name: str, text: str, device: str) -> Reading:
    return xformer.read(FAMILIES[name].make().to(device), text, tokenizer=tokenizer())


READ: dict[str, Callable[[str], Reading]] = {
    "reverse-small": lambda device: own("reverse-small", device),
    "reverse-seq2seq": lambda device: own("reverse-seq2seq", device),
    "Llama": lambda device: family("Llama", "the cat sat on the mat", device),
    "BART": lambda device: family("BART", "the cat sat >> a bird", device),
}


def tables() -> Iterator[Callable[[Reading], Any]]:
    """Every function of `xformer.analysis` whose only required argument is a reading."""
    for module in pkgutil.walk_packages(xformer.analysis.__path__, "xformer.analysis."):
        for name, function in vars(importlib.import_module(module.name)).items():
            if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != module.name:
                continue
            first, *others = inspect.signature(function).parameters.values() or [None]
            if (
                first is not None
                and first.annotation == "Reading"
                and all(one.default is not one.empty for one in others)
            ):
                yield function


@pytest.mark.parametrize("name", READ)
def test_every_table_is_the_same_on_gpu_and_cpu(name: str) -> None:
    on_cpu, on_gpu = READ[name]("cpu"), READ[name]("cuda")
    for key, value in on_cpu.items():
        torch.testing.assert_close(on_gpu[key], value, rtol=1e-3, atol=2e-4)
    n_compared = 0
    for function in tables():
        try:
            wanted = function(on_cpu)
        except (XformerError, ValueError):  # not available for this model
            continue
        found = function(on_gpu)
        if isinstance(wanted, pd.DataFrame):
            pd.testing.assert_frame_equal(found, wanted, rtol=1e-2, atol=1e-3)
            n_compared += 1
    assert n_compared >= 12


def test_a_model_on_a_gpu_is_diagnosed() -> None:
    model = FAMILIES["Llama"].make().to("cuda")
    table = xformer.diagnose(model, "the cat sat on the mat", tokenizer=tokenizer()).table
    assert set(table.loc[table["verdict"] == "could not run", "check"]) == set()
    assert set(table.loc[table["verdict"] == "broken", "check"]) == {"tied_weights"}  # its weights are arbitrary
    assert {weight.device.type for weight in model.parameters()} == {"cuda"}
