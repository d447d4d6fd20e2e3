"""Who is compared: a model under changes, with the rule by which its tokens are chosen.

    Contender.load("checkpoints/reverse", "without head 2", changes="silence:encoder.1.attn.1")

Contenders of other vocabularies meet by the labels of their tokens: see `joint_labels`. On the screen they are players.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from xformer.decoding import GREEDY, Sampling
from xformer.edits import AblateHead, AblateNeuron, AnyEdit, Scale, SetCausal, SetEdges, ZeroPositions, set_causal
from xformer.errors import InputError
from xformer.interventions import Intervention, all_edits, changed_source, parse
from xformer.model import Transformer
from xformer.reading import subject_of
from xformer.subjects import TaskModel, own_task_model
from xformer.tasks import Task
from xformer.tasks.task import Example


@dataclass(frozen=True, eq=False)
class Contender:
    """A model with its task, and what is changed for it alone."""

    subject: TaskModel
    edits: tuple[AnyEdit, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0
    """Of its own generator: the same seed draws the same tokens, whoever is compared with it."""
    interventions: tuple[Intervention, ...] = ()
    """What of this a link writes: their edits are among the edits, and some replace tokens of the input."""
    recipe: str = ""
    """The call that loads it again, where that can be written down."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("A player needs a name to be told from the others, got none; for example 'original'.")
        if self.model.training:
            raise InputError(f"Only a model in eval() mode plays, and that of {self.name} is being trained.")

    @classmethod
    def load(
        cls,
        where: str,
        name: str,
        *,
        causal: bool | None = None,
        changes: str = "",
        sampling: Sampling = GREEDY,
        seed: int = 0,
        subject: TaskModel | None = None,
    ) -> Contender:
        """The model in a folder or a file under a mask (None: its own) and interventions (see `xformer.interventions`).

        `subject` is that model where it is loaded already. Raises `CheckpointError`, `InputError` or `EditError`.
        """
        given = {"causal": causal, "changes": changes, "seed": seed}
        usual = {"causal": None, "changes": "", "seed": 0}
        said = [repr(where), repr(name), *(f"{key}={value!r}" for key, value in given.items() if value != usual[key])]
        said += [f"sampling=xformer.{sampling}"] if sampling != GREEDY else []
        subject = own_task_model(subject_of(where)) if subject is None else subject
        recipe = f"xformer.analysis.Contender.load({', '.join(said)})"
        interventions = parse(changes, subject.shape)
        edits = [*([] if causal is None else [set_causal(causal)]), *all_edits(interventions)]
        return cls(replace(subject, name=name), tuple(edits), sampling, seed, interventions, recipe)

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.subject.name

    @property
    def model(self) -> Transformer:
        return self.subject.model

    @property
    def task(self) -> Task:
        return self.subject.task

    @property
    def writes(self) -> bool:
        """Whether it says one token after the other; an encoder answers all positions at once."""
        return self.model.config.architecture != "encoder"

    def frame(self, source: Sequence[int]) -> Example:
        """An input as this one reads it, with the tokens replaced that are replaced for it alone."""
        return self.subject.frame(changed_source(self.interventions, tuple(source)))

    def generator(self) -> torch.Generator:
        """A fresh one, from its seed."""
        return torch.Generator(self.model.device).manual_seed(self.seed)


@dataclass(frozen=True)
class EdgesSoFar(SetEdges):
    """`SetEdges` for a decoder that still grows: edges of positions that are not there yet wait until they are."""

    def apply(self, name: str, value: Tensor) -> Tensor:
        n_query, n_key = value.shape[-2:]
        there = tuple((query, key) for query, key in self.edges if query < n_query and key < n_key)
        return SetEdges(self.name, there, self.allowed, self.heads).apply(name, value)


def while_it_grows(edits: Iterable[AnyEdit]) -> tuple[AnyEdit, ...]:
    """The same edits for a run over the beginning of an answer, which may not have reached all their edges yet."""
    return tuple(
        EdgesSoFar(edit.name, edit.edges, edit.allowed, edit.heads) if isinstance(edit, SetEdges) else edit
        for edit in edits
    )


def looks_back_only(contender: Contender) -> bool:
    """Whether nothing that is changed in a decoder lets it see what comes later."""
    harmless = all(
        isinstance(edit, AblateHead | AblateNeuron | Scale | ZeroPositions)
        or (isinstance(edit, SetCausal) and edit.on)
        or (isinstance(edit, SetEdges) and not edit.allowed)
        for edit in contender.edits
    )
    return harmless and contender.model.config.position_kind.keeps_keys


def check_names(contenders: Sequence[Contender]) -> None:
    """Raise `InputError` where contenders cannot be told apart."""
    names = [contender.name for contender in contenders]
    if not names or len(set(names)) < len(names):
        raise InputError(
            f"Players need different names to be told apart, got {names}; for example ['first', 'second']."
        )


def joint_labels(contenders: Iterable[Contender]) -> tuple[str, ...]:
    """Every label that some contender's vocabulary has: the common ground of those whose token numbers differ."""
    return tuple(dict.fromkeys(label for contender in contenders for label in contender.subject.labels))


def to_joint(contender: Contender, labels: tuple[str, ...]) -> Int[Tensor, " vocab"]:
    """Where each of the contender's tokens stands among `labels`."""
    place = {label: index for index, label in enumerate(labels)}
    return torch.tensor([place[label] for label in contender.subject.labels])
