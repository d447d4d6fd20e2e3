"""The variants to compare, their common input, and the resulting predictions.

Example:
    comparison = Comparison((ModelSettings("reverse"), ModelSettings("reverse", "causal")), (3, 7, 12), forced=False)
    comparison.runs()
    comparison.readings(3)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any, TypeVar

import streamlit as st

from pages.compute import models, visible_runs
from pages.compute.background_job import OnStep
from pages.compute.byte_cache import shared
from pages.compute.cached_runs import MASKS, causality, mask_words
from pages.compute.models import shown_path
from pages.state.session import ScreenSelection, apply_link, choose_model, last_selection
from pages.state.view import View, name_of
from xformer import analysis
from xformer.adapters import ModelAdapter, TaskModel, own_task_model
from xformer.adapters.own_models import TaskInput
from xformer.analysis.generation import DecodedSteps, decode_steps, first_divergence
from xformer.decoding import GREEDY, Sampling
from xformer.edit_links import EditLink, changed_source, parse_edits
from xformer.errors import EditError, InputError, XformerError
from xformer.model_shape import ModelShape
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.viz.generation import pack_steps

LETTERS = ("A", "B", "C", "D")
"""The short names of the variants; at most this many are compared."""
MAX_LINK_LENGTH = 4000
LARGEST_NUMBER = 2**31 - 1
SMALLEST_SHARE = 0.1
"""A component that carries a smaller share of the logit difference is not named."""
ROUNDING = 1e-6
"""Divergences in nats below this are float32 rounding errors."""
EARLIER_STEP = 200
"""A run is compared with its snapshot nearest to this step."""
T = TypeVar("T")
_NUMBERS = {"temperature": float, "top_k": int, "top_p": float, "seed": int}


@dataclass(frozen=True)
class ModelSettings:
    """A model with its mask, edits and sampling.

    In a link it is the model and everything that differs from the defaults, joined by `~`:
    `reverse-small~causal~ablate:encoder.1.attn.0,positions:off~temperature-0.8~seed-3`.
    """

    model: str
    mask: str = MASKS[0]
    edits: tuple[str, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0

    @property
    def text(self) -> str:
        """The variant in the format of links; `read_variant` is the inverse."""
        words = [self.model, *([self.mask] if self.mask != MASKS[0] else []), *filter(None, [",".join(self.edits)])]
        numbers, usual = self.numbers, ModelSettings(self.model).numbers
        return "~".join([*words, *(f"{name}-{numbers[name]:g}" for name in _NUMBERS if numbers[name] != usual[name])])

    @property
    def numbers(self) -> dict[str, float]:
        """The sampling settings and the seed by name."""
        return {**vars(self.sampling), "seed": self.seed}

    @property
    def adapter(self) -> TaskModel:
        return own_task_model(models.adapter(self.model))  # `read_variant` refuses other models

    @property
    def shape(self) -> ModelShape:
        return self.adapter.shape

    def edit_links(self) -> tuple[EditLink, ...]:
        return parse_edits(",".join(self.edits), self.shape)

    def without(self, changes: Sequence[EditLink]) -> ModelSettings:
        """Return a copy without some changes."""
        return replace(self, edits=tuple(one.text for one in self.edit_links() if one not in changes))

    def waiting(self, source: tuple[int, ...]) -> tuple[EditLink, ...]:
        """Return the changes at positions that an input does not have."""
        return View(self.model, source, self.mask, self.adapter, self.edit_links()).with_fitting_changes().waiting

    def loaded(self, name: str) -> analysis.Variant:
        """Load the variant as an `analysis.Variant` with a display name."""
        load = partial(analysis.Variant.load, shown_path(self.model), name, adapter=self.adapter)
        changed = partial(load, causal=causality(self.mask), edits=",".join(self.edits))
        return changed(sampling=self.sampling, seed=self.seed)

    def settings(self) -> list[str]:
        """Describe, in a few words each, the differences from the model as trained with greedy decoding."""
        words = change_words(self.mask, self.edit_links(), self.adapter)
        if self.sampling.temperature:
            words.append(f"temperature {self.sampling.temperature:g}")
            words += [f"top {self.sampling.top_k}"] if self.sampling.top_k else []
            words += [f"top-p {self.sampling.top_p:g}"] if self.sampling.top_p < 1 else []
            words.append(f"seed {self.seed}")
        return words

    def with_number(self, name: str, value: str | float) -> ModelSettings:
        """Return a copy with another seed or sampling setting. Raises `InputError` for a value out of range."""
        text = str(value)[:40]
        try:
            number = _NUMBERS[name](value)
        except ValueError:
            raise InputError(f"{name} must be a number, got “{text}”; for example {name}-1.") from None
        if not 0 <= number <= LARGEST_NUMBER:
            raise InputError(f"{name} must be from 0 to {LARGEST_NUMBER:,}, got {text}; for example {name}-1.")
        if name == "seed":
            return replace(self, seed=int(number))
        return replace(self, sampling=replace(self.sampling, **{name: number}))


def read_variant(text: str) -> ModelSettings:
    """Parse a variant in the format of links. Raises `InputError` where it is invalid."""
    if len(text) > MAX_LINK_LENGTH:
        raise InputError(f"A model takes at most {MAX_LINK_LENGTH:,} characters in a link, got {len(text):,}.")
    name, *words = text.split("~")
    model = models.resolved(name)
    if model is None:
        raise InputError(models.why_not(name) or f"There is no model “{name[:60]}” here.")
    if reason := incomparable_reason(model):
        raise InputError(reason)
    variant = ModelSettings(model)
    for word in words:
        name, _, value = word.partition("-")
        if word in MASKS[1:]:
            variant = replace(variant, mask=word)
        elif name in _NUMBERS:
            variant = variant.with_number(name, value)
        else:
            variant = replace(variant, edits=(*variant.edits, *filter(None, word.split(","))))
    n_tokens = variant.shape.vocab_size
    if variant.sampling.top_k > n_tokens:
        raise InputError(f"top_k must be at most {n_tokens}, the number of tokens; for example top_k-5.")
    try:
        return replace(variant, edits=tuple(one.text for one in variant.edit_links()))
    except XformerError as error:
        raise InputError(str(error)) from None


def incomparable_reason(model: str) -> str | None:
    """Explain in one sentence why a model cannot be compared here; None where it can."""
    if reason := models.usable(model):
        return reason
    adapter = models.adapter(model)
    if not isinstance(adapter, TaskModel):
        return f"The model {models.title_of(model)} was not trained here, and only models that were can be compared."
    if not adapter.shape.image:
        return None
    return f"The model {models.title_of(model)} reads images, but this screen steps through tokens; choose another one."


@dataclass(frozen=True)
class Comparison:
    """Two to four variants on one input. Results are cached and shared by all visitors."""

    variants: tuple[ModelSettings, ...]
    source: tuple[int, ...]
    forced: bool
    """Whether decoding is teacher-forced: each step is given the right answer so far."""
    model = "compare"
    """The prefix of the names of downloaded files."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return names_of(self.variants)

    @property
    def letters(self) -> tuple[str, ...]:
        return LETTERS[: len(self.variants)]

    @property
    def input(self) -> TaskInput:
        """The input of the first variant's task, which all variants share."""
        return self.variants[0].adapter.input

    @cached_property
    def about(self) -> str:
        """A cache key of everything that determines the predictions."""
        return "|".join([self.about_variants, str(self.source), "forced" if self.forced else "free", str(self.names)])

    @property
    def about_variants(self) -> str:
        """A cache key of the variants."""
        return "|".join(variant.text for variant in self.variants)

    @property
    def pairs(self) -> list[str]:
        """The pairs of variants: "AB", "AC", …"""
        return ["".join(pair) for pair in combinations(self.letters, 2)]

    @property
    def has_decoder(self) -> bool:
        """Whether a variant decodes token by token, so that teacher forcing makes a difference."""
        return any(variant.shape.architecture != "encoder" for variant in self.variants)

    @property
    def unit(self) -> str:
        """The word for a step: an encoder predicts all positions at once."""
        return "step" if self.has_decoder else "position"

    @property
    def has_right_answer(self) -> bool:
        """Whether the task defines a right answer to this input; the continuation of a text has none."""
        return self.input.task.has_right_answer(self.source)

    def loaded(self) -> list[analysis.Variant]:
        """Load the variants as `analysis.Variant`s."""
        return [variant.loaded(name) for variant, name in zip(self.variants, self.names, strict=True)]

    def runs(self, step: OnStep = lambda done, total: None) -> list[DecodedSteps]:
        """Return the predictions of each variant. Raises `XformerError` where a variant cannot read the input.

        Args:
            step: Called after each decoded step with the number of steps and their total.
        """
        make = partial(decode_steps, source=self.source, forced=self.forced, progress=step)
        return [shared.get(key, partial(make, variant)) for key, variant in self._keyed()]

    def divergence(self) -> int | None:
        """Return the first step at which two variants predict different tokens; None where there is none."""
        return first_divergence(self.runs())

    def readings(self, step: int) -> dict[str, Reading]:
        """Return by letter the reading from which each variant predicted a step, without variants that had ended."""
        return {
            letter: shared.get((*key, step), partial(run.__getitem__, step))
            for letter, (key, _), run in zip(self.letters, self._keyed(), self.runs(), strict=True)
            if step < len(run)
        }

    def data(self) -> dict[str, Any]:
        """Return the data of the step ruler."""
        return pack_steps(self.runs())

    def _keyed(self) -> list[tuple[tuple[Any, ...], analysis.Variant]]:
        """Return each loaded variant with the cache key of its predictions."""
        return [
            (("decoded", variant.text, loaded.name, self.source, self.forced), loaded)
            for variant, loaded in zip(self.variants, self.loaded(), strict=True)
        ]


