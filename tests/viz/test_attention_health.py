"""Charts of `AttentionHealth` records: maps, the timeline, and the notebook report."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import xformer
from tests.integrations.faulty_gpt import GPT
from tests.viz.drawn_file import all_rows, ends_of
from xformer.errors import InputError
from xformer.integrations import AttentionHealth
from xformer.viz.attention_health import health_map, health_timeline
from xformer.viz.packing import header_of
from xformer.viz.timeline import MAGIC


@pytest.fixture(scope="module")
def health() -> AttentionHealth:
    torch.manual_seed(0)
    model = GPT(19, d_model=12, n_heads=3, max_len=11, fault="leaking mask")
    found = AttentionHealth(torch.arange(14).reshape(2, 7), every=5, causal=True)
    for step in (0, 5, 10):
        found.step(model, step, loss=3.0)
    return found


def test_the_map_has_a_cell_per_probe_and_head(health: AttentionHealth) -> None:
    chart, table = health_map(health.table(), "entropy_p50"), health.table()
    rows = all_rows(chart)
    assert len(rows) == 3 * 2 * 3
    assert sorted(row["value"] for row in rows) == pytest.approx(sorted(table["entropy_p50"]))
    assert ends_of(chart) == (0, 1)


def test_a_map_of_many_heads_has_fewer_columns_and_the_last_probe(health: AttentionHealth) -> None:
    one = health.table().iloc[:1]
    many = pd.concat([one.assign(head=head, step=step) for head in range(270) for step in range(0, 400, 10)])
    rows = all_rows(health_map(many, "entropy_p50"))
    assert 4_000 < len(rows) <= 5_000
    assert max(row["step"] for row in rows) == 390


def test_unknown_measures_and_empty_tables_raise(health: AttentionHealth) -> None:
    with pytest.raises(InputError, match=r"is one of score_max, .*, got 'entropy'; for example 'entropy_p50'"):
        health_map(health.table(), "entropy")
    with pytest.raises(InputError, match="no probe to draw yet"):
        health_map(health.table().iloc[:0], "moved")
    with pytest.raises(InputError, match="at least one step"):
        health_timeline((), {}, scores={}, steps=1)


def test_the_report_shows_alarms_and_charts(health: AttentionHealth) -> None:
    shown = health.report()._repr_html_()
    assert "leak" in shown
    assert "later tokens" in shown
    assert shown.count("<svg") >= 3
    assert "No alarm." in AttentionHealth(torch.arange(7))._repr_html_()


def test_encoder_decoder_timeline_has_the_tokens_of_both_stacks() -> None:
    model = xformer.load("checkpoints/reverse-seq2seq").model
    health = AttentionHealth(([3, 7, 12, 9], [3, 4, 5]), every=1)
    health.step(model, 1)
    record = health.record
    film = health_timeline(record.tokens, {1: record.planes(1)}, scores={}, steps=1, target_tokens=record.target)
    header = header_of(film, MAGIC)
    assert [len(tokens) for _, tokens in header["reads"]] == [4, 3]
    sides = {layer["path"]: (layer["rows"], layer["cols"]) for layer in header["layers"]}
    assert sides["encoder.0.attn"] == (4, 4)
    assert sides["decoder.0.self_attn"] == (3, 3)
    assert sides["decoder.0.cross_attn"] == (3, 4)
    rows = all_rows(health_map(health.table(), "moved"))
    assert len({row["name"] for row in rows}) == len(rows)
    with pytest.raises(InputError, match="in this timeline"):
        health_timeline(record.tokens, {1: record.planes(1)}, scores={}, steps=1)
