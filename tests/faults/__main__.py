"""`python -m tests.faults`: disturb runs, resume them, and fail if one ends differently from an undisturbed run.

python -m tests.faults                  all trials, about half an hour
python -m tests.faults --short          one or two trials of each kind
python -m tests.faults --only sweep     only the kinds whose name contains a text
"""

from __future__ import annotations

import sys

from tests.faults.processes import KINDS
from tests.trials import options_of, try_all

if __name__ == "__main__":
    sys.exit(try_all(KINDS, options_of("python -m tests.faults")))
