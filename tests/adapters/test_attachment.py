"""A read leaves the caller's model as it was: modes, hooks, attributes, gradients, settings, and what it computes."""

from __future__ import annotations

import copy
import gc
import io
import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
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
from xformer.reading import Reading

ROUNDING = 1e-5
"""What float32 may differ by in two layers whose sums are taken in another order."""
HALF = 0.5
"""The dropout of every model here, so that a run in train mode cannot pass for one in eval mode."""


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference between two tensors of one shape."""
    assert one.shape == other.shape
    return (one - other).detach().abs().max().item()


class Same:
    """An object that equals itself alone."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} at {id(self.value):x}>"


def fingerprint(
    model: nn.Module, forward: Callable[[nn.Module], Any] | None = None, *, copies: bool = True
) -> dict[str, Any]:
    """Everything of a model that its owner can observe, and of the process what a read could disturb.

    Args:
        forward: Calls the model. Its outputs in train mode under a fixed seed become part of the fingerprint.
        copies: Whether to try `copy.deepcopy` and `torch.save` too.

    Returns:
        A value for each thing that can be observed, which equals the one of an unchanged model.
    """
    seen: dict[str, Any] = {}
    if forward is not None:
        seen["outputs in train mode"] = _outputs_in_train_mode(model, forward)
    if copies:
        seen["copy.deepcopy"] = _outcome(lambda: copy.deepcopy(model))
        seen["torch.save"] = _outcome(lambda: torch.save(model, io.BytesIO()))
    for path, module in model.named_modules():
        seen[f"{path}: class"] = Same(type(module)), Same(type(module).forward)
        seen[f"{path}: names of attributes"] = tuple(vars(module))
        for name, value in vars(module).items():
            seen[f"{path}: {name}"] = _state(value, set())
    seen["random numbers"] = torch.get_rng_state().numpy().tobytes()
    seen["gradients"] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    seen["default type"] = torch.get_default_dtype()
    functions = (torch.softmax, F.softmax, F.scaled_dot_product_attention, F.multi_head_attention_forward)
    seen["functions"] = tuple(Same(function) for function in functions)
    for name, value in vars(nn.modules.module).items():
        if name.startswith("_global_"):
            seen[f"all modules: {name}"] = _state(value, set())
    return seen


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints."""
    return [name for name in {**before, **after} if name not in before or before[name] != after.get(name)]


def _state(value: Any, around: set[int]) -> Any:
    """A value as it is now: itself, its contents where it holds others, the numbers of a tensor."""
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.Size):
        return type(value), value
    if id(value) in around:
        return Same(value)
    around = {*around, id(value)}
    if isinstance(value, Tensor):
        grad = _state(value.grad, around) if value.is_leaf else None
        return Same(value), _numbers(value), value.requires_grad, grad, _state(vars(value), around)
    if isinstance(value, Mapping):
        return Same(value), [(_state(key, around), _state(item, around)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return Same(value), [_state(item, around) for item in value]
    if isinstance(value, set | frozenset):
        return Same(value), frozenset(map(id, value))
    if type(value).__module__.startswith("transformers") and type(value).__name__.endswith("Config"):
        return Same(value), _state(vars(value), around)
    return Same(value)


def _numbers(tensor: Tensor) -> tuple[Any, ...]:
    numbers = tensor.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tensor.shape, numbers


def _outputs_in_train_mode(model: nn.Module, forward: Callable[[nn.Module], Any]) -> list[Any]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = True
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(5)
            return [_numbers(value) for value in _tensors(forward(model))]
    finally:
        for module, mode in modes:
            module.training = mode


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | list | tuple):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(value)


def _outcome(attempt: Callable[[], object]) -> str:
    """ "works", or the kind of the error."""
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "works"


@contextmanager
def left_as_found(
    model: nn.Module, forward: Callable[[nn.Module], Any] | None = None, *, copies: bool = True
) -> Iterator[None]:
    """Fail where the body changed the model."""
    before = fingerprint(model, forward, copies=copies)
    yield
    differences = changed(before, fingerprint(model, forward, copies=copies))
    assert not differences, "\n".join(differences)


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each behind its norm and before its dropout."""

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
        """What a subclass does with the weights of its attention beside using them."""
        return weights


