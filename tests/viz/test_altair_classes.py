"""Charts that are alike are checked once, and a wrong one is refused each time."""

from __future__ import annotations

import altair as alt
import pandas as pd
import pytest
from altair.utils.schemapi import SchemaValidationError


def chart(numbers: list[float], angle: object) -> alt.Chart:
    return alt.Chart(pd.DataFrame({"a": numbers})).mark_bar().encode(x=alt.X("a:Q", axis=alt.Axis(labelAngle=angle)))


def test_a_wrong_chart_is_refused_also_after_a_right_one_that_is_like_it() -> None:
    for numbers in ([1.0], [2.0]):
        assert chart(numbers, 30).to_dict()
        with pytest.raises(SchemaValidationError):
            chart(numbers, "steep").to_dict()
