"""Learn lists the shipped lessons in their order, and the screens that belong to it."""

from __future__ import annotations

import json

import torch

import xformer
from pages.state import screens
from tests.pages.conftest import Open, complaints, components
from xformer.live import lesson


def test_learn_is_the_second_screen_and_lists_every_lesson_in_order(open_page: Open) -> None:
    assert list(screens.screens())[:2] == ["home", "learn"]
    app = open_page("pages/learn/page.py")
    assert complaints(app) == []
    assert "Where do I begin?" in app.title[0].value
    [cards] = components(app, "lesson_cards")
    given = json.loads(cards.json)["lessons"]
    assert tuple(one["name"] for one in given) == lesson.ORDER
    masks = lesson.shipped()["masks"]
    heads = {one["name"]: one.pop("heads") for one in given}
    assert given[3] == {
        "name": "masks", "title": masks.title, "summary": masks.summary, "minutes": masks.minutes,
        "steps": len(masks.steps), "exercises": [3, 5, 6],
    }  # fmt: skip
    run = xformer.read(
        "checkpoints/reverse-small", masks.input, edits=[xformer.edits.set_causal(True)]
    )  # what the lesson shows last
    expected = torch.stack([run[f"encoder.{layer}.attn.pattern"][0] for layer in (0, 1)])  # [layer, head, query, key]
    sent = torch.tensor(heads["masks"])
    assert torch.equal(sent == 255, torch.ones(expected.shape[-2:]).triu(1).bool().expand(expected.shape))
    assert torch.allclose((sent / 253).where(sent < 255, 0.0), expected, rtol=0, atol=0.5 / 253)
    assert {name: (len(layers), len(layers[0])) for name, layers in heads.items()} == {
        "attention": (1, 1), "scores": (1, 1), "heads": (4, 4), "masks": (2, 1), "positions": (2, 1),
        "cross-attention": (3, 2), "induction": (2, 1), "training": (2, 1),
    }  # fmt: skip
    links = [(link.proto.page, link.proto.query_string) for link in app.get("page_link")]
    assert links == [("first_principles", "predict=1"), ("bug_lab", "tab=find")]
