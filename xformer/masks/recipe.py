"""Masks put together from switches, with the code that makes them in FlexAttention, Transformers and PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from xformer.errors import InputError
from xformer.formatting import check_option
from xformer.masks.rules import Rule, bidirectional, causal, documents, padding, prefix, ranges_of, sinks, window

LIBRARIES = ("flex_attention", "transformers", "torch")
"""The libraries for which `MaskRecipe.code` writes code."""
COUNTS = ("window", "sinks", "prefix")
MARKS = ("documents", "blocks", "padding")
LARGEST = 100_000


@dataclass(frozen=True)
class MaskRecipe:
    """A mask: (((causal & (window | sinks)) | prefix | blocks) & documents) & padding; what is 0 or empty is left out.

    Attributes:
        causal: Whether no query sees later keys.
        window: The number of keys up to the query's own that it sees, and without `causal` also from its own on.
        sinks: The number of first keys that a window keeps visible.
        prefix: The number of first keys that all queries see.
        documents: The positions at which another document starts.
        blocks: The positions of image tokens; those in one run see each other.
        padding: The positions of padding.

    Example:
        >>> from xformer import masks
        >>> recipe = masks.MaskRecipe(window=4, documents=(5, 9))
        >>> recipe.text, recipe.rule(14).text
        ('causal,window:4,documents:5.9', 'causal and window 4 and 3 documents at 0, 5, 9')
    """

    causal: bool = True
    window: int = 0
    sinks: int = 0
    prefix: int = 0
    documents: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> MaskRecipe:
        """Read the text of a recipe, as in a link.

        Raises:
            InputError: The text is not that of a recipe.
        """
        found: dict[str, int | tuple[int, ...]] = {}
        for word in filter(None, text.split(",")):
            name, _, value = word.partition(":")
            numbers = [int(one) for one in value.split(".") if one.isascii() and one.isdigit() and len(one) < 7]
            is_right = name in (*COUNTS, *MARKS) and len(numbers) == len(value.split(".")) and name not in found
            is_right &= len(numbers) == 1 if name in COUNTS else True
            if not is_right and word not in ("causal", "full"):
                raise InputError(f"A mask is written as causal,window:4,documents:5.9, got {text!r:.100}.")
            if name in MARKS:
                found[name] = tuple(sorted(set(numbers)))
            elif name in COUNTS:
                found[name] = min(numbers[0], LARGEST)
        return cls(causal="full" not in text.split(","), **found)  # pyright: ignore[reportArgumentType]

    @property
    def text(self) -> str:
        """The recipe in a link: "causal,window:4,documents:5.9"."""
        words = ["causal" if self.causal else "full"]
        words += [f"{name}:{getattr(self, name)}" for name in COUNTS if getattr(self, name)]
        words += [f"{name}:{'.'.join(map(str, getattr(self, name)))}" for name in MARKS if getattr(self, name)]
        return ",".join(words)

    def fitting(self, n: int) -> MaskRecipe:
        """Return the recipe without positions that an input of `n` tokens does not have."""
        kept = {name: tuple(at for at in getattr(self, name) if at < n) for name in MARKS}
        return replace(self, **{name: min(getattr(self, name), n) for name in COUNTS}, **kept)

    def document_ids(self, n: int) -> list[int]:
        """Return the document of each of `n` tokens, from 0."""
        starts = [at for at in self.documents if 0 < at < n]
        return torch.bucketize(torch.arange(n), torch.tensor(starts, dtype=torch.int64), right=True).tolist()

    def block_ids(self, n: int) -> list[int]:
        """Return the image block of each of `n` tokens, −1 for text."""
        ids = [-1] * n
        for number, (first, stop) in enumerate(self._ranges(n)):
            ids[first:stop] = [number] * (stop - first)
        return ids

    def _ranges(self, n: int) -> list[tuple[int, int]]:
        return ranges_of([int(at in self.blocks) for at in range(n)])

    def rule(self, n: int) -> Rule:
        """Return the rule for `n` tokens."""
        if n < 1:
            raise InputError(f"A mask has at least one token, got {n}.")
        parts: list[Rule] = [causal()] if self.causal else []
        if self.window:
            near = window(self.window, ahead=None if self.causal else self.window)
            parts.append(near | sinks(self.sinks) if self.sinks else near)
        found = parts[0] if parts else bidirectional()
        for one in parts[1:]:
            found = found & one
        if parts:
            found = found | prefix(self.prefix) if self.prefix else found
            ranges = self._ranges(n)
            found = found | bidirectional(within=ranges) if ranges else found
        more = []
        if starts := [at for at in self.documents if 0 < at < n]:
            more.append(documents([0, *starts]))
        if any(at < n for at in self.padding):
            more.append(padding([int(at not in self.padding) for at in range(n)]))
        for one in more:
            found = one if found.code == "bidirectional()" else found & one
        return found

    def code(self, library: str, n: int) -> str:
        """Return code that makes this mask for `n` tokens.

        Args:
            library: One of `LIBRARIES`: a `block_mask` for FlexAttention, a `mask` [1, 1, query, key] for the models of
                Transformers, or `allowed` [query, key] for PyTorch's `scaled_dot_product_attention`.
            n: The number of tokens.

        Returns:
            Python code that runs as it is.
        """
        check_option("library", library, LIBRARIES)
        recipe = self.fitting(n)
        if library == "transformers":
            return recipe._transformers(n)
        tables, lines = recipe._tables(n), recipe._lines(n)
        if library == "torch":
            head = ["import torch", "", f"n = {n}", *tables, "q, k = torch.arange(n)[:, None], torch.arange(n)[None]"]
            tail = [
                "allowed = allowed.expand(n, n)  # [query, key], True: may attend",
                "",
                "# torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)",
                "# torch.nn.MultiheadAttention and nn.TransformerEncoder take the opposite: attn_mask=~allowed",
            ]
            return "\n".join([*head, *lines, *tail])
        head = [
            "import torch",
            "from torch.nn.attention.flex_attention import create_block_mask",
            "",
            f"n = {n}",
            *tables,
        ]
        body = ["", "", "def mask_mod(b, h, q, k):", *(f"    {line}" for line in lines), "    return allowed", "", ""]
        call = 'block_mask = create_block_mask(mask_mod, None, None, n, n, device="cpu")  # the device of your tensors'
        return "\n".join([*head, *body, call, "# flex_attention(query, key, value, block_mask=block_mask)"])

    def _tables(self, n: int) -> list[str]:
        """Return the lines that make what is looked up for each token."""
        lines = []
        if self._has_blocks(n):
            lines.append(f"block = torch.tensor({self.block_ids(n)})  # the image of each token, -1: text")
        if any(self.document_ids(n)):
            lines.append(f"document = torch.tensor({self.document_ids(n)})  # of each token")
        if self.padding:
            lines.append(f"valid = torch.tensor({[at not in self.padding for at in range(n)]})  # False: padding")
        return lines

    def _has_blocks(self, n: int) -> bool:
        return bool(self._ranges(n)) and (self.causal or self.window > 0)

    def _lines(self, n: int) -> list[str]:
        """Return the lines that compute `allowed` from q and k."""
        lines = ["allowed = k <= q" if self.causal else "allowed = (q >= 0) & (k >= 0)"]
        if self.window:
            near = f"q - k < {self.window}" if self.causal else f"(q - k).abs() < {self.window}"
            lines.append(
                f"allowed = allowed & (({near}) | (k < {self.sinks}))"
                if self.sinks
                else f"allowed = allowed & ({near})"
            )
        if self.causal or self.window:
            if self.prefix:
                lines.append(f"allowed = allowed | (k < {self.prefix})")
            if self._has_blocks(n):
                lines.append("allowed = allowed | ((block[q] == block[k]) & (block[q] >= 0))")
        if any(self.document_ids(n)):
            lines.append("allowed = allowed & (document[q] == document[k])")
        if self.padding:
            lines.append("allowed = allowed & valid[k]")
        return lines

    def _transformers(self, n: int) -> str:
        """Return code with the mask functions of Transformers."""
        used = ["causal_mask_function" if self.causal else "bidirectional_mask_function"]
        lines = [f"mask_function = {used[0]}"]

        def add(joint: str, part: str, names: Sequence[str] = ()) -> None:
            used.extend([joint, *names])
            lines.append(f"mask_function = {joint}(mask_function, {part})")

        if self.window:
            near, part = "sliding_window_overlay", f"sliding_window_overlay({self.window})"
            if not self.causal:  # counts the keys on each side without the query's own
                near, part = (
                    "sliding_window_bidirectional_overlay",
                    f"sliding_window_bidirectional_overlay({self.window - 1})",
                )
            if self.sinks:
                used.append("or_masks")
                part = f"or_masks({part}, lambda b, h, q, k: k < {self.sinks})"
            add("and_masks", part, [near])
        if self.causal or self.window:
            if self.prefix:
                add("or_masks", f"lambda b, h, q, k: k < {self.prefix}")
            if self._has_blocks(n):
                add("or_masks", "blockwise_overlay(block[None])", ["blockwise_overlay"])
        if any(self.document_ids(n)):
            add("and_masks", "packed_sequence_mask_function(document[None])", ["packed_sequence_mask_function"])
        if self.padding:
            add("and_masks", "padding_mask_function(valid[None])", ["padding_mask_function"])
        names = "".join(f"    {name},\n" for name in sorted(set(used)))
        head = ["import torch", f"from transformers.masking_utils import (\n{names})", "", f"n = {n}", *self._tables(n)]
        tail = [
            "q, k = torch.arange(n)[:, None], torch.arange(n)[None]",
            "mask = mask_function(0, 0, q, k).expand(n, n)[None, None]  # [batch, head, query, key], True: may attend",
            "",
            '# model(input_ids, attention_mask=mask), with attn_implementation="sdpa"',
        ]
        if any(self.document_ids(n)):
            tail.append("# Pass position_ids that start again at 0 in each document.")
        return "\n".join([*head, *lines, *tail])
