"""What can be said about a run in numbers: one call on a `Reading`, or on several, makes a table.

    xformer.analysis.head_scores(reading)

`xformer.viz` has the picture of a table under the same name.
"""

from xformer.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "activations": "feed_forward",
        "attribution": "logit_attribution",
        "exciting_inputs": "neuron_survey",
        "firing": "neuron_survey",
        "lens": "logit_lens",
        "neuron": "feed_forward",
        "neurons": "feed_forward",
        "norms": "stream",
        "promotion": "feed_forward",
        "survey": "neuron_survey",
    },
)  # fmt: skip
