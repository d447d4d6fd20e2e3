"""Your model: run every check of the model doctor on the open model, and draw its findings."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import streamlit as st
import torch

from pages.bug_lab.code import code_panel
from pages.components.elements import Lane, prediction_strip
from pages.compute import cached_runs, models
from pages.compute.background_job import TICK, Stoppable, progress
from pages.controls.text import escape_markdown, headline
from pages.state import screens
from pages.state.session import Opened
from pages.state.view import View
from xformer.adapters import ModelAdapter
from xformer.adapters.any_module import AnyModule
from xformer.adapters.own_models import own_model
from xformer.doctor.check import CHECKS, FaultLocation, Finding, Pair
from xformer.doctor.diagnose import UNSEEN, Diagnosis, cell_picture, iter_findings, token_model_of
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import POSITIONS_FIRST, TokenModel
from xformer.errors import InputError, XformerError
from xformer.layer_path import LayerPath, layer_title

STATE = "doctor"
UNWATCHED = 10.0
"""Seconds without a page update after which a diagnosis pauses until the visitor returns."""
FEW_TOKENS = 6
"""Inputs with fewer tokens get a warning, because many checks have nothing to change in them."""
MAX_TOKENS = 48
"""Maximum number of tokens shown of a run, around the first that differs."""
WEIGHING = ("mask", "scores", "pattern", "z")
"""Causes that count as one: all affect which positions a query attends to."""


class _Stop(BaseException):
    """Raised where the visitor cancelled, chose another model or left. A `BaseException`, so that no check catches it."""


@dataclass
class DiagnosisJob(Stoppable):
    """One visitor's diagnosis of a model. A thread runs the checks, so that the page stays responsive.

    It runs only while it is watched, and keeps no model when it does not run.
    """

    model: str
    source: tuple[int, ...]
    findings: list[Finding] = field(default_factory=list)
    n_tokens: int = 0
    """Number of tokens of the input as the model reads it; 0 until it is known."""
    problem: str = ""
    """Why the model cannot be checked."""
    watched: float = 0.0
    thread: threading.Thread | None = None

    @property
    def is_done(self) -> bool:
        """Whether all checks have run or the model cannot be checked."""
        return bool(self.problem) or len(self.findings) == len(CHECKS)

    @property
    def is_running(self) -> bool:
        """Whether checks are left and the diagnosis is not cancelled."""
        return not self.cancelled and not self.is_done

    def watch(self) -> None:
        """Keep running for `UNWATCHED` more seconds; restart the thread at the next check where it has stopped."""
        self.watched = time.monotonic()
        if self.is_running and (self.thread is None or not self.thread.is_alive()):
            self.thread = threading.Thread(target=self._work, daemon=True)
            self.thread.start()

    def _tick(self) -> None:
        if self.cancelled or time.monotonic() - self.watched > UNWATCHED:
            raise _Stop

    def _work(self) -> None:
        try:
            adapter = replace(_token_model(self.model, self.source), tick=self._tick)
            self.n_tokens = adapter.base.read.shape[1]
            for finding in iter_findings(adapter, list(CHECKS.values())[len(self.findings) :]):
                self.findings.append(_without_model(finding))
                self._tick()
        except _Stop:
            pass
        except Exception as error:  # opening and copying a module may raise anything
            self.problem = str(error) if isinstance(error, XformerError) else f"{type(error).__name__}: {error}"


def _token_model(name: str, source: tuple[int, ...]) -> TokenModel:
    """Return the model to check, as it was opened, with an input of the sidebar."""
    model = models.adapter(name)
    example = model.to_example(source)
    tokens = {"input_ids": example.input_ids}
    if example.target is not None:
        tokens["decoder_input_ids"] = example.target
    if model.opened is None:
        return token_model_of(own_model(model), tokens)
    if isinstance(model, AnyModule) and model.is_positions_first:
        raise InputError(POSITIONS_FIRST)
    inputs = model.inputs if isinstance(model, AnyModule) else tokens
    text = "" if model.tokenizer is None else model.input.text(source)
    return replace(token_model_of(model.opened.module, inputs, model.tokenizer), text=text)


def _without_model(finding: Finding) -> Finding:
    """Return a finding that a visit can keep: without the model of its second run, and with a copy of its head's weights."""
    place, pair = finding.place, finding.pair
    if place is not None and place.pattern is not None:
        place = replace(place, pattern=place.pattern.clone())
    return replace(finding, place=place, pair=None if pair is None else replace(pair, second_model=None))


