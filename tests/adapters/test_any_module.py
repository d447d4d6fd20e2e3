"""Reading arbitrary torch modules: PyTorch's own encoder, and hand-written models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.adapters.test_attachment import Block, Written
from xformer import edits
from xformer.analysis.attention_patterns import token_names
from xformer.errors import EditError, InputError, UnavailableError
from xformer.reading import rerun

CLOSE = {"rtol": 0.0, "atol": 1e-5}


@pytest.fixture
def gpt() -> Written:
    torch.manual_seed(0)
    return Written().eval()


def test_all_parts_of_a_hand_written_gpt_are_named(gpt: Written) -> None:
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    reading = xformer.read(gpt, ids)
    assert torch.allclose(reading.logits, gpt(ids), **CLOSE)
    paths = [site.path for site in reading.adapter.shape.layer_paths]
    assert paths == ["decoder.0.attn", "decoder.0.ffn", "decoder.1.attn", "decoder.1.ffn"]
    assert torch.allclose(reading["decoder.0.resid_pre"], gpt.tokens(ids) + gpt.places(torch.arange(7)), **CLOSE)
    assert torch.equal(reading["pos_embed"], gpt.places.weight[:7])
    assert reading["decoder.1.ffn.post"].shape == (1, 7, 37)
    pattern = reading["decoder.0.attn.pattern"]
    assert torch.allclose(pattern.sum(-1), torch.ones(1, 3, 7), **CLOSE)
    assert bool((pattern.triu(1) == 0).all())
    assert torch.allclose(reading.adapter.unembed(reading["decoder.1.resid_post"]), reading.logits, **CLOSE)
    other = xformer.read(gpt, torch.tensor([[4, 5, 6, 7]]))  # uses the cached layout
    assert (other.tokens, reading.tokens) == (tuple("4567"), tuple("3141592"))
    assert torch.allclose(other.logits, gpt(torch.tensor([[4, 5, 6, 7]])), **CLOSE)


def test_ablating_a_head_equals_zeroing_its_weights(gpt: Written) -> None:
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
    found = xformer.read(gpt, ids, edits=[edits.ablate_head("decoder.1.attn", 2)])
    gpt.get_parameter("blocks.1.back.weight").data[:, 10:] = 0
    assert torch.allclose(found.logits, gpt(ids), **CLOSE)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_pytorch_encoder_is_read(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(15, 3, 37, batch_first=True, norm_first=norm_first)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 7, 15)
    reading = xformer.read(module, x)
    assert torch.allclose(reading.logits, module(x), **CLOSE)
    first: Any = module.layers[0]
    seen = first.norm1(x) if norm_first else x
    wanted = first.self_attn(seen, seen, seen, need_weights=True, average_attn_weights=False)[1]
    assert torch.allclose(reading["encoder.0.attn.pattern"], wanted, **CLOSE)
    assert reading.tokens == tuple("0123456")


class Kernel(Block):
    """A block whose attention is computed by PyTorch's causal kernel."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (3, 5)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        return x + self.back(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def test_a_causal_kernel_is_computed_step_by_step() -> None:
    torch.manual_seed(0)
    model, ids = Written(Kernel).eval(), torch.tensor([[3, 1, 4, 1, 5]])
    reading = xformer.read(model, ids)
    assert torch.allclose(reading.logits, model(ids), **CLOSE)
    assert not reading["decoder.0.attn.pattern"].triu(1).any()
    assert xformer.diagnose(model, ids, checks=["causality", "mask_constant"]).ok


def test_multihead_attention_with_masks_and_separate_key_and_value_sizes() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(15, 3, kdim=11, vdim=13).eval()
    query, key, value = torch.randn(5, 2, 15), torch.randn(7, 2, 11), torch.randn(7, 2, 13)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    drawn = torch.rand(5, 7) > 0.8
    drawn[:, 0] = False
    inputs = {"query": query, "key": key, "value": value, "key_padding_mask": padding, "attn_mask": drawn}
    wanted, pattern = module(**inputs, average_attn_weights=False)
    reading = xformer.read(module, inputs)
    assert torch.allclose(reading.logits.transpose(0, 1), wanted, **CLOSE)  # the module has positions first
    site = reading.attention[0].path
    assert torch.allclose(reading[f"{site}.pattern"], pattern, **CLOSE)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize(("n_source", "n_target"), [(7, 5), (1, 1)])
