"""What to say about a model's embeddings: where they come from, and what to notice in the vectors of this run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from pages.shared.layout import what_to_notice
from pages.shared.resources import Run
from pages.shared.view import View
from xformer.analysis import embeddings as analysis

KINDS = {
    "digits": "0123456789",
    "vowels": "aeiou",
    "other small letters": "bcdfghjklmnpqrstvwxyz",
    "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
}


def where_from(view: View, side: str | None, parts: Mapping[str, Tensor]) -> str:
    """Which matrix the tokens are looked up in, who shares it, and what is added."""
    config = view.checkpoint.config
    said = []
    if side:
        said.append(
            "Source and target **share** one embedding matrix."
            if config.tied_source
            else "Source and target have **their own** embedding matrices."
        )
    said.append(
        "The output reads its logits with the same matrix."
        if config.tied_output
        else "The output has a matrix of its own."
    )
    if "positions" not in parts:
        kind = {"rotary": "rotary positions turn queries and keys instead", "alibi": "ALiBi biases the scores instead"}
        why = kind.get(config.positions, "nothing tells it where a token is")
        said.append(f"This model adds no positions: {why}, so what enters layer 1 is the token vectors alone.")
    scale = f" × √{config.d_model}" if config.scale_embeddings else ""
    return f"A token looks up its row of a learned matrix [{config.vocab_size} × {config.d_model}]{scale}. {' '.join(said)}"


def embedding_notes(view: View, parts: Mapping[str, Tensor], vectors: Tensor, side: str | None) -> None:
    """Whether the numbers lie in order, how far apart they are, and what positions do; of the model's own run."""
    numbers = view.task.rule.n_numbers
    notes = [_about_order(vectors, numbers), _about_distance(vectors, numbers)] if numbers else []
    if view.task.rule.goes_on:
        notes += _about_kinds(vectors, view.task.config.alphabet)
    if "positions" in parts:
        token, added = (parts[name].double().norm(dim=-1).mean().item() for name in ("tokens", "positions"))
        notes.append(
            f"A token’s vector has a length of {token:.3f} on average, a position’s {added:.3f}: "
            f"{added / token:.1f} times as much. Switch to **positions**, then to **sum**, and see which pattern wins."
        )
    if note := _about_repeats(view.original(), parts, side):
        notes.append(note)
    what_to_notice(notes)


def _about_order(vectors: Tensor, symbols: int) -> str:
    share, chance = analysis.next_door(vectors, 1, symbols)
    return (
        f"For {share:.0%} of the {symbols} numbers the nearest other number is one more or one less "
        f"(chance: {chance:.0%}). "
    ) + (
        "The model was never told that 7 comes before 8: this task made it **put the numbers in order**."
        if share * symbols > chance * symbols + 3 * math.sqrt(symbols * chance * (1 - chance))
        else "So nearness says nothing about their **order** here: each number just has a direction of its own."
    )


def _about_kinds(vectors: Tensor, alphabet: str) -> list[str]:
    """Which kinds of characters lie together: how often the nearest other character is of the same kind."""
    found = []
    for name, kind in KINDS.items():
        tokens = [1 + place for place, character in enumerate(alphabet) if character in kind]
        if len(tokens) >= 3:
            near = analysis.cosines(vectors[1 : len(alphabet) + 1])  # [character, character]
            near.fill_diagonal_(-2.0)
            nearest = 1 + near.argmax(dim=1)
            share = sum(int(nearest[token - 1]) in tokens for token in tokens) / len(tokens)
            chance = (len(tokens) - 1) / (len(alphabet) - 1)
            found.append((share - chance, name, share, chance, len(tokens)))
    if not found:
        return []
    words = "; ".join(f"{name} {share:.0%} (chance: {chance:.0%})" for _, name, share, chance, _ in sorted(found)[::-1])
    return [
        f"How often the nearest other character is of the same kind: {words}. The model was told nothing about characters but "
        "where they stand: what is used alike **ends up alike**."
    ]


def _about_distance(vectors: Tensor, symbols: int) -> str:
    usual, errors = analysis.mean_alikeness(vectors[1 : symbols + 1])
    d = vectors.shape[1]
    return (
        f"Two different numbers have |cosine| {usual:.3f} on average; random directions in {d} "
        f"dimensions have {analysis.random_cosine(d):.3f}. "
    ) + (
        "That is no more and no less than chance makes it."
        if abs(errors) < 3
        else f"Training has {'drawn some of them together' if errors > 0 else 'pushed them apart'}: "
        f"{abs(errors):.1f} standard errors {'above' if errors > 0 else 'below'} chance."
    )


def _about_repeats(run: Run, parts: Mapping[str, Tensor], side: str | None) -> str:
    """What adding positions does to the first token that comes twice."""
    tokens = run.tokens(side)
    for first, token in enumerate(tokens):
        if token in tokens[first + 1 :] and "sum" in parts:
            second = tokens.index(token, first + 1)
            before, after = (analysis.cosines(parts[name])[first, second].item() for name in ("tokens", "sum"))
            return (
                f"Positions {first} and {second} hold the same token. Their vectors are one and the same (cosine "
                f"{before:.3f}); with positions added the cosine is {after:.3f}: now the model can **tell them apart**."
            )
    return "" if "sum" not in parts else "Type a symbol twice: its two rows are equal until positions are added."
