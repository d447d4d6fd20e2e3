"""The rules of the toy tasks, one module each. All modules of this package are imported, and their rules registered."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from xformer.config import TaskConfig
from xformer.tasks.rules.rule import Rule

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

RULES: dict[str, type[Rule]] = {kind.name: kind for kind in Rule.__subclasses__()}


def rule(config: TaskConfig) -> Rule:
    """Return the rule of a configuration."""
    return RULES[config.name](config)
