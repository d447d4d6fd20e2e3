"""Every model class opens from a folder and from memory, with the outputs of the stock model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import xformer
from tests.adapters.families import GROUPED, IMAGE, PAIR, SIZES, SPECIAL, TEXT_SIZES, returned_patterns
from tests.adapters.test_attachment import ROUNDING, distance, preserve_state
from tests.adapters.test_huggingface import tokenizer
from tests.adapters.zoo import N_LABELS, ZOO, Attention, Member
from xformer.analysis.attention_patterns import token_names
from xformer.errors import InputError, XformerError
from xformer.reading import Reading

BY_NAME = {member.name: member for member in ZOO}
TOLERANCE = {
    torch.float32: 1e-5,
    torch.bfloat16: 8 * torch.finfo(torch.bfloat16).eps,  # one rounding error in each of about eight sums in two layers
    torch.float16: 8 * torch.finfo(torch.float16).eps,
}
"""The tolerance for outputs, relative to the largest output if that is above 1, else absolute."""
SAVED = ["BertForMaskedLM", "GPT2Model", "T5ForConditionalGeneration", "CLIPModel"]
HALF: tuple[tuple[str, torch.dtype, Attention], ...] = (
    ("BertForMaskedLM", torch.float16, "sdpa"),
    ("LlamaForCausalLM", torch.bfloat16, "sdpa"),
)
VARIANTS = [(member, torch.float32, "eager") for member in ZOO]
VARIANTS += [(BY_NAME[name], dtype, attention) for name, dtype, attention in HALF]


def variant_name(value: object) -> str:
    return value.name if isinstance(value, Member) else str(value).removeprefix("torch.")


@torch.no_grad()
def stock_output(model: Any, inputs: dict[str, Tensor], **options: Any) -> Any:
    return model(**inputs, **options)


def shown(member: Member, output: Any) -> Tensor:
    """The stock model's output as a reading shows it, [batch, pos, n]."""
    if member.output == "answer_span":
        return torch.stack([output.start_logits, output.end_logits], dim=1)
    if member.output == "similarity":
        return output.logits_per_image[:, None]
    if member.output == "vectors":
        return output.last_hidden_state
    logits = output.get("logits", output.get("prediction_logits"))
    if member.name == "ElectraForPreTraining":  # 0, and the log-odds that a token was replaced
        return torch.stack([torch.zeros_like(logits), logits], dim=-1)
    return logits[:, None] if logits.dim() == 2 else logits


def assert_output(member: Member, reading: Reading, output: Any) -> None:
    """Compare the kind of output and its values with the stock model."""
    adapter: Any = reading.adapter
    assert adapter.output == member.output
    found, wanted = reading["output" if member.output == "vectors" else "logits"], shown(member, output)
    assert found.dtype == wanted.dtype
    assert distance(found, wanted) <= TOLERANCE[wanted.dtype] * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize(("member", "dtype", "attention"), VARIANTS, ids=variant_name)
def test_a_loaded_model_equals_the_stock_model(member: Member, dtype: torch.dtype, attention: Attention) -> None:
    model = member.make(attention).to(dtype)
    given = member.inputs(model)
    inputs = {name: one.to(dtype) if one.is_floating_point() else one for name, one in given.items()}
    wanted = stock_output(model, inputs)
    with preserve_state(model) if dtype == torch.float32 else nullcontext():
        reading = xformer.read(model, inputs)
    assert_output(member, reading, wanted)
    if (dtype, attention) == (torch.float32, "eager"):
        assert_sizes(member, model, reading)
        assert_patterns(member, reading, stock_output(model, inputs, output_attentions=True))


def assert_sizes(member: Member, model: Any, reading: Reading) -> None:
    """Check input and output sizes, which differ for classifiers."""
    shape = reading.adapter.shape
    if member.reads == "text" and member.output != "similarity":
        assert shape.n_inputs == model.get_input_embeddings().num_embeddings == 97
    if member.output not in ("vectors", "similarity", "answer_span"):
        assert shape.vocab_size == shown_width(member)
    assert shape.is_encoder_decoder == member.is_encoder_decoder
    if member.output != "similarity" and not member.is_encoder_decoder:
        assert shape.is_causal == member.is_causal


def shown_width(member: Member) -> int:
    """The size of the output at each position."""
    if member.name == "ElectraForPreTraining":
        return 2
    return {"next_sentence": 2, "ctc": 31}.get(member.output, 97 if member.output.endswith("_token") else N_LABELS)