class Written(nn.Module):
    """A model written by hand: two blocks under a table of tokens and one of places."""

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
    """A model and something that it reads."""

    make: Callable[[], Any]
    inputs: Any
    """As `xformer.read` takes them."""
    arguments: tuple[Tensor, ...] | dict[str, Tensor]
    """The same as the model itself takes them."""
    block: str
    """The path of the first block."""
    site: str
    """What the library calls the first attention layer."""
    wrong: Any
    """What the model cannot read."""
    has_tokenizer: bool = False

    def read(self, model: nn.Module, inputs: Any = None, **options: Any) -> Reading:
        given = self.inputs if inputs is None else inputs
        return xformer.read(model, given, tokenizer=tokenizer() if self.has_tokenizer else None, **options)

    def forward(self, model: nn.Module) -> Any:
        arguments = self.arguments
        return model(**arguments) if isinstance(arguments, dict) else model(*arguments)

    def logits(self, model: nn.Module) -> Tensor:
        output = self.forward(model)
        return output if isinstance(output, Tensor) else output.logits

    @torch.no_grad()
    def expected(self, model: nn.Module) -> Tensor:
        """The outputs of a copy of the model in eval mode."""
        return self.logits(copy.deepcopy(model).eval())


def _family(name: str, **dropout: float) -> Callable[[], Any]:
    family = FAMILIES[name]
    return replace(family, sizes={**family.sizes, **dropout}).make


