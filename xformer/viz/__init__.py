"""Charts of readings: each function draws one `Reading`, or compares several.

    xformer.viz.lens(reading)

The function of the same name in `xformer.analysis` returns the numbers of a chart as a table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from xformer.arguments import checked
from xformer.installed import needed
from xformer.lazy import attach

if TYPE_CHECKING:
    from xformer.viz.activation_patching import head_effects as head_effects
    from xformer.viz.activation_patching import patching as patching
    from xformer.viz.activation_patching import patching_map as patching_map
    from xformer.viz.attention_patterns import attention as attention
    from xformer.viz.attention_patterns import attention_arcs as attention_arcs
    from xformer.viz.attention_patterns import attention_grid as attention_grid
    from xformer.viz.attention_patterns import rollout as rollout
    from xformer.viz.diagram_figure import model_diagram as model_diagram
    from xformer.viz.differences import decision_lens as decision_lens
    from xformer.viz.differences import decision_rows as decision_rows
    from xformer.viz.differences import pattern_difference as pattern_difference
    from xformer.viz.differences import prediction_difference as prediction_difference
    from xformer.viz.differences import surprise_by_character as surprise_by_character
    from xformer.viz.embeddings import circle as circle
    from xformer.viz.embeddings import cosines as cosines
    from xformer.viz.embeddings import projection as projection
    from xformer.viz.embeddings import similarity as similarity
    from xformer.viz.embeddings import spectrum as spectrum
    from xformer.viz.embeddings import vectors as vectors
    from xformer.viz.export import draw_as_images as draw_as_images
    from xformer.viz.export import save as save
    from xformer.viz.export import themed as themed
    from xformer.viz.feed_forward import activations as activations
    from xformer.viz.feed_forward import expert_weights as expert_weights
    from xformer.viz.feed_forward import firing as firing
    from xformer.viz.feed_forward import neuron as neuron
    from xformer.viz.feed_forward import neurons as neurons
    from xformer.viz.feed_forward import promotion as promotion
    from xformer.viz.generation import divergence_by_step as divergence_by_step
    from xformer.viz.generation import likeliest_tokens as likeliest_tokens
    from xformer.viz.generation import next_tokens as next_tokens
    from xformer.viz.generation import predictions_by_step as predictions_by_step
    from xformer.viz.generation import steering_by_scale as steering_by_scale
    from xformer.viz.generation import step_lanes as step_lanes
    from xformer.viz.images import classes as classes
    from xformer.viz.images import filter_components as filter_components
    from xformer.viz.images import over_image as over_image
    from xformer.viz.images import patch_cosines as patch_cosines
    from xformer.viz.images import patch_filters as patch_filters
    from xformer.viz.long_inputs import attention_by_distance as attention_by_distance
    from xformer.viz.long_inputs import attention_map as attention_map
    from xformer.viz.long_inputs import attention_received as attention_received
    from xformer.viz.long_inputs import head_sums as head_sums
    from xformer.viz.mask_pictures import mask as mask
    from xformer.viz.positions import attention_moved as attention_moved
    from xformer.viz.positions import position_curves as position_curves
    from xformer.viz.positions import position_offsets as position_offsets
    from xformer.viz.positions import position_values as position_values
    from xformer.viz.principles import attention_costs as attention_costs
    from xformer.viz.principles import attention_steps as attention_steps
    from xformer.viz.principles import matrix as matrix
    from xformer.viz.principles import product_variances as product_variances
    from xformer.viz.principles import softmax_row as softmax_row
    from xformer.viz.principles import softmax_saturation as softmax_saturation
    from xformer.viz.residual import answer_path as answer_path
    from xformer.viz.residual import attribution as attribution
    from xformer.viz.residual import lens as lens
    from xformer.viz.residual import norms as norms
    from xformer.viz.residual import score_attribution as score_attribution
    from xformer.viz.scoring import accuracy as accuracy
    from xformer.viz.scoring import accuracy_by_length as accuracy_by_length
    from xformer.viz.scoring import confusion as confusion
    from xformer.viz.scoring import lengths_compared as lengths_compared
    from xformer.viz.timeline import timeline_still as timeline_still
    from xformer.viz.training_curves import metric_curves as metric_curves
    from xformer.viz.training_curves import paired_training_curves as paired_training_curves
    from xformer.viz.training_runs import map_grid as map_grid
    from xformer.viz.training_runs import sweep_outcome as sweep_outcome
    from xformer.viz.training_runs import training_fan as training_fan
else:
    _find, __dir__, __all__ = attach(__name__, __file__)

    @cache
    def _drawn(draw: Callable[..., Any]) -> Any:
        """Return a chart's function with the checks and the title of `charts.drawn`."""
        if not callable(draw):
            return draw

        @wraps(draw)
        def call(*args: Any, **kwargs: Any) -> Any:
            from xformer.viz.charts import drawn

            return drawn(draw, args, kwargs)

        return call

    def __getattr__(name: str) -> Any:
        with needed("altair", "A chart", "xformer-studio[viz]"):
            return _drawn(checked(_find(name)))