def test_nn_transformer_has_two_stacks(n_source: int, n_target: int) -> None:
    torch.manual_seed(0)
    module = nn.Transformer(15, 3, 1, 1, 37, batch_first=True).eval()
    source, target = torch.randn(1, n_source, 15), torch.randn(1, n_target, 15)
    reading = xformer.read(module, (source, target))
    assert torch.allclose(reading.logits, module(source, target), **CLOSE)
    paths = [site.path for site in reading.attention]
    assert paths == ["encoder.0.attn", "decoder.0.self_attn", "decoder.0.cross_attn"]
    assert reading["decoder.0.cross_attn.pattern"].shape == (1, 3, n_target, n_source)


def test_a_module_without_attention_is_refused() -> None:
    with pytest.raises(InputError, match="Nothing that it computes is attention"):
        xformer.read(nn.Sequential(nn.Linear(5, 7), nn.ReLU()), torch.randn(1, 3, 5))


class Hidden(nn.Module):
    """A model whose softmax is spelled in a way that is not recognised, and that returns the weights with the output."""

    def __init__(self, *, sums_to: float = 1.0) -> None:
        super().__init__()
        self.tokens, self.qkv, self.back = nn.Embedding(31, 15), nn.Linear(15, 45), nn.Linear(15, 31)
        self.sums_to = sums_to

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (part.unflatten(-1, (3, 5)).transpose(1, 2) for part in self.qkv(self.tokens(ids)).chunk(3, dim=-1))
        weights = torch.einsum("bhqd,bhkd->bhqk", q, k).exp().tril()
        weights = 1 / (weights.sum(dim=-1, keepdim=True) / weights)
        z = torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2)
        return self.back(z), weights * self.sums_to


def test_attention_that_a_module_only_returns_can_be_read_but_not_edited() -> None:
    torch.manual_seed(0)
    module, inputs = Hidden(), {"ids": torch.arange(7)[None]}
    reading = xformer.read(module, inputs)
    assert "can only be read" in str(reading.adapter.verification)
    output, weights = module(**inputs)
    assert list(reading) == ["decoder.0.attn.mask", "decoder.0.attn.pattern", "logits"]
    assert torch.equal(reading["decoder.0.attn.mask"], torch.ones(1, 3, 7, 7).tril().bool())
    assert torch.equal(reading["decoder.0.attn.pattern"], weights)
    assert torch.equal(reading.logits, output)
    assert len(xformer.analysis.head_scores(reading)) == 3
    for change in (edits.ablate_head("decoder.0.attn", 1), edits.set_causal(False)):
        with pytest.raises(EditError, match="can be read, but nothing in a run can be"):
            xformer.read(module, inputs, edits=[change])
    with pytest.raises(EditError, match="can be read, but nothing in a run can be"):
        xformer.read(module, inputs, edits="ablate:decoder.0.attn.1")
    with pytest.raises(UnavailableError, match=r"no activation 'decoder\.0\.attn\.z'"):
        reading["decoder.0.attn.z"]


def test_a_returned_tensor_whose_rows_do_not_sum_to_1_is_not_attention() -> None:
    with pytest.raises(InputError, match="returns no attention weights either"):
        xformer.read(Hidden(sums_to=2.0), {"ids": torch.arange(7)[None]})


@dataclass
class Returned:
    """An output object of a hand-written model."""

    aux_loss: Tensor
    logits: Tensor


class Scores(NamedTuple):
    """A tuple with names; the vectors come before the scores."""

    hidden: Tensor
    lm_logits: Tensor


