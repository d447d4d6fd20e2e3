"""What is compared: the players, their input, and all that follows from them, each computed once and shared by all visitors.

comparison = Comparison(choices, source, forced=False)
comparison.rollouts(); comparison.readings(3)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import streamlit as st

from pages.shared import models, run_weights
from pages.shared.background_job import Job, Report, follow, progress
from pages.shared.byte_cache import shared
from pages.shared.escape_markdown import escape_markdown
from pages.shared.model_choice import choose_model
from pages.shared.resources import MASKS, mask_words
from pages.shared.session import LookedAt, follow_the_link, looked_at
from pages.shared.shown_path import shown_path
from xformer.adapters import TaskModel, own_task_model
from xformer.adapters.own_models import TaskInput
from xformer.analysis import Contender, roll_out
from xformer.analysis.generation import Rollout, first_divergence, rolling_out
from xformer.decoding import GREEDY, Sampling
from xformer.errors import InputError, XformerError
from xformer.interventions import Intervention, changed_source, parse
from xformer.model_shape import ModelShape
from xformer.reading import Reading
from xformer.tasks import Task
from xformer.viz.generation import pack_rollouts

LETTERS = ("A", "B", "C", "D")
"""What players are called for short; there are at most as many."""

LINK_LENGTH = 4000
"""Characters of one player in a link."""

_NUMBERS = {"temperature": float, "top_k": int, "top_p": float, "seed": int}

LARGEST_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class Choice:
    """Everything that a visitor can choose for one player."""

    model: str
    mask: str = MASKS[0]
    changes: tuple[str, ...] = ()
    sampling: Sampling = GREEDY
    seed: int = 0

    @property
    def text(self) -> str:
        """The player as a link writes it; `read_choice` reads it again."""
        words = [self.model, *([self.mask] if self.mask != MASKS[0] else []), *filter(None, [",".join(self.changes)])]
        numbers, usual = self.numbers, Choice(self.model).numbers
        return "~".join([*words, *(f"{name}-{numbers[name]:g}" for name in _NUMBERS if numbers[name] != usual[name])])

    @property
    def numbers(self) -> dict[str, float]:
        """The settings of sampling, as a link names them."""
        return {**vars(self.sampling), "seed": self.seed}

    @property
    def subject(self) -> TaskModel:
        return own_task_model(models.subject(self.model))  # `read_choice` refuses any other model

    @property
    def shape(self) -> ModelShape:
        return self.subject.shape

    def interventions(self) -> tuple[Intervention, ...]:
        return parse(",".join(self.changes), self.shape)

    def contender(self, name: str) -> Contender:
        """What the library compares."""
        return Contender.load(
            shown_path(self.model),
            name,
            causal=None if self.mask == MASKS[0] else self.mask == "causal",
            changes=",".join(self.changes),
            sampling=self.sampling,
            seed=self.seed,
            subject=self.subject,
        )

    def label(self, change: Intervention) -> str:
        """What a person reads of a change: a replaced token as it is written."""
        if change.replaced is None:
            return change.label
        position, token = change.replaced
        return f"position {position} reads {self.subject.labels[token]}"

    def settings(self) -> list[str]:
        """What is changed, in a few words each; empty for the model as it was trained, choosing its likeliest token."""
        words, found = mask_words(self.mask), self.interventions()
        words += [self.label(found[0])] if len(found) == 1 else [f"{len(found)} changes"] if found else []
        if self.sampling.temperature:
            words.append(f"temperature {self.sampling.temperature:g}")
            words += [f"top {self.sampling.top_k}"] if self.sampling.top_k else []
            words += [f"top-p {self.sampling.top_p:g}"] if self.sampling.top_p < 1 else []
            words.append(f"seed {self.seed}")
        return words

    def with_number(self, name: str, number: float) -> Choice:
        """With another seed, or another setting of sampling. Raises `InputError` for one that cannot be."""
        if name != "seed":
            return replace(self, sampling=replace(self.sampling, **{name: number}))
        if number < 0:
            raise InputError(f"seed must be from 0 to {LARGEST_NUMBER:,}, got {number:,}; for example seed-1.")
        return replace(self, seed=int(number))


def read_choice(text: str) -> Choice:
    """The player that a link writes. Raises `InputError` with one sentence where it is none."""
    if len(text) > LINK_LENGTH:
        raise InputError(f"A player takes at most {LINK_LENGTH:,} characters, got {len(text):,}.")
    asked, *words = text.split("~")
    model = models.resolved(asked)
    if model is None:
        raise InputError(models.why_not(asked) or f"There is no model “{asked[:60]}” here.")
    if why := why_not_playable(model):
        raise InputError(why)
    choice = Choice(model)
    for word in words:
        name, _, value = word.partition("-")
        if word in MASKS[1:]:
            choice = replace(choice, mask=word)
        elif name in _NUMBERS:
            choice = choice.with_number(name, _number(name, value))
        else:
            choice = replace(choice, changes=(*choice.changes, *filter(None, word.split(","))))
    n_tokens = choice.shape.vocab_size
    if choice.sampling.top_k > n_tokens:
        raise InputError(f"top_k must be at most {n_tokens}, the number of tokens; for example top_k-5.")
    try:
        return replace(choice, changes=tuple(intervention.text for intervention in choice.interventions()))
    except XformerError as error:
        raise InputError(str(error)) from None


def why_not_playable(model: str) -> str | None:
    """Why a model cannot be compared here, as one sentence; None where it can."""
    if why := models.usable(model):
        return why
    subject = models.subject(model)
    if not isinstance(subject, TaskModel):
        return f"The model {models.title_of(model)} was not trained here, and this screen compares those that were."
    if subject.shape.image:
        return f"The model {models.title_of(model)} reads images, and this screen steps through tokens; choose another one."
    return None


def _number(name: str, value: str) -> float:
    try:
        number = _NUMBERS[name](value)
    except ValueError:
        raise InputError(f"{name} must be a number, got “{value[:40]}”; for example {name}-1.") from None
    if abs(number) > LARGEST_NUMBER:
        raise InputError(f"{name} must be at most {LARGEST_NUMBER:,}; for example {name}-1.")
    return number


@dataclass(frozen=True)
class Progress:
    """How far the players of a comparison have come."""

    done: int
    total: int
    is_final: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two to four players before one input."""

    choices: tuple[Choice, ...]
    source: tuple[int, ...]
    forced: bool
    """Whether every player goes on with the right answer instead of its own words."""
    model = "compare"
    """What the files of its pictures are named after."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return names_of(self.choices)

    @property
    def letters(self) -> tuple[str, ...]:
        return LETTERS[: len(self.choices)]

    @property
    def input(self) -> TaskInput:
        """What is typed and sampled: what the first player reads."""
        return self.choices[0].subject.input

    @cached_property
    def about(self) -> str:
        """All that decides what is seen, as one text."""
        how = "forced" if self.forced else "free"
        return "|".join([*(choice.text for choice in self.choices), str(self.source), how, str(self.names)])

    @property
    def players(self) -> str:
        """Who is compared, whatever the input."""
        return "|".join(choice.text for choice in self.choices)

    @property
    def pairs(self) -> list[str]:
        """The players that can be compared two by two: "AB", "AC", …"""
        return ["".join(pair) for pair in combinations(self.letters, 2)]

    @property
    def has_decoder(self) -> bool:
        """Whether some player writes one token after the other, so that forcing it makes a difference."""
        return any(choice.shape.architecture != "encoder" for choice in self.choices)

    @property
    def unit(self) -> str:
        """What a step is called: encoders answer all positions at once."""
        return "step" if self.has_decoder else "position"

    @property
    def has_right_answer(self) -> bool:
        """Whether anybody knows what is right here: not how a text goes on."""
        return self.input.task.has_right_answer(self.source)

    def contenders(self) -> list[Contender]:
        return [choice.contender(name) for choice, name in zip(self.choices, self.names, strict=True)]

    def rollouts(self) -> list[Rollout]:
        """Raises `XformerError` where a player cannot read the input, or a change does not fit."""
        return [
            shared.get(key, partial(roll_out, contender, self.source, forced=self.forced))
            for key, contender in self._keyed()
        ]

    def rolling_out(self) -> Iterator[Progress]:
        """Take a step at a time, so that a page can say how far it is; afterwards `rollouts` is quick."""
        waiting = [(key, contender) for key, contender in self._keyed() if shared.peek(key) is None]
        for index, (key, contender) in enumerate(waiting):
            work = rolling_out(contender, self.source, forced=self.forced)
            while True:
                try:
                    done, total = next(work)
                except StopIteration as ended:
                    shared.put(key, ended.value)
                    break
                yield Progress(index * total + done, len(waiting) * total)
        yield Progress(1, 1, is_final=True)

    def divergence(self) -> int | None:
        """The step at which they part first."""
        return first_divergence(self.rollouts())

    def readings(self, step: int) -> list[Reading]:
        """What every player that takes a step read when it decided it."""
        return [
            shared.get((*key, step), partial(rollout.__getitem__, step))
            for (key, _), rollout in zip(self._keyed(), self.rollouts(), strict=True)
            if step < len(rollout)
        ]

    def data(self) -> dict[str, Any]:
        """What the ruler draws."""
        return shared.get(("ruler", self.about), lambda: pack_rollouts(self.rollouts()))

    def _keyed(self) -> list[tuple[tuple[Any, ...], Contender]]:
        """Each player with what its answer is kept by."""
        texts = [choice.text for choice in self.choices]
        return [
            (("rollout", text, contender.name, self.source, self.forced), contender)
            for text, contender in zip(texts, self.contenders(), strict=True)
        ]


def names_of(choices: Sequence[Choice]) -> tuple[str, ...]:
    """What players are called: a letter, and that in which they differ."""
    runs = {(models.run_and_step(choice.model) or (choice.model,))[0] for choice in choices}
    same_model, same_run = len({choice.model for choice in choices}) == 1, len(runs) == 1
    names = []
    for letter, choice in zip(LETTERS, choices, strict=False):
        title = models.title_of(choice.model)
        words = [] if same_model else [title.rsplit(", ", 1)[-1] if same_run else title]
        names.append(f"{letter} · {', '.join([*words, *choice.settings()]) or 'as trained'}")
    return tuple(names)


def why_not_together(choices: Sequence[Choice]) -> str | None:
    """Why players cannot get the same input, as one sentence; None where they can."""
    first, *_ = tasks = [choice.subject.task for choice in choices]
    for letter, task in zip(LETTERS, tasks, strict=False):
        if symbols_of(task) != symbols_of(first):
            return (
                f"{LETTERS[0]} reads {_described(first)} and {letter} reads {_described(task)}, so no input "
                "suits both; choose models that read the same tokens."
            )
    return None


def check_input(choices: Sequence[Choice], source: tuple[int, ...]) -> None:
    """Raise `InputError` when a player cannot read an input."""
    for letter, choice in zip(LETTERS, choices, strict=False):
        read = changed_source(choice.interventions(), source)
        try:
            choice.subject.frame(read)
        except InputError as error:
            raise InputError(str(error) if len(set(choices)) == 1 else f"{letter} cannot read this. {error}") from None


def symbols_of(task: Task) -> tuple[str, ...]:
    """What inputs of a task are written in."""
    return task.vocabulary.labels[1 : 1 + task.vocabulary.symbols]


def _described(task: Task) -> str:
    symbols = symbols_of(task)
    return f"{len(symbols)} tokens of the task {task.config.name} ({symbols[0]} to {symbols[-1]})"


EARLIER_STEP = 200
"""Of a run its step nearest to this is a contrast to a later one."""


def look() -> LookedAt:
    """What is looked at; on a first visit what the link asks for, else the first player's model, else the usual one."""
    follow_the_link({"mask": MASKS})
    visit = st.session_state
    known = [*models.shipped(), *models.foreign_titles(), *run_weights.trained()]
    if visit.get("model") not in known and not _look_at_first(st.query_params.get("a", "")):
        choose_model(known[0])
    visit.setdefault("mask", MASKS[0])
    found = looked_at()
    assert found is not None
    model = models.resolved(found.model) or found.model
    if not found.input:
        visit["input"] = _usual_input(model)
    return LookedAt(model, str(visit["input"]), found.mask, found.edits)


