"""Links of earlier versions keep their meaning."""

from __future__ import annotations

import pytest

from pages.state.link import VALUES, current_parameters, current_value


@pytest.mark.parametrize(
    ("screen", "old", "new"),
    [
        ("home", {"edits": "silence:encoder.1.attn.2,mute:x"}, {"edits": "ablate:encoder.1.attn.2,ablate:x"}),
        ("compare", {"a": "reverse,neuron:encoder.0.ffn.7"}, {"a": "reverse,ablate:encoder.0.ffn.7"}),
        ("attention", {"input": "mute: a text", "layer": "1"}, {"input": "mute: a text", "layer": "1"}),
        ("bug_lab", {"bug": "no-scale"}, {"bug": "no_scale"}),
        ("first_principles", {"layer": "1", "head": "2"}, {"head": "2.3"}),
        ("first_principles", {"head": "2.3"}, {"head": "2.3"}),
        ("runs", {"find": "zz", "state": "finished"}, {"find": "zz finished"}),
    ],
)  # fmt: skip
def test_renamed_parameters_are_translated(screen: str, old: dict[str, str], new: dict[str, str]) -> None:
    assert current_parameters(screen, old) == current_parameters(screen, new) == new


def test_an_old_value_is_translated_unless_the_screen_knows_it() -> None:
    assert current_value("show", "own", ["offsets", "kinds"]) == "offsets"
    assert current_value("show", "own", ["own", "offsets"]) == "own"
    assert current_value("scale", "-5", ["-5.0"]) == "-5.0"
    assert current_value("side", "own", []) == "own"
    assert all(old != new and new not in values for values in VALUES.values() for old, new in values.items())
