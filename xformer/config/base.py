"""The base of all configurations: frozen, validated when made, with errors in one plain sentence.

A field states its title, its description, its limits and a value that works:

    d_ff: Annotated[int, setting("Feed-forward width", "0 leaves it out.", 0, 131_072, 16)]

The error messages and the form of the Train screen are made from these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from xformer.errors import ConfigError


def setting(
    title: str,
    description: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    example: Any = None,
    *,
    below: float | None = None,
    rule: str = "",
) -> Any:
    """What a field is called and may be; `rule` says its limits where their numbers alone would be hard to read."""
    limits = {"ge": at_least, "le": at_most, "lt": below}
    examples = None if example is None else [example]
    return Field(title=title, description=description, examples=examples, json_schema_extra={"rule": rule}, **limits)  # pyright: ignore


class Config(BaseModel, frozen=True, strict=True, extra="forbid", allow_inf_nan=False):
    """A configuration. A value that breaks a rule raises `ConfigError`, in the constructor, `from_json` and `replace`."""

    if not TYPE_CHECKING:  # a type checker knows the fields by their names

        def __init__(self, /, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(_sentence(type(self), error.errors(include_url=False))) from None

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values, in the order they are declared."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The configuration that `to_json` described. Raises `ConfigError` on an unknown, missing or mistyped field."""
        if not isinstance(values, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object, got {type(values).__name__}; for example {{}}.")
        return cls(**{name: _frozen(value) for name, value in values.items()})

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return type(self)(**(dict(self) | changes))

    def _derive(self, name: str, value: Any) -> None:
        """Fill in a field that was left to the others, while this is being made: afterwards it is frozen."""
        vars(self)[name] = value  # pyright: ignore[reportIndexIssue]

    @classmethod
    def largest(cls, name: str) -> float:
        """The largest value that a field may have."""
        return next(end.le for end in cls.model_fields[name].metadata if hasattr(end, "le"))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _sentence(kind: type[Config], problems: list[ErrorDetails]) -> str:
    """The first problem as the rule, the value received, and one that works; unknown and missing fields before all others."""
    order = ("extra_forbidden", "missing")
    problem = min(problems, key=lambda one: order.index(one["type"]) if one["type"] in order else len(order))
    what, got = problem["type"], problem["input"]
    if what == "value_error":  # one of the rules that several fields have to keep
        return str(problem.get("ctx", {})["error"])
    name = str(problem["loc"][0] if problem["loc"] else got)  # without a place: a name that is no text
    if what == "extra_forbidden" or not problem["loc"]:
        return f"{kind.__name__} has no field {name!r}; its fields are {', '.join(kind.model_fields)}."
    if what == "missing" and len(problem["loc"]) == 1:
        return f"{kind.__name__} needs the field {name!r}, which is missing."
    field = kind.model_fields[name]
    options = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if what == "literal_error" or (options and what == "string_unicode"):
        return f"{name} must be one of {', '.join(map(repr, options))}, got {got!r}."
    example = field.examples[0] if field.examples else options[0] if field.is_required() and options else field.default
    rule = _TYPES.get(what) or (field.json_schema_extra or {}).get("rule") or limits(field)  # pyright: ignore
    return f"{name} must be {rule}, got {got!r}; for example {name}={example!r}."


_TYPES = {
    "int_type": "of type int",
    "bool_type": "of type bool",
    "string_type": "of type str",
    "string_unicode": "text that can be written as UTF-8",
    "float_type": "a number",
    "tuple_type": "a tuple",
}


def limits(field: FieldInfo) -> str:
    """From where to where its values are."""
    ends = {name: getattr(end, name) for end in field.metadata for name in ("ge", "le", "lt") if hasattr(end, name)}
    words = {name: f"{end:,}" if isinstance(end, int) else f"{end:g}" for name, end in ends.items()}
    if "lt" in words:
        return f"at least {words['ge']} and below {words['lt']}"
    return f"from {words['ge']} to {words['le']}" if words else "valid"
