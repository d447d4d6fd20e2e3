"""Helpers shared by the tests of the comparison functions: random variants of prime sizes, and small external models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from tests.training.tiny import random_model, tiny_task
from xformer.adapters import TaskModel
from xformer.adapters.any_module import AnyModule
from xformer.analysis.comparison import Variant
from xformer.edits import Edit
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.tasks import Task

CHECKPOINTS = Path(xformer.__file__).parents[1] / "checkpoints"
SOURCE = [3, 7, 1, 4, 2]


def of_family(name: str, text: str = "the cat sat on the mat", to: Any = torch.float32, **options: Any) -> Reading:
    """Run a tiny random model of a Hugging Face family on a text; an encoder-decoder also gets a target."""
    typed = f"{text} >> a bird then flew" if name in ("T5", "BART", "Marian") else text
    return xformer.read(FAMILIES[name].make().to(to), typed, tokenizer=tokenizer(), **options)


@cache
def torch_encoder() -> torch.nn.Module:
    """Return torch's own encoder, with random weights."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def module_reading(inputs: torch.Tensor) -> Reading:
    """Read `torch_encoder` as a module that is called only with these inputs [1, pos, 12]."""
    return xformer.read(AnyModule.open(torch_encoder(), inputs), None)


def variant_of(name: str, model: Transformer, task: Task, edits: Sequence[Edit] = (), **options: Any) -> Variant:
    """Build a variant from its parts."""
    return Variant(TaskModel(model, task, name), tuple(edits), **options)


def random_variant(name: str, architecture: str, *, seed: int = 0, model: dict[str, Any] | None = None, **options: Any):
    """Build a variant with random weights for a tiny reversal task; most of its answers are wrong."""
    task = tiny_task(architecture)
    special = task.vocabulary.special
    sizes = {"vocab_size": len(task.vocabulary), "start_token": special.start, "end_token": special.end, "max_len": 17}
    return variant_of(name, random_model(architecture, seed=seed, **(sizes | (model or {}))), task, **options)


def shipped(name: str, called: str = "", **options: Any) -> Variant:
    checkpoint = xformer.load(CHECKPOINTS / name)
    assert checkpoint.task is not None
    return variant_of(called or name, checkpoint.model, checkpoint.task, **options)
