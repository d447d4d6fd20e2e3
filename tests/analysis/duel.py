"""What the tests of the Compare screen's library share: random variants of prime sizes, and small models of other libraries."""

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
from xformer.edits import AnyEdit
from xformer.model import Transformer
from xformer.reading import Reading
from xformer.tasks import Task

CHECKPOINTS = Path(xformer.__file__).parents[1] / "checkpoints"
SOURCE = [3, 7, 1, 4, 2]


def of_family(
    name: str, text: str = "the cat sat on the mat", to: torch.dtype = torch.float32, **options: Any
) -> Reading:
    """A tiny random model of a Hugging Face family, read on a text; one of two stacks reads a target as well."""
    typed = f"{text} >> a bird then flew" if name in ("T5", "BART", "Marian") else text
    return xformer.read(FAMILIES[name].make().to(to), typed, tokenizer=tokenizer(), **options)


@cache
def torch_encoder() -> torch.nn.Module:
    """An encoder of torch's own, with random weights."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def module_reading(inputs: torch.Tensor) -> Reading:
    """That encoder as a module that is only ever called with these inputs [1, pos, 12]."""
    return xformer.read(AnyModule.open(torch_encoder(), inputs), None)


def variant_of(name: str, model: Transformer, task: Task, edits: Sequence[AnyEdit] = (), **options: Any) -> Variant:
    """A variant out of its parts."""
    return Variant(TaskModel(model, task, name), tuple(edits), **options)


def random_variant(name: str, architecture: str, *, seed: int = 0, model: dict[str, Any] | None = None, **options: Any):
    """A model of random weights as a variant of a tiny reversal; it is wrong most of the time."""
    task = tiny_task(architecture)
    special = task.vocabulary.special
    sizes = {"vocab_size": len(task.vocabulary), "start_token": special.start, "end_token": special.end, "max_len": 17}
    return variant_of(name, random_model(architecture, seed=seed, **(sizes | (model or {}))), task, **options)


def shipped(name: str, called: str = "", **options: Any) -> Variant:
    checkpoint = xformer.load(CHECKPOINTS / name)
    assert checkpoint.task is not None
    return variant_of(called or name, checkpoint.model, checkpoint.task, **options)