def in_link(looked: LookedAt) -> dict[str, str]:
    """What is looked at, as every screen writes it into the link."""
    text = looked.input
    if not models.usable(looked.model):
        of = models.subject(looked.model).input
        try:
            text = of.text(of.read(text))
        except InputError:
            text = _usual_input(looked.model)
    return replace(looked, input=text).link


def first_choice(looked: LookedAt) -> Choice | None:
    """The player that is what is looked at; None where it cannot play."""
    if why_not_playable(looked.model) is not None:
        return None
    words = [looked.model, *([looked.mask] if looked.mask != MASKS[0] else []), *filter(None, [looked.edits])]
    for n in (len(words), 1):  # a change that does not fit the model is left out, as on its own screen
        try:
            return read_choice("~".join(words[:n]))
        except InputError:
            continue
    return None


def beside(choice: Choice) -> Choice:
    """A contrast to a player: the same without its changes; of a run an earlier step; else under another mask."""
    own = Choice(choice.model)
    if choice != own:
        return own
    if (of_run := models.run_and_step(choice.model)) is not None:
        earlier = [step for step in run_weights.steps_of(of_run[0]) if step < (of_run[1] or 0)]
        if earlier:
            return Choice(f"{of_run[0]}@{min(earlier, key=lambda step: abs(step - EARLIER_STEP))}")
    return replace(own, mask="full" if own.shape.is_causal else "causal")


