"""The player of a run's snapshots: what it is sent, and the moments that are marked on its track."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pages.components.training_player import Rest, training_player
from pages.train.film import Film
from pages.train.state import film_key, player_target
from xformer.analysis.learning import APPEARS, LEARNED, appearance, best_heads, first_passing
from xformer.tasks import Task
from xformer.tasks.task import Example
from xformer.training.entry import Entry
from xformer.viz.film import pack_film
from xformer.widgets.page import film_page


def play(entry: Entry, task: Task, example: Example, film: Film, exact: Sequence[tuple[int, float]]) -> Rest:
    """Draw the player of a run, and return where it rests."""
    is_live = entry.is_active or entry.state == "queued"
    packed = _packed(entry, task, example, film, exact, live=is_live, told=player_target(entry.id))
    return training_player(packed, key=film_key(entry.id))


def standalone(entry: Entry, task: Task, example: Example, film: Film, exact: Sequence[tuple[int, float]]) -> str:
    """The player as a page of its own, at the last frame that there is."""
    packed = _packed(entry, task, example, film, exact, live=False, told=(1, None))
    return film_page(packed, [f"{entry.name}: {task.vocabulary.text(list(example.source))}", f"run {entry.id}"])


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
    is_pair = example.target is not None
    if task.n_patches:  # its tokens are patches: the picture names them
        reads = {"right answer": [task.vocabulary.labels[token] for token in example.answer]}
    else:
        reads = {"source" if is_pair else "reads": task.position_names(example.stream[0].tolist())}
    if example.target is not None:
        reads["decoder reads"] = task.position_names(example.target[0].tolist())
    return pack_film(
        film.layers,
        film.frames,
        reads=reads,
        offset=int((example.labels[0] >= 0).long().argmax()),
        score=task.rule.score_name,
        steps=entry.train.get("steps", 1),
        exact=exact,
        marks=[(step, words) for step, words in moments(film, exact).items()],
        best=_best(film),
        live=live,
        told=told,
        judged=task.has_right_answer(example.source),
    )


def moments(film: Film, exact: Sequence[tuple[int, float]]) -> dict[int, str]:
    """Steps worth a mark: where a head appears, and where the task is learned."""
    appears = appearance(best_heads(film.table()))
    learned = first_passing([step for step, _ in exact], [value for _, value in exact], LEARNED)
    marks: dict[int, str] = {}
    if appears is not None:
        marks[appears] = f"a head passes {APPEARS:g}"
    if learned is not None:
        marks[learned] = f"{marks[learned]}, {LEARNED:.0%} right" if learned in marks else f"{LEARNED:.0%} right"
    return marks


def _best(film: Film) -> tuple[int, int]:
    """The (layer, head) to enlarge: the best of the latest frame once it stands out, before that the last one's first."""
    last = len(film.layers) - 1
    scores: Mapping[str, Sequence[float]] = film.frames[-1].scores
    found = max(
        (
            (score, index, head)
            for index, layer in enumerate(film.layers)
            for head, score in enumerate(scores.get(layer.path, ()))
        ),
        default=(0.0, last, 0),
    )
    return (found[1], found[2]) if found[0] >= 0.3 else (last, 0)
