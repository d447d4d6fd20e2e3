"""A read leaves the caller's model as it was: modes, hooks, attributes, gradients, settings and outputs."""

from __future__ import annotations

import copy
import gc
import math
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import tokenizer
from xformer import edits
from xformer.errors import EditError, InputError, XformerError
from xformer.program.module_state import cached
from xformer.reading import Reading

ROUNDING = 1e-5
"""The tolerance for two layers in float32 whose sums are taken in a different order."""
HALF = 0.5
"""The dropout of every model here, so that a run in train mode cannot be mistaken for one in eval mode."""


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference between two tensors of one shape."""
    assert one.shape == other.shape
    return (one - other).detach().abs().max().item()


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Everything that the model's owner can observe, and the process state that a read could disturb."""
    seen: dict[str, Any] = {}
    for path, module in model.named_modules():
        seen[f"{path}: class"] = type(module)
        seen[f"{path}: names of attributes"] = tuple(vars(module))
        for name, value in vars(module).items():
            seen[f"{path}: {name}"] = _state(value, set())
    seen["random numbers"] = torch.get_rng_state().numpy().tobytes()
    seen["gradients"] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    functions = (torch.softmax, F.softmax, F.scaled_dot_product_attention, F.multi_head_attention_forward)
    seen["functions"] = tuple(map(id, functions))
    for name, value in vars(nn.modules.module).items():
        if name.startswith("_global_"):
            seen[f"all modules: {name}"] = _state(value, set())
    return seen


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names that differ between two fingerprints."""
    return [name for name in {**before, **after} if name not in before or before[name] != after.get(name)]


def _state(value: Any, around: set[int]) -> Any:
    """The present state of a value: its identity, the contents of a container, the numbers of a tensor.

    `around` holds the ids of the enclosing values, so that cycles end.
    """
    if isinstance(value, bool | int | float | str):
        return value
    if id(value) in around:
        return id(value)
    around = {*around, id(value)}
    if isinstance(value, Tensor):
        grad = _state(value.grad, around) if value.is_leaf else None
        return id(value), _numbers(value), value.requires_grad, grad
    if isinstance(value, Mapping):
        return id(value), [(key, _state(item, around)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return id(value), [_state(item, around) for item in value]
    if isinstance(value, set):
        return id(value), frozenset(map(id, value))
    if type(value).__name__.endswith("Config"):
        return id(value), _state(vars(value), around)
    return id(value)


def _numbers(tensor: Tensor) -> tuple[Any, ...]:
    numbers = tensor.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tensor.shape, numbers


@contextmanager
def preserve_state(model: nn.Module, forward: Callable[[nn.Module], Tensor] | None = None) -> Iterator[None]:
    """Fail if the body changed the model, or the output of `forward` under a fixed seed."""

    def now() -> dict[str, Any]:
        outputs = {}
        if forward is not None:
            with torch.random.fork_rng(), torch.no_grad():
                torch.manual_seed(5)
                outputs["outputs"] = _numbers(forward(model))
        return outputs | fingerprint(model)

    before = now()
    yield
    assert not (differences := changed(before, now())), "\n".join(differences)


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each with a norm before it and dropout after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(15), nn.LayerNorm(15)
        self.qkv, self.back, self.drop = nn.Linear(15, 45), nn.Linear(15, 15), nn.Dropout(HALF)
        self.up, self.down = nn.Linear(15, 37), nn.Linear(37, 15)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = (part.unflatten(-1, (3, 5)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1) / math.sqrt(5)).masked_fill(torch.ones(n, n).triu(1) > 0, -math.inf)
        weights = self.drop(self.noted(scores.softmax(dim=-1)))
        x = x + self.drop(self.back((weights @ v).transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))

    def noted(self, weights: Tensor) -> Tensor:
        """A hook for subclasses that also store their attention weights."""
        return weights


class Written(nn.Module):
    """A hand-written model: embeddings of tokens and positions, and two blocks."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(31, 15), nn.Embedding(19, 15)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(15), nn.Linear(15, 31)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Case:
    """A model with a valid input."""

    make: Callable[[], Any]
    inputs: Tensor
    block: str
    """The path of the first block."""
    site: str
    """xformer's path of the first attention layer."""
    wrong: Any
    """An input that the model cannot read."""

    def read(self, model: nn.Module, inputs: Any = None, **options: Any) -> Reading:
        return xformer.read(model, self.inputs if inputs is None else inputs, tokenizer=tokenizer(), **options)

    def logits(self, model: nn.Module) -> Tensor:
        output = model(self.inputs)
        return output if isinstance(output, Tensor) else output.logits

    @torch.no_grad()
    def expected(self, model: nn.Module) -> Tensor:
        """The outputs of a copy of the model in eval mode."""
        return self.logits(copy.deepcopy(model).eval())