def on_other_inputs(work: Iterator[T]) -> Iterator[T]:
    """Pass on the results for sampled inputs. Raises `InputError` where a change does not fit a shorter one."""
    try:
        yield from work
    except EditError:  # the changes fit the models and the input on screen
        raise InputError(
            "A change is at positions that shorter inputs do not have. Remove it to try other inputs."
        ) from None


def change_words(mask: str, changes: Sequence[EditLink], adapter: ModelAdapter) -> list[str]:
    """Describe a mask and changes in a few words: a single change by its label, several by their number."""
    of_changes = [name_of(change, adapter) for change in changes] if len(changes) < 2 else [f"{len(changes)} changes"]
    return mask_words(mask) + of_changes


def names_of(variants: Sequence[ModelSettings]) -> tuple[str, ...]:
    """Return display names: a letter and the settings in which the variants differ."""
    runs = {(models.run_and_step(variant.model) or (variant.model,))[0] for variant in variants}
    is_same_model, is_same_run = len({variant.model for variant in variants}) == 1, len(runs) == 1
    names = []
    for letter, variant in zip(LETTERS, variants, strict=False):
        title = models.title_of(variant.model)
        words = [] if is_same_model else [title.rsplit(", ", 1)[-1] if is_same_run else title]
        names.append(f"{letter} · {', '.join([*words, *variant.settings()]) or 'as trained'}")
    return tuple(names)


