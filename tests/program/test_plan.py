"""Attention in any layout: read from hand-written modules, and compared with the weights that they computed themselves."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xformer
from tests.program.odd import ODD, PAST_KEYS, Odd, Scripted, scripted
from tests.program.zoo import ZOO, Animal, H, future, two_streams, vectors
from xformer.adapters.any_module import AnyModule
from xformer.adapters.capture_backends import ChangedLayoutError
from xformer.errors import InputError

EVERY = ZOO | ODD
READ = {name: animal for name, animal in EVERY.items() if not animal.refused}
ONE_TEXT = ("unbatched", "tensordot")
FEWER_QUERIES = ("learned queries", "learned query", "learned query, sdpa", "class query")
PADDED = "ignore:enable_nested_tensor is True"
pytestmark = pytest.mark.filterwarnings(PADDED, "ignore:flex_attention called without torch.compile")


def made(animal: Animal) -> nn.Module:
    torch.manual_seed(0)
    return animal.build().eval()


def own_weights(animal: Animal, module: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """The weights that a module computes in a call of its own."""
    keepers = [part for part in module.modules() if isinstance(vars(part).get("kept"), list)]
    for part in keepers:
        part.kept.clear()
    with torch.no_grad():
        module(*inputs)
        kept = list(module.kept) or [module.weights(*inputs)]  # type: ignore[operator]
    return animal.own(kept)


@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, 5), (3, H), (1, H)])
@pytest.mark.parametrize("name", READ)
def test_patterns_are_the_modules_own_weights(name: str, batch: int, n: int) -> None:
    animal = READ[name]
    module, inputs = made(animal), animal.inputs(batch, n)
    reading = xformer.read(module, inputs)
    patterns = [reading[f"{one.path}.pattern"] for one in reading.attention]
    tolerance = 2e-2 if name == "autocast" else 1e-6
    for pattern, own in zip(patterns, own_weights(animal, module, inputs), strict=True):
        assert pattern.shape == own.shape
        assert torch.allclose(pattern, own, atol=tolerance)


SPREAD = ("relative bias", "relative keys", "alibi", "softcap", "two products", "relative shift")
"""The scores have further terms than q·k."""


@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, H)])
@pytest.mark.parametrize("name", READ)
def test_queries_keys_and_values_give_the_scores_and_the_output_of_each_head(name: str, batch: int, n: int) -> None:
    animal = READ[name]
    reading = xformer.read(made(animal), animal.inputs(batch, n))
    tolerance = 2e-2 if name == "autocast" else 1e-5
    for path in [one.path for one in reading.attention]:
        if f"{path}.q" not in reading:
            assert name in ("sink", "sink per query", "broadcast", "distances")
            continue
        q, k, v, scores = (reading[f"{path}.{what}"].float() for what in ("q", "k", "v", "scores"))
        z = reading[f"{path}.pattern"].float() @ v
        assert torch.allclose(z, reading[f"{path}.z"].float(), atol=tolerance)
        products, scores = (q @ k.mT)[scores > -1e4], scores[scores > -1e4]
        if name not in SPREAD:  # one factor for all, as 1/√d_head or a temperature
            factor = (scores @ products) / (products @ products)
            assert torch.allclose(factor * products, scores, atol=tolerance)


@pytest.mark.parametrize(
    "name", ["usual", "heads last", "flat", "grouped", "keys first, einsum", "one module per head"]
)
def test_replaced_values_reach_the_output_in_every_layout(name: str) -> None:
    """Values of one text for those of another: the weights stay, and the heads mix the new values."""
    animal = READ[name]
    module, inputs = made(animal), animal.inputs(2, 5)
    other = xformer.read(module, tuple(one.flip(0, 1) for one in inputs))
    path = other.attention[-1].path
    reading = xformer.read(module, inputs, edits=[xformer.edits.patch_from(other, f"{path}.v")])
    plain = xformer.read(module, inputs)
    assert torch.equal(reading[f"{path}.pattern"], plain[f"{path}.pattern"])
    assert torch.allclose(reading[f"{path}.z"], plain[f"{path}.pattern"] @ other[f"{path}.v"], atol=1e-6)
    assert not torch.allclose(reading.logits, plain.logits, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in READ if name not in (*ONE_TEXT, *FEWER_QUERIES, "one key")])
def test_ablating_a_head_in_a_batch_equals_ablating_it_alone(name: str) -> None:
    animal = READ[name]
    module, inputs = made(animal), animal.inputs(3, 5)
    axis = 1 if "positions first" in name else 0
    path = xformer.read(module, inputs).attention[-1].path
    head = xformer.read(module, inputs)[f"{path}.pattern"].shape[1] - 1
    edits = [xformer.edits.ablate_head(path, head)]
    together = xformer.read(module, inputs, edits=edits)
    assert not together[f"{path}.z"][:, head].any()
    assert not torch.allclose(together.logits, xformer.read(module, inputs).logits, atol=1e-4)
    for row in range(3):
        alone = tuple(one.narrow(axis, row, 1) for one in inputs)
        wanted = xformer.read(made(animal), alone, edits=edits).logits[0]
        assert torch.allclose(together.logits[row], wanted, atol=2e-2 if name == "autocast" else 1e-5)


@pytest.mark.parametrize("n", [5, H])
@pytest.mark.parametrize("name", [name for name, animal in EVERY.items() if animal.refused])
def test_what_cannot_be_shown_as_a_matrix_is_refused_with_its_reason(name: str, n: int) -> None:
    animal = EVERY[name]
    with pytest.raises(InputError) as error:
        xformer.read(made(animal), animal.inputs(3, n))
    reasons = [animal.refused, "between the heads of each position"] if name == "not split" else [animal.refused]
    assert any(reason in str(error.value) for reason in reasons)
    assert "Nothing that it computes" in str(error.value) or re.search(
        r"\(\w+\.py:\d+\)\.", str(error.value)
    )  # the line


@pytest.mark.parametrize(
    "name", ["heads last", "flat, heads first", "keys first, einsum", "one module per head", "sdpa, flat"]
)
def test_a_replaced_pattern_reaches_the_output_in_every_layout(name: str) -> None:
    """Uniform weights give the mean of the values, whatever the layout."""
    animal = READ[name]
    module, inputs = made(animal), animal.inputs(2, 5)
    reading = xformer.read(module, inputs)
    path = reading.attention[-1].path
    pattern = reading[f"{path}.pattern"]
    uniform = torch.full_like(pattern, 1 / pattern.shape[-1])
    edited = xformer.read(module, inputs, edits=[xformer.edits.replace_pattern(path, uniform)])
    z = edited[f"{path}.z"]  # [batch, head, query, d_head]
    assert torch.allclose(z, z[:, :, :1].expand_as(z), atol=1e-6)
    assert torch.allclose(edited[f"{path}.pattern"], uniform)


@pytest.mark.parametrize("name", ["exp, mask and sum", "softmax by tril", "masked by einsum"])
def test_masked_cells_get_no_weight_where_the_mask_follows_the_exponential(name: str) -> None:
    module, inputs = made(READ[name]), READ[name].inputs(1, 5)
    reading = xformer.read(module, inputs)
    path = reading.attention[0].path
    assert path == "decoder.0.attn"
    assert torch.equal(reading[f"{path}.mask"][0, 0], torch.ones(5, 5, dtype=torch.bool).tril())
    cut = xformer.read(module, inputs, edits=[xformer.edits.mask_edges(path, [(3, 1)])])[f"{path}.pattern"]
    assert not cut[0, :, 3, 1].any()
    assert torch.allclose(cut.sum(-1), reading[f"{path}.pattern"].sum(-1), atol=1e-6)


class OneText(nn.Module):
    """Token ids of one text, [pos]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(23, 12), ZOO["unbatched"].build()

    def forward(self, ids: Tensor) -> Tensor:
        assert ids.dim() == 1
        return self.attention(self.embed(ids))


