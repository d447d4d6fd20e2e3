"""Each edit has its documented effect, compared with a computation by hand, and no other."""

from __future__ import annotations

import math

import jaxtyping
import pytest
import torch
from torch import Tensor

from tests.layers.reference import FITTING, WHOLE_MODEL, assert_close, build, inputs, random, softmax_by_hand
from xformer import edits
from xformer.edits import Edit
from xformer.errors import EditError
from xformer.model import Transformer
from xformer.tape import Tape
from xformer.trace import Trace, record

pytestmark = pytest.mark.usefixtures("float64")

LAYERS = [
    ("encoder", "encoder.0.attn", [1]),
    ("decoder", "decoder.0.attn", [0, 2]),
    ("encoder-decoder", "decoder.0.cross_attn", None),
]
every_kind = pytest.mark.parametrize(("architecture", "path", "heads"), LAYERS)


def twin(model: Transformer, **changes: object) -> Transformer:
    """Return a model with a changed configuration and the same weights, where it has them."""
    other = Transformer(model.config.replace(**changes))
    weights = model.state_dict()
    if changes.get("architecture") == "decoder":
        weights = {name.replace("encoder.", "decoder."): value for name, value in weights.items()}
    names = set(other.state_dict())
    other.load_state_dict({name: value for name, value in weights.items() if name in names})
    return other


def part(model: Transformer, path: str) -> torch.nn.Module:
    """Return the attention or feed-forward layer at a path such as encoder.0.attn."""
    stack, n, name = path.split(".")
    return getattr(getattr(model, stack).blocks[int(n)], name)


def rest_by_hand(model: Transformer, arguments: list[Tensor], path: str, pattern: Tensor) -> Tensor:
    """Return the logits with `pattern` [batch, head, query, key] imposed on one layer, whose z is computed here."""
    v = record(model, *arguments)[f"{path}.v"]
    z = torch.einsum("bhqk,bhkd->bhqd", pattern, v)
    attention = part(model, path)
    out = torch.einsum("bhqd,hdm->bqm", z, attention.W_O) + attention.b_O
    return record(model, *arguments, edits=[edits.replace(f"{path}.out", out)]).logits


def pattern_by_hand(trace: Trace, path: str, allowed: Tensor) -> Tensor:
    """softmax(q kᵀ / √d_head) over the allowed keys."""
    scores = trace[f"{path}.q"] @ trace[f"{path}.k"].transpose(-2, -1) / math.sqrt(10)
    return softmax_by_hand(scores.masked_fill(~allowed, float("-inf")))


@pytest.mark.parametrize(("architecture", "path"), [layer[:2] for layer in LAYERS])
def test_ablating_a_head_equals_zeroing_its_output_matrix(architecture: str, path: str) -> None:
    head = 2
    model = build(architecture=architecture)
    arguments = inputs(model)
    trace = record(model, *arguments, edits=[edits.ablate_head(path, head)])
    assert (trace[f"{path}.z"][:, head] == 0).all()
    other = twin(model)
    with torch.no_grad():
        part(other, path).W_O[head] = 0.0
    assert_close(trace.logits, record(other, *arguments).logits, WHOLE_MODEL)
    assert not torch.allclose(trace.logits, record(model, *arguments).logits)


@pytest.mark.parametrize("allowed", [False, True])
@every_kind
def test_edges_change_only_in_given_heads(architecture: str, path: str, heads: list[int] | None, allowed: bool) -> None:
    model = build(architecture=architecture)
    arguments = inputs(model)
    plain = record(model, *arguments)
    edges = [(2, 1), (2, 4), (4, 0)]
    kind = edits.unmask_edges if allowed else edits.mask_edges
    first = [edits.mask_edges(path, [(2, 1), (3, 3)])] if allowed else []  # so that there is something to unmask
    trace = record(model, *arguments, edits=[*first, kind(path, edges, heads)])
    mask = plain[f"{path}.mask"].clone()
    for query, key in [(2, 1), (3, 3)] if allowed else []:
        mask[:, :, query, key] = False
    for query, key in edges:
        for head in heads or range(3):
            mask[:, head, query, key] = allowed
    assert torch.equal(trace[f"{path}.mask"], mask)
    pattern = pattern_by_hand(plain, path, mask)
    assert_close(trace[f"{path}.pattern"], pattern)
    assert_close(trace.logits, rest_by_hand(model, arguments, path, pattern), WHOLE_MODEL)
    for head in range(3) if heads and not allowed else ():
        assert torch.equal(trace[f"{path}.pattern"][:, head], plain[f"{path}.pattern"][:, head]) == (head not in heads)


