"""Does a model obey a mask? The masks that its attentions applied, and what its outputs depend on, against a rule.

The model runs on the given arguments with each attention backend that it offers. In each run, every attention is found in the
recorded operations, with the mask that it applied to its scores. Independently of that, gradients say on which of its inputs
each attention layer depends, and changed tokens say on which of them the outputs do. Where a mask is wrong, the arguments are
left out or inverted one by one, to say which of them is at fault.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from xformer.doctor.arguments import ARGUMENTS
from xformer.doctor.checks.repeated import other_backends
from xformer.doctor.diagnose import token_model_of
from xformer.doctor.model_call import ModelCall
from xformer.doctor.token_model import TokenModel
from xformer.doctor.watch import Watched, stepwise, watch
from xformer.errors import InputError, UnavailableError
from xformer.formatting import error_message
from xformer.masks.describing import describe
from xformer.masks.mask import as_mask
from xformer.masks.rules import Rule
from xformer.model import Transformer
from xformer.program.module_state import preserve_state, unwrapped

MAX_POSITIONS = 512
"""The most tokens of an input."""
MAX_TRIED = 32
"""The most positions of which gradients are taken, and whose tokens are changed."""
ROUNDING = 256
"""The largest change of an output that counts as rounding, in machine epsilons of its spread."""
WITH_WEIGHTS = "with weights returned"
CAUSES = {
    "never_reaches_attention": "an argument changes no mask: it never reaches the attention",
    "switched_off": "the mask follows the rule only if an argument is left out: it replaces the mask by a default",
    "inverted": "the mask is allowed where it should be forbidden, and the other way round",
    "replaced_by_default": "the attention applies another mask, such as a causal or a full one",
    "dropped_with_weights": "the mask is applied, but not when attention weights are returned",
    "dropped_by_backend": "the mask is applied with another attention backend only",
    "another_path": "the mask is applied, but outputs depend on forbidden keys in another way",
}
"""Why a rule is broken, by identifier."""


@dataclass(frozen=True, eq=False)
class Violation:
    """A rule that is broken in one way, in some layers of one backend.

    Attributes:
        backends: The attention backends.
        evidence: "mask" (what the attention applied), "gradient" (the output of a layer depends on a forbidden input) or
            "output" (the output of the model depends on a token that no chain of allowed cells reaches).
        cause: A key of `CAUSES`.
        layers: The layers, from 0, in the order of the run; empty for "output".
        n_leaks: The number of cells that are allowed but forbidden by the rule, in the first of the layers.
        n_losses: The number of cells that are forbidden but allowed by the rule, in the first of the layers.
        first: The first cell: input, query and key.
        heads: The heads of the first layer whose mask is wrong; empty if that is not known.
        why: What happens, in words: which argument is at fault, or which mask was applied instead.

    Example:
        >>> import xformer
        >>> from xformer import masks
        >>> model = xformer.load("checkpoints/characters").model
        >>> [found] = masks.obeyed(model, [[3, 7, 12, 9, 4]], masks.causal() & masks.window(3)).violations
        >>> found.why
        'The attention applies: causal.'
    """

    backends: tuple[str, ...]
    evidence: str
    cause: str
    layers: tuple[int, ...]
    n_leaks: int
    n_losses: int
    first: tuple[int, int, int]
    heads: tuple[int, ...] = ()
    why: str = ""

    @property
    def sentence(self) -> str:
        """The violation in words; layers, heads and positions count from 0."""
        place = f"layer{'s' if len(self.layers) > 1 else ''} {', '.join(map(str, self.layers))}" if self.layers else ""
        cell = f"first query {self.first[1]}, key {self.first[2]}"
        if self.evidence == "mask":
            counts = [
                f"{n:,} {what}"
                for n, what in (
                    (self.n_leaks, "forbidden cells are allowed"),
                    (self.n_losses, "allowed cells are forbidden"),
                )
                if n
            ]
            what = f"{place}: {' and '.join(counts)}, {cell}."
        elif self.evidence == "gradient":
            what = f"{place}: the output depends on {self.n_leaks:,} forbidden inputs, {cell}."
        else:
            what = f"outputs change with {self.n_leaks:,} tokens that no allowed path reaches, {cell}."
        return f"With {', '.join(self.backends)}, {what}{' ' if self.why else ''}{self.why}"


@dataclass(frozen=True, eq=False)
class Obedience:
    """Whether a model obeys a rule.

    Attributes:
        rule_text: The rule in words.
        violations: The violations; none if the model obeys.
        table: A row for each backend, layer and head: backend, layer, head, evidence, obeys, n_leaks, n_losses, query and key
            (of the first wrong cell, −1 if there is none).
        not_checked: What could not be checked, in words.

    Example:
        >>> import xformer
        >>> from xformer import masks
        >>> model = xformer.load("checkpoints/characters").model
        >>> table = masks.obeyed(model, [[3, 7, 12, 9, 4]], masks.causal()).table
        >>> sorted(set(table["evidence"]))
        ['gradient', 'mask', 'output']
    """

    rule_text: str
    violations: tuple[Violation, ...]
    table: pd.DataFrame
    not_checked: tuple[str, ...] = ()

    @property
    def obeys(self) -> bool:
        """Whether no violation was found."""
        return not self.violations

    @property
    def sentence(self) -> str:
        """The result in words."""
        rest = f" Not checked: {' '.join(self.not_checked)}" if self.not_checked else ""
        if self.violations:
            broken = " ".join(one.sentence for one in self.violations)
            return f"The model does not obey the rule ({self.rule_text}). {broken}{rest}"
        masks = self.table[self.table["evidence"] == "mask"]
        backends = ", ".join(dict.fromkeys(self.table["backend"]))
        heads = len(set(zip(masks["layer"], masks["head"], strict=True)))
        read = f"the masks of {heads} heads follow it, and " if heads else ""
        return f"The model obeys the rule ({self.rule_text}): {read}no output depends on a forbidden token ({backends}).{rest}"

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.sentence)}</p>{self.table.to_html(index=False)}"


def obeyed(
    model: Any, inputs: Any, rule: Rule | Sequence[Rule], *, tokenizer: Any = None, queries: Any = None
) -> Obedience:
    """Check whether a model obeys a rule: in the masks that it applies, and in what its outputs depend on.

    The model is not changed. It is called with the given arguments as they are.

    Args:
        model: A Transformers model, any module that maps token ids to outputs, or a folder of a model.
        inputs: A text, token ids [batch, pos], or a dict of the arguments of the model, such as input_ids, attention_mask and
            position_ids.
        rule: The rule of self-attention, or one for each attention layer in the order of the run.
        tokenizer: The tokenizer, if `inputs` is a text.
        queries: The queries that matter, true at their positions, [batch, pos]; None: those at which a padding mask among the
            arguments is not 0.

    Returns:
        The result, with a sentence and a table.

    Raises:
        InputError: The model cannot be run on these inputs, or the rule does not fit them.
        UnavailableError: Nothing can be checked: no attention was found, and the outputs are not those of positions.

    Example:
        >>> import xformer
        >>> from xformer import masks
        >>> model = xformer.load("checkpoints/characters").model
        >>> masks.obeyed(model, [[3, 7, 12, 9, 4]], masks.causal()).obeys
        True
    """
    base, run, given, is_doubled = _call_of(model, inputs, tokenizer)
    n = run.read.shape[1]
    if n > MAX_POSITIONS:
        raise InputError(
            f"obeyed reads inputs of up to {MAX_POSITIONS} tokens, got {n}; masks can be tried on a short input."
        )
    rows = _rows(queries, base, given, run).clone()
    if is_doubled:
        rows[1] = False
    checker = _Checker(base, run, rule, rows)
    with preserve_state(base.module), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of backends that are tried
        return checker.result()


def _call_of(model: Any, inputs: Any, tokenizer: Any) -> tuple[TokenModel, ModelCall, dict[str, Any], bool]:
    """Return the model, a call with the given arguments, those besides the tokens, and whether an only row is there twice."""
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    base = token_model_of(model, inputs, tokenizer)
    given: dict[str, Any] = {}
    tokens = base.base.tokens
    if isinstance(inputs, Mapping):
        given = dict(inputs)
        tokens = torch.as_tensor(given.pop(next(name for name in (*ARGUMENTS["tokens"], "0") if name in given)))
    elif not isinstance(inputs, str):
        tokens = torch.as_tensor(inputs)
    tokens = tokens[None] if tokens.dim() == 1 else tokens
    if base.base.target is not None:
        raise UnavailableError("obeyed checks models with one stack; this one reads a source and a target.")
    if isinstance(base.module, Transformer):
        known = {name: given.pop(name) for name in ("valid", "segments") if name in given}
        if given:
            raise InputError(f"A model of xformer takes tokens, valid and segments, got {', '.join(given)}.")
        valid, segments = (torch.as_tensor(known[name]) if name in known else None for name in ("valid", "segments"))
        call = ModelCall(tokens, valid=None if valid is None else valid.bool(), segments=segments)
        call = _two_rows(call)
        return replace(base, base=call), call, known, len(tokens) == 1
    given = {name: _doubled(value, len(tokens)) for name, value in given.items()}
    keep = base.takes.get("keep")
    if keep is not None and keep not in given:
        given[keep] = getattr(base.config, "use_cache", False)  # as the model is called without the argument
    call = _two_rows(ModelCall(tokens))
    return replace(base, base=call, extra=given), call, given, len(tokens) == 1


def _two_rows(call: ModelCall) -> ModelCall:
    """Return the call with its only row twice: in recorded operations, an axis of size 1 looks like any other."""
    return call if len(call.tokens) > 1 else call.each(lambda value: torch.cat([value, value]))


def _doubled(value: Any, n_batch: int) -> Any:
    is_row = isinstance(value, Tensor) and n_batch == 1 and value.dim() > 1 and len(value) == 1
    return torch.cat([value, value]) if is_row else value


def _rows(queries: Any, model: TokenModel, given: Mapping[str, Any], run: ModelCall) -> Bool[Tensor, "batch query"]:
    shape = tuple(run.tokens.shape)
    if queries is None:
        name = "valid" if isinstance(model.module, Transformer) else model.takes.get("valid", "")
        valid = run.valid if isinstance(model.module, Transformer) else given.get(name)
        if not isinstance(valid, Tensor) or tuple(valid.shape) != shape or valid.is_floating_point():
            return torch.ones(shape, dtype=torch.bool)
        return valid == 0 if name in ("padding_mask", "key_padding_mask", "src_key_padding_mask") else valid != 0
    rows = torch.as_tensor(queries).bool()
    rows = rows[None] if rows.dim() == 1 else rows
    if rows.shape[-1] != shape[1] or len(rows) not in (1, shape[0]):
        raise InputError(f"queries must be [batch, pos], true at the queries that matter, got {tuple(rows.shape)}.")
    return rows.expand(shape)


@dataclass(frozen=True, eq=False)
class _Observed:
    """The masks of a run: of each attention layer, [batch, head, query, key]."""

    masks: tuple[Bool[Tensor, "batch head query key"], ...]
    paths: tuple[str, ...]

    def same(self, other: _Observed) -> bool:
        return len(self.masks) == len(other.masks) and all(
            one.shape == two.shape and torch.equal(one, two) for one, two in zip(self.masks, other.masks, strict=True)
        )


class _Checker:
    """One model, call and rule."""

    def __init__(
        self, model: TokenModel, run: ModelCall, rule: Rule | Sequence[Rule], rows: Bool[Tensor, "batch query"]
    ) -> None:
        self.model, self.run, self.rule, self.rows = model, run, rule, rows
        self.n_batch, self.n = run.tokens.shape
        self.table: list[tuple[Any, ...]] = []
        self.violations: list[Violation] = []
        self.not_checked: list[str] = []

    def result(self) -> Obedience:
        """Check all backends, and name the causes."""
        runs = self._backends()
        seen = {name: observed for name, (model, run) in runs.items() if (observed := self._observe(name, model, run))}
        n_layers = max((len(one.masks) for one in seen.values()), default=0)
        rules = self._rules(n_layers)
        for name, observed in seen.items():
            self._check_masks(name, runs[name][0], observed, rules, seen)
        for name, (model, run) in runs.items():
            if name.endswith(WITH_WEIGHTS):
                continue
            if name in seen:
                self._check_gradients(name, model, run, seen[name], rules)
            self._check_outputs(name, model, run, rules, n_layers)
        if not self.table:
            raise UnavailableError(f"Nothing could be checked. {' '.join(self.not_checked)}")
        columns = ["backend", "layer", "head", "evidence", "obeys", "n_leaks", "n_losses", "query", "key"]
        text = self.rule.text if isinstance(self.rule, Rule) else "a rule for each layer"
        return Obedience(
            text, tuple(_merged(self.violations)), pd.DataFrame(self.table, columns=columns), tuple(self.not_checked)
        )

    def _backends(self) -> dict[str, tuple[TokenModel, ModelCall]]:
        own = getattr(self.model.config, "_attn_implementation", "") if self.model.is_transformers else ""
        own = own or "the model's own attention"
        others, failed = other_backends(self.model)
        if failed:
            self.not_checked.append(f"{', '.join(failed)}.")
        runs = {own: (self.model, self.run)}
        for name, other in others.items():
            if name != "the plain kernel":
                runs[name] = (replace(other, extra=self.model.extra), replace(self.run, recorded=other.base.recorded))
        if self.model.can("attention"):
            eager = stepwise(self.model)
            runs[f"{own} {WITH_WEIGHTS}" if own != "sdpa" else f"eager {WITH_WEIGHTS}"] = (
                replace(eager, extra=self.model.extra),
                replace(self.run, with_attention=True),
            )
        return runs

    def _observe(self, name: str, model: TokenModel, run: ModelCall) -> _Observed | None:
        """Return the masks that the attentions of the tokens applied; None if they cannot be read."""
        try:
            found = [one for one in watch(model, run) if self._is_self_attention(one)]
        except Exception as error:  # a backend may need another machine, or an argument another backend
            self.not_checked.append(f"{name} could not be run: {error_message(error, 120)}")
            return None
        if not found:
            self.not_checked.append(f"No attention could be read with {name}.")
            return None
        return _Observed(tuple(one.allowed.cpu() for one in found), tuple(one.path for one in found))

    def _is_self_attention(self, one: Watched) -> bool:
        return one.pattern.shape[-2:] == (self.n, self.n) and len(one.pattern) == self.n_batch

    def _rules(self, n_layers: int) -> list[Bool[Tensor, "batch query key"]]:
        rules = [self.rule] * max(1, n_layers) if isinstance(self.rule, Rule) else list(self.rule)
        if n_layers and len(rules) != n_layers:
            raise InputError(
                f"rule must be one rule, or one for each of the {n_layers} attention layers, got {len(rules)}."
            )
        made = {}
        for rule in rules:
            if rule not in made:
                mask = as_mask(rule, n_query=self.n)
                if mask.n_batch not in (1, self.n_batch) and not (self.n_batch == 2 and mask.n_batch == 1):
                    raise InputError(f"{rule.code} is for {mask.n_batch} inputs, and there are {self.n_batch}.")
                made[rule] = torch.stack([mask.cells(b if mask.n_batch > 1 else 0) for b in range(self.n_batch)])
        return [made[rule] for rule in rules]

    # The masks.

    def _wrong(self, observed: _Observed, rules: Sequence[Tensor]) -> list[tuple[int, Tensor, Tensor]]:
        """Return the layers whose masks are wrong, with leaks and losses [batch, head, query, key]."""
        found = []
        for layer, (mask, rule) in enumerate(zip(observed.masks, rules, strict=False)):
            leaks, losses = (
                one & self.rows[:, None, :, None] for one in (mask & ~rule[:, None], ~mask & rule[:, None])
            )
            if bool(leaks.any()) or bool(losses.any()):
                found.append((layer, leaks, losses))
        return found

    def _check_masks(
        self, name: str, model: TokenModel, observed: _Observed, rules: Sequence[Tensor], seen: Mapping[str, _Observed]
    ) -> None:
        wrong = self._wrong(observed, rules)
        by_layer = {layer: (leaks, losses) for layer, leaks, losses in wrong}
        for layer, mask in enumerate(observed.masks):
            for head in range(mask.shape[1]):
                leaks, losses = (one[:, head] for one in by_layer[layer]) if layer in by_layer else (None, None)
                self._add_row(name, layer, head, "mask", leaks, losses)
        if not wrong:
            return
        layer, leaks, losses = wrong[0]
        cause, why = self._cause(name, model, observed, rules, seen, layer)
        cells = (leaks | losses).any(dim=1)
        heads = (leaks | losses).any(dim=-1).any(dim=-1).any(dim=0).nonzero()[:, 0].tolist()
        counts = [int(one.any(dim=1).sum()) for one in (leaks, losses)]
        self.violations.append(
            Violation(
                (name,),
                "mask",
                cause,
                tuple(one[0] for one in wrong),
                counts[0],
                counts[1],
                _first(cells),
                tuple(heads),
                why,
            )
        )

    def _cause(
        self,
        name: str,
        model: TokenModel,
        observed: _Observed,
        rules: Sequence[Tensor],
        seen: Mapping[str, _Observed],
        layer: int,
    ) -> tuple[str, str]:
        """Return the cause of wrong masks, and a sentence."""
        right = [other for other, one in seen.items() if not self._wrong(one, rules)]
        if right:
            cause = "dropped_with_weights" if name.endswith(WITH_WEIGHTS) else "dropped_by_backend"
            return cause, f"With {right[0]}, the rule holds."
        rule, mask = rules[layer], observed.masks[layer]
        rows = self.rows[:, None, :, None]
        if torch.equal(mask & rows, (~rule[:, None] & rows).expand(mask.shape)):
            return "inverted", "The mask is the opposite of the rule."
        unread = []
        run = replace(self.run, with_attention=name.endswith(WITH_WEIGHTS))
        for argument, value in self._mask_arguments():
            without = self._try(model, run, {argument: None})
            if without is not None and not self._wrong(without, rules):
                applied = self._described(mask, layer)
                return "switched_off", f"Without {argument}, the rule holds; with it, the attention applies: {applied}."
            if without is not None and without.same(observed):
                unread.append(argument)
            if isinstance(value, Tensor) and value.dim() == 2 and bool(((value == 0) | (value == 1)).all()):
                other = self._try(model, run, {argument: 1 - value if value.dtype != torch.bool else ~value})
                if other is not None and not self._wrong(other, rules):
                    return "inverted", f"With {argument} inverted, the rule holds."
        keep = model.takes.get("keep") if not isinstance(model.module, Transformer) else None
        if keep and model.extra.get(keep):
            other = self._try(model, run, {keep: False})
            if other is not None and not self._wrong(other, rules):
                return "switched_off", f"With {keep}=False, the rule holds."
        applied = self._described(mask, layer)
        if unread:
            what = " and ".join(unread)
            return "never_reaches_attention", (
                f"{what} change{'s' if len(unread) == 1 else ''} no mask: the attention applies: {applied}."
            )
        return "replaced_by_default", f"The attention applies: {applied}."

    def _mask_arguments(self) -> list[tuple[str, Any]]:
        """Return the arguments that may say what is masked: tensors with an entry for each token."""
        if isinstance(self.model.module, Transformer):
            return [("valid", self.run.valid)] if self.run.valid is not None else []
        return [
            (name, value)
            for name, value in self.model.extra.items()
            if isinstance(value, Tensor) and value.dim() > 1 and self.n in value.shape[1:]
        ]

    def _try(self, model: TokenModel, run: ModelCall, changes: Mapping[str, Any]) -> _Observed | None:
        """Return the masks with some arguments changed, or left out if None; None if the model does not run so."""
        if isinstance(model.module, Transformer):
            run = replace(run, **changes)
        else:
            extra = {name: value for name, value in ({**model.extra, **changes}).items() if value is not None}
            model = replace(model, extra=extra)
        with _quiet_list(self.not_checked):
            return self._observe("", model, run)

    def _described(self, mask: Bool[Tensor, "batch head query key"], layer: int) -> str:
        row = int(self.rows.any(dim=1).nonzero()[0]) if bool(self.rows.any()) else 0
        text = describe(mask[row : row + 1, :1]).sentence
        return text if not text.startswith("no rule") else f"another mask ({text})"

    # What the outputs depend on.

    def _check_gradients(
        self, name: str, model: TokenModel, run: ModelCall, observed: _Observed, rules: Sequence[Tensor]
    ) -> None:
        """Differentiate the output of each attention module at each query by its input."""
        if len(set(observed.paths)) < len(observed.paths) or "" in observed.paths:
            return  # the modules are not those of one attention each
        found = []
        for layer, effect in enumerate(_gradients(model, run, observed.paths, self._tried())):
            if effect is None:
                continue
            own = torch.eye(self.n, dtype=torch.bool)
            leaks = effect & ~rules[layer] & ~own & self.rows[:, :, None]
            self._add_row(name, layer, -1, "gradient", leaks, None)
            if bool(leaks.any()):
                found.append((layer, leaks))
        is_known = any(name in one.backends and one.evidence == "mask" for one in self.violations)
        if found and not is_known:
            layer, leaks = found[0]
            layers = tuple(one[0] for one in found)
            self.violations.append(
                Violation((name,), "gradient", "another_path", layers, int(leaks.sum()), 0, _first(leaks))
            )

    def _check_outputs(
        self, name: str, model: TokenModel, run: ModelCall, rules: Sequence[Tensor], n_layers: int
    ) -> None:
        """Change tokens one by one, and compare the outputs that no chain of allowed cells reaches."""
        if not model.has_output_by_position:
            self.not_checked.append("The model has one output for the whole input.")
            return
        reach = torch.eye(self.n, dtype=torch.bool).expand(self.n_batch, -1, -1).float()
        if not n_layers:
            self.not_checked.append(
                "The number of layers is not known, so that outputs are held to the rule of one document."
            )
            reach = _closure(rules[0])
        for rule in rules[:n_layers]:
            reach = ((rule.float() + torch.eye(self.n)) @ reach > 0).float()
        try:
            before = model.logits(run)
            leaks = torch.zeros(self.n_batch, self.n, self.n, dtype=torch.bool)
            other = model.other_tokens(run.tokens)
            limit = ROUNDING * model.eps * (before - before.mean(dim=-1, keepdim=True)).abs().amax().item()
            for key in self._tried():
                tokens = run.tokens.clone()
                tokens[:, key] = other[:, key]
                moved = (model.logits(run.with_read(tokens)) - before).abs().amax(dim=-1)  # [batch, query]
                leaks[:, :, key] = (moved > limit) & (reach[:, :, key] == 0) & self.rows
        except Exception as error:  # as in `_observe`
            self.not_checked.append(f"Outputs with {name}: {error_message(error, 120)}")
            return
        self._add_row(name, -1, -1, "output", leaks, None)
        is_known = any(name in one.backends for one in self.violations)
        if bool(leaks.any()) and not is_known:
            self.violations.append(Violation((name,), "output", "another_path", (), int(leaks.sum()), 0, _first(leaks)))

    def _tried(self) -> list[int]:
        step = max(1, -(-self.n // MAX_TRIED))
        return sorted({*range(0, self.n, step), self.n - 1})

    def _add_row(
        self, name: str, layer: int, head: int, evidence: str, leaks: Tensor | None, losses: Tensor | None
    ) -> None:
        wrong = [one for one in (leaks, losses) if one is not None]
        cells = torch.stack(wrong).any(dim=0) if wrong else torch.zeros(1, 1, 1, dtype=torch.bool)
        first = _first(cells) if bool(cells.any()) else (-1, -1, -1)
        counts = [0 if one is None else int(one.sum()) for one in (leaks, losses)]
        self.table.append((name, layer, head, evidence, not any(counts), *counts, *first[1:]))


def _merged(violations: Sequence[Violation]) -> list[Violation]:
    """Join the violations that several backends share."""
    groups: dict[Any, Violation] = {}
    for one in violations:
        key = replace(one, backends=()).sentence, one.evidence, one.cause
        known = groups.get(key)
        groups[key] = one if known is None else replace(known, backends=(*known.backends, *one.backends))
    return list(groups.values())


@contextmanager
def _quiet_list(noted: list[str]) -> Iterator[None]:
    """Forget what is noted inside the context."""
    n = len(noted)
    try:
        yield
    finally:
        del noted[n:]


def _first(cells: Bool[Tensor, "batch query key"]) -> tuple[int, int, int]:
    batch, query, key = cells.nonzero()[0].tolist()
    return batch, query, key


def _closure(rule: Bool[Tensor, "batch query key"]) -> Tensor:
    reach = rule.float() + torch.eye(rule.shape[-1])
    for _ in range(rule.shape[-1].bit_length()):
        reach = (reach @ reach > 0).float()
    return reach


def _gradients(
    model: TokenModel, run: ModelCall, paths: Sequence[str], tried: Sequence[int]
) -> list[Bool[Tensor, "batch query key"] | None]:
    """Return which inputs of each module its output depends on, at the queries that are tried; None if that is not known."""
    kept: dict[str, list[Tensor]] = {}
    n_batch, n = run.tokens.shape

    def enters(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            def is_stream(value: Any) -> bool:
                return (
                    isinstance(value, Tensor)
                    and value.is_floating_point()
                    and value.shape[:2] == (n_batch, n)
                    and value.dim() == 3
                )

            given = next((value for value in (*args, *kwargs.values()) if is_stream(value)), None)
            if given is None:
                return None
            leaf = given.detach().requires_grad_()
            kept[path] = [leaf]
            same = tuple(leaf if value is given else value for value in args)
            return same, {name: leaf if value is given else value for name, value in kwargs.items()}

        return hook

    def leaves(path: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple | list) else output
            if path in kept and isinstance(first, Tensor) and first.shape[:2] == (n_batch, n):
                kept[path].append(first)

        return hook

    handles = []
    for path in paths:
        module = model.module.get_submodule(path)
        handles += [
            module.register_forward_pre_hook(enters(path), with_kwargs=True),
            module.register_forward_hook(leaves(path)),
        ]
    try:
        with torch.enable_grad():
            model.last_call(run)[0]()
            return [
                _dependence(kept[path][0], kept[path][1], tried) if len(kept.get(path, ())) == 2 else None
                for path in paths
            ]
    except Exception:  # a kernel without gradients
        return [None] * len(paths)
    finally:
        for handle in handles:
            handle.remove()


def _dependence(given: Tensor, output: Tensor, tried: Sequence[int]) -> Bool[Tensor, "batch query key"] | None:
    if not output.requires_grad:
        return None
    n_batch, n = given.shape[:2]
    effect = torch.zeros(n_batch, n, n, dtype=torch.bool)
    draw = torch.randn(output.shape[2:], generator=torch.Generator().manual_seed(0)).to(output)
    for query in tried:
        [slope] = torch.autograd.grad((output[:, query] * draw).sum(), given, retain_graph=True)
        effect[:, query] = (slope.flatten(2).abs().amax(dim=-1) > 0).cpu()
    return effect