def your_model(opened: Opened) -> None:
    """Check the open model with the input of the sidebar, and draw the findings."""
    name, source = opened.model, opened.source
    View(name, source, cached_runs.MASKS[0], models.adapter(name), ()).share(tab="yours")
    job: DiagnosisJob | None = st.session_state.get(STATE)
    if job is None or (job.model, job.source) != (name, source):
        if job is not None:
            job.cancel()
        st.session_state[STATE] = job = DiagnosisJob(name, source)
    is_running = job.is_running
    st.fragment(_follow, run_every=TICK if is_running else None)(job, is_running)


def _follow(job: DiagnosisJob, ticks: bool) -> None:
    """Draw the diagnosis; `ticks` is whether the fragment reruns periodically."""
    job.watch()
    try:
        model = models.adapter(job.model)
    except XformerError:  # it was removed during the visit; a rerun reports that
        st.rerun()
    if job.is_running != ticks:
        st.rerun()
    diagnosis = Diagnosis(tuple(job.findings))
    # both always exist, so that the elements below keep their place
    headline_at, bar = st.container(), st.container(key="doctor_bar")
    with headline_at:
        headline(_headline(job, diagnosis, model))
    if job.problem:
        st.info(f"This model cannot be checked. {escape_markdown(job.problem)}", icon=":material/info:")
        code_panel(job.model, job.source, None, None, "")
        return
    with bar:
        if not job.is_done:
            n, total = len(job.findings), len(CHECKS)
            check = list(CHECKS)[n].replace("_", " ")
            words, stopped = f"Check {n + 1} of {total}: {check}", f"Stopped after {n} of {total} checks."
            progress(job, "doctor", n / total, words, stopped)
        elif job.n_tokens < FEW_TOKENS:
            few = f"{job.n_tokens} token" + "s" * (job.n_tokens != 1)
            st.info(f"The input has only {few}. Many checks need ten or more.", icon=":material/short_text:")
    _findings(job, diagnosis.broken, model)
    _all_checks(diagnosis, model)
    if not ticks:  # else each rerun would send it again
        place = next((one.place for one in diagnosis.broken if one.place is not None), None)
        site = None if place is None or place.layer is None else _site(place, model)
        line = next((one.line for one in (*diagnosis.broken, *diagnosis.unusual) if one.line), "")
        code_panel(job.model, job.source, place, site, line)


def _headline(job: DiagnosisJob, diagnosis: Diagnosis, model: ModelAdapter) -> str:
    """Summarise the findings so far; "" while there are none and checks are left."""
    broken, n = diagnosis.broken, sum(one.verdict in ("holds", "broken", "unusual") for one in diagnosis.findings)
    if broken:
        fails = f"**{len(broken)} of {n} checks {'fails' if len(broken) == 1 else 'fail'}.**"
        if diagnosis.could_not_run:
            fails += f" {len(diagnosis.could_not_run)} could not run."
        if broken[0].formulas:
            line = f", {escape_markdown(broken[0].line)}" if broken[0].line else ""
            return f"{fails} The cause: **{broken[0].cause.replace('_', ' ')}**{line}."
        place = next((one.place for one in broken if one.place is not None), None)
        if place is None or not (place.what or place.layer is not None):
            return fails
        where = "" if place.layer is None else f"**{_where(place, model)}**: "
        return f"{fails} The first error is in {where}{_what(place)}."
    if not job.is_done or job.problem:
        return ""
    failed = len(diagnosis.could_not_run)
    if failed:
        unknown = f"**{failed} check{'s' if failed > 1 else ''} could not run**"
        return f"{unknown}, so errors may be missed; the other {n} that apply to this model pass."
    if not n:
        return "**No check applies** to this model with this input; the reasons are below."
    unusual = "".join(f" **Unusual:** {escape_markdown(f'{one.sentence} {one.remedy}')}" for one in diagnosis.unusual)
    passed = f"{n - len(diagnosis.unusual)} of" if unusual else "all"
    return f"**No errors found**: {passed} {n} checks that apply to this model pass.{unusual}"