class Returning(nn.Module):
    """A hand-written model that returns what `wrap` makes of its logits and its last vectors."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.wrap = Written(), wrap

    def forward(self, ids: Tensor) -> Any:
        logits = self.inner(ids)
        return self.wrap(logits, logits[..., :15] * 2)


def _cache(x: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x[:, None] + 1, x[:, None] + 2)] * 2


WRAPPED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "loss, logits": lambda logits, x: (logits.mean(), logits),
    "logits, None": lambda logits, x: (logits, None),
    "loss per input": lambda logits, x: (logits.mean(dim=(1, 2)), logits),
    "loss and logits by name": lambda logits, x: {"loss": logits.mean(), "logits": logits},
    "other names": lambda logits, x: {"aux": logits.mean(dim=1), "y": logits},
    "vectors before logits by name": lambda logits, x: {"hidden": x, "out": {"logits": logits}},
    "a dataclass": lambda logits, x: Returned(logits.mean(), logits),
    "a named tuple": lambda logits, x: Scores(x, logits),
    "an object": lambda logits, x: SimpleNamespace(loss=logits.sum(), logits=logits),
    "nested": lambda logits, x: ((logits.sum(), {"pooled": x[:, 0]}), [logits]),
    "a cache first": lambda logits, x: (_cache(x), logits),
    "vectors of each layer": lambda logits, x: ([x, x], logits),
    "attention weights first": lambda logits, x: (x @ x.mT * 0 + torch.eye(x.shape[1]), logits),
    "predicted ids first": lambda logits, x: (logits.argmax(-1), logits),
    "vectors before logits": lambda logits, x: (x, logits),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_output_is_found_by_its_name_or_its_positions(name: str) -> None:
    model, ids = Returning(WRAPPED[name]).eval(), torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    reading = xformer.read(model, ids)
    assert torch.allclose(reading.logits, model.inner(ids), **CLOSE)
    assert xformer.diagnose(model, ids, checks=["causality"]).ok


@pytest.mark.parametrize(
    ("wrap", "found"),
    [
        (lambda logits, x: (x, x * 2), r"\[0\] \[1, 5, 15\], \[1\] \[1, 5, 15\]"),
        (lambda logits, x: {"start": x[..., 0], "end": x[..., 1]}, r"start \[1, 5\], end \[1, 5\]"),
        (lambda logits, x: logits.sum(), r"vectors or scores for its input, got a tensor \[\]"),
        (lambda logits, x: {"loss": logits.sum(), "aux": x.sum(dim=(1, 2))}, r"loss \[\], aux \[1\]"),
        (lambda logits, x: None, "got none"),
    ],
)
def test_outputs_between_which_nothing_decides_are_refused_by_name(
    wrap: Callable[[Tensor, Tensor], Any], found: str
) -> None:
    with pytest.raises(InputError, match=found):
        xformer.read(Returning(wrap).eval(), torch.tensor([[3, 1, 4, 1, 5]]))


class WithCache(nn.Module):
    """Attention that appends its keys to a list, and adds 1 to its input in place."""

    def forward(self, x: Tensor, past: list[Tensor]) -> Tensor:
        past.append(x.add_(1))
        keys = torch.cat(past, dim=1)
        return F.scaled_dot_product_attention(*(one[:, None] for one in (x, keys, keys)))[:, 0]


def test_inputs_that_a_module_changes_stay_the_callers() -> None:
    x, earlier = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    inputs = {"x": x.clone(), "past": [earlier.clone()]}
    reading = xformer.read(WithCache(), inputs)
    assert torch.equal(inputs["x"], x)
    assert len(inputs["past"]) == 1
    assert torch.equal(inputs["past"][0], earlier)
    wanted = WithCache()(x.clone(), [earlier.clone()])
    again = xformer.read(WithCache(), inputs)
    for one in (reading, again, rerun(reading, [])):
        assert torch.allclose(one.logits, wanted, atol=1e-6)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_row_of_infinite_scores_is_treated_as_by_pytorch(need_weights: bool) -> None:
    torch.manual_seed(0)
    x, mask = torch.randn(1, 4, 8), torch.zeros(4, 4)
    mask[2] = float("-inf")

    class Alone(nn.MultiheadAttention):
        """Returns its output without the weights."""

        def forward(self, *args: Any, **options: Any) -> Any:
            return super().forward(*args, **options)[0]

    attention = Alone(8, 2, batch_first=True)
    inputs = {"query": x, "key": x, "value": x, "attn_mask": mask, "need_weights": need_weights}
    with torch.no_grad():
        wanted = attention(**inputs)
    assert torch.allclose(xformer.read(attention, inputs).logits, wanted, atol=1e-6, equal_nan=True)


class WithRegisters(nn.Module):
    """A causal model of tokens that puts two register tokens before them, or after them, and keeps or drops their outputs."""

    def __init__(self, *, before: bool, keeps: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.keeps = before, keeps
        self.embed, self.registers = nn.Embedding(11, 15), nn.Parameter(torch.randn(1, 2, 15))
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(15, 11)

    def forward(self, ids: Tensor) -> Tensor:
        x, registers = self.embed(ids), self.registers.expand(len(ids), -1, -1)
        x = self.head(self.blocks(torch.cat([registers, x] if self.before else [x, registers], dim=1)))
        n = ids.shape[1]
        return x if self.keeps else x[:, 2:] if self.before else x[:, :n]


@pytest.mark.parametrize("before", [True, False])
def test_positions_that_a_module_adds_are_labelled(before: bool) -> None:
    ids, added = torch.tensor([[3, 1, 4, 1, 5]]), ("added 1", "added 2")
    reading = xformer.read(WithRegisters(before=before, keeps=True).eval(), ids)
    assert reading.tokens == ((*added, *"31415") if before else (*"31415", *added))
    assert reading.logits.shape[1] == len(reading.tokens) == reading[f"{reading.attention[0].path}.pattern"].shape[-1]
    dropped = xformer.read(WithRegisters(before=before, keeps=False).eval(), ids)
    assert dropped.tokens == reading.tokens
    with pytest.raises(UnavailableError, match="returns outputs at 5 positions, but its stream has 7"):
        xformer.analysis.lens(dropped)


class Towers(nn.Module):
    """Scores of patches and of tokens, each with its own attention; positions come from tables without a spare row."""

    def __init__(self, n: int, *, is_image_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.is_image_first, self.tokens, self.patches = is_image_first, nn.Embedding(31, 15), nn.Linear(8, 15)
        self.places = nn.Embedding(n, 15)
        self.towers = nn.ModuleList(nn.MultiheadAttention(15, 3, batch_first=True) for _ in range(2))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        patches, ids = (first, second) if self.is_image_first else (second, first)
        x, y = self.patches(patches), self.tokens(ids)
        x, y = (one + self.places(torch.arange(one.shape[1])) for one in (x, y))
        x, y = (tower(one, one, one)[0] for tower, one in zip(self.towers, (x, y), strict=True))
        return y @ x.mT


@pytest.mark.parametrize("is_image_first", [True, False])
def test_each_of_two_streams_of_one_length_has_its_own_labels(is_image_first: bool) -> None:
    ids, patches = torch.tensor([[3, 1, 4, 1, 5, 9]]), torch.randn(1, 6, 8)
    inputs = (patches, ids) if is_image_first else (ids, patches)
    model = Towers(6, is_image_first=is_image_first).eval()
    reading = xformer.read(model, inputs)
    labels = [token_names(reading, site, (6, 6)) for site in reading.attention]
    tokens, numbers = tuple("314159"), tuple("012345")
    assert labels == [(numbers, numbers), (tokens, tokens)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_pytorch_encoder_with_padding_is_read(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 37, batch_first=True, norm_first=norm_first)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x, padding = torch.randn(2, 6, 16), torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad():
        fast = module(x, src_key_padding_mask=padding)
    reading = xformer.read(module, {"src": x, "src_key_padding_mask": padding})
    assert torch.allclose(reading.logits[~padding], fast[~padding], **CLOSE)
    assert torch.allclose(reading.logits, module(x, src_key_padding_mask=padding), **CLOSE)  # with gradients
    note = "At padding, the fast path of nn.TransformerEncoder returns zeros"
    assert (note in str(reading.adapter.verification)) == bool((fast[padding] == 0).all())
    assert norm_first != bool((fast[padding] == 0).all())


class InPlace(nn.Module):
    """Two attentions, each added to the stream; `attend` computes z from q, k and v."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], *, writes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(11, 12), nn.Linear(12, 11)
        self.norms, self.inward, self.back = (
            nn.ModuleList(make() for _ in range(2))
            for make in (lambda: nn.LayerNorm(12), lambda: nn.Linear(12, 36), lambda: nn.Linear(12, 12))
        )
        self.attend, self.writes = attend, writes

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        for norm, inward, back in zip(self.norms, self.inward, self.back, strict=True):
            q, k, v = (one.unflatten(-1, (3, 4)).transpose(1, 2) for one in inward(norm(h)).chunk(3, dim=-1))
            added = back(self.attend(q, k, v).transpose(1, 2).flatten(2))
            if self.writes:
                h += added
            else:
                h = h + added
        return self.head(h)


