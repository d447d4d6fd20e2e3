"""Every bug leaves the original unchanged and can be trained with; tests/doctor/equations checks what each bug computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import xformer
from tests.layers.reference import ARCHITECTURES, build, inputs
from tests.training.tiny import tiny_preset
from xformer.doctor.faults import BUGS, WHOLE_RUNS
from xformer.doctor.faults.lab import lab_run
from xformer.errors import InputError, TrainingError
from xformer.tasks.batch import IGNORED

pytestmark = pytest.mark.usefixtures("float64")

EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-13}
"""Tolerance for float64 sums of a few dozen numbers of size 1 in a different order."""


COMPONENTS: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "norm_kind": "rms", "activation": "swiglu"}


def model_for(bug: str, **options: Any) -> xformer.Transformer:
    """Return a model with prime sizes to which the bug applies."""
    for architecture in ARCHITECTURES:
        for more in ({}, {"norm": "pre"}, {"d_value": 10}, COMPONENTS):
            changes: dict[str, Any] = {"architecture": architecture, "positions": "learned"} | more | options
            model = build(**changes)
            if BUGS[bug].applies_to(model.config):
                return model
    raise AssertionError(bug)


def equal_inputs(model: xformer.Transformer) -> tuple[Tensor, ...]:
    """Return inputs of equal length, which two of the bugs need."""
    shortest = min(tokens.shape[1] for tokens in inputs(model))
    return tuple(tokens[:, : min(7, shortest)] for tokens in inputs(model))


SILENT = {"no_positions": "table", "lost_output": "attn.", "dead_neurons": "ffn.weight", "forgotten_return": "encoder."}
"""Parameters that get no gradient because of a bug."""


@pytest.mark.parametrize("bug", BUGS)
def test_the_broken_copy_differs_and_can_be_recorded_and_trained(bug: str) -> None:
    """The recorded run equals the trained model's. (The NaN bug needs padding, and there is none here.)"""
    model = model_for(bug)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    given = equal_inputs(model)
    right, broken = xformer.record(model, *given).logits, BUGS[bug].broken(model).train().requires_grad_(True)
    assert not {p.data_ptr() for p in broken.parameters()} & {p.data_ptr() for p in model.parameters()}
    logits = broken(*given)
    wrong = xformer.record(broken, *given).logits
    torch.testing.assert_close(wrong, logits.detach(), rtol=1e-9, atol=1e-12)
    assert torch.equal(xformer.record(model, *given).logits, right)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    changes = BUGS[bug].shows not in ("with padding", "in training")
    assert changes == (not torch.allclose(wrong, right, rtol=1e-6))
    logits.square().sum().backward()
    missing = [name for name, p in broken.named_parameters() if p.grad is None or not bool(p.grad.any())]
    # the bias of keys has no gradient: it cancels in the softmax
    expected = (SILENT[bug], "ffn.bias", "bias_in", "source") if bug in SILENT else ("bias_in",)
    assert bool(missing) or bug not in SILENT
    assert not [name for name in missing if not any(part in name for part in expected)]


def attention(bug: str, part: str = "", **options: Any) -> tuple[dict[str, Tensor], xformer.Transformer]:
    """Return the activations of one attention layer of the broken model by their short names, and the right model."""
    model = model_for(bug, **options)
    trace = xformer.record(BUGS[bug].broken(model), *equal_inputs(model))
    path = next(path for path in trace.attention_layers() if path.endswith(part))
    if part == "":
        path = next(path for path in reversed(trace.attention_layers()) if not path.endswith("cross_attn"))
    return {name.removeprefix(f"{path}."): trace[name] for name in trace if name.startswith(f"{path}.")}, model


def test_softmax_bugs_compute_their_equations() -> None:
    one = torch.tensor(1.0)
    got, model = attention("softmax_over_queries")
    torch.testing.assert_close(got["pattern"].sum(dim=-2), one.expand(got["pattern"].sum(dim=-2).shape), **EXACT)
    # One cell by hand: exp S[i, j] divided by the sum over its column.
    scores = got["scores"][1, 2]
    by_hand = math.exp(scores[3, 2]) / sum(math.exp(scores[i, 2]) for i in range(7))
    assert got["pattern"][1, 2, 3, 2].item() == pytest.approx(by_hand, rel=1e-12)
    got, _ = attention("softmax_over_heads")
    torch.testing.assert_close(got["pattern"].sum(dim=1), one.expand(2, 7, 7), **EXACT)
    got, model = attention("no_scale")
    torch.testing.assert_close(got["scores"], got["q"] @ got["k"].mT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got["pattern"], got["scores"].softmax(dim=-1), **EXACT)
    got, model = attention("scaled_after_softmax")
    rows = got["pattern"].sum(dim=-1)
    torch.testing.assert_close(rows, torch.full_like(rows, 1 / math.sqrt(model.config.d_head)), **EXACT)


