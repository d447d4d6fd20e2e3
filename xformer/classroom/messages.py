"""What a student's page may send, checked once where it arrives: votes, exercises, a nickname, and the state of the page.

    message = parse('{"type": "vote", "question": 1, "round": 1, "answer": "0"}')

Each message is a schema of bounded numbers and strings. Unknown fields are dropped, and half of a surrogate pair, as a browser
leaves when it cuts a text, is replaced.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from xformer.errors import ClassroomError

NOT_UNDERSTOOD = "The server does not understand this message."
MAX_CHARACTERS = 8192
"""Maximum length of a message from a browser."""


def _whole_characters(value: object) -> object:
    """Replace lone surrogates, which neither UTF-8 nor SQLite can hold."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_Text = Annotated[str, BeforeValidator(_whole_characters)]
_Count = Annotated[int, Field(ge=0, lt=10**6)]
_Id = Annotated[int, Field(ge=0, lt=10**9)]
_Name = Annotated[str, StringConstraints(max_length=80, pattern=r"^[a-z0-9_.*]*$")]
"""A layer, head or cell, such as "encoder.1.attn.2.0.3"."""
_Names = Annotated[list[_Name], Field(max_length=512)]


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class PageState(_Schema):
    """The state of a student's page; see `xformer/widgets/live/state.js`."""

    model: Annotated[_Text, StringConstraints(max_length=200)] = ""
    input: Annotated[_Text, StringConstraints(max_length=2000)] = ""
    mask: Literal["trained", "causal", "full", "drawn"] = "trained"
    ablate: _Names = []
    cut: _Names = []
    positions: bool = True
    layer: _Count = 0
    head: _Count = 0


class Vote(_Schema):
    """An answer to a question."""

    type: Literal["vote"]
    question: _Id
    round: Literal[1, 2]
    answer: Annotated[str, StringConstraints(max_length=8)]


class Work(_Schema):
    """The tries at an exercise, identified by its step in the lesson."""

    type: Literal["work"]
    lesson: Annotated[str, StringConstraints(max_length=80)]
    step: _Count
    tries: _Count
    solved: bool = False


class Nickname(_Schema):
    """A nickname; the store shortens it."""

    type: Literal["nickname"]
    name: _Text


class Offer(_Schema):
    """The state that the student allows the lecturer to show; None withdraws it."""

    type: Literal["state"]
    state: PageState | None = None


class Forget(_Schema):
    """The request to delete all data of the student."""

    type: Literal["forget"]


Message = Annotated[Vote | Work | Nickname | Offer | Forget, Field(discriminator="type")]
_READER: TypeAdapter[Any] = TypeAdapter(Message)


def parse(text: str) -> Vote | Work | Nickname | Offer | Forget:
    """Read a message. Raises `ClassroomError` if it does not fit the schema."""
    try:
        if len(text) <= MAX_CHARACTERS:
            return _READER.validate_python(json.loads(text))
    except (ValueError, RecursionError, ValidationError):
        pass
    raise ClassroomError(NOT_UNDERSTOOD)
