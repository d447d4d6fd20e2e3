"""Who is next: one run a device, and nobody waits behind somebody else's long list.

Everyone's first waiting run comes before anyone's second. Among equals, whoever got their last turn longest ago comes first,
then whoever asked first. Turns are counted, not timed: a clock can be set back. Turns of runs that were thrown away count too,
or deleting what is finished would be a way to the front. A run whose worker stopped before its first report is started again
before all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xformer.training.entry import Entry

CPU = "cpu"


def devices() -> list[str]:
    """The devices of this machine that each train one run at a time: every GPU, and the processor."""
    import torch  # only now: an order to a run need not wait for it

    return [*(f"cuda:{index}" for index in range(torch.cuda.device_count())), CPU]


def suits(entry: Entry, device: str, available: Sequence[str]) -> bool:
    """Whether a run may be trained on a device: the one it asked for, or with "auto" the GPUs where there are some.

    A run that asks for a GPU which is gone may have the processor: its worker says so.
    """
    gpus = [name for name in available if name != CPU]
    if entry.wanted == "auto":
        return device in (gpus or [CPU])
    if entry.wanted == "cuda":
        return device in (gpus or [CPU])
    return device == entry.wanted if entry.wanted in available else device == CPU


def in_turn(entries: Sequence[Entry]) -> list[Entry]:
    """The waiting runs among all entries, in the order in which they will be trained."""
    last_turn: dict[str, int] = {}
    being_trained = Counter(entry.owner for entry in entries if entry.is_active)
    for entry in entries:
        last_turn[entry.owner] = max(last_turn.get(entry.owner, 0), entry.turn)
    in_queue = (entry for entry in entries if entry.state == "queued" and entry.deleted is None)
    waiting = sorted(in_queue, key=lambda entry: entry.number)
    nth: Counter[str] = Counter()
    ranked = []
    for entry in waiting:
        rank = being_trained[entry.owner] + nth[entry.owner]
        nth[entry.owner] += 1
        ranked.append(((entry.unreported_starts == 0, rank, last_turn[entry.owner], entry.number), entry))
    return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]


def next_for(device: str, entries: Sequence[Entry], available: Sequence[str]) -> list[Entry]:
    """The waiting runs that may have a device, the next one first; none while it is taken."""
    if any(entry.is_active and entry.device == device for entry in entries):
        return []
    return [entry for entry in in_turn(entries) if suits(entry, device, available)]


def place(run: str, entries: Sequence[Entry], available: Sequence[str]) -> int:
    """How many waiting runs come before this one on the device it will get; 0 is the next."""
    waiting = in_turn(entries)
    mine = next((entry for entry in waiting if entry.id == run), None)
    if mine is None:
        return 0
    ahead = waiting[: waiting.index(mine)]
    return sum(any(suits(entry, device, available) and suits(mine, device, available) for device in available)
               for entry in ahead)  # fmt: skip
