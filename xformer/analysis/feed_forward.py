"""Feed-forward layers: the activations of their neurons, and what these write to the logits.

    FFN(x) = act(x W₁ + b₁) W₂ + b₂                                               (Vaswani et al. 2017, §3.3)

Neuron n writes its activation × its row of W₂ to the residual stream (Geva et al. 2021, arXiv:2012.14913: feed-forward layers
are key-value memories); through the unembedding this favours some tokens. The norm of that vector, |activation| × ‖row of W₂‖,
is the neuron's activity.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from xformer.adapters import ModelAdapter
from xformer.analysis.attention_patterns import names_at
from xformer.analysis.tables import array_table, selected_positions
from xformer.arguments import Count
from xformer.errors import EditError, UnavailableError
from xformer.formatting import check_index, check_indices, check_option
from xformer.memory import check_analysis
from xformer.reading import Reading

FIRING_SHARE = 1e-6
"""A neuron fires where its activity exceeds this share of the layer's mean peak, the mean over neurons of the largest activity
of each. A neuron that never fires is dead. The 0 of a ReLU is below any threshold."""
MAX_TOKENS = 2048
"""The most tokens in a table of promotions; of a larger vocabulary, the tokens that change most."""


def activations(
    reading: Reading, *, layer: int, stage: str = "post", positions: Sequence[int] | None = None
) -> pd.DataFrame:
    """Tabulate the activations of all neurons of a layer, a row per position.

    Args:
        reading: The run.
        layer: The feed-forward layer, from 0.
        stage: "pre" or "post" the activation function. In a gated layer, "post" is act(gate) × up, and there is also "up".
        positions: The positions to return, from 0; all by default.

    Returns:
        A row per position: position, token, and a column for each neuron, named by its number.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.activations(reading, layer=1)
        >>> table.shape  # rows are positions, columns are neurons
        (5, 514)
    """
    check_option("stage", stage, ("pre", "up", "post"))
    site = reading.feed_forward_path(layer)
    values = reading[f"{site.path}.{stage}"][0]  # [pos, d_ff]
    tokens = names_at(reading, site.stack, len(values))
    shown = selected_positions(positions, len(values))
    table = pd.DataFrame(values[shown].numpy(force=True))
    table.insert(0, "position", shown)
    table.insert(1, "token", [tokens[position] for position in shown])
    return table


def neuron(reading: Reading, *, layer: int, neuron: int, positions: Sequence[int] | None = None) -> pd.DataFrame:
    """Tabulate the activation of one neuron at each position.

    Args:
        reading: The run.
        layer: The feed-forward layer, from 0.
        neuron: The neuron, from 0.
        positions: The positions to return, from 0; all by default.

    Returns:
        A row per position: position, token and activation (after the activation function).

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.neuron(reading, layer=1, neuron=7)
        >>> list(table.columns)
        ['position', 'token', 'activation']
    """
    table = activations(reading, layer=layer, positions=positions)
    check_index("neuron", neuron, table.shape[1] - 2)
    return table[["position", "token"]].assign(activation=table[neuron])


@torch.no_grad()
def written_norms(adapter: ModelAdapter, path: str) -> Float[Tensor, " d_ff"] | None:
    """Return the norm of what each neuron of a layer writes at activation 1; None if no single matrix writes it."""
    try:
        own = adapter.weights.projection(path)
    except UnavailableError:
        return None
    return own.weight.float().norm(dim=1) * abs(own.factor)


def activity(reading: Reading, *, layer: int) -> Float[Tensor, "pos d_ff"]:
    """Return |activation| × the norm of the vector that each neuron writes.

    If those vectors are not accessible (`written_norms` is None), return |activation|.
    """
    path = reading.feed_forward_path(layer).path
    size, norms = reading[f"{path}.post"][0].abs(), written_norms(reading.adapter, path)
    return size if norms is None else size * norms


def fires_above(peak: Float[Tensor, " d_ff"], norms: Float[Tensor, " d_ff"] | None) -> Float[Tensor, " d_ff"]:
    """Return the |activation| above which each neuron fires, see `FIRING_SHARE`.

    Args:
        peak: The largest |activation| of each neuron.
        norms: The result of `written_norms`.
    """
    norms = torch.ones_like(peak) if norms is None else norms
    least = FIRING_SHARE * (peak * norms).mean() / norms
    return least.masked_fill(norms == 0, torch.inf)


def top_neurons(reading: Reading, *, layer: int, position: int, n: int = 10) -> list[int]:
    """Return the `n` neurons with the highest `activity` at a position, highest first."""
    active = activity(reading, layer=layer)  # [pos, d_ff]
    check_index("position", position, len(active))
    here = active[position]
    return here.topk(min(n, len(here))).indices.tolist()


def writes_to_output_stream(reading: Reading, layer: int) -> bool:
    """Return whether the layer writes to the stream that is unembedded; an encoder-decoder's encoder does not."""
    return reading.feed_forward_path(layer).stack == reading.output_stack


