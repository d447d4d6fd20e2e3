"""The lock that says whether a process lives: its own, inherited, dropped with its last holder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xformer.training.liveness import holder, is_held, sign, take, take_within

HOLD = "import sys, time; print('here', flush=True); time.sleep(600)"


def child_with(descriptor: int) -> subprocess.Popen[str]:
    """A process that has inherited a descriptor, and has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], pass_fds=(descriptor,), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.stdout.close()
    return process


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    assert not is_held(path)
    assert not path.exists()  # looking leaves nothing behind
    mine = take(path)
    assert mine is not None
    assert is_held(path)
    assert take(path) is None
    os.close(mine)
    assert not is_held(path)
    again = take(path)
    assert again is not None
    os.close(again)


def test_of_many_that_take_it_at_once_one_gets_it(tmp_path: Path) -> None:
    path, barrier, taken = tmp_path / "lock", threading.Barrier(8), []

    def grab() -> None:
        barrier.wait()
        taken.append(take(path))

    threads = [threading.Thread(target=grab) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [descriptor for descriptor in taken if descriptor is not None]
    assert len(held) == 1
    os.close(held[0])


def test_a_child_inherits_the_lock_and_its_death_drops_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = take(path)
    assert mine is not None
    child = child_with(mine)
    os.close(mine)  # whoever started it lets go at once, and may end
    assert is_held(path)
    child.kill()
    child.wait()
    assert not is_held(path)


def test_other_children_do_not_inherit_it(tmp_path: Path) -> None:
    """Else a browser, a compiler, or the next worker would keep a dead run alive."""
    path = tmp_path / "lock"
    mine = take(path)
    assert mine is not None
    other = os.open(tmp_path, os.O_RDONLY)
    child = child_with(other)
    os.close(other)
    os.close(mine)
    assert not is_held(path)
    child.kill()
    child.wait()


def test_waiting_for_a_holder_to_let_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = take(path)
    assert mine is not None
    assert take_within(path, 0.05) is None
    timer = threading.Timer(0.05, os.close, [mine])
    timer.start()
    theirs = take_within(path, 60)
    assert theirs is not None
    os.close(theirs)
    timer.join()


@pytest.mark.parametrize("content", ["", "nonsense", "12\n34"])
def test_a_lock_that_nobody_has_signed_names_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock").write_text(content)
    assert holder(tmp_path / "lock") is None
    assert holder(tmp_path / "nothing") is None


def test_the_signature_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for pid in (1234567, 89):
        mine = take(path)
        assert mine is not None
        sign(mine, pid)
        assert holder(path) == pid
        os.close(mine)
