"""The interface of every readable model: its inputs, runs and weights, and gradients of its runs.

    adapter.weights.token_embedding()              the vector of each token
    adapter.weights.projection("decoder.3.attn")   from a layer's heads (or neurons) to the stream
    adapter.weights.unembedding()                  from the stream to the logits

Weights that a model does not have, or that were not located, raise `UnavailableError`. `gradients` differentiates a measure of
the logits with respect to each activation of a run, in one forward and one backward pass:

    found = gradients(adapter, example, lambda logits: logits[0, -1, 7], ["*.z"])
    found["decoder.0.attn.z"]           ∂ measure / ∂ z, shaped like z
    found.activations, found.measure    the activations and the value of the measure

Parameters get no gradient and keep their `requires_grad`, so threads may share the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer.adapters.attention_sums import SummedRun
from xformer.decoding import GREEDY, Sampling, Step
from xformer.edits import Edit, Watch
from xformer.errors import EditError, InputError, UnavailableError
from xformer.model_shape import ModelShape
from xformer.pooling import Pooling
from xformer.tasks.task import Example
from xformer.trace import Trace


@dataclass(frozen=True, eq=False)
class Projection:
    """factor · norm(x W + b): from a layer's concatenated heads, or its neurons, to the stream."""

    weight: Float[Tensor, "inside d_model"]
    bias: Float[Tensor, " d_model"] | None = None
    norm: nn.Module | None = None
    factor: float = 1.0

    def cpu(self) -> Projection:
        """Return the projection with its tensors on the CPU. The norm remains the model's own module."""
        return replace(self, weight=self.weight.cpu(), bias=None if self.bias is None else self.bias.cpu())


@dataclass(frozen=True, eq=False)
class Readout:
    """logits = cap · tanh(W norm(x) / cap) + b. The cap and the norm are optional."""

    matrix: Float[Tensor, "vocab d_model"]
    bias: Float[Tensor, " vocab"] | None = None
    norm: nn.Module | None = None
    softcap: float | None = None

    def cpu(self) -> Readout:
        """Return the readout with its tensors on the CPU. The norm remains the model's own module."""
        return replace(self, matrix=self.matrix.cpu(), bias=None if self.bias is None else self.bias.cpu())


class Weights(Protocol):
    """The read-only weights of one model, on the CPU."""

    def token_embedding(self, stack: str | None = None) -> Float[Tensor, "vocab width"]:
        """The embedding of each token, for one stack."""
        ...

    def unembedding(self) -> Readout:
        """The map from the final stream state to the logits."""
        ...

    def projection(self, path: str) -> Projection:
        """The map from a layer's heads or neurons to the stream."""
        ...

    def norm_after(self, path: str) -> nn.Module | None:
        """The norm on the stream after a layer's output is added (post-norm), or None."""
        ...

    def norm_before(self, path: str) -> nn.Module | None:
        """The norm between the stream and a layer's input (pre-norm), or None."""
        ...

    def last_norm(self, stack: str) -> nn.Module | None:
        """The norm after a stack's last block, or None."""
        ...

    def n_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        ...


