"""What the Runs screen remembers of a visit: which runs are chosen, which colours they have, and what is still to be said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import streamlit as st

from xformer.errors import XformerError

MAX_DRAWN = 12
"""As many runs as there are colours."""


@dataclass
class RunsState:
    """A visit's own; filters and sort order are kept by their widgets."""

    has_begun: bool = False
    """Whether runs were chosen once, by the link or by their age."""
    chosen: list[str] = field(default_factory=list)
    to_select: str | None = None
    """Which of them is to be the selected one from the next drawing on."""
    generation: int = 0
    """How often runs were chosen from outside of the table, which then has to be another one."""
    rows: list[str] = field(default_factory=list)
    """The runs of the table's rows as they stand on the screen."""
    colours: dict[str, int] = field(default_factory=dict)
    """The place of each chosen run among the colours."""
    problem: str = ""
    deleted: tuple[str, str] | None = None
    """The id and the name of the run that was deleted last and can be taken back."""

    def choose(self, *runs: str, select: str | None = None) -> None:
        """Have the table choose these runs; the last of them is selected, unless another one is named."""
        self.has_begun, self.chosen = True, list(dict.fromkeys(runs))
        self.to_select = select or (runs[-1] if runs else None)
        self.generation += 1

    def attempt(self, what: Callable[[], object]) -> bool:
        """Do something to the runs in a callback; False where it is refused, and the screen then says why."""
        try:
            what()
        except XformerError as error:
            self.problem = str(error)
            return False
        return True

    def colour_slots(self) -> dict[str, int]:
        """The place of each chosen run among the colours: it keeps its own while others come and go."""
        drawn = self.chosen[:MAX_DRAWN]
        kept = {run: slot for run, slot in self.colours.items() if run in drawn}
        free = (slot for slot in range(MAX_DRAWN) if slot not in kept.values())
        self.colours = {run: kept[run] if run in kept else next(free) for run in drawn}
        return self.colours


def runs_state() -> RunsState:
    """The state of this visit."""
    return st.session_state.setdefault("runs_state", RunsState())
