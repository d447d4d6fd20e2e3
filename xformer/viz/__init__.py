"""Turn readings into pictures: one call on a `Reading`, or on several, makes a figure.

    xformer.viz.lens(reading)

`xformer.analysis` has the table of a picture under the same name.
"""

from xformer.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "activations": "feed_forward",
        "attribution": "residual",
        "firing": "feed_forward",
        "lens": "logit_lens",
        "neuron": "feed_forward",
        "norms": "residual",
        "promotion": "feed_forward",
    },
)  # fmt: skip
