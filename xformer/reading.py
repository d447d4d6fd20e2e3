"""A recorded run of a model with its inputs, activations and predictions.

    reading = xformer.read("checkpoints/reverse", "3 7 12 9")
    reading.tokens, reading.predicted, reading.loss, reading["encoder.0.attn.pattern"]

Every table and every picture is one call on a reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from xformer import notebook_html
from xformer.adapters import BareModel, ModelAdapter, TaskModel
from xformer.adapters.adapter import Gradients, Measure
from xformer.adapters.adapter import gradients as gradients_of_run
from xformer.adapters.attachment import unwrapped
from xformer.adapters.load import in_memory, is_external, opened_from, opened_module
from xformer.adapters.on_demand import OnDemand
from xformer.checkpoints import Checkpoint, load
from xformer.edits import AnyEdit, set_causal
from xformer.errors import ActivationError, EditError, InputError, UnavailableError
from xformer.interventions import all_edits, changed_source, parse
from xformer.memory import check_analysis
from xformer.model import Transformer
from xformer.site import Site
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import Trace
from xformer.transformer_lens import is_lens_name, lens_axes, lens_names, own_edit, own_name, own_names

MOST_CELLS = 4_000_000
"""The probabilities that are computed at a time."""
MOST_WRITTEN = 100
"""The most tokens or predictions that a notebook shows."""
Readable = str | Path | Checkpoint | Transformer | nn.Module | ModelAdapter
"""A path, a loaded model of ours or an external one, or an adapter."""


@dataclass(frozen=True)
class Recipe:
    """The arguments of `read` as plain values, to read again in another process too."""

    where: str
    typed: str | tuple[int, ...]
    causal: bool | None = None
    """The mask in place of the model's own: causal or full; None: its own."""
    changes: str = ""

    def __str__(self) -> str:
        """The call that makes the same reading."""
        mask = "" if self.causal is None else f", edits=[xformer.edits.set_causal({self.causal})]"
        changes = f", changes={self.changes!r}" if self.changes else ""
        return f"xformer.read({self.where!r}, {self.typed!r}{mask}{changes})"