class Column(OneText):
    """Token ids [pos, batch]; one text without a batch is broadcast into a square of texts."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ZOO["positions first"].build()

    def forward(self, ids: Tensor) -> Tensor:
        return self.attention(self.embed(ids) + torch.arange(len(ids)).sin()[:, None, None])


@pytest.mark.parametrize("ids", [[5, 6, 7, 8, 9], torch.tensor([5, 6, 7, 8, 9])])
@pytest.mark.parametrize(("build", "given"), [(OneText, (5,)), (Column, (5, 1)), (ZOO["gpt"].build, (1, 5))])
def test_the_ids_of_one_text_are_given_in_the_shape_that_the_module_takes(
    build: Callable[[], nn.Module], given: tuple[int, ...], ids: Any
) -> None:
    module = build().eval()
    pattern = xformer.read(module, ids)[f"{xformer.read(module, ids).attention[0].path}.pattern"]
    keeper = next(part for part in module.modules() if isinstance(vars(part).get("kept"), list))
    with torch.no_grad():
        module(torch.arange(5, 10).reshape(given))
    own = keeper.kept[-1] if keeper.kept[-1].dim() == 4 else keeper.kept[-1][None]
    assert torch.allclose(pattern, own, atol=1e-6)


@pytest.mark.parametrize("name", ["cached keys", "cached keys in buffers"])
def test_keys_that_a_module_keeps_are_left_as_they_were(name: str) -> None:
    module = made(READ[name])
    xformer.read(module, READ[name].inputs(3, 5))
    assert torch.equal(module.past_k, torch.full((4, 32, H, 4), 0.5))  # type: ignore[arg-type]


def test_heads_of_cached_keys_are_no_positions() -> None:
    module, inputs = made(PAST_KEYS), PAST_KEYS.inputs(3, 5)
    pattern = xformer.read(module, inputs)["encoder.0.attn.pattern"]
    assert torch.allclose(pattern, own_weights(PAST_KEYS, module, inputs)[0], atol=1e-6)


@pytest.mark.parametrize("last", [Scripted(), scripted(nn.Linear(12, 12))])
def test_a_step_that_cannot_be_observed_is_said_beside_the_attention_that_is_read(last: nn.Module) -> None:
    module = nn.Sequential(Odd(), last).eval()
    opened, plain = AnyModule.open(module, vectors(2, 5)), AnyModule.open(Odd().eval(), vectors(2, 5))
    assert len(opened.shape.attention) == 1
    assert "attention inside it is not in the reading" in str(opened.verification)
    assert "not in the reading" not in str(plain.verification)


class ChangedAlias(Odd):
    """A mask set in place in a view of all scores, with the same axes."""

    def pattern(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 2
        scores.detach().masked_fill_(future(q.shape[2]), -1e9)
        return scores.softmax(-1)


def test_scores_changed_through_a_view_with_the_same_axes_are_read() -> None:
    module, x = ChangedAlias().eval(), vectors(2, 5)[0]
    reading = xformer.read(module, x)
    with torch.no_grad():
        module(x)
    assert torch.allclose(reading["decoder.0.attn.pattern"], module.kept[-1], atol=1e-6)
    assert torch.equal(reading["decoder.0.attn.mask"][0, 0], ~future(5))


class DividedHeads(nn.Module):
    """Four heads, in two groups between the softmax and z."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o, self.kept = nn.Linear(12, 24), nn.Linear(8, 12), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.view(*x.shape[:2], 4, 2).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT).softmax(-1)
        self.kept = [weights, weights @ v]
        return self.o((weights.unflatten(1, (2, 2)) @ v.unflatten(1, (2, 2))).flatten(1, 2).transpose(1, 2).flatten(2))