def pair_indices(pair: str, letters: Sequence[str]) -> tuple[int, int] | None:
    """Return the indices of the chosen pair among the variants that take a step, else of the first two; None for one."""
    if all(letter in letters for letter in pair):
        return letters.index(pair[0]), letters.index(pair[1])
    return (0, 1) if len(letters) > 1 else None


def letter_in(name: str) -> str:
    """Return the letter at the start of a variant's display name."""
    return name.partition(" · ")[0]


def incompatibility_reason(variants: Sequence[ModelSettings]) -> str | None:
    """Explain in one sentence why the variants cannot read the same input; None where they can."""
    first, *others = [symbols_of(variant.adapter.task) for variant in variants]
    for letter, symbols in zip(LETTERS[1:], others, strict=False):
        if symbols != first:
            unlike = f"{letter} reads tokens like {symbols[0]} and {symbols[-1]}, so they have no common input"
            return f"A reads tokens like {first[0]} and {first[-1]}, but {unlike}; choose models that read the same tokens."
    return None


def check_input(variants: Sequence[ModelSettings], source: tuple[int, ...]) -> None:
    """Raise `InputError` where a variant cannot read an input."""
    for letter, variant in zip(LETTERS, variants, strict=False):
        try:
            variant.adapter.to_example(changed_source(variant.edit_links(), source))
        except InputError as error:
            raise InputError(f"{letter} cannot read this input. {error}") from None