def assert_patterns(member: Member, reading: Reading, output: Any) -> None:
    """Compare every pattern that the stock model returns with the layer of the matching name."""
    returned = returned_patterns(output, reading.attention[0].stack)
    for path, pattern in returned.items():
        assert distance(reading[f"{path}.pattern"], pattern) <= ROUNDING, path
    if member.output != "similarity":
        assert len(reading.attention) == len(returned)


@pytest.mark.parametrize("name", SAVED)
def test_a_folder_opens_as_the_class_it_was_saved_as(name: str, tmp_path: Path) -> None:
    member = BY_NAME[name]
    folder, model = member.save(tmp_path / member.name), member.make()
    inputs = typed_inputs(member, model) if member.text else member.inputs(model)
    assert_output(member, xformer.read(folder, member.text or inputs), stock_output(model, inputs))


def typed_inputs(member: Member, model: Any) -> dict[str, Tensor]:
    """The model's arguments for a typed text."""
    cut = tokenizer()
    source, _, target = member.text.partition(" >> ")
    inputs = {"input_ids": torch.tensor([cut(source)["input_ids"]])}
    if target:
        start = model.config.decoder_start_token_id
        inputs["decoder_input_ids"] = torch.tensor([[start, *cut(target)["input_ids"][:-1]]])
    return inputs


def test_two_loads_of_a_folder_give_equal_activations(tmp_path: Path) -> None:
    """So no weight is initialized at random on loading."""
    member = BY_NAME["BertForPreTraining"]
    one = member.save(tmp_path / "one")
    other = tmp_path / "other"
    shutil.copytree(one, other)
    readings = [xformer.read(folder, member.text) for folder in (one, other)]
    assert sorted(readings[0]) == sorted(readings[1])
    assert all(torch.equal(readings[0][activation], readings[1][activation]) for activation in readings[0])


MISSING = {
    "BertForSequenceClassification": "classifier.bias",
    "LlamaForCausalLM": "lm_head.weight",
    "T5Model": "decoder.block.1.layer.1.EncDecAttention.v.weight",
}
"""A weight that each class needs, to be removed from its file."""


@pytest.mark.parametrize("name", MISSING)
def test_the_error_for_a_missing_weight_names_it(name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    member, weight = BY_NAME[name], MISSING[name]
    folder = member.save(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors[weight]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(XformerError, match=re.escape(weight)):
        xformer.read(folder, member.text or member.inputs(member.make()))


def test_weights_of_a_different_shape_than_configured_are_rejected(tmp_path: Path) -> None:
    folder = BY_NAME["BertForSequenceClassification"].save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(index): f"LABEL_{index}" for index in range(3)}
    config["label2id"] = {label: int(index) for index, label in config["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(XformerError, match=r"classifier\.weight|3"):
        xformer.read(folder, "the cat sat")


WRONG: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another model's": {"attention_mask": torch.tensor([[1, 1]])},
    "fractions": {"input_ids": torch.tensor([[5.0, 6.0]])},
    "image of another size": {"pixel_values": torch.rand(1, 3, 5, 5)},
}


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "ViTForImageClassification"])
def test_arguments_that_the_stock_model_rejects_are_rejected(name: str) -> None:
    """And are never replaced by an input that the caller did not pass."""
    model = BY_NAME[name].make()
    for wrong in WRONG.values():
        with pytest.raises(Exception) as stock:  # noqa: PT011
            stock_output(model, wrong)
        with pytest.raises((XformerError, stock.type)):
            xformer.read(model, wrong)


def test_token_lists_and_input_embeddings_are_read() -> None:
    model = BY_NAME["GPT2LMHeadModel"].make()
    assert xformer.read(model, {"input_ids": [[5, 6]]}).ids() == [5, 6]
    given = {"inputs_embeds": torch.randn(1, 7, 24, generator=torch.Generator().manual_seed(3))}
    assert distance(xformer.read(model, given).logits, stock_output(model, given).logits) <= ROUNDING


@pytest.mark.parametrize(("name", "reads"), [("Wav2Vec2ForCTC", "sounds"), ("CLIPModel", "pixel_values")])
def test_the_error_for_text_given_to_an_audio_or_image_model_names_its_input(name: str, reads: str) -> None:
    with pytest.raises(XformerError, match=reads) as refused:
        xformer.read(BY_NAME[name].make(), "the cat sat", tokenizer=tokenizer())
    assert "picture" not in str(refused.value)


IDS = torch.tensor([[5, 7, 9, 3, 8, 6, 4, 11, 10]])
PIXELS = torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(1))
VISION = {**IMAGE, "projection_dim": 24}