def usual_choices() -> list[Choice]:
    """Who plays where nothing that is looked at can: the first model that can, and a contrast to it."""
    every = [models.resolved(name) or name for name in (*models.shipped(), *run_weights.trained())]
    own = Choice(next(name for name in every if why_not_playable(name) is None))
    return [own, beside(own)]


def _look_at_first(player: str) -> bool:
    """Have the model of a player in the link be what is looked at; False where there is none."""
    try:
        choice = read_choice(player)
    except InputError:
        return False
    st.session_state["mask"], st.session_state["edits"] = choice.mask, ",".join(choice.changes)
    return choose_model(choice.model)


def _usual_input(model: str) -> str:
    return "" if models.usable(model) else models.subject(model).input.default


@dataclass
class State:
    """Private to the visit; what a link restores is in the link."""

    choices: list[Choice] = field(default_factory=list)
    is_chosen: bool = False
    """Whether somebody has chosen a player here."""
    looked_at: LookedAt | None = None
    """What the other screens showed when the first player was last taken from them."""
    refused: str = ""
    """Why the model that was just chosen cannot play."""
    shared_input: str | None = None
    """The input of the other screens that this one has taken over last."""
    good_input: str = ""
    """The last input that all could read."""
    found_input: str | None = None
    """What a search has found, to be typed into the box."""
    task: str = ""
    linked_step: tuple[str, int] | None = None
    """The comparison for which a link asked for a step, and the step."""
    jobs: dict[str, Job[Any]] = field(default_factory=dict)
    """What is worked on a little at a time, by what it is."""

    def put(self, index: int, choice: Choice) -> None:
        """Another player takes a place."""
        self.choices[index] = choice
        self.is_chosen = True

    def job(self, what: str, about: str) -> Job[Any] | None:
        """The work of that kind, unless it is about something that is not looked at any more."""
        job = self.jobs.get(what)
        return job if job is not None and job.about == about else None

    def begin(self, what: str, about: str, work: Iterator[Report]) -> Job[Any]:
        """Begin a work, in place of any other of its kind."""
        self.jobs[what] = Job(work, about)
        return self.jobs[what]

    def work_on(self, what: str, about: str, work: Callable[[], Iterator[Report]], at_once: float) -> Job[Any]:
        """Go on with a work; one that begins now may take `at_once` seconds before anybody has to be told."""
        if (job := self.job(what, about)) is None:
            job = self.begin(what, about, work())
            job.advance(at_once)
        else:
            job.advance()
        return job


def state() -> State:
    """That of this visit."""
    return st.session_state.setdefault("compare", State())


def show(key: str, value: Any) -> None:
    """Have a widget show what is kept elsewhere."""
    if st.session_state.get(key) != value:
        st.session_state[key] = value


AT_ONCE = 1.5
"""Seconds that a page may take before it says how far it is."""


def wait_for_rollouts(comparison: Comparison) -> bool:
    """Whether all players have said what they say; until then how far they are, and why where they cannot."""
    job = state().job("rollouts", comparison.about)
    if job is None:
        job = state().begin("rollouts", comparison.about, comparison.rolling_out())
        job.advance(AT_ONCE)
    if job.problem:
        st.error(escape_markdown(job.problem), icon=":material/error:")
        return False
    if job.is_running or job.cancelled:
        follow(job, partial(_bar, job))
        return False
    return True


def _bar(job: Job[Progress]) -> None:
    share = 0.0 if job.latest is None else job.latest.done / job.latest.total
    stopped = "Stopped before all players had an answer."
    progress(job, "compare_wait", share, f"The players read and answer: {share:.0%}", stopped)
