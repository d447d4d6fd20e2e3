"""All colours, as plain data for any chart: heads, colour scales, verdicts and parts of the model.

Charts are drawn in the colours of the light theme, each of which has a counterpart in the dark one; `viz.themed` exchanges
them in a finished chart, where it is shown or saved. A scale is a sequence of stops:

    alt.Color("weight:Q", scale=alt.Scale(**vega_scale(SEQUENTIAL, 0, 1)))

Colour distances are measured in OKLab (Ottosson 2020), which is perceptually uniform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

DARK: dict[str, str] = {}
"""The counterpart in the dark theme of each colour of the light theme."""


def paired(light: str, dark: str) -> str:
    """Return a colour of the light theme, with its counterpart in the dark theme. Raises ValueError if it has another one."""
    if DARK.setdefault(light, dark) != dark:
        raise ValueError(
            f"{light} is {DARK[light]} in the dark theme, not {dark}; change the light colour by one unit."
        )
    return light


def pick(colour: str, dark: bool) -> str:
    """Return a colour of the light theme, or its counterpart in the dark theme."""
    return DARK.get(colour, colour) if dark else colour


BACKGROUND = paired("#ffffff", "#10141c")
SECONDARY_BACKGROUND = paired("#f1f3f8", "#1b212d")
TEXT = paired("#131722", "#eef1f7")
PRIMARY = paired("#2557d6", "#426fe2")
"""As in .streamlit/config.toml; a test compares the two."""

# Found by simulated annealing: each hue has a contrast of at least 3 : 1 with its background, and the smallest OKLab distance
# among the first 4, 8 and 12 is maximised, for normal vision and under simulated protanopia, deuteranopia and tritanopia
# (Machado et al. 2009). The order matters: earlier hues are further apart.
HEAD_HUES = tuple(paired(*hues) for hues in (
    ("#425fe1", "#7e9dfe"), ("#c64a00", "#f29a78"), ("#0ca58e", "#1df1d0"), ("#790050", "#c35a93"),
    ("#01696d", "#0fc8ce"), ("#b38d23", "#f5c33a"), ("#302f96", "#6975dc"), ("#4a4400", "#948802"),
    ("#9970fc", "#c2b2fe"), ("#d765ce", "#ffc9f8"), ("#9144af", "#ad8eba"), ("#8a463e", "#e26a5f"),
))  # fmt: skip
"""One hue per head, on every screen; beyond twelve heads they repeat."""

MODEL_HUES = tuple(
    map(paired, ("#1a058a", "#e65b51", "#645099", "#91394b"), ("#4463fd", "#d2370a", "#afc4fb", "#c6838d"))
)
"""One hue per model of a comparison, found in the same way: distinct from each other and from heads 1 to 4."""

SEQUENTIAL = tuple(map(paired,
    ("#f6fbfc", "#cbefef", "#9de3e0", "#7ad0d7", "#58bccf", "#34a8c9", "#1692c2", "#0a7bba", "#1763b1", "#244ba2",
     "#283788", "#26246d", "#201253"),
    ("#161923", "#1f2545", "#2b306a", "#33418a", "#2c5aa1", "#1b73b5", "#008ec0", "#00a8c4", "#00c0c4", "#53d4ba",
     "#91e3ae", "#c8efaa", "#fafab3")))  # fmt: skip
"""For probabilities: from the background (0) to the strongest contrast (1), in steps of equal distance."""

DIVERGING = tuple(map(paired,
    ("#832e00", "#a84700", "#cd610c", "#de894a", "#ecaf7c", "#f0d4b4", "#f5f5f6", "#bcdbf6", "#84c0ed", "#57a0de",
     "#2f7fcb", "#1c5ea8", "#0a3f86"),
    ("#ffd592", "#f9a757", "#db7f36", "#b15e25", "#84441b", "#52331e", "#222325", "#273c5a", "#295893", "#307bbc",
     "#3da2e0", "#6fc7f0", "#aaeafe")))  # fmt: skip
"""For signed data centred on zero: orange is negative, blue is positive, and zero is close to the background."""

MASKED = paired("#d9dce3", "#3a404c")
"""A masked cell: grey, hatched where the chart supports it, never a colour of a scale."""

BROKEN = "#d6006e"
"""A cell that is not a number: a warning colour, in both themes."""

PART_HUES = {
    "tokens": paired("#5a6376", "#a5afc2"),
    "embedding": paired("#00756f", "#4fd0c0"),
    "positions": paired("#a15c00", "#f0b454"),
    "attention": paired("#2657d6", "#86a8ff"),
    "feed_forward": paired("#8b3fa8", "#d79bf0"),
    "norm": paired("#5a6376", "#a5afc2"),
    "sum": paired("#5a6376", "#a5afc2"),
    "output": paired("#b02a5b", "#ff8fb4"),
}
"""One hue per kind of part, in the diagram and wherever parts are compared."""


@dataclass(frozen=True)
class Verdict:
    """The appearance of right or wrong: a colour, and a mark and a shape that work without colour.

    `vega` is the shape of a point in Vega.
    """

    colour: str
    mark: str
    word: str
    vega: str


RIGHT = Verdict(paired("#00708f", "#4cc9e6"), "✓", "right", "circle")
WRONG = Verdict(paired("#c2410c", "#ff9a5c"), "✗", "wrong", "cross")


def in_both_themes(colours: Any) -> Any:
    """Return colours of the light theme as a widget receives them, with their counterparts in the dark theme.

    Args:
        colours: A colour, a scale, or a sequence or dictionary of colours and scales.

    Returns:
        A pair (light, dark) for each colour, and a pair of lists of stops for each scale.

    Example:
        >>> in_both_themes({"ground": BACKGROUND, "hues": HEAD_HUES[:1]})
        {'ground': ('#ffffff', '#10141c'), 'hues': [('#425fe1', '#7e9dfe')]}
    """
    if isinstance(colours, Mapping):
        return {name: in_both_themes(one) for name, one in colours.items()}
    if isinstance(colours, str):
        return colours, pick(colours, True)
    pairs = [in_both_themes(one) for one in colours]
    return tuple(map(list, zip(*pairs, strict=True))) if colours in (SEQUENTIAL, DIVERGING) else pairs


def head_hue(head: int) -> str:
    """Return the hue of a head, counted from 0."""
    return HEAD_HUES[head % len(HEAD_HUES)]


def head_hues(n_heads: int) -> list[str]:
    """Return the hues of the first `n_heads` heads, as the range of a categorical scale."""
    return [head_hue(head) for head in range(n_heads)]


def part_hue(kind: str, head: int) -> str:
    """Return the hue of a head, counted from 0, or of a kind of part if `head` is negative."""
    return head_hue(head) if head >= 0 else PART_HUES[kind]


def model_hues(n: int) -> list[str]:
    """Return the hues of the first `n` models; beyond four they repeat."""
    return [MODEL_HUES[index % len(MODEL_HUES)] for index in range(n)]


def vega_scale(stops: Sequence[str], low: float, high: float) -> dict[str, Any]:
    """Return the keywords of an `alt.Scale` with these stops over the fixed domain from `low` to `high`.

    Values outside are clamped. Raises ValueError unless `low` < `high`.
    """
    if not low < high:
        raise ValueError(f"A colour scale runs from a lower to a higher value, got {low} and {high}; try 0 and 1.")
    domain = [low + (high - low) * index / (len(stops) - 1) for index in range(len(stops))]
    return {"type": "linear", "domain": domain, "range": list(stops), "clamp": True, "interpolate": "rgb"}


def signed_limit(values: Float[np.ndarray, "*shape"]) -> float:
    """Return the largest finite magnitude, for a diverging scale from −limit to limit; 1 if all values are zero."""
    magnitudes = np.abs(np.asarray(values, dtype=np.float64))
    return float(np.max(magnitudes, where=np.isfinite(magnitudes), initial=0.0)) or 1.0


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21 (WCAG 2.2)."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def blend(one: str, other: str, share: float) -> str:
    """Mix two colours in sRGB, as CSS does, in both themes; `share` is the share of the second."""

    def mixed(*ends: str) -> str:
        pairs = ((int(ends[0][i : i + 2], 16), int(ends[1][i : i + 2], 16)) for i in (1, 3, 5))
        return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)

    return paired(mixed(one, other), mixed(pick(one, True), pick(other, True)))


def resample(stops: Sequence[str], n: int) -> list[str]:
    """Return `n` colours at equal distances along the stops, interpolated in OKLab."""
    labs = np.stack([oklab(stop) for stop in stops])  # [stop, Lab]
    at = np.linspace(0, len(stops) - 1, n)  # [n]
    mixed = np.stack([np.interp(at, np.arange(len(stops)), labs[:, axis]) for axis in range(3)], axis=-1)  # [n, Lab]
    linear = np.clip((mixed @ _FROM_LAB.T) ** 3 @ _TO_RGB.T, 0, 1)  # [n, RGB]
    coded = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return ["#" + "".join(f"{round(255 * value):02x}" for value in colour) for colour in coded.tolist()]


def linear_rgb(colour: str) -> Float[np.ndarray, "3"]:
    """Convert "#rrggbb" to linear RGB, each channel from 0 to 1."""
    coded = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


def oklab(colour: str) -> Float[np.ndarray, "3"]:
    """Convert "#rrggbb" to OKLab: lightness and two colour axes."""
    return _TO_LAB @ np.cbrt(_TO_LMS @ linear_rgb(colour))


def grey_of(colour: str) -> str:
    """Return the grey with the luminance of a colour."""
    linear = _luminance(colour)
    level = round(255 * (linear * 12.92 if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055))
    return f"#{level:02x}{level:02x}{level:02x}"


def _luminance(colour: str) -> float:
    return float(linear_rgb(colour) @ [0.2126, 0.7152, 0.0722])


_TO_LMS = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
_TO_LAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip
_FROM_LAB = np.linalg.inv(_TO_LAB)
_TO_RGB = np.linalg.inv(_TO_LMS)
