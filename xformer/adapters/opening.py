"""Open an external model: locate its parts in one probed run, and verify a recorded run against the model itself.

Attention is captured by one of three backends, tried in this order:

    attention_function   our function replaces the model's       reads and edits every step
    softmax              the model's own, observed at softmax    edits scores, pattern and z; q, k and v only of
                                                                 `F.scaled_dot_product_attention` and `nn.MultiheadAttention`
    returned_weights     the weights that the model returns      read only

A backend is accepted only if the recorded output equals the model's own. The model is left as it was found (`attachment`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from xformer.adapters.attachment import attached, set_function
from xformer.adapters.attention_sums import SummedRun, SumsTape
from xformer.adapters.capture_backends import (
    BACKENDS,
    Backend,
    ChangedLayoutError,
    PlannedAttention,
    requesting_attention,
    returned_layout,
    returned_patterns,
)
from xformer.adapters.find_layout import OutputHead, find_layout, find_output_head, numbered_axes
from xformer.adapters.mask_rows import LazyMask
from xformer.adapters.module_map import ModuleMap, close
from xformer.adapters.on_demand import Calls, OnDemand
from xformer.adapters.probe import ActiveRun, ProbeRun, Streams, origins_of, probe, running
from xformer.edits import Edit
from xformer.errors import EditError, InputError
from xformer.formatting import error_message
from xformer.layer_path import LayerPath
from xformer.model_shape import READ_ONLY
from xformer.program.inputs import Inputs
from xformer.program.module_state import detect_randomness, on_device, preserve_state
from xformer.program.plan import NO_PLAN, AttentionPlan, plan_attention
from xformer.program.record import watched
from xformer.tape import SILENT, StopForward, Tape, graph_of
from xformer.trace import first_nan

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6, torch.bfloat16: 0.1, torch.float16: 0.02}
"""The largest allowed difference of outputs, relative to the largest output. Rounding errors add up over layers, and even in
float64 the eager attention of Transformers computes its softmax in float32.
"""
_CAPTURED = {
    "attention_function": "every step of its attention can be read and changed",
    "softmax": "its attention is read and changed at its softmax",
    "returned_weights": "its attention can only be read, as returned by the model",
}


@dataclass(frozen=True)
class Verification:
    """The result of verifying a model when it is opened."""

    backend: Backend
    difference: float
    """The largest difference between the outputs of a recorded run and of the model."""
    notes: tuple[str, ...] = ()
    """Remarks, one sentence each, such as on a weight missing in the file."""
    warnings: tuple[str, ...] = ()
    """Suspected faults of the model itself, one sentence each, such as a lost mask or a NaN output."""

    def __str__(self) -> str:
        within = f" (largest difference {self.difference:.0e})" if self.difference else ""
        verified = f"Verified against the original model{within}: {_CAPTURED[self.backend]}."
        return " ".join([verified, *self.warnings, *self.notes])


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model with its located parts. Any number of threads may run it at once."""

    module: nn.Module
    layout: ModuleMap
    backend: Backend
    call: Callable[[nn.Module, Inputs], Any]
    """Calls the module with its inputs."""
    output_of: Callable[[Any], Tensor]
    """Selects the shown output: [batch, out, vocab] or [batch, pos, d_model]."""
    head: OutputHead | None = None
    """Maps the final stream state to the logits; None if they are not a function of it alone."""
    output: str = "module"
    """The kind of output, see `huggingface_opening.OutputKind`; "module" for modules outside Transformers."""
    plan: AttentionPlan = NO_PLAN
    """The operations that compute attention; only the `softmax` backend has them."""
    is_positions_first: bool = False
    """Whether the module computes [pos, batch, width] instead of [batch, pos, width]."""

    @property
    def parts(self) -> dict[str, Any]:
        """All fields except the module; caching them does not keep the model alive."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "module"}

    @property
    def output_name(self) -> str:
        """The name of the output in a trace: "logits", or "output" for a model without a head."""
        return "output" if self.output == "vectors" else "logits"

    def run(
        self, inputs: Inputs, *, n_batch: int = 1, edits: Sequence[Edit] = (), keep: Sequence[str] = ("*",)
    ) -> dict[str, Tensor]:
        """Run under `edits` and keep the activations that match `keep`. Raises `EditError` if a name matches nothing."""
        if self.backend == "returned_weights" and edits:
            raise EditError(READ_ONLY)
        tape = Tape(edits, keep, fused=True, copies=True)
        with graph_of(edits):
            self._once(inputs, self._new_run(tape, n_batch))
        tape.check_all_fired(lambda everything: self._once(inputs, self._new_run(everything, n_batch)))
        return {name: value.cpu() for name, value in tape.activations.items()}

    def _new_run(self, tape: Tape, n_batch: int) -> ActiveRun:
        return ActiveRun(tape, self.layout.paths, n_batch, is_positions_first=self.is_positions_first)

    def run_on_demand(
        self, inputs: Inputs, *, edits: Sequence[Edit] = (), keep: Sequence[str] = ("*",), most: int
    ) -> OnDemand:
        """Run a large model captured by `attention_function` and keep only matches of `keep`; the rest is recomputed on demand.

        Patterns are never kept, only planes of at most `most` cells a side for each.
        """
        tape, later, calls = Tape(edits, keep, fused=True, copies=True), {}, Calls()
        with torch.no_grad():
            run = ActiveRun(tape, self.layout.paths, later=later, most=most, on_call=calls.keep)
            self._once(inputs, run)
        if any(glob != "*" for glob in tape.never_matched()):
            self.run(inputs, edits=edits)  # raises the error for an edit that matches nothing

        def record(names: Sequence[str]) -> dict[str, Tensor]:
            return self.run(inputs, edits=edits, keep=names)

        return OnDemand(tape.activations, tape.names, later, edits, record, calls)

    def run_with_sums(self, inputs: Inputs, sums: SummedRun) -> None:
        """Run once, and give each attention to `sums`; without `keep`, the output is computed at the last position only."""
        takes = inspect.signature(self.module.forward).parameters
        if not sums.keep and "logits_to_keep" in takes:
            inputs = {**inputs, "logits_to_keep": 1}  # all logits of a long text take more memory than the model
        if "use_cache" in takes:
            inputs = {"use_cache": False, **inputs}  # as do the keys and values of all layers

        def once() -> None:
            tape = Tape((), sums.keep, fused=True) if self.backend == "attention_function" else SumsTape(sums)
            run = ActiveRun(tape, self.layout.paths, sums=sums, is_positions_first=self.is_positions_first)
            with torch.no_grad(), suppress(StopForward):
                self._once(inputs, run)
            sums.activations = {name: value.cpu() for name, value in tape.activations.items()}

        try:
            once()
        except (AttributeError, TypeError) as error:
            if LazyMask.__name__ not in str(error):
                raise
            sums.has_lazy_masks = False  # the model computes with its mask
            once()

    def plain(self, inputs: Inputs) -> Tensor:
        """The output of an unrecorded, unedited run in eval mode."""
        return self.output_of(self.returned(inputs)).cpu()

    def returned(self, inputs: Inputs) -> Any:
        """The model's full return value in eval mode, on its device."""
        with torch.no_grad(), running(None), preserve_state(self.module):
            return self.call(self.module, inputs)

    def verify(self, inputs: Inputs, given: Inputs, n_batch: int) -> None:
        """Compare a recorded run of `inputs` with the model's own call on the arguments that the caller gave.

        Raises:
            InputError: The model cannot be called with them, or the outputs differ by more than rounding.
        """
        name = type(self.module).__name__
        try:
            wanted = self.plain(given)
        except Exception as error:  # a model may raise anything for inputs it cannot read
            raise InputError(f"{name} could not be called with these arguments: {error_message(error, 200)}") from error
        steps = (
            "*.pattern" if self.backend == "returned_weights" else "*.z"
        )  # a layer of which nothing is kept is fused
        found = self.run(inputs, n_batch=n_batch, keep=(steps, self.output_name))[self.output_name]
        try:
            _difference(self, found, wanted)
        except InputError as error:
            raise InputError(f"These arguments of {name} cannot be read. {error}") from error

    def attached_call(self, inputs: Inputs, run: ActiveRun) -> Any:
        """The model's full return value while `run` records it."""
        with attached(self.module, self.layout, self.backend, run):
            if self.backend != "softmax":
                return self.call(self.module, inputs)
            attention = PlannedAttention(run, self.plan)
            with watched(self.module, attention):
                returned = self.call(self.module, inputs)
            attention.check_complete()
            return returned

    def _once(self, inputs: Inputs, run: ActiveRun) -> None:
        tape = run.tape
        if self.backend == "returned_weights":
            output = self.attached_call(requesting_attention(self.module, inputs), run)
            patterns = returned_patterns(output, self.layout.attention[0].stack)
            run.n_attentions = len(patterns)
            for site, pattern in patterns.items():
                if site.stack == "decoder" and site.kind == "attn":  # no weight is on a later key in any layer
                    tape(f"{site.path}.mask", torch.ones_like(pattern, dtype=torch.bool).tril())
                tape(f"{site.path}.pattern", pattern)
        else:
            output = self.attached_call(inputs, run)
        if run.n_attentions != len(self.layout.paths):
            known = len(self.layout.paths)
            raise ChangedLayoutError(f"The number of attention layers changed from {known} to {run.n_attentions}")
        tape(self.output_name, self.output_of(output))
        if self.output == "vectors" and (pooled := _pooled(output)) is not None:
            tape("pooled", pooled)


