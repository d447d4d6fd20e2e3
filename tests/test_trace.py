"""A recorded run: the names and shapes it leaves, what it costs, what it may be saved as, and that runs never mix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch

import xformer
from tests.layers.reference import ARCHITECTURES, build, inputs, random_tokens
from xformer import edits
from xformer.errors import EditError
from xformer.tape import Tape
from xformer.trace import Trace, record

B, H, P, S, M = 2, 3, 11, 5, 13  # batch, heads, positions, source, d_model
STREAM = {"resid_pre": (B, P, M), "resid_mid": (B, P, M), "resid_post": (B, P, M)}
FFN = {"ffn.in": (B, P, M), "ffn.pre": (B, P, 17), "ffn.post": (B, P, 17), "ffn.out": (B, P, M)}


def attention(path: str, query: int = P, key: int = P, ordered: bool = True) -> dict[str, tuple[int, ...]]:
    """What an attention layer leaves, by the table of the design."""
    shapes = {
        "in": (B, query, M),
        "q": (B, H, query, 10),
        "k": (B, H, key, 10),
        "v": (B, H, key, 7),
        "mask": (B, H, query, key),
        "scores": (B, H, query, key),
        "pattern": (B, H, query, key),
        "z": (B, H, query, 7),
        "out": (B, query, M),
    } | ({"causal": (query, key)} if ordered else {})
    return {f"{path}.{name}": shape for name, shape in shapes.items()}


def single(stack: str) -> dict[str, tuple[int, ...]]:
    names = {"embed": (B, P, M), "pos_embed": (P, M), "final_norm": (B, P, M), "logits": (B, P, 23)}
    for n in range(2):
        layer = attention("attn") | FFN | STREAM
        names |= {f"{stack}.{n}.{name}": shape for name, shape in layer.items()}
    return names


def double() -> dict[str, tuple[int, ...]]:
    names: dict[str, tuple[int, ...]] = {"logits": (B, P, 23)}
    for stack, length in (("encoder", S), ("decoder", P)):
        names |= {f"{stack}.{name}": (B, length, M) for name in ("embed", "final_norm")}
        names |= {f"{stack}.pos_embed": (length, M)}
        for n in range(2):
            if stack == "encoder":
                rest = {name: (B, S, shape[2]) for name, shape in (FFN | STREAM).items()}
                layer = attention("attn", S, S) | rest
            else:
                layer = attention("self_attn") | attention("cross_attn", P, S, ordered=False) | FFN | STREAM
                layer |= {"resid_cross": (B, P, M)}
            names |= {f"{stack}.{n}.{name}": shape for name, shape in layer.items()}
    return names


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [("encoder", single("encoder")), ("decoder", single("decoder")), ("encoder-decoder", double())],
)
def test_names_and_shapes(architecture: str, expected: dict[str, tuple[int, ...]]) -> None:
    model = build(architecture=architecture, norm="pre")
    trace = record(model, *inputs(model))
    assert {name: tuple(trace[name].shape) for name in trace} == expected


def test_a_trace_is_read_like_a_dictionary() -> None:
    model = build(architecture="encoder-decoder")
    source, target = inputs(model)
    trace = xformer.record(model, source, target, edits=[edits.scale("logits", 1.0)])
    assert isinstance(trace, xformer.Trace)
    assert "decoder.1.cross_attn.z" in trace
    assert "decoder.2.cross_attn.z" not in trace
    assert trace.logits is trace["logits"]
    assert trace.attention_layers() == (
        "encoder.0.attn",
        "encoder.1.attn",
        "decoder.0.self_attn",
        "decoder.0.cross_attn",
        "decoder.1.self_attn",
        "decoder.1.cross_attn",
    )
    assert tuple(trace.patterns()) == trace.attention_layers()
    assert trace.patterns()["decoder.1.cross_attn"] is trace["decoder.1.cross_attn.pattern"]
    assert (trace.config, trace.edits) == (model.config, (edits.scale("logits", 1.0),))
    assert trace.tokens is source
    assert trace.target is target


def test_an_unknown_name_is_answered_with_the_nearest_and_all() -> None:
    model = build()
    trace = record(model, *inputs(model))
    with pytest.raises(EditError, match=r"'encoder.0.attn.patern': did you mean encoder.0.attn.pattern.*It has embed"):
        trace["encoder.0.attn.patern"]
    with pytest.raises(EditError, match=r"'§§§'\. It has embed"):
        trace["§§§"]


def test_a_run_keeps_only_what_was_asked_for_and_no_graph() -> None:
    model = build()
    arguments = inputs(model)
    everything = record(model, *arguments)
    some = record(model, *arguments, keep=["*.pattern", "logits"])
    assert list(some) == ["encoder.0.attn.pattern", "encoder.1.attn.pattern", "logits"]
    assert all(torch.equal(some[name], everything[name]) for name in some)
    assert not any(everything[name].requires_grad for name in everything)
    with pytest.raises(EditError, match=r"'\*\.patern'; its names are embed"):
        record(model, *arguments, keep=["*.patern"])
    with pytest.raises(EditError, match=r"'encoder\.7\.attn\.z'; its names are embed, .*logits"):
        record(model, *arguments, edits=[edits.ablate_head("encoder.7.attn", 0)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_record_is_the_taped_run(architecture: str) -> None:
    model = build(architecture=architecture)
    arguments = inputs(model)
    drawn = torch.rand(11, 11, generator=torch.Generator().manual_seed(0)) < 0.5
    valid = torch.arange(arguments[0].shape[1]) < 4
    options = {"valid": valid.expand(arguments[0].shape), "mask": drawn}
    tape = Tape()
    model(*arguments, **options, tape=tape)
    trace = record(model, *arguments, **options)
    assert list(trace) == list(tape.activations)
    assert all(torch.equal(trace[name], tape.activations[name]) for name in trace)
    assert torch.equal(record(model, *arguments, pad=0).logits, model(*arguments, pad=0, tape=Tape()))


def test_bytes_count_shared_storage_once() -> None:
    model = build()
    shared = torch.zeros(7, 11)
    config, tokens = model.config, random_tokens(1, 1)

    def n_bytes(**activations: torch.Tensor) -> int:
        return Trace(config, tokens, None, (), activations).n_bytes

    assert n_bytes() == 0
    assert n_bytes(a=shared) == 7 * 11 * 4
    assert n_bytes(a=shared, b=shared[:3], c=shared.T, d=shared[None].expand(5, 7, 11)) == 7 * 11 * 4
    assert n_bytes(a=shared, b=torch.zeros(13, dtype=torch.bool)) == 7 * 11 * 4 + 13
    trace = record(model, *inputs(model))
    one_each = {trace[name].untyped_storage().data_ptr(): trace[name].untyped_storage().nbytes() for name in trace}
    assert trace.n_bytes == sum(one_each.values()) < sum(trace[name].nbytes for name in trace)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saved_arrays_come_back(architecture: str, tmp_path: Path) -> None:
    model = build(architecture=architecture)
    arguments = inputs(model)
    trace = record(model, *arguments)
    trace.save_npz(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz", allow_pickle=False) as arrays:
        names = {*trace, "tokens", "config"} | ({"target"} if trace.target is not None else set())
        assert set(arrays.files) == names
        for name in trace:
            assert np.array_equal(arrays[name], trace[name].numpy())
        assert np.array_equal(arrays["tokens"], arguments[0].numpy())
        if trace.target is not None:
            assert np.array_equal(arrays["target"], arguments[1].numpy())


@pytest.mark.usefixtures("unchecked")
def test_eight_threads_on_one_model_never_mix() -> None:
    model = build(architecture="decoder", positions="learned").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    other = record(model, random_tokens(2, 7, seed=99))
    ablation = [
        edits.ablate_head("decoder.0.attn", 1),
        edits.mask_edges("decoder.1.attn", [(3, 1)], heads=[2]),
        edits.set_causal(False),
        edits.scale("decoder.0.ffn.out", 0.0),
        edits.patch_from(other, "decoder.0.resid_post"),
        edits.zero_positions(),
        edits.replace_pattern("decoder.0.attn", torch.full((7, 7), 1 / 7), heads=[0]),
    ]
    jobs = [(random_tokens(2, 7, seed=n), () if n == 7 else (ablation[n],)) for n in range(8)]
    serial = [record(model, tokens, edits=chosen) for tokens, chosen in jobs]
    assert len({trace.logits.sum().item() for trace in serial}) == 8
    start = Barrier(8)

    def mixed(n: int) -> int:
        start.wait()
        count = 0
        for _ in range(50):
            trace = record(model, jobs[n][0], edits=jobs[n][1])
            count += list(trace) != list(serial[n])
            count += any(not torch.equal(trace[name], serial[n][name]) for name in trace)
        return count

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(mixed, range(8))) == [0] * 8
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_fused_run_that_keeps_little_says_the_same_and_still_knows_all_names(architecture: str) -> None:
    model = build(architecture=architecture)
    whole, brief = record(model, *inputs(model)), record(model, *inputs(model), keep=["logits"], fused=True)
    torch.testing.assert_close(brief.logits, whole.logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(EditError, match=r"0\.(cross_)?attn\.pattern") as error:
        record(model, *inputs(model), keep=["logits"], fused=True, edits=[edits.scale("nothing.of.the.kind", 0.0)])
    assert all(name in str(error.value) for name in whole)
