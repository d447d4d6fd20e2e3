"""The named configurations: each fits its task, and has the parameters that it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from xformer.counting import n_parameters
from xformer.errors import ConfigError
from xformer.model import Transformer
from xformer.presets import PRESETS, PUBLISHED, RENAMED, preset
from xformer.task_limits import TASK_LIMITS
from xformer.tasks import Task
from xformer.training.loop import iter_train


def test_each_preset_fits_its_task() -> None:
    for name in PRESETS:
        chosen = preset(name)
        assert chosen.name == name
        Task(chosen.task).check_fits(chosen.model)
        assert chosen.title
        assert chosen.about.endswith(".")
        assert len(chosen.about) <= 400, name  # a card keeps no more
        assert 20 <= chosen.train.steps / chosen.train.snapshot_every <= 120, name  # so that it can be scrubbed through


def test_a_preset_is_found_by_its_earlier_name_and_every_task_but_copying_has_one() -> None:
    for old, new in RENAMED.items():
        assert old not in PRESETS
        assert preset(old) is preset(new)
    assert {chosen.task.name for chosen in PRESETS.values()} == set(TASK_LIMITS) - {"copy"}


def test_a_preset_of_every_kind_learns_something_in_a_few_steps() -> None:
    """Not how well: that takes minutes, and is measured. But that its batches reach its model, and that the loss falls."""
    torch.set_num_threads(1)
    for name in ("induction", "addition", "parity", "brackets", "modular", "characters", "digits"):
        chosen = preset(name)
        recipe = chosen.train.replace(steps=10, batch_size=8, warmup=0.2, log_every=5, held_out=8, snapshot_every=0)
        losses = [progress.loss for progress in iter_train(replace(chosen, train=recipe), device="cpu")]
        assert losses[-1] < losses[0], name


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        preset("revers")
    assert str(caught.value) == f"There is no preset 'revers'; the presets are {', '.join(PRESETS)}."


def paper_by_hand(vocab: int, d: int, d_ff: int) -> int:
    """Vaswani et al. 2017, §3: one matrix for both embeddings and the output; 6 + 6 layers; biases in the feed-forward."""
    attention = 4 * d * d  # W_Q, W_K, W_V and W_O of all heads side by side
    ffn = d * d_ff + d_ff + d_ff * d + d
    norm = 2 * d
    encoder_layer = attention + ffn + 2 * norm
    decoder_layer = 2 * attention + ffn + 3 * norm
    return vocab * d + 6 * encoder_layer + 6 * decoder_layer


# What is printed in Table 3, what the formula gives for 37,000 tokens, and the difference. The vocabulary is "about 37000",
# and the table is rounded to millions: neither figure can be met exactly.
TABLE_3 = {
    "transformer-base": (512, 2048, 65_000_000, 63_045_632, -1_954_368),
    "transformer-big": (1024, 4096, 213_000_000, 214_171_648, 1_171_648),
}


@pytest.mark.parametrize("name", TABLE_3)
def test_the_published_models_counted_by_hand(name: str) -> None:
    d, d_ff, printed, count, difference = TABLE_3[name]
    published = PUBLISHED[name]
    with torch.device("meta"):
        real = sum(p.numel() for p in Transformer(published.model).parameters())
    assert paper_by_hand(37_000, d, d_ff) == n_parameters(published.model) == real == count
    assert published.printed == printed
    assert count - printed == difference
    assert f"{abs(difference) / 1e6:.2f} M" in published.note  # and the note says so
