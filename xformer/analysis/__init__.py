"""Analyses of recorded runs: each function takes one `Reading`, or several, and returns a DataFrame.

    xformer.analysis.head_scores(reading)

`xformer.viz` has the corresponding chart under the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xformer.arguments import checked
from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.analysis import principles as principles
    from xformer.analysis.ablation import head_effects as head_effects
    from xformer.analysis.ablation import heads_worth_seeing as heads_worth_seeing
    from xformer.analysis.activation_patching import patching as patching
    from xformer.analysis.activation_patching import patching_map as patching_map
    from xformer.analysis.attention_patterns import attention as attention
    from xformer.analysis.attention_patterns import attention_moved as attention_moved
    from xformer.analysis.attention_patterns import head_scores as head_scores
    from xformer.analysis.attention_patterns import notable_heads as notable_heads
    from xformer.analysis.attention_patterns import rollout as rollout
    from xformer.analysis.attention_patterns import stream_moved as stream_moved
    from xformer.analysis.comparison import Variant as Variant
    from xformer.analysis.differences import at_position as at_position
    from xformer.analysis.differences import decision_lens as decision_lens
    from xformer.analysis.differences import decision_rows as decision_rows
    from xformer.analysis.differences import gap_fillings as gap_fillings
    from xformer.analysis.differences import pattern_difference as pattern_difference
    from xformer.analysis.differences import prediction_difference as prediction_difference
    from xformer.analysis.differences import relabel as relabel
    from xformer.analysis.differences import surprise_by_character as surprise_by_character
    from xformer.analysis.embeddings import cosines as cosines
    from xformer.analysis.embeddings import neighbours as neighbours
    from xformer.analysis.embeddings import projection as projection
    from xformer.analysis.embeddings import vectors as vectors
    from xformer.analysis.feed_forward import activations as activations
    from xformer.analysis.feed_forward import expert_weights as expert_weights
    from xformer.analysis.feed_forward import neuron as neuron
    from xformer.analysis.feed_forward import promotion as promotion
    from xformer.analysis.generation import decode_steps as decode_steps
    from xformer.analysis.generation import divergence_by_step as divergence_by_step
    from xformer.analysis.generation import likeliest_tokens as likeliest_tokens
    from xformer.analysis.generation import next_tokens as next_tokens
    from xformer.analysis.generation import predictions_by_step as predictions_by_step
    from xformer.analysis.generation import steered as steered
    from xformer.analysis.generation import steering_by_scale as steering_by_scale
    from xformer.analysis.images import classes as classes
    from xformer.analysis.images import filter_components as filter_components
    from xformer.analysis.images import mistakes as mistakes
    from xformer.analysis.images import over_image as over_image
    from xformer.analysis.images import patch_cosines as patch_cosines
    from xformer.analysis.images import patch_filters as patch_filters
    from xformer.analysis.long_inputs import attention_by_distance as attention_by_distance
    from xformer.analysis.long_inputs import attention_from as attention_from
    from xformer.analysis.long_inputs import attention_map as attention_map
    from xformer.analysis.long_inputs import attention_on_tokens as attention_on_tokens
    from xformer.analysis.long_inputs import attention_received as attention_received
    from xformer.analysis.long_inputs import attention_to as attention_to
    from xformer.analysis.long_inputs import between_documents as between_documents
    from xformer.analysis.long_inputs import head_sums as head_sums
    from xformer.analysis.needle import needle_finding as needle_finding
    from xformer.analysis.needle import needle_keys as needle_keys
    from xformer.analysis.needle import needle_text as needle_text
    from xformer.analysis.neuron_survey import exciting_inputs as exciting_inputs
    from xformer.analysis.neuron_survey import firing as firing
    from xformer.analysis.neuron_survey import neurons as neurons
    from xformer.analysis.neuron_survey import survey as survey
    from xformer.analysis.neuron_survey import triggers as triggers
    from xformer.analysis.number_waves import circle as circle
    from xformer.analysis.number_waves import spectrum as spectrum
    from xformer.analysis.positions import position_curves as position_curves
    from xformer.analysis.positions import position_offsets as position_offsets
    from xformer.analysis.positions import position_values as position_values
    from xformer.analysis.principles import attention_costs as attention_costs
    from xformer.analysis.principles import attention_steps as attention_steps
    from xformer.analysis.principles import matrix as matrix
    from xformer.analysis.principles import product_variances as product_variances
    from xformer.analysis.principles import softmax_row as softmax_row
    from xformer.analysis.principles import softmax_saturation as softmax_saturation
    from xformer.analysis.residual import answer_path as answer_path
    from xformer.analysis.residual import attribution as attribution
    from xformer.analysis.residual import lens as lens
    from xformer.analysis.residual import norms as norms
    from xformer.analysis.score_decomposition import score_attribution as score_attribution
    from xformer.analysis.scoring import accuracy as accuracy
    from xformer.analysis.scoring import accuracy_by_length as accuracy_by_length
    from xformer.analysis.scoring import agreement as agreement
    from xformer.analysis.scoring import confusion as confusion
    from xformer.analysis.scoring import lengths_compared as lengths_compared
    from xformer.analysis.scoring import same_answers as same_answers
    from xformer.analysis.text_similarity import similarity as similarity
    from xformer.analysis.training_runs import sweep_outcome as sweep_outcome
    from xformer.analysis.training_runs import training_fan as training_fan
else:
    _find, __dir__, __all__ = attach(__name__, __file__)

    def __getattr__(name: str) -> Any:
        return checked(_find(name))