def _findings(job: DiagnosisJob, broken: Sequence[Finding], model: ModelAdapter) -> None:
    """Draw the first finding in full, with those that probably share its cause; draw the others collapsed."""
    for number, same in enumerate(_by_cause(broken)):
        first, *others = same
        if number == 0:
            with st.container(border=True, key="doctor_first"):
                _finding(job, first, model)
                if others:
                    names = ", ".join(_title(one).lower() for one in others)
                    is_known = bool(first.formulas)
                    with st.expander(
                        f"{'What follows' if is_known else 'Probably the same cause'}: {names}",
                        icon=":material/call_split:",
                    ):
                        lines = [f"- **{_title(one)}**: {_sentence(one, model)}" for one in others]
                        st.markdown("\n".join(lines))
        else:
            also = f" (and {', '.join(_title(one).lower() for one in others)})" if others else ""
            with st.expander(f"**{_title(first)}**{also}: {_sentence(first, model)}", icon=":material/error:"):
                _finding(job, first, model)


def _by_cause(broken: Sequence[Finding]) -> list[list[Finding]]:
    """Group the findings by line and cause, or by layer and cause, in the order of the first of each group."""
    groups: dict[Any, list[Finding]] = {}
    for number, one in enumerate(broken):
        place = one.place
        cause = number if place is None or place.layer is None else (place.layer, place.cause)
        if isinstance(cause, tuple) and place is not None and place.cause in WEIGHING:
            cause = (place.layer, WEIGHING)
        if one.line:
            cause = (one.line, one.cause)
        groups.setdefault(cause, []).append(one)
    return list(groups.values())


def _finding(job: DiagnosisJob, finding: Finding, model: ModelAdapter) -> None:
    """Draw one finding: a sentence, the cell, a remedy, a link to Attention, and the two runs that show it."""
    place = finding.place
    drawn = "" if place is None else cell_picture(place, _names(model, place.labels))
    words, picture = st.columns([3, 2], gap="medium") if drawn else (st.container(), st.container())
    with words:
        st.markdown(f"**{_title(finding)}** · {_sentence(finding, model)}")
        st.markdown(f":material/search: {escape_markdown(finding.remedy)}")
        if place is not None and (head := _link(job, finding, place, model)):
            label = f"See this {'layer' if place.head is None else 'head'} on Attention"
            source = model.input.text(job.source)
            screens.link("attention", label, "grid_on", model=job.model, input=source, head=head)
    if place is not None and drawn:
        with picture:
            st.html(drawn)
            st.caption(f"{_where(place, model).capitalize()}: rows are queries, columns are keys")
    if finding.pair is not None and (lanes := _lanes(finding.pair, model)):
        prediction_strip(lanes, key=f"doctor_runs_{finding.check}")


def _title(finding: Finding) -> str:
    return finding.title.capitalize()


def _sentence(finding: Finding, model: ModelAdapter) -> str:
    """Describe a finding and its place."""
    place = "" if finding.place is None or finding.formulas else f" {_seen(finding.place, model)}"
    return escape_markdown(finding.sentence) + place


def _seen(place: FaultLocation, model: ModelAdapter) -> str:
    """Describe the place of a finding in a sentence."""
    if place.layer is None:
        return f"First seen in {_what(place)}." if place.what else ""
    seen = f"First seen in **{_where(place, model)}**"
    if place.query is None or place.key is None or place.pattern is None:
        return f"{seen}: {_what(place)}."
    n_query, n_key = place.pattern.shape
    names = _names(model, place.labels)
    query, key = (
        f"position {at}" + (f" “{escape_markdown(names[at])}”" if at < len(names) else "")
        for at in (place.query + n_key - n_query, place.key)  # with a cache, the queries are the last positions
    )
    if place.cause == "mask" and float(place.pattern[place.query, place.key]) > 0:
        return f"{seen}: {_what(place)} lets {query} attend to {key}."
    return f"{seen}, where {query} attends to {key}: {_what(place)}."


def _where(place: FaultLocation, model: ModelAdapter) -> str:
    """Return the layer and the head of a place within the layers, as text."""
    assert place.layer is not None
    layer, site = f"layer {place.layer + 1}", _site(place, model)
    if site is not None:
        layer = layer_title(site.path, is_encoder_decoder=model.shape.is_encoder_decoder)
    return layer if place.head is None else f"{layer}, head {place.head + 1}"


def _what(place: FaultLocation) -> str:
    """Name what is wrong at a place; a module without a common name by its path."""
    return escape_markdown(place.what) or "one of its steps"


