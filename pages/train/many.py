"""What Start trains: one model, many seeds of it, or a sweep over one or two settings, all of them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from pages.shared import run_store
from pages.shared.escape_markdown import escape_markdown
from pages.shared.typed import typed
from xformer.errors import XformerError
from xformer.presets import Preset
from xformer.room import megabytes
from xformer.training.resource_needs import disk_needed, memory_needed
from xformer.training.sweep_members import words
from xformer.training.sweep_values import SWEPT, USUAL, read_values

ONE, SEEDS, SWEEP = "one", "seeds", "sweep"
WAYS = {ONE: "One model", SEEDS: "Many seeds", SWEEP: "A sweep"}
NOTHING = ""
KEPT = 8
"""About so many snapshots each model of a sweep keeps: many models watch each other, not themselves."""
Settings = Mapping[str, Sequence[Any]] | None


@dataclass(frozen=True)
class Plan:
    """What Start does: `settings` are what is swept, None for one model; `is_good` is False where nothing can be started."""

    settings: Settings = None
    is_good: bool = True
    way: str = ONE

    @property
    def n(self) -> int:
        """How many models it is."""
        return math.prod(map(len, (self.settings or {}).values()))


def ask_plan() -> Plan:
    """The choice, and what belongs to it."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium", key="train_many"):
        way = st.segmented_control(
            "Start trains", list(WAYS), default=ONE, required=True, format_func=WAYS.__getitem__, key="train_way",
            persist_state="session",
        )  # fmt: skip
        if way == ONE:
            st.caption(
                "Many seeds, or a sweep over settings, are trained at once; three are ready to start.", width="content"
            )
            return Plan()
        if way == SEEDS:
            most = run_store.limits().models
            n = st.number_input(
                "Seeds", 2, max(2, most), min(16, max(2, most)), key="train_seeds", persist_state="session", width=130
            )
            plan = Plan({"seed": range(int(n))}, way=SEEDS)
        else:
            plan = _ask_sweep()
    if plan.is_good:
        st.caption(
            f"{plan.n} models of one shape, trained as one stacked computation; each of them becomes a run of its own. "
            "Start works with any preset below, and with settings of your own."
        )
    return plan


def _ask_sweep() -> Plan:
    found: dict[str, list[Any]] = {}
    problem = ""
    for number, first in enumerate(("peak_lr", "seed")):
        options = list(SWEPT) if number == 0 else [NOTHING, *SWEPT]
        name = st.selectbox(
            "Sweep" if number == 0 else "and", options, index=options.index(first), key=f"sweep_name_{number}",
            format_func=lambda name: words(name) if name else "nothing else", persist_state="session", width=170,
        )  # fmt: skip
        if not name:
            continue
        text = st.text_input(
            "over", USUAL[name], key=f"sweep_values_{number}_{name}", persist_state="session", width=250,
            help="Numbers with commas between them; 0-15 for whole numbers.",
        )  # fmt: skip
        try:
            values = read_values(name, typed(text, 400))
        except XformerError as error:
            problem = problem or str(error)
            continue
        if name in found:
            problem = problem or f"A sweep over two settings needs two different ones, got {words(name)} twice."
        found[name] = values
    if problem:
        st.error(escape_markdown(problem), icon=":material/edit:")
    return Plan(found, not problem, SWEEP)


def with_few_snapshots(preset: Preset) -> Preset:
    """A preset that keeps a few snapshots only: many models keep theirs at once."""
    return replace(preset, train=preset.train.replace(snapshot_every=max(1, preset.train.steps // KEPT)))


def takes(settings: Preset, plan: Plan) -> str:
    """What it takes of memory and of the disk, as Markdown."""
    memory = memory_needed(settings, n_models=plan.n)
    disk = plan.n * disk_needed(settings if plan.settings is None else with_few_snapshots(settings))
    return f"**Memory:** about {megabytes(memory)}. **Disk:** {megabytes(disk)}."


def name_of(preset: Preset, settings: Mapping[str, Sequence[Any]]) -> str:
    """What a sweep is called, unless a person says so."""
    if list(settings) == ["seed"]:
        return f"{preset.title} × {len(settings['seed'])} seeds"
    return f"{preset.title}: {' × '.join(map(words, settings))}"
