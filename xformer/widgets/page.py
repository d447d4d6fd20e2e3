"""Stand-alone HTML pages of widgets, which work offline: the script, its data and a caption."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from xformer.files import write_atomically
from xformer.reading import ReadCall, Reading
from xformer.viz.packing import PLAIN, AnyLayer, Look, exact_weights, head_message, pack, pack_selection, pattern_layers
from xformer.widgets.scripts import script, style, themes

ROOM = 2_150_000
"""Largest size of the data of a view, in bytes: base64 adds a third, and the page stays below 3 MB."""


def view_page(
    reading: Reading,
    changed: Reading | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    cell: tuple[int | None, int | None] = (None, None),
    look: Look = PLAIN,
    edits: str = "",
    caption: Sequence[str] = (),
) -> str:
    """Return the attention view of a reading, optionally next to a changed run, as the text of an HTML file.

    The selected head has exact weights, and so do all others if they fit in `ROOM`. `look` is that of `pack_selection`. The
    caption names the model, its input and the `edits`, followed by the lines of `caption`.
    """
    layers, other = pattern_layers(reading), None if changed is None else pattern_layers(changed)
    lines = [about(reading, edits or (edits_of(changed) if changed else "")), *caption]
    return view_page_of(layers, other, layer=layer, head=head, cell=cell, look=look, caption=lines)


def save_html(
    reading: Reading,
    path: str | Path,
    changed: Reading | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    cell: tuple[int | None, int | None] = (None, None),
) -> None:
    """Write the interactive view of a reading as one HTML file that opens with the network off.

    Args:
        reading: The run.
        path: The file.
        changed: A second run of the same input, drawn next to the first with the difference.
        layer: The layer of the enlarged head, from 0.
        head: The enlarged head, from 0.
        cell: The query and the key of the locked cell, from 0; no cell is locked by default.

    Raises:
        InputError: There is no such layer or head.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile, xformer
        >>> from pathlib import Path
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     xformer.save_html(reading, f"{folder}/view.html", layer=2, head=1)
        ...     Path(f"{folder}/view.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        True
    """
    write_atomically(Path(path), view_page(reading, changed, layer=layer, head=head, cell=cell).encode())


def view_page_of(
    layers: Sequence[AnyLayer],
    changed: Sequence[AnyLayer] | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    cell: tuple[int | None, int | None] = (None, None),
    look: Look = PLAIN,
    caption: Sequence[str] = (),
) -> str:
    """Return the same page for layers in the form that `xformer.viz.packing.pack` takes."""
    runs = [layers] if changed is None else [layers, changed]
    packed = pack(layers, changed, selected=(layer, head))
    planes, exact = packed.message("view"), [packed.head("view")]
    others = [(at, one) for at, kept in enumerate(layers) for one in range(kept.shape[0])]
    if len(exact[0]) * len(others) <= ROOM - len(planes):
        weights = ((head, np.stack([exact_weights(run[head[0]], head[1]) for run in runs])) for head in others)
        exact = [head_message(block, head, view="view", content=packed.content) for head, block in weights]
    blocks = b"".join(struct.pack("<I", len(one)) + one for one in exact)
    data = {"planes": planes + pack_selection((layer, head), cell, look), "exact": blocks}
    return stand_alone_page("attention_view", "view", data, caption)


def timeline_page(packed: bytes, caption: Sequence[str] = ()) -> str:
    """Return the training player for a timeline packed by `xformer.viz.timeline.pack_timeline`."""
    return stand_alone_page("training_player", "player", {"data": packed}, caption)


def comparison_page(data: dict[str, object], caption: Sequence[str] = ()) -> str:
    """Return the step-by-step comparison for data packed by `xformer.viz.generation.pack_steps`."""
    full = {"order": "", "start": 0, "detail": True} | data
    return stand_alone_page("step_ruler", "ruler", {"data": json.dumps(full).encode()}, caption)


def scene_page(packed: bytes, caption: Sequence[str] = ()) -> str:
    """Return the animation of a run for data packed by `xformer.widgets.scene_data`."""
    return stand_alone_page("scene", "scene", {"data": packed}, caption)


def sum_page(packed: bytes, caption: Sequence[str] = ()) -> str:
    """Return the animation “token + position = sum” for data packed by `embedding_sum.embedding_sum_data`."""
    return stand_alone_page("embedding_sum", "sum", {"data": packed}, caption)


def about(reading: Reading, edits: str = "") -> str:
    """Return a one-line caption: the model, its input, and the changes of the second run."""
    line = f"{reading.adapter.name} reads “{' '.join(reading.tokens)}”"
    return f"{line}; compared with the same run under {edits}" if edits else line


def edits_of(changed: Reading) -> str:
    """Describe the edits of a run as in links, or by their classes; may be empty."""
    edits = changed.code.edits if isinstance(changed.code, ReadCall) else ""
    return edits or ", ".join(type(edit).__name__ for edit in changed.edits)


def stand_alone_page(
    widget: str,
    place: str,
    data: dict[str, bytes],
    caption: Sequence[str] = (),
    *,
    title: str = "",
    styles: Sequence[str] = (),
) -> str:
    """Return the text of an HTML file in which a widget draws `data`.

    Args:
        widget: A folder of `xformer/widgets` with an entry point "page".
        place: The id of the element that the widget draws in.
        data: The data of the script, as bytes by element id.
        caption: The lines below the widget; the first one is the default title.
        title: The title of the page.
        styles: Other widgets whose styles are needed.
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
