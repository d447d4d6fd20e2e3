"""What an opened external model offers: its weights, its shape, and projections of parts of its stream."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.adapter import AdapterDefaults, Projection, Readout
from xformer.adapters.attachment import attached
from xformer.adapters.attention_sums import SummedRun
from xformer.adapters.on_demand import Calls, EarlyStopTape, OnDemand
from xformer.adapters.opening import OpenedModel, Verification
from xformer.adapters.probe import ActiveRun
from xformer.errors import UnavailableError
from xformer.layer_path import after
from xformer.model_shape import ModelShape
from xformer.program.inputs import Inputs
from xformer.program.offload import device_of, own_weight, standalone
from xformer.tape import StopForward, Tape
from xformer.tasks.task import Example
from xformer.trace import Trace

WITHOUT_LIMIT = 2048
"""The context length of a model that specifies none."""


def added_positions(opened: OpenedModel, inputs: Inputs, other: Inputs, n: int, n_batch: int = 1) -> tuple[int, int]:
    """The numbers of positions before and after the `n` of the input, found as those that an input changed everywhere leaves.

    (0, 0) if there are none, or if the stream into the first block does not tell them.
    """
    path = opened.layout.attention[0].path
    names = (f"{opened.layout.attention[0].stack}.0.resid_pre", f"{path}.q")
    runs = [opened.run(one, n_batch=n_batch) for one in (inputs, other)]
    name = next((name for name in names if all(name in run for run in runs)), None)
    if name is None or runs[0][name].shape != runs[1][name].shape:
        return 0, 0
    changed = (runs[0][name] != runs[1][name]).any(dim=-1)  # [batch, pos] or [batch, head, pos]
    at = changed.flatten(0, -2).any(dim=0).nonzero()[:, 0].tolist()
    is_whole = len(at) == n and at[-1] - at[0] == n - 1
    return (at[0], changed.shape[-1] - 1 - at[-1]) if is_whole else (0, 0)


def shape_of(
    opened: OpenedModel,
    run: dict[str, Tensor],
    *,
    is_causal: bool,
    max_len: int | None,
    n_inputs: int,
    added: tuple[int, int] = (0, 0),
) -> ModelShape:
    """The shape of a model, from a run that kept everything. `n_inputs` is the size of the input vocabulary."""
    layout, sites = opened.layout, opened.layout.layer_paths
    stream = next((run[name] for name in run if name.endswith(("resid_pre", "attn.out", "attn.in"))), None)
    norms = set(layout.norms.values())
    norm: Literal["pre", "post", "none"] = "post" if "post" in norms else "pre" if norms else "none"
    return ModelShape(
        architecture="encoder-decoder"
        if layout.is_encoder_decoder and len({site.stack for site in sites}) == 2
        else sites[-1].stack,
        is_causal=is_causal,
        d_model=0 if stream is None else stream.shape[-1],
        n_layers=1
        + max(layer for _, layer in [*((site.stack, site.layer) for site in sites), *layout.without_attention]),
        vocab_size=run["logits"].shape[-1] if "logits" in run else 0,
        max_len=max_len or WITHOUT_LIMIT,
        added=added,
        n_inputs=n_inputs,
        layer_paths=sites,
        heads={site.path: run[f"{site.path}.pattern"].shape[1] for site in sites if site.is_attention},
        neurons={site.path: run[name].shape[-1] for site in sites if (name := f"{site.path}.post") in run},
        norm=norm,
        final_norm="final_norm" in run,
        joined=frozenset(site.path for site in sites if after(site) not in run),
        can_drop_positions=any("pos_" in name for name in run),
        rotates=any(name.endswith("pos_angles") for name in run),
        experts={site.path: run[name].shape[-1] for site in sites if (name := f"{site.path}.experts") in run},
        is_read_only=opened.backend == "returned_weights",
        numbered=layout.numbered,
        without_attention=tuple(layout.without_attention),
    )


@dataclass(frozen=True, eq=False)
class ExternalWeights:
    """The located weights of an external model. A matrix is copied only to multiply it by a factor."""

    opened: OpenedModel
    name: str

    @torch.no_grad()
    def token_embedding(self, stack: str | None = None) -> Float[Tensor, "vocab width"]:
        """The rows of the embedding table, without later scaling or projection."""
        wanted = ("embed", f"{stack or self.opened.layout.attention[0].stack}.embed")
        for tap in self.opened.layout.taps:
            if tap.name in wanted:
                table = own_weight(self.opened.module.get_submodule(tap.module))
                assert table is not None
                return table.cpu()
        raise UnavailableError(f"No token embedding was located in {self.name}.")

    def unembedding(self) -> Readout:
        """The final norm and a matrix. Raises `UnavailableError` if there is more between the stream and the logits."""
        head = self.opened.head
        matrix = None if head is None else head.output_matrix
        if head is None or matrix is None:
            raise UnavailableError(
                f"{self.name} has more than a norm and a matrix between its final stream state and its logits, so a logit is "
                "not a sum of contributions to the stream."
            )
        own = own_weight(head.parts[-1], "bias")
        biases = [] if own is None else [own * head.factor]
        biases += [] if head.bias is None else [head.bias]
        norm = None if head.norm is None else standalone(head.norm)
        return Readout(matrix, torch.stack(biases).sum(dim=0) if biases else None, norm, head.softcap).cpu()

    def projection(self, path: str) -> Projection:
        """The output projection of heads or neurons. Raises `UnavailableError` if none was located."""
        place = self.opened.layout.projections.get(path)
        if place is None:
            raise UnavailableError(f"No single matrix maps heads or neurons of {path} in {self.name} to the stream.")
        module = self.opened.module.get_submodule(place.module)
        weight, norm = own_weight(module), None if place.norm is None else self._module(place.norm)
        assert weight is not None
        weight = weight if place.is_in_by_out else weight.T
        return Projection(weight, own_weight(module, "bias"), norm, place.factor).cpu()

    def norm_before(self, path: str) -> nn.Module | None:
        """The norm between the stream and a layer's input, in pre-norm and parallel blocks; else None."""
        return self._norm(self.opened.layout.norm_before, path)

    def last_norm(self, stack: str) -> nn.Module | None:
        """The norm after a stack's last block, or None if none was located."""
        return self._norm(self.opened.layout.final_norm, stack)

    def norm_after(self, path: str) -> nn.Module | None:
        """The norm on the stream after a layer's output is added, in post-norm blocks; else None."""
        return self._norm(self.opened.layout.norm_after, path)

    def _norm(self, norms: Mapping[str, str], path: str) -> nn.Module | None:
        return self._module(norms[path]) if path in norms else None

    def _module(self, path: str) -> nn.Module:
        return standalone(self.opened.module.get_submodule(path))

    def n_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        return sum(weight.numel() for weight in self.opened.module.parameters())


