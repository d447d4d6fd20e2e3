"""The curves of a comparison on a sheet: how undecided each player is, and how far apart each pair, step below step.

curves(sheet, y, data, hues, steps, cell)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xformer.viz import theme
from xformer.viz.charts import Sheet

NAMES, LANE, TRACK, PAD = 176, 32, 62, 8
"""CSS pixels: of the column of names, of a lane, of a curve's lane, and above and below the curve in it."""
DASHES = ("", "8 3", "3 3", "8 3 2 3", "2 2", "12 4")


def named(sheet: Sheet, y: float, name: str, hue: str = "", tall: float = LANE) -> None:
    """The name of a lane, on two lines where it is long."""
    if hue:
        sheet.box(0, y + tall / 2 - 6, 12, 12, hue, corner=4)
    most, left = (24 if hue else 26), (19 if hue else 0)
    cut = name.rfind(" ", 0, most + 1) if len(name) > most else -1
    lines = [name] if cut < 0 else [name[:cut], name[cut + 1 :]]
    for number, text in enumerate(lines):
        short = text if len(text) <= most + 2 else f"{text[: most + 1]}…"
        sheet.words(
            left, y + tall / 2 + 14 * (number - (len(lines) - 1) / 2), short, sheet.ink, 13 if len(lines) == 1 else 12
        )


def curves(sheet: Sheet, y: float, data: dict[str, Any], hues: Sequence[str], steps: int, cell: float) -> float:
    """The curves; what comes back is where they end."""
    pairs = data["pairs"]
    own = [sheet.ink] if len(pairs) == 1 else [theme.pick(hue, sheet.dark) for hue in data["pair_hues"]]
    entropies = [
        (player["entropy"], hue, max(1.0, 5.5 - 1.3 * index), "")
        for index, (player, hue) in enumerate(zip(data["players"], hues, strict=True))
    ]
    apart = [(pair["kl"], own[i % len(own)], 2.5, DASHES[i % len(DASHES)]) for i, pair in enumerate(pairs)]
    for name, lines in (("entropy, bits", entropies), ("KL, nats", apart)):
        named(sheet, y, name, tall=TRACK if name.startswith("e") else TRACK - 22)
        top = max(0.1, *(value for values, *_ in lines for value in values if value is not None), 0.1)
        low, high = y + TRACK - PAD, y + PAD
        for value, place in ((top, high), (0, low)):
            sheet.words(
                NAMES - 6,
                place,
                "0" if not value else f"{top:.0f}" if top >= 10 else f"{top:.2g}",
                sheet.muted,
                11,
                align="right",
            )
            sheet.line([(NAMES, place), (NAMES + steps * cell, place)], sheet.rule)
        for values, hue, thick, dash in lines:
            piece: list[tuple[float, float]] = []
            for at, value in enumerate([*values, None]):
                x = NAMES + (at + 0.5) * cell
                if value is not None:
                    piece.append((x, low - (low - high) * value / top))
                    sheet.dot(*piece[-1], thick / 2 + 1.2, hue, level=1)
                    continue
                if at < len(values):
                    sheet.words(x, high + 6, "∞", hue, 14, bold=True, align="center", level=1)
                if len(piece) > 1:
                    sheet.line(piece, hue, thick, dash=dash, level=1)
                piece = []
        y += TRACK
    for index, pair in enumerate(pairs):
        words = f"{pair['one'].split(' ')[0]}‖{pair['other'].split(' ')[0]}"
        sheet.words(28 * (index % 5), y - 22 + 13 * (index // 5), words, own[index % len(own)], bold=True)
    return y