def _family(name: str, **dropout: float) -> Callable[[], Any]:
    family = FAMILIES[name]
    return replace(family, sizes={**family.sizes, **dropout}).make


def _written(block: Callable[[], nn.Module] = Block) -> nn.Module:
    torch.manual_seed(0)
    return Written(block)


def _encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(15, 3, 37, dropout=HALF, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


IDS = torch.tensor([[5, 6, 7, 8, 5, 9, 11]])
FEATURES = torch.randn(1, 7, 15, generator=torch.Generator().manual_seed(2))
GPT = _family("GPT-2", resid_pdrop=HALF, embd_pdrop=HALF, attn_pdrop=HALF)
CASES = {
    "GPT-2": Case(GPT, IDS, "transformer.h.0", "decoder.0.attn", torch.tensor([[5, 97]])),
    "written": Case(_written, IDS, "blocks.0", "decoder.0.attn", torch.tensor([[5, 31]])),
    "torch": Case(_encoder, FEATURES, "layers.0", "encoder.0.attn", torch.randn(1, 7, 11)),
}
"""Models captured by their attention function, at their softmax, and at PyTorch's own attention functions."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_a_read_leaves_the_model_as_it_was(case: Case) -> None:
    """And runs without dropout. One block is in eval mode, a weight is frozen, and an earlier pass has left gradients."""
    model = case.make().train()
    next(iter(model.parameters())).requires_grad_(False)
    case.logits(model).square().mean().backward()
    model.get_submodule(case.block).eval()
    wanted = case.expected(model)
    assert distance(case.logits(model), wanted) > ROUNDING
    with preserve_state(model, case.logits):
        one, other = case.read(model), case.read(model)
        case.read(model, edits=[edits.ablate_head(case.site, 1)])
    assert torch.equal(one.logits, other.logits)
    assert distance(one.logits, wanted) <= ROUNDING


def test_a_failed_read_leaves_the_model_as_it_was(case: Case) -> None:
    def fail(module: nn.Module, args: Any, output: Any) -> None:
        raise ZeroDivisionError("on purpose")

    model = case.make().train()
    with preserve_state(model, case.logits):
        with pytest.raises(EditError):
            case.read(model, edits=[edits.ablate_head("decoder.7.attn", 0)])
        with pytest.raises((XformerError, IndexError, RuntimeError, AssertionError)):
            case.read(model, case.wrong)
    handle = model.get_submodule(case.block).register_forward_hook(fail)
    with preserve_state(model), pytest.raises((ZeroDivisionError, InputError)):
        case.read(model)
    handle.remove()
    assert distance(case.read(model).logits, case.expected(model)) <= ROUNDING


def test_the_callers_hooks_stay_and_fire(case: Case) -> None:
    fired: list[str] = []

    def noting(name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: fired.append(name)

    model = case.make().train()
    for path, module in model.named_modules():
        module.register_forward_hook(noting(f"after {path}"))
    block = model.get_submodule(case.block)
    block.register_forward_pre_hook(noting("first"), prepend=True, with_kwargs=True)
    block.register_forward_hook(noting("always"), always_call=True, with_kwargs=True)
    second = model.get_submodule(f"{case.block.removesuffix('0')}1")  # a block whose input requires a gradient
    second.register_full_backward_hook(noting("backward"))

    def fired_by_a_step() -> list[str]:
        fired.clear()
        case.logits(model).sum().backward()
        model.zero_grad()
        return list(fired)

    wanted = fired_by_a_step()
    assert {"first", "always", "backward"} <= set(wanted)
    with preserve_state(model, case.logits):
        case.read(model)
    assert fired_by_a_step() == wanted


def _add(module: nn.Module, args: Any, output: Any) -> Any:
    """A hook that shifts a block's output."""
    first = output if isinstance(output, Tensor) else output[0]
    moved = first + torch.linspace(-1, 1, first.shape[-1])
    return moved if isinstance(output, Tensor) else (moved, *output[1:])


def test_a_read_sees_what_changed_since_the_last_one(case: Case) -> None:
    model = case.make()
    readings = [case.read(model).logits]
    model.get_submodule(case.block).register_forward_hook(_add)
    readings.append(case.read(model).logits)
    assert distance(readings[-1], case.expected(model)) <= ROUNDING
    other = copy.deepcopy(model.get_submodule(case.block))  # has its own copy of the configuration
    for weight in other.parameters():
        weight.data.mul_(0.5)
    model.set_submodule(case.block, other)
    readings.append(case.read(model).logits)
    assert distance(readings[-1], case.expected(model)) <= ROUNDING
    assert min(distance(one, other) for one, other in pairwise(readings)) > 1e-2


# Threads


def test_threads_that_open_one_model_at_once_share_the_result() -> None:
    model, begun = nn.Linear(2, 3), list[int]()

    def find() -> int:
        begun.append(1)
        time.sleep(0.05)  # the other threads arrive meanwhile
        return 7

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: cached(model, "layout", find), range(4))) == [7] * 4
    assert len(begun) == 1


