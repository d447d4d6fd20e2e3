"""What to say about a model's embeddings: where they come from, and what to notice in those of an input."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from torch import Tensor

from pages.embeddings.vocabulary import about_waves, vocabulary_notes
from pages.shared.layout import what_to_notice
from pages.shared.view import View
from xformer.analysis.embeddings import cosine_matrix
from xformer.errors import UnavailableError
from xformer.reading import Reading


def where_from(view: View, stack: str | None, parts: Mapping[str, Tensor]) -> str:
    """Which matrix the tokens are looked up in, who shares it, and what is added."""
    config = view.config
    said = []
    if stack:
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
        why = config.position_kind.instead or _without_any(view, stack)
        said.append(f"This model adds no positions: {why}, so what enters layer 1 is the token vectors alone.")
    scale = f" × √{config.d_model}" if config.scale_embeddings else ""
    return f"A token looks up its row of a learned matrix [{config.vocab_size} × {config.d_model}]{scale}. {' '.join(said)}"


def which_table(view: View, stack: str | None) -> str:
    """The same of a model that somebody else made, as far as it was found; nothing where nothing was."""
    weights = view.subject.weights
    try:
        table = weights.token_embedding(stack)
    except UnavailableError:
        return ""
    said = f"A token looks up its row of a learned matrix [{table.shape[0]:,} × {table.shape[1]:,}]."
    with suppress(UnavailableError):
        is_same = weights.unembedding().matrix.data_ptr() == table.data_ptr()
        said += f" The output reads its logits with {'the same matrix' if is_same else 'a matrix of its own'}."
    return said


def _without_any(view: View, stack: str | None) -> str:
    """What a model without positions goes by."""
    if view.shape.is_causal or stack == "decoder":
        return "its causal mask is all that tells it where a token is"
    return "nothing tells it where a token is"


def embedding_notes(view: View, parts: Mapping[str, Tensor], stack: str | None, show: str) -> None:
    """What to notice in what is shown, of the model's own run: "vectors", "vocabulary" or "waves"."""
    notes = []
    if show == "vectors":
        notes += [about_lengths(parts, "token"), _about_repeats(view.original(), parts, stack)]
    if show == "vocabulary":
        notes += vocabulary_notes(view, stack)
    notes.append(about_waves(view, stack, show))
    if notes := [note for note in notes if note]:
        what_to_notice(notes)


def about_lengths(parts: Mapping[str, Tensor], what: str) -> str:
    """How long the vectors of tokens (or patches) are beside those of their positions."""
    if "positions" not in parts:
        return ""
    token, added = (parts[name].double().norm(dim=-1).mean().item() for name in ("tokens", "positions"))
    times = f": {added / token:.1f} times as much" if token > 0 else ""
    return (
        f"A {what}’s vector has a length of {token:.3f} on average here, a position’s {added:.3f}{times}. "
        "Switch to **positions**, then to **sum**, and see which pattern wins."
    )


def _about_repeats(run: Reading, parts: Mapping[str, Tensor], stack: str | None) -> str:
    """What adding positions does to the first token that comes twice."""
    if "sum" not in parts:
        return ""
    tokens = run.ids(stack)
    for first, token in enumerate(tokens):
        if token in tokens[first + 1 :]:
            second = tokens.index(token, first + 1)
            before, after = (cosine_matrix(parts[name])[first, second].item() for name in ("tokens", "sum"))
            apart = (parts["sum"][first] - parts["sum"][second]).norm() > 1e-3 * parts["sum"][first].norm()
            return (
                f"Positions {first} and {second} hold the same token. Their vectors are one and the same (cosine "
                f"{before:.3f}); with positions added the cosine is {after:.3f}"
                + (": now the model can **tell them apart**." if apart else ": they are still as good as the same.")
            )
    return "Type a symbol twice: its two rows are equal until positions are added."
