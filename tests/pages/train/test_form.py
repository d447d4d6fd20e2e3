"""The form has a field for every setting of the configurations."""

from __future__ import annotations

from pages.train.form import EVERYTHING, KINDS


def test_every_setting_is_in_the_form_unless_it_is_derived() -> None:
    asked = {(field.of, field.name) for field in EVERYTHING}
    every = {(of, name) for of, kind in KINDS.items() for name in kind.model_fields}
    left = {"architecture", "vocab_size", "pad_token", "start_token", "end_token", "image", "patch"}
    assert len(asked) == len(EVERYTHING)
    assert every - asked == {("model", name) for name in left} | {
        ("task", "patch"), ("task", "text"), ("task", "alphabet"), ("train", "lr_changes"),
    }  # fmt: skip
