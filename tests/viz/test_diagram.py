"""The diagram of a model has the parameter counts, shapes and sums of a run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import xformer
from xformer import ModelConfig
from xformer.viz.diagram import Diagram, diagram

PRIMES = {"vocab_size": 23, "d_model": 13, "n_layers": 3, "n_heads": 5, "d_head": 6, "d_value": 7, "max_len": 29}
N_TOKENS, N_TARGET = 11, 17

VARIANTS = {
    "post": {"d_ff": 19},
    "pre": {"d_ff": 19, "norm": "pre"},
    "no norm": {"d_ff": 19, "norm": "none", "positions": "none"},
    "norm at the end only": {"d_ff": 19, "norm": "none", "final_norm": True},
    "no feed-forward": {"d_ff": 0, "norm": "pre"},
    "rotary, biases": {"d_ff": 19, "norm": "pre", "positions": "rotary", "attention_bias": True, "ffn_bias": False},
    "alibi, gelu": {"d_ff": 19, "positions": "alibi", "activation": "gelu", "output_bias": False},
    "tied, learned": {"d_ff": 19, "positions": "learned", "tied_output": True, "scale_embeddings": True},
    "nothing left to learn": {"d_ff": 0, "tied_output": True, "output_bias": False, "norm": "none"},
}
ARCHITECTURES = ("encoder", "decoder", "encoder-decoder")


def configs() -> list[ModelConfig]:
    """Return each variant in one of the architectures, in turn, and both norms in an encoder-decoder."""
    pair = {"architecture": "encoder-decoder", "tied_source": True}
    kinds = [v | {"architecture": ARCHITECTURES[at % 3]} for at, v in enumerate(VARIANTS.values())]
    kinds += [VARIANTS["pre"] | pair, VARIANTS["post"] | pair]
    kinds.append({"architecture": "encoder", "causal": True, "see_self": False, "d_ff": 19, "positions": "mirror"})
    return [ModelConfig(**PRIMES | kind) for kind in kinds]


def drawn(config: ModelConfig) -> Diagram:
    return diagram(config, N_TOKENS, N_TARGET if config.architecture == "encoder-decoder" else None)


def ran(config: ModelConfig) -> xformer.Trace:
    generator = torch.Generator().manual_seed(3)
    model = xformer.Transformer(config, generator)
    tokens = torch.randint(config.vocab_size, (1, N_TOKENS), generator=generator)
    if config.architecture != "encoder-decoder":
        return xformer.record(model, tokens)
    return xformer.record(model, tokens, torch.randint(config.vocab_size, (1, N_TARGET), generator=generator))


every_config = pytest.mark.parametrize("config", configs(), ids=str)


@every_config
def test_counts_and_shapes_match_a_run(config: ModelConfig) -> None:
    trace, boxes = ran(config), drawn(config).boxes
    assert drawn(config).n_parameters == sum(p.numel() for p in xformer.Transformer(config).parameters())
    for box in boxes:
        if box.activation is not None:
            assert box.shape == tuple(trace[box.activation].shape), box.id
    unnamed = {box.kind for box in boxes if box.activation is None}
    assert unnamed <= ({"tokens", "sum"} if config.norm == "post" else {"tokens"})


@every_config
@pytest.mark.usefixtures("float64")
def test_arrows_match_the_sums_and_norms_of_a_run(config: ModelConfig) -> None:
    """The inputs of each sum add up to its output in a real run, and the norms match."""
    trace, described_model = ran(config), drawn(config)
    into: dict[str, list[str]] = {}
    for arrow in described_model.arrows:
        into.setdefault(arrow.target, []).append(arrow.source)

    def value(box_id: str) -> torch.Tensor:
        box = described_model[box_id]
        if box.activation is not None:
            return trace[box.activation]
        assert box.kind == "sum"
        return sum((value(source) for source in into[box_id]), torch.zeros(()))

    def normal(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (config.d_model,), eps=config.norm_eps)  # fresh norms scale by 1 and shift by 0

    checks = 0
    for box in described_model.boxes:
        if box.kind == "sum":
            want = sum((value(source) for source in into[box.id]), torch.zeros(()))
        elif box.kind == "norm" and box.sublayer is not None:
            want = normal(value(into[box.id][0]))
        else:
            continue  # a final norm reads the last layer, but the diagram shows the first
        torch.testing.assert_close(value(box.id), want, rtol=1e-12, atol=1e-12)
        checks += box.kind == "norm" or box.activation is not None
    assert checks >= 1


def test_each_attention_has_its_mask_in_miniature() -> None:
    sizes = PRIMES | {"d_ff": 19}

    def masks(architecture: str, **kind) -> list[str]:
        model = drawn(ModelConfig(architecture=architecture, **sizes, **kind))
        return [
            " ".join("".join("·x"[seen] for seen in row) for row in box.mask or ())
            for box in model.boxes
            if box.kind == "attention"
        ]

    full, causal = "xxxx xxxx xxxx xxxx", "x··· xx·· xxx· xxxx"
    assert [masks(one) for one in ARCHITECTURES] == [[full], [causal], [full, causal, full]]
    assert masks("encoder", causal=True, see_self=False) == ["···· x··· xx·· xxx·"]
    window = {"mask": "sliding_window", "window": 8}
    assert masks("encoder-decoder", **window) == ["xx·· xxx· ·xxx ··xx", "x··· xx·· ·xx· ··xx", full]
    assert masks("encoder", **window | {"causal": True, "see_self": False}) == ["···· x··· ·x·· ··x·"]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_cross_attention_reads_the_encoder_output(norm: str) -> None:
    model = drawn(ModelConfig(architecture="encoder-decoder", norm=norm, **PRIMES | {"d_ff": 19}))
    memory = [arrow for arrow in model.arrows if arrow.flow == "memory"]
    assert [(arrow.source, arrow.target) for arrow in memory] == [
        ("encoder.final_norm" if norm == "pre" else "encoder.ffn_norm", "decoder.cross_attn")
    ]
    assert str(N_TOKENS) in model["decoder.cross_attn"].what
