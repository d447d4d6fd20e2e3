"""Attention sums and a recorded run of a long input against the pass alone: seconds and peak memory, in one run.

    python -m benchmarks.long_inputs [TOKENS] [LAYERS] [--kept MEGABYTES]

The model has the sizes of SmolLM2-135M and arbitrary weights. The plain pass is that of Transformers with PyTorch's fused
kernel.
"""

from __future__ import annotations

import argparse
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import xformer
from benchmarks.measure import resident

SIZES = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
MEGABYTE = 1024**2
RECORDED = 2048
"""The longest input of which a recorded run is measured too."""


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """The seconds that work takes, and by how many megabytes its peak exceeds the memory before it."""
    gc.collect()
    before, peak, done = resident(os.getpid()), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, resident(os.getpid()))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    begun = time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    done.set()
    thread.join()
    return seconds, (peak - before) / MEGABYTE


def compare(n_tokens: int, n_layers: int, kept: int = 256) -> dict[str, float]:
    """Measure both passes, and the time for the weights of 100 queries afterwards. `kept` is `kept_bytes` in megabytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=n_layers, **SIZES)
    model: Any = LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    ids = torch.randint(0, SIZES["vocab_size"], (1, n_tokens))
    xformer.attention_summary(model, ids[:, :64])  # opens the model
    summaries = []
    with torch.no_grad():
        plain, plain_peak = measured(lambda: model(ids, logits_to_keep=1, use_cache=False))
    keep = {"kept_bytes": kept * MEGABYTE}
    ours, our_peak = measured(lambda: summaries.append(xformer.attention_summary(model, ids, **keep)))
    rows, _ = measured(lambda: summaries[0].weights(0, head=1, queries=slice(n_tokens - 100, n_tokens)))
    recorded = {}
    if n_tokens <= RECORDED:
        seconds, peak = measured(lambda: xformer.read(model, ids))
        recorded = {"recorded_seconds": seconds, "recorded_peak_mb": peak, "recorded_ratio": seconds / plain}
    return {
        "plain_seconds": plain, "plain_peak_mb": plain_peak, "sums_seconds": ours, "sums_peak_mb": our_peak,
        "ratio": ours / plain, "rows_seconds": rows, **recorded,
    }  # fmt: skip


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=int, nargs="?", default=8192)
    parser.add_argument("layers", type=int, nargs="?", default=4)
    parser.add_argument("--kept", type=int, default=256, help="kept_bytes, in megabytes")
    options = parser.parse_args()
    for name, value in compare(options.tokens, options.layers, options.kept).items():
        print(f"{name:16} {value:10.2f}")


if __name__ == "__main__":
    main()
