"""What a foreign model looks like from outside, from one run of it: layers, heads and neurons as they were met."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from xformer.adapters.opening import OpenedModel
from xformer.model_shape import ModelShape
from xformer.site import Site, after

WITHOUT_LIMIT = 2048
"""The most positions of a model that names no limit: its positions go on for ever, the memory of this machine does not."""


def shape_of(
    opened: OpenedModel, run: dict[str, Tensor], *, is_causal: bool, max_len: int | None, n_inputs: int
) -> ModelShape:
    """The shape of a model whose run kept everything. `n_inputs`: how many tokens it reads by their numbers."""
    layout, sites = opened.layout, opened.layout.sites
    stacks = {site.stack for site in sites}
    stream = next((run[name] for name in run if name.endswith(("resid_pre", "attn.out", "attn.in"))), None)
    norms = set(layout.norms.values())
    norm: Literal["pre", "post", "none"] = "post" if "post" in norms else "pre" if norms else "none"
    return ModelShape(
        architecture="encoder-decoder" if len(stacks) == 2 else "decoder" if "decoder" in stacks else "encoder",
        is_causal=is_causal,
        d_model=0 if stream is None else stream.shape[-1],
        n_layers=1 + max(site.layer for site in sites),
        vocab_size=run["logits"].shape[-1] if "logits" in run else 0,
        max_len=max_len or WITHOUT_LIMIT,
        n_inputs=n_inputs,
        sites=sites,
        heads={site.path: run[f"{site.path}.pattern"].shape[1] for site in sites if site.is_attention},
        neurons={site.path: _width(run, site) for site in sites if f"{site.path}.post" in run},
        norm=norm,
        final_norm="final_norm" in run,
        joined=frozenset(site.path for site in sites if after(site) not in run),
        can_drop_positions=any("pos_" in name for name in run),
        rotates=any(name.endswith("pos_angles") for name in run),
        experts={site.path: run[name].shape[-1] for site in sites if (name := f"{site.path}.experts") in run},
        is_read_only=opened.rung == 3,
    )


def _width(run: dict[str, Tensor], site: Site) -> int:
    return run[f"{site.path}.post"].shape[-1]