def _pooled(returned: Any) -> Tensor | None:
    """The pooled vector [batch, width] of a model without a head, if it returns one."""
    for name in ("text_embeds", "image_embeds", "pooler_output"):
        value = getattr(returned, name, None)
        if isinstance(value, Tensor) and value.dim() == 2:
            return value
    return None


def resized(inputs: Inputs, longer: Mapping[str, int], *, at_start: bool = False) -> Inputs:
    """The inputs with another number of positions in some streams, and in the masks and numbers that go with them.

    Args:
        inputs: The inputs of a call.
        longer: The number of positions by which each stream grows, by the name of its argument; below 0 it is cut.
        at_start: Whether to cut at the start instead of the end.
    """
    changes = {inputs[name].shape[1]: n for name, n in reversed(list(longer.items()))}

    def changed(name: str, value: Any) -> Any:
        is_stream = name in longer
        if not isinstance(value, Tensor) or not (is_stream or "mask" in name or not value.is_floating_point()):
            return value
        is_square = value.dim() == 2 and value.shape[0] == value.shape[1] and not is_stream
        for axis in range(0 if is_square else 1, 2 if is_stream else value.dim()):
            n = longer[name] if is_stream else changes.get(value.shape[axis], 0)
            places = torch.arange(value.shape[axis] + n, device=value.device) - (n if at_start and n < 0 else 0)
            value = value.index_select(axis, places.clamp(max=value.shape[axis] - 1)) if n else value
        return value

    return {name: changed(name, value) for name, value in inputs.items()}