def built(name: str, config: Any) -> Any:
    """A model with arbitrary weights of a class of Transformers."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1 and weight.requires_grad:
            weight.data.normal_(0, 0.1)
    return model


def llava() -> tuple[Any, dict[str, Any]]:
    vision = transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=transformers.LlamaConfig(**GROUPED),
        image_token_index=96,
        vision_feature_layer=-1,
    )
    ids = torch.tensor([[5, 7, *[96] * 9, 8, 9, 11]])
    return built("LlavaForConditionalGeneration", config), {"input_ids": ids, "pixel_values": PIXELS}


def decoder_with_memory() -> tuple[Any, dict[str, Any]]:
    config = transformers.BertConfig(**TEXT_SIZES, is_decoder=True, add_cross_attention=True)
    memory = torch.randn(1, 9, 24, generator=torch.Generator().manual_seed(2))  # as long as the tokens
    return built("BertLMHeadModel", config), {"input_ids": IDS, "encoder_hidden_states": memory}


def decision() -> tuple[Any, dict[str, Any]]:
    config = transformers.DecisionTransformerConfig(
        state_dim=3, act_dim=2, hidden_size=24, n_layer=2, n_head=6, max_ep_len=32
    )
    draw = torch.Generator().manual_seed(3)
    sizes = {"states": 3, "actions": 2, "rewards": 1, "returns_to_go": 1}
    inputs: dict[str, Any] = {name: torch.randn(2, 4, n, generator=draw) for name, n in sizes.items()}
    mask = torch.ones(2, 4)
    return built("DecisionTransformerModel", config), inputs | {
        "timesteps": torch.arange(4)[None],
        "attention_mask": mask,
    }


def time_series() -> tuple[Any, dict[str, Any]]:
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    config = transformers.TimeSeriesTransformerConfig(
        prediction_length=4, context_length=8, lags_sequence=[1, 2], num_time_features=1, d_model=16, **sizes
    )
    draw = torch.Generator().manual_seed(4)
    inputs = {"past_values": torch.randn(1, 10, generator=draw), "past_time_features": torch.ones(1, 10, 1),
              "past_observed_mask": torch.ones(1, 10), "future_values": torch.ones(1, 4),
              "future_time_features": torch.ones(1, 4, 1)}  # fmt: skip
    return built("TimeSeriesTransformerModel", config), inputs


def spectrogram() -> tuple[Any, dict[str, Any]]:
    config = transformers.ASTConfig(
        **SIZES, max_length=24, num_mel_bins=16, patch_size=4, frequency_stride=4, time_stride=4
    )
    sound = torch.randn(1, 24, 16, generator=torch.Generator().manual_seed(5))
    return built("ASTForAudioClassification", config), {"input_values": sound}


def caption() -> tuple[Any, dict[str, Any]]:
    text = {**SIZES, "encoder_hidden_size": 24, "sep_token_id": 2, **SPECIAL}
    return built("BlipForConditionalGeneration", transformers.BlipConfig(text_config=text, vision_config=IMAGE)), {
        "input_ids": IDS, "pixel_values": PIXELS,
    }  # fmt: skip


def text_and_image() -> tuple[Any, dict[str, Any]]:
    config = transformers.ViltConfig(**IMAGE, vocab_size=97, max_position_embeddings=16)
    return built("ViltModel", config), {"input_ids": IDS, "pixel_values": PIXELS}


GIVEN = (llava, decoder_with_memory, decision, time_series, spectrogram, caption, text_and_image)


@pytest.mark.parametrize("make", GIVEN, ids=lambda make: make.__name__)
def test_a_model_is_opened_on_the_inputs_of_the_caller(make: Callable[[], tuple[Any, dict[str, Any]]]) -> None:
    model, inputs = make()
    reading = xformer.read(model, inputs)
    torch.manual_seed(0)  # ViLT draws the patches that it reads
    stock = (
        stock_output(model, inputs, use_cache=False)
        if "use_cache" in str(model.config)
        else stock_output(model, inputs)
    )
    wanted = stock.get("logits", stock.get("last_hidden_state"))
    found = reading["logits"] if "logits" in reading else reading["output"]
    assert distance(found, wanted if wanted.dim() == 3 else wanted[:, None]) <= ROUNDING
    paths = [site.path for site in reading.attention]
    assert len(paths) == len(set(paths))
    assert reading.one(0).tokens == reading.tokens


def test_each_axis_is_labelled_with_the_positions_that_it_counts() -> None:
    """Even if an image has as many positions as the text has tokens."""
    numbers, words = tuple(map(str, range(10))), tuple(str(token) for token in IDS[0].tolist())
    clip = BY_NAME["CLIPModel"].make()
    reading = xformer.read(clip, {"input_ids": torch.cat([IDS, IDS[:, :1]], dim=1), "pixel_values": PIXELS})
    names = {site.path: token_names(reading, site, (10, 10)) for site in reading.attention}
    image, text = [site.path for site in reading.attention][:2], [site.path for site in reading.attention][2:]
    assert all(names[path] == (numbers, numbers) for path in image)
    assert all(names[path] == ((*words, "5"), (*words, "5")) for path in text)
    model, inputs = decoder_with_memory()
    reading = xformer.read(model, inputs)
    paths = ["decoder.0.self_attn", "decoder.0.cross_attn", "decoder.1.self_attn", "decoder.1.cross_attn"]
    assert [site.path for site in reading.attention] == paths
    assert token_names(reading, reading.attention[0], (9, 9)) == (words, words)
    assert token_names(reading, reading.attention[1], (9, 9)) == (words, numbers[:9])
    model, inputs = llava()
    reading = xformer.read(model, inputs)
    assert [site.path for site in reading.attention] == [
        "encoder.0.attn",
        "encoder.1.attn",
        "decoder.0.attn",
        "decoder.1.attn",
    ]
    assert token_names(reading, reading.attention[2], (14, 14))[1][:3] == ("5", "7", "96")
    assert not reading["decoder.0.attn.pattern"].triu(1).any()


@pytest.mark.parametrize("n", [2_000, 4_400, 7_000])
def test_a_sound_has_a_label_for_each_of_its_positions(n: int) -> None:
    model = BY_NAME["Wav2Vec2ForCTC"].make()
    sound = torch.randn(1, n, generator=torch.Generator().manual_seed(6))
    reading = xformer.read(model, {"input_values": sound}, tokenizer=tokenizer())
    n_frames = reading.logits.shape[1]
    assert reading.tokens == tuple(map(str, range(n_frames)))
    labels = [f"{frame} ms" for frame in range(n_frames)]
    assert xformer.read(model, {"input_values": sound}, tokens=labels).tokens == tuple(labels)


def test_vectors_in_place_of_tokens_have_numbers_and_no_next_token() -> None:
    model = BY_NAME["GPT2LMHeadModel"].make()
    reading = xformer.read(model, {"inputs_embeds": torch.randn(1, 7, 24)}, tokenizer=tokenizer())
    assert reading.tokens == tuple("0123456")
    assert reading.target_positions == ()


def test_a_model_without_a_limit_of_length_is_read() -> None:
    config = transformers.XLNetConfig(vocab_size=97, d_model=24, n_layer=2, n_head=6, d_inner=44)
    model = built("XLNetLMHeadModel", config)
    reading = xformer.read(model, IDS)
    assert distance(reading.logits, stock_output(model, {"input_ids": IDS}, use_mems=False).logits) <= ROUNDING


def windowed() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Models that attend within windows, with inputs."""
    local = {**TEXT_SIZES, "attention_window": [4, 4], "num_attention_heads": 6}
    pair = {**PAIR, **SPECIAL, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}
    swin = {"image_size": 24, "patch_size": 2, "embed_dim": 12, "depths": [1, 1], "num_heads": [2, 3], "window_size": 3}
    sam = {**IMAGE, "image_size": 32, "window_size": 4, "global_attn_indexes": [1], "mlp_dim": 44, "output_channels": 8}
    large = torch.rand(1, 3, 32, 32)
    return {
        "Longformer": (built("LongformerForMaskedLM", transformers.LongformerConfig(**local)), {"input_ids": IDS}),
        "LED": (
            built("LEDForConditionalGeneration", transformers.LEDConfig(**pair, attention_window=[4, 4])),
            {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]},
        ),
        "Swin": (built("SwinModel", transformers.SwinConfig(**swin)), {"pixel_values": large[..., :24, :24]}),
        "SAM": (built("SamVisionModel", transformers.SamVisionConfig(**sam)), {"pixel_values": large}),
    }


@pytest.mark.parametrize("name", ["Longformer", "LED", "Swin", "SAM"])
def test_a_pattern_with_other_axes_than_heads_queries_and_keys_is_refused_or_read_right(name: str) -> None:
    model, inputs = windowed()[name]
    try:
        reading = xformer.read(model, inputs)
    except InputError as error:
        assert re.search(r"it attends (within windows|along one of several axes)", str(error))  # noqa: PT017
        return
    for site in reading.attention:
        batch, n_heads = reading[f"{site.path}.pattern"].shape[:2]
        assert (batch, n_heads) == (1, 6)
    first = reading.attention[0].path
    stock = stock_output(model, inputs, output_attentions=True)
    assert (
        distance(reading[f"{first}.pattern"], stock.get("attentions", stock.get("encoder_attentions"))[0]) <= ROUNDING
    )
