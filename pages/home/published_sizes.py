"""“The paper's sizes”: parameters counted part by part beside what is printed, and a forward pass of such a model."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import pandas as pd
import streamlit as st
import torch
from jaxtyping import Float
from torch import Tensor

from pages.components.attention_view import attention_choice, attention_view
from pages.shared.byte_cache import kept
from pages.shared.link_widgets import choose
from xformer import ModelConfig, Transformer, record
from xformer.analysis.attention_patterns import SCORES, pattern_scores
from xformer.counting import Part, count_with_projections_to, n_parameters, parameters_by_part
from xformer.presets import PUBLISHED
from xformer.reading import from_trace
from xformer.trace import Trace
from xformer.viz.packing import AnyLayer, pack, pattern_layers
from xformer.words import percent

KEY = "published_attention"
N_SOURCE, N_TARGET = 12, 9
OVERCOUNT = "base, over-counted"
CONTEXT = 1024


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward pass of a model with random weights."""

    trace: Trace
    layers: list[AnyLayer]
    seconds: float
    loss: float
    """Mean −log p of random tokens, in nats."""


def published_panel() -> None:
    """Draw the audit of the model that is chosen, and its forward pass once it is asked for."""
    options = {name: one.title for name, one in PUBLISHED.items()} | {OVERCOUNT: "Base, over-counted"}
    chosen = choose("paper", options, next(iter(options)), "Configuration", label_visibility="collapsed")
    if chosen == OVERCOUNT:
        _overcount()
        return
    published = PUBLISHED[chosen]
    config, n = published.model, n_parameters(published.model)
    st.markdown(
        f"**{n:,}** by formula; **{published.printed / 1e6:.0f} M** printed in {published.source}: "
        f"a difference of **{n - published.printed:+,}**."
    )
    show_parts(parameters_by_part(config))
    st.caption(published.note)
    if st.button(f"Run {published.title} on random tokens", icon=":material/play_arrow:", key=f"run_{chosen}"):
        st.session_state["paper_ran"] = chosen
    if st.session_state.get("paper_ran") == chosen:
        _forward(config, chosen)


def show_parts(parts: tuple[Part, ...]) -> None:
    """A table with one row per part: its name, how it is counted, its numbers, its share."""
    total = sum(part.count for part in parts)
    table = pd.DataFrame(
        {
            "part": [part.name for part in parts],
            "how it is counted": [part.formula for part in parts],
            "numbers": [part.count for part in parts],
            "share": [part.count / total for part in parts],
        }
    )
    st.dataframe(
        table,
        hide_index=True,
        column_config={
            "numbers": st.column_config.NumberColumn(format="localized"),
            "share": st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent"),
        },
    )


@kept
def forward(config: ModelConfig, seed: int = 0) -> Pass:
    """One recorded pass of a fresh model over random tokens; the model itself is let go afterwards."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model = Transformer(config, draw).eval()
        source = torch.randint(1, config.vocab_size, (1, N_SOURCE), generator=draw)
        target = torch.randint(1, config.vocab_size, (1, N_TARGET), generator=draw)
        begun = time.perf_counter()
        trace = record(model, source, target, keep=["*.pattern", "*.mask", "logits"])
        seconds = time.perf_counter() - begun
    labels = torch.randint(1, config.vocab_size, (N_TARGET,), generator=draw)
    loss = torch.nn.functional.cross_entropy(trace.logits[0], labels).item()
    return Pass(trace, pattern_layers(from_trace(model, trace)), seconds, loss)


def _forward(config: ModelConfig, name: str) -> None:
    with st.spinner("Drawing its weights …"):
        done = forward(config)
    chance = math.log(config.vocab_size)
    st.markdown(
        f"It ran just now with random weights: {n_parameters(config):,} numbers, {N_SOURCE} source and {N_TARGET} target "
        f"tokens, logits {list(done.trace.logits.shape)} in **{done.seconds * 1e3:,.0f} ms**. Its loss on random tokens is "
        f"**{done.loss:.2f}** nats; knowing nothing costs ln {config.vocab_size:,} = {chance:.2f}."
    )
    chosen = attention_choice(KEY, done.layers)
    attention_view(pack(done.layers, selected=(chosen.layer, chosen.head)), key=KEY)
    first, last = (evenness(done.trace[f"encoder.{index}.attn.pattern"][0]) for index in (0, config.n_layers - 1))
    st.caption(
        f"Every layer and head of it, untrained. Attention in the first encoder layer is as spread out as chance makes it: its "
        f"rows have {percent(first, 0)} of the entropy of an even row, those of the last {percent(last, 0)}. No head "
        "differs from another in kind: what heads do on the other screens was learned."
    )


def evenness(pattern: Float[Tensor, "head query key"]) -> float:
    """The mean entropy of the rows as a share of that of an even row: 1 where all keys weigh the same, 0 for a single one."""
    bits = pattern_scores(pattern)[:, SCORES.index("entropy")]  # [head]
    return float(bits.mean()) / math.log2(pattern.shape[-1])


def _overcount() -> None:
    config = PUBLISHED["transformer-base"].model
    sizes = {"d_model": 512, "n_layers": 6, "d_ff": 2048, "vocab_size": 32_000}
    wrong = count_with_projections_to(CONTEXT, **sizes)
    right = count_with_projections_to(config.d_model, **sizes)
    n_wrong, n_right = (sum(part.count for part in parts) for parts in (wrong, right))
    st.markdown(
        f"**{n_wrong:,}**: what one gets for the base model when q, k, v and the output are projected to the length of the "
        f"context, {CONTEXT:,}, in place of d_model, {config.d_model}. Put right it is **{n_right:,}**; the "
        f"{n_wrong - n_right:,} between them are 18 attentions × 4 projections × ({config.d_model} × {config.d_model} + "
        f"{config.d_model}). A length is no width: weights must not know how long a text is."
    )
    show_parts(wrong)
