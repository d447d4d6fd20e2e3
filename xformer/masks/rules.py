"""Rules of masks: small values that combine with `&`, `|` and `~`, and that are mask functions themselves.

    rule = causal() & window(512) & documents(lengths=[700, 300])
    rule(b, h, q, k)  # a `mask_mod` of FlexAttention and of transformers.masking_utils

How far a window reaches differs between libraries. `window(n)` lets a query see n keys with its own among them: q − k < n. So
does `sliding_window` in Transformers for causal models. The sliding window in FlexAttention's documentation, q − k ≤ n, and the
text of Mistral's paper (Jiang et al. 2023, arXiv:2310.06825, §2), "positions between i − W and i", see n + 1: they are
`window(n + 1)`. For models that are not causal, Transformers lets a query see n keys on each side besides its own, which is
`window(n + 1, ahead=n + 1)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from xformer.errors import InputError
from xformer.formatting import check_index


@dataclass(frozen=True)
class Rule:
    """A statement about which keys each query may attend to.

    Attributes:
        text: The rule in words, with positions from 0.
        code: The call that makes it.
        rows_not_empty: Whether the rule also requires that each query has an allowed key.
        parts: The single rules of which it is made; none if it is one itself.
        n_key: The number of keys for which it is made; None: any.
        n_batch: The number of inputs for which it is made; None: any.

    Example:
        >>> from xformer import masks
        >>> print(masks.causal() & masks.window(4))
        causal() & window(4)
    """

    text: str
    code: str
    function: Callable[..., Any] = field(repr=False, compare=False)
    n_key: int | None = None
    n_batch: int | None = None
    rows_not_empty: bool = False
    is_compound: bool = field(default=False, repr=False)
    parts: tuple[Rule, ...] = field(default=(), repr=False, compare=False)

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        """Return whether query q may attend to key k, as a `mask_mod`."""
        return self.function(b, h, q, k)

    def __str__(self) -> str:
        return self.code

    def __and__(self, other: Rule) -> Rule:
        """Both rules allow the cell."""
        both = self._with(other, "&", "and", lambda b, h, q, k: self.function(b, h, q, k) & other.function(b, h, q, k))
        if "rows_not_empty()" in (self.code, other.code):  # of a requirement without cells, only the flag counts
            kept = other if self.code == "rows_not_empty()" else self
            both = replace(both, function=kept.function)
        return replace(both, rows_not_empty=self.rows_not_empty or other.rows_not_empty)

    def __or__(self, other: Rule) -> Rule:
        """At least one rule allows the cell."""
        self._need_cells("|")
        _rule(other)._need_cells("|")
        return self._with(other, "|", "or", lambda b, h, q, k: self.function(b, h, q, k) | other.function(b, h, q, k))

    def __invert__(self) -> Rule:
        """The rule forbids the cell."""
        self._need_cells("~")
        text = f"not ({self.text})"
        code = f"~({self.code})" if self.is_compound else f"~{self.code}"
        return replace(
            self, text=text, code=code, function=lambda b, h, q, k: ~self.function(b, h, q, k), is_compound=False
        )

    def _need_cells(self, operator: str) -> None:
        if self.rows_not_empty:
            raise InputError(
                f"rows_not_empty() says nothing about single cells, so it can't be combined with {operator}; add it last, "
                "with &: (causal() | prefix(4)) & rows_not_empty()."
            )

    def _with(self, other: Rule, operator: str, word: str, function: Callable[..., Any]) -> Rule:
        _rule(other)
        sizes = {}
        for name in ("n_key", "n_batch"):
            one, two = getattr(self, name), getattr(other, name)
            if one and two and one != two:
                what = "keys" if name == "n_key" else "inputs"
                raise InputError(f"{self.code} is for {one} {what}, and {other.code} for {two}.")
            sizes[name] = one or two
        text, code = (
            f" {joint} ".join(
                f"({value})" if one.is_compound and f" {joint} " not in value else value
                for one, value in zip((self, other), values, strict=True)
            )
            for joint, values in ((word, (self.text, other.text)), (operator, (self.code, other.code)))
        )
        return Rule(text, code, function, **sizes, is_compound=True, parts=(*self.leaves, *other.leaves))

    @property
    def leaves(self) -> tuple[Rule, ...]:
        """The single rules of which it is made, itself if it is one."""
        return self.parts or (self,)

    def check_size(self, n_key: int) -> None:
        """Raise `InputError` if the rule is made for another number of keys."""
        if self.n_key is not None and self.n_key != n_key:
            raise InputError(f"{self.code} is for {self.n_key} keys, but the mask has {n_key}.")


def _rule(value: Any) -> Rule:
    if not isinstance(value, Rule):
        raise InputError(f"A rule combines with rules, such as causal() & window(4), got {value!r:.100}.")
    return value


def causal() -> Rule:
    """No query attends to a later key: k ≤ q.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print(masks.causal().text)
        causal
    """
    return Rule("causal", "causal()", lambda b, h, q, k: k <= q)


def window(n: int, *, ahead: int | None = None) -> Rule:
    """A query attends to at most its own key and the n − 1 keys before: q − k < n.

    It says nothing about later keys, so a sliding window of a causal model is `causal() & window(n)`. See the module for how
    other libraries count.

    Args:
        n: The number of keys up to the query's own, with it.
        ahead: The number of keys from the query's own on, with it: k − q < ahead. None: no limit.

    Returns:
        The rule.

    Raises:
        InputError: If a number is below 1.

    Example:
        >>> from xformer import masks
        >>> masks.as_mask(masks.causal() & masks.window(2), n_query=4).cells().sum(dim=1)  # keys of each query
        tensor([1, 2, 2, 2])
    """
    for name, value in (("n", n), ("ahead", 1 if ahead is None else ahead)):
        _count(f"window: {name}", value, "1 lets a query see its own key only")
    if ahead is None:
        return Rule(f"window {n}", f"window({n})", lambda b, h, q, k: q - k < n)
    text = f"window {n}" + (" on each side" if n == ahead else f" back and {ahead} ahead")
    return Rule(text, f"window({n}, ahead={ahead})", lambda b, h, q, k: (q - k < n) & (k - q < ahead))


def documents(
    starts: Sequence[int] | None = None,
    *,
    lengths: Sequence[int] | None = None,
    cu_seqlens: Any = None,
    ids: Any = None,
) -> Rule:
    """A query attends to keys of its own document only.

    Args:
        starts: The first position of each document, from 0; the last document ends with the keys.
        lengths: The number of tokens of each document.
        cu_seqlens: The cumulative lengths, as variable-length attention kernels take them: [0, 5, 9] for documents of 5 and 4.
        ids: The number of the document of each position, [key] or [batch, key].

    Returns:
        The rule.

    Raises:
        InputError: Unless exactly one of these is given, or if it is not valid.

    Example:
        >>> from xformer import masks
        >>> print(masks.documents([0, 5, 9]).text)
        3 documents at 0, 5, 9
        >>> print(masks.documents(lengths=[5, 4, 3]).code)
        documents(lengths=[5, 4, 3])
    """
    given = {"starts": starts, "lengths": lengths, "cu_seqlens": cu_seqlens, "ids": ids}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise InputError(
            f"documents takes one of starts, lengths, cu_seqlens and ids, got {', '.join(chosen) or 'none'}; such as "
            "documents(lengths=[5, 4, 3])."
        )
    if ids is not None:
        return _documents_by_id(_table("documents: ids", ids, boolean=False))
    name = chosen[0]
    numbers = _numbers(f"documents: {name}", given[name])
    n_key = None
    if name == "lengths":
        if min(numbers) < 1:
            raise InputError(f"documents: lengths must be at least 1, got {min(numbers)}; such as lengths=[5, 4, 3].")
        n_key = sum(numbers)
        numbers = [sum(numbers[:at]) for at in range(len(numbers))]
    elif name == "cu_seqlens":
        *numbers, n_key = numbers
    if (
        not numbers
        or numbers[0]
        or any(a >= b for a, b in zip(numbers, [*numbers[1:], n_key or torch.inf], strict=True))
    ):
        hint = " If these are lengths, pass lengths=." if name == "starts" else ""
        raise InputError(
            f"documents: {name} must begin with 0 and increase, such as [0, 5, 9], got {given[name]!r:.100}.{hint}"
        )
    edges = torch.tensor(numbers[1:], dtype=torch.int64)

    def same(b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.bucketize(q, edges, right=True) == torch.bucketize(k, edges, right=True)

    code = f"documents({'' if name == 'starts' else f'{name}='}{_written(list(_numbers(name, given[name])))})"
    return Rule(_documents_text(numbers), code, same, n_key)


def _documents_by_id(ids: Tensor) -> Rule:
    n = len(ids.unique()) if ids.dim() == 1 else 0
    text = f"{n} document{'s' if n != 1 else ''}" if n else "documents of each input"
    return Rule(
        text,
        f"documents(ids={_written(ids.tolist())})",
        lambda b, h, q, k: _at(ids, b, q) == _at(ids, b, k),
        ids.shape[-1],
        len(ids) if ids.dim() == 2 else None,
    )


def _documents_text(starts: Sequence[int]) -> str:
    if len(starts) == 1:
        return "1 document"
    shown = ", ".join(map(str, starts[:12])) + (", …" if len(starts) > 12 else "")
    return f"{len(starts)} documents at {shown}"


def prefix(n: int | Sequence[int] | Tensor) -> Rule:
    """The first n keys are visible to every query: k < n. A prefix language model is `causal() | prefix(n)`.

    Args:
        n: The length of the prefix, or one for each input of the batch.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print((masks.causal() | masks.prefix(10)).text)
        causal or key in the prefix of 10
    """
    if isinstance(n, int):
        _count("prefix: n", n, "for no prefix, leave the rule out")
        return Rule(f"key in the prefix of {n}", f"prefix({n})", lambda b, h, q, k: k < n)
    lengths = torch.tensor(_numbers("prefix: n", n))
    code = f"prefix({_written(lengths.tolist())})"
    return Rule("key in the prefix of its input", code, lambda b, h, q, k: k < lengths[b], None, len(lengths))


def sinks(n: int) -> Rule:
    """The first n keys are visible, as attention sinks (Xiao et al. 2024, arXiv:2309.17453): k < n.

    The cells are those of `prefix(n)`; sinks are added to a window: `causal() & (window(512) | sinks(4))`.

    Args:
        n: The number of sinks.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print(masks.sinks(4).text)
        key among the first 4
    """
    _count("sinks: n", n, "for no sinks, leave the rule out")
    return Rule(f"key among the first {n}", f"sinks({n})", lambda b, h, q, k: k < n)


def everywhere(positions: Iterable[int]) -> Rule:
    """Queries and keys at these positions see everything, and are seen: global tokens (Beltagy et al. 2020, arXiv:2004.05150).

    Args:
        positions: The positions, from 0.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print((masks.window(3, ahead=3) | masks.everywhere([0])).text)
        window 3 on each side or query or key at 0
    """
    at = _numbers("everywhere: positions", list(positions))

    def member(x: Any) -> Any:
        found = x == at[0]
        for one in at[1:]:
            found = found | (x == one)
        return found

    shown = ", ".join(map(str, at))
    return Rule(f"query or key at {shown}", f"everywhere({at})", lambda b, h, q, k: member(q) | member(k))


def bidirectional(within: Iterable[Sequence[int]] | None = None) -> Rule:
    """Queries and keys in the same range see each other both ways; without ranges, all do.

    Images in a causal model are `causal() | bidirectional(within=[(3, 7)])`.

    Args:
        within: Ranges (first, after last) that do not overlap; None: all positions. `ranges_of` finds them from token types.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print((masks.causal() | masks.bidirectional(within=[(3, 7)])).text)
        causal or both in the block 3–6
    """
    if within is None:
        return Rule("full", "bidirectional()", lambda b, h, q, k: (q >= 0) | (k >= 0) | True)
    ranges = []
    for one in within:
        values = _numbers("bidirectional: within", one)
        if len(values) != 2 or not 0 <= values[0] < values[1]:
            raise InputError(f"bidirectional: a range is (first, after last), such as (3, 7), got {one!r:.100}.")
        ranges.append(tuple(values))
    ranges.sort()
    if not ranges or any(a[1] > b[0] for a, b in pairwise(ranges)):
        raise InputError(
            f"bidirectional: within must be ranges that do not overlap, such as [(3, 7)], got {ranges!r:.100}."
        )
    edges = torch.tensor([at for one in ranges for at in one])

    def same(b: Any, h: Any, q: Any, k: Any) -> Any:
        block = torch.bucketize(q, edges, right=True)  # odd inside a range
        return (block == torch.bucketize(k, edges, right=True)) & (block % 2 == 1)

    shown = ", ".join(f"{first}–{stop - 1}" for first, stop in ranges[:8]) + (", …" if len(ranges) > 8 else "")
    text = f"both in the block {shown}" if len(ranges) == 1 else f"both in one of the blocks {shown}"
    return Rule(text, f"bidirectional(within={ranges})", same)


def ranges_of(token_types: Sequence[int] | Tensor, kind: int = 1) -> list[tuple[int, int]]:
    """Return the runs of one token type as ranges (first, after last), for `bidirectional(within=…)`.

    Args:
        token_types: The type of each token, [pos]; in Transformers 1 is an image token.
        kind: The type.

    Returns:
        The ranges, in order.

    Example:
        >>> from xformer import masks
        >>> masks.ranges_of([0, 0, 1, 1, 0, 1])
        [(2, 4), (5, 6)]
    """
    types = _numbers("ranges_of: token_types", token_types)
    edges = [
        at
        for at in range(len(types) + 1)
        if (at < len(types) and types[at] == kind) != (at > 0 and types[at - 1] == kind)
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def padding(valid: Any) -> Rule:
    """Only keys that are tokens are visible. Rows of padding are left to the other rules; `check` can skip them.

    Args:
        valid: True or 1 where there is a token, [key] or [batch, key], as `attention_mask` in Transformers.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print(masks.padding([0, 0, 1, 1]).text)
        keys 0–1 are padding
    """
    table = _table("padding: valid", valid, boolean=True)
    n_batch = len(table) if table.dim() == 2 else None
    text = (
        "keys of padding are hidden"
        if n_batch
        else f"{positions_text('key', (~table).nonzero()[:, 0].tolist())} padding"
    )
    code = f"padding({_written(table.int().tolist())})"
    return Rule(text, code, lambda b, h, q, k: _at(table, b, k), table.shape[-1], n_batch)


def queries(positions: Iterable[int]) -> Rule:
    """The query is at one of these positions: `~queries([7])` leaves row 7 empty.

    Args:
        positions: The positions, from 0.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print((masks.causal() & ~masks.queries([7])).text)
        causal and not (query at 7)
    """
    at = _numbers("queries: positions", list(positions))

    def member(b: Any, h: Any, q: Any, k: Any) -> Any:
        found = q == at[0]
        for one in at[1:]:
            found = found | (q == one)
        return found

    return Rule(f"query at {', '.join(map(str, at))}", f"queries({at})", member)


def chunked(n: int, *, left_padding: int = 0) -> Rule:
    """A query attends to keys of its own chunk of n positions: q // n = k // n.

    Args:
        n: The length of a chunk.
        left_padding: The number of positions of padding before the first chunk.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print(masks.chunked(4).text)
        chunks of 4
    """
    _count("chunked: n", n, "such as 4")
    check_index("chunked: left_padding", left_padding)
    text = f"chunks of {n}" + (f" from {left_padding}" if left_padding else "")
    code = f"chunked({n}{f', left_padding={left_padding}' if left_padding else ''})"
    return Rule(text, code, lambda b, h, q, k: (q - left_padding) // n == (k - left_padding) // n)


def dilated(n: int) -> Rule:
    """A query attends to keys at distances that are multiples of n (Child et al. 2019, arXiv:1904.10509).

    Args:
        n: The distance between the keys.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print((masks.causal() & masks.dilated(2)).text)
        causal and every second key
    """
    _count("dilated: n", n, "such as 2")
    word = {2: "second", 3: "third", 4: "fourth"}.get(n, f"{n}th")
    return Rule(f"every {word} key", f"dilated({n})", lambda b, h, q, k: (q - k) % n == 0)


def neighbourhood(height: int, width: int, kernel: int, *, clamped: bool = True) -> Rule:
    """In an image of tokens in rows, a query attends to the kernel × kernel tokens around it.

    As in NATTEN (Hassani et al. 2023, arXiv:2204.07143).

    Args:
        height: The number of rows of the image.
        width: The number of tokens in a row.
        kernel: The size of the neighbourhood, an odd number.
        clamped: Whether the neighbourhood of a token at the edge is moved into the image, as in NATTEN; else it is cut off.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print(masks.neighbourhood(8, 8, 3).text)
        neighbourhood 3 × 3 in 8 × 8
    """
    for name, value in (("height", height), ("width", width), ("kernel", kernel)):
        _count(f"neighbourhood: {name}", value, "such as 3")
    if kernel % 2 == 0 or kernel > min(height, width):
        raise InputError(
            f"neighbourhood: kernel must be odd and fit into {height} × {width}, got {kernel}; such as "
            f"{max(1, min(height, width) // 2 * 2 - 1)}."
        )
    half = kernel // 2

    def near(b: Any, h: Any, q: Any, k: Any) -> Any:
        rows, columns = q // width, q % width
        if clamped:
            rows, columns = rows.clamp(half, height - 1 - half), columns.clamp(half, width - 1 - half)
        return ((rows - k // width).abs() <= half) & ((columns - k % width).abs() <= half)

    text = f"neighbourhood {kernel} × {kernel} in {height} × {width}" + ("" if clamped else ", cut off at the edges")
    code = f"neighbourhood({height}, {width}, {kernel}{'' if clamped else ', clamped=False'})"
    return Rule(text, code, near, height * width)


def rows_not_empty() -> Rule:
    """Each query has an allowed key. Where there is none, softmax gives NaN, or a mean over forbidden keys.

    It says nothing about single cells, and is added to other rules with `&`.

    Returns:
        The rule.

    Example:
        >>> from xformer import masks
        >>> print((masks.causal() & masks.rows_not_empty()).text)
        causal and no empty row
    """
    return Rule("no empty row", "rows_not_empty()", lambda b, h, q, k: (q >= 0) | True, rows_not_empty=True)


def positions_text(what: str, at: Sequence[int]) -> str:
    """Return "key 3 is", "keys 0–2, 5 are" or "no key is"."""
    if not len(at):
        return f"no {what} is"
    runs: list[list[int]] = []
    for one in at:
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    shown = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs[:8]) + (", …" if len(runs) > 8 else "")
    return f"{what} {shown} is" if len(at) == 1 else f"{what}s {shown} are"


def _at(table: Tensor, b: Any, position: Any) -> Any:
    return table[position] if table.dim() == 1 else table[b, position]


def _count(name: str, value: Any, hint: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r:.100}; {hint}.")


def _numbers(name: str, values: Any) -> list[int]:
    listed = values.tolist() if isinstance(values, Tensor) else list(values) if isinstance(values, Iterable) else None
    if not listed or any(not isinstance(one, int) or isinstance(one, bool) or one < 0 for one in listed):
        raise InputError(f"{name} must be whole numbers from 0, such as [0, 5, 9], got {values!r:.100}.")
    return listed


def _table(name: str, values: Any, *, boolean: bool) -> Tensor:
    """Return a table of booleans or integers for each key, [key] or [batch, key]."""
    try:
        table = torch.as_tensor(values).detach().to("cpu")
    except (TypeError, ValueError, RuntimeError):
        table = torch.zeros(0)
    if table.dim() not in (1, 2) or not table.numel() or table.is_floating_point():
        raise InputError(f"{name} must be whole numbers, [key] or [batch, key], got {values!r:.100}.")
    if not boolean:
        return table.long()
    if table.dtype != torch.bool and bool(((table != 0) & (table != 1)).any()):
        raise InputError(f"{name} must be 1 for tokens and 0 for padding, got {int(table.max())}.")
    return table.bool()


def _written(values: list[Any]) -> str:
    """Write a list out if it is short."""
    text = repr(values)
    return text if len(text) <= 200 else f"[…{len(values)} values]"
