"""`python -m xformer trace`: record one run and write all its activations as .safetensors, or as .npz for NumPy."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from xformer.cli.say import say
from xformer.errors import InputError

if TYPE_CHECKING:
    from xformer.reading import Reading


def run(options: Namespace) -> None:
    """Record a run of our model or of an external one, write it, and print what was written where."""
    out = _checked_out(options.out, options.dir)
    from xformer.adapters.load import is_foreign  # only now: the options may be wrong
    from xformer.reading import read
    from xformer.trace import save_trace

    if out.suffix != ".npz" and is_foreign(Path(options.dir)):
        raise InputError("A trace of an external model is written as .npz; for example --out trace.npz.")
    reading = read(options.dir, options.input)
    if out.suffix == ".npz":
        reading.trace.save_npz(out)
    else:
        save_trace(reading.trace, out)
    say(f"input      {reading.subject.input.text(reading.example.source)}")
    if reading.has_logits:
        say(f"predicted  {_predicted(reading)}")
    say(f"{len(reading)} activations, {out.stat().st_size:,} bytes, written to {out}")


def _predicted(reading: Reading) -> str:
    """The likeliest token at each output that has an answer; where the text goes on, the likeliest next token."""
    tokens = reading.predicted
    if reading.open_output is not None and not reading.has_right_answer:
        tokens = (int(reading.logits[0, reading.open_output].argmax()),)
    return " ".join(reading.subject.labels[token] for token in tokens)


def _checked_out(out: str, model: str) -> Path:
    """The file to write. Raises `InputError` for the name of a folder, or of the model itself."""
    path = Path(out)
    is_folder = out.endswith((os.sep, "/")) or path.is_dir()
    if path.suffix not in (".safetensors", ".npz") or is_folder or (path.exists() and not path.is_file()):
        raise InputError(
            f"--out must name a file ending in .safetensors or .npz, got {out!r:.200}; for example trace.npz."
        )
    read = Path(model) / "model.safetensors" if os.path.isdir(model) else Path(model)
    if path.exists() and read.exists() and path.samefile(read):
        raise InputError(f"--out would write over the model itself, got {out!r:.200}; for example trace.safetensors.")
    return path
