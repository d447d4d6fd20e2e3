"""`diagnose`: run the checks on a model and report the findings, their locations, and what was not checked."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from xformer.config import ModelConfig
from xformer.doctor import checks as _registered  # noqa: F401  registers the checks
from xformer.doctor.causes import named
from xformer.doctor.check import CELL, CHECKS, COLUMNS, Check, CheckContext, FaultLocation, Finding, NotApplicableError
from xformer.doctor.formulas import ARCHITECTURES, BREAKS_A_RULE, Formula
from xformer.doctor.localise import localise
from xformer.doctor.token_model import TokenModel
from xformer.errors import InputError, XformerError
from xformer.formatting import error_message
from xformer.model import Transformer
from xformer.program.module_state import uncompiled

Specification = str | ModelConfig | nn.Module
UNSEEN = (
    "Whether the weights are any good: invariants cannot show that.",
    "How the model was trained: data, batches, learning rate.",
    "Inputs that behave differently from the given one, and inputs longer than those tried.",
)
"""Limitations of all checks."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The findings of all checks on a model.

    Attributes:
        findings: One for each check: broken ones, ordered by how close they are to the cause, then those that could not run.
        name: The name of the model.

    Example:
        >>> import xformer
        >>> model = xformer.load("checkpoints/induction").model
        >>> diagnosis = xformer.diagnose(model, [3, 7, 12, 9], checks=["causality", "cache"])
        >>> diagnosis
        0 of 2 checks are broken
        >>> list(diagnosis.table["verdict"])
        ['holds', 'holds']
    """

    findings: tuple[Finding, ...]
    name: str = "model"

    @property
    def ok(self) -> bool:
        """Whether no check is broken, and every check that applies could run."""
        return not self.broken and not self.could_not_run

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings with the verdict "broken", those closest to the cause first."""
        return tuple(sorted((one for one in self.findings if one.verdict == "broken"), key=_distance_from_cause))

    @property
    def could_not_run(self) -> tuple[Finding, ...]:
        """The findings with the verdict "could not run": the rule applies, but it is not known whether it holds."""
        return tuple(one for one in self.findings if one.verdict == "could not run")

    @property
    def table(self) -> pd.DataFrame:
        """One row per check; layers, heads and positions count from 0.

        Columns: `check`, `verdict` ("holds", "broken", "unusual", "not applicable", "could not run"), `cause` (an identifier),
        `line` (as "model.py:38"), `size` and `floor` (relative to the spread of the outputs), `layer`, `head`, `query`, `key`,
        `sentence`, `remedy`.
        """
        frame = pd.DataFrame([one.row() for one in self.findings], columns=list(COLUMNS))
        return frame.astype({"size": "float64", "floor": "float64", **dict.fromkeys(CELL, "Int64")})

    @property
    def unusual(self) -> tuple[Finding, ...]:
        """The findings with the verdict "unusual": legal, but not what most models of its kind do."""
        return tuple(one for one in self.findings if one.verdict == "unusual")

    @property
    def formulas(self) -> pd.DataFrame:
        """What each attention computes, as read from its code: one row for each part that could be read.

        Columns: `layer` (from 0), `path`, `part` ("scale", "norm", "residual", …), `formula`, `cause` ("" for what is usual),
        `line` (as "model.py:38"), `text` (of that line) and `usual` (the usual formula).
        """
        rows = [vars(part) for one in self.findings for part in one.formulas]
        frame = pd.DataFrame(rows, columns=[one.name for one in fields(Formula)])
        return frame.astype({"layer": "Int64"})

    @property
    def not_checked(self) -> list[str]:
        """What was not checked: checks that do not apply or could not run, and the limitations of all checks."""
        skipped = [finding for finding in self.findings if finding.verdict in ("not applicable", "could not run")]
        return [f"{finding.check}: {finding.sentence}" for finding in skipped] + list(UNSEEN)

    def __repr__(self) -> str:
        n_checked = sum(one.verdict in ("holds", "broken", "unusual") for one in self.findings)
        n_failed = len(self.could_not_run)
        rest = f", {n_failed} could not run" if n_failed else ""
        lines = [f"{len(self.broken)} of {n_checked} checks are broken{rest}"]
        for one in (*self.broken, *self.could_not_run):
            because = self.explained_by(one)
            lines.append(
                f"  {one.check}: {f'{one.sentence} It follows from {because}.' if because else one.whole_sentence}"
            )
        lines += [f"  unusual: {one.sentence}" for one in self.unusual]
        return "\n".join(lines)

    def explained_by(self, finding: Finding) -> str:
        """The cause of a finding if another one, `formula`, states it, as "mask_off_by_one (model.py:38)"; "" otherwise."""
        of_formula = next((one for one in self.broken if one.check == "formula"), None)
        if of_formula is None or finding is of_formula or not finding.line:
            return ""
        is_stated = any((one.cause, one.line) == (finding.cause, finding.line) for one in of_formula.formulas)
        return f"{finding.cause} ({finding.line})" if is_stated else ""

    def _repr_html_(self) -> str:
        rows = "".join(_html_row(one) for one in self.findings)
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("check", "verdict", "finding"))
        return f"<p><b>{html.escape(repr(self).splitlines()[0])}</b></p><table><tr>{head}</tr>{rows}</table>"


