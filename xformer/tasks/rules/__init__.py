"""The rules of the toy tasks, one module each. Every module of this package is imported, and its rules register themselves."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from xformer.config import TaskConfig
from xformer.tasks.rules.rule import Rule

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

RULES: dict[str, type[Rule]] = {of.name: of for of in Rule.__subclasses__()}


def rule(config: TaskConfig) -> Rule:
    """The rule of a configuration."""
    return RULES[config.name](config)
