"""The attention of long inputs: exact sums over every head's pattern, and any part of a pattern on request.

    summary = xformer.attention_summary(model, text)      no pattern is ever in memory
    xformer.analysis.head_sums(summary)                   a row per head
    summary.weights(0, head=3, queries=slice(500, 510))   exact weights, [query, key]

At 32,768 tokens, the patterns of a model with 270 heads would take 1.1 TB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters.adapter import ModelAdapter
from xformer.adapters.attention_sums import AttentionSums, Kept, SummedRun
from xformer.errors import EditError, InputError
from xformer.formatting import check_indices
from xformer.layer_path import LayerPath
from xformer.reading import Readable, adapter_of
from xformer.tasks.task import Example, plain_ids

MEBIBYTE = 1024**2


@dataclass(eq=False)
class AttentionSummary:
    """Sums over the pattern of each head of one run, and any part of a pattern on request.

    Queries and keys of layers are kept up to `kept_bytes`; for a layer whose are not, the model runs again up to that layer.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> summary.sums["encoder.0.attn"].entropy.shape  # [head, query]
        torch.Size([4, 4])
        >>> summary.weights(2, head=1, queries=slice(0, 2)).shape  # [query, key]
        torch.Size([2, 4])
    """

    adapter: ModelAdapter
    example: Example
    sums: dict[str, AttentionSums]
    """The sums of each attention layer, by its path."""
    documents: Int[Tensor, " pos"] | None
    """The document of each position, from 0; None if the caller gave none."""
    kept_bytes: int
    code: str | None = None
    """The call that repeats the summary, as code; None if it cannot be expressed that way."""
    kept: dict[str, Kept] = field(default_factory=dict, repr=False)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The label of each token."""
        return self.tokens_of(None)

    def tokens_of(self, stack: str | None) -> tuple[str, ...]:
        """Return the labels of the tokens that a stack reads; an encoder-decoder's decoder reads the target."""
        return self.adapter.token_names(torch.tensor(self.ids_of(stack)))

    def ids_of(self, stack: str | None) -> list[int]:
        """Return the ids of the tokens that a stack reads."""
        target = self.example.target
        return (self.example.input_ids if stack != "decoder" or target is None else target)[0].tolist()

    @property
    def attention(self) -> tuple[LayerPath, ...]:
        """The attention layers; `layer=` of a table or figure is an index into them, from 0."""
        return tuple(site for site in self.adapter.shape.attention if site.path in self.sums)

    def layer(self, layer: int) -> AttentionSums:
        """Return the sums of one layer. Raises `EditError` if there is none of this index."""
        return self.sums[self.path(layer)]

    def path(self, layer: int) -> str:
        """Return the path of a layer. Raises `EditError` if there is none of this index."""
        if layer not in range(len(self.attention)):
            raise EditError(f"This model has attention layers 0 to {len(self.attention) - 1}, got {layer}.")
        return self.attention[layer].path

    def head(self, layer: int, head: int) -> AttentionSums:
        """Return the sums of one layer. Raises `EditError` if it has no head of this index."""
        sums = self.layer(layer)
        if head not in range(len(sums.entropy)):
            raise EditError(f"{self.path(layer)} has heads 0 to {len(sums.entropy) - 1}, got {head}.")
        return sums

    def weights(
        self, layer: int, *, head: int, queries: slice = slice(None), keys: slice = slice(None)
    ) -> Float[Tensor, "query key"]:
        """Return exact weights of some queries and keys of one head.

        Args:
            layer: The attention layer, from 0.
            head: The head, from 0.
            queries: The queries, a slice without a step.
            keys: The keys, a slice without a step.

        Raises:
            EditError: There is no such layer or head.
            InputError: A slice has a step.
        """
        sums = self.head(layer, head)
        if queries.start in sums.rows and queries.stop == queries.start + 1 and keys == slice(None):
            return sums.rows[queries.start][head : head + 1]
        if any(one.step not in (None, 1) for one in (queries, keys)):
            raise InputError(
                f"queries and keys must be slices without a step, got {queries} and {keys}; try slice(0, 9)."
            )
        path, kept = self.path(layer), self._inputs_of(self.path(layer))
        if kept is not None:
            return kept.weights(sums, queries, keys, slice(head, head + 1))[0]
        return self.adapter.record(self.example, keep=(f"{path}.pattern",))[f"{path}.pattern"][
            0, head, queries, keys
        ].cpu()

    def _inputs_of(self, path: str) -> Kept | None:
        """The queries and keys of a layer, kept or computed again; None if the model does not hand them over."""
        if path not in self.kept:
            run = SummedRun(self.kept_bytes, wanted=path)
            self.adapter.sum_attention(self.example, run)
            if path not in run.kept:
                return None
            self.kept[path] = run.kept[path]
            while len(self.kept) > 1 and sum(one.n_bytes for one in self.kept.values()) > self.kept_bytes:
                del self.kept[next(iter(self.kept))]
        return self.kept[path]

    @property
    def n_bytes(self) -> int:
        """The size of the sums, queries and keys in memory."""
        return sum(one.n_bytes for one in (*self.sums.values(), *self.kept.values()))

    def __repr__(self) -> str:
        heads = sum(len(one.entropy) for one in self.sums.values())
        return f"<AttentionSummary of {self.adapter.name}: {self.example.input_ids.shape[1]:,} tokens, {heads} heads>"


