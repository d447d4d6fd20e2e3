"""Find the attention of a program by its data flow.

    scores   a product of two tensors that have positions, then a chain of elementwise operations and views
    pattern  a normalisation of the scores over one of the two position axes, in any spelling
    z        a product of the pattern with values, over the keys

Which axis is which follows from the products (`heads`). The keys are the axis that the product with the values sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from xformer.program.axes import Atom, Axis, Product, bases, has_inputs
from xformer.program.axis_tracker import AxisTracker
from xformer.program.backwards import KERNELS, UNFOLLOWED, Backwards, Normaliser, base_of, has_positions, sums_nothing
from xformer.program.heads import HeadLayout, Operand, OtherAxisError, Role, Roles, UnreadableError, Z
from xformer.program.product_rules import is_divided
from xformer.program.record import UNSEEN, Operation, Program, Value

PARTS = {
    *KERNELS, "matmul", "bmm", "mm", "baddbmm", "addbmm", "einsum", "tensordot", "cdist", "mul", "multiply", "sub", "div",
    "softmax", "log_softmax", "exp", "exp2", "normalize",
}  # fmt: skip
"""The functions whose arguments and results are the tensors of an attention."""


@dataclass(frozen=True, eq=False)
class FoundAttention:
    """One attention of a program."""

    normaliser: Normaliser
    pattern: Value
    """The weights that multiply the values."""
    z: Value
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
    has_queries: bool = True
    """Whether it has an axis of queries."""
    sliced: tuple[Role, ...] = ()
    """Which of query and key are a slice of an input's positions."""
    kernel: Operation | None = None
    """The fused function that computes all of it, as `scaled_dot_product_attention`."""
    operands: Mapping[str, Operand] = field(default_factory=dict)
    """Queries, keys and values by name (q, k, v), except those whose heads are in another order than the scores'."""
    softmax: Operand | None = None
    """The output of the softmax; the pattern where its axes are not distinguished. None in a fused function."""
    chain: tuple[Operation, ...] = ()
    """The operations between the product of queries and keys and the scores, in order."""

    @property
    def scores(self) -> Value:
        """The input of the softmax."""
        return self.normaliser.scores

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


