"""Playlists: views of the app in the order of a talk, each a link with a title and a speaker note, in a small JSON file.

{"version": 1, "title": "Masks", "items": [{"link": "/attention?model=reverse", "title": "One head", "note": "Wait."}]}
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlencode

from pydantic import AfterValidator, field_validator

from xformer.config import Config, setting
from xformer.errors import ConfigError, InputError
from xformer.files import read_text
from xformer.live.lesson import ORDER

if TYPE_CHECKING:
    from xformer.live.lesson import Lesson

FIRST = "XFORMER_PLAYLIST"
"""The environment variable with the path of a playlist that the app offers before the lessons' playlists."""
MAX_BYTES = 1_000_000
"""Largest size of a file in bytes."""
MAX_ITEMS = 100
MAX_CHARACTERS = {"title": 200, "note": 5_000, "link": 8_000}
"""Largest number of characters of each field."""
_LINK = re.compile(r"/[a-z_]{0,40}(\?[!-~]*)?", re.ASCII)


def _text(name: str) -> AfterValidator:
    """Return the validator of a text field, which checks its length and replaces characters that UTF-8 cannot encode."""
    most = MAX_CHARACTERS[name]

    def check(value: str) -> str:
        if len(value) > most:
            raise ConfigError(f"{name} must have at most {most:,} characters, got {len(value):,}; shorten it.")
        return value.encode("utf-8", "replace").decode()  # a lone surrogate

    return AfterValidator(check)


class Item(Config, frozen=True):
    """A view of a playlist.

    Attributes:
        link: A screen of the app with its parameters: "/attention?model=reverse&head=3.2". It cannot name another server.
        title: The title.
        note: The speaker note.

    Example:
        >>> from xformer.playlist import Item
        >>> Item(link="/attention?model=reverse&head=3.2", title="One head").screen
        'attention'
    """

    link: Annotated[str, setting("Link", example="/attention?model=reverse&head=3.2"), _text("link")]
    title: Annotated[str, setting("Title", example="One head"), _text("title")]
    note: Annotated[str, _text("note")] = ""

    @field_validator("link")
    @classmethod
    def _check_link(cls, link: str) -> str:
        if _LINK.fullmatch(link) is None:
            what = f"link must be a screen of the app with its query, got {link!r:.80}"
            raise ConfigError(f"{what}; for example /attention?model=reverse&head=3.2.")
        return link

    @property
    def screen(self) -> str:
        """The name of the screen in the link; "" for Home."""
        return self.link[1:].partition("?")[0]

    @property
    def values(self) -> dict[str, str]:
        """The parameters of the link, without those for embedding in a frame."""
        pairs = parse_qsl(self.link.partition("?")[2], keep_blank_values=True)
        return {name: value for name, value in pairs if not name.startswith("embed")}


