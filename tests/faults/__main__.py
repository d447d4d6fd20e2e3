"""`python -m tests.faults`: disturb runs, resume them, and fail where one ends unlike an undisturbed run.

python -m tests.faults                  the long form, half an hour or so
python -m tests.faults --short          one or two trials of each kind
python -m tests.faults --only sweep     the kinds whose name holds a word
"""

from __future__ import annotations

import sys

from tests.faults.processes import KINDS
from tests.trials import options_of, try_all

if __name__ == "__main__":
    sys.exit(try_all(KINDS, options_of("python -m tests.faults")))
