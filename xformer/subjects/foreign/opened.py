"""A foreign model that is open: where its parts are, by which way its attention is read, and how one run of it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xformer.edits import AnyEdit
from xformer.errors import EditError
from xformer.model_shape import READ_ONLY
from xformer.subjects.foreign.active_run import ActiveRun, Catches, running
from xformer.subjects.foreign.layout import Layout
from xformer.subjects.foreign.on_demand import Calls, Later, OnDemand, Reduce
from xformer.subjects.foreign.output_head import OutputHead
from xformer.subjects.foreign.returned_attention import asking, returned_patterns
from xformer.subjects.foreign.softmax_mode import SoftmaxMode
from xformer.tape import Tape, graph_of

Rung = Literal[1, 2, 3]
"""1: our attention in the place of the model's own. 2: its own, watched at its softmax. 3: what it returns of it, read only."""
Inputs = dict[str, Any]
"""What the model is called with, by the names of its arguments."""


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model with taps on it. Only read: any number of threads may run it at once."""

    module: nn.Module
    layout: Layout
    rung: Rung
    call: Callable[[nn.Module, Inputs], Any]
    """How the module is called."""
    logits_of: Callable[[Any], Tensor]
    """The logits in what it returns."""
    head: OutputHead | None = None
    """From the last state of the stream to the logits; None where they do not follow from that alone."""

    def run(
        self,
        inputs: Inputs,
        *,
        n_batch: int = 1,
        edits: Sequence[AnyEdit] = (),
        keep: Sequence[str] = ("*",),
    ) -> dict[str, Tensor]:
        """One run under `edits`; the activations that `keep` asks for. Raises `EditError` where a name is never met."""
        if self.rung == 3 and edits:
            raise EditError(READ_ONLY)
        tape = Tape(edits, keep, fused=True)
        with graph_of(edits):
            self._once(inputs, n_batch, tape)
        if tape.never_matched():  # layers without a tape named nothing, and the error lists them all
            everything = Tape()
            with torch.no_grad():
                self._once(inputs, n_batch, everything)
            tape.names = everything.names
        tape.check_all_fired()
        return tape.activations

    def run_on_demand(
        self,
        inputs: Inputs,
        *,
        n_batch: int = 1,
        edits: Sequence[AnyEdit] = (),
        keep: Sequence[str] = ("*",),
        reduce: Reduce | None = None,
    ) -> OnDemand:
        """The same for a large model read by rung 1: everything can be asked for, and `keep` says what of it is kept.

        Patterns are never kept, but what `reduce` makes of each.
        """
        tape, later, calls = Tape(edits, keep, fused=True), {}, Calls()
        with torch.no_grad():
            self._once(inputs, n_batch, tape, later, reduce, calls.keep)
        if any(glob != "*" for glob in tape.never_matched()):
            return OnDemand(
                self.run(inputs, n_batch=n_batch, edits=edits), [], {}, (), lambda names: {}, calls
            )  # raises

        def record(names: Sequence[str]) -> dict[str, Tensor]:
            return self.run(inputs, n_batch=n_batch, edits=edits, keep=names)

        return OnDemand(tape.activations, tape.names, later, edits, record, calls)

    def plain(self, inputs: Inputs) -> Tensor:
        """The logits alone, nothing recorded and nothing changed."""
        with torch.no_grad(), running(None):
            return self.logits_of(self.call(self.module, inputs))

    def _once(
        self,
        inputs: Inputs,
        n_batch: int,
        tape: Tape,
        later: dict[str, Later] | None = None,
        reduce: Reduce | None = None,
        catches: Catches | None = None,
    ) -> None:
        run = ActiveRun(tape, self.layout.paths, n_batch, later=later, reduce=reduce, catches=catches)
        watching = SoftmaxMode(run) if self.rung == 2 else nullcontext()
        asked = asking(self.module, inputs) if self.rung == 3 else inputs
        with running(run), watching:
            output = self.call(self.module, asked)
        if self.rung == 3:
            patterns = returned_patterns(output, self.layout.attention[0].stack)
            run.n_attentions = len(patterns)
            for site, pattern in patterns.items():
                tape(f"{site.path}.pattern", pattern)
        if run.n_attentions != len(self.layout.paths):
            raise EditError(
                f"This run met {run.n_attentions} attention layers and there were {len(self.layout.paths)} when the model "
                "was opened, so their names cannot be trusted; open it again with an input like this one."
            )
        tape("logits", self.logits_of(output))
