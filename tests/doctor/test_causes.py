"""Causes of what a cache, padding or an encoder changes, each planted in a small model and named at its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from tests.doctor.checking import TOKENS
from tests.doctor.llama import llama
from tests.doctor.plain_gpt import PlainGPT
from tests.doctor.styles import CachedGPT, PaddedGPT, Pair
from tests.doctor.test_styles import EQUAL, PAIR
from xformer.doctor.check import CAUSES_OF_CHECKS, Finding
from xformer.doctor.formulas import CAUSES_OF_FORMULAS

VOCAB, D, H = 53, 24, 3


def apart(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def table(n: int, width: int = D) -> Tensor:
    angle = torch.arange(n)[:, None] * 100.0 ** (-torch.arange(0, width, 2) / width)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class Decoder(nn.Module):
    """Two layers with a cache. `how` replaces a part: positions, rotated, kept or allowed."""

    def __init__(self, **how: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.embed, self.place, self.head = nn.Embedding(VOCAB, D), nn.Embedding(64, D), nn.Linear(D, VOCAB)
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.register_buffer("table", table(64))
        self.register_buffer("angles", table(64, D // H))
        for layer in self.qkv:
            nn.init.normal_(layer.weight, std=0.4)  # pyright: ignore[reportArgumentType]

    def part(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        return self.how.get(name, usual)

    def forward(self, idx: Tensor, attention_mask: Tensor | None = None, past: Any = None) -> Any:
        start, n, kept = 0 if past is None else past[0][0].shape[2], idx.shape[1], []
        valid = torch.ones(len(idx), start + n).bool() if attention_mask is None else attention_mask.bool()
        x = self.embed(idx) + self.part("positions", by_count)(self, start, n)
        for number, layer in enumerate(self.qkv):
            q, k, v = (apart(one) for one in layer(x).chunk(3, dim=-1))
            q, k = (self.part("rotated", lambda _, x, start: x)(self, one, start) for one in (q, k))
            if past is not None:
                k, v = self.part("kept", appended)(past[number], k, v)
            kept.append((k, v))
            mask = self.part("allowed", causal)(n, k.shape[2], valid)
            z = self.part("attended", attended)(q, k, v, mask)
            x = x + z.transpose(1, 2).flatten(2)
        return self.head(x), kept


def by_count(model: Decoder, start: int, n: int) -> Tensor:
    return model.place(torch.arange(start, start + n))


def from_zero(model: Decoder, start: int, n: int) -> Tensor:
    return model.place(torch.arange(n))


def one_later(model: Decoder, start: int, n: int) -> Tensor:
    return model.place(torch.arange(n) + (start + 1 if start else 0))


def cut_from_zero(model: Decoder, start: int, n: int) -> Tensor:
    return model.table[:n]


def rotated(model: Decoder, x: Tensor, start: int) -> Tensor:
    sin, cos = model.angles[start : start + x.shape[2]].chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rotated_from_zero(model: Decoder, x: Tensor, start: int) -> Tensor:
    return rotated(model, x, 0)


def appended(past: Any, k: Tensor, v: Tensor) -> Any:
    return torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)


def new_values(past: Any, k: Tensor, v: Tensor) -> Any:
    return torch.cat([past[0], k], dim=2), torch.cat([v[:, :, :1].expand_as(past[1]), v], dim=2)


def rolled(past: Any, k: Tensor, v: Tensor) -> Any:
    k, v = appended(past, k, v)
    return k.roll(-1, dims=2), v.roll(-1, dims=2)


def scaled(past: Any, k: Tensor, v: Tensor) -> Any:
    k, v = appended(past, k, v)
    return 1.1 * k, v


def far(model: Decoder, start: int, n: int) -> Tensor:
    return model.place(torch.arange(n) + (40 if start else 0))


def causal(n: int, n_key: int, valid: Tensor) -> Tensor:
    return torch.ones(n, n_key).tril(n_key - n).bool() & valid[:, None, None]


def not_with_cache(n: int, n_key: int, valid: Tensor) -> Tensor:
    return causal(n, n_key, valid) if n == n_key else torch.ones(n, n_key).bool()


def from_the_left(n: int, n_key: int, valid: Tensor) -> Tensor:
    return torch.ones(n, n_key).tril().bool() & valid[:, None, None]


def one_more(n: int, n_key: int, valid: Tensor) -> Tensor:
    return torch.ones(n, n_key).tril(n_key - n + (n < n_key)).bool() & valid[:, None, None]


def of_queries(n: int, n_key: int, valid: Tensor) -> Tensor:
    return torch.ones(n, n_key).tril(n_key - n).bool() & valid[:, None, :, None]


def inverted(n: int, n_key: int, valid: Tensor) -> Tensor:
    hides = valid if bool(valid.all()) else ~valid
    return torch.ones(n, n_key).tril(n_key - n).bool() & hides[:, None, None]


def without_padding(n: int, n_key: int, valid: Tensor) -> Tensor:
    return torch.ones(n, n_key).tril(n_key - n).bool()


def but_every_second(n: int, n_key: int, valid: Tensor) -> Tensor:
    return causal(n, n_key, valid | (torch.arange(n_key) % 2 == 1))


def in_head_order(n: int, n_key: int, valid: Tensor) -> Tensor:
    return causal(n, n_key, valid).flatten(0, 1).repeat(H, 1, 1).view(-1, H, n, n_key)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -1e9)
    return scores.softmax(dim=-1) @ v


def larger_at_33(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attended(q * (2 if k.shape[2] == 33 else 1), k, v, mask)


def flattened(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    mask = mask.expand(-1, H, -1, -1).flatten(0, 1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = (torch.bmm(q, k.mT) / q.shape[-1] ** 0.5).masked_fill(~mask, -1e9)
    return torch.bmm(scores.softmax(dim=-1), v).unflatten(0, (-1, H))


def too_small(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~lower(q.shape[2]), -1e9)
    return scores.masked_fill(~mask & lower(q.shape[2]), -3.0).softmax(dim=-1) @ v


def added_too_small(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~lower(q.shape[2]), -1e9)
    return (scores - 3.0 * ~mask).softmax(dim=-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
    n = q.shape[2]
    scores = q @ k.mT / q.shape[-1] ** 0.5 - 0.1 * (torch.arange(n)[:, None] - torch.arange(n)) - 1
    return scores.masked_fill(~lower(n), -1e9).softmax(dim=-1) @ v


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def nothing(*_: Any) -> float:
    return 0.0


class Self(Pair):
    """An encoder-decoder whose second attention reads the decoder under a causal mask, in one layer."""

    def __init__(self) -> None:
        super().__init__()
        own = self.decoder[1].other
        own.register_forward_pre_hook(lambda _, given: (given[0], given[0], lower(given[0].shape[1])))


def lower(n: int) -> Tensor:
    return torch.ones(n, n).tril().bool()


RIGHT: dict[str, dict[str, Any]] = {
    "counted": {},
    "rotated": {"positions": nothing, "rotated": rotated},
    "fused": {"attended": fused},
    "flattened": {"attended": flattened},
}
WRONG: dict[str, tuple[str, str, str, nn.Module, Any]] = {
    "from zero": ("cache", "cache_offset", "torch.arange(n)", Decoder(positions=from_zero), TOKENS),
    "one later": ("cache", "cache_offset", "start + 1 if start", Decoder(positions=one_later), TOKENS),
    "cut": ("cache", "cache_offset", "model.table[:n]", Decoder(positions=cut_from_zero), TOKENS),
    "rotary": (
        "cache", "cache_offset", "model.angles[start", Decoder(positions=nothing, rotated=rotated_from_zero), TOKENS,
    ),
    "explicit": ("cache", "cache_offset", "position_ids - start", PlainGPT("cache_starts_again"), TOKENS),
    "Llama": ("cache", "cache_offset", 'kwargs["position_ids"] =', llama("cache_starts_again"), TOKENS),
    "replaced": ("cache", "cache_not_updated", "einsum", CachedGPT("cache_replaced"), TOKENS),
    "values": ("cache", "cache_not_updated", "v[:, :, :1].expand_as", Decoder(kept=new_values), TOKENS),
    "zeros": ("cache", "cache_not_updated", "0 * past[1]", CachedGPT("values_not_cached"), TOKENS),
    "order": ("cache", "cache_in_wrong_order", "[k, past[0]]", CachedGPT("cache_in_wrong_order"), TOKENS),
    "no mask": ("cache", "cache_not_masked", "torch.ones(n, n_key)", Decoder(allowed=not_with_cache), TOKENS),
    "from the left": ("cache", "cache_mask_misaligned", ".tril().bool()", Decoder(allowed=from_the_left), TOKENS),
    "one more": (
        "cache", "cache_mask_misaligned", "n < n_key", Decoder(allowed=one_more, attended=fused), TOKENS,
    ),
    "queries": (
        "left_padding", "padding_on_queries", "valid[:, None, :, None]", Decoder(allowed=of_queries, positions=nothing), TOKENS,
    ),
    "inverted": ("left_padding", "padding_inverted", "masked_fill(~mask", Decoder(allowed=inverted, positions=nothing), TOKENS),
    "not masked": (
        "left_padding", "padding_not_masked", "masked_fill(~mask", Decoder(allowed=without_padding, positions=nothing), TOKENS,
    ),
    "head order": (
        "batch", "padding_in_head_order", ".repeat(H, 1, 1)", Decoder(allowed=in_head_order, attended=flattened), TOKENS,
    ),
    "too small": (
        "left_padding", "mask_too_small", "-3.0", Decoder(attended=too_small, positions=nothing), TOKENS,
    ),
    "biased": ("left_padding", "padding_not_masked", "lower(n)", Decoder(attended=biased, positions=nothing), TOKENS),
    "added, too small": (
        "left_padding", "mask_too_small", "- 3.0 * ~mask", Decoder(attended=added_too_small, positions=nothing), TOKENS,
    ),
    "to the encoder": ("right_padding", "padding_not_masked", "einsum", Pair("padding_seen_by_decoder"), PAIR),
    "positions": ("left_padding", "positions_from_padding", "torch.arange(n)[None]", PaddedGPT(), TOKENS),
    "open": ("causality", "cross_attention_from_decoder", "self.other(x, keys, seen)", Pair("keys_of_decoder"), EQUAL),
    "closed": ("cross_attention", "cross_attention_from_decoder", "self.other(x, keys, seen)", Self(), PAIR),
}  # fmt: skip


def diagnosed(model: nn.Module, check: str, inputs: Any = TOKENS) -> Finding:
    [finding] = xformer.diagnose(model.eval(), inputs, checks=[check]).findings
    return finding


@pytest.mark.parametrize("style", RIGHT)
def test_right_decoder_has_no_finding(style: str) -> None:
    model = Decoder(**RIGHT[style])
    found = xformer.diagnose(model.eval(), TOKENS, checks=["cache", "right_padding", "batch"], causal=True)
    assert [one.verdict for one in found.findings] == ["holds"] * 3, found


@pytest.mark.parametrize("fault", WRONG)
def test_cause_is_named_at_its_line(fault: str) -> None:
    check, cause, text, model, inputs = WRONG[fault]
    found = diagnosed(model, check, inputs)
    assert (found.verdict, found.cause) == ("broken", cause), found
    assert cause in CAUSES_OF_CHECKS | CAUSES_OF_FORMULAS
    assert text in found.remedy
    assert found.line in found.sentence


@pytest.mark.parametrize("inputs", [PAIR, EQUAL])
def test_right_decoder_attends_to_the_encoder(inputs: Any) -> None:
    assert diagnosed(Pair(), "cross_attention", inputs).verdict == "holds"


@pytest.mark.parametrize(
    ("check", "how"),
    [
        ("cache", {"kept": rolled}),
        ("cache", {"kept": scaled}),
        ("cache", {"positions": far}),
        ("left_padding", {"positions": nothing, "allowed": but_every_second}),
        (
            "left_padding",
            {"positions": nothing, "attended": larger_at_33},
        ),  # other lengths agree, so nothing is shifted
    ],
)
def test_difference_that_nothing_explains_has_no_cause(check: str, how: dict[str, Any]) -> None:
    found = diagnosed(Decoder(**how), check)
    assert (found.verdict, found.cause, found.line) == ("broken", "", "")
