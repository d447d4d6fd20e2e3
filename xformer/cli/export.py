"""`python -m xformer export`: the attention view of one run as a single HTML file that opens anywhere, with the network off."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from pathlib import Path

from xformer.cli.say import say
from xformer.errors import InputError
from xformer.files import write_atomically


def run(options: Namespace) -> None:
    """Read, draw, write, and say what was written where."""
    out = Path(options.out)
    if out.suffix.lower() not in (".html", ".htm") or options.out.endswith((os.sep, "/")) or out.is_dir():
        raise InputError(f"--out must name a file ending in .html, got {options.out!r:.200}; for example view.html.")
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", options.head, re.ASCII)
    if not found:
        raise InputError(f"--head must be a layer and a head, both from 1, got {options.head!r:.40}; for example 1.1.")
    layer, head = int(found[1]) - 1, int(found[2]) - 1
    from xformer.reading import read  # only now: what was typed may be wrong
    from xformer.widgets.page import view_page

    original = read(options.model, options.input)
    changed = read(options.model, options.input, changes=options.changes) if options.changes else None
    if not (
        0 <= layer < len(original.attention)
        and 0 <= head < original.subject.shape.heads[original.attention[layer].path]
    ):
        raise InputError(f"--head must be one of the model's heads, got {options.head}; for example 1.1.")
    write_atomically(out, view_page(original, changed, layer=layer, head=head, changes=options.changes).encode())
    say(f"{out.stat().st_size:,} bytes, written to {out}")
