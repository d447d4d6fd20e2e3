"""The toy tasks, one file each, by name: whatever file stands in this folder is a task, or helps some of them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from xformer.config import TaskConfig
from xformer.tasks.rules.rule import Rule

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

RULES: dict[str, type[Rule]] = {of.name: of for of in Rule.__subclasses__()}


def rule(config: TaskConfig) -> Rule:
    """What the task of that configuration is."""
    return RULES[config.name](config)
