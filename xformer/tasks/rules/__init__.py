"""The toy tasks, one file each, by name."""

from __future__ import annotations

from xformer.config import TaskConfig, TaskName
from xformer.tasks.rules.addition import Addition
from xformer.tasks.rules.brackets import Brackets
from xformer.tasks.rules.characters import Characters
from xformer.tasks.rules.copy import Copy
from xformer.tasks.rules.digits import Digits
from xformer.tasks.rules.induction import Induction
from xformer.tasks.rules.modular import Modular
from xformer.tasks.rules.parity import Parity
from xformer.tasks.rules.reverse import Reverse
from xformer.tasks.rules.rule import Rule
from xformer.tasks.rules.sort import Sort

RULES: dict[TaskName, type[Rule]] = {
    "reverse": Reverse,
    "sort": Sort,
    "copy": Copy,
    "induction": Induction,
    "addition": Addition,
    "parity": Parity,
    "brackets": Brackets,
    "modular": Modular,
    "digits": Digits,
    "characters": Characters,
}


def rule(config: TaskConfig) -> Rule:
    """What the task of that configuration is."""
    return RULES[config.name](config)
