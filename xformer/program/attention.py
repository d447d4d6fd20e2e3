"""Find the attention of a program by its data flow.

    scores   a product of two tensors that have positions, then a chain of elementwise operations and views
    pattern  a normalisation of the scores over one of the two position axes, in any spelling
    z        a product of the pattern with values, over the keys

Which axis is which follows from the products: axes of both operands are batch or heads, those of one are its positions. Heads
are divisions of a projection's output, batches come from the inputs. The keys are the axis that the product with the values
sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from xformer.errors import InputError
from xformer.program.axes import Atom, Product, argument, bases, size_of
from xformer.program.axis_tracker import AxisTracker
from xformer.program.record import UNSEEN, Operation, Program, Value

Role = Literal["batch", "head", "query", "key", "width"]
ROLES: tuple[Role, ...] = ("batch", "head", "query", "key", "width")
PATTERN: tuple[Role, ...] = ROLES[:4]
Z: tuple[Role, ...] = ("batch", "head", "query", "width")
MIXED = "its scores or weights are mixed across heads between the queries and the values"
KERNELS = ("scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention")
PARTS = {
    *KERNELS, "matmul", "bmm", "mm", "baddbmm", "addbmm", "einsum", "tensordot", "cdist", "mul", "multiply", "sub", "div",
    "softmax", "log_softmax", "exp", "exp2", "normalize",
}  # fmt: skip
"""The functions whose arguments and results are the tensors of an attention."""


@dataclass(frozen=True)
class HeadLayout:
    """How a tensor of an attention stores batch, heads and positions."""

    factors: tuple[tuple[tuple[Role, int | None], ...], ...]
    """For each axis its factors, outermost first, with their sizes; None for a size that depends on the inputs."""
    result_roles: tuple[Role, ...] = PATTERN
    """The axes of `to_heads`; those that the tensor lacks have size 1, as a single query."""

    def to_heads(self, tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "batch head ..."]:
        """The tensor as [batch, head, query, key], or [batch, head, query, width] for z."""
        sizes = self._sizes(tensor)
        apart = tensor.reshape(sizes).permute(self._order)
        shape = dict.fromkeys(self.result_roles, 1)
        for at, role in enumerate(self._roles):
            shape[role] *= sizes[at]
        return apart.reshape(list(shape.values()))

    def from_heads(self, heads: Shaped[Tensor, "batch head ..."], like: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """The inverse of `to_heads`; `like` has the shape of the result."""
        sizes, order = self._sizes(like), self._order
        inverse = [order.index(at) for at in range(len(order))]
        return heads.reshape([sizes[at] for at in order]).permute(inverse).reshape(like.shape)

    def loosened(self) -> HeadLayout:
        """The layout for tensors with another number of heads, as grouped keys."""
        factors: list[tuple[tuple[Role, int | None], ...]] = [
            ((axis[0][0], None),) if len(axis) == 1 else axis for axis in self.factors
        ]
        return HeadLayout(tuple(factors), self.result_roles)

    @property
    def n_heads(self) -> int:
        """The number of heads."""
        return math.prod(size or 1 for axis in self.factors for role, size in axis if role == "head")

    @property
    def _roles(self) -> list[Role]:
        return [role for axis in self.factors for role, _ in axis]

    @property
    def _order(self) -> list[int]:
        """The factors in the order of the result's axes."""
        roles = self._roles
        return sorted(range(len(roles)), key=lambda at: ROLES.index(roles[at]))

    def _sizes(self, tensor: Tensor) -> list[int]:
        found: list[int] = []
        for axis, size in zip(self.factors, tensor.shape, strict=True):
            known = math.prod(n for _, n in axis if n is not None)
            found += [size // known if n is None else n for _, n in axis]
        if math.prod(found) != tensor.numel():
            raise InputError("The axes of its attention change with the sizes of the input.")
        return found


class Operand(NamedTuple):
    """Queries, keys or values in a product."""

    value: Value
    layout: HeadLayout
    """[batch, head, pos, width]; grouped keys and values have fewer heads."""


@dataclass(frozen=True, eq=False)
class FoundAttention:
    """One attention of a program."""

    scores: Value
    """The input of the softmax."""
    pattern: Value
    """The weights that multiply the values."""
    z: Value
    normaliser: Operation
    layout: HeadLayout
    """That of the scores."""
    pattern_layout: HeadLayout
    z_layout: HeadLayout
    product: Product | None = None
    values: Product | None = None
    """The product with the values."""
    normalised: Role = "key"
    """The axis over which the weights are normalised."""
    batch: Atom | None = None
    """The atom of the batch; None for an input without a batch."""
    is_masked_later: bool = False
    """Whether a mask is applied to the exponentials or the weights instead of the scores."""
    is_whole: bool = True
    """Whether it has all queries and keys, rather than a slice of an input's positions."""
    kernel: Operation | None = None
    """The fused function that computes all of it, as `scaled_dot_product_attention`."""
    operands: Mapping[str, Operand] = field(default_factory=dict)
    """Queries, keys and values by name (q, k, v), except those whose heads are in another order than the scores'."""
    chain: tuple[Operation, ...] = ()
    """The operations between the product of queries and keys and the scores, in order."""

    @property
    def first(self) -> Operation:
        """The operation that computes the scores, or all of it."""
        found = self.kernel or (self.product.operation if self.product else None)
        assert found is not None
        return found

    @property
    def last(self) -> Operation:
        """The operation that computes z."""
        assert self.z.operation is not None
        return self.z.operation


@dataclass(frozen=True)
class Refusal:
    """Something that looks like attention but cannot be read."""

    operation: Operation
    reason: str

    def __str__(self) -> str:
        where = f" ({self.operation.line})" if self.operation.line else ""
        return f"{self.reason}{where}"


_OPAQUE = {
    "linear", "embedding", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "group_norm", "batch_norm", "softmax",
    "einsum", "matmul", "bmm", "tensordot", "inner", "bilinear", "multi_dot", "chain_matmul",
    "cumsum", "cumprod", "fft", "ifft", "sort", "topk", "argsort", "gather", "scatter", "roll",
    "flip", "fliplr", "flipud", "rot90",
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
}  # fmt: skip
_UNFOLLOWED = ("einsum", "tensordot", "multi_dot", "chain_matmul", "bilinear", "inner")
_BORDERS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "embedding", "conv1d", "conv2d", "conv3d")
_SOFTMAX = ("softmax", "log_softmax")
_REDUCTIONS = (
    "sum", "mean", "max", "amax", "min", "amin", "logsumexp", "norm", "argmax", "argmin", "all", "any", "prod",
)  # fmt: skip
_SATURATING = ("gumbel_softmax", "exp", "sigmoid", "relu", "tanh", "softplus", "elu", "silu", "gelu", "square", "pow")


