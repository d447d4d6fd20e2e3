"""Charts are described in half the time."""

from tests import altair_classes

altair_classes.make_once()