def plainly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 2).softmax(-1) @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 2
    scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    scores /= scores.sum(-1, keepdim=True)
    return scores @ v


def freeing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    pattern = (q @ k.mT / 2).softmax(-1)
    z = pattern @ v
    pattern.zero_()
    return z


IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])


@pytest.mark.parametrize(("attend", "writes"), [(plainly, True), (by_hand, False), (freeing, True)])
def test_what_a_model_overwrites_later_is_read_as_it_was(attend: Any, writes: bool) -> None:
    expected, found = (xformer.read(model, IDS) for model in (InPlace(plainly), InPlace(attend, writes=writes)))
    assert set(expected) <= set(found)
    for name in expected:
        if attend is by_hand and name.endswith(".scores"):  # less the largest of the row, as in its numbers
            rows = expected[name] - expected[name].amax(-1, keepdim=True)
            assert any(torch.allclose(found[name], one, **CLOSE) for one in (rows, expected[name])), name
        else:
            assert torch.allclose(found[name], expected[name], **CLOSE), name


@pytest.mark.parametrize(
    "mask",
    [
        lambda scores, allowed: scores + (1.0 - allowed.float()) * -10_000.0,
        lambda scores, allowed: scores.masked_fill(~allowed, -1_000.0),
        lambda scores, allowed: scores.masked_fill(~allowed, -1e4) / 8,
    ],
)
def test_a_mask_of_any_size_is_seen(mask: Any) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = torch.ones(q.shape[-2], k.shape[-2]).tril().bool()
        return mask(q @ k.mT, allowed).softmax(-1) @ v

    reading = xformer.read(InPlace(attend), IDS)
    assert [site.stack for site in reading.attention] == ["decoder", "decoder"]
    assert torch.equal(reading["decoder.0.attn.mask"], torch.ones(2, 3, 5, 5).tril().bool())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_the_state_of_the_caller_is_left_as_it_was() -> None:
    class Noisy(InPlace):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + torch.randn(())

    noisy, scripted = Noisy(plainly), InPlace(plainly)
    before = torch.get_rng_state()
    xformer.read(noisy, IDS)
    assert torch.equal(torch.get_rng_state(), before)

    scripted.head = torch.jit.script(nn.Sequential(nn.Linear(12, 11), nn.Dropout(0.5)))
    scripted.train()
    xformer.read(scripted, IDS)
    assert all(part.training for part in scripted.modules())


def test_the_default_type_of_numbers_does_not_matter() -> None:
    model = InPlace(plainly)
    torch.set_default_dtype(torch.float64)
    try:
        found = xformer.read(model, IDS)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.allclose(found.logits, model(IDS), **CLOSE)