class AttentionFinder:
    """Finds every attention of a program, and what cannot be read as one.

    Args:
        program: The program.
        axes: Its axes.
        over: The axes over which weights may be normalised.
    """

    def __init__(self, program: Program, axes: AxisTracker, over: Collection[Role] = ("query", "key")) -> None:
        self.axes, self._over = axes, over
        self.found: list[FoundAttention] = []
        self.refused: list[Refusal] = []
        self.notes: list[str] = []
        """Where attention may be hidden."""
        self._seen: set[Value] = set()
        for operation in program.operations:
            if operation.name in KERNELS:
                self._kernel(operation)
                continue
            self._note_unseen(operation)
            if operation in axes.products:
                product = axes.products[operation]
                for side, value in enumerate((product.left, product.right)):
                    if value.is_from_inputs and self._values_product(product, side):
                        break
            elif operation.name in _UNFOLLOWED and _Backwards(axes).has_softmax(operation.inputs):
                self.refused.append(Refusal(operation, f"{operation.name} of these operands is not followed"))

    def _note_unseen(self, operation: Operation) -> None:
        """Note what was computed from the inputs in scripted or compiled code."""
        if operation.name == UNSEEN and operation.result.is_from_inputs:
            self.notes.append(
                f"The output of {operation.address.module or 'the module'} is computed in {_OUT_OF_SIGHT}{_NOT_SEEN}"
            )
        elif any(value.name == UNSEEN and value.shape.numel() > 1 for value in operation.inputs):  # no single number
            self.notes.append(f"What {operation.line} reads is computed in {_OUT_OF_SIGHT}{_NOT_SEEN}")

    # From the product with the values back to the product of queries and keys

    def _values_product(self, product: Product, side: int) -> bool:
        weights = (product.left, product.right)[side]
        back = _Backwards(self.axes)
        every = back.to_normalisers(weights)
        if len(every) > 1:
            every = [
                one for one in every if any(_has_positions(product) for product, _ in back.to_products(one[1]))
            ] or every
        if len(every) > 1:
            self._refuse(
                product.operation, "its weights combine several softmaxes, so no one matrix of scores gives them"
            )
            return True
        if not every:
            self._unnormalised(product, weights, side)
            if self._is_square(product, side) and back.has_softmax([weights]):
                reason = (
                    "its weights are changed between the softmax and the values, so no matrix for each head shows it"
                )
                self._refuse(product.operation, reason)
            return False
        normaliser, scores, at = every[0]
        if scores in self._seen:
            return True
        sources = [one for one in back.to_products(scores) if _has_positions(one[0])]
        if not sources:
            self._unnormalised(product, weights, side)
            if self._is_square(product, side):
                self._refuse(normaliser, _NO_PRODUCT)
            return False
        self._seen.add(scores)
        try:
            self.found.append(self._attention(product, side, weights, normaliser, scores, at, sources))
        except _UnreadableError as error:
            self.refused.append(Refusal(normaliser, str(error)))
        return True

    def _refuse(self, operation: Operation, reason: str) -> None:
        """Refuse an attention, unless it was refused for a more precise reason."""
        if not self.refused or self.refused[-1].operation.index < operation.index - _NEAR:
            self.refused.append(Refusal(operation, reason))

    def _is_square(self, product: Product, side: int) -> bool:
        """Whether one operand weights positions of the other for each of several positions."""
        own = product.rows if side == 0 else product.columns
        values = product.right if side == 0 else product.left
        sides = product.contracted[side], own
        return values.is_from_inputs and all(
            _has_inputs(one) or any(atom.origin == "unknown" for atom in one) for one in sides
        )

    def _attention(
        self,
        values: Product,
        side: int,
        weights: Value,
        normaliser: Operation,
        scores: Value,
        at: int,
        sources: Sequence[tuple[Product, tuple[Operation, ...]]],
    ) -> FoundAttention:
        atoms = {id(base) for axis in self.axes.of(scores) for atom in axis for base in bases(atom)}

        def fits(source: tuple[Product, tuple[Operation, ...]]) -> tuple[bool, bool]:
            product = source[0]
            is_whole = all(id(atom) in atoms for atom in (*product.rows, *product.columns))
            return is_whole, product.left.is_from_inputs and product.right.is_from_inputs

        product, chain = max(sources, key=fits)
        joined = [one for one in chain if one.name in ("cat", "concat") and _n_products(one, self.axes) > 1]
        if joined:
            raise _UnreadableError("its scores are joined from several products, as for keys of a memory")
        if all(map(_has_inputs, product.contracted)) and not all(map(self.axes.is_features, product.contracted)):
            raise _UnreadableError("it attends between channels, not between positions")
        roles = _Roles(product)
        sides = {roles.of(atom) for atom in values.contracted[side]}
        if not sides and not self.axes.of(scores)[at]:  # a single key
            sides = {"row"} if product.columns else {"column"}
        if sides not in ({"row"}, {"column"}):
            if "head" in sides:
                raise _UnreadableError(MIXED)
            raise _UnreadableError("the product with the values sums over no axis of positions")
        roles.keys = "row" if "row" in sides else "column"
        normalised: set[Role] = {roles.role(atom) for atom in self.axes.of(scores)[at]}
        if normalised == {"query", "key"}:
            raise _UnreadableError("it is normalised over queries and keys together")
        if not normalised <= {*self._over} or len(normalised) > 1:
            raise _UnreadableError(f"it is normalised over {_listed(normalised)}, which are no positions")
        layout, pattern_layout = self._layout(scores, roles), self._layout(weights, roles)
        if layout.n_heads != pattern_layout.n_heads:
            raise _UnreadableError("its heads are combined between the softmax and the values")
        z = values.operation.result
        extra: dict[int, Role] = {id(atom): _shared_role(atom) for atom in values.shared}
        q_side = 0 if roles.keys == "column" else 1
        operands = {
            "q": self._operand(product, q_side, "query", scores, roles),
            "k": self._operand(product, 1 - q_side, "key", scores, roles),
            "v": self._operand(values, 1 - side, "width", scores, roles),
        }
        return FoundAttention(
            scores,
            weights,
            z,
            normaliser,
            layout,
            pattern_layout,
            self._layout(z, roles, extra),
            product,
            values,
            normalised.pop() if normalised else "key",
            roles.batch,
            _Backwards(self.axes).is_masked(weights),
            bool(roles.queries(product)) and not any(_is_slice(atom) for atom in (*product.rows, *product.columns)),
            operands={name: one for name, one in operands.items() if one is not None},
            chain=chain,
        )

    def _operand(self, product: Product, side: int, own: Role, scores: Value, roles: _Roles) -> Operand | None:
        """One operand of a product. Its axes that the other lacks have the role `own`, unless they are heads."""
        value, summed = (product.left, product.right)[side], {id(atom) for atom in product.contracted[side]}
        sides = {id(atom): [atom] for atom in product.shared if roles.find(atom)}
        for one, other in _aligned(product.shared, product.others):
            known = one if all(map(roles.find, one)) else other
            sides |= {id(atom): known for atom in (*one, *other)}
        alone = {id(of): [atom] for atom in (product.rows, product.columns)[side] for of in (atom, atom.base or atom)}
        sides |= alone
        factors, heads = [], list[Atom]()
        for axis in self.axes.of(value):
            found: list[tuple[Role, int | None]] = []
            for atom in axis:
                known = sides.get(id(atom), [])
                role = roles.find(known[0]) if known else None
                if atom.size == 1 and not known:
                    continue
                if id(atom) in summed:
                    role = "key" if own == "width" else "width"
                elif id(atom) in alone and role != "head":
                    role = own
                elif role not in ("batch", "head") or len({*map(roles.find, known)}) > 1:
                    return None
                elif role == "head":
                    heads += known
                if found and found[-1][0] == role and role in ("query", "key", "width"):
                    continue
                found.append((role, atom.size if role == "head" else None))
            if sum(size is None for _, size in found) > 1:
                return None
            factors.append(tuple(found))
        order = [id(base) for axis in self.axes.of(scores) for atom in axis for base in bases(atom)]
        at = [order.index(id(one)) if id(one) in order else -1 for one in heads]
        if at != sorted(at) or -1 in at:
            return None
        return Operand(
            value, HeadLayout(tuple(factors), ("batch", "head", "query" if own == "query" else "key", "width"))
        )

    def _layout(self, value: Value, roles: _Roles, extra: dict[int, Role] | None = None) -> HeadLayout:
        factors = []
        for axis in self.axes.of(value):
            found = []
            for atom in axis:
                if atom.size == 1 and roles.find(atom) is None:
                    continue  # it may be any axis, as the single text of a mask
                role = roles.role(atom) if extra is None else roles.find(atom) or extra.get(id(atom)) or "width"
                if atom.origin == "unknown":
                    name = value.operation.name if value.operation else "an unknown operation"
                    raise _UnreadableError(f"what the axes mean after {name} is not known")
                if found and found[-1][0] == role and role in ("query", "key", "width"):
                    continue  # rows and columns of an image are one axis of positions
                is_free = atom.origin == "input" or role in ("query", "key", "width")
                found.append((role, None if is_free else atom.size))
            if sum(size is None for _, size in found) > 1:
                raise _UnreadableError("one axis holds several sizes that depend on the input")
            factors.append(tuple(found))
        return HeadLayout(tuple(factors), PATTERN if extra is None else Z)

    def _kernel(self, operation: Operation) -> None:
        """A fused function; the layout of its queries is that of its result."""
        query = operation.result
        axes = self.axes.of(query)
        is_multi_head = operation.name == "multi_head_attention_forward"  # [pos, batch, d_model]
        rows, shared = (axes[0], axes[1:-1]) if is_multi_head else (axes[-2], axes[:-2])
        keys = self.axes.of(operation.inputs[1])[0 if is_multi_head else -2]
        if not (_has_inputs(rows) or _has_inputs(keys)) and any(_has_inputs(axis) for axis in shared[1:]):
            return  # at each position over something else, as over the layers of a model
        try:
            if operation.name == "flex_attention" and not _is_identity(operation.args[3]):
                raise _UnreadableError("a score_mod of flex_attention changes its scores inside the kernel")
            roles = _Roles.of_kernel([atom for axis in shared for atom in axis if atom.origin == "input"], rows)
            lead = self._layout(query, roles, {id(atom): _shared_role(atom) for axis in shared for atom in axis})
            layout = HeadLayout((*lead.factors[:-2], (("query", None),), (("width", None),)), Z)
        except _UnreadableError as error:
            self.refused.append(Refusal(operation, str(error)))
            return
        result = operation.result
        self.found.append(
            FoundAttention(
                result, result, result, operation, layout, layout, layout, kernel=operation, batch=roles.batch
            )
        )

    def _unnormalised(self, product: Product, weights: Value, side: int) -> None:
        """Note attention whose weights come from another function than a softmax, or in a way that is not understood."""
        back = _Backwards(self.axes)
        values = product.right if side == 0 else product.left
        if not values.is_from_inputs:
            return
        if weights.is_from_inputs and back.is_unseen(weights):
            reason = f"its scores or weights are computed in {_OUT_OF_SIGHT}"
            self.refused.append(Refusal(product.operation, reason))
            return
        for source, chain in back.to_products(weights, through_mixing=True):
            if not _has_positions(source) or source is product:
                continue
            rows, columns = ({id(atom) for atom in atoms} for atoms in (source.rows, source.columns))
            summed = {id(base) for atom in product.contracted[side] for base in bases(atom)}
            if not (_has_inputs(source.rows) and _has_inputs(source.columns) and summed & (rows | columns)):
                continue
            mixing = next((one for one in chain if one in self.axes.products), None)
            used = next((one for one in chain if one.name in _SATURATING), None)
            if mixing is not None:
                reason = MIXED
            else:
                by = f"from {used.name}" if used else "straight from the product of queries and keys"
                reason = f"its weights come {by}, not from a softmax"
            self.refused.append(Refusal(mixing or used or product.operation, reason))
            return


