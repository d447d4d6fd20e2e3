"""Checks on every screen: the code of a picture draws it, and each unknown value in a link gets one warning."""

from __future__ import annotations

import pytest

from pages.compare.comparison import Comparison, ModelSettings
from pages.compute import models
from pages.state.view import View
from tests.pages.code_and_picture import assert_code_draws_what_is_shown
from tests.pages.conftest import Open, complaints, in_link
from xformer.edit_links import parse_edits

LONG = " ".join(str(1 + step * 7 % 19) for step in range(60))
PICTURES = [
    ("attention", {"model": "reverse-small", "panel": "step by step", "mask": "causal"}),
    ("attention", {"model": "reverse-seq2seq", "panel": "rollout", "mask": "causal"}),
    ("embeddings", {"model": "reverse", "show": "vocabulary", "axes": "3"}),
    ("embeddings", {"model": "modular", "show": "waves", "wave": "17"}),
    ("embeddings", {"model": "digits", "show": "filters"}),
    ("embeddings", {"model": "reverse", "input": LONG, "from": "3", "show": "cosines", "edits": "token:1.9"}),
    ("positions", {"model": "reverse", "edits": "positions:off,token:1.9"}),
    ("positions", {"model": "reverse", "show": "kinds"}),
    ("positions", {"model": "digits", "show": "places"}),
    ("feed_forward", {"edits": "ablate:encoder.0.ffn.3", "picture": "map", "order": "plain", "stage": "pre"}),
    ("feed_forward", {"edits": "ablate:encoder.0.ffn.3", "picture": "neuron"}),
    ("feed_forward", {"edits": "ablate:encoder.0.ffn.3", "picture": "firing", "over": "input"}),
    ("residual", {"edits": "ablate:encoder.0.ffn", "goal": "lead", "picture": "lens"}),
    ("residual", {"model": "reverse-seq2seq", "edits": "ablate:decoder.0.ffn", "goal": "lead", "picture": "parts"}),
    ("residual", {"model": "characters", "edits": "ablate:decoder.0.ffn", "picture": "norms"}),
    ("compare", {"a": "reverse-small", "b": "reverse-small~causal", "panel": "attention"}),
    ("compare", {"a": "reverse-small", "b": "reverse-small~causal", "panel": "lens"}),
    ("compare", {"a": "reverse-small", "b": "reverse-small~causal", "panel": "patching"}),
    ("compare", {"a": "reverse-small", "b": "reverse-decoder", "panel": "rows"}),
    ("compare", {"compare": "pairs", "input": "3 7 12 9", "other": "3 7 13 9", "part": "stream", "method": "exact"}),
]


@pytest.mark.parametrize(("screen", "link"), PICTURES)
def test_code_of_each_picture_draws_it(
    open_page: Open, monkeypatch: pytest.MonkeyPatch, screen: str, link: dict[str, str]
) -> None:
    page, link = f"pages/{screen}/page.py", {"model": "reverse-small"} | link
    app = assert_code_draws_what_is_shown(open_page, monkeypatch, page, link)
    assert complaints(app) == []
    assert len(app.get("plotly_chart")) == ("axes" in link)  # no other picture needs Plotly's large script


@pytest.mark.parametrize(
    ("screen", "link", "n"),
    [
        ("home", {"model": "../../etc"}, 1),
        ("attention", {"head": "9.9", "scale": "x", "view": "film", "arcs": "0"}, 4),
        ("attention", {"head": "1.1.999-0", "arcs": "1.x"}, 1),  # an unknown cell is ignored
        ("embeddings", {"show": "vocabulary", "axes": "4", "near": ""}, 2),
        ("embeddings", {"show": "waves", "wave": "99"}, 1),
        ("positions", {"show": "attention", "watch": "9.9"}, 1),
        ("positions", {"show": "own", "waves": "²"}, 1),
        ("feed_forward", {"layer": "encoder.9", "neuron": "512", "picture": "ranked"}, 2),
        ("residual", {"picture": "parts", "pos": "x", "goal": "y"}, 2),
        ("first_principles", {"vector": "the:nan,1,1,1"}, 1),
        ("train", {"run": "nonsense"}, 1),
    ],
)
def test_each_unknown_value_in_a_link_is_reported(open_page: Open, screen: str, link: dict[str, str], n: int) -> None:
    app = open_page(f"pages/{screen}/page.py", **({"model": "reverse-small"} | link))
    assert len(complaints(app)) == n
    assert all("does not exist here" in warning for warning in complaints(app))


