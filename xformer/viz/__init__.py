"""Turn readings into pictures: one call on a `Reading`, or on several, makes a figure.

    xformer.viz.lens(reading)

`xformer.analysis` has the table of a picture under the same name.
"""

from xformer.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "attribution": "residual",
        "lens": "logit_lens",
        "norms": "residual",
    },
)  # fmt: skip