def _seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return make().eval()

    return made


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(15, 3, 37, dropout=HALF, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


IDS = torch.tensor([[5, 6, 7, 8, 5, 9, 11]])
BERT_INPUTS = {
    "input_ids": IDS,
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 0]]),
    "token_type_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1]]),
}
FEATURES = torch.randn(1, 7, 15, generator=torch.Generator().manual_seed(2))
CASES = {
    "GPT-2": Case(
        _family("GPT-2", resid_pdrop=HALF, embd_pdrop=HALF, attn_pdrop=HALF), "the cat sat on the mat saw",
        {"input_ids": IDS}, "transformer.h.0", "decoder.0.attn", "", has_tokenizer=True,
    ),
    "Llama": Case(
        _family("Llama", attention_dropout=HALF), IDS, {"input_ids": IDS}, "model.layers.0", "decoder.0.attn",
        torch.tensor([[5, 97]]), has_tokenizer=True,
    ),
    "BERT": Case(
        _family("BERT", hidden_dropout_prob=HALF, attention_probs_dropout_prob=HALF), BERT_INPUTS, BERT_INPUTS,
        "bert.encoder.layer.0", "encoder.0.attn", {"input_ids": torch.tensor([[5, 97]])},
    ),
    "written": Case(
        _seeded(Written), IDS, (IDS,), "blocks.0", "decoder.0.attn", torch.tensor([[5, 31]])
    ),
    "torch": Case(
        _seeded(_encoder), FEATURES, (FEATURES,), "layers.0", "encoder.0.attn", torch.randn(1, 7, 11)
    ),
}  # fmt: skip
HUGGING_FACE = ("GPT-2", "Llama", "BERT")
REFUSED = (XformerError, IndexError, RuntimeError, AssertionError)
"""What a read raises for inputs that a model cannot take: a sentence of the library, or the model's own error."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(params=HUGGING_FACE)
def hugging_face(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


# The fingerprint itself


CHANGES: dict[str, Callable[[Any], object]] = {
    "mode": lambda model: model.transformer.h[1].attn.train(),
    "implementation": lambda model: model.set_attn_implementation("sdpa"),
    "hook": lambda model: model.transformer.register_forward_hook(lambda *args: None),
    "attribute": lambda model: setattr(model.transformer, "attn", None),
    "attribute of the configuration": lambda model: setattr(model.config, "note", 3),
    "weight": lambda model: model.transformer.wpe.weight.data.mul_(1 + 1e-6),
    "gradient": lambda model: setattr(model.transformer.wpe.weight, "grad", torch.zeros(64, 24)),
    "frozen": lambda model: model.transformer.wpe.requires_grad_(False),
    "forward": lambda model: setattr(model, "forward", model.forward),
    "random numbers": lambda model: torch.rand(1),
    "copies": lambda model: setattr(model, "lock", threading.Lock()),
    "dropout": lambda model: setattr(model.transformer.drop, "p", 0.4),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_sees_each_change(change: str) -> None:
    case = CASES["GPT-2"]
    model = case.make()
    before = fingerprint(model, case.forward)
    CHANGES[change](model)
    assert changed(before, fingerprint(model, case.forward))


# Success and failure


@pytest.mark.parametrize("is_training", [False, True])
def test_a_read_leaves_the_model_as_it_was(case: Case, is_training: bool) -> None:
    """And knows no dropout. In train mode one block is not, a weight is frozen, and an earlier pass has left gradients."""
    model = case.make().train(is_training)
    if is_training:
        next(iter(model.parameters())).requires_grad_(False)
        case.logits(model).square().mean().backward()
        assert any(weight.grad is not None and bool(weight.grad.any()) for weight in model.parameters())
        model.get_submodule(case.block).eval()
    wanted = case.expected(model)
    assert (distance(case.logits(model), wanted) > ROUNDING) == is_training
    with left_as_found(model, case.forward):
        one, other = case.read(model), case.read(model)
        case.read(model, edits=[edits.ablate_head(case.site, 1)])
    assert torch.equal(one.logits, other.logits)
    assert distance(one.logits, wanted) <= ROUNDING


def test_a_failed_read_leaves_the_model_as_it_was(case: Case) -> None:
    model = case.make().train()
    for _ in range(2):
        with left_as_found(model, case.forward):
            with pytest.raises(EditError):
                case.read(model, edits=[edits.ablate_head("decoder.7.attn", 0)])
            with pytest.raises(REFUSED):
                case.read(model, case.wrong)
        case.read(model)  # and after a read that did not fail


def test_a_model_that_fails_halfway_is_left_as_it_was(case: Case) -> None:
    def fail(module: nn.Module, args: Any, output: Any) -> None:
        raise ZeroDivisionError("on purpose")

    model = case.make().train()
    handle = model.get_submodule(case.block).register_forward_hook(fail)
    with left_as_found(model), pytest.raises((ZeroDivisionError, InputError)):
        case.read(model)
    handle.remove()
    assert distance(case.read(model).logits, case.expected(model)) <= ROUNDING


def _without_attention() -> nn.Module:
    from transformers import FNetConfig, FNetForMaskedLM

    sizes = {"vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 44}
    return FNetForMaskedLM(FNetConfig(**sizes, hidden_dropout_prob=HALF))


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(HALF)), torch.randn(1, 3, 5)),
        (_without_attention, IDS),
    ],
)
def test_a_model_without_attention_is_left_as_it_was(make: Callable[[], nn.Module], inputs: Tensor) -> None:
    model = make()
    with left_as_found(model, lambda one: one(inputs)), pytest.raises(InputError):
        xformer.read(model, inputs)


# Hooks of the caller


def test_the_callers_hooks_stay_and_fire(case: Case) -> None:
    fired: list[str] = []

    def noting(name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: fired.append(name)

    model = case.make().train()
    for path, module in model.named_modules():
        module.register_forward_pre_hook(noting(f"before {path}"))
        module.register_forward_hook(noting(f"after {path}"))
    block = model.get_submodule(case.block)
    block.register_forward_pre_hook(noting("first"), prepend=True, with_kwargs=True)
    block.register_forward_hook(noting("always"), always_call=True, with_kwargs=True)
    _second(model, case).register_full_backward_hook(noting("backward"))

    def fired_by_a_step() -> list[str]:
        fired.clear()
        case.logits(model).sum().backward()
        model.zero_grad()
        return list(fired)

    wanted = fired_by_a_step()
    assert {"first", "always", "backward"} <= set(wanted)
    with left_as_found(model, case.forward):
        case.read(model)
    assert fired_by_a_step() == wanted


def _second(model: nn.Module, case: Case) -> nn.Module:
    """Its second block, whose input needs a gradient."""
    return model.get_submodule(f"{case.block.removesuffix('0')}1")


def _add(module: nn.Module, args: Any, output: Any) -> Any:
    """A hook that moves what a block gives."""
    first = output if isinstance(output, Tensor) else output[0]
    moved = first + torch.linspace(-1, 1, first.shape[-1])
    return moved if isinstance(output, Tensor) else (moved, *output[1:])


def test_a_hook_that_changes_an_output_is_part_of_what_is_read(case: Case) -> None:
    model, seen = case.make(), []
    plain = case.expected(model)
    model.get_submodule(case.block).register_forward_hook(_add)
    _second(model, case).register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    wanted = case.expected(model)
    assert distance(plain, wanted) > 0.1
    with left_as_found(model, case.forward):
        reading = case.read(model)
    assert distance(reading.logits, wanted) <= ROUNDING
    assert distance(reading[f"{case.site[:7]}.1.resid_pre"], seen[0]) <= ROUNDING


def test_a_read_sees_what_changed_since_the_last_one(case: Case) -> None:
    model = case.make()
    readings = [case.read(model).logits]
    model.get_submodule(case.block).register_forward_hook(_add)
    readings.append(case.read(model).logits)
    assert distance(readings[-1], case.expected(model)) <= ROUNDING
    for weight in model.parameters():
        weight.data.mul_(1.5)
    readings.append(case.read(model).logits)
    assert distance(readings[-1], case.expected(model)) <= ROUNDING
    other = copy.deepcopy(model.get_submodule(case.block))
    for weight in other.parameters():
        weight.data.mul_(0.5)
    model.set_submodule(case.block, other)
    readings.append(case.read(model).logits)
    assert distance(readings[-1], case.expected(model)) <= ROUNDING
    assert min(distance(one, other) for one, other in pairwise(readings)) > 1e-2


def test_a_block_with_a_configuration_of_its_own_is_read_too(hugging_face: Case) -> None:
    """A copied block has a copy of the configuration, in which the attention implementation must be set as well."""
    model = hugging_face.make()
    model.set_submodule(hugging_face.block, copy.deepcopy(model.get_submodule(hugging_face.block)))
    with left_as_found(model, hugging_face.forward):
        reading = hugging_face.read(model)
    assert len(reading.attention) == 2
    assert distance(reading.logits, hugging_face.expected(model)) <= ROUNDING


def test_an_attention_implementation_that_is_set_between_two_reads_stays(hugging_face: Case) -> None:
    model, readings = hugging_face.make(), []
    for implementation in ("eager", "sdpa", "eager"):
        model.set_attn_implementation(implementation)
        with left_as_found(model, hugging_face.forward):
            readings.append(hugging_face.read(model))
        assert model.config._attn_implementation == implementation
    for before, after in pairwise(readings):
        assert distance(before.logits, after.logits) <= ROUNDING
        assert distance(before[f"{hugging_face.site}.pattern"], after[f"{hugging_face.site}.pattern"]) <= ROUNDING


# Threads


@pytest.mark.parametrize("name", ["GPT-2", "BERT", "written"])
def test_four_threads_open_one_fresh_model_at_once(name: str) -> None:
    case = CASES[name]
    wanted = case.expected(case.make())
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            model, together = case.make().train(), threading.Barrier(4)
            before = fingerprint(model, copies=False)

            def read(model: nn.Module = model, together: threading.Barrier = together) -> Tensor:
                together.wait(30)
                return case.read(model, keep=("logits",)).logits

            found = [job.result(60) for job in [pool.submit(read) for _ in range(4)]]
            assert all(distance(logits, wanted) <= ROUNDING for logits in found)
            assert changed(before, fingerprint(model, copies=False)) == []


@torch.no_grad()
@pytest.mark.parametrize("name", ["GPT-2", "BERT", "written", "torch"])
def test_edits_of_four_threads_do_not_mix_and_a_pass_beside_them_is_the_stock_models(name: str) -> None:
    case = CASES[name]
    model = case.make()
    wanted, beside, together = case.expected(model), [], threading.Barrier(4)
    changes = [[], *([edits.ablate_head(case.site, head)] for head in range(3))]
    alone = [case.read(case.make(), edits=change, keep=("logits",)).logits for change in changes]
    assert len({round(float(logits[0, -1, 0]), 3) for logits in alone}) == len(alone)

    def read(index: int) -> list[Tensor]:
        together.wait(30)
        return [case.read(model, edits=changes[index], keep=("logits",)).logits for _ in range(5)]

    with left_as_found(model, case.forward), ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(read, index) for index in range(4)]
        while not all(job.done() for job in jobs):
            beside.append(distance(case.logits(model), wanted))
    assert max(beside) <= ROUNDING
    for job, expected in zip(jobs, alone, strict=True):
        assert all(distance(logits, expected) <= ROUNDING for logits in job.result())


def test_random_numbers_of_another_thread_do_not_repeat() -> None:
    """A read that seeds the generator of the process would give a training beside it the same dropout again and again."""
    case = CASES["written"]
    model, drawn = case.make(), []
    with ThreadPoolExecutor(1) as pool, torch.random.fork_rng():
        reads = pool.submit(lambda: [case.read(model, keep=("logits",)) for _ in range(10)])
        while not reads.done():
            drawn.append(tuple(torch.rand(3).tolist()))
        reads.result()
    assert len(set(drawn)) == len(drawn) > 0


# Training goes on


@pytest.mark.parametrize(
    ("name", "around"),
    [*((name, torch.inference_mode) for name in CASES), ("GPT-2", nullcontext), ("BERT", torch.no_grad)],
)
def test_an_optimiser_step_after_a_read_is_the_step_of_a_model_never_read(
    name: str, around: Callable[[], AbstractContextManager[object]]
) -> None:
    case = CASES[name]
    model = case.make().train()
    twin = copy.deepcopy(model)

    def step(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            case.logits(model).square().mean().backward()
        optimiser.step()

    ours, theirs = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin))
    with around():
        case.read(model, edits=[edits.ablate_head(case.site, 1)])
    step(model, ours)
    step(twin, theirs)
    for (path, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other), path
    untouched = case.make().state_dict()
    assert any(not torch.equal(weight, untouched[path]) for path, weight in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "dtype", "implementation", "share"),
    [
        ("Llama", torch.float64, "sdpa", 1e-6),  # it takes its softmax in float32
        ("GPT-2", torch.bfloat16, "eager", 8 * torch.finfo(torch.bfloat16).eps),
        ("BERT", torch.float16, "sdpa", 8 * torch.finfo(torch.float16).eps),
    ],
)
def test_other_number_types_are_read_as_they_are(
    name: str, dtype: torch.dtype, implementation: str, share: float
) -> None:
    case = CASES[name]
    model = case.make().to(dtype)
    model.set_attn_implementation(implementation)
    wanted = case.expected(model)
    with left_as_found(model, case.forward):
        reading = case.read(model)
    assert reading.logits.dtype == dtype
    assert distance(reading.logits, wanted) <= share * float(wanted.abs().max())


# What a model does to itself while it runs


class Stores(Block):
    """Keeps the weights of its last run, as many examples do."""

    def noted(self, weights: Tensor) -> Tensor:
        self.attn = self._attn = weights
        return weights


class Appends(Block):
    """Keeps the weights of all its runs, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Tensor] = []
        self.by_length: defaultdict[int, list[Tensor]] = defaultdict(list)
        self.n_runs = 0

    def noted(self, weights: Tensor) -> Tensor:
        self.runs.append(weights)
        self.by_length[weights.shape[-1]].append(weights)
        self.n_runs += 1
        return weights


