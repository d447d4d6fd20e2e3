"""Settings files that ask for much memory or time are refused by file, name and value; those of published models pass."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.model_files.small_files import CONFIG, a_model, gguf
from xformer.errors import ModelFileError
from xformer.model_files import inspect
from xformer.model_files.settings import check_processor, check_settings

PROCESSOR, GENERATION = "preprocessor_config.json", "generation_config.json"
TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
TOKENS = [{"id": n, "content": f"<{n}>"} for n in range(100_000)]
NAMES = [token["content"] for token in TOKENS]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (PROCESSOR, {"size": {"height": 1_000_000, "width": 1_000_000}}, "'height' is 1000000; for this model it must be from 1"),
    (PROCESSOR, {"size": 10**6}, "'size' is 1000000"),
    (PROCESSOR, {"size": [10**6, 10**6]}, "'size' is 1000000"),
    (PROCESSOR, {"size": [8] * 10**5}, "'size' has 100,000 entries"),
    (PROCESSOR, {"size": {"shortest_edge": 10**9}}, "'shortest_edge' is 1000000000"),
    (PROCESSOR, {"size": {"longest_edge": 10**9}}, "'longest_edge' is 1000000000"),
    (PROCESSOR, {"size": {"max_pixels": 10**9}}, "'max_pixels' is 1000000000"),
    (PROCESSOR, {"size": {"height": 0, "width": 8}}, "'height' is 0"),
    (PROCESSOR, {"size": {"height": float("inf")}}, "'height' is inf"),
    (PROCESSOR, {"size": {"height": float("nan")}}, "'height' is nan"),
    (PROCESSOR, {"size": "1e9"}, "'size' is '1e9'"),
    (PROCESSOR, {"size": -5}, "'size' is -5"),
    (PROCESSOR, {"crop_size": {"height": 2**40}}, "'height' is 1099511627776"),
    (PROCESSOR, {"pad_size": {"height": 10**6}, "do_pad": True}, "'height' is 1000000"),
    (PROCESSOR, {"patch_size": 0}, "'patch_size' is 0"),
    (PROCESSOR, {"rescale_factor": 1e300}, "'rescale_factor' is 1e"),
    (PROCESSOR, {"image_mean": [0.5] * 10**5}, "'image_mean' has 100,000 entries"),
    (PROCESSOR, {"image_std": [0.0] * 3}, "'image_std' is 0.0"),
    (PROCESSOR, {"n_fft": 10**9}, "'n_fft' is 1000000000"),
    (PROCESSOR, {"chunk_length": 10**6}, "'chunk_length' is 1000000"),
    (PROCESSOR, {"sampling_rate": 10**9}, "'sampling_rate' is 1000000000"),
    (PROCESSOR, {"hop_length": 0}, "'hop_length' is 0"),
    (PROCESSOR, {"feature_size": 10**6}, "'feature_size' is 1000000"),
    (PROCESSOR, {"unknown": 10**12}, "'unknown' is 1000000000000"),
    ("processor_config.json", {"image_processor": {"size": {"height": 10**6}}}, "'height' is 1000000"),
    ("video_preprocessor_config.json", {"size": {"height": 10**6}}, "'height' is 1000000"),
    (TOKENIZER, {"added_tokens": TOKENS}, "'added_tokens' has 100,000 entries; for this model it may have at most 1,028"),
    (TOKENIZER, {"model": {"vocab": dict.fromkeys(NAMES, 0)}}, "'vocab' has 100,000 entries"),
    (TOKENIZER, {"model": {"merges": NAMES}}, "'merges' has 100,000 entries"),
    (TOKENIZER, {"padding": {"strategy": {"Fixed": 10**9}}}, "'Fixed' is 1000000000"),
    (TOKENIZER, {"padding": {"pad_to_multiple_of": 10**9}}, "'pad_to_multiple_of' is 1000000000"),
    (TOKENIZER, {"truncation": {"max_length": 10**9}}, "'max_length' is 1000000000"),
    (TOKENIZER, {"post_processor": {"single": [{"Sequence": {}}] * 100}}, "'single' has 100 entries"),
    (TOKENIZER, {"model": "x" * 5 * 2**20}, "has 5,242,893 bytes; the limit is 4,195,328"),
    (SETTINGS, {"additional_special_tokens": NAMES}, "'additional_special_tokens' has 100,000 entries"),
    (SETTINGS, {"extra_special_tokens": NAMES}, "'extra_special_tokens' has 100,000 entries"),
    (SETTINGS, {"extra_special_tokens": {name: name for name in NAMES}}, "'extra_special_tokens' has 100,000 entries"),
    (SETTINGS, {"added_tokens_decoder": {str(n): {} for n in range(100_000)}}, "'added_tokens_decoder' has 100,000 entries"),
    (SETTINGS, {"extra_ids": 10**8}, "'extra_ids' is 100000000"),
    (SETTINGS, {"model_input_names": NAMES}, "'model_input_names' has 100,000 entries"),
    (SETTINGS, {"chat_template": "x" * 9 * 2**20}, "has 9,437,205 bytes"),
    ("chat_template.jinja", {"": "x" * 2**21}, "has 2,097,160 bytes"),
    ("special_tokens_map.json", {"additional_special_tokens": NAMES[:50_000]}, "'additional_special_tokens' has 50,000"),
    ("added_tokens.json", {name: n for n, name in enumerate(NAMES)}, "'the object' has 100,000 entries"),
    ("vocab.json", {"x" * 5 * 2**20: 0}, "has 5,242,887 bytes"),
    (GENERATION, {"bad_words_ids": [[n] for n in range(1_000_000)]}, "bytes; the limit is 262,144"),
    (GENERATION, {"suppress_tokens": [1] * 10_000}, "'suppress_tokens' has 10,000 entries"),
    (GENERATION, {"bad_words_ids": [[1] * 300] * 250}, "has more than 50,000 values"),
    (GENERATION, {"num_beams": 10**9}, "'num_beams' is 1000000000"),
    (GENERATION, {"max_new_tokens": 10**12}, "'max_new_tokens' is 1000000000000"),
    ("config.json", CONFIG | {"bad_words_ids": [[1]] * 10_000}, "'bad_words_ids' has 10,000 entries"),
    ("config.json", CONFIG | {"image_size": 10**6}, "'image_size' is 1000000; for this model it must be from 1 to 4,096"),
    ("config.json", CONFIG | {"vision_config": {"num_channels": 10**6}}, "'num_channels' is 1000000"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "reason"), REFUSED, ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_a_setting_that_takes_much_memory_or_time_is_refused(
    name: str, content: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    found = inspect(a_model(tmp_path, **{name: content}))
    began = time.process_time()
    with pytest.raises(ModelFileError, match=re.escape(reason)) as error:
        check_settings(found)
    assert time.process_time() - began < 10  # seconds; what it refuses would take minutes
    assert re.search(rf"\b{re.escape(name)}\b", str(error.value))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


PUBLISHED: list[tuple[str, dict[str, Any]]] = [
    (PROCESSOR, {"size": 224, "resample": 2, "image_mean": [123.7, 116.3, 103.5], "image_std": [58.4, 57.1, 57.4]}),
    (PROCESSOR, {"size": {"shortest_edge": 800, "longest_edge": 1333}, "pad_size": None, "rescale_factor": 1 / 255}),  # DETR
    (PROCESSOR, {"min_pixels": 3136, "max_pixels": 12_845_056, "merge_size": 2}),  # Qwen2-VL
    (PROCESSOR, {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}),  # Qwen3-VL
    (PROCESSOR, {"mel_filters": [[0.1] * 201] * 128, "n_samples": 480_000, "sampling_rate": 16_000}),  # Whisper
    (PROCESSOR, {"nb_max_samples": 480_000, "frequency_max": 14_000, "fft_window_size": 1024, "mean": -4.27}),  # CLAP, AST
    (SETTINGS, {"model_max_length": int(1e30), "extra_ids": 100, "additional_special_tokens": NAMES[:1_000]}),  # T5
    (GENERATION, {"max_length": 448, "suppress_tokens": list(range(90)), "eos_token_id": [128_001], "pad_token_id": -1}),
    (TOKENIZER, {"padding": {"strategy": {"Fixed": 512}}, "truncation": {"max_length": 512, "stride": 0}}),
    ("config.json", CONFIG | {"id2label": {str(n): "x" for n in range(21_843)}, "limit": float("nan"), "window": 10**12}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), PUBLISHED, ids=lambda value: str(value)[:40])
def test_settings_of_published_models_pass(name: str, content: dict[str, Any], tmp_path: Path) -> None:
    check_settings(inspect(a_model(tmp_path, **{name: content})))


def test_an_image_size_is_compared_with_the_models_own(tmp_path: Path) -> None:
    large = {PROCESSOR: {"size": {"height": 2_560, "width": 1_920}}}
    with pytest.raises(ModelFileError, match="'height' is 2560; for this model it must be from 1 to 2,048, like 224"):
        check_settings(inspect(a_model(tmp_path / "small", **large)))
    donut = {"config.json": CONFIG | {"encoder": {"image_size": [2_560, 1_920]}}}
    check_settings(inspect(a_model(tmp_path / "donut", **large, **donut)))


def test_edges_of_an_image_that_is_prepared_are_not_numbers_of_pixels(tmp_path: Path) -> None:
    found = inspect(a_model(tmp_path, **{PROCESSOR: {"size": {"longest_edge": 12_845_056}}}))
    check_settings(found)
    with pytest.raises(ModelFileError, match="'longest_edge' is 12845056"):
        check_processor(found)


def test_further_chat_templates_are_checked(tmp_path: Path) -> None:
    folder = a_model(tmp_path)
    (folder / "additional_chat_templates").mkdir()
    (template := folder / "additional_chat_templates" / "tools.jinja").write_text("x" * 2**21)
    with pytest.raises(ModelFileError, match=r"tools\.jinja' has 2,097,152 bytes; the limit is 1,048,576"):
        check_settings(inspect(folder))
    template.unlink()
    template.symlink_to("/dev/zero")
    with pytest.raises(ModelFileError, match=r"tools\.jinja' is not a regular file"):
        check_settings(inspect(folder))


def test_settings_next_to_a_gguf_file_are_compared_with_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / TOKENIZER).write_text(json.dumps({"added_tokens": TOKENS[:5_000]}))
    with pytest.raises(
        ModelFileError, match="'added_tokens' has 5,000 entries; for this model it may have at most 1,026"
    ):
        check_settings(inspect(tmp_path / "m.gguf"))