EDITS = "cut:encoder.0.attn.0.3-2,ablate:encoder.1.attn.0,token:3.5"


@pytest.mark.parametrize(
    "screen", ["home", "embeddings", "positions", "attention", "feed_forward", "residual", "compare", "reverse-decoder"]
)
def test_changes_outside_a_shorter_input_wait_on_their_chips(open_page: Open, screen: str) -> None:
    of_model = {"model": "reverse-small", "edits": EDITS}
    field, name, letter, link, page = "input", "edits", "", of_model, screen
    if screen in ("compare", "reverse-decoder"):  # the same model without the changes, or another model
        other = "reverse-small" if screen == "compare" else screen
        link = {"a": f"reverse-small~{EDITS}", "b": other}
        field, name, letter, page = "compare_input", "a", "A_", "compare"
    app = open_page(f"pages/{page}/page.py", input="3 7 12 9", **link)
    app.text_input(key=field).set_value("3 7").run()
    assert complaints(app) == []
    assert in_link(app, "input") == "3 7"
    assert set(in_link(app, name).removeprefix("reverse-small~").split(",")) == set(EDITS.split(","))
    chips = {button.key: button.label for button in app.button if str(button.key).startswith("chip_")}
    waiting = {key for key, label in chips.items() if "not in this input" in label}
    assert waiting == {f"chip_{letter}{text}" for text in EDITS.split(",")[::2]}
    app.text_input(key=field).set_value("3 7 12 9").run()
    assert not any("not in this input" in str(button.label) for button in app.button)


INPUTS = {"reverse-small": "3 7 12 9", "reverse-seq2seq": "3 7 12 9", "reverse-decoder": "3 7 12 9", "digits": "test 3"}


@pytest.mark.parametrize("model", INPUTS)
def test_every_change_runs_or_waits_on_every_shorter_input(model: str) -> None:
    adapter = models.adapter(model)
    shape, longest = adapter.shape, adapter.input.read(INPUTS[model])
    cells = [(0, 0), (1, 0), (3, 2), (5, 4), (shape.max_len - 1, 0), (0, shape.max_len - 1)]
    changes = [f"{kind}:{path}.*.{q}-{k}" for kind in ("cut", "open") for path in shape.heads for q, k in cells]
    changes += [f"token:{at}.1" for at in (0, 3, 15)] + [f"ablate:{path}.0" for path in shape.heads] + ["positions:off"]
    n_waiting = []
    for length in range(len(longest), 0, -1) if not shape.image else [len(longest)]:
        wanted = parse_edits(",".join(changes), shape)
        view = View(model, longest[:length], "causal", adapter, wanted).with_fitting_changes()
        assert {*view.edit_links, *view.waiting} == {*wanted}
        assert view.changed() is not None
        n_waiting.append(len(view.waiting))
        variant = ModelSettings(model, "causal", tuple(change.text for change in wanted))
        fitting = variant.without(variant.waiting(view.source))
        for other in () if shape.image else (model, "reverse-small"):
            assert len(Comparison((fitting, ModelSettings(other)), view.source, forced=False).runs()) == 2
    assert n_waiting == sorted(n_waiting)
    assert n_waiting[-1] > 0 or shape.image


def test_a_shortcut_is_not_the_only_text_of_a_button(open_page: Open) -> None:
    app = open_page("pages/first_principles/page.py")
    with_shortcut = [button for button in app.button if button.proto.shortcut]
    assert len(with_shortcut) == 2
    assert all(button.label for button in with_shortcut)
