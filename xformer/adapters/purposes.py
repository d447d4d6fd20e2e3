"""Inputs with a purpose for models that are known: what each shows is measured, not promised."""

from __future__ import annotations

_SMOLLM2 = (
    ("… finds who is meant", "When Mary and John went to the store, John gave a drink to"),
    (
        "… says the same again",
        "The cat sat on the mat. The dog ran in the park. The cat sat on the mat. The dog ran in the",
    ),
    ("… knows a capital", "The capital of France is"),
)
_REACTIONS = (
    (
        "… follows the atoms of a substitution",
        "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    ),
    ("… follows the atoms of an ester", "CC(=O)O.OCC>>CC(=O)OCC"),
)
_SMOLLM2_PAIRS = {
    "… finds who is meant": (
        "When Mary and John went to the store, John gave a drink to",
        "When Mary and John went to the store, Mary gave a drink to",
    ),
    "… finds who gets the book": (
        "After Tom and Sarah had lunch, Sarah handed the book to",
        "After Tom and Sarah had lunch, Tom handed the book to",
    ),
    "… finds who is sung to": (
        "While Anna and Peter were in the garden, Peter sang a song for",
        "While Anna and Peter were in the garden, Anna sang a song for",
    ),
    "… knows a capital": ("The capital of France is", "The capital of Germany is"),
}


def known_pairs(name: str) -> dict[str, tuple[str, str]]:
    """Pairs of inputs that differ in a token that matters, for a model of that name; nothing where nobody knows the model."""
    return dict(_SMOLLM2_PAIRS) if "smollm" in name.lower() else {}


def purposes(name: str) -> tuple[tuple[str, str], ...]:
    """What to try with a model of that name; nothing where nobody knows the model."""
    lower = name.lower()
    return _SMOLLM2 if "smollm" in lower else _REACTIONS if "rxnmapper" in lower else ()