def open_module(
    module: nn.Module,
    call: Callable[[nn.Module, Inputs], Any],
    output_of: Callable[[Any], Tensor],
    examples: Sequence[Inputs],
    streams: Streams,
    ids_of: Callable[[Inputs], tuple[Tensor, ...]],
    *,
    returned: Sequence[Any] | None = None,
    output: str = "module",
    plan: AttentionPlan = NO_PLAN,
    is_positions_first: bool = False,
) -> tuple[OpenedModel, Verification, dict[str, Tensor]]:
    """Locate the parts of a module and verify a recorded run.

    Args:
        module: Any model; it is left as it was found.
        call: Calls the module with its inputs.
        output_of: Selects the shown output in the return value of `call`.
        examples: Valid inputs. The first is probed; all are used for verification. The streams of the last have other lengths.
        streams: The streams of the first example, and the differences of their lengths in the last.
        ids_of: Returns the token ids in inputs, one tensor per stack that reads tokens.
        returned: What the module returns for each example in eval mode, if it was already called.
        output: The kind of output.
        plan: The operations of its attention, if already known.
        is_positions_first: Whether it computes [pos, batch, width], although `call` takes and returns batches first.

    Returns:
        The opened model, its verification, and the recorded run of the first example.

    Raises:
        InputError: No backend captures its attention; the message states the reason for each.
    """
    examples = [on_device(inputs, module) for inputs in examples]
    unknown = OpenedModel(
        module, ModuleMap((), ()), "attention_function", call, output_of, None, output, plan, is_positions_first
    )
    if returned is None:
        with preserve_state(module), torch.no_grad(), running(None), detect_randomness(module):
            call(module, examples[0])
        returned = [unknown.returned(inputs) for inputs in examples]
    stock, notes = [output_of(one).cpu() for one in returned], []
    if any(isinstance(part, nn.TransformerEncoder) for part in module.modules()):
        stock, notes = _without_nested_tensors(unknown, examples, stock)
    reasons: list[str] = []
    for backend in BACKENDS:
        if backend == "attention_function" and not takes_a_function(module):
            continue
        try:
            opened = _located(replace(unknown, backend=backend), examples, ids_of(examples[0]), streams)
            hidden = opened.plan.notes if backend == "softmax" else ()
            verification, run = _verify(opened, examples, stock)
            return opened, replace(verification, notes=(*notes, *hidden[:3])), run
        except InputError as error:
            reasons.append(str(error))
    raise InputError(
        f"The attention of this model ({type(module).__name__}) cannot be read. {' '.join(dict.fromkeys(reasons))}"
    )


