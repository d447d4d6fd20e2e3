"""What an exercise or a prediction of a lesson comes to, computed in Python: no line of it is shared with the page."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xformer import edits
from xformer.checkpoints import Checkpoint, load
from xformer.errors import XformerError
from xformer.files import snapshot_file, snapshot_steps
from xformer.live.export import pack_model
from xformer.live.lesson import Exercise, Lesson, Predict
from xformer.tasks.batch import IGNORED
from xformer.trace import record
from xformer.viz.packing import header_of

State = dict[str, Any]
NONE: State = {
    "replace": {},
    "mask": "trained",
    "drawn": [],
    "ablate": [],
    "cut": [],
    "positions": True,
    "step": None,
    "layer": 0,
    "head": 0,
    "query": None,
    "key": None,
    "tab": "attention",
}
MARGIN = 1e-3
"""By how much the largest weight leads."""


@dataclass(frozen=True)
class Ran:
    """One run: tokens at the outputs, the right ones or None, and [head, query, key] of each attention layer."""

    predicted: tuple[int, ...]
    right: tuple[int, ...] | None
    patterns: dict[str, np.ndarray]
    n_typed: int

    @property
    def is_right(self) -> bool:
        return self.predicted == self.right


class Oracle:
    """The models of a lesson with the weights of its page, and what states come to."""

    def __init__(self, lesson: Lesson, model: Path) -> None:
        self.lesson = lesson
        self.steps = snapshot_steps(model)
        trained = load(model)
        snapshots = [(step, load(snapshot_file(model, step))) for step in self.steps[:-1]]
        self.packed = pack_model(
            trained, [*snapshots, (self.steps[-1], trained)] if snapshots else (), lesson.input, name="m"
        )
        header = header_of(self.packed, b"XLIV")
        kinds = [one["kind"] for one in header["snapshots"]]
        self.steps = [one["step"] for one in header["snapshots"]] if snapshots else []
        found = dict(snapshots)
        self.models: dict[int | None, Checkpoint] = {None: rounded(trained, kinds[-1])}
        for step, kind in zip(self.steps[:-1], kinds[:-1], strict=False):
            self.models[step] = rounded(found[step], kind)
        if self.steps:
            self.models[self.steps[-1]] = self.models[None]
        self._kept: dict[str, Ran] = {}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        task = self.models[None].task
        assert task is not None
        return task.vocabulary.labels

    @cached_property
    def heads(self) -> dict[str, int]:
        return {path: len(rows) for path, rows in self.run({**NONE, "input": self.lesson.input}).patterns.items()}

    def token(self, text: str) -> int:
        if text not in self.labels:
            raise XformerError(f"no token {text}")
        return self.labels.index(text)

    def run(self, state: State) -> Ran:
        """Raises `XformerError` where the model cannot read it."""
        key = repr(
            [state[name] for name in ("input", "replace", "mask", "drawn", "ablate", "cut", "positions", "step")]
        )
        if key not in self._kept:
            self._kept[key] = self._run(state)
        return self._kept[key]

    def _run(self, state: State) -> Ran:
        if state["step"] not in self.models:
            raise XformerError(f"no step {state['step']}")
        checkpoint = self.models[state["step"]]
        task, model = checkpoint.task, checkpoint.model
        assert task is not None
        source = task.vocabulary.read(state["input"])
        replaced = {int(at): self.token(text) for at, text in state["replace"].items()}
        source = [replaced.get(at, token) for at, token in enumerate(source)]
        example = task.example(source, max_len=model.config.max_len)
        stream, labels, target = example.stream.clone(), example.labels, example.target
        for at, token in replaced.items():  # beyond the source a token is replaced where it is read, and nothing else
            if len(source) <= at < stream.shape[1]:
                stream[0, at] = token
        trace = record(model, stream, target, edits=self.edits(state, stream, target, model))
        asked = (labels[0] != IGNORED).nonzero()[:, 0]
        predicted = tuple(trace.logits[0, asked].argmax(dim=-1).tolist())
        answer = tuple(labels[0, asked].tolist())
        patterns = {path: pattern[0].detach().numpy() for path, pattern in trace.patterns().items()}
        return Ran(predicted, answer, patterns, len(source))

    def edits(self, state: State, stream: torch.Tensor, target: torch.Tensor | None, model: Any) -> list[Any]:
        made: list[Any] = []
        if state["mask"] in ("causal", "full"):
            made.append(edits.set_causal(state["mask"] == "causal"))
        elif state["mask"] == "drawn":
            bare = record(model, stream, target)
            own = [path for path in bare.patterns() if not path.endswith("cross_attn")]
            own = [path for path in own if path.startswith(own[-1].split(".")[0])]
            allowed = bare[f"{own[-1]}.scores"][0, 0].detach().isfinite()  # [query, key]
            for cell in set(state["drawn"]):
                query, key = map(int, cell.split("."))
                if query < len(allowed) and key < len(allowed):
                    allowed[query, key] = ~allowed[query, key]
            made += [edits.set_mask(path, allowed) for path in own]
        made += [edits.ablate_head(path, int(head)) for path, head in (one.rsplit(".", 1) for one in state["ablate"])]
        for one in state["cut"]:
            path, head, query, key = one.rsplit(".", 3)
            made.append(edits.mask_edges(path, [(int(query), int(key))], None if head == "*" else [int(head)]))
        return made if state["positions"] else [*made, edits.zero_positions()]

    def bare(self, state: State) -> Ran:
        """The run of the same input without changes, at the same training step."""
        return self.run({**state, **{name: NONE[name] for name in NONE if name != "step"}})

    # ── exercises ──

    def solved(self, exercise: Exercise, given: State) -> bool:
        """Whether a state solves an exercise."""
        state = {**NONE, "input": self.lesson.input} | given
        try:
            return self.is_allowed(exercise, state) and getattr(self, f"_{exercise.goal}")(exercise, state)
        except XformerError:
            return False

    def counts(self, exercise: Exercise, state: State) -> dict[str, int]:
        """The changes of each kind that count."""
        mask = {"trained": 0, "drawn": max(1, len(set(state["drawn"])))}.get(state["mask"], 1)
        numbers = {
            "ablate": len(set(state["ablate"])), "cut": len(set(state["cut"])), "mask": mask,
            "positions": int(not state["positions"]), "replace": len(state["replace"]),
        }  # fmt: skip
        return {kind: n for kind, n in numbers.items() if kind not in exercise.details.get("keep", ())}

    def is_allowed(self, exercise: Exercise, state: State) -> bool:
        began, details = {**NONE, "input": self.lesson.input} | dict(exercise.start), exercise.details
        keep = details.get("keep", ())
        if "input" not in exercise.allow and state["input"].split() != began["input"].split():
            return False
        for kind in keep:
            names = ("mask", "drawn") if kind == "mask" else (kind,)
            if any(state[name] != began[name] for name in names):
                return False
        if state["step"] is not None and "step" not in (*exercise.allow, *keep):
            return False
        counts = self.counts(exercise, state)
        if any(n and kind not in exercise.allow for kind, n in counts.items()):
            return False
        if sum(counts.values()) > details.get("at_most", 10**6):
            return False
        if "shortest" in details or "longest" in details:
            task = self.models[None].task
            assert task is not None
            n = len(task.vocabulary.read(state["input"]))
            return details.get("shortest", 0) <= n <= details.get("longest", 10**6)
        return True

    def _breaks(self, exercise: Exercise, state: State) -> bool:
        return (
            self.bare(state).is_right
            and sum(self.counts(exercise, state).values()) > 0
            and not self.run(state).is_right
        )

    def _wrong_input(self, exercise: Exercise, state: State) -> bool:
        ran = self.run(state)
        return ran.right is not None and not ran.is_right

    def _right_input(self, exercise: Exercise, state: State) -> bool:
        return self.run(state).is_right

    def _attends(self, exercise: Exercise, state: State) -> bool:
        pattern, query, key = self.run(state).patterns[exercise.details["site"]], *self._cell(exercise)
        head = exercise.details.get("head")
        rows = pattern[:, query] if query < pattern.shape[1] else pattern[:, :0].reshape(len(pattern), 0)
        for row in rows if head is None else rows[[head]]:  # [key]
            if key < len(row) and row[key] - max([*np.delete(row, key), 0.0]) > MARGIN:
                return True
        return False

    def _cell(self, exercise: Exercise) -> tuple[int, int]:
        return exercise.details["query"], exercise.details["key"]

    def _same_answer(self, exercise: Exercise, state: State) -> bool:
        bare, ran = self.bare(state), self.run(state)
        counts = self.counts(exercise, state)
        cut = set(state["cut"])
        working = 0
        for one in cut:
            path, head, query, key = one.rsplit(".", 3)
            numbers = range(self.heads[path]) if head == "*" else [int(head)]
            if head != "*" and f"{path}.*.{query}.{key}" in cut:
                continue
            rows = bare.patterns[path]
            is_cell = int(query) < rows.shape[1] and int(key) < rows.shape[2]
            alive = [n for n in numbers if f"{path}.{n}" not in state["ablate"]]
            working += is_cell and any(rows[n, int(query), int(key)] > 0 for n in alive)
        total = sum(counts.values()) - counts.get("cut", 0) + working
        return total >= exercise.details["at_least"] and bare.predicted == ran.predicted

    def _first_step(self, exercise: Exercise, state: State) -> bool:
        step = self.steps[-1] if state["step"] is None else state["step"]
        least = exercise.details["at_least"]
        values = [self.measured(exercise.details["measure"], {**state, "step": one}) for one in self.steps]
        first = next((one for one, value in zip(self.steps, values, strict=True) if value >= least), None)
        return step == first

    def _predicts(self, exercise: Exercise, state: State) -> bool:
        predicted, output = self.run(state).predicted, exercise.details["output"]
        return output < len(predicted) and self.labels[predicted[output]] == exercise.details["token"]

    # ── predictions ──

    def measured(self, measure: Any, state: State) -> float:
        ran = self.run(state)
        if measure["of"] == "right":
            return float(np.mean([a == b for a, b in zip(ran.predicted, ran.right or (), strict=True)]))
        if measure["of"] == "same":
            return float(np.mean([a == b for a, b in zip(ran.predicted, self.bare(state).predicted, strict=True)]))
        pattern, n = ran.patterns[measure["site"]][measure["head"]].astype(float), ran.n_typed
        if measure["of"] == "weight":
            return float(pattern[measure["query"], measure["key"]])
        if measure["of"] == "anti_diagonal":
            return float(np.fliplr(pattern[:n, :n]).diagonal().mean())
        return float(pattern.diagonal(-1)[: n - 1].mean())

    def truth(self, asked: Predict) -> int:
        """The key, the token or the number of the choice that the model's run makes true."""
        state, details = {**NONE, "input": self.lesson.input} | dict(asked.state), asked.details
        if asked.ask == "cell":
            return int(self.run(state).patterns[details["site"]][details["head"], details["query"]].argmax())
        if asked.ask == "token":
            return self.run(state).predicted[details["output"]]
        if "best" in details:
            own = [{**NONE, "input": state["input"]} | one["state"] for one in details["choices"]]
            values = [self.measured(details["measure"], one) for one in own]
            return int(np.argmax(values) if details["best"] == "highest" else np.argmin(values))
        value = self.measured(details["measure"], state)
        return max(n for n, one in enumerate(details["choices"]) if value >= one["at_least"] or n == 0)


def rounded(checkpoint: Checkpoint, kind: str) -> Checkpoint:
    """A checkpoint with the weights that a page has of it."""
    assert kind in ("float32", "float16"), kind
    model = copy.deepcopy(checkpoint.model)
    if kind == "float16":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.half().float())
    return Checkpoint(model, checkpoint.task, checkpoint.card)