def symbols_of(task: Task) -> tuple[str, ...]:
    """Return the symbols in which inputs of a task are written."""
    return task.vocabulary.labels[1 : 1 + task.vocabulary.symbols]


def selection_of_other_screens() -> ScreenSelection:
    """Return the model, input, mask and edits of the other screens.

    On a first visit they come from the link, else from its first variant, else they are the defaults.
    """
    apply_link()
    visit = st.session_state
    known = [*models.shipped(), *models.external_titles(), *visible_runs.trained()]
    if visit.get("model") not in known and not _look_at_first(st.query_params.get("a", "")):
        choose_model(known[0])
    visit.setdefault("mask", MASKS[0])
    found = last_selection()
    assert found is not None
    model = models.resolved(found.model) or found.model
    if not found.input:
        visit["input"] = _default_input(model)
    return ScreenSelection(model, str(visit["input"]), found.mask, found.edits)


def in_link(selection: ScreenSelection) -> dict[str, str]:
    """Return the model, input, mask and edits as parameters of the link, like every screen."""
    text = selection.input
    if not models.usable(selection.model):
        inputs = models.adapter(selection.model).input
        try:
            text = inputs.text(inputs.read(text))
        except InputError:
            text = _default_input(selection.model)
    return replace(selection, input=text).link


def first_variant(selection: ScreenSelection) -> ModelSettings | None:
    """Return the model of the other screens as a variant; None where it cannot be compared."""
    if incomparable_reason(selection.model) is not None:
        return None
    try:
        return read_variant(ModelSettings(selection.model, selection.mask, tuple(filter(None, [selection.edits]))).text)
    except InputError:  # edits that do not fit the model are ignored, as on the other screens
        return read_variant(selection.model)


def contrast_to(variant: ModelSettings) -> ModelSettings:
    """Return a variant to compare with: without its changes, else an earlier step of its run, else with another mask."""
    own = ModelSettings(variant.model)
    if variant != own:
        return own
    if (of_run := models.run_and_step(variant.model)) is not None:
        earlier = [step for step in visible_runs.steps_of(of_run[0]) if step < (of_run[1] or 0)]
        if earlier:
            return ModelSettings(f"{of_run[0]}@{min(earlier, key=lambda step: abs(step - EARLIER_STEP))}")
    return replace(own, mask="full" if own.shape.is_causal else "causal")


def default_variants() -> list[ModelSettings]:
    """Return the first model that can be compared, and a contrast to it."""
    every = [models.resolved(name) or name for name in (*models.shipped(), *visible_runs.trained())]
    own = ModelSettings(next(name for name in every if incomparable_reason(name) is None))
    return [own, contrast_to(own)]


def _look_at_first(text: str) -> bool:
    """Select the model of a variant in the link on all screens; return False where it is invalid."""
    try:
        variant = read_variant(text)
    except InputError:
        return False
    st.session_state["mask"], st.session_state["edits"] = variant.mask, ",".join(variant.edits)
    return choose_model(variant.model)


def _default_input(model: str) -> str:
    return "" if models.usable(model) else models.adapter(model).input.default


@dataclass
class CompareState:
    """The state of the Compare screen in one visit; the link restores everything else."""

    variants: list[ModelSettings] = field(default_factory=list)
    is_chosen: bool = False
    """Whether the visitor has chosen a variant on this screen."""
    followed: ScreenSelection | None = None
    """The selection of the other screens when the first variant was last taken from it."""
    refused: str = ""
    """Why the last choice on a card was refused."""
    shared_input: str | None = None
    """The input that was last taken over from the other screens."""
    good_input: str = ""
    """The last input that all variants could read."""
    found_input: str | None = None
    """The input found by a search, to be shown in the text field."""
    task: str = ""
    linked_step: tuple[str, int] | None = None
    """The comparison for which the link has a step, and the step."""
    pair_model: str = ""
    pair_proposed: str = ""
    """The proposed second input of the pair; it follows the first one until the visitor types another."""

    def put(self, index: int, variant: ModelSettings) -> None:
        """Replace a variant, or add one at the end."""
        self.variants[index : index + 1] = [variant]
        self.is_chosen = True


def state() -> CompareState:
    """Return the state of this visit."""
    return st.session_state.setdefault("compare", CompareState())