@every_kind
def test_set_mask_replaces_the_whole_mask(architecture: str, path: str, heads: list[int] | None) -> None:
    model = build(architecture=architecture)
    arguments = inputs(model)
    plain = record(model, *arguments)
    mask = plain[f"{path}.mask"].clone()
    drawn = torch.rand(mask.shape[-2:], generator=torch.Generator().manual_seed(1)) < 0.5
    drawn[1] = False  # one query sees nothing
    mask[:, heads if heads else slice(None)] = drawn
    trace = record(model, *arguments, edits=[edits.set_mask(path, drawn, heads)])
    assert torch.equal(trace[f"{path}.mask"], mask)
    assert_close(trace[f"{path}.pattern"], pattern_by_hand(plain, path, mask))
    assert trace.logits.isfinite().all()


@pytest.mark.parametrize(("positions", "padded"), [("rotary", True), ("alibi", False)])
def test_set_causal_removes_and_imposes_the_causal_mask(positions: str, padded: bool) -> None:
    encoder = build(positions=positions)
    decoder = twin(encoder, architecture="decoder", causal=True)
    (tokens,) = inputs(encoder)
    valid = torch.arange(11) < torch.tensor([[11], [7]])
    options = {"valid": valid} if padded else {}
    both, past = record(encoder, tokens, **options).logits, record(decoder, tokens, **options).logits
    assert not torch.allclose(both[valid], past[valid])
    lifted = record(decoder, tokens, **options, edits=[edits.set_causal(False)])
    imposed = record(encoder, tokens, **options, edits=[edits.set_causal(True)])
    assert torch.equal(lifted.logits, both)
    assert torch.equal(imposed.logits, past)
    one = record(encoder, tokens, **options, edits=[edits.set_causal(True, "encoder.1.attn")])
    assert torch.equal(one["encoder.0.resid_post"], record(encoder, tokens, **options)["encoder.0.resid_post"])
    assert not one["encoder.1.attn.mask"].triu(1).any()


def test_causal_mask_is_aligned_to_the_last_key_with_a_cache() -> None:
    cell = torch.zeros(3, 7, dtype=torch.bool)
    imposed = edits.SetCausal("decoder.0.attn.causal", on=True).apply("decoder.0.attn.causal", cell)
    assert imposed.sum(dim=-1).tolist() == [5, 6, 7]


def test_imposing_causality_on_an_encoder_keeps_its_t5_bias() -> None:
    encoder = build(positions="t5")
    (tokens,) = inputs(encoder)
    plain, imposed = record(encoder, tokens), record(encoder, tokens, edits=[edits.set_causal(True)])
    assert not imposed["encoder.0.attn.mask"].triu(1).any()
    past = plain["encoder.0.attn.mask"].tril().expand_as(plain["encoder.0.attn.scores"])
    assert_close(imposed["encoder.0.attn.scores"][past], plain["encoder.0.attn.scores"][past])


def test_removing_causality_does_not_affect_cross_attention() -> None:
    model = build(architecture="encoder-decoder")
    arguments = inputs(model)
    trace = record(model, *arguments, edits=[edits.set_causal(False)])
    assert trace["decoder.1.self_attn.mask"].all()
    assert trace["decoder.0.cross_attn.mask"].all()
    with pytest.raises(EditError, match=r"decoder\.0\.cross_attn\.causal"):
        record(model, *arguments, edits=[edits.set_causal(True, "decoder.0.cross_attn")])


@every_kind
def test_a_replaced_pattern_mixes_the_values(architecture: str, path: str, heads: list[int] | None) -> None:
    model = build(architecture=architecture)
    arguments = inputs(model)
    plain = record(model, *arguments)[f"{path}.pattern"]
    flat = torch.full(plain.shape[-2:], 1 / plain.shape[-1])
    expected = plain.clone()
    expected[:, heads if heads else slice(None)] = flat
    for given in (flat, flat.expand(plain.shape[1:]), flat.expand(plain.shape)):
        trace = record(model, *arguments, edits=[edits.replace_pattern(path, given, heads)])
        assert torch.equal(trace[f"{path}.pattern"], expected)
        assert_close(trace.logits, rest_by_hand(model, arguments, path, expected), WHOLE_MODEL)


