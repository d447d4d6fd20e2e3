"""What there is to notice in a sweep, as far as its numbers show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from pages.shared.escape_markdown import escape_markdown
from xformer.training.stored_sweep import StoredSweep
from xformer.training.sweep_members import goal, words


def sweep_notes(sweep: StoredSweep, outcomes: pd.DataFrame) -> Iterator[str]:
    """Paragraphs of Markdown; nothing is said of models that nobody knows the end of."""
    known: list[dict[Any, Any]] = [one for one in outcomes.to_dict("records") if one["solved"] in (True, False)]
    solved = sorted((one for one in known if one["solved"]), key=lambda one: one["steps_to_solve"])
    n, share = len(outcomes), f"{100 * goal(sweep.entry):g}% of {sweep.entry.train['held_out']:,} held-out inputs"
    if not sweep.is_judged:
        yield "Nothing is right or wrong in how a text goes on: compare the held-out loss."
    elif not known:
        yield f"A model has solved its task once it gets {share} right; none has come so far, or to its end."
    else:
        rest = f", {n - len(known)} are not decided" if n > len(known) else ""
        yield f"**{len(solved)} of {n} models** got {share} right{rest}."
    if solved and solved[0]["steps_to_solve"] < solved[-1]["steps_to_solve"]:
        first, last = solved[0]["steps_to_solve"], solved[-1]["steps_to_solve"]
        yield (
            f"The first was **{escape_markdown(solved[0]['member'])}** at step {first:,.0f}, the last of them "
            f"**{escape_markdown(solved[-1]['member'])}** at step {last:,.0f}: {last / first:.1f} × as many."
        )
    names = list(sweep.members[0].values)
    if names == ["seed"]:
        yield "They differ in nothing but their seed: the dice for the first weights, and for the examples that they are shown."
    for name in names:
        if name != "seed":
            yield from _by_setting(known, name)


def _by_setting(known: Sequence[dict[Any, Any]], name: str) -> Iterator[str]:
    """Where all of one value solved the task, and none of another."""
    groups: dict[float, list[bool]] = defaultdict(list)
    for one in known:
        groups[one[name]].append(one["solved"])
    all_of = [f"{value:g}" for value, solved in groups.items() if len(solved) > 1 and all(solved)]
    none_of = [f"{value:g}" for value, solved in groups.items() if len(solved) > 1 and not any(solved)]
    if all_of and none_of:
        yield f"With a {words(name)} of {', '.join(all_of)} all that are decided solved it, with {', '.join(none_of)} none."
