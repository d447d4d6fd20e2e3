"""The files for other tools hold the numbers of the run store: read back with a framing and a checksum written here anew."""

from __future__ import annotations

import io
import struct
import zipfile
from collections import defaultdict
from typing import Any

import pandas as pd
import pytest

from xformer.training.metric_files import event_files, folder_name, metrics_csv, scalars

ROWS = [
    {"step": 5, "seconds": 0.5, "loss": 2.25, "held_out_exact_match": 0.125, "note": "", "done": False},
    {"step": 11, "seconds": 1.5, "loss": 1e-7, "scores": {"encoder.0.attn": [0.5, 0.25]}, "done": True},
]


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum, bit by bit (RFC 3720, appendix B.4: reflected polynomial 0x82F63B78)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """As TFRecord writes it: rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(content: bytes) -> list[bytes]:
    """The records of a TFRecord file, both checksums of each compared."""
    found, at = [], 0
    while at < len(content):
        length, of_length = struct.unpack_from("<QI", content, at)
        data = content[at + 12 : at + 12 + length]
        (of_data,) = struct.unpack_from("<I", content, at + 12 + length)
        assert of_length == masked(content[at : at + 8])
        assert of_data == masked(data)
        found.append(data)
        at += 16 + length
    return found


def test_the_checksum_is_the_standard_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_event_files_hold_every_number_at_its_step_and_time() -> None:
    from tensorboardX.proto.event_pb2 import Event

    zipped = zipfile.ZipFile(io.BytesIO(event_files({"a/b 1": ROWS, "empty": []}, {"a/b 1": 1000.25, "empty": 7.0})))
    assert zipped.namelist() == [
        "a-b 1/events.out.tfevents.1000.xformer",
        "empty/events.out.tfevents.7.xformer",
    ]
    first, *events = [Event.FromString(record) for record in records(zipped.read(zipped.namelist()[0]))]
    assert first.file_version == "brain.Event:2"
    found: dict[tuple[int, float], dict[str, float]] = defaultdict(dict)
    for event in events:
        for value in event.summary.value:
            assert value.tag == value.metadata.display_name.replace(" ", "_")
            found[event.step, event.wall_time][value.metadata.display_name] = value.simple_value
    expected: dict[tuple[int, float], Any] = {
        (5, 1000.75): {"loss/training": 2.25, "held out/exact match": 0.125},
        (11, 1001.75): {"loss/training": 1e-7, "heads/encoder.0.attn.0": 0.5, "heads/encoder.0.attn.1": 0.25},
    }
    assert found == {at: pytest.approx(values) for at, values in expected.items()}
    assert len(records(zipped.read(zipped.namelist()[1]))) == 1


def test_only_finite_numbers_are_drawn() -> None:
    row = {
        "step": 1,
        "loss": float("nan"),
        "gradient_norm": float("inf"),
        "note": "x",
        "done": True,
        "best_head_score": 0.5,
    }
    assert scalars(row) == {"heads/best_head_score": 0.5}


def test_the_table_has_every_row_with_its_run() -> None:
    table = pd.read_csv(io.BytesIO(metrics_csv({"one": ROWS, "=2+3": ROWS[:1]})))
    assert table["run"].tolist() == ["one", "one", "'=2+3"]
    assert table["loss"].tolist() == [2.25, 1e-7, 2.25]
    assert table["encoder.0.attn.1"].dropna().tolist() == [0.25]


@pytest.mark.parametrize("name", ["../../etc", "/", "C:\\x", "..", "a\nb"])
def test_no_name_leads_out_of_the_zip(name: str) -> None:
    assert not set(folder_name(name)) & set("/\\:.\n")
    assert folder_name(name)
