"""Variants of models to compare, each with its own edits and sampling rule, and their predictions on many inputs.

    Variant.load("checkpoints/reverse", "without head 2", edits="ablate:encoder.1.attn.1")

Models with different vocabularies are compared by the labels of their tokens; see `joint_labels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from xformer.adapters import TaskModel, own_task_model
from xformer.decoding import GREEDY, Sampling, prefixes, reads_ahead
from xformer.edit_links import EditLink, all_edits, changed_source, parse_edits
from xformer.edits import AblateHead, AblateNeuron, Edit, Scale, SetCausal, SetEdges, ZeroPositions, set_causal
from xformer.errors import InputError
from xformer.memory import rows_that_fit
from xformer.model import Transformer
from xformer.reading import adapter_of
from xformer.tasks import Batch, Task
from xformer.tasks.batch import IGNORED
from xformer.tasks.task import Example
from xformer.trace import record


@dataclass(frozen=True, eq=False)
class Variant:
    """A model with its task, and the changes that apply to it alone.

    Example:
        >>> import xformer
        >>> ablated = xformer.analysis.Variant.load(
        ...     "checkpoints/reverse", "ablated", edits="ablate:encoder.2.attn.1"
        ... )
        >>> ablated.name
        'ablated'
    """

    adapter: TaskModel
    edits: tuple[Edit, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0
    """The seed of the variant's own generator, so that its samples do not depend on other models."""
    edit_links: tuple[EditLink, ...] = ()
    """The changes that a link can store. Their edits are included in `edits`; some replace tokens of the input."""
    code: str = ""
    """The call that loads the variant again, or ""."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("A model in a comparison needs a name, got none; for example 'original'.")
        if self.model.training:
            raise InputError(f"Models in a comparison must be in eval() mode, and {self.name} is in training mode.")

    @classmethod
    def load(
        cls,
        model: str,
        name: str,
        *,
        causal: bool | None = None,
        edits: str = "",
        sampling: Sampling = GREEDY,
        seed: int = 0,
        adapter: TaskModel | None = None,
    ) -> Variant:
        """Load a variant from a folder or file.

        Args:
            model: The checkpoint.
            name: The name of the variant in tables and charts.
            causal: Whether to apply a causal mask; None keeps the model's own mask.
            edits: The other edits in the form used in links, see `xformer.edit_links`.
            sampling: The rule by which tokens are chosen.
            seed: The seed of its generator.
            adapter: The loaded model, if there is one already.

        Returns:
            The variant.

        Raises:
            CheckpointError: If the checkpoint cannot be loaded.
            InputError: If the edits cannot be parsed.
            EditError: If an edit does not fit the model.
        """
        given = {"causal": causal, "edits": edits, "seed": seed}
        usual = {"causal": None, "edits": "", "seed": 0}
        arguments = [repr(model), repr(name)]
        arguments += [f"{key}={value!r}" for key, value in given.items() if value != usual[key]]
        arguments += [f"sampling=xformer.{sampling}"] if sampling != GREEDY else []
        adapter = own_task_model(adapter_of(model)) if adapter is None else adapter
        code = f"xformer.analysis.Variant.load({', '.join(arguments)})"
        edit_links = parse_edits(edits, adapter.shape)
        mask = [] if causal is None else [set_causal(causal)]
        return cls(replace(adapter, name=name), (*mask, *all_edits(edit_links)), sampling, seed, edit_links, code)

    @property
    def name(self) -> str:
        """The name in tables and charts."""
        return self.adapter.name

    @property
    def model(self) -> Transformer:
        return self.adapter.model

    @property
    def task(self) -> Task:
        return self.adapter.task

    @property
    def writes(self) -> bool:
        """Whether the model generates tokens one by one; an encoder predicts all positions at once."""
        return self.model.config.architecture != "encoder"

    def to_example(self, source: Sequence[int]) -> Example:
        """Return an input as this model reads it, with the variant's own replacements of tokens."""
        return self.adapter.to_example(changed_source(self.edit_links, tuple(source)))

    def generator(self) -> torch.Generator:
        """Return a new generator with the variant's seed."""
        return torch.Generator(self.model.device).manual_seed(self.seed)


