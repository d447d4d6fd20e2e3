"""The form's fields are the configurations' own: none is forgotten, and each says what it is."""

from __future__ import annotations

from pages.train.form import EVERYTHING, KINDS
from xformer.presets import preset


def test_every_setting_is_in_the_form_unless_it_follows_from_others() -> None:
    asked = {(field.of, field.name) for field in EVERYTHING}
    every = {(of, name) for of, kind in KINDS.items() for name in kind.model_fields}
    left = {"architecture", "vocab_size", "pad_token", "start_token", "end_token", "image", "patch"}
    assert len(asked) == len(EVERYTHING)
    assert every - asked == {("model", name) for name in left} | {
        ("task", "patch"), ("task", "text"), ("task", "alphabet"), ("train", "lr_changes"),
    }  # fmt: skip


def test_each_is_called_and_explained_and_offers_what_the_configuration_takes() -> None:
    chosen = preset("reverse")
    settings = {"task": chosen.task, "model": chosen.model, "train": chosen.train}
    for field in EVERYTHING:
        assert field.label != field.name
        assert field.help.endswith((".", "?")), field.name
        for option in field.options:
            if field.of == "train" or field.name in ("norm", "activation", "init", "positions"):
                assert getattr(settings[field.of].replace(**{field.name: option}), field.name) == option
        value = getattr(settings[field.of], field.name)
        assert not field.options or value in field.options or set(value) <= set(field.options)