@pytest.mark.parametrize("factor", [0.0, -2.0])  # 0 · −∞ would be NaN
def test_scaling_scores_keeps_masked_scores_masked(factor: float) -> None:
    model = build(architecture="decoder")
    arguments, path = inputs(model), "decoder.0.attn"
    plain = record(model, *arguments)
    trace = record(model, *arguments, edits=[edits.scale(f"{path}.scores", factor, heads=[1])])
    causal = torch.ones(11, 11, dtype=torch.bool).tril()
    scores = (plain[f"{path}.q"] @ plain[f"{path}.k"].transpose(-2, -1) / math.sqrt(10)).clone()
    scores[:, 1] *= factor
    assert_close(trace[f"{path}.pattern"], softmax_by_hand(scores.masked_fill(~causal, float("-inf"))))


@pytest.mark.parametrize("positions", [None, [0, 2]])
def test_steering_adds_the_scaled_vector_at_the_given_positions(positions: list[int] | None) -> None:
    model, name = build(), "encoder.1.resid_post"
    tokens = inputs(model)
    plain = record(model, *tokens)[name]
    vector = torch.arange(float(plain.shape[-1]))
    steered = record(model, *tokens, edits=[edits.steer(name, vector, -0.5, positions=positions)])[name]
    added = torch.zeros_like(plain)
    added[:, slice(None) if positions is None else positions] = -0.5 * vector
    assert torch.equal(steered, plain + added)


@pytest.mark.parametrize(
    ("name", "heads", "positions"),
    [("k", None, [0, 3]), ("scores", None, None), ("pattern", [0, 2], None), ("z", [1], [0, 3])],
)
def test_patches_keep_other_heads_and_places(name: str, heads: list[int] | None, positions: list[int] | None) -> None:
    model = build()
    a, b = (record(model, *inputs(model, seed=seed)) for seed in (0, 50))
    patch = edits.patch_from(a, f"encoder.1.attn.{name}", heads=heads, positions=positions)
    trace = record(model, *inputs(model, seed=50), edits=[patch])
    expected = b[f"encoder.1.attn.{name}"].clone()
    for head in heads or range(3):
        for pos in positions or range(11):
            expected[:, head, pos] = a[f"encoder.1.attn.{name}"][:, head, pos]
    assert torch.equal(trace[f"encoder.1.attn.{name}"], expected)
    assert not torch.equal(trace.logits, b.logits)


@pytest.mark.parametrize(("architecture", "positions"), [kind for kind in FITTING if kind[0] == "decoder"])
def test_zero_positions_equals_a_model_without_positions(architecture: str, positions: str) -> None:
    model = build(architecture=architecture, positions=positions)
    arguments = inputs(model)
    if positions == "none":
        with pytest.raises(EditError, match=r"matches '\*pos_\*'; its names are embed"):
            record(model, *arguments, edits=[edits.zero_positions()])
        return
    trace = record(model, *arguments, edits=[edits.zero_positions()])
    expected = record(twin(model, positions="none"), *arguments)
    assert_close(trace.logits, expected.logits, WHOLE_MODEL)
    assert not torch.allclose(trace.logits, record(model, *arguments).logits)


