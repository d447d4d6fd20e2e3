"""What to notice about positions: what goes without them, how slow the waves are, and what the curves share."""

from __future__ import annotations

from pages.positions.switched_off import with_and_without
from pages.shared.layout import what_to_notice
from pages.shared.models import card_of_model
from pages.shared.view import View
from xformer.analysis.attention_patterns import looks_back_only
from xformer.analysis.positions import wavelengths


def position_notes(view: View, side: str | None, show: str) -> None:
    """The notes that fit what is shown and this model's kind of positions, with the numbers of this run."""
    notes = {"attention": _about_loss, "own": _about_own, "offsets": _about_band, "kinds": _about_sums}
    if show in notes and (note := notes[show](view, side)):
        what_to_notice([note])


def _about_loss(view: View, side: str | None) -> str:
    without, off = with_and_without(view)
    n = len(without.asked)
    loss = f"the loss goes from {without.loss:.4f} to {off.loss:.4f} nats."
    if not without.asked:
        said = ""
    elif view.input.goes_on or (view.shape.image and without.has_right_answer):
        said = f"Without positions {loss} "
    elif without.has_right_answer:
        said = f"Without positions {off.n_right} of {n} are right instead of {without.n_right}, and {loss} "
    else:
        return ""
    if len(off.tokens) == 1:
        return said
    if not view.is_pair and not looks_back_only(off):
        return said + "The tokens are all still there; only **where** they stand is gone."
    if looks_back_only(off, "decoder" if view.is_pair else None):
        who = "What order is left to the decoder" if view.is_pair else "What order is left"
        return said + f"{who} comes from the **causal mask**, which still tells how many tokens came before."
    return said


def _about_own(view: View, side: str | None) -> str:
    return " ".join(filter(None, (_about_waves(view, side), _about_numbers(view, side))))


def _about_numbers(view: View, side: str | None) -> str:
    """Which position numbers training showed it: those of its inputs, or any, where they were drawn at random."""
    config, train = view.config, card_of_model(view.model).get("train")
    longest = view.longest_trained(side)
    if not isinstance(train, dict) or config.position_kind.acts_on == "nothing" or longest >= config.max_len:
        return ""
    if train.get("random_positions"):
        return (
            f"Its inputs had at most {longest} tokens, and yet every number up to {config.max_len - 1} was trained: each "
            "sequence got growing **numbers with gaps, drawn at random**. Only what their order and their equality say could "
            "be learned, and that is the same in longer inputs; Home counts how far it carries."
        )
    if config.position_kind.learned(config) and not train.get("weight_decay"):
        return (
            f"No input of its training reached position {longest}: the vectors from there on are **as they were drawn** at the "
            "start, and an input that needs them is beyond what it has learned."
        )
    return ""


def _about_waves(view: View, side: str | None) -> str:
    config = view.config
    if not config.position_kind.wave_width(config):
        return ""
    waves, longest = wavelengths(config), view.longest_trained(side)
    slow = int((waves > 4 * longest).sum())
    said = f"The fastest wave turns once in {waves[0]:.2f} positions, the slowest in {waves[-1]:,.0f}."
    if slow:
        said += (
            f" {slow} of the {len(waves)} waves do not get through a quarter of a turn in the {longest} positions of the "
            "longest input of its task: they hardly tell its positions apart."
        )
    return said


def _about_band(view: View, side: str | None) -> str:
    config = view.config
    return config.position_kind.offset_note(config)


def _about_sums(view: View, side: str | None) -> str:
    if view.shape.d_model % 2:
        return ""
    return (
        "Drawn by how far apart, **sinusoidal** and **rotary** are the same kind of sum, Σ cos(offset · ω): one adds its waves "
        "to the vectors, d_model wide; the other turns queries and keys by them, d_head wide (and here 1 at offset 0)."
    )