_SATURATING = (
    "gumbel_softmax", "exp", "exp2", "expm1", "softmin", "sigmoid", "relu", "tanh", "softplus", "elu", "silu", "gelu", "square",
    "pow",
)  # fmt: skip


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
        self.needs_numbers = False
        """Whether weights come from exponentials, so that the numbers of a run tell more; see `Backwards`."""
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
            elif (
                operation.name in UNFOLLOWED
                and not sums_nothing(operation)
                and Backwards(axes).has_softmax(operation.inputs)
            ):
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
        back = Backwards(self.axes)
        every = back.to_normalisers(weights)
        if len(every) > 1:
            every = [
                one for one in every if any(has_positions(product) for product, _ in back.to_products(one.scores))
            ] or every
        if len(every) > 1:
            if len(writes := back.writes(weights)) > 1:
                self._refuse(writes[0], _written("weights", writes))
            else:
                self._refuse(product.operation, _SEVERAL)
            return True
        if not every:
            self._unnormalised(product, weights, side)
            if self._is_square(product, side) and back.has_softmax([weights]):
                reason = (
                    "its weights are changed between the softmax and the values, so no matrix for each head shows it"
                )
                self._refuse(product.operation, reason)
            return False
        normaliser, scores = every[0], every[0].scores
        if scores in self._seen:
            return True
        sources = [one for one in back.to_products(scores) if has_positions(one[0])]
        if not sources:
            self._unnormalised(product, weights, side)
            if self._is_square(product, side):
                self._refuse(normaliser.operation, _NO_PRODUCT)
            return False
        self._seen.add(scores)
        try:
            self.found.append(self._attention(product, side, weights, normaliser, sources))
        except OtherAxisError as error:
            self.refused.append(self._explained(error, weights, normaliser))
        except UnreadableError as error:
            self.refused.append(Refusal(normaliser.operation, str(error)))
        return True

    def _explained(self, error: OtherAxisError, weights: Value, normaliser: Normaliser) -> Refusal:
        """What the module does to its scores or weights so that they have an axis of something else, where that is known."""
        back = Backwards(self.axes)
        for what, value in ("scores", normaliser.scores), ("weights", weights):
            if writes := back.writes(value):
                return Refusal(writes[0], _written(what, writes))
        if len(back.softmaxes(weights)) > 1:
            return Refusal(weights.operation or normaliser.operation, _SEVERAL)
        return Refusal(normaliser.operation, str(error))

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
            has_inputs(one) or any(atom.origin == "unknown" for atom in one) for one in sides
        )

    def _attention(
        self,
        values: Product,
        side: int,
        weights: Value,
        normaliser: Normaliser,
        sources: Sequence[tuple[Product, tuple[Operation, ...]]],
    ) -> FoundAttention:
        scores, at = normaliser.scores, normaliser.axis
        atoms = {id(base) for axis in self.axes.of(scores) for atom in axis for base in bases(atom)}

        def fits(source: tuple[Product, tuple[Operation, ...]]) -> tuple[bool, bool]:
            product = source[0]
            is_whole = all(id(atom) in atoms for atom in (*product.rows, *product.columns))
            return is_whole, product.left.is_from_inputs and product.right.is_from_inputs

        product, chain = max(sources, key=fits)
        joined = [one for one in chain if one.name in ("cat", "concat") and _n_products(one, self.axes) > 1]
        if joined:
            raise UnreadableError("its scores are joined from several products, as for keys of a memory")
        if _are_heads(product.shared, product.rows, product.columns):
            raise UnreadableError(_BETWEEN_HEADS)
        if all(map(has_inputs, product.contracted)) and not all(map(self.axes.is_features, product.contracted)):
            raise UnreadableError("it attends between channels, not between positions")
        roles = Roles(self.axes, product)
        sides = {roles.of(atom) for atom in values.contracted[side]}
        if not sides and not self.axes.of(scores)[at]:  # a single key
            sides = {"row"} if product.columns else {"column"}
        if sides not in ({"row"}, {"column"}):
            if "head" in sides:
                raise UnreadableError(_MIXED)
            raise UnreadableError("the product with the values sums over no axis of positions")
        roles.keys = "row" if "row" in sides else "column"
        normalised: set[Role] = {roles.role(atom) for atom in self.axes.of(scores)[at]}
        if normalised == {"query", "key"}:
            raise UnreadableError("it is normalised over queries and keys together")
        if not normalised <= {*self._over} or len(normalised) > 1:
            raise UnreadableError(f"it is normalised over {_listed(normalised)}, which are no positions")
        layout, pattern_layout = roles.layout(scores), roles.layout(weights)
        if layout.n_heads != pattern_layout.n_heads:
            raise UnreadableError("its heads are combined between the softmax and the values")
        z, heads = values.operation.result, roles.heads(weights)
        if roles.heads(scores) != heads:
            raise UnreadableError("its heads change their order between the softmax and the values")
        if roles.heads(z, values) != heads:
            raise UnreadableError("its heads have another order in the product with the values than in the weights")
        extra: dict[int, Role] = {id(atom): _shared_role(atom) for atom in values.shared}
        q_side = 0 if roles.keys == "column" else 1
        operands = {
            "q": roles.operand(product, q_side, "query", scores),
            "k": roles.operand(product, 1 - q_side, "key", scores),
            "v": roles.operand(values, 1 - side, "width", scores),
        }
        return FoundAttention(
            normaliser,
            weights,
            z,
            layout,
            pattern_layout,
            roles.layout(z, extra),
            product,
            values,
            normalised.pop() if normalised else "key",
            roles.batch,
            Backwards(self.axes).is_masked(weights),
            bool(roles.queries(product)),
            roles.sliced(product),
            operands={name: one for name, one in operands.items() if one is not None},
            softmax=self._softmax(normaliser, roles, Operand(weights, pattern_layout)),
            chain=chain,
        )

    def _softmax(self, normaliser: Normaliser, roles: Roles, pattern: Operand) -> Operand:
        """The output of a softmax, which may have other axes than its scores."""
        result = normaliser.operation.result
        if self.axes.of(result) == self.axes.of(normaliser.scores):
            return Operand(result, roles.layout(normaliser.scores))
        try:
            return Operand(result, roles.layout(result))
        except UnreadableError:  # as of rows
            return pattern

    def _kernel(self, operation: Operation) -> None:
        """A fused function; the layout of its queries is that of its result."""
        query = operation.result
        axes = self.axes.of(query)
        is_multi_head = operation.name == "multi_head_attention_forward"  # [pos, batch, d_model]
        rows, shared = (axes[0], axes[1:-1]) if is_multi_head else (axes[-2], axes[:-2])
        keys = self.axes.of(operation.inputs[1])[0 if is_multi_head else -2]
        if _are_heads([atom for axis in shared for atom in axis], rows, keys):
            self.refused.append(Refusal(operation, _BETWEEN_HEADS))
            return
        if not (has_inputs(rows) or has_inputs(keys)) and any(has_inputs(axis) for axis in shared[1:]):
            return  # at each position over something else, as over the layers of a model
        try:
            if operation.name == "flex_attention" and not _is_identity(operation.args[3]):
                raise UnreadableError("a score_mod of flex_attention changes its scores inside the kernel")
            roles = Roles.of_kernel(
                self.axes, [atom for axis in shared for atom in axis if atom.origin == "input"], rows
            )
            lead = roles.layout(query, {id(atom): _shared_role(atom) for axis in shared for atom in axis})
            layout = HeadLayout((*lead.factors[:-2], (("query", None),), (("width", None),)), Z)
        except UnreadableError as error:
            self.refused.append(Refusal(operation, str(error)))
            return
        result = operation.result
        self.found.append(
            FoundAttention(
                Normaliser(operation, result, -1),
                result,
                result,
                layout,
                layout,
                layout,
                kernel=operation,
                batch=roles.batch,
            )
        )

    def _unnormalised(self, product: Product, weights: Value, side: int) -> None:
        """Note attention whose weights come from another function than a softmax, or in a way that is not understood."""
        back = Backwards(self.axes)
        values = product.right if side == 0 else product.left
        if not values.is_from_inputs:
            return
        if weights.is_from_inputs and back.is_unseen(weights):
            reason = f"its scores or weights are computed in {_OUT_OF_SIGHT}"
            self.refused.append(Refusal(product.operation, reason))
            return
        for source, chain in back.to_products(weights, through_mixing=True):
            if not has_positions(source) or source is product:
                continue
            rows, columns = ({id(atom) for atom in atoms} for atoms in (source.rows, source.columns))
            summed = {id(base) for atom in product.contracted[side] for base in bases(atom)}
            if not (has_inputs(source.rows) and has_inputs(source.columns) and summed & (rows | columns)):
                continue
            mixing = next((one for one in chain if one in self.axes.products), None)
            used = next((one for one in chain if one.name in _SATURATING), None)
            if mixing is not None:
                reason = _MIXED
            else:
                by = f"from {used.name}" if used else "straight from the product of queries and keys"
                is_softmax_perhaps = used is not None and (
                    base_of(used) is not None or used.name in ("expm1", "softmin")
                )
                how = "in steps that are not recognised as a softmax" if is_softmax_perhaps else "not from a softmax"
                reason = f"its weights come {by}, {how}"
                self.needs_numbers |= is_softmax_perhaps
            self.refused.append(Refusal(mixing or used or product.operation, reason))
            return