@torch.inference_mode(False)
def attention_summary(
    model: Readable,
    inputs: Any,
    *,
    tokenizer: Any = None,
    documents: Sequence[int] | None = None,
    queries: Sequence[int] = (),
    kept_bytes: int = 256 * MEBIBYTE,
    step: Callable[[int], None] | None = None,
) -> AttentionSummary:
    """Run a long input through a model and sum up every head's pattern, exactly, without keeping one.

    Models of Transformers whose attention function can be replaced are computed a few queries at a time. Of others, each
    pattern is summed up when the model has computed it.

    Args:
        model: As in `xformer.read`.
        inputs: As in `xformer.read`: one input.
        tokenizer: The tokenizer of a loaded Hugging Face model, for inputs that are texts.
        documents: The number of the document of each token, from 0, for inputs that are packed from several.
        queries: The positions of queries, from 0, whose weights in all heads are stored, besides those of the last token; see
            `analysis.attention_to`.
        kept_bytes: The memory for queries and keys, from which any weight is computed on request. Layers beyond it run again.
        step: Called after each layer with the number of layers so far. An exception that it raises ends the run.

    Returns:
        The sums of each head: entropy, largest weights and their keys, attention by distance, by key and by document, and means
        and maxima of blocks of cells.

    Raises:
        CheckpointError: The files contain no model that can be trusted.
        InputError: The model cannot read these inputs, or they are a batch.

    Example:
        >>> import xformer
        >>> summary = xformer.attention_summary("checkpoints/reverse", "3 7 12 9")
        >>> len(xformer.analysis.head_sums(summary))
        16
    """
    plain = plain_ids(inputs)
    adapter = adapter_of(model, inputs, tokenizer)
    example = adapter.to_example(plain)
    n_batch, n = example.input_ids.shape[:2]
    if n_batch != 1:
        raise InputError(f"attention_summary takes one input, got a batch of {n_batch}; pass them one by one.")
    groups = None
    if documents is not None:
        groups = torch.as_tensor(documents)
        if groups.shape != (n,) or groups.is_floating_point() or int(groups.min()) < 0:
            raise InputError(
                f"documents must be one number from 0 for each of the {n} tokens, got {list(groups.shape)} numbers of type "
                f"{groups.dtype}; for example [0] * {n}."
            )
        if example.target is not None or adapter.shape.added != (0, 0):
            raise InputError("documents can be given for models of one stack that add no positions of their own.")
    check_indices("queries", queries, n)
    run = SummedRun(kept_bytes, groups, _valid(example, n), tuple(queries), step=step)
    adapter.sum_attention(example, run)
    return AttentionSummary(
        adapter, example, run.sums, groups, kept_bytes, _code(model, plain, documents, queries), run.kept
    )


def _valid(example: Example, n: int) -> Tensor | None:
    """False at the padding of the input of a model with one stack; None if there is none."""
    if example.target is not None:
        return None
    given = (example.arguments or {}).get("attention_mask")
    valid = example.valid[0] if example.valid is not None else None
    if valid is None and isinstance(given, Tensor) and given.shape == (1, n):
        valid = given[0].bool()
    return None if valid is None or bool(valid.all()) else valid


def _code(model: Any, inputs: Any, documents: Sequence[int] | None, queries: Sequence[int]) -> str | None:
    if not isinstance(model, str | Path) or not isinstance(inputs, str | tuple):
        return None
    options = {"documents": documents and list(documents), "queries": list(queries)}
    given = "".join(f", {name}={value!r}" for name, value in options.items() if value)
    return f"xformer.attention_summary({str(model)!r}, {inputs!r}{given})"
