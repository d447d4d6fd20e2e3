"""A disk that refuses, at every point of every file that a run writes: aloud, and the old files stay whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.tiny import tiny_preset
from xformer.checkpoints import load
from xformer.training.loop import iter_train
from xformer.training.snapshots import STATE, read_state, snapshot_steps


class Disk:
    """Counts the calls to `os.name`; the n-th says that there is no space left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, full_at: int) -> None:
        self.calls, self.full_at = 0, full_at
        self.real = getattr(os, name) if name != "fsync" else lambda _: None  # which nobody sees, and takes its time
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(*args, **kwargs)


PRESET = tiny_preset(steps=6, log_every=3, snapshot_every=2)


def assert_whole(out: Path) -> None:
    """Every file that is there can be read, and there are none but these."""
    for path in out.rglob("*"):
        if path.is_dir():
            continue
        assert path.suffix != ".part", path
        if path.name == STATE:
            read_state(out)
        elif path.suffix == ".safetensors":
            load(path)
        else:
            assert path.name == "card.json"


@pytest.mark.parametrize("name", ["fsync", "replace", "fdopen"])
def test_a_run_on_a_full_disk_fails_aloud_and_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    torch.set_num_threads(1)
    with monkeypatch.context() as patch:
        counter = Disk(patch, name, full_at=0)
        list(iter_train(PRESET, out=tmp_path / "whole"))
    assert counter.calls >= 8  # four snapshots, three states, a model and its card
    for at in range(1, counter.calls + 1):
        out = tmp_path / f"{name}-{at}"
        with monkeypatch.context() as patch:
            Disk(patch, name, full_at=at)
            with pytest.raises(OSError, match="No space left on device"):
                list(iter_train(PRESET, out=out))
        assert_whole(out)
        if (out / STATE).exists():  # and with space again, the run goes on
            list(iter_train(PRESET, out=out, resume=True))
            assert snapshot_steps(out) == [0, 2, 4, 6]
            assert (out / "model.safetensors").read_bytes()[-400:] == (
                tmp_path / "whole" / "model.safetensors"
            ).read_bytes()[-400:]
