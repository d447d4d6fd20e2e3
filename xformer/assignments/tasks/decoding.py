"""The loss of a language model, attention with a cache, and greedy decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from xformer.assignments.task import AssignmentTask, TaskCase, TaskPart, module_with, normal, unpacked, wrong
from xformer.assignments.tasks.attention import attention_of
from xformer.assignments.tasks.heads import MULTI_HEAD, MultiHeadAttentionOf, with_weights


def next_token_loss_of(
    logits: Float[Tensor, "batch pos vocab"], tokens: Int[Tensor, "batch pos"], ignore_index: int | None = None, *,
    shift: int = 1, keeps_ignored: bool = False, reduction: str = "mean", scores: str = "logits",
) -> Float[Tensor, ""]:  # fmt: skip
    """Mean cross-entropy of output t on token t + 1; the keyword arguments make it wrong."""
    n = tokens.shape[1]
    if shift >= 0:
        logits, tokens = logits[:, : n - shift], tokens[:, shift:]
    else:
        logits, tokens = logits[:, -shift:], tokens[:, : n + shift]
    if scores == "softmax":
        logits = logits.softmax(-1)
    each = F.cross_entropy(logits.transpose(1, 2), tokens, reduction="none", ignore_index=-100)
    is_plain = ignore_index is None or keeps_ignored
    kept = torch.ones_like(each, dtype=torch.bool) if is_plain else tokens != ignore_index
    return {
        "mean": lambda: each[kept].mean(),
        "sum": lambda: each[kept].sum(),
        "all": lambda: each[kept].sum() / each.numel(),
        "batch": lambda: each[kept].sum() / len(tokens),
        "rows": lambda: ((each * kept).sum(1) / kept.sum(1)).mean(),
        "negative": lambda: -each[kept].mean(),
    }[reduction]()


def _loss_cases() -> list[TaskCase]:
    def tokens(seed: int, *shape: int) -> Tensor:
        return torch.randint(1, 11, shape, generator=torch.Generator().manual_seed(seed))

    padded = tokens(4, 3, 7)
    padded[1, 3:], padded[2, 5:] = 0, 0
    return [
        TaskCase("logits [2, 5, 11]", {"logits": normal(1, 2, 5, 11), "tokens": tokens(1, 2, 5)}),
        TaskCase("one text of 2 tokens", {"logits": normal(2, 1, 2, 11), "tokens": tokens(2, 1, 2)}),
        TaskCase(
            "padding with token 0", {"logits": normal(4, 3, 7, 11, scale=2.0), "tokens": padded, "ignore_index": 0}
        ),
        TaskCase("logits up to 300", {"logits": normal(5, 2, 5, 11, scale=100.0), "tokens": tokens(5, 2, 5)}),
        TaskCase("the gradients", {"logits": normal(6, 2, 5, 11), "tokens": tokens(6, 2, 5)}, with_gradient=True),
    ]


_SHIFT = "logits[:, :-1] and tokens[:, 1:]"
_IGNORE = "F.cross_entropy(…, ignore_index=ignore_index), if it is not None"
_MEAN = "the mean over the tokens that count"
LOSS = AssignmentTask(
    "loss",
    "Loss with shifted targets",
    [
        TaskPart(
            "next_token_loss",
            next_token_loss_of,
            _loss_cases,
            {"output": "", "gradient of logits": "batch pos vocab"},
            "Which token should the output at position 0 predict? Print the two tensors that are compared.",
            [
                wrong("targets_not_shifted", _SHIFT, "output t is scored on token t, which it has read", shift=0),
                wrong("targets_shifted_twice", _SHIFT, "output t is scored on token t + 2", shift=2),
                wrong("targets_shifted_back", _SHIFT, "output t is scored on token t − 1", shift=-1),
                wrong("padding_in_loss", _IGNORE, "padding is scored as a token", keeps_ignored=True),
                wrong("softmax_before_loss", "F.cross_entropy of the logits themselves",
                      "probabilities are passed where logits are expected", scores="softmax"),
                wrong("loss_summed", _MEAN, "the loss is a sum, so that it grows with the batch", reduction="sum"),
                wrong("loss_mean_with_padding", _MEAN, "the sum is divided by the number of all tokens, with the padding",
                      reduction="all"),
                wrong("loss_summed", _MEAN, "the sum is divided by the number of texts, not of tokens", reduction="batch"),
                wrong("loss_mean_of_rows", _MEAN, "the loss is averaged in each text first, so that short texts count more",
                      reduction="rows"),
                wrong("loss_negative", _MEAN, "the loss has the wrong sign", reduction="negative"),
            ],
        )
    ],
)  # fmt: skip


class CachedAttentionOf(MultiHeadAttentionOf):
    """Causal attention that continues from cached keys and values; the keyword arguments make it wrong."""

    def __init__(
        self, d_model: int, n_heads: int, *, join: str = "past_first", causal: str = "aligned", returns: str = "all",
        joins: str = "both", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(d_model, n_heads, **options)
        self.join, self.joins, self.causal, self.returns = join, joins, causal, returns

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "batch pos d_model"], cache: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Float[Tensor, "batch pos d_model"], tuple[Tensor, Tensor]]:
        """Attend to the cached tokens and the new ones; return the output and the new cache."""
        q, k, v = self.heads(x)
        new = k, v
        if cache is not None and self.join != "no":
            past_k, past_v = cache
            k = torch.cat([past_k, k] if self.join == "past_first" else [k, past_k], dim=2)
            past_v = torch.zeros_like(past_v) if self.joins == "keys" else past_v
            v = torch.cat([past_v, v] if self.join == "past_first" else [v, past_v], dim=2)
        n, n_key = q.shape[2], k.shape[2]
        mask = torch.ones(n, n_key, dtype=torch.bool)
        if self.causal == "aligned" or (self.causal == "without_cache" and cache is None):
            mask = mask.tril(n_key - n)
        elif self.causal in ("top_left", "one_more"):
            mask = mask.tril(0 if self.causal == "top_left" else n_key - n + 1)
        z = attention_of(q, k, v, mask, **self.attention)[0]
        kept = {"all": (k, v), "new": new, "old": cache or (k, v)}[self.returns]
        return self.joined(z), kept


def _continue(module: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Read the pieces one after the other, each with the cache of those before."""
    cache, found = None, {}
    for at, x in enumerate(inputs["pieces"]):
        made = unpacked(module(x) if cache is None else module(x, cache), "output", "cache")
        cache = tuple(unpacked(made["cache"], "keys", "values").values())
        found[f"output {at + 1}"] = made["output"]
    return {**found, "keys": cache[0], "values": cache[1]} if cache else found