_NO_PRODUCT = "its scores are not one product of queries and keys with operations on each score"
_NEAR = 12
"""The number of operations within which two reasons concern the same attention."""
_OUT_OF_SIGHT = "code whose steps cannot be observed (scripted, compiled, vectorised or NumPy)"
_NOT_SEEN = "; attention inside it is not in the reading."


class _UnreadableError(Exception):
    """The true reason for which an attention cannot be read."""


class _Roles:
    """The roles of the atoms of one attention."""

    def __init__(self, product: Product) -> None:
        self.keys = "column"
        rows, columns = product.rows, product.columns
        grouped = [side for side in (rows, columns) if _has_inputs(side)]
        heads = [atom for side in grouped for atom in side if atom.origin not in ("input", "new")]
        self._rows = {id(atom) for atom in rows if atom not in heads}  # heads of one group share their keys
        self._columns = {id(atom) for atom in columns if atom not in heads}
        self._shared = {id(atom): atom for atom in (*product.shared, *heads)}
        self._check([atom for atom in product.shared if atom.origin == "input"])

    @classmethod
    def of_kernel(cls, batch: Sequence[Atom], rows: Sequence[Atom]) -> _Roles:
        found = cls.__new__(cls)
        found.keys, found._rows, found._columns, found._shared = "column", {id(one) for one in rows}, set(), {}
        found._check(list(batch))
        return found

    def _check(self, batches: Sequence[Atom]) -> None:
        if any(atom.is_part for atom in batches):
            raise _UnreadableError("it attends within windows or groups of positions, so no single matrix shows it")
        if len(batches) > 1:
            raise _UnreadableError("it attends along one of several axes of positions, so no single matrix shows it")
        self.batch = batches[0] if batches else None

    def of(self, atom: Atom) -> str | None:
        """ "row", "column", "batch" or "head"; None for an atom of something else."""
        for base in bases(atom):
            if id(base) in self._columns:
                return "column"
            if id(base) in self._rows:
                return "row"
            if id(base) in self._shared:
                return "batch" if base.origin == "input" else "head"
        return None

    def queries(self, product: Product) -> tuple[Atom, ...]:
        """The atoms of the product's queries."""
        return product.columns if self.keys == "row" else product.rows

    def find(self, atom: Atom) -> Role | None:
        of = self.of(atom)
        if of in ("row", "column"):
            return "key" if of == self.keys else "query"
        return of  # type: ignore[return-value]

    def role(self, atom: Atom) -> Role:
        found = self.find(atom)
        if found is None:
            raise _UnreadableError(f"an axis of {atom.size} is neither batch, head, query nor key")
        return found


