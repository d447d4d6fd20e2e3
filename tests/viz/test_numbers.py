"""Each chart has the numbers of its table, row by row, on its documented scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch

import xformer
from tests.training.tiny import random_model
from tests.viz import test_generation
from tests.viz.drawn_file import spec_of
from tests.viz.test_generation import COUNTED
from xformer import analysis, edits, viz
from xformer.reading import Reading, from_trace
from xformer.trace import record

MODEL = random_model("encoder", positions="learned")
TOKENS = torch.tensor([[3, 7, 1, 7, 2]])
RUN = from_trace(MODEL, record(MODEL, TOKENS), [3, 1, 4, 1, 5])
CHANGED = from_trace(MODEL, record(MODEL, TOKENS, edits=[edits.zero_positions()]), [3, 1, 4, 1, 5])
NUMBERS = xformer.read(random_model("encoder"), [3, 7])
DIGIT = xformer.read("checkpoints/digits", "test 3")
STORY = xformer.read("checkpoints/characters", "The list of ")
REVERSE, OTHER = (xformer.read("checkpoints/reverse-small", text) for text in ("3 7 12 9", "3 7 5 9"))
VARIANTS, RUNS = test_generation.VARIANTS[:2], test_generation.RUNS[:2]
READINGS = [run[1] for run in RUNS]
MIXED = analysis.principles.Sentence("the cat saw the dog", d=4).attention()
FEW = {"lengths": [3, 5], "samples": 20}
SIZES = {"n_tokens": 5, "d_model": 4, "n_heads": 2}


class Case(NamedTuple):
    """A chart, its table, the columns that it shows, and the ends of the scale of the last column."""

    draw: Callable[[], Any]
    table: Callable[[], pd.DataFrame]
    columns: tuple[str, ...]
    ends: tuple[float, float] | None = None


def of(name: str, *columns: str, ends: tuple[float, float] | None = None, run: Any = RUN, **options: Any) -> Case:
    """Return the case of `viz.NAME` and `analysis.NAME` with the same arguments."""
    call = (run,) if isinstance(run, Reading) else () if run is None else run
    draw, table = (lambda: getattr(viz, name)(*call, **options)), (lambda: getattr(analysis, name)(*call, **options))
    return Case(draw, table, columns, ends)


def only(case: Case, **wanted: Any) -> Case:
    """Restrict a case to the rows of the table that the chart shows."""

    def rows() -> pd.DataFrame:
        table = case.table()
        return table.loc[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]

    return case._replace(table=rows)


CASES = {
    "vectors": of("vectors", "position", "dimension", "value", part="sum"),
    "cosines": of("cosines", "position", "other_position", "cosine", ends=(-1, 1)),
    "spectrum": of("spectrum", "frequency", "share", run=NUMBERS),
    "circle": of("circle", "number", "cosine_axis", "sine_axis", run=NUMBERS, frequency=3),
    "position_values": of("position_values", "position", "dimension", "value"),
    "position_curves": of("position_curves", "position", "dimension", "value", dimensions=[5, 0, 12]),
    "position_offsets": of("position_offsets", "offset", "low", "high", "mean", n=7),
    "turned": of("position_offsets", "offset", "low", "high", "mean", n=7, kind="rotary"),
    "attention_moved": of("attention_moved", "layer", "head", "moved", run=CHANGED, before=RUN, ends=(0, 1)),
    "attribution": of("attribution", "part", "contribution", position=3, token=4),
    "answer_path": of("answer_path", "point", "rank", "answer_probability", position=2),
    "norms": only(of("norms", "point", "position", "length")._replace(draw=lambda: viz.norms(RUN)), what="stream"),
    "promotion": of("promotion", "token", "adds", layer=1, position=2, n=3),
    "neuron": of("neuron", "position", "activation", layer=1, neuron=3),
    "attention": of("attention", "query", "key", "weight", layer=1, head=2, ends=(0, 1)),
    "rollout": of("rollout", "layer", "query", "key", "share", ends=(0, 1)),
    "classes": of("classes", "digit", "probability", run=DIGIT, ends=(0, 1)),
    "patch_filters": of("patch_filters", "filter", "pixel_x", "pixel_y", "weight", run=DIGIT),
    "filter_components": of("filter_components", "filter", "pixel_x", "pixel_y", "weight", run=DIGIT),
    "patch_cosines": of("patch_cosines", "patch", "other", "itself", "cosine", run=DIGIT, ends=(-1, 1)),
    "patching_map": of("patching_map", "layer", "position", "value", run=(REVERSE, OTHER))._replace(
        table=lambda: analysis.patching_map(REVERSE, OTHER).rename(columns={"estimated": "value"})
    ),
    "pattern_difference": of("pattern_difference", "one", "other", "difference", run=(READINGS, 1, 1), ends=(-1, 1)),
    "decision_lens": of("decision_lens", "depth", "token", "probability", run=(READINGS,), ends=(0, 1)),
    "decision_rows": only(of("decision_rows", "weight", run=(READINGS,), ends=(0, 1)), model=VARIANTS[0].name),
    "predictions_by_step": of("predictions_by_step", "model", "step", "entropy", "probability", run=(RUNS,), ends=(0, 1)),
    "next_tokens": of("next_tokens", "token", "probability", run=STORY, temperature=0.5, k=4),
    "divergence_by_step": of("divergence_by_step", "pair", "step", "kl_back", "kl", run=(RUNS,)),
    "confusion": only(
        Case(lambda: viz.confusion(COUNTED, "seed 3"), lambda: analysis.confusion(COUNTED), ("count", "share"), (0, 1)),
        model="seed 3",
    ),
    "accuracy": only(
        Case(lambda: viz.accuracy(COUNTED, "position", "exact"), lambda: analysis.accuracy(COUNTED, "position"),
             ("low", "high", "share"), (0, 1)),
        measure="exact",
    ),
    "lengths_compared": of("lengths_compared", "length", "exact_match", run=(VARIANTS,), ends=(0, 1), **FEW),
    "matrix": of("matrix", "row", "column", "value", run=(MIXED,), what="scores"),
    "weights": of("matrix", "row", "column", "value", run=(MIXED,), what="weights", ends=(0, 1)),
    "softmax_row": of("softmax_row", "key", "weight", run=None, d=8, scaled=False, ends=(0, 1)),
    "gradient": of("softmax_saturation", "d", "gradient", run=None, seed=1, ends=(0, 0.25)),
    "attention_costs": of("attention_costs", "heads", "part", "count", run=None, **SIZES),
}  # fmt: skip


def scales_of(spec: Any, column: str) -> list[list[float]]:
    """Return the domains of all scales of a column."""
    if isinstance(spec, list):
        return [domain for one in spec for domain in scales_of(one, column)]
    if not isinstance(spec, dict):
        return []
    own = [spec["scale"]["domain"]] if spec.get("field") == column and "domain" in (spec.get("scale") or {}) else []
    return own + [domain for one in spec.values() for domain in scales_of(one, column)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_chart_has_the_numbers_of_its_table_on_its_scale(case: Case) -> None:
    spec, table = spec_of(case.draw()), case.table()
    tables = [*spec.get("datasets", {}).values(), spec.get("data", {}).get("values", [])]
    [rows, *_] = [rows for rows in tables if rows and set(case.columns) <= set(rows[0])]
    for column in case.columns:
        wanted = [None if value is None or value != value else value for value in table[column].tolist()]
        assert [row[column] for row in rows] == wanted, column
    domains = scales_of({name: part for name, part in spec.items() if name != "datasets"}, case.columns[-1])
    if case.ends is not None:
        assert domains
    for domain in domains:
        assert case.ends in (None, (domain[0], domain[-1]))
        if len(domain) > 2:  # colour stops, evenly spaced from 0 or around it
            assert domain[len(domain) // 2] == pytest.approx((domain[0] + domain[-1]) / 2)
            assert domain[0] == 0 or domain[0] == pytest.approx(-domain[-1])
