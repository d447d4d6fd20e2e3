"""“The code for this picture” where several players are in it: the lines that let them play again, and the numbers as a file.

footer(match, ["from xformer.viz.decoding import top_chart", "top_chart(…)"], table, "top")
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from pages.compare.match import Match, reads
from pages.shared.models import shown_path
from pages.shared.notebook import code_and_data
from pages.shared.resources import MASKS
from xformer.decoding import GREEDY


def preamble(match: Match, *, plays: bool = True) -> list[str]:
    """The lines that make the `players` and, unless told otherwise, their `plays`; run them in the project's folder."""
    has_sampling = any(seat.sampling != GREEDY for seat in match.seats)
    has_changes = any(seat.changes for seat in match.seats)
    lines = ["import xformer", f"from xformer.analysis.players import Player{', play' if plays else ''}"]
    lines += ["from xformer.decoding import Sampling"] if has_sampling else []
    lines += ["from xformer.interventions import all_edits, parse"] if has_changes else []
    loaded: dict[str, str] = {}
    made = []
    for letter, seat, name in zip(match.letters, match.seats, match.names, strict=True):
        path = shown_path(seat.model)
        if path not in loaded:
            loaded[path] = f"model_{letter.lower()}"
            lines.append(f"{loaded[path]} = xformer.load({path!r})")
        model = loaded[path]
        changes = [f"xformer.edits.set_causal({seat.mask == 'causal'})"] if seat.mask != MASKS[0] else []
        changes += [f"*all_edits(parse({','.join(seat.changes)!r}, {model}.config))"] if seat.changes else []
        arguments = [repr(name), f"{model}.model", f"{model}.task"]
        arguments += [f"edits=({', '.join(changes)},)"] if changes else []
        if seat.sampling != GREEDY:
            arguments.append(f"sampling={seat.sampling!r}")
            arguments.append(f"seed={seat.seed}")
        made.append(f"    Player({', '.join(arguments)}),")
    lines += ["players = [", *made, "]"]
    if not plays:
        return lines
    sources = [list(reads(seat, match.source)) for seat in match.seats]
    if all(source == sources[0] for source in sources):
        lines.append(f"sources = [{sources[0]}] * {len(sources)}")
    else:
        lines.append(f"sources = {sources}")
    forced = ", forced=True" if match.forced else ""
    return [*lines, f"plays = [play(p, p.task.example(s){forced}) for p, s in zip(players, sources)]"]


def footer(match: Match, lines: Sequence[str], table: pd.DataFrame | None, name: str, *, plays: bool = True) -> None:
    """Of a picture: its code, and its data as CSV. `lines` follow the preamble and end in the picture."""
    code_and_data([*preamble(match, plays=plays), *lines], table, name, "compare")
