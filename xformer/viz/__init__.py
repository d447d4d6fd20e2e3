"""Turn readings into pictures: one call on a `Reading`, or on several, makes a figure.

    xformer.viz.lens(reading)

`xformer.analysis` has the table of a picture under the same name.
"""

from xformer.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "accuracy": "counting_agreement",
        "accuracy_by_length": "by_length",
        "activations": "feed_forward",
        "atom_mapping": "reactions",
        "attention": "attention_head",
        "attention_costs": "costs",
        "attention_moved": "positions",
        "attention_steps": "attention_arithmetic",
        "attribution": "residual",
        "beliefs_apart": "same_text",
        "circle": "number_waves",
        "classes": "class_bars",
        "confusion": "counting_agreement",
        "cosines": "embeddings",
        "decision_lens": "decision",
        "decision_rows": "decision",
        "draw_as_images": "export",
        "divergence_by_step": "divergence",
        "expert_weights": "experts",
        "filter_components": "filters",
        "firing": "feed_forward",
        "head_effects": "silenced_heads",
        "lens": "logit_lens",
        "lesson_curves": "bug_lesson",
        "likeliest_tokens": "divergence",
        "matrix": "matrices",
        "metric_curves": "training",
        "neuron": "feed_forward",
        "norms": "residual",
        "over_image": "image_overlay",
        "patch_filters": "filters",
        "patch_places": "place_maps",
        "patching": "activation_patching",
        "patching_map": "cell_map",
        "pattern_difference": "decision",
        "position_curves": "positions",
        "position_offsets": "positions",
        "position_values": "positions",
        "predictions_by_step": "divergence",
        "product_variances": "scaling",
        "projection": "vocabulary",
        "promotion": "feed_forward",
        "save": "export",
        "rollout": "attention_rollout",
        "softmax_row": "scaling",
        "softmax_saturation": "scaling",
        "spectrum": "number_waves",
        "vectors": "embeddings",
        "why": "score_parts",
    },
)  # fmt: skip