class ModelAdapter(Protocol):
    """A read-only model. Any number of threads may use one adapter at once."""

    @property
    def name(self) -> str:
        """The display name."""
        ...

    @property
    def input(self) -> Input:
        """The kind of input that the model reads."""
        ...

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The text of each token of the vocabulary."""
        ...

    @property
    def shape(self) -> ModelShape:
        """The sizes of the model, and the sites of its layers."""
        ...

    @property
    def weights(self) -> Weights:
        """The weights that could be located."""
        ...

    @property
    def output(self) -> str:
        """The kind of output: "next_token"; for external models also "sequence_class", "vectors", …"""
        ...

    @property
    def output_name(self) -> str:
        """The name of the output in a trace: "logits", or "output" for a model without a head."""
        ...

    @property
    def opened(self) -> Any:
        """The `OpenedModel` with the module of an external model and its located parts; None for our models."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of a Hugging Face model, if there is one."""
        ...

    @property
    def pooling(self) -> Pooling | None:
        """How the files of a model specify that token vectors are pooled; None if they do not."""
        ...

    def to_example(self, inputs: str | Sequence[int]) -> Example:
        """Convert an input to an example for the model.

        Args:
            inputs: The input as text, or as token ids.

        Returns:
            The example, with the right answer where one is known.

        Raises:
            InputError: The model cannot read the input.
        """
        ...

    def has_right_answer(self, example: Example) -> bool:
        """Whether a prediction for this example can be right or wrong."""
        ...

    def token_names(self, tokens: Int[Tensor, " pos"]) -> tuple[str, ...]:
        """The label of each position of a stream."""
        ...

    def record(self, example: Example, *, edits: Sequence[Edit] = (), keep: Sequence[str] = ("*",)) -> Trace:
        """Run the model once and keep its activations.

        Raises:
            EditError: An edit or a glob of `keep` matches no activation.
        """
        ...

    def unembed(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits of a residual stream state: the final norm, then the unembedding."""
        ...

    def project_heads(
        self, example: Example, trace: Trace, path: str, x: Float[Tensor, "part pos d_model"], side: Literal["q", "k"]
    ) -> Float[Tensor, "part head pos d_head"]:
        """Compute an attention layer's queries or keys from the streams `x`, with all else as in a run of `example`.

        Differentiable with respect to `x`.

        Raises:
            UnavailableError: This model does not allow it.
        """
        ...

    def steps(
        self,
        example: Example,
        n: int | None = None,
        *,
        edits: Sequence[Edit] = (),
        sampling: Sampling = GREEDY,
        generator: torch.Generator | None = None,
    ) -> Iterator[Step]:
        """Generate token by token.

        Args:
            example: The prompt.
            n: The largest number of tokens; None: the model's default. Generation also stops at an end token.
            edits: Applied in every step.
            sampling: The sampling rule; greedy by default.
            generator: The source of randomness, for a temperature above 0.

        Raises:
            UnavailableError: The model does not generate.
        """
        ...

    def recording_bytes(self, example: Example) -> int:
        """Estimate the memory of a recorded run in bytes, from shapes alone."""
        ...

    def sum_attention(self, example: Example, sums: SummedRun) -> None:
        """Run once, and give each attention to `sums` instead of recording it."""
        ...

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """The task score of each head in [0, 1], by the path of its layer; empty for models without a task."""
        ...


class AdapterDefaults:
    """The base class of all adapters, for next-token models without a task, a tokenizer and a pooling of their own."""

    tokenizer: Any = None
    pooling: Pooling | None = None

    @property
    def output(self) -> str:
        """The kind of output."""
        return "next_token"

    @property
    def output_name(self) -> str:
        """The name of the output in a trace."""
        return "logits"

    def has_right_answer(self, example: Example) -> bool:
        """False: there is no task."""
        return False

    def sum_attention(self: Any, example: Example, sums: SummedRun) -> None:
        """Run once, and give each pattern to `sums`. All patterns are in memory at the same time."""
        trace = self.record(example, keep=("*.pattern", "*.mask"))
        for path, pattern in trace.patterns().items():
            allowed = trace.activations.get(f"{path}.mask", torch.ones_like(pattern, dtype=torch.bool))
            sums.take_pattern(path, pattern[0], allowed.expand(pattern.shape)[0])

    def task_scores(self, trace: Trace, example: Example) -> dict[str, list[float]]:
        """Empty: there is no task."""
        return {}


UNCHANGED_PREDICTION = "unchanged prediction"
"""The `reference_label` of an input whose reference is what the model predicts without edits."""


class Input:
    """One kind of input. A subclass defines at least `read`, `text` and the attributes without a default."""

    kind: ClassVar[str] = "symbols"
    """The kind of input widget: "symbols", "text", "image", "picture" or "given"."""
    unit: ClassVar[str] = "token"
    """The noun for the unit at a position, singular."""
    units: ClassVar[str] = "tokens"
    """Its plural."""
    reference_label: ClassVar[str] = "nothing"
    """The label of the reference token where no right answer is known."""
    is_open_ended: ClassVar[bool] = False
    """Whether generation has no end token."""
    continuation_length: ClassVar[int] = 32
    """The default number of generated tokens."""
    uses_prediction_as_reference: ClassVar[bool] = False
    """Whether the prediction of the unchanged model serves as the reference."""
    sample_noun: ClassVar[str] = "sampled input"
    """The noun for one sampled input."""

    name: str
    """Inputs with the same name are interchangeable between models."""
    instruction: str
    """One sentence: what the visitor types and what the model returns."""
    format_hint: str
    """The accepted text, in a few words."""
    default: str
    """The initial text."""
    no_sample_reason: str = ""
    """One sentence on why no input can be sampled; empty if one can."""
    replacements: range = range(0)
    """The tokens that may replace a source token."""

    def examples(self) -> dict[str, str]:
        """Example inputs by purpose, a phrase that completes “See how the model …”."""
        return {}

    def read(self, text: str) -> tuple[int, ...]:
        """Convert typed text to source tokens. Raises `InputError` if it cannot be read."""
        raise NotImplementedError

    def text(self, source: Sequence[int]) -> str:
        """The inverse of `read`."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens as readable text."""
        return self.text(tokens)

    def random(self, seed: int) -> str:
        """A sampled input, as text."""
        return self.default

    def truncate(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """Shorten a source to the model's context, if a part of it is a valid input; else return it unchanged."""
        return source

    def shortest(self) -> tuple[int, ...]:
        """A short valid source."""
        return self.read(self.default)

    def remark(self, source: Sequence[int]) -> str:
        """One sentence on how a source differs from the training data; empty if it does not."""
        return ""

    def scored_positions(self, example: Example, look: str) -> tuple[Sequence[int] | None, Sequence[int] | None]:
        """Return the positions over which a head's attention is scored.

        Args:
            example: The input.
            look: "answer" (attention from the answer back to the source in the same stream) or "source".

        Returns:
            The query positions, and the key positions if they differ from those; None: all positions.
        """
        return None, None


class OpenText(Input):
    """Text without a known continuation."""

    kind: ClassVar[str] = "text"
    reference_label: ClassVar[str] = "actual next token"
    is_open_ended: ClassVar[bool] = True


ADDED = -1
"""Stands in a stream for a position that the model adds to its input."""


def label_added(tokens: Int[Tensor, " pos"], names: Callable[[Tensor], Sequence[str]]) -> tuple[str, ...]:
    """Label the positions that the model adds by their number, and the others by `names`."""
    own, number = iter(names(tokens[tokens != ADDED])), iter(range(1, len(tokens) + 1))
    return tuple(f"added {next(number)}" if token == ADDED else next(own) for token in tokens.tolist())


def with_added(stream: Tensor, added: tuple[int, int], fill: int = ADDED) -> Tensor:
    """A stream [batch, pos] with the positions that the model adds before and after it."""
    return F.pad(stream, added, value=fill)


Measure = Callable[[Tensor], Tensor]
"""Maps the logits [batch, pos, vocab] to one number."""


@dataclass(frozen=True, eq=False)
class Gradients(Mapping[str, Tensor]):
    """Gradients by the names of their activations, in the order of the run."""

    measure: float
    activations: dict[str, Tensor] = field(repr=False)
    gradients: dict[str, Tensor] = field(repr=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.gradients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.gradients)

    def __len__(self) -> int:
        return len(self.gradients)


@torch.inference_mode(False)
def gradients(
    adapter: ModelAdapter, example: Example, measure: Measure, names: Sequence[str], edits: Sequence[Edit] = ()
) -> Gradients:
    """Compute the gradient of `measure` with respect to each activation that matches a glob of `names`, in a run under `edits`.

    Activations that the measure does not depend on have gradient 0.

    Raises:
        EditError: A glob matches no differentiable activation.
        InputError: The measure is not a single number that depends on the logits.
    """
    seen: dict[str, Tensor] = {}
    logits = adapter.record(example, edits=[*edits, *(Watch(name, seen) for name in names)], keep=("logits",)).logits
    if not seen:
        raise EditError(f"No activation that matches {', '.join(names)} has a gradient; use a name like '*.z'.")
    with torch.enable_grad():
        value = measure(logits)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
            raise InputError(
                "A measure must return one number that depends on the logits, like logits[0, -1, 7], got a "
                f"{type(value).__name__}{shape}."
            )
        found = torch.autograd.grad(value.reshape(()), list(seen.values()), materialize_grads=True)
    return Gradients(
        float(value.detach()),
        {name: at.detach().cpu() for name, at in seen.items()},
        {name: at.cpu() for name, at in zip(seen, found, strict=True)},
    )


@torch.no_grad()
def before_norm(
    norm: nn.Module, x: Float[Tensor, " d_model"], g: Float[Tensor, " d_model"]
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, ""]]:
    """Pull a readout of a norm's output back to its input: g · norm(x) = g′ · x + c.

    σ is frozen at its value at x; see `FrozenNorm`.

    Returns:
        g′ [d_model] and the constant c.

    Raises:
        UnavailableError: The norm has another form.
    """
    frozen = FrozenNorm.at(norm, x[None])
    pulled = frozen.scale[0] * g
    return pulled - pulled.mean() if frozen.is_centred else pulled, g @ frozen.shift


_FAR = 1e4
"""The size of probe inputs at which the ε of a norm is negligible."""


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm as a linear map, with its divisors σ frozen at their values for x [pos, d_model].

        norm(x) = γ (x − μ(x)) / σ(x) + β          LayerNorm; RMSNorm has no μ and no β
        frozen(s) = γ (s − μ(s)) / σ(x)            so that Σ frozen(s) + β = norm(Σ s) for parts s with Σ s = x

    γ, β, μ and σ are measured from outputs of the norm, so any implementation of these forms works.
    """

    scale: Float[Tensor, "pos d_model"]
    """γ / σ at each position."""
    shift: Float[Tensor, " d_model"]
    """β."""
    is_centred: bool

    @classmethod
    @torch.no_grad()
    def at(cls, norm: nn.Module, x: Float[Tensor, "pos d_model"]) -> FrozenNorm:
        """Measure a norm at x. Raises `UnavailableError` for a norm of another form."""
        twin = copy.deepcopy(norm).to(x.device, torch.float64)
        x = x.double()

        def f(vector: Tensor) -> Tensor:
            return twin(vector.reshape(1, -1, x.shape[-1]))[0].double()  # [pos, d_model]

        given = f(x)
        shift = (given[0] + f(-x)[0]) / 2
        sign = torch.ones_like(x[0])
        sign[1::2] = -1
        centred = bool(torch.allclose(f(_FAR * (sign + 1)), f(_FAR * (sign - sign.mean())), atol=1e-4, rtol=1e-4))
        probe = (sign - sign.mean() if centred else sign) * _FAR
        gamma = (f(probe)[0] - shift) / probe * probe.square().mean().sqrt()
        inside = gamma * (x - x.mean(dim=-1, keepdim=True) if centred else x)  # [pos, d_model]
        per_sigma = (inside * (given - shift)).sum(-1, keepdim=True) / inside.square().sum(-1, keepdim=True)
        if not torch.allclose(inside * per_sigma + shift, given, rtol=1e-3, atol=1e-4 * float(given.abs().max())):
            raise UnavailableError(
                f"{type(norm).__name__} does not divide by one number per position, so its output is not a sum over parts "
                "of its input; use a norm like LayerNorm or RMSNorm."
            )
        return cls(gamma * per_sigma, shift, centred)

    def __call__(self, parts: Float[Tensor, "part pos d_model"]) -> Float[Tensor, "part pos d_model"]:
        """Map each part, without the shift β."""
        return (parts - parts.mean(dim=-1, keepdim=True) if self.is_centred else parts) * self.scale.to(parts.dtype)