@torch.no_grad()
def test_edits_of_concurrent_threads_do_not_mix_and_do_not_affect_other_passes(case: Case) -> None:
    model = case.make().eval()
    wanted, differences, together = case.expected(model), [], threading.Barrier(4)
    changes = [[], *([edits.ablate_head(case.site, head)] for head in range(3))]
    alone = [case.read(case.make(), edits=change, keep=("logits",)).logits for change in changes]
    assert len({round(float(logits[0, -1, 0]), 3) for logits in alone}) == len(alone)

    def read(index: int) -> list[Tensor]:
        together.wait(30)
        return [case.read(model, edits=changes[index], keep=("logits",)).logits for _ in range(3)]

    with preserve_state(model, case.logits), ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(read, index) for index in range(4)]
        while not all(job.done() for job in jobs):
            differences.append(distance(case.logits(model), wanted))
    assert max(differences) <= ROUNDING
    for job, expected in zip(jobs, alone, strict=True):
        assert all(distance(logits, expected) <= ROUNDING for logits in job.result())


def test_a_read_does_not_reset_the_random_numbers_of_another_thread() -> None:
    """A read that seeds the process's generator would give a concurrent training the same dropout masks again and again."""
    case = CASES["written"]
    model, drawn = case.make(), []
    with ThreadPoolExecutor(1) as pool, torch.random.fork_rng():
        reads = pool.submit(lambda: [case.read(model, keep=("logits",)) for _ in range(10)])
        while not reads.done():
            drawn.append(tuple(torch.rand(3).tolist()))
        reads.result()
    assert len(set(drawn)) == len(drawn) > 0


# Training afterwards


AROUND = {"GPT-2": nullcontext, "torch": torch.no_grad, "written": torch.inference_mode}


@pytest.mark.parametrize(("name", "around"), AROUND.items())
def test_an_optimizer_step_is_the_same_with_and_without_a_read_before_it(
    name: str, around: Callable[[], AbstractContextManager[object]]
) -> None:
    case = CASES[name]
    model = case.make().train()
    twin, before = copy.deepcopy(model), copy.deepcopy(model)
    with around():
        case.read(model, edits=[edits.ablate_head(case.site, 1)])
    for one in (model, twin):
        torch.manual_seed(3)
        case.logits(one).square().mean().backward()
        torch.optim.SGD(one.parameters(), lr=0.1).step()
    for (path, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other), path
    assert any(not torch.equal(one, other) for one, other in zip(model.parameters(), before.parameters(), strict=True))


# Models that modify themselves


class Busy(Block):
    """Stores the weights of its runs, counts runs, creates submodules in its first run, and cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Tensor] = []
        self.by_length: defaultdict[int, list[Tensor]] = defaultdict(list)
        self.n_runs, self.lock, self.names = 0, threading.Lock(), (name for name in "abc")
        self.register_buffer("counted", torch.zeros(()))

    def noted(self, weights: Tensor) -> Tensor:
        self.attn = self._attn = weights
        self.runs.append(weights)
        self.by_length[weights.shape[-1]].append(weights)
        self.n_runs += 1
        self.get_buffer("counted").add_(1)
        if not hasattr(self, "same"):
            self.register_buffer("ones", torch.ones(weights.shape[-2:]), persistent=False)
            self.same = nn.Identity()
        with self.lock:
            return self.same(weights)


@pytest.mark.parametrize("has_run", [False, True])
def test_a_model_that_writes_to_itself_is_left_as_it_was(has_run: bool) -> None:
    model, case = _written(Busy).train(), CASES["written"]
    if has_run:
        with torch.no_grad():
            model(IDS)
    with preserve_state(model):
        reading = case.read(model)
        with pytest.raises(EditError):
            case.read(model, edits=[edits.ablate_head("decoder.7.attn", 0)])
    assert distance(reading.logits, case.expected(_written())) <= ROUNDING


@pytest.fixture
def frozen() -> Iterator[None]:
    """Exclude existing objects from garbage collection, which would take half a second for all imported modules."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
def test_a_model_that_was_read_is_freed_and_its_address_can_be_reused(case: Case) -> None:
    for factor in (1.0, 2.0):
        model = case.make()
        for weight in model.parameters():
            weight.data.mul_(factor)
        assert distance(case.read(model).logits, case.expected(model)) <= ROUNDING
        with pytest.raises(EditError):
            case.read(model, edits=[edits.ablate_head("decoder.7.attn", 0)])
        alive = [weakref.ref(model), *(weakref.ref(weight) for weight in model.parameters())]
        del model, weight
        gc.collect()
        assert [one for one in alive if one() is not None] == []
