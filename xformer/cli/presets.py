"""`python -m xformer presets`: what can be trained, with the size of each model."""

from __future__ import annotations

from argparse import Namespace

from xformer.cli.say import say_table
from xformer.counting import n_parameters
from xformer.presets import PRESETS


def run(options: Namespace) -> None:
    """List the presets."""
    say_table(
        ("preset", "title", "architecture", "parameters", "steps"),
        (
            (name, of.title, of.model.architecture, f"{n_parameters(of.model):,}", f"{of.train.steps:,}")
            for name, of in PRESETS.items()
        ),
        whole=1,
    )