class _NoFastPath(TorchFunctionMode):
    """Changes nothing, but keeps `nn.TransformerEncoder` from its fast path, as every recorded run does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _without_nested_tensors(
    opened: OpenedModel, examples: Sequence[Inputs], stock: list[Tensor]
) -> tuple[list[Tensor], list[str]]:
    """The outputs of `nn.TransformerEncoder` without its fast path, which leaves out padding and returns zeros there.

    Outputs that differ elsewhere are returned as they are.
    """
    found, notes = [], []
    for inputs, fast in zip(examples, stock, strict=True):
        with _NoFastPath():
            slow = opened.plain(inputs)
        is_zero = (fast == 0).all(dim=-1, keepdim=True)
        if slow.shape == fast.shape and bool(is_zero.any()) and close(slow.masked_fill(is_zero, 0), fast):
            notes.append(
                "At padding, the fast path of nn.TransformerEncoder returns zeros; a recorded run has the numbers that the "
                "model computes there in training."
            )
            fast = slow
        found.append(fast)
    return found, notes[:1]


def _located(opened: OpenedModel, examples: Sequence[Inputs], ids: tuple[Tensor, ...], streams: Streams) -> OpenedModel:
    """Locate the layout and the output head. Raises `InputError` if the backend observes no attention."""
    module, inputs, other = opened.module, examples[0], examples[-1] if streams.moved else None
    if opened.backend == "returned_weights":
        first, second = (
            None if one is None else opened.returned(requesting_attention(module, one)) for one in (inputs, other)
        )
        layout = returned_layout(first)
        sizes, others = (_sizes(returned_patterns(one)) if one is not None else [] for one in (first, second))
        layout.numbered = numbered_axes(layout.attention, sizes, origins_of(sizes, others, streams.moved), streams)
        return replace(opened, layout=layout)
    if opened.backend == "softmax":
        plan = planned(module, opened.call, inputs) if opened.plan is NO_PLAN else opened.plan
        _check_readable(plan)
        opened = replace(opened, plan=plan)
    seen = probe(module, lambda run: opened.attached_call(inputs, run), n_batch=ids[0].shape[0] if ids else 1)
    if not seen.attentions:
        raise InputError("It does not call an attention function registered with Transformers.")
    origins = None
    if other is not None:
        again = ProbeRun(module)
        with torch.no_grad():
            opened.attached_call(other, ActiveRun(SILENT, observer=again))
        sizes, others = ([(one.n_query, one.n_key) for one in run.attentions] for run in (seen, again))
        origins = origins_of(sizes, others, streams.moved)
    layout = find_layout(seen, ids, streams, origins)
    last, head = layout.last.get(layout.attention[-1].stack), None
    if opened.output != "vectors" and last is not None:
        softcap = getattr(getattr(module, "config", None), "final_logit_softcapping", None)
        with suppress(InputError):
            output = opened.output_of(seen.output)
            output = output.transpose(0, 1) if opened.is_positions_first else output
            head = find_output_head(seen, last, output, softcap)
    return replace(opened, layout=layout, head=head)


def planned(module: nn.Module, call: Callable[[nn.Module, Inputs], Any], inputs: Inputs) -> AttentionPlan:
    """The operations of a module's attention."""
    with torch.no_grad(), running(None), preserve_state(module):
        return plan_attention(module, call, on_device(inputs, module))


def _check_readable(plan: AttentionPlan) -> None:
    if plan.refused:
        raise InputError(f"One of its attention layers cannot be read: {plan.refused[0]}.")
    if not plan.layers:
        text = "Nothing that it computes is attention: a softmax of a product of queries and keys that weights values."
        raise InputError(" ".join([text, *plan.notes[:1]]))


