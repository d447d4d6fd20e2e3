"""What can be said about a run in numbers: one call on a `Reading`, or on several, makes a table.

    xformer.analysis.head_scores(reading)

`xformer.viz` has the picture of a table under the same name.
"""

from xformer.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "attribution": "logit_attribution",
        "lens": "logit_lens",
        "norms": "stream",
    },
)  # fmt: skip
