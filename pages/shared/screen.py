"""What a screen says about itself, in the `__init__.py` of its folder: enough for every menu that leads to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Screen:
    """A folder `pages/NAME` whose `page.py` draws the screen, under the address /NAME."""

    title: str
    icon: str
    """Of Material Symbols."""
    group: str
    """The heading in the navigation under which it stands."""
    place: int
    """The screens stand in this order; the first one is where a visitor without a link arrives."""
    shows_a_model: bool = False
    """Whether it shows one model with one input, so that a step of a run can be opened there."""
    usual_panel: str = ""
    """The panel below its picture that is shown where nobody chose one, and not in a frame; empty for none."""