@dataclass(frozen=True, eq=False)
class ExternalAdapter(AdapterDefaults):
    """The base class of the adapters of external models."""

    opened: OpenedModel
    shape: ModelShape
    verification: Verification
    name: str = "model"

    @property
    def output(self) -> str:
        """The kind of output, see `huggingface_opening.OutputKind`; "module" for modules outside Transformers."""
        return self.opened.output

    @property
    def output_name(self) -> str:
        """The name of the output in a trace: "logits", or "output" for a model without a head."""
        return self.opened.output_name

    @property
    def weights(self) -> ExternalWeights:
        """The located weights."""
        return ExternalWeights(self.opened, self.name)

    def inputs_of(self, example: Example) -> Inputs:
        """The arguments of the model's forward pass."""
        raise NotImplementedError

    def sum_attention(self, example: Example, sums: SummedRun) -> None:
        """Run once without recording patterns; see `AdapterDefaults.sum_attention`."""
        self.opened.run_with_sums(self.inputs_of(example), sums)

    def project_heads(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """Compute an attention layer's queries or keys for streams `x`, as in the run; differentiable with respect to `x`.

        Queries and keys are an affine function of the stream in every family, so the contribution of a part of the stream
        follows from calling the attention module with that part alone.

        Raises:
            UnavailableError: The model's queries and keys cannot be captured.
        """
        opened = self.opened
        calls = trace.activations.calls if isinstance(trace.activations, OnDemand) else Calls()
        if opened.backend != "attention_function":
            raise UnavailableError(
                "The queries and keys of this model cannot be read: its attention is captured by the backend "
                f"{opened.backend!r}, not 'attention_function'."
            )
        name, number = opened.layout.owner_calls[opened.layout.paths.index(path)]
        args, kwargs = calls.get((name, number)) or _call_of(opened, self.inputs_of(example), name, number)
        module = opened.module.get_submodule(name)
        x = x.to(device_of(module), next(module.parameters()).dtype)
        if side == "k" and kwargs.get("key_value_states") is not None:
            kwargs = {**kwargs, "key_value_states": x}
        from transformers import Cache

        if any(isinstance(value, Cache) for value in (example.arguments or {}).values()):
            raise UnavailableError("Keys from a cache are no parts of the stream, so scores cannot be decomposed.")
        kwargs = {name: None if isinstance(value, Cache) else value for name, value in kwargs.items()}  # it is filled
        if args:
            args = (x, *args[1:])
        else:
            kwargs = {**kwargs, "hidden_states": x}
        tape = EarlyStopTape((), (f"{path}.{side}",))
        run = ActiveRun(tape, (path,), n_batch=len(x))
        with suppress(StopForward), attached(opened.module, opened.layout, opened.backend, run):
            with torch.set_grad_enabled(x.requires_grad):
                module(*args, **kwargs)
            raise UnavailableError(f"{path} computed no {side} when its module was called alone.")
        return tape.activations[f"{path}.{side}"].cpu()


@torch.no_grad()
def _call_of(opened: OpenedModel, inputs: Inputs, name: str, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module's call in a run."""
    calls = Calls()

    def catch(module: str, called: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (module, called) == (name, number):
            calls.keep(module, called, args, kwargs)
            raise StopForward

    run = ActiveRun(Tape((), (), fused=True), opened.layout.paths, on_call=catch)
    with suppress(StopForward):
        opened.attached_call(inputs, run)
        raise UnavailableError(f"{name} was not called in this run.")
    return calls[name, number]
