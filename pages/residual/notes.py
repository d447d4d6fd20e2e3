"""What to notice in the residual stream: when each output is decided, who adds the most, and what a lens cannot see.

Every note is computed and can be left out: nothing is said to be decided that a guess would do as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from pages.shared.escape_markdown import escape_markdown
from pages.shared.layout import run_title, what_to_notice
from xformer.analysis.logit_lens import decided
from xformer.formatting import percent

SURE = 0.5
"""A probability from which on an output counts as decided …"""
OVER_CHANCE = 3.0
"""… and so many times what a guess among all tokens would have."""
_BLIND = (
    "A lens can be blind: early layers may hold the answer in a direction that the unembedding does not read. Another token in "
    "an early row may mean “not yet written in the output’s language” rather than “not yet known”."
)


def lens_notes(frames: Mapping[str, pd.DataFrame], n_tokens: int, *, judged: bool, one: str = "token") -> None:
    """The notes on the `lens` frames of all runs of a model with so many tokens, or classes (`one` of them)."""
    notes = [
        when_decided(
            frame, n_tokens, "" if len(frames) == 1 else f"{escape_markdown(run_title(name))}: ", judged=judged, one=one
        )
        for name, frame in frames.items()
    ]
    what_to_notice([*notes, _BLIND.replace("token", one)])


def when_decided(frame: pd.DataFrame, n_tokens: int, prefix: str, *, judged: bool = True, one: str = "token") -> str:
    """From which step on a run's outputs stay right (or, where nothing is right, stay what they end as), in a sentence.

    Only outputs that end with a probability that no guess would have are said to be decided.
    """
    last = frame.loc[frame["depth"] == frame["depth"].max()].set_index("position")
    if not judged:  # what each output ends as takes the place of the right answer
        frame = frame.assign(right=frame["token"] == frame["position"].map(last["token"]))
    least = max(SURE, min(OVER_CHANCE / n_tokens, 0.9))
    sure = last.index[last["probability"] >= least]
    settled = decided(frame)
    n_right, settled = len(settled), settled.loc[settled["position"].isin(sure)]
    total, unsure = len(last), n_right - len(settled)
    what = "stay what they end as" if not judged else "become right for good"
    if settled.empty:
        mean = percent(last["probability"].mean(), 0)
        share = f"the likeliest {one} gets {mean}{' on average' if total > 1 else ''} in the end"
        if not judged:
            return f"{prefix}Nothing is decided: {share}, and none gets {least:.0%}."
        if n_right:
            some = f"{n_right} of {total} outputs {'is' if n_right == 1 else 'are'} right, but not with {least:.0%} or more"
            return f"{prefix}{some}, so none counts as decided: {share}."
        return f"{prefix}No output is right in the end, so none is ever decided for good."
    if total == 1:
        verb = "becomes right for good" if judged else "stays what it ends as"
        return f"{prefix}The output {verb} after **{settled.iloc[0]['point']}**."
    counts = Counter(settled["point"])
    order = list(dict.fromkeys(frame.sort_values("depth")["point"]))
    found = ", ".join(f"{counts[point]} after **{point}**" for point in order if counts[point])
    wrong = total - n_right
    rest = f"; {unsure} more, but with less than {least:.0%} in the end" if unsure else ""
    rest += f"; {wrong} end{'s' if wrong == 1 else ''} wrong" if wrong else ""
    return f"{prefix}Of {total} outputs, these {what}: {found}{rest}."


def parts_notes(parts: pd.DataFrame, position: int) -> None:
    """The notes on the `attribution` parts of the output at `position`."""
    what_to_notice(who_adds(parts, position))


def who_adds(parts: pd.DataFrame, position: int) -> list[str]:
    """Which part adds the most to an output and which takes away the most, as far as any does."""
    named = parts.loc[parts["kind"] != "bias"]
    best, worst = named.nlargest(1, "contribution").iloc[0], named.nsmallest(1, "contribution").iloc[0]
    notes = []
    if best["contribution"] > 0:
        against = (
            f", and **{worst['part']}** takes away the most ({_signed(worst['contribution'])})"
            if worst["contribution"] < 0
            else ""
        )
        notes.append(
            f"At position {position}, **{best['part']}** adds the most ({_signed(best['contribution'])}){against}."
        )
    elif worst["contribution"] < 0:
        notes.append(
            f"At position {position} no part adds anything, and **{worst['part']}** takes away the most "
            f"({_signed(worst['contribution'])})."
        )
    else:
        notes.append(f"At position {position} no part adds anything or takes anything away.")
    if best["contribution"] > 0 and best["kind"] in ("attention", "feed_forward"):
        how = "Silence that head" if best["head"] >= 0 else "Mute that layer"
        where = "Attention" if best["kind"] == "attention" else "Feed-forward"
        notes.append(
            f"{how} on the {where} screen and come back: its bar is gone, and bars of later layers may move, because they "
            "read what it wrote."
        )
    return notes


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
