"""`python -m xformer trace`: record one run and write all its activations as .safetensors, or as .npz for NumPy."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from xformer.cli.say import say
from xformer.errors import InputError


def run(options: Namespace) -> None:
    """Record, write, and say what was written where."""
    out = _checked_out(options.out, options.dir)
    from xformer.checkpoints import load  # only now: what was typed may be wrong
    from xformer.trace import record
    from xformer.trace_file import save_trace

    checkpoint = load(options.dir)
    if checkpoint.task is None:
        raise InputError(f"The checkpoint {options.dir} names no task, so its input cannot be read.")
    task = checkpoint.task
    example = task.example(task.vocabulary.read(options.input), max_len=checkpoint.config.max_len)
    recorded = record(checkpoint.model, example.stream, example.target)
    if out.suffix == ".npz":
        recorded.save_npz(out)
    else:
        save_trace(recorded, out)
    predicted = recorded.logits[0].argmax(dim=-1)[example.labels[0] >= 0].tolist()
    say(f"input      {task.vocabulary.text(list(example.source))}")
    say(f"predicted  {task.vocabulary.text(predicted)}")
    say(f"{len(recorded.activations)} activations, {out.stat().st_size:,} bytes, written to {out}")


def _checked_out(out: str, model: str) -> Path:
    """The file to write. Raises `InputError` for the name of a folder, or of the very model that is to be looked at."""
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