def _aligned(one: Sequence[Atom], other: Sequence[Atom]) -> Iterator[tuple[list[Atom], list[Atom]]]:
    """The atoms of two descriptions of the same axes, in groups of equal size; atoms of size 1 are left out."""
    left, right = ([atom for atom in side if atom.size != 1] for side in (one, other))
    while left and right:
        pair = [left.pop(0)], [right.pop(0)]
        while (sizes := (size_of(tuple(pair[0])), size_of(tuple(pair[1]))))[0] != sizes[1]:
            rest = left if sizes[0] < sizes[1] else right
            if not rest:
                return
            pair[0 if rest is left else 1].append(rest.pop(0))
        yield pair


def _has_inputs(atoms: Sequence[Atom]) -> bool:
    return any(atom.origin == "input" for atom in atoms)


def _is_slice(atom: Atom) -> bool:
    return any(one.origin == "input" and one.is_part and not one.is_divisor for one in bases(atom))


def _shared_role(atom: Atom) -> Role:
    return "batch" if atom.origin == "input" else "head"


def _is_identity(score_mod: Callable[..., Tensor]) -> bool:
    """Whether a `score_mod` of `flex_attention` returns the scores themselves."""
    score = torch.ones(())
    with suppress(Exception):  # it may raise anything outside its kernel
        return score_mod(score, *torch.zeros(4, dtype=torch.long)) is score
    return False