class Playlist(Config, frozen=True):
    """Views in the order of a talk.

    Attributes:
        version: The version of the format.
        title: The title.
        items: The views.

    Example:
        >>> from xformer.playlist import Item, Playlist, parse
        >>> talk = Playlist(title="Masks", items=(Item(link="/attention?mask=causal", title="No looking ahead"),))
        >>> parse(talk.to_text()) == talk
        True
    """

    version: Literal[1] = 1
    title: Annotated[str, setting("Title", example="Masks"), _text("title")]
    items: tuple[Item, ...]

    @field_validator("items")
    @classmethod
    def _check_items(cls, items: tuple[Item, ...]) -> tuple[Item, ...]:
        if len(items) > MAX_ITEMS:
            raise ConfigError(f"A playlist can have at most {MAX_ITEMS} items, got {len(items)}; split it.")
        return items

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Return the playlist of the values from `to_json`. Raises `ConfigError` for an unknown, missing or mistyped field."""
        if not isinstance(values, dict) or "items" not in values:
            return super().from_json(values)  # raises the error
        if not isinstance(values["items"], list):
            raise ConfigError(f"items must be a list, got {values['items']!r:.80}; for example [].")
        items = []
        for number, item in enumerate(values["items"], 1):
            try:
                items.append(Item.from_json(item))
            except ConfigError as error:
                raise ConfigError(f"Item {number}: {error}") from None
        return super().from_json(values | {"items": items})

    def to_text(self) -> str:
        """Return the content of a playlist file."""
        return json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n"


def parse(text: str) -> Playlist:
    """Parse a playlist.

    Args:
        text: The content of a playlist file.

    Returns:
        The playlist.

    Raises:
        InputError: The text breaks a rule. The message names the rule, the value received and a valid example.

    Example:
        >>> from xformer.playlist import parse
        >>> parse('{"version": 1, "title": "Masks", "items": []}').title
        'Masks'
    """
    if len(text) > MAX_BYTES:
        raise InputError(f"A playlist can have at most {MAX_BYTES:,} bytes, got {len(text):,}.")
    try:
        return Playlist.from_json(json.loads(text))
    except ConfigError as error:
        raise InputError(str(error)) from None
    except (ValueError, RecursionError) as error:
        example = '{"version": 1, "title": "Masks", "items": []}'
        raise InputError(f"A playlist must be JSON ({error}), got {text!r:.60}; for example {example}") from None


def load(path: str | Path) -> Playlist:
    """Load a playlist from a file.

    Args:
        path: The JSON file.

    Returns:
        The playlist.

    Raises:
        InputError: The file breaks a rule, or cannot be read.
    """
    return parse(read_text(path, MAX_BYTES))


def shipped() -> dict[str, Playlist]:
    """Return the playlists of the shipped lessons, by name, in the order of the lessons.

    Example:
        >>> from xformer.playlist import shipped
        >>> shipped()["masks"].title
        'Masks'
    """
    folder = files("xformer").joinpath("playlists")
    return {name: parse(folder.joinpath(f"{name}.json").read_text(encoding="utf-8")) for name in ORDER}


_SCREENS = {"scene": "", "decode": "", "feed_forward": "feed_forward", "lens": "residual"}
"""The screen for each tab of a lesson; all other tabs are on Attention."""
_IN_LINKS = frozenset(["input", "mask", "ablate", "cut", "positions", "step", "layer", "head", "query", "key", "tab"])


def from_lesson(lesson: Lesson, sites: Sequence[str]) -> Playlist:
    """Return the views of a lesson as a playlist. A prediction becomes two views: the question, then the answer.

    The question uses the preceding view, or the embeddings of the input if that view would already show the answer.

    Args:
        lesson: The lesson; its texts, questions and hints become the notes.
        sites: The attention layers of its model in order, as in `list(reading.adapter.shape.heads)`.

    Returns:
        The playlist.

    Raises:
        InputError: A link cannot express a state, such as a drawn mask.

    Example:
        >>> from xformer.live import lesson
        >>> from xformer.playlist import from_lesson
        >>> masks = from_lesson(lesson.load("docs/lessons/masks.md"), ["encoder.0.attn", "encoder.1.attn"])
        >>> masks.items[2].link
        '/attention?model=reverse-small&input=3+7+12+9&mask=causal&head=2.1'
    """
    items, link = [], _link_of(lesson, {}, sites)
    for step in lesson.steps:
        title, notes = step.title, []
        for part in step.parts:
            fields = vars(part)
            if "html" in fields:
                notes.append(_plain(fields["html"]))
                continue
            details = fields.get("details", {})
            at = {name: value for name, value in (details | details.get("measure", {})).items() if name in _AT}
            target = _link_of(lesson, at | dict(fields.get("state", fields.get("start", {}))), sites)
            if "question" in fields:
                if link != "/train" and _run_in(link) == _run_in(target):
                    link = f"/embeddings?{urlencode(_run_in(link))}"
                choices = [f"– {one['text']}" for one in details.get("choices", ())]
                note = "\n\n".join([*notes, "\n".join([fields["question"], *choices])])
                items.append(Item(link=link, title=title, note=note))
                title, notes = f"Answer: {title}", [_plain(fields["reveal"])]
            elif "task" in fields:
                notes += [fields["task"], f"Hint: {fields['hint']}"]
            link = target
        items.append(Item(link=link, title=title, note="\n\n".join(notes)))
    return Playlist(title=lesson.title, items=tuple(items))


_AT = ("site", "head", "query", "key")


def _link_of(lesson: Lesson, state: Mapping[str, Any], sites: Sequence[str]) -> str:
    """Return the link that shows a state of a lesson."""
    if unknown := sorted(set(state) - _IN_LINKS - {"site"}):
        raise InputError(f"A link cannot express {', '.join(unknown)}; it supports {', '.join(sorted(_IN_LINKS))}.")
    if "step" in state:
        return "/train"  # the lesson's model is trained on the spot, and the speaker does the same
    edits = [f"ablate:{head}" for head in state.get("ablate", ())]
    for cell in state.get("cut", ()):
        head, query, key = cell.rsplit(".", 2)
        edits.append(f"cut:{head}.{query}-{key}")
    edits += [] if state.get("positions", True) else ["positions:off"]
    values = {"model": lesson.checkpoint or lesson.preset, "input": state.get("input", lesson.input)}
    values["mask"] = {"trained": "as trained"}.get(mask := state.get("mask", "trained"), mask)
    values |= {"edits": ",".join(edits)} if edits else {}
    tab = state.get("tab", "attention")
    if tab not in _SCREENS:
        layer = state.get("layer", sites.index(state["site"]) if "site" in state else 0)
        values["head"] = f"{layer + 1}.{state.get('head', 0) + 1}"
        if "query" in state and "key" in state:
            values["head"] += f".{state['query']}-{state['key']}"
        values |= {"panel": "steps"} if tab == "arithmetic" else {}
    return f"/{_SCREENS.get(tab, 'attention')}?{urlencode(values)}"


def _run_in(link: str) -> dict[str, str]:
    """Return the parameters of a link that determine the run it shows."""
    names = ("model", "input", "mask", "edits")
    return {name: value for name, value in parse_qsl(link.partition("?")[2]) if name in names}


def _plain(text: str) -> str:
    """Return the text of a lesson's HTML, with one line per paragraph."""
    paragraphs = re.split(r"</(?:p|li|tr|pre)>", text)
    words = [" ".join(html.unescape(re.sub(r"<[^>]+>", "", one)).split()) for one in paragraphs]
    return "\n".join(filter(None, words))
