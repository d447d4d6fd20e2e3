"""A picture as one file that opens anywhere, with the network off: the script, its bytes, and a caption on what it shows."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from xformer.files import write_atomically
from xformer.reading import Reading, Recipe
from xformer.viz.packing import AnyLayer, exact_weights, head_message, pack, pattern_layers, rider
from xformer.widgets.scripts import script, style, themes

ROOM = 2_150_000
"""Bytes of a view in its page: written as base64 they become a third more, and the page stays below 3 MB."""


def view_page(
    reading: Reading,
    changed: Reading | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    cell: tuple[int | None, int | None] = (None, None),
    changes: str = "",
    caption: Sequence[str] = (),
) -> str:
    """The attention view of a reading, beside that of a changed run where there is one, as the text of an HTML file.

    Every head is drawn; exact weights are there for the chosen one, and for all others where they have room. Below it stands
    which model read what, what `changes` were made, and the further lines of `caption`.
    """
    layers, other = pattern_layers(reading), None if changed is None else pattern_layers(changed)
    lines = [about(reading, changes or (recipe_of(changed) if changed else "")), *caption]
    return view_page_of(layers, other, layer=layer, head=head, cell=cell, caption=lines)


def save_html(reading: Reading, path: str | Path, changed: Reading | None = None, **chosen: Any) -> None:
    """Write the interactive view of a reading as one HTML file that opens with the network off.

    Args:
        reading: The run.
        path: The file.
        changed: A second run of the same input, drawn beside the first with their difference.
        chosen: `layer` and `head` are enlarged first, from 0; `cell` is the locked (query, key).

    Raises:
        OSError: The disk refuses.

    Example:
        >>> import tempfile, xformer
        >>> from pathlib import Path
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     xformer.save_html(reading, f"{folder}/view.html", layer=2, head=1)
        ...     Path(f"{folder}/view.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        True
    """
    write_atomically(Path(path), view_page(reading, changed, **chosen).encode())


def view_page_of(
    layers: Sequence[AnyLayer],
    changed: Sequence[AnyLayer] | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    cell: tuple[int | None, int | None] = (None, None),
    caption: Sequence[str] = (),
) -> str:
    """The same of layers that are packed already as `xformer.viz.packing.pack` takes them."""
    runs = [layers] if changed is None else [layers, changed]
    packed = pack(layers, changed, selected=(layer, head))
    planes, exact = packed.message("view"), [packed.head("view")]
    others = [(at, one) for at, kept in enumerate(layers) for one in range(kept.shape[0])]
    if len(exact[0]) * len(others) <= ROOM - len(planes):
        of = {"view": "view", "content": packed.content}
        exact = [head_message(np.stack([exact_weights(run[at], n) for run in runs]), (at, n), **of) for at, n in others]
    blocks = b"".join(struct.pack("<I", len(one)) + one for one in exact)
    data = {"planes": planes + rider((layer, head), cell), "exact": blocks}
    return stand_alone_page("attention_view", "view", data, caption)


def film_page(packed: bytes, caption: Sequence[str] = ()) -> str:
    """The player of a training, of what `xformer.viz.timeline.pack_film` packed."""
    return stand_alone_page("training_player", "player", {"data": packed}, caption)


def comparison_page(data: dict[str, object], caption: Sequence[str] = ()) -> str:
    """A comparison step by step, of what `xformer.viz.comparison.pack_steps` packed."""
    whole = {"order": "", "start": 0, "detail": True} | data
    return stand_alone_page("step_ruler", "ruler", {"data": json.dumps(whole).encode()}, caption)


def scene_page(packed: bytes, caption: Sequence[str] = ()) -> str:
    """A run as an animation, of what `xformer.widgets.scene_data` packed."""
    return stand_alone_page("scene", "scene", {"data": packed}, caption)


def sum_page(packed: bytes, caption: Sequence[str] = ()) -> str:
    """Token + position = sum, of what `embedding_sum.embedding_sum_data` packed."""
    return stand_alone_page("embedding_sum", "sum", {"data": packed}, caption)


def about(reading: Reading, changes: str = "") -> str:
    """One line on what is shown: the model, its input, and what was changed beside it."""
    line = f"{reading.subject.name} reads “{' '.join(reading.tokens)}”"
    return f"{line}; beside it the same with {changes}" if changes else line


def recipe_of(changed: Reading) -> str:
    """What was changed in a run, as far as its recipe or its edits tell."""
    changes = changed.recipe.changes if isinstance(changed.recipe, Recipe) else ""
    return changes or ", ".join(type(edit).__name__ for edit in changed.edits)


def stand_alone_page(
    widget: str,
    place: str,
    data: dict[str, bytes],
    caption: Sequence[str] = (),
    *,
    title: str = "",
    styles: Sequence[str] = (),
) -> str:
    """The text of an HTML file in which a widget draws `data`.

    Args:
        widget: A folder of `xformer/widgets` with an entry point "page".
        place: The id of the element that the widget draws in.
        data: Bytes that the script finds by the id of their element.
        caption: Lines below the picture; the first one is the title, unless another is given.
        title: The title.
        styles: Other widgets that this one contains.
    """
    light, dark = themes()
    written = "\n".join(
        f'<script type="application/octet-stream" id="{name}">{base64.b64encode(value).decode()}</script>'
        for name, value in data.items()
    )
    lines = "".join(f"<p>{escape(line)}</p>" for line in caption)
    title = escape(title or next(iter(caption), "xformer"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
body {{ margin: 0 auto; padding: 20px clamp(12px, 3vw, 40px); max-width: 1500px; background: var(--st-background-color);
  color: var(--st-text-color); font-family: var(--st-font); }}
figure {{ margin: 0; }}
figcaption {{ margin-top: 18px; font-size: 14px; overflow-wrap: anywhere; }}
figcaption p {{ margin: 4px 0; }}
{"".join(map(style, [widget, *styles]))}
</style>
</head>
<body>
<figure><div id="{place}"></div><figcaption>{lines}</figcaption></figure>
{written}
<script type="module">
{script(widget, "page")}
</script>
</body>
</html>
"""
