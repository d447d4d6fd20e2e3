"""Damaged or malicious model folders are rejected with one plain sentence, quickly and with little memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import xformer
from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import folder_of
from xformer.adapters import load
from xformer.adapters.load import open_model, plain_sentence, try_in_subprocess, try_out
from xformer.errors import CheckpointError, InputError, ModelFileError, XformerError
from xformer.model_files.contents import check_sizes, inspect
from xformer.model_files.models_here import catalogue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return folder_of("Llama", tmp_path / "tiny")


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_a_configured_size_that_no_tensor_has_is_rejected() -> None:
    for name, value, sentence in (
        ("num_hidden_layers", 1_000_000, "num_hidden_layers is 1,000,000, but the weights have 20 tensors"),
        ("vocab_size", 10_000_000, "vocab_size is 10,000,000, but the weights have no dimension over 97"),
        ("num_labels", 100_000_000, "num_labels is 100,000,000"),
        ("num_key_value_heads", 0, "num_key_value_heads must be an integer of at least 1, like 12, got 0"),
        ("hidden_size", True, "hidden_size must be an integer of at least 1, like 12, got True"),
        ("text_config", {"hidden_size": 5_000}, "hidden_size is 5,000"),
    ):
        with pytest.raises(ModelFileError, match=sentence):
            check_sizes({"vocab_size": 97, "vision_config": None, name: value}, largest=97, n_tensors=20)


def test_sizes_are_checked_before_anything_is_built(folder: Path) -> None:
    change(folder / "config.json", intermediate_size=10**9)
    with pytest.raises(ModelFileError, match="intermediate_size is 1,000,000,000"):
        inspect(folder)


def test_weights_that_are_not_finite_are_rejected(folder: Path) -> None:
    weights(folder, lambda tensors: tensors["model.norm.weight"].__setitem__(3, float("inf")))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight contains NaN or infinity"):
        open_model(folder)


def test_a_file_without_tensors_is_rejected(folder: Path) -> None:
    weights(folder, lambda tensors: tensors.clear())
    with pytest.raises(ModelFileError, match="no tensors"):
        inspect(folder)


def test_a_class_that_does_not_match_the_configuration_is_rejected(folder: Path) -> None:
    change(folder / "config.json", architectures=["BertForMaskedLM"])
    with pytest.raises(XformerError):
        open_model(folder)
    change(folder / "config.json", architectures=["NoSuchModel"])
    with pytest.raises(CheckpointError, match="names the class 'NoSuchModel'"):
        open_model(folder)
    change(folder / "config.json", architectures=None, model_type="blip_text_model")  # a part of other models
    with pytest.raises(CheckpointError, match="no class for the model type 'blip_text_model'"):
        try_out(folder)


def test_circular_symlinks_do_not_affect_other_models(folder: Path) -> None:
    loop = folder.parent / "loop"
    loop.mkdir()
    (loop / "model.safetensors").symlink_to(loop / "other")
    (loop / "other").symlink_to(loop / "model.safetensors")
    (folder.parent / "itself").symlink_to(folder.parent / "itself")
    entries = catalogue({"XFORMER_MODELS": str(folder.parent)}).entries
    assert not entries["hf:tiny"].trouble
    assert entries["hf:loop"].trouble


def test_without_a_tokenizer_a_model_reads_token_ids(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()
    reading = xformer.read(folder, "5 6 7")
    assert reading.ids() == [5, 6, 7]
    with pytest.raises(InputError, match="needs a tokenizer"):
        xformer.read(folder, "the cat")


def test_a_word_unknown_to_the_tokenizer_is_an_input_error(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    change(folder / "tokenizer.json", model=content["model"] | {"unk_token": "[NONE]"})
    with pytest.raises(InputError, match="tokenizer cannot read this text"):
        xformer.read(folder, "an unknown token")


def test_a_tokenizer_whose_unknown_token_is_unknown_is_rejected(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"unk_token": ""}))
    with pytest.raises(CheckpointError, match="token for unknown words is not in its vocabulary"):
        open_model(folder)


def test_a_tokenizer_rule_that_inflates_a_text_is_rejected(folder: Path) -> None:
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "a a a a a "}
    change(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [double] * 3})
    with pytest.raises(CheckpointError, match="at most 4 per byte are allowed"):
        try_out(folder)


def test_a_tokenizer_rule_that_hangs_is_ended(folder: Path) -> None:
    rule = {"type": "Split", "pattern": {"Regex": r"(a|aa)+$|(a*)*b"}, "behavior": "Isolated", "invert": False}
    change(folder / "tokenizer.json", pre_tokenizer=rule)
    with pytest.raises(CheckpointError, match="cannot be opened"):
        try_in_subprocess(folder)


def test_large_buffers_besides_the_weights_are_rejected(tmp_path: Path) -> None:
    gpt = folder_of("GPT-2", tmp_path / "gpt")
    change(gpt / "config.json", n_positions=1_000_000)
    with pytest.raises(CheckpointError, match=r"(requires|describes)"):
        try_out(gpt)


FULL_SIZE = {"size": {"height": 12, "width": 12}}


def vit(folder: Path, **processor: Any) -> Path:
    FAMILIES["ViT"].make().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", **processor})
    )
    return folder


def test_an_image_processor_that_makes_large_images_is_rejected_before_it_runs(tmp_path: Path) -> None:
    folder = vit(tmp_path / "vit", size={"height": 1_000_000, "width": 1_000_000})
    for opening in (open_model, try_out, lambda path: xformer.read(path, "flower")):
        with pytest.raises(
            ModelFileError, match=r"In preprocessor_config\.json, 'height' is 1000000.* from 1 to 2,048, like 12"
        ):
            opening(folder)


@pytest.mark.parametrize(
    "processor",
    [
        {
            "image_processor_type": "DetrImageProcessor",
            "do_pad": True,
            "size": {"longest_edge": 10**7, "shortest_edge": 800},
        },
        {"size": {"longest_edge": 12_845_056, "shortest_edge": 3_136}},
    ],
)
def test_edges_of_a_prepared_image_are_sides(processor: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"In preprocessor_config\.json, '(long|short)est_edge' is "):
        open_model(vit(tmp_path / "vit", **processor))


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        ({"image_processor_type": "NoSuchProcessor"}, "NoSuchProcessor|image processor"),
        ({**FULL_SIZE, "image_mean": [0.5, 0.5]}, "The model's image processor cannot prepare this image"),
        ({"size": {"weight": 12}}, "weight"),
    ],
)
def test_pictures_are_prepared_in_the_trial(processor: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, ValueError), match=reason):
        try_out(vit(tmp_path / "vit", **processor))


def test_an_image_processor_may_make_few_numbers_of_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_PIXEL_VALUES", 3 * 12 * 12 - 1)
    with pytest.raises(CheckpointError, match="makes 432 numbers of a picture of 512 × 512; at most 431 are allowed"):
        try_out(vit(tmp_path / "vit", **FULL_SIZE))


def test_an_image_processor_for_another_size_is_refused_when_the_model_is_opened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"vit cannot be opened: .*\(224\*224\) doesn't match model \(12\*12\)"):
        open_model(vit(tmp_path / "vit"))


def test_folders_with_processors_and_tokenizers_open(tmp_path: Path) -> None:
    from transformers import CLIPImageProcessorPil, ViTImageProcessorPil, WhisperFeatureExtractor

    for name, processor in (
        ("ViT", ViTImageProcessorPil(size=dict.fromkeys(("height", "width"), 12))),
        ("ViT", CLIPImageProcessorPil(size={"shortest_edge": 14}, crop_size=dict.fromkeys(("height", "width"), 12))),
        ("Whisper", WhisperFeatureExtractor(feature_size=8)),
        ("Llama", None), ("BERT", None), ("T5", None),
    ):  # fmt: skip
        folder = folder_of(name, tmp_path / name)
        if processor:
            processor.save_pretrained(folder)
        try_out(folder)
        model = open_model(folder)
        assert (model.image_processor is not None) == (name == "ViT")
        if name == "ViT":
            assert xformer.read(folder, "flower").logits.isfinite().all()


def test_error_sentences_do_not_reveal_local_folders() -> None:
    message = plain_sentence(ValueError("cannot read '/home/someone/models/x/config.json'\x1b[31m\nat line 3"))
    assert message == "cannot read 'config.json' [31m at line 3"
    assert plain_sentence(KeyError()) == "KeyError"
