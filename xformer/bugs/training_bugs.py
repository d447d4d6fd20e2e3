"""Bugs of the training loop: they leave the model right and teach it wrongly."""

from __future__ import annotations

import copy

from xformer.bugs.bug import Bug

TRAINING_BUGS = (
    Bug(
        "no-clipping",
        "No gradient clipping",
        "Gradients are used at whatever length they come, and one bad batch throws the weights far away.",
        "loops that go straight from loss.backward() to optimizer.step(); the same author warns of it afterwards",
        "w ← w − η · Adam(g)",
        "w ← w − η · Adam(g · min(1, c / ‖g‖))",
        "The gradient's length in the curve: what clipping would have cut off. At a high learning rate the loss jumps.",
        "nothing but training",
        copy.deepcopy,
        shows="in training",
        train_changes=(("clip_norm", 0.0),),
    ),
    Bug(
        "loss-on-padding",
        "The loss counts padding",
        "Padded cells are scored like real ones, so saying “padding” at padding is most of what is learned first.",
        "a cross-entropy without ignore_index, on targets padded with zeros",
        "loss = mean over all cells of −log p(label)",
        "loss = mean over real tokens of −log p(label)",
        "A loss that looks good early: most of it is padding, answered rightly.",
        "nothing but training",
        copy.deepcopy,
        shows="in training",
        counts_padding=True,
    ),
)