def _cached_cases() -> list[TaskCase]:
    def case(what: str, seed: int, *lengths: int) -> TaskCase:
        pieces = [normal(seed + at, 2, n, 15) for at, n in enumerate(lengths)]
        return TaskCase(what, with_weights(CachedAttentionOf, seed, 15, 3, pieces=pieces))

    return [
        case("5 tokens without a cache", 1, 5),
        case("4 tokens, then 1", 20, 4, 1),
        case("3 tokens, then 4 at once", 40, 3, 4),
        case("one token at a time", 60, 1, 1, 1),
    ]


class _Script:
    """A model that answers from a table: the logits depend on the token and its position."""

    def __init__(self, table: Float[Tensor, "vocab pos vocab"]) -> None:
        self.table = table

    def __call__(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        earlier = tokens.cumsum(dim=1) % len(self.table)  # so that an answer depends on all tokens before
        return self.table[earlier, torch.arange(tokens.shape[1]).expand_as(tokens)]


def generate_of(
    model: Callable[[Tensor], Tensor], tokens: Int[Tensor, "batch pos"], n_new: int, *, reads: str = "all",
    row: int = -1, extra: int = 0, returns: str = "all", pick: str = "argmax", appends: bool = True,
) -> Int[Tensor, "batch total"]:  # fmt: skip
    """Append the likeliest token, again and again; the keyword arguments make it wrong."""
    start = tokens.shape[1]
    for step in range(n_new + extra):
        is_last = reads == "last" or (reads == "prompt_then_last" and step > 0)
        logits = model(tokens[:, -1:] if is_last else tokens[:, :start] if reads == "prompt" else tokens)[:, row]
        new = logits.argmin(-1) if pick == "argmin" else logits.argmax(-1)
        new = new[0].expand_as(new) if pick == "first_text" else new
        tokens = (
            torch.cat([tokens, new[:, None]], dim=1) if appends else torch.cat([tokens[:, 1:], new[:, None]], dim=1)
        )
    return tokens if returns == "all" else tokens[:, start:]


def _generate(function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"output": function(_Script(inputs["table"]), inputs["tokens"], inputs["n_new"])}


def _generate_cases() -> list[TaskCase]:
    def case(what: str, tokens: list[list[int]], n_new: int, seed: int) -> TaskCase:
        return TaskCase(what, {"table": normal(seed, 11, 19, 11), "tokens": torch.tensor(tokens), "n_new": n_new})

    return [
        case("3 tokens after 2", [[3, 7]], 3, 1),
        case("5 tokens for two texts", [[1, 2, 3], [9, 4, 6]], 5, 2),
        case("1 token", [[5]], 1, 3),
        case("no token", [[5, 8]], 0, 4),
    ]


_JOIN = "k = torch.cat([past_k, k], dim=2), and the same for v"
_ALIGN = "mask = torch.ones(n, n_key, dtype=torch.bool).tril(n_key - n)"
_PICK = "new = model(tokens)[:, -1].argmax(dim=-1)"
_APPEND = "tokens = torch.cat([tokens, new[:, None]], dim=1)"
CACHE_AND_DECODING = AssignmentTask(
    "cache_and_decoding",
    "Cache and decoding",
    [
        TaskPart(
            "CachedAttention",
            CachedAttentionOf,
            _cached_cases,
            {**{f"output {at}": "batch pos d_model" for at in (1, 2, 3)}, "keys": "batch head key d_head",
             "values": "batch head key d_head"},
            "The outputs should not depend on where a text is cut into pieces.",
            [
                wrong("cache_in_wrong_order", _JOIN, "the new keys are put before the cached ones", join="new_first"),
                wrong("cache_not_updated", _JOIN, "the cached keys and values are not read", join="no", is_missing=True),
                wrong("cache_not_updated", "return output, (k, v)", "only the new keys and values are returned", returns="new"),
                wrong("cache_not_updated", "return output, (k, v)", "the old cache is returned", returns="old"),
                wrong("cache_not_updated", _JOIN, "the cached values are not read", joins="keys"),
                wrong("cache_not_masked", _ALIGN, "with a cache, the new tokens see later ones", causal="without_cache"),
                wrong("mask_not_applied", _ALIGN, "no token is hidden from earlier ones", causal="no", is_missing=True),
                wrong("cache_mask_misaligned", _ALIGN, "the mask is aligned with the first cached key, not with the last key",
                      causal="top_left"),
                wrong("mask_off_by_one", _ALIGN, causal="one_more"),
                *(one for one in MULTI_HEAD if one.cause not in ("mask_not_applied", "mask_inverted")),
            ],
            _continue,
            module_with,
            ("softmax", "attention", "split_heads", "merge_heads", "MultiHeadAttention", "causal_mask"),
            [{"scales": "queries"}],
        ),
        TaskPart(
            "generate",
            generate_of,
            _generate_cases,
            {"output": "batch pos"},
            "The result starts with the given tokens, and has n_new more; each is the argmax of the last position.",
            [
                wrong("decoding_reads_first_position", _PICK, "the logits of the first position are used", row=0),
                wrong("decoding_drops_context", _PICK, "only the last token is read, without the ones before", reads="last"),
                wrong("decoding_drops_context", _PICK, "after the prompt, only the last token is read, without those before",
                      reads="prompt_then_last"),
                wrong("decoding_drops_context", _PICK, "only the prompt is read, again and again", reads="prompt"),
                wrong("decoding_count", "for _ in range(n_new)", "one token too many is added", extra=1),
                wrong("decoding_count", "for _ in range(n_new)", "one token is missing", extra=-1),
                wrong("decoding_drops_prompt", "return tokens, with the given ones", "only the new tokens are returned",
                      returns="new"),
                wrong("decoding_picks_unlikeliest", _PICK, "the least likely token is added", pick="argmin"),
                wrong("decoding_drops_prompt", _APPEND, "the first token is dropped for each new one", appends=False),
                wrong("decoding_mixes_batch", _PICK, "every text gets the token of the first one", pick="first_text"),
            ],
            _generate,
        ),
    ],
    needs=("multi_head_attention",),
)  # fmt: skip