@dataclass(frozen=True, eq=False)
class Reading(Mapping[str, Tensor]):
    """One run of a model: a mapping from the names of activations to tensors, with the model, its inputs and its predictions.

    Names are ours ("encoder.0.attn.pattern") or, for a model with one stack, those of TransformerLens
    ("blocks.0.attn.hook_pattern", with its order of axes); iteration gives ours. Two readings are equal only if they are the
    same object.

    The predictions are those at the outputs where `example.labels` has a token: the right answer, or in a text the next token.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> reading["encoder.0.attn.pattern"].shape  # [batch, head, query, key]
        torch.Size([1, 4, 4, 4])
        >>> reading["blocks.0.attn.hook_q"].shape  # [batch, pos, head, d_head]
        torch.Size([1, 4, 4, 16])
        >>> reading.get("encoder.9.attn.pattern") is None
        True
    """

    subject: ModelAdapter
    example: Example
    trace: Trace
    has_right_answer: bool = True
    """Whether predictions can be right or wrong."""
    recipe: Recipe | str | None = None
    """How to make the same reading, as plain values or as code; None where that cannot be written down."""
    token_labels: tuple[str, ...] | None = None
    """Labels of the caller for the tokens, in place of the model's own."""

    def __getitem__(self, name: str) -> Tensor:
        """An activation by its name. Raises `ActivationError`, which is a `KeyError`, where there is none of that name."""
        if not isinstance(name, str):
            raise ActivationError(
                f"Activations have names, got {name!r}; one input of a batch is reading.one({name!r})."
            )
        if not is_lens_name(name):
            return self.trace[name]
        own = own_name(name, self.subject.shape)
        if own not in self.trace:
            near = get_close_matches(name, self.names("transformer_lens"), n=3, cutoff=0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else "."
            raise ActivationError(f"This reading has no activation {name!r}{hint}")
        value = lens_axes(own, self.trace[own])
        return value.expand(self.batch_size, *value.shape[1:]) if own == "pos_embed" else value

    def __contains__(self, name: object) -> bool:
        if not is_lens_name(name):
            return name in self.trace
        return not self.is_pair and name in lens_names(self.trace, self.subject.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.trace)

    def __len__(self) -> int:
        return len(self.trace)

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]  a mapping has none, and this one is no value

    def names(self, convention: Literal["xformer", "transformer_lens"] = "xformer") -> tuple[str, ...]:
        """The names of the activations that were kept, in the order of the run.

        Args:
            convention: "xformer" for our names, "transformer_lens" for those activations that have a name there, by that name.

        Raises:
            ActivationError: "transformer_lens" is asked for a model with two stacks.
        """
        if convention == "xformer":
            return tuple(self.trace)
        if convention != "transformer_lens":
            raise InputError(f"A convention of names is 'xformer' or 'transformer_lens', got {convention!r}.")
        return tuple(lens_names(self.trace, self.subject.shape))

    def one(self, index: int) -> Reading:
        """One input of a batch, with its padding. Raises `InputError` where the batch has no such input."""
        return replace(self, example=self.example.one(index), trace=self.trace.one(index), recipe=None)

    @property
    def batch_size(self) -> int:
        """The number of inputs. Pictures and tables show the first; `reading.one(i)` is another."""
        return len(self.example.stream)

    @property
    def logits(self) -> Float[Tensor, "batch pos vocab"]:
        """The logits. Raises `UnavailableError` where the model has no output head."""
        if "logits" not in self.trace and "output" in self.trace:
            raise UnavailableError(
                f"{self.subject.name} has no output head, so there are no logits; its vectors are reading['output']."
            )
        return self.trace.logits

    @property
    def has_logits(self) -> bool:
        """Whether the model has logits; one without an output head gives vectors."""
        return "logits" in self.trace

    @property
    def sites(self) -> tuple[Site, ...]:
        """The attention layers that were kept, in the order the input meets them."""
        return self.trace.sites()

    @property
    def attention(self) -> tuple[Site, ...]:
        """The attention layers of the model; `layer=` of a picture counts them from 0."""
        return self.subject.shape.attention

    @property
    def feed_forward(self) -> tuple[Site, ...]:
        """The feed-forward layers of the model; `layer=` of a picture of neurons counts them from 0."""
        return self.subject.shape.feed_forward

    def attention_site(self, layer: int) -> Site:
        """The attention layer of that number, from 0. Raises `EditError` where there is none."""
        return _numbered(self.attention, layer, "attention layers")

    def feed_forward_site(self, layer: int) -> Site:
        """The feed-forward layer of that number, from 0. Raises `EditError` where there is none."""
        return _numbered(self.feed_forward, layer, "feed-forward layers")

    @property
    def output_stack(self) -> str:
        """The stack whose output becomes the logits: the decoder where there is one."""
        return self.subject.shape.output_stack

    @property
    def output(self) -> str:
        """What kind of output the model has: "next_token", of external models also "sequence_class", "vectors", …"""
        return getattr(self.subject, "output", "next_token")

    @property
    def is_pair(self) -> bool:
        """Whether the model has two stacks, an encoder and a decoder."""
        return self.subject.shape.is_pair

    @property
    def edits(self) -> tuple[AnyEdit, ...]:
        """The edits of this run."""
        return self.trace.edits

    @property
    def tokens(self) -> tuple[str, ...]:
        """The label of the token at each position of the input."""
        return self.tokens_of()

    def tokens_of(self, stack: str | None = None) -> tuple[str, ...]:
        """The labels of the tokens that a stack reads: the decoder of an encoder-decoder reads the target."""
        if self.token_labels is not None and (stack != "decoder" or self.trace.target is None):
            return self.token_labels
        return self.subject.names(self.trace.read_by(stack)[0])

    def ids(self, stack: str | None = None) -> list[int]:
        """The ids of the tokens that a stack reads."""
        return self.trace.read_by(stack)[0].tolist()

    @cached_property
    def target_positions(self) -> tuple[int, ...]:
        """The positions whose output has a target, from 0."""
        return tuple((self.example.labels[0] != IGNORED).nonzero()[:, 0].tolist())

    @cached_property
    def answer(self) -> tuple[int, ...]:
        """The target token at each of the target positions: the right answer, or the next token of a text."""
        return tuple(self._answer.tolist())

    @property
    def open_output(self) -> int | None:
        """The last output of a decoder without an encoder, if the token after the input is unknown; else None."""
        if self.output not in ("next_token", "module"):
            return None
        labels, shape = self.example.labels[0], self.subject.shape
        is_open = shape.architecture == "decoder" and self.example.target is None and int(labels[-1]) == IGNORED
        return len(labels) - 1 if is_open else None

    @property
    def answer_name(self) -> str:
        """What stands at an output for comparison: the right answer, or where there is none what else is known."""
        return "right answer" if self.has_right_answer else self.subject.input.reference_label

    def explained(self, position: int) -> int:
        """The token that a picture explains at an output: its target, else the likeliest."""
        token = int(self.example.labels[0, position])
        return token if token != IGNORED else int(self.logits[0, position].argmax())

    @property
    def answers(self) -> tuple[str, ...]:
        """The labels of the target tokens."""
        return tuple(self.subject.labels[token] for token in self.answer)

    @cached_property
    def probabilities(self) -> Float[Tensor, "asked vocab"]:
        """The predicted distribution at each target position, given the tokens before it.

        Probabilities of NaN, which a broken model predicts, are 0. Raises `InputError` where the table would be too large.
        """
        if not self.has_logits:
            return torch.zeros(0, 1)
        check_analysis(
            "probabilities", "use predicted and probability", n=len(self.target_positions), vocab=self.logits.shape[-1]
        )
        return _probabilities(self._logits_asked)

    @cached_property
    def predicted(self) -> tuple[int, ...]:
        """The likeliest token at each target position."""
        return self._best[1]

    @cached_property
    def probability(self) -> tuple[float, ...]:
        """The probability of the likeliest token."""
        return self._best[0]

    @cached_property
    def probability_of_answer(self) -> tuple[float, ...]:
        """The probability of the answer."""
        return self._best[2]

    @cached_property
    def _best(self) -> tuple[tuple[float, ...], tuple[int, ...], tuple[float, ...]]:
        """The largest probability, its token, and the probability of the answer at each output that is asked for.

        Some outputs are computed at a time: all probabilities over a large vocabulary take gigabytes.
        """
        if not self.has_logits:
            return (), (), ()
        asked, best, tokens, answers = list(self.target_positions), [], [], []
        step = max(1, MOST_CELLS // self.logits.shape[-1])
        for start in range(0, len(asked), step):
            p = _probabilities(self.logits[0, asked[start : start + step]])  # [asked, vocab]
            best += p.amax(dim=-1).tolist()
            tokens += p.argmax(dim=-1).tolist()
            answers += p.gather(1, self._answer[start : start + step, None])[:, 0].tolist()
        return tuple(best), tuple(tokens), tuple(answers)

    @cached_property
    def loss(self) -> float:
        """Mean −log p(answer) over those outputs, in nats; NaN where none is asked for."""
        return F.cross_entropy(self._logits_asked, self._answer).item() if self.has_logits else math.nan

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each prediction is the target token. Without a right answer this is not a score."""
        return tuple(token == answer for token, answer in zip(self.predicted, self.answer, strict=True))

    @property
    def n_correct(self) -> int:
        """The number of predictions that are the target token."""
        return sum(self.right)

    @property
    def _logits_asked(self) -> Float[Tensor, "asked vocab"]:
        return self.logits[0, list(self.target_positions)]

    @property
    def _answer(self) -> Int[Tensor, " asked"]:
        labels = self.example.labels[0]
        if self.has_logits:
            labels = labels.to(self.logits.device)
        return labels[labels != IGNORED]

    def __repr__(self) -> str:
        predicted = " ".join(self.subject.labels[token] for token in self.predicted)
        return f"<Reading of {self.subject.name}: {' '.join(self.tokens)!r} → {predicted!r}, {len(self)} activations>"

    def _repr_html_(self) -> str:
        """In a notebook: what was read, what is predicted with how much belief, all heads, and what can be looked at.

        Of a long input the first tokens stand there. Of a large run the heads are drawn from what is kept of each.
        """
        cell = "padding:.2em .5em;text-align:center;white-space:pre"
        read = "".join(f'<td style="{cell}">{escape(token)}</td>' for token in self.tokens[:MOST_WRITTEN])
        tables = f"<table><tr><th>reads</th>{read}{_and_more(len(self.tokens))}</tr></table>"
        if self.target_positions and self.has_logits:
            says = "".join(self._chips(cell))
            tables += f"<table><tr><th>says</th>{says}{_and_more(len(self.target_positions))}</tr></table>"
        run, paths = self.trace.activations, self.trace.attention_layers()
        kept = [run.reduced(path) if isinstance(run, OnDemand) else None for path in paths]
        patterns = [
            self[f"{path}.pattern"][0].float().numpy(force=True) if small is None else small.small.weights
            for path, small in zip(paths, kept, strict=True)
        ]
        longest = max((max(small.shape[1:]) for small in kept if small is not None), default=0)
        names = ", ".join(escape(name) for name in self)
        listed = f"<details><summary>{len(self)} activations</summary><small>{names}</small></details>"
        return notebook_html.card(self.subject.name, tables, notebook_html.head_overview(patterns, longest), listed)

    def _chips(self, cell: str) -> Iterator[str]:
        """The first predictions, each over its probability; the line below it is as strong, and of another colour where it is
        wrong."""
        asked, answer = self.target_positions[:MOST_WRITTEN], self.answer[:MOST_WRITTEN]
        believed = self.logits[0, list(asked)].softmax(dim=-1).nan_to_num(0.0).max(dim=-1)  # [asked]
        for p, token, right in zip(believed.values.tolist(), believed.indices.tolist(), answer, strict=True):
            ok = token == right or not self.has_right_answer
            line = f"border-bottom:3px solid hsl({130 if ok else 20} 55% 45% / {p:.2f})"
            label = escape(self.subject.labels[token])
            yield f'<td style="{cell};{line}">{label}{"" if ok else " ✗"}<br><small>{p:.2f}</small></td>'


def _probabilities(logits: Float[Tensor, "asked vocab"]) -> Float[Tensor, "asked vocab"]:
    return logits.softmax(dim=-1).nan_to_num_(0.0)


def _and_more(n: int) -> str:
    return f"<td>… and {n - MOST_WRITTEN:,} more</td>" if n > MOST_WRITTEN else ""


def _numbered(sites: tuple[Site, ...], layer: int, what: str) -> Site:
    if not 0 <= layer < len(sites):
        there = f"{what} 0 to {len(sites) - 1}" if sites else f"no {what}"
        raise EditError(f"This model has {there}, got {layer}.")
    return sites[layer]


def read(
    model: Readable,
    inputs: Any,
    *,
    tokenizer: Any = None,
    tokens: Sequence[str] | None = None,
    edits: Sequence[AnyEdit] = (),
    changes: str = "",
    keep: Sequence[str] = ("*",),
) -> Reading:
    """Run inputs through a model and keep what it computes. The model is left as it was found.

    Args:
        model: The folder or file of a checkpoint or of a Hugging Face model (config.json with safetensors, or a .gguf file), or
            a loaded model: ours, a `PreTrainedModel`, or any torch module.
        inputs: A text as a person types it ("3 7 12 9"), token ids [pos] or [batch, pos], a list of texts or of ids (a batch,
            padded on the right), `(source, target)` for an encoder-decoder, an image, or the model's arguments by name.
        tokenizer: Cuts the texts of a loaded Hugging Face model.
        tokens: Labels for the positions of the first input, in the place of the model's own words.
        edits: Interventions, see `xformer.edits`.
        changes: More of them as a link has them ("mute:encoder.0.ffn,token:3.7"), see `xformer.interventions`.
        keep: Globs of the activations wanted.

    Returns:
        The reading. Without a right answer, the prediction of the unedited model takes its place.

    Raises:
        CheckpointError: The files hold no model that can be trusted.
        InputError: The model cannot read these inputs.
        EditError: An edit or a glob fits nothing in the run.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> reading["encoder.0.attn.pattern"].shape
        torch.Size([1, 4, 4, 4])
    """
    subject = adapter_of(model, inputs, tokenizer)
    is_ids = isinstance(inputs, Tensor) and not inputs.is_floating_point()
    plain: Any = inputs
    if is_ids and (inputs.dim() == 1 or (inputs.dim() == 2 and len(inputs) == 1)):
        plain = tuple(inputs.flatten().tolist())
    first, example, changed = framed(subject, plain, changes)
    run = [*(own_edit(edit, subject.shape) for edit in edits), *changed]
    keep = own_names(keep, subject.shape)
    output = getattr(getattr(subject, "opened", None), "output_name", "logits")
    kept = keep if output in keep or "*" in keep else (*keep, output)
    has_right_answer = subject.has_right_answer(first)
    trace = subject.record(example, edits=run, keep=kept)
    if subject.input.answers_itself and not has_right_answer:
        alone = trace if not run and example is first else subject.record(first, keep=("logits",))
        example = answered(example, int(alone.logits[0, 0].argmax()))
    reading = Reading(subject, example, trace, has_right_answer, _recipe(model, plain, edits, changes))
    return reading if tokens is None else labelled(reading, tokens)


def labelled(reading: Reading, tokens: Sequence[str]) -> Reading:
    """The reading with other labels for its tokens. Raises `InputError` where the number differs."""
    n = len(reading.ids())
    if len(tokens) != n:
        raise InputError(f"There is one label for each of the {n} tokens, got {len(tokens)}.")
    return replace(reading, token_labels=tuple(map(str, tokens)))


def rerun(reading: Reading, more: Sequence[AnyEdit]) -> Reading:
    """Run the same input again under the reading's edits and then `more`."""
    run = [*reading.edits, *(own_edit(edit, reading.subject.shape) for edit in more)]
    trace = reading.subject.record(reading.example, edits=run)
    return Reading(reading.subject, reading.example, trace, reading.has_right_answer)


def gradients(reading: Reading, measure: Measure, names: Sequence[str]) -> Gradients:
    """The gradient of a number computed from the logits with respect to activations.

    The reading's input runs once more, forward under the reading's edits and backward. Parameters get no gradient.

    Args:
        reading: The run. `xformer.read(model, inputs, keep=["logits"])` is enough.
        measure: A differentiable function from the logits [batch, pos, vocab] to one number.
        names: Names of activations, or globs: ["*.z"].

    Returns:
        A mapping from each name to ∂ measure / ∂ activation, with the activation's shape; 0 where the measure does not depend
        on it. Its `activations` are the values of the activations, its `measure` is the number. A name of TransformerLens
        gives that name and that order of axes.

    Raises:
        EditError: No activation of a floating-point type has the name.
        InputError: The measure is not one number that depends on the logits.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> found = xformer.gradients(reading, lambda logits: logits[0, 0, 9] - logits[0, 0, 3], ["*.attn.z"])
        >>> found["encoder.3.attn.z"].shape  # [batch, head, pos, d_value]
        torch.Size([1, 4, 4, 16])
    """
    shape = reading.subject.shape
    found = gradients_of_run(reading.subject, reading.example, measure, own_names(names, shape), reading.edits)
    globs = [own_name(name, shape) for name in names if is_lens_name(name)]
    if not globs:
        return found
    renamed = {
        own: lens for lens, own in lens_names(found, shape).items() if any(fnmatchcase(own, glob) for glob in globs)
    }

    def as_asked(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            renamed.get(name, name): lens_axes(name, value) if name in renamed else value
            for name, value in values.items()
        }

    return Gradients(found.measure, as_asked(found.activations), as_asked(found.gradients))


def framed(subject: ModelAdapter, typed: Any, changes: str = "") -> tuple[Example, Example, list[AnyEdit]]:
    """An input laid out for a model, the same with the tokens replaced that `changes` name, and the edits of their others.

    Raises `InputError` and `EditError` as `read` does.
    """
    first = subject.frame(typed)
    if not changes:
        return first, first, []
    if len(first.stream) > 1:
        raise InputError(f"Changes are made in one input, and this is a batch of {len(first.stream)}; use edits.")
    interventions = parse(changes, subject.shape)
    source = changed_source(interventions, first.source)
    return first, first if source == first.source else subject.frame(source), all_edits(interventions)


def from_trace(where: Readable, trace: Trace, answers: Sequence[int] | None = None) -> Reading:
    """A run that was recorded already, of its first input; `answers` are the right tokens at its outputs, −100 for none."""
    tokens, target = trace.tokens[:1], None if trace.target is None else trace.target[:1]
    n_out = (trace.logits if "logits" in trace else tokens if target is None else target).shape[1]
    labels = torch.full((n_out,), IGNORED) if answers is None else torch.as_tensor(answers)  # [out]
    example = Example(tuple(tokens[0].tolist()), (), tokens, target, tokens, labels[None])
    return Reading(adapter_of(where), example, trace, answers is not None)


def answered(example: Example, token: int) -> Example:
    """An image example with `token` as its answer."""
    labels = example.labels.clone()
    labels[0, 0] = token
    return replace(example, source=(*example.source[:-1], token), answer=(token,), labels=labels)


def _recipe(where: object, typed: Any, edits: Sequence[AnyEdit], changes: str) -> Recipe | None:
    """None for what is no path, or was changed by more than the recipe can say."""
    masks = {causal: set_causal(causal) for causal in (True, False)}
    causal = next((causal for causal, edit in masks.items() if list(edits) == [edit]), None)
    is_plain = isinstance(typed, str) or (
        isinstance(typed, tuple | list) and all(isinstance(one, int) for one in typed)
    )
    if not isinstance(where, str | Path) or not is_plain or (edits and causal is None):
        return None
    return Recipe(str(where), typed if isinstance(typed, str) else tuple(typed), causal, changes)


def adapter_of(where: Readable, typed: Any = None, tokenizer: Any = None) -> ModelAdapter:
    """The adapter of a model, a checkpoint or a path; `typed` are the inputs that a torch module is opened with.

    Raises `CheckpointError` for a path that holds no model, `InputError` for a module without attention that can be seen.
    """
    name = "model"
    if isinstance(where, str) and (found := in_memory(where)):
        return found
    if isinstance(where, str | Path):
        path = Path(where)
        if is_external(path):
            return opened_from(path)
        name, where = path.name, load(where)
    where = unwrapped(where) if isinstance(where, nn.Module) else where
    if isinstance(where, Transformer):
        return BareModel(where, name)
    if isinstance(where, Checkpoint):
        return BareModel(where.model, name) if where.task is None else TaskModel(where.model, where.task, name)
    if isinstance(where, nn.Module):
        return opened_module(where, typed, tokenizer)
    return where
