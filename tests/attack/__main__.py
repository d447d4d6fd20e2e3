"""`python -m tests.attack`: attack a local server on 127.0.0.1, print the outcomes, and fail on a finding.

python -m tests.attack                  all trials, a few minutes
python -m tests.attack --short          the trials of the test suite
python -m tests.attack --only links     only the kinds whose name contains a text
"""

from __future__ import annotations

import sys

from tests.attack import classroom, damaged, strangers
from tests.trials import options_of, try_all

if __name__ == "__main__":
    options = options_of("python -m tests.attack")
    with strangers.served() as ground:
        sys.exit(try_all([*damaged.KINDS, *classroom.kinds(ground), *strangers.kinds(ground)], options))
