"""Checks on every screen: the code of a picture draws it, and each unknown value in a link gets one warning."""

from __future__ import annotations

import pytest

from tests.pages.code_and_picture import assert_code_draws_what_is_shown
from tests.pages.conftest import Open, complaints

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
    monkeypatch.setattr("pages.compare.panels.AT_ONCE", 60.0)  # enough on a busy machine
    monkeypatch.setattr("pages.compare.one_model.AT_ONCE", 60.0)
    app = assert_code_draws_what_is_shown(
        open_page, monkeypatch, f"pages/{screen}/page.py", {"model": "reverse-small"} | link
    )
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
