"""Parameter counts of a transformer by part, each with its formula written out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from xformer.config import ModelConfig


@dataclass(frozen=True)
class CountedPart:
    """One row of a parameter table: the number of parameters of a part, and its formula written out."""

    name: str
    formula: str
    count: int


def n_parameters(config: ModelConfig) -> int:
    """Return the number of parameters, by formula; it equals `sum(p.numel() for p in model.parameters())`."""
    return sum(part.count for part in parameters_by_part(config))


def parameters_by_part(config: ModelConfig) -> tuple[CountedPart, ...]:
    """Return the parameter table of a model: one `CountedPart` per kind of layer, in forward order."""
    stacks = ("encoder", "decoder") if config.architecture == "encoder-decoder" else (config.architecture,)
    parts = [_embedding(config), _positions(config, len(stacks))]
    for stack in stacks:
        n = config.n_layers
        parts.append(_attention(config, f"{stack}: self-attention"))
        if stack == "decoder" and len(stacks) == 2:
            parts.append(_attention(config, f"{stack}: cross-attention"))
        if config.d_ff:
            ffn = config.ffn_component
            parts.append(
                CountedPart(f"{stack}: feed-forward", f"{n} × ({ffn.formula(config)})", n * ffn.n_parameters(config))
            )
        sublayers = 1 + (stack == "decoder" and len(stacks) == 2) + bool(config.d_ff)
        if config.norm != "none" or config.final_norm:
            norms, norm = n * sublayers * (config.norm != "none") + bool(config.final_norm), config.norm_component
            formula = f"{norms} × {norm.formula(config)}"
            parts.append(CountedPart(f"{stack}: norms", formula, norms * norm.n_parameters(config)))
    parts.append(_output(config))
    return tuple(part for part in parts if part.count)


def _embedding(config: ModelConfig) -> CountedPart:
    d = config.d_model
    if config.image:
        return CountedPart(
            "patch embedding", f"{config.patch}²·{d} + {d} + {d} (class token)", (config.patch**2 + 2) * d
        )
    tables = 2 if config.architecture == "encoder-decoder" and not config.tied_source else 1
    times = "2 × " if tables == 2 else ""
    return CountedPart("token embedding", f"{times}{config.vocab_size:,}·{d}", tables * config.vocab_size * d)


def _positions(config: ModelConfig, stacks: int) -> CountedPart:
    kind = config.position_kind
    shapes = Counter(kind.learned(config).values())
    terms = [f"{f'{n * stacks} × ' if n * stacks > 1 else ''}{rows}·{columns}" for (rows, columns), n in shapes.items()]
    return CountedPart("positions", " + ".join(terms), stacks * kind.n_parameters(config))


def _attention(config: ModelConfig, name: str) -> CountedPart:
    n, heads = config.n_layers, config.kv_component
    return CountedPart(name, f"{n} × ({heads.formula(config)})", n * heads.n_parameters(config))


def _output(config: ModelConfig) -> CountedPart:
    weights = 0 if config.tied_output else config.d_model * config.vocab_size
    biases = config.vocab_size if config.output_bias else 0
    terms = [f"{config.d_model}·{config.vocab_size:,}"] * bool(weights) + [f"{config.vocab_size:,}"] * bool(biases)
    return CountedPart("output", " + ".join(terms), weights + biases)


def count_with_projections_to(
    width: int, *, d_model: int, n_layers: int, d_ff: int, vocab_size: int
) -> tuple[CountedPart, ...]:
    """Reproduce a real-world miscount: each of the four attention projections maps d_model to `width` instead of d_model.

    A well-known notebook uses the context length as the projections' width: with context 1024, d_model 512, 6 + 6 layers,
    d_ff 2048, biases everywhere, no embedding table and 32,000 outputs it arrives at 79,465,728, "significantly higher" than
    the printed 65 M. The extra 18.9 M come from the doubled projections of the 18 attentions; with the correct width the
    same parts sum to 60.6 M.
    """
    attention, feed_forward = 4 * (d_model * width + width), 2 * d_model * d_ff + d_ff + d_model
    return (
        CountedPart("attention", f"{3 * n_layers} × 4·({d_model}·{width} + {width})", 3 * n_layers * attention),
        CountedPart(
            "feed-forward", f"{2 * n_layers} × (2·{d_model}·{d_ff} + {d_ff} + {d_model})", 2 * n_layers * feed_forward
        ),
        CountedPart("norms", f"{5 * n_layers} × 2·{d_model}", 5 * n_layers * 2 * d_model),
        CountedPart("output", f"{d_model}·{vocab_size:,} + {vocab_size:,}", d_model * vocab_size + vocab_size),
    )
