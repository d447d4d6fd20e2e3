"""The labels of positions that are not those of the input: tokens that a module shifts, drops, reorders or adds to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.adapters.test_attachment import Block
from xformer.analysis.attention_patterns import Focus, focus, token_names
from xformer.errors import InputError

IDS = torch.tensor([[5, 10, 4, 1, 9, 7]])
TOKENS = ("5", "10", "4", "1", "9", "7")
Change = Callable[["Changed", Tensor], Tensor]


class Changed(nn.Module):
    """A causal model that changes its tokens first, and its stream between two blocks."""

    def __init__(self, first: Change | None = None, between: Change | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.start = nn.Embedding(11, 15), nn.Parameter(torch.randn(1, 1, 15))
        self.convolution = nn.Conv1d(15, 15, 3)
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(15, 11)
        self.first, self.between = first, between

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) if self.first is None else self.first(self, ids)
        x = self.blocks[0](x)
        return self.head(self.blocks[1](x if self.between is None else self.between(self, x)))

    def started(self, x: Tensor) -> Tensor:
        return torch.cat([self.start.expand(len(x), -1, -1), x], dim=1)


def shifted(ids: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], dim=1)


def written(ids: Tensor) -> Tensor:
    made = torch.zeros_like(ids)
    made[:, 1:] = ids[:, :-1]
    return made


def moved(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 1, -1))


SHIFTED, NUMBERS = ("added 1", "5", "10", "4", "1", "9"), ("0", "1", "2", "3", "4", "5")
FIRST: dict[str, tuple[Change, tuple[str, ...]]] = {
    "shifted": (lambda model, ids: model.embed(shifted(ids)), SHIFTED),
    "shifted by writing": (lambda model, ids: model.embed(written(ids)), SHIFTED),
    "shifted by padding": (lambda model, ids: F.pad(model.embed(ids), (0, 0, 1, -1)), SHIFTED),
    "shifted vectors": (lambda model, ids: model.started(model.embed(ids[:, :-1])), SHIFTED),
    "shifted one-hot vectors": (
        lambda model, ids: F.one_hot(shifted(ids), 11).float() @ model.embed.weight,
        SHIFTED,
    ),
    "shifted to the left": (
        lambda model, ids: model.embed(F.pad(ids[:, 1:], (0, 1))),
        ("10", "4", "1", "9", "7", "added 1"),
    ),
    "first dropped": (lambda model, ids: model.embed(ids[:, 1:]), TOKENS[1:]),
    "last dropped": (lambda model, ids: model.embed(ids[:, :-1]), TOKENS[:-1]),
    "start added": (lambda model, ids: model.started(model.embed(ids)), ("added 1", *TOKENS)),
    "first replaced": (lambda model, ids: model.started(model.embed(ids[:, 1:])), NUMBERS),
    "reversed": (
        lambda model, ids: torch.stack([model.embed(ids[:, at]) for at in reversed(range(ids.shape[1]))], dim=1),
        NUMBERS,
    ),
    "halves swapped": (lambda model, ids: model.embed(torch.cat([ids[:, 3:], ids[:, :3]], dim=1)), NUMBERS),
    "pairs": (lambda model, ids: model.embed(ids[:, ::2][:, : ids.shape[1] // 2]) + model.embed(ids[:, 1::2]), NUMBERS[:3]),
    "convolved": (lambda model, ids: model.convolution(F.pad(model.embed(ids).mT, (2, 0))).mT, TOKENS),
    "convolved and shifted": (lambda model, ids: model.convolution(F.pad(model.embed(ids).mT, (3, -1))).mT, SHIFTED),
    "not distinguished": (lambda model, ids: model.embed(ids.clamp(max=8)), TOKENS),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_positions_have_the_labels_of_the_tokens_that_reach_them(name: str) -> None:
    change, labels = FIRST[name]
    reading = xformer.read(Changed(change).eval(), IDS)
    assert reading.tokens == labels
    for site in reading.attention:
        assert token_names(reading, site, reading[f"{site.path}.pattern"].shape) == (labels, labels)


@pytest.mark.parametrize(
    "between",
    [
        lambda model, x: model.started(x[:, :-1]),
        lambda model, x: torch.cat([x[:, 2:], x[:, :2]], dim=1),
        lambda model, x: torch.stack([x[:, at] for at in reversed(range(x.shape[1]))], dim=1),
    ],
)
def test_a_layer_that_has_the_tokens_elsewhere_is_numbered(between: Change) -> None:
    reading = xformer.read(Changed(between=between).eval(), IDS)
    names = [token_names(reading, one, reading[f"{one.path}.pattern"].shape)[0] for one in reading.attention]
    assert names == [TOKENS, NUMBERS]
    assert reading.tokens == TOKENS


class Bidirectional(nn.Module):
    """Two layers in which every position attends to all; the second has the first token last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(11, 15), nn.Linear(15, 11)
        self.layers = nn.ModuleList(nn.MultiheadAttention(15, 3, batch_first=True) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.layers[0](x, x, x)[0]
        x = torch.cat([x[:, 1:], x[:, :1]], dim=1)
        return self.head(x + self.layers[1](x, x, x)[0])


def test_a_layer_after_attention_to_all_positions_is_judged_by_its_own_tokens() -> None:
    reading = xformer.read(Bidirectional().eval(), IDS)
    names = [token_names(reading, one, reading[f"{one.path}.pattern"].shape)[0] for one in reading.attention]
    assert names == [TOKENS, NUMBERS]


class QueriesAndKeys(nn.Module):
    """The weights of one attention without values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.q, self.k = nn.Embedding(11, 15), nn.Linear(15, 15), nn.Linear(15, 15)
        self.back = nn.Linear(15, 11)


class WithMemory(QueriesAndKeys):
    """Causal attention to the tokens, and to three vectors before them."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.Parameter(torch.randn(1, 3, 15))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k = self.q(x), self.k(torch.cat([self.memory.expand(len(x), -1, -1), x], dim=1))
        scores = (q @ k.mT).masked_fill(torch.ones(ids.shape[1], k.shape[1]).triu(4) > 0, -1e9)
        return self.back(scores.softmax(dim=-1) @ k)


def test_keys_of_a_memory_are_before_those_of_the_tokens() -> None:
    reading = xformer.read(WithMemory().eval(), IDS)
    (site,) = reading.attention
    keys = ("earlier 1", "earlier 2", "earlier 3", *TOKENS)
    assert token_names(reading, site, reading[f"{site.path}.pattern"].shape) == (TOKENS, keys)


def test_positions_that_are_numbered_are_no_repeated_tokens() -> None:
    """Two positions of one token, in a layer that has its tokens elsewhere, are not one token."""
    model = Changed(between=lambda model, x: model.started(x[:, :-1])).eval()
    ids = torch.tensor([[3, 5, 3, 5, 3, 5]])
    towards = torch.zeros(6, 6)
    towards[:, [1, 3, 5]] = 1 / 3
    places = []
    for layer in range(2):
        edit = xformer.edits.replace(f"decoder.{layer}.attn.pattern", towards.expand(1, 3, 6, 6))
        found: Focus = focus(xformer.read(model, ids, edits=[edit]), layer=layer, head=0)
        places.append((found.kind, found.keys))
    assert places == [("one_token", (1, 3, 5)), ("none", ())]


class Translator(nn.Module):
    """Two stacks; the decoder shifts its tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.model(self.embed(source), self.embed(shifted(target)), tgt_mask=mask))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_decoder_that_shifts_its_tokens_has_their_labels() -> None:
    reading = xformer.read(Translator().eval(), (IDS, torch.tensor([[3, 1, 4]])))
    assert reading.tokens_of("encoder") == TOKENS
    assert reading.tokens_of("decoder") == ("added 1", "3", "1")
    cross = next(one for one in reading.attention if one.is_cross)
    assert token_names(reading, cross, (3, 6)) == (("added 1", "3", "1"), TOKENS)


class Masked(nn.Module):
    """A mask in an argument of its own hides the vectors of padding; their tokens reach no position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.block = nn.Embedding(11, 15), Block()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.block(self.embed(ids) * mask[..., None])


def test_padding_that_a_mask_hides_keeps_its_labels() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    assert xformer.read(Masked().eval(), (IDS, mask)).tokens == TOKENS


class Packed(nn.Module):
    """All texts of a batch as one sequence, in which each attends to itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.project = nn.Embedding(11, 15), nn.Linear(15, 45)

    def forward(self, ids: Tensor) -> Tensor:
        n_batch, n = ids.shape
        x = self.embed(ids).flatten(0, 1)
        q, k, v = (one.view(-1, 3, 5).transpose(0, 1) for one in self.project(x).chunk(3, dim=-1))
        text = torch.arange(n_batch).repeat_interleave(n)
        weights = (q @ k.mT).masked_fill(text[:, None] != text, -1e9).softmax(dim=-1)
        return (weights @ v).transpose(0, 1).reshape(n_batch, n, 15)


def test_a_batch_in_one_sequence_is_numbered() -> None:
    module, both = Packed().eval(), torch.cat([IDS, IDS + 1]).clamp(max=10)
    assert xformer.read(module, IDS).tokens == TOKENS
    reading = xformer.read(module, both)
    numbers = tuple(map(str, range(12)))
    for one in (reading, reading.one(1)):
        assert one.tokens == numbers
        assert one["encoder.0.attn.pattern"].shape == (1, 3, 12, 12)


def test_tokens_that_are_added_to_some_texts_only_are_numbered_in_the_others() -> None:
    """A start token for the texts without one; the module was opened with one of these."""

    def started(model: Changed, ids: Tensor) -> Tensor:
        return model.embed(ids if bool((ids[:, 0] == 0).all()) else F.pad(ids, (1, 0)))

    model = Changed(started).eval()
    assert xformer.read(model, IDS).tokens == ("added 1", *TOKENS)
    assert xformer.read(model, F.pad(IDS, (1, 0))).tokens == ("0", "1", "2", "3", "4", "5", "6")


class Aligned(nn.Module):
    """Moves each text to the right by the number of zeros at its end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside = Changed()

    def forward(self, ids: Tensor) -> Tensor:
        moved = torch.zeros_like(ids)
        for row, text in enumerate(ids):
            own = text[: int((text != 0).cumsum(0).argmax()) + 1]
            moved[row, len(text) - len(own) :] = own
        return self.inside(moved)


def test_texts_that_are_moved_by_different_distances_are_numbered() -> None:
    both = torch.tensor([[5, 10, 4, 1, 9, 7], [3, 2, 6, 8, 0, 0]])
    assert xformer.read(Aligned().eval(), both).tokens == NUMBERS


class OneLayer(QueriesAndKeys):
    """Queries and keys from two functions of the embedded tokens."""

    def __init__(self, queries: Callable[[Tensor], Tensor], keys: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.queries, self.keys = queries, keys

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k = (one.unflatten(-1, (3, 5)).transpose(1, 2) for one in (self.q(self.queries(x)), self.k(self.keys(x))))
        return self.back(((q @ k.mT).softmax(dim=-1) @ k).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("queries", "keys", "labels"),
    [
        (lambda x: x, lambda x: x, (TOKENS, TOKENS)),
        (moved, moved, (SHIFTED, SHIFTED)),
        (moved, lambda x: x, (SHIFTED, NUMBERS)),
        (lambda x: x, moved, (TOKENS, NUMBERS)),
        (lambda x: x[:, -1:], lambda x: x, (("0",), TOKENS)),
        (lambda x: x[:, -1:], moved, (("0",), SHIFTED)),
    ],
)
def test_queries_and_keys_have_the_labels_of_their_own_tokens(
    queries: Callable[[Tensor], Tensor], keys: Callable[[Tensor], Tensor], labels: tuple[tuple[str, ...], ...]
) -> None:
    reading = xformer.read(OneLayer(queries, keys).eval(), IDS)
    (site,) = reading.attention
    assert token_names(reading, site, reading[f"{site.path}.pattern"].shape) == labels


class LastOnLast(Changed):
    """The second block of a causal model has the last query only, so that it counts as an encoder's."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.blocks[0](self.embed(ids))
        q, k, v = (part.unflatten(-1, (3, 5)).transpose(1, 2) for part in self.blocks[1].qkv(x).chunk(3, dim=-1))  # type: ignore[operator]
        return self.head(((q[:, :, -1:] @ k.mT).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def test_a_causal_layer_before_one_query_is_read() -> None:
    reading = xformer.read(LastOnLast().eval(), IDS)
    assert reading.tokens == TOKENS
    assert len(reading.attention) == 2


def test_an_input_shorter_than_a_patch_is_refused() -> None:
    def pairs(model: Changed, ids: Tensor) -> Tensor:
        whole = ids[:, : ids.shape[1] // 2 * 2]
        return model.embed(whole).unflatten(1, (-1, 2)).mean(dim=2)

    model = Changed(pairs)
    assert xformer.read(model, IDS).tokens == ("0", "1", "2")
    with pytest.raises(InputError, match="no positions for this input"):
        xformer.read(model, IDS[:, :1])