_MIXED = "its scores or weights are mixed across heads between the queries and the values"
_SEVERAL = "its weights combine several softmaxes, so no one matrix of scores gives them"
_NO_PRODUCT = "its scores are not one product of queries and keys with operations on each score"
_NEAR = 12
"""The number of operations within which two reasons concern the same attention."""
_OUT_OF_SIGHT = "code whose steps cannot be observed (scripted, compiled, vectorised or NumPy)"
_NOT_SEEN = "; attention inside it is not in the reading."


_BETWEEN_HEADS = (
    "it attends between the heads of each position, as its operands are [batch, pos, head, d_head] and not "
    "[batch, head, pos, d_head]; transpose their axes 1 and 2"
)


def _are_heads(shared: Sequence[Atom], rows: Axis, columns: Axis) -> bool:
    """Whether queries and keys are divisions of a projection, at each position of each text."""
    return sum(atom.origin == "input" for atom in shared) > 1 and is_divided(rows) and is_divided(columns)


def _written(what: str, writes: Sequence[Operation]) -> str:
    pieces = f", in {len(writes)} pieces" if len(writes) > 1 else ""
    return f"its {what} are written into a tensor that was made before them{pieces}"


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


def _n_products(operation: Operation, axes: AxisTracker) -> int:
    """The number of joined parts that come from products of queries and keys; a sink may come from a projection."""
    back = Backwards(axes)
    return sum(any(has_positions(one) for one, _ in back.to_products(value)) for value in operation.inputs)
