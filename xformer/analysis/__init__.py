"""What can be said about a run in numbers: one call on a `Reading`, or on several, makes a table.

    xformer.analysis.head_scores(reading)

`xformer.viz` has the picture of a table under the same name.
"""

from xformer.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Contender": "contender",
        "accuracy": "counting_agreement",
        "activations": "feed_forward",
        "agreement": "counting_agreement",
        "attention": "attention_head",
        "attention_costs": "multiplications",
        "attention_moved": "attention_change",
        "attention_steps": "attention_arithmetic",
        "attribution": "logit_attribution",
        "circle": "number_waves",
        "classes": "images",
        "confusion": "counting_agreement",
        "cosines": "embeddings",
        "decision_lens": "decision",
        "decision_rows": "decision",
        "divergence_by_step": "divergence",
        "exciting_inputs": "neuron_survey",
        "filter_components": "filters",
        "firing": "neuron_survey",
        "head_scores": "heads",
        "lens": "logit_lens",
        "likeliest_tokens": "divergence",
        "matrix": "principles",
        "mistakes": "images",
        "neighbours": "embeddings",
        "neuron": "feed_forward",
        "neurons": "feed_forward",
        "norms": "stream",
        "over_image": "image_overlay",
        "patch_filters": "filters",
        "patch_places": "place_maps",
        "patching": "activation_patching",
        "pattern_difference": "decision",
        "position_counts": "positions",
        "position_curves": "positions",
        "position_offsets": "positions",
        "position_values": "positions",
        "predictions_by_step": "divergence",
        "principles": "",
        "product_variances": "random_products",
        "projection": "embeddings",
        "promotion": "feed_forward",
        "roll_out": "token_rollout",
        "rollout": "attention_rollout",
        "same_answers": "counting_agreement",
        "softmax_row": "random_products",
        "softmax_saturation": "random_products",
        "spectrum": "number_waves",
        "survey": "neuron_survey",
        "vectors": "embeddings",
    },
)  # fmt: skip
