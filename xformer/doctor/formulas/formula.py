"""One part of the formula of a model, and the names of what is unusual in it."""

from __future__ import annotations

from dataclasses import dataclass

from xformer.program.record import Operation, SourceLine

CAUSES_OF_FORMULAS = {
    "scale_missing": "the scores are not divided by √d_head",
    "scale_by_d_model": "the scores are divided by √d_model, not by √d_head",
    "scale_by_n_heads": "the scores are divided by the root of the number of heads, not by √d_head",
    "scale_by_d_head": "the scores are divided by d_head, not by its root",
    "scale_inverted": "the scores are multiplied by √d_head, not divided by it",
    "scale_other": "the scores have another scale than 1 / √d_head",
    "shared_projection": "one projection makes two of queries, keys and values",
    "heads_averaged": "the heads are averaged or added up, not concatenated",
    "heads_equal": "all heads compute the same",
    "heads_interleaved": "a head takes every n-th feature of a projection, not adjacent ones",
    "attention_over_heads": "the heads of one position attend to each other, and no position to another",
    "split_without_transpose": "the heads are split without moving the positions behind them",
    "merge_without_transpose": "the heads are merged without moving the positions before them",
    "sinusoid_exponent": "the wavelengths of the sinusoids do not grow as 10000^(2i/d)",
    "positions_from_batch": "each text of a batch gets one row of the table of positions, the same at each of its positions",
    "positions_reversed": "the first token has the last position, so that positions change with the length of the text",
    "positions_missing": "nothing depends on the positions of the tokens",
    "alibi_slopes": "the slopes of the linear biases are not 2^(−8h / heads)",
    "dropout_in_eval": "dropout is applied in eval mode",
    "rotary_pairs_mixed": "cos and sin are made for other pairs of dimensions than those that are rotated",
    "rotary_on_queries_only": "the queries are rotated by their positions, the keys are not",
    "rotary_on_keys_only": "the keys are rotated by their positions, the queries are not",
    "rotary_on_values": "the values are rotated by their positions",
    "rotary_directions": "the queries are rotated in one direction and the keys in the other",
    "rotary_differs": "queries and keys are rotated by other angles",
    "rotary_no_rotation": "pairs of dimensions are not rotated, so that norms change with the position",
    "norm_over_positions": "the statistics of the norm are over the positions, not over the features alone",
    "norm_over_batch": "the statistics of the norm are over the batch, not over the features alone",
    "batch_norm": "the norm has statistics of the training over the batch and the positions, not of the features",
    "residual_missing": "the output of the sub-layer is not added to its input",
    "output_unused": "nothing reads the output of the sub-layer",
    "residual_other": "the output of the sub-layer is added to an earlier stream, not to its input",
    "residual_from_norm": "the normed input is added to the output of the sub-layer, not the input itself",
    "norm_epsilon": "ε is not small beside the variance of the features, so the norm changes their size less",
    "norm_formula": "the features are divided by something else than their spread",
    "norm_kind": "the norm is of another kind than in the specification",
    "norm_place": "the norm is at another place than in the specification",
    "norm_missing": "the sub-layer has no norm",
    "positions_other": "the positions are encoded in another way than in the specification",
    "activation_missing": "no function is between the two projections of the feed-forward network",
    "other_than_reference": "the code computes something else than the reference",
    "mask_not_applied": "no causal mask reaches the scores",
    "window_off_by_one": "the window has one key more or fewer",
    "mask_inverted": "the causal mask hides what it should show",
    "mask_hides_every_key": "the mask hides every key",
    "encoder_is_causal": "the mask of the encoder hides later tokens, as that of a decoder",
    "mask_off_by_one": "the causal mask shows keys after the query",
    "mask_excludes_itself": "the causal mask hides the query's own position",
    "mask_added_as_bool": "the mask is added as 0 and 1, which hides nothing",
    "mask_after_softmax": "the mask is applied after the softmax, so that rows do not sum to 1",
    "mask_too_small": "the number at masked scores is too small to give them no weight",
    "mask_multiplied": "the scores are multiplied by the mask, so that masked ones are 0 and not −∞",
    "softmax_over_queries": "the softmax is over the queries, not over the keys",
    "softmax_over_heads": "the softmax is over the heads, not over the keys",
    "attention_over_batch": "the softmax is over the batch, not over the keys",
    "key_value_head_order": "a query head reads the key/value head of another group",
}
"""What is unusual in a formula, by identifier."""
BREAKS_A_RULE = {
    "split_without_transpose", "merge_without_transpose", "mask_not_applied", "mask_inverted", "mask_off_by_one",
    "mask_added_as_bool", "mask_after_softmax", "mask_too_small", "mask_hides_every_key",
    "mask_multiplied", "softmax_over_queries",
    "softmax_over_heads", "attention_over_batch", "key_value_head_order", "norm_over_positions", "norm_over_batch",
    "positions_from_batch", "rotary_pairs_mixed", "rotary_on_queries_only", "rotary_on_keys_only", "rotary_directions",
    "rotary_no_rotation", "dropout_in_eval",
}  # fmt: skip
"""Those that no correct model means. Other checks usually find what follows from them."""
CLOSE = 1e-3
"""Largest relative difference between a factor and its name, and between the scores and their formula."""


@dataclass(frozen=True)
class Formula:
    """One part of what an attention computes.

    Attributes:
        layer: The layer in its stack, from 0; None if it is not known.
        path: The module that computes the attention.
        part: "scale", "mask", "softmax", "bias", "projections", "heads", "key/value heads" or "rotary" of an attention; "norm",
            "residual" or "feed_forward" of a sub-layer; "positions" for what is added to the embeddings; "dropout".
        formula: The part as a formula or a few words.
        cause: A key of `CAUSES_OF_FORMULAS`; "" for what transformers usually compute.
        line: Where the code computes it, as "model.py:38"; "" if it is not known.
        text: That line.
        usual: The usual formula.
    """

    layer: int | None
    path: str
    part: str
    formula: str
    cause: str
    line: str
    text: str
    usual: str


def part_of(
    part: str, formula: str, cause: str, operation: Operation | None, usual: str, line: SourceLine | None = None
) -> Formula:
    """A part whose layer is not known yet, at an operation, or at another line."""
    line = line if line is not None or operation is None else operation.line
    at, text = ("", "") if line is None else (str(line), line.text)
    return Formula(None, "" if operation is None else operation.address.module, part, formula, cause, at, text, usual)