def _listed(names: set[Role]) -> str:
    return " and ".join(sorted(names)) or "nothing"


def _has_positions(product: Product) -> bool:
    """Whether a product may be that of queries and keys: both have positions, and it is no projection by a weight."""
    if product.operation.name == "linear" or not (product.rows or product.columns):
        return False
    if not (product.rows and product.columns) and not _has_inputs((*product.rows, *product.columns)):
        return False  # one of them may be a single position
    for one in (product.left, product.right):
        if not one.is_from_inputs and (one.is_weight or len(one.shape) < 3):
            return False
    return product.left.is_from_inputs or product.right.is_from_inputs


def _n_products(operation: Operation, axes: AxisTracker) -> int:
    """The number of joined parts that come from products of queries and keys; a sink may come from a projection."""
    back = _Backwards(axes)
    return sum(any(_has_positions(one) for one, _ in back.to_products(value)) for value in operation.inputs)


class _Backwards:
    """Follows values back through elementwise operations and views."""

    def __init__(self, axes: AxisTracker) -> None:
        self.axes = axes

    def to_normalisers(self, value: Value) -> list[tuple[Operation, Value, int]]:
        """The operations that normalise the sources of a value, each with its input and the axis of that input."""
        found: list[tuple[Operation, Value, int]] = []
        left, seen = [value.operation], set[Operation]()
        while left:
            operation = left.pop()
            if operation is None or operation in seen:
                continue
            seen.add(operation)
            if (one := self._normaliser(operation)) is not None:
                found.append(one)
            elif _is_transparent(operation) and operation not in self.axes.products:
                left += [source.operation for source in _same_kind(operation)]
        return found

    def _normaliser(self, operation: Operation) -> tuple[Operation, Value, int] | None:
        if operation.name == "softmax":
            source = operation.inputs[0]
            dim = argument(operation, 1, "dim")
            return None if dim is None else (operation, source, int(dim) % max(1, len(source.shape)))
        if (
            operation.name == "exp"
            and (inner := operation.inputs[0].operation) is not None
            and inner.name == "log_softmax"
        ):
            source = inner.inputs[0]
            return operation, source, int(argument(inner, 1, "dim")) % len(source.shape)
        if operation.name == "exp":
            return self._minus_logsumexp(operation)
        if operation.name in ("div", "mul") and len(operation.inputs) == 2:
            return self._divided_by_sum(operation)
        if operation.name == "normalize" and argument(operation, 1, "p") == 1:
            numerator = operation.inputs[0]
            exponent = self._exponent(numerator)
            dim = int(argument(operation, 2, "dim", 1)) % len(numerator.shape)
            return None if exponent is None else (operation, exponent, dim)
        return None

    def _minus_logsumexp(self, operation: Operation) -> tuple[Operation, Value, int] | None:
        """exp(scores − logsumexp(scores))"""
        inner = operation.inputs[0].operation
        if inner is None or inner.name != "sub" or len(inner.inputs) != 2:
            return None
        scores, total = inner.inputs
        if total.operation is None or total.operation.name != "logsumexp" or total.operation.inputs[0] is not scores:
            return None
        return operation, scores, int(argument(total.operation, 1, "dim")) % len(scores.shape)

    def _divided_by_sum(self, operation: Operation) -> tuple[Operation, Value, int] | None:
        """exp(scores) / exp(scores).sum(dim), also as a product with 1 / sum"""
        numerator, denominator = operation.inputs
        if operation.name == "mul":
            inverse = denominator.operation
            if inverse is None or inverse.name not in ("reciprocal", "div") or len(inverse.inputs) != 1:
                return None
            denominator = inverse.inputs[0]
        total = denominator.operation
        while total is not None and total.name in (
            "add",
            "clamp",
            "clamp_min",
            "unsqueeze",
            "expand",
            "expand_as",
            "maximum",
        ):
            total = total.inputs[0].operation
        if total is None or total.name != "sum" or total.inputs[0] is not numerator:
            return None
        exponent = self._exponent(numerator)
        dim = argument(total, 1, "dim", total.kwargs.get("axis"))
        dim = dim[0] if isinstance(dim, tuple | list) else dim
        if exponent is None or dim is None:
            return None
        return operation, exponent, int(dim) % len(numerator.shape)

    def _exponent(self, value: Value) -> Value | None:
        """The scores of which a value is the exponential, without a subtracted maximum."""
        operation = value.operation
        while operation is not None and operation.name in ("masked_fill", "mul", "where"):
            operation = next((one.operation for one in operation.inputs if one.dtype.is_floating_point), None)
        if operation is None or operation.name not in ("exp", "exp2"):
            return None
        source = operation.inputs[0]
        inner = source.operation
        if inner is not None and inner.name == "sub" and len(inner.inputs) == 2:
            subtracted = inner.inputs[1].operation
            while subtracted is not None and subtracted.name in ("detach", "unsqueeze", "getitem", "clamp"):
                subtracted = subtracted.inputs[0].operation
            if (
                subtracted is not None
                and subtracted.name in ("max", "amax")
                and subtracted.inputs[0] is inner.inputs[0]
            ):
                return inner.inputs[0]
        return source

    def is_unseen(self, value: Value, depth: int = 0) -> bool:
        """Whether a value comes from scripted or compiled code, through elementwise functions and softmaxes only."""
        operation = value.operation
        if operation is None or depth > 40:
            return value.name == UNSEEN
        if operation.name == UNSEEN:
            return True
        is_product = operation in self.axes.products
        is_followed = operation.name in _SOFTMAX or (not is_product and _is_transparent(operation))
        return is_followed and any(
            self.is_unseen(one, depth + 1) for one in _same_kind(operation) if one.shape.numel() > 1
        )

    def has_softmax(self, values: Sequence[Value], n: int = 40) -> bool:
        """Whether any of these values comes from a softmax, through anything but products and projections."""
        left, seen = [value.operation for value in values], set[Operation]()
        while left and len(seen) < n:
            operation = left.pop()
            if operation is None or operation in seen:
                continue
            if operation.name in _SOFTMAX and operation.result.is_from_inputs:
                return True
            seen.add(operation)
            if operation not in self.axes.products and operation.name not in (*KERNELS, *_UNFOLLOWED, *_BORDERS):
                left += [one.operation for one in _same_kind(operation)]
        return False

    def is_masked(self, weights: Value) -> bool:
        """Whether the weights, or the exponentials that they were computed from, were masked."""
        operation = weights.operation
        while operation is not None and operation.name not in ("exp", "exp2", *_SOFTMAX):
            if operation.name in ("masked_fill", "where", "mul", "tril", "triu", "setitem"):
                return True
            operation = next((one.operation for one in _same_kind(operation)), None)
        return False

    def to_products(self, value: Value, *, through_mixing: bool = False) -> list[tuple[Product, tuple[Operation, ...]]]:
        """The products that a value was computed from, each with the operations after it, in order.

        `through_mixing`: also follow softmaxes and products with weights, as between heads.
        """
        found: list[tuple[Product, tuple[Operation, ...]]] = []
        left, seen = [(value, tuple[Operation, ...]())], set[Operation]()
        while left:
            one, chain = left.pop()
            operation = one.operation
            if operation is None or operation in seen or len(chain) > 40:
                continue
            seen.add(operation)
            product = self.axes.products.get(operation)
            is_mixing = through_mixing and (
                operation.name in _SOFTMAX or (product is not None and not _has_positions(product))
            )
            if product is not None and not is_mixing:
                found.append((product, chain))
            elif is_mixing or _is_transparent(operation):
                left += [(source, (operation, *chain)) for source in reversed(_same_kind(operation))]
        return found


def _is_transparent(operation: Operation) -> bool:
    if operation.name in ("max", "min") and len(operation.inputs) == 2:
        return True  # of two tensors, an elementwise function
    return operation.name not in _OPAQUE and operation.name not in _REDUCTIONS and operation.name not in KERNELS


def _same_kind(operation: Operation) -> list[Value]:
    """The arguments that an operation may have passed on: those of floating point, which depend on the inputs."""
    return [one for one in operation.inputs if one.dtype.is_floating_point and one.is_from_inputs]
