"""What to notice in a vocabulary: what training has put beside what; silent where chance would do."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from pages.embeddings.vocabulary import once_a_model
from pages.shared.view import View
from xformer.analysis.embeddings import (
    MOST_PAIRED,
    N_SHUFFLES,
    Nearness,
    kinds_together,
    mean_alikeness,
    numbers_in_order,
    random_cosine,
    vocabulary_vectors,
)
from xformer.analysis.number_waves import number_vectors
from xformer.formatting import percent, percent_at_most
from xformer.reading import Reading

CLEAR_STANDARD_ERRORS = 4.0
"""What is further from chance is said not to be chance."""
FEWEST_OF_A_KIND = 3
"""Characters that an alphabet has to have of a kind, for it to be spoken of."""
KINDS = {
    "digits": "0123456789",
    "vowels": "aeiou",
    "other small letters": "bcdfghjklmnpqrstvwxyz",
    "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
}


def vocabulary_notes(view: View, stack: str | None) -> list[str]:
    """What is known of the order of its numbers, how far apart they are, and which characters lie together."""
    if view.task is None:
        return []
    n, alphabet = view.task.rule.n_numbers, view.task.config.alphabet
    order = about_order(n, once_a_model(view, stack, _nearness_of_numbers)) if n else ""
    distance = about_distance(once_a_model(view, stack, number_vectors)) if n > 2 else ""
    kinds = about_kinds(_nearness_of_kinds(view, stack, alphabet)) if alphabet else ""
    return [order, distance, kinds]


def _nearness_of_numbers(reading: Reading, stack: str | None) -> Nearness:
    return numbers_in_order(number_vectors(reading, stack))


def about_order(n: int, found: Nearness) -> str:
    """Whether the nearest other number is mostly one more or one less."""
    if not found.is_above_chance:
        return ""
    of = f"of {found.n_compared:,} of the {n:,} numbers" if found.n_compared < n else f"of the {n} numbers"
    return (
        f"For {percent(found.share, 1)} {of} the nearest other number is one more or one less (chance: "
        f"{percent(found.chance, 1)}, and never more than {percent_at_most(found.most_by_chance, 1)} in {N_SHUFFLES} "
        "shuffles). "
        "Nothing in the input says that 7 comes before 8: training **put the numbers in order**."
    )


def about_distance(numbers: Float[Tensor, "number d_model"]) -> str:
    """Whether two numbers are more alike than random directions, or less."""
    usual, errors = mean_alikeness(numbers)
    n, d = numbers.shape
    of = f" of {MOST_PAIRED:,} of the {n:,}" if n > MOST_PAIRED else ""
    said = (
        f"Two different numbers{of} have |cosine| {usual:.3f} on average; random directions in {d} "
        f"dimensions have {random_cosine(d):.3f}"
    )
    if abs(errors) < CLEAR_STANDARD_ERRORS:
        return f"{said}: no sign that the numbers are more, or less, alike than that."
    way = "More alike" if errors > 0 else "Further apart"
    return f"{said}. {way} than chance would have them, by {abs(errors):.1f} standard errors."


def _nearness_of_kinds(view: View, stack: str | None, alphabet: str) -> dict[str, Nearness]:
    """Of each kind of characters that the alphabet has enough of."""
    places = {kind: [at for at, one in enumerate(alphabet) if one in found] for kind, found in KINDS.items()}
    enough = {kind: found for kind, found in places.items() if len(found) >= FEWEST_OF_A_KIND}

    def nearness(reading: Reading, stack: str | None) -> dict[str, Nearness]:
        return kinds_together(vocabulary_vectors(reading, stack)[1 : len(alphabet) + 1], enough)

    return once_a_model(view, stack, nearness)


def about_kinds(found: dict[str, Nearness]) -> str:
    """Which kinds of characters lie together: how often the nearest other character is of the same kind."""
    together = {name: near for name, near in found.items() if near.is_above_chance}
    if not together:
        return ""
    ranked = sorted(together.items(), key=lambda item: item[1].chance - item[1].share)
    words = "; ".join(f"{name} {percent(near.share, 0)} (chance: {percent(near.chance, 0)})" for name, near in ranked)
    return (
        f"How often the nearest other character is of the same kind: {words}. The model was told nothing about characters but "
        "where they stand: what is used alike **ends up alike**."
    )