class Counts(Block):
    """Counts its runs in a buffer, as a batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n_runs", torch.zeros(()))

    def noted(self, weights: Tensor) -> Tensor:
        self.get_buffer("n_runs").add_(1)
        return weights


class Grows(Block):
    """Makes a buffer and a part in its first run, when it knows their sizes."""

    def noted(self, weights: Tensor) -> Tensor:
        if not hasattr(self, "same"):
            self.register_buffer("ones", torch.ones(weights.shape[-2:]), persistent=False)
            self.same = nn.Identity()
        return self.same(weights)


class Locked(Block):
    """Has attributes that can neither be copied nor saved; a read may not use them up either."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.names = threading.Lock(), (name for name in "abc")

    def noted(self, weights: Tensor) -> Tensor:
        with self.lock:
            return weights


@pytest.mark.parametrize("block", [Stores, Appends, Counts, Grows, Locked])
@pytest.mark.parametrize("has_run", [False, True])
def test_a_model_that_writes_to_itself_is_left_as_it_was(block: type[Block], has_run: bool) -> None:
    model = _seeded(lambda: Written(block))().train()
    if has_run:
        with torch.no_grad():
            model(IDS)
    with left_as_found(model):
        reading = CASES["written"].read(model)
        with pytest.raises(EditError):
            CASES["written"].read(model, edits=[edits.ablate_head("decoder.7.attn", 0)])
    plain = _seeded(Written)()
    assert distance(reading.logits, CASES["written"].expected(plain)) <= ROUNDING


# Nothing keeps it alive


def test_a_model_that_was_read_is_freed(case: Case) -> None:
    model = case.make()
    alive = [weakref.ref(model), *(weakref.ref(weight) for weight in model.parameters())]
    case.read(model)
    with suppress(EditError):
        case.read(model, edits=[edits.ablate_head("decoder.7.attn", 0)])
    del model
    gc.collect()
    assert [one for one in alive if one() is not None] == []


@pytest.mark.parametrize("name", ["GPT-2", "written"])
def test_a_model_at_the_address_of_a_former_one_is_read_by_itself(name: str) -> None:
    case = CASES[name]
    for factor in (1.0, 2.0):
        model = case.make()
        for weight in model.parameters():
            weight.data.mul_(factor)
        assert distance(case.read(model).logits, case.expected(model)) <= ROUNDING
        del model
        gc.collect()
