"""The player of a run's snapshots: what it is sent, and the moments that are marked on its track."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pages.components.training_player import Rest, resting, training_player
from pages.shared.figure_files import Figures
from pages.shared.layout import is_dark
from pages.shared.link import address
from pages.train.film import Film
from pages.train.state import film_key, player_target
from xformer.analysis.training_runs import APPEARS, LEARNED, appearance, first_passing
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import Entry
from xformer.viz.timeline import film_still, head_to_enlarge, of_input, pack_film
from xformer.widgets.page import film_page


def play(entry: Entry, task: Task, example: Example, film: Film, exact: Sequence[tuple[int, float]]) -> Rest:
    """Draw the player of a run, and return where it rests."""
    is_live = entry.is_active or entry.state == "queued"
    packed = _packed(entry, task, example, film, exact, live=is_live, told=player_target(entry.id))
    return training_player(packed, key=film_key(entry.id))


def files(
    entry: Entry, task: Task, example: Example, film: Film, exact: Sequence[tuple[int, float]]
) -> tuple[Callable[[], str], Figures]:
    """The player as a page of its own, at the last frame that there is, and as a figure what it shows where it rests."""
    rest, dark, link = resting(film_key(entry.id)), is_dark(), address()
    about = [f"{entry.name}: {task.vocabulary.text(list(example.source))}", f"run {entry.id}"]

    def caption() -> list[str]:
        return [*about, *link()]

    def packed() -> bytes:
        return _packed(entry, task, example, film, exact, live=False, told=(1, None))

    def charts() -> list[Any]:
        return [film_still(packed(), step=rest.step, head=rest.head, dark=dark)]

    return lambda: film_page(packed(), caption()), Figures(charts, caption, dark)


def _packed(
    entry: Entry,
    task: Task,
    example: Example,
    film: Film,
    exact: Sequence[tuple[int, float]],
    *,
    live: bool,
    told: tuple[int, int | None],
) -> bytes:
    return pack_film(
        film.layers,
        film.frames,
        **of_input(task, example),
        steps=entry.train.get("steps", 1),
        exact=exact,
        marks=[(step, words) for step, words in moments(film, exact).items()],
        best=head_to_enlarge(film.layers, film.frames[-1]),
        live=live,
        told=told,
    )


def moments(film: Film, exact: Sequence[tuple[int, float]]) -> dict[int, str]:
    """Steps worth a mark: where a head appears, and where the task is learned."""
    appears = appearance(film.best)
    learned = first_passing([step for step, _ in exact], [value for _, value in exact], LEARNED)
    marks: dict[int, str] = {}
    if appears is not None:
        marks[appears] = f"a head passes {APPEARS:g}"
    if learned is not None:
        marks[learned] = f"{marks[learned]}, {LEARNED:.0%} right" if learned in marks else f"{LEARNED:.0%} right"
    return marks
