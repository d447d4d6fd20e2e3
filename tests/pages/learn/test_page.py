"""Learn lists the shipped lessons in their order, and the screens that belong to it."""

from __future__ import annotations

import json

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
    assert given[3] == {
        "name": "masks", "title": masks.title, "summary": masks.summary, "minutes": masks.minutes,
        "steps": len(masks.steps), "exercises": [3, 5, 6],
    }  # fmt: skip
    links = [(link.proto.page, link.proto.query_string) for link in app.get("page_link")]
    assert links == [("first_principles", "predict=1"), ("bug_lab", "tab=find")]