def test_nan_of_an_empty_softmax_spreads() -> None:
    model = model_for("softmax_of_nothing")
    (tokens,) = equal_inputs(model)
    valid = torch.arange(7).expand(2, 7) < torch.tensor([[7], [5]])
    trace = xformer.record(BUGS["softmax_of_nothing"].broken(model), tokens, valid=valid)
    first = trace["encoder.0.attn.pattern"].isnan().any(dim=-1)[:, 0]  # [batch, query]
    assert first.tolist() == (~valid).tolist()  # first only in the rows of padding
    assert trace.logits[1].isnan().all()  # in the next layer, everywhere in that sequence
    assert not trace.logits[0].isnan().any()
    assert xformer.record(model, tokens, valid=valid).logits.isfinite().all()


def test_without_a_padding_mask_padding_changes_the_output() -> None:
    model = model_for("no_padding_mask")
    (tokens,) = equal_inputs(model)
    valid = torch.arange(7).expand(2, 7) < 5
    for which, changes in ((model, False), (BUGS["no_padding_mask"].broken(model), True)):
        alone = xformer.record(which, tokens[:, :5]).logits
        padded = xformer.record(which, tokens, valid=valid).logits[:, :5]
        assert changes == (not torch.allclose(alone, padded, rtol=1e-9))


def test_reinitialised_weights_have_the_documented_std() -> None:
    model = build(architecture="encoder", d_ff=101, d_model=97)
    for bug, std in (("init_too_large", 1.0), ("init_too_small", 0.001)):
        weight = BUGS[bug].broken(model).get_parameter("encoder.blocks.0.ffn.weight_in")
        # The estimate from n normal numbers has a relative standard error of 1/√(2n); allow five of them.
        assert abs(weight.std().item() / std - 1) < 5 / math.sqrt(2 * weight.numel())


def test_a_bug_that_does_not_apply_raises_with_its_requirement() -> None:
    encoder = build(architecture="encoder", n_heads=1)
    for bug, needs in (("causal_ignored", "a causal mask"), ("identical_heads", "at least two heads")):
        with pytest.raises(InputError, match=f"It needs {needs}"):
            BUGS[bug].broken(encoder)
    with pytest.raises(InputError, match="It needs an encoder-decoder"):
        lab_run(tiny_preset("encoder"), BUGS["forgotten_return"], device="cpu")


def test_a_second_bug_is_refused() -> None:
    with pytest.raises(InputError, match="already"):
        BUGS["no_scale"].broken(BUGS["causal_ignored"].broken(build(architecture="decoder")))


def test_decoding_with_whole_runs_equals_recorded_runs() -> None:
    model = model_for("causal_ignored", start_token=1, architecture="decoder")
    broken = BUGS["causal_ignored"].broken(model)
    prompt = [3, 5, 7]
    for step in xformer.decode(broken, prompt, max_steps=3, edits=[WHOLE_RUNS]):
        logits = xformer.record(broken, torch.tensor([prompt])).logits[0, -1]
        assert step.token == int(logits.argmax())
        prompt.append(step.token)


@pytest.fixture
def float32() -> None:
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float32")
def test_the_lab_trains_both_models_from_the_same_weights_on_the_same_batches() -> None:
    preset = tiny_preset("decoder")
    right, wrong = lab_run(preset, device="cpu"), lab_run(preset, BUGS["causal_ignored"], device="cpu")
    for mine, theirs in zip(right.model.parameters(), wrong.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(right.batch(0).tokens, wrong.batch(0).tokens)
    assert right.batch(0).layout.segments.max() == 1  # pyright: ignore  # one sequence per row
    before = [p.clone() for p in wrong.model.parameters()]
    reports = list(wrong.reports())
    assert reports[-1].done
    assert reports[-1].step == preset.train.steps
    assert any(not torch.equal(a, b) for a, b in zip(before, wrong.model.parameters(), strict=True))
    assert len(list(lab_run(preset, BUGS["no_scale"], steps=3, device="cpu").reports())) == 1


@pytest.mark.usefixtures("float32")
def test_training_bugs_have_their_documented_effect() -> None:
    preset = tiny_preset("encoder")
    assert lab_run(preset, device="cpu").config.clip_norm == preset.train.clip_norm > 0
    assert lab_run(preset, BUGS["no_clipping"], device="cpu").config.clip_norm == 0
    right, wrong = (lab_run(preset, bug, device="cpu").batch(0) for bug in (None, BUGS["loss_on_padding"]))
    padding = right.output_segments == 0
    assert padding.any()
    assert (right.labels[padding] == IGNORED).all()
    assert (wrong.labels[padding] == preset.model.pad_token).all()
    assert torch.equal(right.labels[~padding], wrong.labels[~padding])
    with pytest.raises(TrainingError, match="nan"):
        list(lab_run(preset, BUGS["softmax_of_nothing"], device="cpu").reports())
