"""`python -m xformer lesson`: make an HTML file of a lesson."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from xformer.cli.output import checked_page, say


def run_lesson(options: Namespace) -> None:
    """Build the page of a lesson; a lesson on a preset is trained first."""
    out = checked_page(options.out or str(Path(options.file).with_suffix(".html")), "--out")
    from xformer.live.lesson import build  # only now: what was typed may be wrong

    build(options.file, out)
    say(f"{out.stat().st_size:,} bytes, written to {out}")