def clip_edges_to_length(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return the edits for a run over the beginning of an answer, which may be too short for some of the edges."""
    return tuple(replace(edit, grows=True) if isinstance(edit, SetEdges) else edit for edit in edits)


def check_names(variants: Sequence[Variant]) -> None:
    """Raise `InputError` unless all names differ."""
    names = [variant.name for variant in variants]
    if not names or len(set(names)) < len(names):
        raise InputError(f"Models in a comparison need different names, got {names}; for example ['first', 'second'].")


def check_several(compared: Sequence[object]) -> None:
    """Raise `InputError` unless there are two or more variants, or runs of them."""
    if len(compared) < 2:
        raise InputError(f"A comparison needs two models or more, got {len(compared)}; add another one.")


def joint_labels(variants: Iterable[Variant]) -> tuple[str, ...]:
    """Return the labels of all vocabularies, each once, in order of first occurrence."""
    return tuple(dict.fromkeys(label for variant in variants for label in variant.adapter.token_labels))


def to_joint(variant: Variant, labels: tuple[str, ...]) -> Int[Tensor, " vocab"]:
    """Return the index in `labels` of each token of the variant."""
    place = {label: index for index, label in enumerate(labels)}
    return torch.tensor([place[label] for label in variant.adapter.token_labels])


NO_TOKEN = -1

CELLS_AT_ONCE = 800_000
"""The most attention cells (queries × keys) of a head in one forward pass; this many take about a second."""

TRIED = 4
"""The number of inputs, and of positions in each answer, on which `sees_ahead` tests a model."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """One variant's answers to a batch of inputs, as indices of the joint labels; `NO_TOKEN` after the end of an answer."""

    sources: Int[Tensor, "input pos"]
    """The tokens that were read, including padding and special tokens, as ids of this variant."""
    right: Int[Tensor, "input place"]
    predicted: Int[Tensor, "input place"]


def predictions(
    variants: Sequence[Variant], n: int, *, seed: int, chunk: int
) -> Iterator[tuple[int, list[Predictions]]]:
    """Predict n held-out inputs of the first variant's task with all variants, one forward pass at a time.

    Yields the number of inputs done and each variant's predictions on the latest ones. Inputs are sampled in chunks of `chunk`;
    they equal those of `evaluate` if its batches have that size.

    Raises `InputError` if a variant was made for other tokens, and `ConfigError` if the inputs are too long for it.
    """
    task, labels = variants[0].task, joint_labels(variants)
    tasks = [inputs_for(variant, task) for variant in variants]
    ahead = [sees_ahead(variant, own) for variant, own in zip(variants, tasks, strict=True)]
    for step, start in enumerate(range(0, n, chunk)):
        size = min(chunk, n - start)
        batches = [
            own.sample(size, seed=seed, step=step, device=variant.model.device)
            for variant, own in zip(variants, tasks, strict=True)
        ]
        for rows in portions(task, size, variants, one_by_one=any(ahead)):
            found = [
                _predictions(variant, batch.rows(rows.start, rows.stop), labels, one_by_one)
                for variant, batch, one_by_one in zip(variants, batches, ahead, strict=True)
            ]
            yield start + rows.stop, found


def inputs_for(variant: Variant, task: Task) -> Task:
    """Return the inputs of `task` as this variant reads them. Raises the errors of `predictions`."""
    own = variant.task.config
    laid_out = task.for_architecture(own.architecture, end_token=own.end_token)
    if laid_out.config.name != own.name or laid_out.vocabulary.labels != variant.adapter.token_labels:
        raise InputError(
            f"{variant.name} was made for {own.name} with {own.symbols} symbols, got inputs of {task.config.name} with "
            f"{task.config.symbols}; compare models of one task."
        )
    laid_out.check_fits(variant.model.config)
    return laid_out


def portions(task: Task, n: int, variants: Sequence[Variant], *, one_by_one: bool = False) -> list[range]:
    """Divide the rows of a batch of n inputs into portions that fit one forward pass, or one pass per token of an answer.

    The portions are small enough for the largest of the models (see `rows_that_fit`).
    """
    longest = max(task.longest)
    cells = max(1, longest**3 // 3) if one_by_one else longest**2
    copies = longest if one_by_one else 1  # each input is read once per token of its answer
    sizes = [CELLS_AT_ONCE // cells, *(rows_that_fit(one.model.config, longest) // copies for one in variants)]
    size = max(1, min(sizes))
    return [range(start, min(start + size, n)) for start in range(0, n, size)]


def sees_ahead(variant: Variant, task: Task) -> bool:
    """Return whether the variant can see the right answer before predicting it, judged by its edits, else by a test run.

    `task` must have the layout of this variant.
    """
    if not variant.writes:
        return False
    looks_back_only = all(
        isinstance(edit, AblateHead | AblateNeuron | Scale | ZeroPositions)
        or (isinstance(edit, SetCausal) and edit.on)
        or (isinstance(edit, SetEdges) and not edit.allowed)
        for edit in variant.edits
    )
    if not (looks_back_only and variant.model.config.position_kind.can_cache_keys):
        return True
    return reads_ahead(variant.model, task.sample(TRIED, seed=0, device=variant.model.device), places=TRIED)


@torch.no_grad()
def _predictions(variant: Variant, batch: Batch, labels: tuple[str, ...], one_by_one: bool) -> Predictions:
    """Run one forward pass, or with `one_by_one` one per token of an answer."""
    likeliest = (_logits_one_by_one(variant, batch) if one_by_one else _logits(variant, batch)).argmax(dim=-1)
    sources, labels_typed = variant.task.rule.as_typed(
        batch.tokens, batch.labels, is_encoder_decoder=batch.target is not None
    )
    labelled = labels_typed != IGNORED  # [input, out]
    width = int(labelled.sum(dim=1).max())  # outputs without a label go to a spare column
    place = (labelled.cumsum(dim=1) - 1).masked_fill(~labelled, width)
    joint = to_joint(variant, labels).to(batch.labels.device)

    def gathered(tokens: Tensor) -> Tensor:
        cells = joint[tokens]  # [input, out]
        return cells.new_full((len(cells), width + 1), NO_TOKEN).scatter(1, place, cells)[:, :width].cpu()

    return Predictions(sources.cpu(), gathered(batch.labels.clamp(min=0)), gathered(likeliest))


def _logits(variant: Variant, batch: Batch) -> Float[Tensor, "input out vocab"]:
    if not variant.edits:
        return batch.logits(variant.model)
    target_valid = None if batch.target is None else batch.target != variant.task.vocabulary.special.pad
    padding: dict[str, Any] = {"valid": batch.valid, "target_valid": target_valid}
    return record(variant.model, batch.tokens, batch.target, edits=variant.edits, keep=("logits",), **padding).logits


def _logits_one_by_one(variant: Variant, batch: Batch) -> Float[Tensor, "input out vocab"]:
    """Compute the logits of each labelled output with a run that ends there; the others are 0."""
    logits = torch.zeros_like(_logits(variant, batch))  # this run raises for an edge beyond the longest input
    edits, model = clip_edges_to_length(variant.edits), variant.model
    for rows, place, read in prefixes(batch):
        run = record(model, *read, edits=edits, keep=("logits",)).logits if edits else model(*read)
        logits[rows, place] = run[:, -1]
    return logits


CHUNK = 250
"""Inputs between two progress reports."""


@dataclass(frozen=True)
class Search:
    """The progress of a search, and the input found, if any: `Task.example(list(found))` lays it out for a variant."""

    n_compared: int
    within: int
    found: tuple[int, ...] | None


def search(variants: Sequence[Variant], *, within: int = 5000, seed: int = 0) -> Iterator[Search]:
    """Search up to `within` inputs of the first variant's task for one on which the variants predict different tokens.

    The last report has the first such input, or None. Raises `InputError` for fewer than two variants, or for variants with
    different tokens.
    """
    check_several(variants)
    for done, chunk in predictions(variants, within, seed=seed, chunk=CHUNK):
        width = min(one.predicted.shape[1] for one in chunk)
        tokens = torch.stack([one.predicted[:, :width] for one in chunk])  # [variant, input, place]
        differs = (tokens != tokens[:1]).any(dim=0) & (tokens != NO_TOKEN).all(dim=0)  # [input, place]
        rows = differs.any(dim=1).nonzero()[:, 0].tolist()
        found = _source(variants[0], chunk[0].sources[rows[0]].tolist()) if rows else None
        yield Search(done, within, found)
        if found is not None:
            return


def _source(variant: Variant, tokens: list[int]) -> tuple[int, ...]:
    """Return the tokens of an input before its first special token."""
    special = variant.task.vocabulary.special
    return tuple(takewhile(lambda token: token not in (special.pad, special.end, special.start), tokens))