def _sizes(patterns: Mapping[LayerPath, Tensor]) -> list[tuple[int, int]]:
    return [(one.shape[-2], one.shape[-1]) for one in patterns.values()]


def _verify(
    opened: OpenedModel, examples: Sequence[Inputs], stock: list[Tensor]
) -> tuple[Verification, dict[str, Tensor]]:
    """Compare recorded runs with the model's outputs, and return the first of them too.

    Raises `InputError` if they differ by more than rounding.
    """
    worst, warnings, shapes, runs = 0.0, [], [], []
    for inputs, wanted in zip(examples, stock, strict=True):
        run = opened.run(inputs, n_batch=len(wanted))
        runs.append(run)
        worst = max(worst, _difference(opened, run[opened.output_name], wanted))
        if bool(wanted.isnan().any()):
            warnings.append(f"The model's output is NaN. {first_nan(run)}")
        if opened.backend != "softmax":  # whose layout is known
            shapes.append({path: run[f"{path}.pattern"].shape for path in opened.layout.paths})
            _check_axes(opened, inputs, shapes)
    return Verification(opened.backend, worst, warnings=tuple(dict.fromkeys(warnings))), runs[0]


def _difference(opened: OpenedModel, found: Tensor, wanted: Tensor) -> float:
    """The largest difference of a recorded output from the model's. Raises `InputError` if it is more than rounding."""
    if found.shape != wanted.shape:
        raise InputError(
            f"A recorded run returns {list(found.shape)} numbers, and the model itself {list(wanted.shape)}."
        )
    if not torch.equal(wanted.isnan(), found.isnan()):
        raise InputError("A recorded run has NaN at different positions than the model's own output.")
    difference = float((found.double() - wanted.double()).nan_to_num(0.0).abs().max())
    largest = float(wanted.double().nan_to_num(0.0).abs().max())
    dtypes = {wanted.dtype, *(weight.dtype for weight in opened.module.parameters() if weight.dtype in TOLERANCE)}
    if not difference <= max(TOLERANCE.get(dtype, 1e-4) for dtype in dtypes) * max(1.0, largest):
        raise InputError(f"A recorded run differs from the model itself by {difference:.2g}.")
    return difference


def _check_axes(opened: OpenedModel, inputs: Inputs, shapes: Sequence[Mapping[str, torch.Size]]) -> None:
    """Raise `InputError` if the axes of a pattern are not [batch, head, query, key], as in attention within windows.

    Args:
        opened: The model.
        inputs: The inputs of the last run.
        shapes: The shape of each pattern, for inputs of different lengths; the last is that of `inputs`.
    """
    tensors = [one for one in inputs.values() if isinstance(one, Tensor) and one.dim()]
    batches = {1, *(n for one in tensors for n in one.shape[: 2 if opened.output == "module" else 1])}
    heads = _head_counts(getattr(opened.module, "config", None))
    for path, shape in shapes[-1].items():
        every = {one[path] for one in shapes}
        is_fixed = len(every) == 1
        if shape[0] not in batches or len({one[1] for one in every}) > 1:
            problem = "whose first two axes count windows or positions, not inputs and heads"
        elif is_fixed and heads and opened.backend != "attention_function" and shape[1] not in heads:
            problem = f"but the configuration has {' or '.join(map(str, sorted(heads)))} heads"
        else:
            continue
        raise InputError(
            f"The pattern of {path} is {list(shape)}, {problem}, so it cannot be shown as a matrix for each head."
        )


def _head_counts(config: Any) -> set[int]:
    """The numbers of heads in a configuration and its parts; empty if there are none."""
    found: set[int] = set()
    for name, value in vars(config).items() if hasattr(config, "__dict__") else ():
        if hasattr(value, "model_type"):
            found |= _head_counts(value)
        elif name.endswith(("heads", "n_head")):
            found |= {one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, int)}
    return found


def takes_a_function(module: nn.Module) -> bool:
    """Whether a model's attention function can be replaced, as in most models of Transformers."""
    can = getattr(module, "_can_set_attn_implementation", None)
    if can is None or not can():
        return False
    try:
        with preserve_state(module):
            set_function(module)
    except (ValueError, ImportError):
        return False
    return True
