"""Check the settings files of a model before Transformers reads them: its processor, tokenizer, generation and labels.

Transformers allocates what these files ask for, and takes seconds for long lists. Every number, list and file has a limit here,
relative to the model's own sizes where it has one.

    check_settings(inspect("models/vit"))    raises ModelFileError with the file, the value and a valid value
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from xformer.errors import ModelFileError
from xformer.files import guarded
from xformer.model_files.contents import MAX_LABELS, MAX_TEXT, Contents
from xformer.model_files.headers import MOST, read_object

SIDE = 2_048
"""The limit on a side of a prepared image in pixels, unless the model itself reads larger images."""
MAX_SIDE = 4_096
"""The limit on a side of an image that a model reads. Donut reads 2,560 × 1,920."""
MAX_PIXELS = 2**25
"""The limit on a number of pixels. Qwen3-VL allows 16,777,216."""
MAX_VOCABULARY = 2**19
"""The limit on a vocabulary in tokens. Gemma 3 has 262,144."""
MAX_ADDED = 32_768
"""The limit on added tokens. Orpheus adds 28,683, for sounds."""
MAX_SPECIAL = 4_096
"""The limit on tokens named as special, whose loading time grows with their square. Whisper names 1,607."""
MAX_ITEMS = 4_096
"""The limit on any other list."""
MAX_VALUES = 50_000
"""The limit on the values of a file, without vocabularies and labels. The filters of Whisper large are 25,728 numbers."""
SMALL_TEXT = 4 * 1024**2
"""A vocabulary file may have this many bytes, and `BYTES_PER_TOKEN` for each token."""
BYTES_PER_TOKEN = 256
"""Measured with merges: 139 for GPT-OSS."""

EDGES = ("shortest_edge", "longest_edge")
"""Sides of an image, or numbers of pixels in the processors of Qwen2-VL and later."""
SIDES = (
    "size", "height", "width", "max_height", "max_width", "min_size", "max_size", "crop_size", "pad_size", "image_size",
    "patch_size", "max_image_size", "tile_size", "size_divisor", "size_divisibility", "pad_size_divisor", "max_patches",
    "max_num_patches", "pad_to_multiple_of",
)  # fmt: skip


class Range(NamedTuple):
    """The smallest and the largest value of a setting, and a usual one."""

    least: float
    most: float
    usual: float


class Rules(NamedTuple):
    """The limits on a file.

    Attributes:
        max_bytes: The limit on its size.
        numbers: The range of each number by its name; "" for all others; without it, others may be anything.
        items: The limit on the length of a list or an object by its name.
        inside: Names whose contents have a limited length but are not walked through.
    """

    max_bytes: int
    numbers: Mapping[str, Range]
    items: Mapping[str, int] = MappingProxyType({})
    inside: tuple[str, ...] = ()


def _processor(own_side: int, n_mel_bins: int, *, edges: int) -> Rules:
    side = min(MAX_SIDE, max(SIDE, 4 * own_side))
    usual = own_side or 224
    numbers = {
        **dict.fromkeys(SIDES, Range(1, side, usual)),
        **dict.fromkeys(EDGES, Range(1, max(side, edges), usual)),
        **dict.fromkeys(("min_pixels", "max_pixels", "max_total_pixels"), Range(1, MAX_PIXELS, 3_136)),
        "image_std": Range(1e-6, 1_000, 0.5),
        "image_mean": Range(-1_000, 1_000, 0.5),
        "rescale_factor": Range(1e-9, 1_000, 1 / 255),
        "sampling_rate": Range(1, 1_000_000, 16_000),
        "n_fft": Range(1, 32_768, 400),
        "fft_window_size": Range(1, 32_768, 1_024),
        "hop_length": Range(1, 65_536, 160),
        "win_length": Range(1, 65_536, 400),
        "chunk_length": Range(1, 600, 30),
        "chunk_length_s": Range(0, 600, 30),
        "max_length_s": Range(1, 600, 10),
        "feature_size": Range(1, max(1_024, n_mel_bins), n_mel_bins or 80),
        "num_mel_bins": Range(1, max(1_024, n_mel_bins), n_mel_bins or 80),
        "": Range(-65_536, 65_536, 1),
    }  # fmt: skip
    samples = (
        "n_samples",
        "nb_max_samples",
        "nb_max_frames",
        "max_length",
        "max_frequency",
        "frequency_max",
        "max_samples",
    )
    numbers |= dict.fromkeys(samples, Range(0, 100_000_000, 480_000))
    return Rules(2 * 1024**2, numbers, {"image_mean": 64, "image_std": 64, "size": 64, "crop_size": 64})


def _rules(contents: Contents, *, edges: int) -> dict[str, Rules]:
    """The limits on each settings file, by its name."""
    n_tokens = min(contents.largest, MAX_VOCABULARY)
    added = min(MAX_ADDED, n_tokens + 1_024)
    special: dict[str, int] = dict.fromkeys(
        ("extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens"), min(MAX_SPECIAL, added)
    )
    n_known = n_tokens + 4_096
    text = min(MAX_TEXT, SMALL_TEXT + BYTES_PER_TOKEN * n_tokens)
    positions = Range(0, max(2**17, min(2**21, _largest(contents.config, "max_position_embeddings"))), 512)
    processor = _processor(
        _largest(contents.config, "image_size"), _largest(contents.config, "num_mel_bins"), edges=edges
    )
    any_number = Range(-max(n_tokens, 2**24), max(n_tokens, 2**24), 512)
    return {
        **dict.fromkeys(("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"), processor),
        "config.json": Rules(
            MOST, {"image_size": Range(1, MAX_SIDE, 224), "num_channels": Range(1, 64, 3)},
            {"id2label": MAX_LABELS, "label2id": MAX_LABELS}, ("id2label", "label2id"),
        ),
        "generation_config.json": Rules(
            256 * 1024,
            {**dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), Range(1, 1_024, 1)), "": any_number},
        ),
        "tokenizer_config.json": Rules(
            8 * 1024**2,
            {"model_max_length": Range(0, 1e31, 512), "extra_ids": Range(0, MAX_SPECIAL, 100),
             "offset": Range(0, MAX_SPECIAL, 103), "": any_number},
            {**special, "added_tokens_decoder": added}, ("added_tokens_decoder",),
        ),
        "special_tokens_map.json": Rules(1024**2, {"": any_number}, special),
        "added_tokens.json": Rules(4 * 1024**2, {"": any_number}, {"": added}),
        "tokenizer.json": Rules(
            text,
            {"Fixed": positions, "max_length": positions, "stride": positions, "pad_to_multiple_of": Range(0, MAX_SIDE, 8),
             "": any_number},
            {"added_tokens": added, "vocab": n_known, "merges": 4 * n_known, "single": 64, "pair": 64},
            ("added_tokens", "vocab", "merges"),
        ),
        **dict.fromkeys(("chat_template.jinja", "chat_template.json"), Rules(1024**2, {})),
        **dict.fromkeys(("tokenizer.model", "vocab.txt", "vocab.json", "merges.txt", "spiece.model"), Rules(text, {})),
    }  # fmt: skip


def _largest(config: Mapping[str, Any], name: str) -> int:
    """The largest integer of that name in a configuration; 0 if there is none."""
    return max((value for key, value in _walk(config, ()) if key == name and type(value) is int), default=0)


def check_settings(contents: Contents) -> None:
    """Raise `ModelFileError` for a file, a list or a number in the settings files that takes too much memory or time."""
    rules = _rules(contents, edges=MAX_PIXELS)
    for name, of in rules.items():
        _check_file(contents.folder / name, of)
    for file in (contents.folder / "additional_chat_templates").glob("*.jinja"):  # these are read with the tokenizer
        _check_file(file, rules["chat_template.jinja"])


def check_processor(contents: Contents) -> None:
    """The same for the processor of a model whose images it prepares: edges are sides, not numbers of pixels."""
    for name, rules in _rules(contents, edges=0).items():
        if "processor" in name:
            _check_file(contents.folder / name, rules)


def _check_file(file: Path, rules: Rules) -> None:
    if not file.exists():
        return
    if not rules.numbers:
        with guarded(file, rules.max_bytes, ModelFileError):
            return
    for count, (name, value) in enumerate(_walk(read_object(file, rules.max_bytes), rules.inside)):
        where = f"In {file.name}, {name[:60] or 'the object'!r}"
        if isinstance(value, list | Mapping):
            most = rules.items.get(name, MAX_ITEMS)
            if len(value) > most:
                raise ModelFileError(
                    f"{where} has {len(value):,} entries; for this model it may have at most {most:,}."
                )
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            limit = rules.numbers.get(name, None if isinstance(value, str) else rules.numbers.get(""))
            if limit and (isinstance(value, str) or not limit.least <= value <= limit.most):
                allowed = f"from {limit.least:,.9g} to {limit.most:,.9g}, like {limit.usual:,.4g}"
                raise ModelFileError(f"{where} is {value!r:.40}; for this model it must be {allowed}.")
        if count > MAX_VALUES:
            raise ModelFileError(f"{file.name} has more than {MAX_VALUES:,} values; use the file of the saved model.")


def _walk(config: Any, inside: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Every value with its name, the first first. The items of a list have its name; those of `inside` are left out."""
    rest = [("", config)]
    while rest:
        name, value = rest.pop()
        yield name, value
        if name in inside:
            continue
        if isinstance(value, Mapping):
            rest.extend((str(key), one) for key, one in reversed(list(value.items())))
        elif isinstance(value, list):
            rest.extend((name, one) for one in reversed(value))