def _site(place: FaultLocation, model: ModelAdapter) -> LayerPath | None:
    """Return the attention or feed-forward site of a place; if it lies outside both, the attention of its layer."""
    of_layer = [site for site in model.shape.attention if site.layer == place.layer]
    layout = None if model.opened is None else model.opened.layout
    owners = () if layout is None else zip(layout.attention, layout.owner_calls, strict=True)
    here = [(site, path) for site, (path, _) in owners if site.layer == place.layer]
    inside = (site for site, path in here if f"{place.name}.".startswith(f"{path}."))
    return LayerPath.find(place.name) or next(inside, None) or (of_layer[0] if len(of_layer) == 1 else None)


def _link(job: DiagnosisJob, finding: Finding, place: FaultLocation, model: ModelAdapter) -> str:
    """Return the head of a place for a link to Attention, with the cell where that screen has it; "" without attention."""
    site, sites = _site(place, model), model.shape.attention
    if site is None or site not in sites:
        return ""
    head = f"{sites.index(site) + 1}.{(place.head or 0) + 1}"
    runs = () if finding.pair is None else (finding.pair.first, finding.pair.second)
    is_same = all(run.valid is None and run.segments is None and not run.n_cached for run in runs)
    if place.query is None or place.key is None or model.shape.is_encoder_decoder or not is_same:
        return head
    return f"{head}.{place.query}-{place.key}" if max(place.query, place.key) < job.n_tokens else head


def _names(model: ModelAdapter, tokens: Sequence[int]) -> tuple[str, ...]:
    """Return the display names of tokens."""
    return model.token_names(torch.tensor(tokens)) if len(tokens) else ()


def _lanes(pair: Pair, model: ModelAdapter) -> list[Lane]:
    """Return the tokens of both runs, aligned where they should agree and marked where they differ; else one lane."""
    at, at_second = pair.positions
    shift = max(0, at_second[0] - at[0]) if at else 0
    first, second = _tokens(pair.first, 0, model), _tokens(pair.second, pair.row_second, model)
    moved = [j < shift or j - shift >= len(first) or first[j - shift] != one for j, one in enumerate(second)]
    neighbours = [row for row in range(len(pair.second.read)) if row != pair.row_second]
    if not any(moved) and not neighbours:
        return [Lane("input", tuple(first[:MAX_TOKENS]))]
    start = max(0, moved.index(True) - MAX_TOKENS // 2) if len(second) > MAX_TOKENS and any(moved) else 0
    part = slice(start, start + MAX_TOKENS)
    lanes = [
        Lane("input", tuple(first[max(0, start - shift) : part.stop - shift]), offset=max(0, shift - start)),
        Lane("in a batch" if neighbours else "changed", tuple(second[part]), moved=tuple(moved[part])),
    ]
    return lanes + [Lane("batched with it", tuple(_tokens(pair.second, row, model)[part])) for row in neighbours]


def _tokens(run: ModelCall, row: int, model: ModelAdapter) -> list[str]:
    """Return the tokens of a row; padding is shown as "pad"."""
    names, valid = _names(model, run.read[row].tolist()), run.valid if run.target is None else None
    is_real = [True] * len(names) if valid is None else valid[row].tolist()
    return [name if is_token else "pad" for name, is_token in zip(names, is_real, strict=True)]


def _all_checks(diagnosis: Diagnosis, model: ModelAdapter) -> None:
    """Draw a table of all completed checks, and list what was not checked."""
    verdicts = {"holds": "✓ passes", "broken": "✗ fails", "unusual": "≈ unusual", "could not run": "? could not run"}
    done = [one for one in diagnosis.findings if one.verdict in verdicts]
    if done:
        sizes = ["" if one.size is None else f"{one.size:.0e}" for one in done]
        rows = [(_title(one), verdicts[one.verdict], one.sentence, size) for one, size in zip(done, sizes, strict=True)]
        table = pd.DataFrame(rows, columns=["Check", "Verdict", "Finding", "Difference"])
        column = st.column_config.TextColumn
        help = "The largest difference between runs that should agree, relative to the outputs"
        columns = {"Finding": column(width="large"), "Difference": column(help=help)}
        st.dataframe(table, column_config=columns, hide_index=True, height="content", key="doctor_table")
    if diagnosis.findings:
        with st.expander("What was not checked", icon=":material/visibility_off:"):
            silent = [one for one in diagnosis.findings if one.verdict in ("not applicable", "could not run")]
            lines = [f"- **{_title(one)}**: {escape_markdown(one.sentence)}" for one in silent]
            st.markdown("\n".join(lines + [f"- {line}" for line in UNSEEN]))
