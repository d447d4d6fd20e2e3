"""Draw what silencing each head does against what the head looks at: a head with a high score need not be needed."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from xformer.analysis import minimal_pairs
from xformer.analysis.ablation import Head
from xformer.analysis.ablation import head_effects as effects_table
from xformer.analysis.attention_patterns import SCORES, TASK, head_scores
from xformer.errors import InputError
from xformer.reading import Reading
from xformer.site import head_title
from xformer.viz import theme
from xformer.viz.charts import label_layers, layered, place_labels
from xformer.viz.generation import Drawing

NAMED = 5
"""This many of the heads with the largest effects have their names beside them, and of those with the highest scores."""
WIDTH, HEIGHT, FONT = 560, 320, 11
"""What the names are laid out for."""


def score_title(score: str) -> str:
    """A column of `analysis.head_scores` in words: "task" for "task_pattern", "anti-diagonal" for "anti_diagonal"."""
    return "task" if score == TASK else score.replace("_", "-")


def head_effects(
    reading: Reading,
    *,
    score: str = "previous",
    look: str = "answer",
    without_first: bool = False,
    position: int | None = None,
    token: int | None = None,
    against: int | None = None,
    exact: bool | Sequence[Head] = True,
    table: pd.DataFrame | None = None,
    dark: bool = False,
) -> Drawing:
    """Draw `analysis.head_effects` over a score of `analysis.head_scores`.

    Filled points are measured; hollow ones are not, and stand at their estimate. Names stand beside measured heads only, unless
    none is measured. `table` is that of `analysis.head_effects` where it has been made already.

    Args:
        reading: The run.
        score: A column of `analysis.head_scores`.
        look: "answer" or "source": the positions that count.
        without_first: Leave the first token out, as a query and as a key.
        position: The position, from 0.
        token: The token's id.
        against: A second key or token to compare with.
        exact: Measure all heads, or only those given as (layer, head), from 0.
        table: The table of the analysis, where it exists already.
        dark: Whether to draw on a dark background.

    Returns:
        The chart; `viz.save` writes it to a file.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> chart = xformer.viz.head_effects(reading, score="anti_diagonal")
    """
    scores = head_scores(reading, look=look, without_first=without_first)
    if score not in scores or score in ("layer", "head"):
        raise InputError(f"A head has the scores {', '.join([TASK, *SCORES, 'induction'])}, got {score!r}.")
    if table is None:
        table = effects_table(reading, position=position, token=token, against=against, exact=exact)
    goal = minimal_pairs.title(reading, minimal_pairs.of_run(reading, position, token, against))
    frame = table.merge(scores[["layer", "head", score]], on=["layer", "head"]).rename(columns={score: "score"})
    frame = frame.astype({"score": float}).dropna(subset="score")
    frame = frame.assign(
        name=[
            head_title(path, head, is_pair=reading.is_pair)
            for path, head in zip(frame["layer"], frame["head"], strict=True)
        ],
        effect=frame["measured"].fillna(frame["estimated"]),
        known=["estimated" if missing else "measured" for missing in frame["measured"].isna()],
    )
    known = frame if bool(frame["measured"].isna().all()) else frame.dropna(subset="measured")
    strong = known.sort_values("effect", key=lambda effect: -effect.abs(), kind="stable").head(NAMED)
    alike = known.sort_values("score", ascending=False, kind="stable").head(NAMED)
    named = pd.concat([strong, alike]).drop_duplicates("name")
    points = named[["score", "effect"]].to_numpy(dtype=float)
    named = named.assign(side=place_labels(points, named["name"].tolist(), width=WIDTH, height=HEIGHT, size=FONT))
    ink = theme.pick(theme.TEXT, dark)
    title = score_title(score)
    base = alt.Chart(frame).encode(
        alt.X("score:Q", title=f"{title} score: share of its attention"),
        alt.Y("effect:Q", title=["added by silencing it", f"to the {goal}"]),
        tooltip=["name:N", alt.Tooltip("score:Q", title=f"{title} score", format=".3f"),
                 alt.Tooltip("estimated:Q", format="+.4f"), alt.Tooltip("measured:Q", format="+.4f")],
    )  # fmt: skip
    hue = theme.pick(theme.PART_HUES["attention"], dark)
    return layered(
        alt.Chart(pd.DataFrame({"at": [0.0]})).mark_rule(color=ink, strokeDash=[4, 3]).encode(alt.Y("at:Q")),
        base.transform_filter("datum.known == 'measured'").mark_circle(size=70, color=hue, opacity=0.8),
        base.transform_filter("datum.known == 'estimated'").mark_point(size=50, color=hue, opacity=0.8),
        *label_layers(alt.Chart(named).encode(alt.X("score:Q"), alt.Y("effect:Q")), "name:N", size=FONT, color=ink),
        height=HEIGHT,
    )