@torch.no_grad()
def direct_logit_effect(
    reading: Reading, layer: int, neurons: Sequence[int] | None = None
) -> Float[Tensor, "neuron vocab"]:
    """Return W₂ W_U: what one unit of each neuron's activation adds to each logit along the direct path to the unembedding.

    The direct path is exact in the last layer of a model without norms. Elsewhere it ignores later layers, and the rescaling by
    each norm on the way. Raises `UnavailableError` if the matrices are not accessible, and `InputError` if the result would be
    too large.

    Args:
        reading: The run.
        layer: The feed-forward layer, from 0.
        neurons: The neurons, from 0; all by default.
    """
    weights = reading.adapter.weights
    own = weights.projection(reading.feed_forward_path(layer).path)
    written = own.weight if neurons is None else own.weight[list(neurons)]  # [neuron, d_model]
    matrix = weights.unembedding().matrix  # [vocab, d_model]
    check_analysis("direct_logit_effect", "select fewer neurons", neurons=len(written), vocab=len(matrix))
    return (written if own.factor == 1.0 else written * own.factor) @ matrix.T


def promotion(
    reading: Reading, *, layer: int, position: int, n: Count = 10, only: Sequence[int] | None = None
) -> pd.DataFrame:
    """Measure what the `n` most active neurons at a position add to each logit there.

    Args:
        reading: The run.
        layer: The feed-forward layer, from 0.
        position: The position, from 0.
        n: The number of neurons.
        only: These neurons instead of the most active ones.

    Returns:
        A row per neuron and token: neuron, token and adds (activation × direct effect, in logits). Of a vocabulary of more than
        `MAX_TOKENS`, only the tokens that any of the neurons changes most.

    Raises:
        EditError: If the layer writes to a stream that is not unembedded.
        UnavailableError: If the matrices are not accessible.

    Example:
        >>> import xformer
        >>> reading = xformer.read("checkpoints/reverse", "3 7 12 9 1")
        >>> table = xformer.analysis.promotion(reading, layer=3, position=0)
        >>> list(table.columns)
        ['neuron', 'token', 'adds']
    """
    if not writes_to_output_stream(reading, layer):
        raise EditError(f"{reading.feed_forward_path(layer).path} writes to a stream that is not unembedded.")
    chosen = top_neurons(reading, layer=layer, position=position, n=n) if only is None else list(only)
    check_index("position", position, len(activity(reading, layer=layer)))
    labels = reading.adapter.token_labels
    every = reading[f"{reading.feed_forward_path(layer).path}.post"][0, position]  # [d_ff]
    check_indices("only", chosen, len(every))
    post = every[chosen]  # [neuron]
    effect = direct_logit_effect(reading, layer, chosen) * post[:, None]  # [neuron, vocab]
    tokens = torch.arange(effect.shape[1])
    if len(tokens) > MAX_TOKENS:
        tokens = effect.abs().amax(dim=0).topk(MAX_TOKENS).indices.sort().values
        effect = effect[:, tokens]
    names = [labels[token] for token in tokens.tolist()]
    return array_table({"neuron": chosen}, {"token": names}, adds=effect.double())


def expert_weights(reading: Reading, *, layer: int) -> pd.DataFrame:
    """Tabulate the router weights of a mixture-of-experts layer.

    Args:
        reading: The run.
        layer: The feed-forward layer, from 0.

    Returns:
        A row per position and expert: position, token, expert (from 0) and weight (0 if the expert was not selected).

    Raises:
        EditError: If there is no such layer.
        UnavailableError: If no router was found in the layer.

    Example:
        >>> import xformer
        >>> from transformers import MixtralConfig, MixtralForCausalLM
        >>> sizes = dict(hidden_size=32, intermediate_size=16, num_attention_heads=4, num_key_value_heads=2)
        >>> model = MixtralForCausalLM(MixtralConfig(vocab_size=99, num_hidden_layers=2, num_local_experts=4, **sizes))
        >>> reading = xformer.read(model, [5, 6, 7])
        >>> table = xformer.analysis.expert_weights(reading, layer=1)
        >>> list(table.columns)
        ['position', 'token', 'expert', 'weight']
    """
    site = reading.feed_forward_path(layer)
    weights = reading[f"{site.path}.experts"][0].float()  # [pos, expert]
    n, n_experts = weights.shape
    at = {"position": range(n), "token": reading.tokens_of(site.stack)}
    return array_table(at, {"expert": range(n_experts)}, weight=weights.double())
