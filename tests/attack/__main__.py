"""`python -m tests.attack`: attack a server of one's own on 127.0.0.1, print what came of it, and fail on a finding.

python -m tests.attack                  the long form, some minutes
python -m tests.attack --short          what the test suite does
python -m tests.attack --only links     the kinds whose name holds a word
"""

from __future__ import annotations

import sys

from tests.attack import damaged, strangers
from tests.trials import options_of, try_all

if __name__ == "__main__":
    options = options_of("python -m tests.attack")
    with strangers.served() as ground:
        sys.exit(try_all([*damaged.KINDS, *strangers.kinds(ground)], options))