def test_heads_that_are_divided_keep_their_order() -> None:
    module, x = DividedHeads().eval(), vectors(2, 5)[0]
    reading = xformer.read(module, x)
    with torch.no_grad():
        module(x)
    assert torch.allclose(reading["encoder.0.attn.pattern"], module.kept[0], atol=1e-6)
    assert torch.allclose(reading["encoder.0.attn.z"], module.kept[1], atol=1e-6)


class DataDependent(nn.Module):
    """Layers of which texts with a negative first entry skip one, or compute a product more."""

    def __init__(self, does: str) -> None:
        super().__init__()
        self.does, self.layers = does, nn.ModuleList(DividedHeads() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        is_other = bool((x[:, 0, 0] < 0).any())
        if self.does == "product":
            q = x @ torch.ones(12, 12) if is_other else x
            return x + (q @ x.mT).softmax(-1) @ x
        for layer in self.layers[:1] if self.does == "skip" and is_other else self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize(("does", "n_layers"), [("skip", (2, 1)), ("product", (1, 1))])
@pytest.mark.parametrize("first", [0, 1])
def test_data_that_changes_what_a_module_computes_opens_it_again(
    does: str, n_layers: tuple[int, int], first: int
) -> None:
    x = vectors(2, 5)[0].abs()
    texts = x, -x
    module = DataDependent(does).eval()
    assert len(xformer.read(module, texts[first]).attention) == n_layers[first]
    opened = AnyModule.open(module, texts[first])
    other = AnyModule.open(copy.deepcopy(module), texts[1 - first])
    with pytest.raises(ChangedLayoutError, match="since the model was opened"):
        opened.record(other.to_example())
    again, fresh = (xformer.read(one, texts[1 - first]) for one in (module, copy.deepcopy(module)))
    assert len(again.attention) == n_layers[1 - first]
    for site in again.attention:
        assert torch.equal(again[f"{site.path}.pattern"], fresh[f"{site.path}.pattern"])
    same = DataDependent("").eval()
    assert len(xformer.read(same, x).attention) == len(xformer.read(same, -x).attention) == 2


class AnotherEachTime(DataDependent):
    """Skips a layer in the runs whose numbers are given."""

    def __init__(self, *skipped: int) -> None:
        super().__init__("skip")
        self.skipped = skipped

    def forward(self, x: Tensor) -> Tensor:
        COUNT[0] += 1
        return super().forward(-x.abs() if COUNT[0] in self.skipped else x.abs())


COUNT = [0]


def test_a_module_that_computes_something_else_in_every_run_is_refused() -> None:
    x = vectors(2, 5)[0]
    COUNT[0] = 0
    xformer.read(AnotherEachTime(), x)
    n_runs, COUNT[0] = COUNT[0], 0
    with pytest.raises(InputError, match="changes from one call to the next"):
        xformer.read(AnotherEachTime(*range(n_runs, 10 * n_runs, 2)), x)


@pytest.mark.parametrize("name", ["after a loop", "masked by rows"])
def test_an_attention_whose_operations_change_with_the_length_is_read_at_every_length(name: str) -> None:
    animal = READ[name]
    module = made(animal)
    for n in (5, 7, 4, 1):
        inputs = animal.inputs(2, n)
        reading = xformer.read(module, inputs)
        (own,) = own_weights(animal, module, inputs)
        path = reading.attention[0].path
        assert torch.allclose(reading[f"{path}.pattern"], own, atol=1e-6)
        assert torch.allclose(reading[f"{path}.scores"].softmax(-1), own, atol=1e-6)


class AsDeepAsLong(nn.Module):
    """As many calls of one layer as there are positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = DividedHeads()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[1]):
            x = x + self.layer(x)
        return x


def test_a_module_whose_depth_is_its_length_is_read() -> None:
    module = AsDeepAsLong().eval()
    for n in (4, 6, 1, 4):
        reading = xformer.read(module, vectors(2, n)[0])
        assert len(reading.attention) == n
        with torch.no_grad():
            module(vectors(2, n)[0])
        last = reading[f"{reading.attention[-1].path}.pattern"]
        assert torch.allclose(last, module.layer.kept[0], atol=1e-6)


def test_two_inputs_of_one_attention_are_two_layers() -> None:
    animal = ZOO["siamese"]
    reading = xformer.read(made(animal), two_streams(2, 5))
    assert [reading[f"{one.path}.pattern"].shape for one in reading.attention] == [(2, 1, 5, 5), (2, 1, 7, 7)]


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel])
def test_a_wrapped_module_is_read_as_the_one_inside(wrap: Callable[[nn.Module], Any]) -> None:
    animal = ZOO["heads last"]
    module, inputs = made(animal), animal.inputs(1, 5)
    reading = xformer.read(wrap(module), inputs)
    assert torch.equal(reading["encoder.0.attn.pattern"], xformer.read(module, inputs)["encoder.0.attn.pattern"])
