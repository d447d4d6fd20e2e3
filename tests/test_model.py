"""The whole model: both paths agree, causality holds, positions have their documented effect, bad input is refused."""

from __future__ import annotations

import pytest
import torch

from tests.layers.reference import (
    ARCHITECTURES,
    BY_TURNS,
    FITTING,
    POSITIONS,
    WHOLE_MODEL,
    assert_close,
    assert_same,
    build,
    inputs,
    random_tokens,
)
from xformer.errors import InputError
from xformer.layers.masks import SequencePacking
from xformer.tape import Tape

TAPES = {"fused": lambda: None, "taped": Tape}
IN_TURN = [
    ((*kind, ("pre", "post", "none")[number % 3]), number % 2 == 0, number % 4 < 2)
    for number, kind in enumerate(FITTING)
]
"""Every kind of model, cycling through padding or none, the norms, and `see_self`."""


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("kind", "padded", "see_self"), IN_TURN)
def test_the_fused_and_the_taped_path_agree(kind: tuple[str, str, str], padded: bool, see_self: bool) -> None:
    architecture, positions, norm = kind
    causal = True if not see_self else None
    sizes = {"d_value": 10 if norm == "pre" else 7}  # equal to the width of the keys, and different
    model = build(architecture=architecture, positions=positions, norm=norm, see_self=see_self, causal=causal, **sizes)
    arguments = inputs(model)
    valid = torch.arange(11) < torch.tensor([[11], [4]])
    options: dict[str, torch.Tensor] = {}
    if padded and architecture == "encoder-decoder":
        options = {"valid": torch.arange(5) >= torch.tensor([[0], [3]]), "target_valid": valid}
    elif padded:
        options = {"valid": valid}
    fused, taped = model(*arguments, **options), model(*arguments, **options, tape=Tape())
    assert_same(fused, taped, list(model.parameters()), WHOLE_MODEL)


@pytest.mark.parametrize(
    ("architecture", "positions", "see_self", "path"),
    [(*kind, kind[1] != "learned", ("fused", "taped")[number % 2]) for number, kind in enumerate(BY_TURNS)],
)
@torch.no_grad()
def test_a_later_token_changes_no_earlier_output(architecture: str, positions: str, see_self: bool, path: str) -> None:
    kind = {"architecture": architecture, "positions": positions, "see_self": see_self}
    model = build(**kind, causal=True if architecture == "encoder" else None, d_value=10)
    arguments = inputs(model)
    before = model(*arguments, tape=TAPES[path]())
    for t in (1, 6, 10):
        changed = [*arguments[:-1], arguments[-1].clone()]
        changed[-1][:, t] = (changed[-1][:, t] + 7) % 23
        after = model(*changed, tape=TAPES[path]())
        assert torch.equal(after[:, :t], before[:, :t])  # bit for bit
        assert not torch.allclose(after[:, t], before[:, t])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("positions", "path"), [*((kind, "fused") for kind in POSITIONS), ("none", "taped")])
def test_an_encoder_without_positions_is_permutation_equivariant(positions: str, path: str) -> None:
    model, order = build(positions=positions), torch.randperm(11, generator=torch.Generator().manual_seed(0))
    (tokens,) = inputs(model)
    moved = model(tokens[:, order], tape=TAPES[path]())
    expected = model(tokens, tape=TAPES[path]())[:, order]
    if positions == "none":
        assert_close(moved, expected, WHOLE_MODEL)
    else:
        assert not torch.allclose(moved, expected)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("positions", ["rotary", "alibi", "t5", "none", "sinusoidal"])
def test_relative_positions_are_shift_invariant(positions: str) -> None:
    model = build(architecture="decoder", positions=positions)
    (tokens,) = inputs(model)
    shifted = model(tokens, layout=SequencePacking.plain(11, start=17))
    if positions == "sinusoidal":
        assert not torch.allclose(shifted, model(tokens))
    else:
        assert_close(shifted, model(tokens), WHOLE_MODEL)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_custom_mask_only_restricts_attention(architecture: str) -> None:
    model = build(architecture=architecture)
    arguments = inputs(model)
    everything = torch.ones(11, 11, dtype=torch.bool)
    assert_close(model(*arguments, mask=everything), model(*arguments), WHOLE_MODEL)
    drawn = torch.rand(2, 11, 11, generator=torch.Generator().manual_seed(0)) < 0.6
    both = model(*arguments, mask=drawn)
    for n in range(2):
        alone = model(*(argument[n : n + 1] for argument in arguments), mask=drawn[n])
        assert_close(both[n], alone[0], WHOLE_MODEL)
    assert_same(both, model(*arguments, mask=drawn, tape=Tape()), list(model.parameters()), WHOLE_MODEL)


def test_both_integer_types_and_a_single_token_are_accepted() -> None:
    model = build(architecture="encoder-decoder")
    arguments = inputs(model)
    assert torch.equal(model(*(argument.int() for argument in arguments)), model(*arguments))
    assert model(*(argument[:1, :1] for argument in arguments)).shape == (1, 1, 23)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.ones(2, 3), r"got torch\.float32 \[2, 3\]"),
        (torch.ones(3, dtype=torch.int64), r"got torch\.int64 \[3\]"),
        (torch.ones(2, 0, dtype=torch.int64), r"got torch\.int64 \[2, 0\]"),
        (torch.ones(1, 30, dtype=torch.int64), r"at most 29 tokens, got 30"),
        (torch.tensor([[1, 23]]), r"tokens are 0 to 22, got 23"),
        (torch.tensor([[1, -1]]), r"tokens are 0 to 22, got -1"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens: torch.Tensor, message: str) -> None:
    pair, good = build(architecture="encoder-decoder"), random_tokens(2, 3)
    for model, *arguments in ((build(), tokens), (pair, tokens, good), (pair, good, tokens)):
        with pytest.raises(InputError, match=message):
            model(*arguments)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("valid", "received"),
    [(torch.ones(2, 4, dtype=torch.bool), r"torch\.bool \[2, 4\]"), (torch.ones(2, 3), r"torch\.float32 \[2, 3\]")],
)
def test_an_invalid_valid_mask_is_refused(valid: torch.Tensor, received: str) -> None:
    with pytest.raises(InputError, match=r"\[2, 3\], got " + received):
        build()(random_tokens(2, 3), valid=valid)
    with pytest.raises(InputError, match=r"\[2, 3\], got " + received):
        build(architecture="encoder-decoder")(random_tokens(2, 5), random_tokens(2, 3), target_valid=valid)


def test_only_an_encoder_decoder_takes_a_target() -> None:
    tokens = random_tokens(2, 3)
    for architecture in ("encoder", "decoder"):
        with pytest.raises(InputError, match=f"architecture='{architecture}' takes only tokens"):
            build(architecture=architecture)(tokens, tokens)
        with pytest.raises(InputError, match=f"encode a source, got architecture='{architecture}'"):
            build(architecture=architecture).encode(tokens)
    with pytest.raises(InputError, match="both a source and a target"):
        build(architecture="encoder-decoder")(tokens)