def test_edits_change_neither_weights_nor_other_runs() -> None:
    model = build(architecture="encoder-decoder", positions="learned")
    here, there = inputs(model, seed=0), inputs(model, seed=50)
    a = record(model, *here)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    before = {name: a[name].clone() for name in a}
    drawn, given = torch.ones(11, 11, dtype=torch.bool).tril(3), random(2, 11, 13).detach()
    kept = drawn.clone(), given.clone()
    patches = [edits.patch_from(a, name) for name in a]
    everything: list[Edit] = [
        edits.ablate_head("*attn", 1),
        edits.mask_edges("*attn", [(1, 0)], [0]),
        edits.unmask_edges("*attn", [(0, 1)], [2]),
        edits.set_mask("decoder.0.self_attn", drawn),
        edits.set_causal(False),
        edits.replace("decoder.1.resid_pre", given),
        edits.scale("*resid_*", 0.5),
        edits.scale("*.pattern", 0.5, heads=[1]),
        edits.zero_positions(),
    ]
    record(model, *there, edits=[*patches, *everything])
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(a[name], before[name]) for name in a)
    assert torch.equal(drawn, kept[0])
    assert torch.equal(given, kept[1])
    assert torch.equal(record(model, *here).logits, before["logits"])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edits.ablate_head("encoder.0.attn", 3), r"encoder\.0\.attn\.z has heads 0 to 2, got 3"),
        (edits.scale("encoder.0.ffn.out", 2.0, heads=[0]), r"ffn\.out has the shape \[2, 11, 13\] and no heads"),
        (edits.scale("encoder.0.attn.mask", 0.5), r"must keep the shape and type"),
        (edits.mask_edges("encoder.0.attn", [(11, 0)]), r"queries 0 to 10 and keys 0 to 10, .* \(11, 0\)"),
        (edits.set_mask("encoder.0.attn", torch.ones(7, 11) > 0), r"\[2, 3, 11, 11\], and \[7, 11\] does not fit"),
        (edits.replace("encoder.0.resid_post", torch.ones(3, 11, 13)), r"\[2, 11, 13\], and \[3, 11, 13\] does not"),
        (edits.replace("encoder.0.attn.mask", torch.zeros(11, 11)), r"type torch\.bool, and torch\.float32 cannot"),
        (edits.replace("embed", torch.full((2, 11, 13), math.nan)), r"embed contains NaN"),
        (edits.replace("encoder.0.attn.zz", torch.ones(1)), r"attn\.zz'; did you mean encoder\.0\.attn\.z"),
    ],
)
def test_an_edit_that_does_not_fit_raises_a_clear_error(edit: Edit, message: str) -> None:
    model = build()
    with pytest.raises(EditError, match=message):
        record(model, *inputs(model), edits=[edit])


def test_patching_from_a_run_without_the_activation_is_refused() -> None:
    model = build()
    whole = record(model, *inputs(model))
    with pytest.raises(EditError, match=r"no activation 'encoder\.0\.attn\.z'"):
        edits.patch_from(record(model, *inputs(model), keep=["logits"]), "encoder.0.attn.z")
    with pytest.raises(EditError, match=r"has positions 0 to 10, got 11"):
        record(model, *inputs(model), edits=[edits.patch_from(whole, "embed", positions=[11])])


@pytest.mark.usefixtures("unchecked")
def test_a_numeric_mask_is_refused() -> None:
    """In an additive mask 0 means "may attend"; as a boolean it would mean the opposite."""
    additive = torch.zeros(11, 11).masked_fill(torch.ones(11, 11).triu(1) > 0, -math.inf)
    for mask in (additive, torch.ones(11, 11, dtype=torch.long)):
        with pytest.raises(EditError, match=r"must be boolean, .* got torch\..*; for an additive mask .* mask == 0"):
            edits.set_mask("encoder.0.attn", mask)


def test_a_value_for_one_token_is_not_broadcast_to_all_tokens() -> None:
    model = build()
    short = record(model, torch.tensor([[3]]))
    for name in ("embed", "encoder.0.attn.pattern"):
        with pytest.raises(EditError, match="does not fit"):
            record(model, *inputs(model), edits=[edits.patch_from(short, name)])
    whole = record(model, *inputs(model))
    for name in ("embed", "encoder.0.attn.pattern"):  # one example can be expanded to a batch
        one = edits.replace(name, whole[name][:1])
        assert torch.equal(record(model, *inputs(model), edits=[one])[name][1], whole[name][0])


def test_indices_must_be_integers_and_factors_finite() -> None:
    for wrong in (
        lambda: edits.ablate_head("encoder.0.attn", 1.5),
        lambda: edits.ablate_neuron("encoder.0.ffn", 1.5),
        lambda: edits.mask_edges("encoder.0.attn", [(0, 1.5)]),
        lambda: edits.scale("encoder.0.attn.q", 2.0, heads=[1.5]),
    ):
        with pytest.raises((EditError, jaxtyping.TypeCheckError), match=r"integers from 0, got 1\.5|Type-check"):
            wrong()
    for factor in (math.nan, math.inf):
        with pytest.raises(EditError, match="must be a finite number"):
            edits.scale("encoder.0.ffn.out", factor)


def test_edits_apply_in_the_given_order() -> None:
    a, five = torch.tensor([1.0]), torch.tensor([5.0])
    assert Tape([edits.scale("a", 2.0), edits.replace("a", five)])("a", a).tolist() == [5.0]
    assert Tape([edits.replace("a", five), edits.scale("a", 2.0)])("a", a).tolist() == [10.0]