def _distance_from_cause(finding: Finding) -> tuple[Any, ...]:
    """Return a key that sorts findings: a wrong formula, then by layer; there, what has a line, a head, one run."""
    place = finding.place
    if finding.check == "formula":
        return (0,)
    if place is None or place.layer is None:
        return (2, place is None)
    return (1, place.layer, not finding.line, place.head is None, finding.pair is not None, finding.check == "backends")


def _html_row(finding: Finding) -> str:
    picture = "" if finding.place is None else f"<br>{cell_picture(finding.place)}"
    text = html.escape(finding.whole_sentence)
    if finding.remedy:
        text += f"<br><i>{html.escape(finding.remedy)}</i>"
    cell = f"<td style='text-align:left'>{text}{picture}</td>"
    return f"<tr><td>{finding.check}</td><td>{finding.verdict}</td>{cell}</tr>"


N_DRAWN = 16
"""Largest number of rows and columns drawn; larger patterns are cropped around the cell."""


def cell_picture(place: FaultLocation, names: Sequence[str] = ()) -> str:
    """Draw the attention pattern of the faulty head as an HTML table with the offending cell outlined.

    Args:
        place: The location of the fault.
        names: The labels of rows and columns; token ids or positions by default.

    Returns:
        HTML, or "" if the location has no cell.
    """
    if place.pattern is None or place.query is None or place.key is None:
        return ""
    n_query, n_key = place.pattern.shape
    top, left = (max(0, min(at - N_DRAWN // 2, n - N_DRAWN)) for at, n in ((place.query, n_query), (place.key, n_key)))
    part = place.pattern[top : top + N_DRAWN, left : left + N_DRAWN].float().clamp(0, 1)
    labels = [html.escape(str(one)[:8]) for one in names or place.labels or range(n_key)]
    first_query = n_key - n_query  # with a cache, the queries are the last positions
    square = "width:18px;height:18px;padding:0;border:1px solid transparent"
    upright = "writing-mode:vertical-rl;transform:rotate(180deg)"
    head = "".join(f"<td style='{upright}'>{one}</td>" for one in labels[left : left + N_DRAWN])
    rows = [f"<tr style='background:none'><td></td>{head}</tr>"]
    for i, weights in enumerate(part.tolist(), start=top):
        cells = ""
        for j, weight in enumerate(weights, start=left):
            mark = ";outline:3px solid #d62728" if (i, j) == (place.query, place.key) else ""
            colour = f"rgba(59,125,216,{0.06 + 0.94 * weight:.3f})"
            cells += f"<td style='{square};background:{colour}{mark}'></td>"
        name = "".join(labels[i + first_query : i + first_query + 1])
        rows.append(f"<tr style='background:none'><td style='text-align:right;padding:0 4px'>{name}</td>{cells}</tr>")
    label = f"Layer {place.layer}, head {place.head}: query {place.query} attends to key {place.key}"
    style = "border-collapse:separate;border-spacing:0;font:11px sans-serif;width:auto"
    return f"<table role='img' aria-label='{label}' title='{label}' style='{style}'>{''.join(rows)}</table>"


@torch.inference_mode(False)  # some checks need gradients
def diagnose(
    model: nn.Module | str | Path,
    inputs: Any = None,
    tokenizer: Any = None,
    checks: Sequence[str] | None = None,
    *,
    causal: bool | None = None,
    original: nn.Module | None = None,
    spec: Specification = "",
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor] | None = None,
) -> Diagnosis:
    """Check the invariants that a model of its kind must satisfy, and locate violations by layer, head and cell.

    The model is not changed: its mode, hooks, configuration, gradients and the global random state are preserved.

    Args:
        model: An xformer or Transformers model, any module that maps token ids to logits, or a folder or file of a model.
        inputs: A text, token ids, or a dict of arguments; None uses arbitrary tokens.
        tokenizer: The tokenizer, if `inputs` is a text; a folder has its own.
        checks: The names of the checks to run; None runs all.
        causal: Whether outputs may depend only on earlier tokens; None: detect automatically.
        original: The model from which this one was converted, for the check `conversion`.
        spec: What the model is meant to be: "vaswani", "gpt", "bert", "llama", a configuration of xformer, or a reference, any
            module that reads the same tokens. A formula that is unusual, or other than the reference's, is then broken.
        loss: The loss of a module on a batch of token ids [batch, pos], for a model that does not compute its own.

    Returns:
        The diagnosis; see `.ok`, `.table`, `.formulas` and `.not_checked`.

    Raises:
        InputError: The model reads no tokens, or a check or the specification is unknown.

    Example:
        >>> import xformer
        >>> model = xformer.load("checkpoints/induction").model
        >>> xformer.diagnose(model, [3, 7, 12, 9, 3, 7], checks=["causality"]).ok
        True
    """
    wanted = _wanted(checks)
    token_model = token_model_of(model, inputs, tokenizer, causal=causal, original=original, loss=loss)
    found = tuple(iter_findings(token_model, wanted, spec))
    order = {"could not run": 0, "unusual": 1, "holds": 2, "not applicable": 3}
    name = Path(model).name if isinstance(model, str | Path) else type(model).__name__
    broken = Diagnosis(found).broken
    rest = sorted((one for one in found if one.verdict != "broken"), key=lambda one: order[one.verdict])
    return Diagnosis((*broken, *rest), name)


def token_model_of(
    model: nn.Module | str | Path, inputs: Any = None, tokenizer: Any = None, **options: Any
) -> TokenModel:
    """Return the uniform interface to a model in memory or on disk; see `diagnose`."""
    if isinstance(model, nn.Module):
        return TokenModel.of(model, inputs, tokenizer, **options)
    from xformer.adapters.load import is_external, opened_from
    from xformer.checkpoints import load

    path = Path(model)
    if is_external(path):
        opened: Any = opened_from(path)
        tokenizer = tokenizer or opened.tokenizer
        if inputs is None and tokenizer is not None:  # ids, not text: the loss on an example proves nothing
            inputs = tokenizer(opened.input.default)["input_ids"]
        return TokenModel.of(opened.opened.module, inputs, tokenizer, **options)
    checkpoint = load(path)
    if isinstance(inputs, str) and checkpoint.task is not None:
        from xformer.reading import read

        example = read(checkpoint, inputs).example
        inputs = {"tokens": example.input_ids} | (
            {} if example.target is None else {"decoder_input_ids": example.target}
        )
    return TokenModel.of(checkpoint.model, inputs, tokenizer, **options)


def _wanted(names: Sequence[str] | None) -> list[Check]:
    for name in names or ():
        if name not in CHECKS:
            raise InputError(f"A check must be one of {', '.join(CHECKS)}; got {name!r:.60}.")
    return [one for one in CHECKS.values() if names is None or one.name in names]


def iter_findings(
    model: TokenModel, checks: Sequence[Check] | None = None, spec: Specification = ""
) -> Iterator[Finding]:
    """Run the checks one by one, against a specification if there is one; closing the iterator cancels the rest."""
    context = _context(model, spec)
    for one in CHECKS.values() if checks is None else checks:
        yield run_check(context, one)


def _context(model: TokenModel, spec: Specification) -> CheckContext:
    """The context of a model and of what it is meant to be; a specification also says whether it is causal."""
    if isinstance(spec, str):
        if spec not in ("", *ARCHITECTURES):
            raise InputError(f"A specification must be one of {', '.join(ARCHITECTURES)}; got {spec!r:.60}.")
        over = ARCHITECTURES[spec].causal_over if spec else ""
        is_causal = over == "tokens" or (over == "target" and model.base.target is not None)
        return CheckContext(replace(model, causal=model.causal or is_causal), spec)
    module = Transformer(spec) if isinstance(spec, ModelConfig) else spec
    if not isinstance(module, nn.Module):
        raise InputError(f'A specification is a name, a ModelConfig or a module; got {type(spec).__name__}, not "gpt".')
    target = model.base.target
    inputs: dict[str, Any] = {"input_ids" if hasattr(module, "main_input_name") else "tokens": model.base.tokens}
    inputs |= {} if target is None else {"decoder_input_ids": target}
    inputs |= {name: one for name, one in model.extra.items() if name in inspect.signature(module.forward).parameters}
    reference = TokenModel.of(module, inputs)
    is_causal = model.causal or reference.causal
    read = CheckContext(replace(reference, causal=is_causal)).formulas
    context = CheckContext(replace(model, causal=is_causal), read, replace(reference, causal=is_causal))
    if not any(one.part == "scale" for one in read) and not context.has_same_weights:
        raise InputError("The attention of the reference cannot be read, so nothing can be compared with it.")
    return context


def run_check(context: CheckContext, check: Check) -> Finding:
    """ModelCall one check, and locate the fault if it is broken."""
    try:
        with torch.no_grad(), uncompiled():
            found = replace(check.run(context), check=check.name)
            if found.verdict == "broken" and found.place is None and found.pair is not None:
                with suppress(Exception):  # the verdict stands without a location
                    found = replace(found, place=localise(context, found.pair))
            if found.verdict == "broken" and not found.cause:
                with suppress(Exception):  # and without a cause
                    found = named(context, found)
            if found.verdict == "broken" and not found.line:
                with suppress(Exception):  # and without a cause
                    found = _named(context, found)
    except NotApplicableError as reason:
        found = Finding("not applicable", str(reason))
    except Exception as error:  # the model may raise anything
        reason = (
            str(error) if isinstance(error, XformerError) else f"{type(error).__name__}: {error_message(error, 200)}"
        )
        found = Finding("could not run", f"The check could not run: {reason[:200]}")
    return replace(found, check=check.name)


_MIXES = ("mask_", "softmax_", "attention_over_", "split_", "merge_", "norm_over_")
_FOLLOWS = {
    "finite": ("mask_", "softmax_", "attention_over_"),
    "attention_rows": ("mask_", "softmax_", "attention_over_"),
    "mask_constant": ("mask_",),
    "key_value_groups": ("key_value_",),
    "rotary": ("rotary_",),
    "position_shift": ("rotary_",),
    "determinism": ("dropout_",),
    "causality": _MIXES,
    "causality_with_attention": _MIXES,
    "right_padding": _MIXES,
    "left_padding": _MIXES,
    "cache": _MIXES,
    "batch": (*_MIXES, "positions_from_batch"),
}
"""The causes from which a broken check may follow, by the start of their names."""
_OF_WEIGHTS = ("mask_", "softmax_", "attention_over_")
_WEIGHTS = ("mask", "scores", "pattern", "rows")
"""Where two runs differ first if the weights of an attention are wrong, and not its queries, keys or values."""


def _named(context: CheckContext, found: Finding) -> Finding:
    """A broken finding with what is computed wrongly at the place where it is first seen, and with its line.

    Only what the code computes there is named: the same attention, or another part of the same layer and stack.
    """
    place, starts = found.place, _FOLLOWS.get(found.check, ())
    causes = BREAKS_A_RULE | ({"mask_excludes_itself"} if found.check in ("finite", "attention_rows") else set())
    for one in context.formulas:
        is_cause = one.cause == found.cause or (one.part == "mask" and found.cause == "mask_too_small")
        if one.cause not in causes or not one.cause.startswith(starts) or (found.cause and not is_cause):
            continue
        if one.part in ("dropout", "positions"):
            is_first = place is None or (not place.layer and place.cause not in _WEIGHTS)
            is_there = is_first or one.part == "dropout"
        else:
            is_there = place is not None and one.layer == place.layer and _is_at(one, place, context)
        if is_there:
            return replace(found, cause=one.cause, line=one.line)
    return found


def _is_at(one: Formula, place: FaultLocation, context: CheckContext) -> bool:
    """Whether a part of the same layer is at a place, and early enough for what is first seen there."""
    is_of_weights = one.cause.startswith(_OF_WEIGHTS)
    if is_of_weights != (place.cause in _WEIGHTS):
        return False
    if context.model.base.target is None:
        return True
    path, at = (it.replace(".blocks.", ".") for it in (one.path, place.name))
    if not path or not at:  # of encoder and decoder, it is not known which
        return False
    number = str(one.layer)
    stack = path.split(".")[: path.split(".").index(number) + 1] if number in path.split(".") else [path]
    return at.startswith(f"{path}." if is_of_weights else f"{'.'.join(stack)}.")
