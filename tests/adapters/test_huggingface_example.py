"""A reading is the caller's call: masks, positions, caches and other arguments, compared with the model's own output."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import xformer
from tests.adapters.families import FAMILIES, tiny_model
from xformer import edits
from xformer.errors import InputError, UnavailableError
from xformer.reading import rerun

CLOSE = {"rtol": 0.0, "atol": 1e-5, "equal_nan": True}
IDS = torch.tensor([[5, 9, 14, 3, 22, 8]])
N = 6
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
PACKED = CAUSAL & ~((torch.arange(N)[:, None] >= 3) & (torch.arange(N) < 3))
WITHOUT_A_KEY = CAUSAL & (torch.arange(N)[:, None] != 2)


def model(family: str, attention: str = "sdpa") -> Any:
    return tiny_model(FAMILIES[family].model, FAMILIES[family].sizes, attention)


def added(allowed: Tensor, dtype: torch.dtype = torch.float32, forbidden: float | None = None) -> Tensor:
    """A mask to be added to scores [1, 1, query, key]."""
    lowest = torch.finfo(dtype).min if forbidden is None else forbidden
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, lowest)[None, None]


def own_logits(of: Any, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        return of(**copy.deepcopy(inputs)).logits


MASKS = {
    "causal": CAUSAL[None, None],
    "packed": PACKED[None, None],
    "a row without a key": WITHOUT_A_KEY[None, None],
    "a head axis": torch.stack([PACKED, *[CAUSAL] * 5])[None],
    "added": added(PACKED),
    "added, a row without a key": added(WITHOUT_A_KEY),
    "added infinity, a row without a key": added(WITHOUT_A_KEY, forbidden=float("-inf")),
    "added numbers": PACKED[None, None].float(),
    "padding on the left": torch.tensor([[False, False, True, True, True, True]]),
    "neither 0 nor 1": torch.tensor([[1, 1, 1, 2, 2, 2]]),
}


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "BERT"])
def test_a_mask_is_read_as_sdpa_reads_it(name: str) -> None:
    of = model(name)
    for kind, mask in MASKS.items():
        inputs = {"input_ids": IDS, "attention_mask": mask}
        reading = xformer.read(of, inputs)
        assert torch.allclose(reading.logits, own_logits(of, inputs), **CLOSE), kind
        if mask.dtype == torch.bool and mask.dim() == 4:
            pattern = reading[f"{reading.attention[0].path}.pattern"]
            assert not pattern[~mask.expand(pattern.shape)].any(), kind


@pytest.mark.parametrize("name", ["Llama", "BERT", "BLOOM"])
def test_a_mask_is_read_as_eager_attention_reads_it(name: str) -> None:
    of, n_read = model(name, "eager"), 0
    for kind, mask in MASKS.items():
        inputs = {"input_ids": IDS, "attention_mask": mask}
        if mask.dtype == torch.bool and mask.dim() == 4 and name != "BLOOM":
            with pytest.raises(InputError, match="adds a mask of type bool to its scores"):
                xformer.read(of, inputs)
            continue
        try:
            wanted = own_logits(of, inputs)
        except (RuntimeError, ValueError):
            with pytest.raises(InputError, match="could not be called with these arguments"):
                xformer.read(of, inputs)
            continue
        assert torch.allclose(xformer.read(of, inputs).logits, wanted, **CLOSE), kind
        n_read += 1
    assert n_read >= 2


def test_a_mask_of_another_type_is_read_or_refused_like_the_models_call() -> None:
    whole = {"input_ids": IDS, "attention_mask": PACKED[None, None].long()}
    with pytest.raises(InputError, match="adds a mask of type int64"):  # eager attention adds it
        xformer.read(model("Llama", "eager"), whole)
    with pytest.raises(InputError, match="could not be called with these arguments"):  # SDPA refuses it
        xformer.read(model("Llama"), whole)
    half = {"input_ids": IDS, "attention_mask": added(PACKED, torch.float16)}
    of = model("Llama", "eager")
    assert torch.allclose(xformer.read(of, half).logits, own_logits(of, half), **CLOSE)


def test_masks_of_an_encoder_decoder_are_read_as_its_own_call_reads_them() -> None:
    for name in ("T5", "BART"):
        of = model(name)
        for given in ("attention_mask", "decoder_attention_mask"):
            for kind in ("packed", "added", "padding on the left"):
                inputs = {"input_ids": IDS, "decoder_input_ids": IDS + 3, given: MASKS[kind]}
                assert torch.allclose(xformer.read(of, inputs).logits, own_logits(of, inputs), **CLOSE), (name, given)


def test_each_row_of_a_batch_and_each_kind_of_layer_may_have_its_own_mask() -> None:
    rows = {"input_ids": IDS.repeat(2, 1), "attention_mask": torch.stack([PACKED, CAUSAL])[:, None]}
    kinds = {"full_attention": added(PACKED), "sliding_attention": added(CAUSAL)}
    for of, inputs in ((model("Llama"), rows), (model("Gemma2", "eager"), {"input_ids": IDS, "attention_mask": kinds})):
        reading = xformer.read(of, inputs)
        assert torch.allclose(reading.logits, own_logits(of, inputs), **CLOSE)
        again = rerun(reading.one(reading.batch_size - 1), [])
        assert torch.allclose(again.logits[0], reading.logits[-1], **CLOSE)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_positions_that_restart_are_read_as_in_the_callers_call(attention: str) -> None:
    of, positions = model("Llama", attention), torch.tensor([[0, 1, 2, 0, 1, 2]])
    for more in ({}, {"use_cache": False}, {"use_cache": True}, {"attention_mask": torch.ones_like(IDS)}):
        inputs = {"input_ids": IDS, "position_ids": positions, **more}
        reading = xformer.read(of, inputs)
        assert torch.allclose(reading.logits, own_logits(of, inputs), **CLOSE), more
        leaks = bool(reading["decoder.0.attn.pattern"][..., 3:, :3].any())
        assert leaks == (more != {"use_cache": False})  # with a cache, Transformers builds no mask from positions


def past(of: Any, kind: str) -> Any:
    from transformers import DynamicCache, StaticCache

    cache = DynamicCache(config=of.config) if kind == "dynamic" else StaticCache(config=of.config, max_cache_len=16)
    with torch.no_grad():
        of(input_ids=IDS[:, :4] + 7, past_key_values=cache)
    return cache


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "GPT-2"])
def test_a_cache_among_the_inputs_stays_the_callers(name: str, kind: str) -> None:
    of = model(name)
    inputs = {"input_ids": IDS, "past_key_values": past(of, kind)}
    before = copy.deepcopy(inputs["past_key_values"])
    reading = xformer.read(of, inputs)
    assert torch.allclose(reading.logits, own_logits(of, inputs), **CLOSE)
    assert torch.equal(xformer.read(of, inputs).logits, reading.logits)
    assert torch.equal(rerun(reading, [edits.scale("decoder.0.attn.z", 1.0)]).logits, reading.logits)
    for layer, was in zip(inputs["past_key_values"].layers, before.layers, strict=True):
        assert torch.equal(layer.keys, was.keys)
        assert torch.equal(layer.values, was.values)
    inputs["past_key_values"].reset()  # the reading has its own copy
    assert torch.equal(rerun(reading, []).logits, reading.logits)
    with pytest.raises(UnavailableError, match="Keys from a cache"):
        xformer.analysis.score_attribution(reading, layer=0, head=0, query=1, key=1)


def test_a_mask_that_also_covers_the_cache_is_read() -> None:
    of = model("Llama")
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1, 1]])
    inputs = {"input_ids": IDS, "past_key_values": past(of, "dynamic"), "attention_mask": mask}
    assert torch.allclose(xformer.read(of, inputs).logits, own_logits(of, inputs), **CLOSE)


def test_a_decoders_cache_among_the_inputs_stays_the_callers() -> None:
    from transformers import DynamicCache, EncoderDecoderCache

    of = model("BART")
    cache = EncoderDecoderCache(DynamicCache(config=of.config), DynamicCache(config=of.config))
    with torch.no_grad():
        of(input_ids=IDS, decoder_input_ids=IDS[:, :2], past_key_values=cache)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, 2:5], "past_key_values": cache}
    reading = xformer.read(of, inputs)
    assert torch.allclose(reading.logits, own_logits(of, inputs), **CLOSE)
    assert cache.get_seq_length() == 2


def test_all_positions_have_an_output_even_where_the_callers_call_returns_the_last() -> None:
    of = model("Llama")
    reading = xformer.read(of, {"input_ids": IDS, "logits_to_keep": 2})
    assert torch.allclose(reading.logits, own_logits(of, {"input_ids": IDS}), **CLOSE)
    with torch.no_grad():
        assert abs(reading.loss - float(of(input_ids=IDS, labels=IDS).loss)) < 1e-5


def test_other_arguments_change_nothing_or_are_refused() -> None:
    of = model("Llama")
    wanted = own_logits(of, {"input_ids": IDS})
    for more in ({"return_dict": False}, {"output_hidden_states": True}, {"labels": IDS}, {"use_cache": True}):
        assert torch.allclose(xformer.read(of, {"input_ids": IDS, **more}).logits, wanted, **CLOSE), more
    with pytest.raises(InputError, match="could not be called with these arguments"):
        xformer.read(of, {"input_ids": IDS, "attention_mask": CAUSAL[None]})
    with pytest.raises(InputError, match="cannot be copied"):
        xformer.read(of, {"input_ids": IDS, "unknown": (one for one in ())})


def test_the_keys_of_a_cache_are_labelled() -> None:
    of = model("Llama")
    for kind, n_empty in (("dynamic", 0), ("static", 6)):
        reading = xformer.read(of, {"input_ids": IDS, "past_key_values": past(of, kind)})
        keys = list(dict.fromkeys(xformer.analysis.attention(reading, layer=0, head=0)["key"]))
        names = [*(f"earlier {at + 1}" for at in range(4)), *map(str, IDS[0].tolist())]
        assert keys == [
            f"{at} · {name}" for at, name in enumerate([*names, *(f"empty {n + 1}" for n in range(n_empty))])
        ]
        assert xformer.analysis.attention_patterns.looks_back_only(reading)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"input_ids": "5 9 14"}, "input_ids are token ids .* pass a text by itself"),
        ({"input_ids": b"abc"}, "input_ids are token ids"),
        ({"input_ids": [[5, 9], [14]]}, "input_ids is no tensor"),
        ({"input_ids": IDS[None]}, r"input_ids are token ids \[batch, pos\], got \[1, 1, 6\]"),
        ({"input_ids": IDS > 8}, "Token ids are whole numbers"),
        (
            {"attention_mask": torch.ones(1, N - 2)},
            r"attention_mask has an entry for each token, \[1, 6\], got \[1, 4\]",
        ),
        ({"attention_mask": torch.ones(1, N + 2)}, r"got \[1, 8\]"),
        ({"attention_mask": torch.ones(2, N)}, r"got \[2, 6\]"),
        ({"attention_masks": torch.ones(1, N)}, "no argument attention_masks; did you mean attention_mask"),
        ({"position_id": torch.arange(N)[None]}, "no argument position_id; did you mean position_ids"),
    ],
)
@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_arguments_that_a_model_would_drop_or_spread_are_refused(name: str, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        xformer.read(model(name), {"input_ids": IDS, **more})


@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_arguments_may_be_lists_and_arrays(name: str) -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    wanted = xformer.read(model(name), {"input_ids": IDS, "attention_mask": mask}).logits
    for as_given in (Tensor.tolist, Tensor.numpy, lambda one: one[0].tolist(), lambda one: one[0].numpy()):
        inputs = {"input_ids": as_given(IDS), "attention_mask": as_given(mask), "token_type_ids": 0 * IDS}
        assert torch.equal(xformer.read(model(name), inputs).logits, wanted)


def test_what_a_processor_gives_besides_is_left_to_the_model() -> None:
    from transformers import BatchEncoding

    given = BatchEncoding({"input_ids": IDS, "special_tokens_mask": 0 * IDS})
    wanted = xformer.read(model("Llama"), {"input_ids": IDS}).logits
    assert torch.equal(xformer.read(model("Llama"), given).logits, wanted)
    with pytest.raises(InputError, match="no argument special_tokens_mask"):
        xformer.read(model("Llama"), dict(given))
