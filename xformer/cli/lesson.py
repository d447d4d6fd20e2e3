"""`python -m xformer lesson`: make an HTML file of a lesson."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from xformer.cli.output import say
from xformer.errors import InputError


def run_lesson(options: Namespace) -> None:
    """Build the page of a lesson; a lesson on a preset is trained first."""
    wanted = options.out or str(Path(options.file).with_suffix(".html"))
    out = Path(wanted)
    if out.suffix.lower() not in (".html", ".htm") or wanted.endswith((os.sep, "/")) or out.is_dir():
        raise InputError(f"--out must name a file ending in .html, got {wanted!r:.200}; for example lesson.html.")
    from xformer.live.lesson import build  # only now: what was typed may be wrong

    build(options.file, out)
    say(f"{out.stat().st_size:,} bytes, written to {out}")
