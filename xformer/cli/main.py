"""From what was typed to one command, and from what went wrong to one sentence and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from xformer.cli.parser import parser
from xformer.cli.say import complain
from xformer.errors import XformerError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it succeeded, 1 with one sentence on stderr when it did not, 2 for a wrong call."""
    options = parser().parse_args(arguments)
    try:
        command = import_module(f"xformer.cli.{options.command}")  # only now: a help text need not wait for it
        return command.run(options) or 0
    except BrokenPipeError:  # whoever read along has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it closes the pipe
        return 141
    except XformerError as error:
        complain(str(error))
        return 1
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}." if error.filename and error.strerror else str(error))
        return 1
    except KeyboardInterrupt:
        return 130
