"""The route of the lessons: `GET /lesson/NAME` is the page of a lesson, which runs its model in the browser."""

from __future__ import annotations

import asyncio
from functools import cache

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from pages.server.access import base_path
from xformer.errors import XformerError
from xformer.live.lesson import ORDER

PAGE_SECONDS = 3600
"""How long a browser may show its copy of a page."""


def routes() -> list[BaseRoute]:
    """The route for `st.App`, under the base path of the app."""
    return [Route(f"{base_path()}/lesson/{{name}}", _lesson)]


async def _lesson(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ORDER:
        return PlainTextResponse(f"There is no such lesson; the lessons are {', '.join(ORDER)}.", 404)
    try:
        page = await asyncio.to_thread(_page, name)
    except XformerError as error:
        return PlainTextResponse(f"The lesson cannot be shown: {error}", 409)
    return HTMLResponse(page, headers={"Cache-Control": f"private, max-age={PAGE_SECONDS}"})


@cache  # the pages of all lessons have 5 MB
def _page(name: str) -> str:
    """Return the page of a lesson, built once for all visitors: those who come meanwhile wait for it."""
    from pages.compute.byte_cache import shared
    from pages.state import screens
    from xformer.live import lesson
    from xformer.playlist import shipped

    last = shipped()[name].items[-1]
    screen = screens.screens()[last.screen or next(iter(screens.screens()))]
    app = {"title": screen.title, "link": last.link}
    return shared.get(("lesson", name), lambda: lesson.page(lesson.FOLDER / f"{name}.md", app))
