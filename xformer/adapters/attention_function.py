"""The attention that models of Transformers call instead of theirs (rung 1): registered once, it reads and changes them all.

Transformers hands over q and k after rotation, k and v before the repetition of grouped heads, and whatever else a family adds
to its scores. The mask function has to be registered beside it: without one a model silently runs without a causal mask.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor, nn

from xformer.adapters.attention import Terms, attend, fused
from xformer.adapters.on_demand import DeferredAttention, SpyTape
from xformer.adapters.probe import ActiveRun, active_run
from xformer.tape import SILENT, Tape

NAME = "xformer"
"""What our attention is called among Transformers' implementations."""


@cache
def register() -> str:
    """Make our attention known to Transformers, once a process. Its name is returned."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, eager_mask)
    return NAME


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """z [batch, query, head, d_value] and the pattern, as every attention function of Transformers returns them."""
    run = active_run()
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    terms = Terms(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        added=_cut(attention_mask, key),
        bias=_cut(position_bias, key),
        softcap=softcap,
        sinks=s_aux if s_aux is not None else getattr(module, "sinks", None),
        is_causal=causal and query.shape[-2] == key.shape[-2],
    )
    if run is None:  # somebody else's pass, who may be training it
        return fused(query, key, value, terms, dropout).transpose(1, 2).contiguous(), None
    path = run.next_attention()
    if run.observer is not None:
        limits = run.limits_of(terms, query.shape[-2], key.shape[-2], query.device)
        sees_later = bool(limits.allowed.triu(1).any())
        run.observer.attention_begins(query.shape[-2], key.shape[-2], sees_later=sees_later)
    if run.later is not None and path is not None:
        return _kept_for_later(run, run.later, path, query, key, value, terms), None
    tape = SILENT if path is None else run.tape.at(path)
    if tape is SILENT and run.observer is None:
        return fused(query, key, value, terms).transpose(1, 2).contiguous(), None
    limits = run.limits_of(terms, query.shape[-2], key.shape[-2], query.device)
    z, pattern = attend(query, key, value, terms, tape, limits)
    out = z.transpose(1, 2).contiguous()  # [batch, query, head, d_value]
    if run.observer is not None:
        run.observer.attention_ends(out)
    return out, pattern


def _kept_for_later(
    run: ActiveRun, later: dict[str, DeferredAttention], path: str, q: Tensor, k: Tensor, v: Tensor, terms: Terms
) -> Tensor:
    """z, and of all else what it takes to do it again."""
    assert isinstance(run.tape, Tape)
    limits = run.limits_of(terms, q.shape[-2], k.shape[-2], q.device)
    tape = SpyTape(run.tape.without_keeping().at(path))
    z, _ = attend(q, k, v, terms, tape, limits)
    run.tape.names.extend(f"{path}.{one}" for one in tape.names)
    reduced = None if run.reduce is None else run.reduce(path, tape.seen)
    later[path] = DeferredAttention(q, k, v, terms, limits, tuple(tape.names), reduced)
    return z.transpose(1, 2).contiguous()


def _cut(added: Tensor | None, key: Tensor) -> Tensor | None:
    """The part of a mask or bias that belongs to these keys: some are prepared for more than there are."""
    return None if added is None else added[..., : key.shape[-2]]
