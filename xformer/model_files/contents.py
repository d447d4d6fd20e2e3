"""Inspect a folder or a .gguf file by file names and headers alone, without loading it or running its code.

contents = inspect("models/SmolLM2-135M-Instruct")
contents.model_type, contents.n_parameters, contents.has_tokenizer, contents.needed
AutoModel.from_pretrained(contents.folder, gguf_file=contents.gguf_file)   # done by xformer.adapters.load
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from xformer.disk_quota import megabytes
from xformer.errors import ModelFileError, NotEnoughMemoryError
from xformer.memory import free_bytes
from xformer.model_files.headers import SINGLE, read_gguf_header, read_object, weights_in

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
OTHERS = (".h5", ".msgpack", ".onnx", ".tflite", ".ot")
WORKS = f"a folder with config.json and {SINGLE}, or a .gguf file"


@dataclass(frozen=True)
class Contents:
    """A model that passed the checks of `inspect`."""

    folder: Path
    weights: tuple[Path, ...]
    model_type: str
    """The model_type in config.json, like "llama"; for a GGUF file its architecture."""
    has_tokenizer: bool
    n_parameters: int
    n_bytes: int
    """The size of the weights on disk."""
    config: Mapping[str, Any]
    """The content of config.json, or the keys of the GGUF file."""
    largest: int
    """The largest dimension of any tensor; for a GGUF file the number of tokens. No vocabulary is larger."""

    @property
    def gguf_file(self) -> str | None:
        """The name of the GGUF file for `from_pretrained`; None for safetensors."""
        return self.weights[0].name if self.weights[0].suffix == ".gguf" else None

    @property
    def needed(self) -> int:
        """The bytes of memory that opening the model takes."""
        return needed_bytes(self.n_parameters, is_gguf=self.gguf_file is not None)


def check_memory(contents: Contents) -> None:
    """Raise `NotEnoughMemoryError` if opening the model takes more memory than is free."""
    check_free(contents.folder.name, contents.needed, free_bytes())


def inspect(path: str | Path) -> Contents:
    """Check a model's files. Raises `ModelFileError` with one sentence that states the reason and a remedy."""
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise ModelFileError(f"There is nothing at {str(path)[:200]!r}; use {WORKS}.")
    if path.suffix != ".gguf":
        _refuse([path.name])
    if not (path.parent / "config.json").exists():  # a single file; other files in its folder do not belong to it
        return _gguf(path, {}, [])
    names = file_names(path.parent)
    return _gguf(path, checked_config(path.parent, names), names)


def _folder(folder: Path) -> Contents:
    names = file_names(folder)
    config = checked_config(folder, names)
    found = weights_in(folder, names)
    if found is None:
        if len(files := gguf_files(names)) == 1:
            return _gguf(folder / files[0], config, names)
        if files:
            listed = ", ".join(files[:5])[:200]
            raise ModelFileError(f"The folder has {len(files)} GGUF files ({listed}); use the path of one of them.")
        _refuse(names)
    model_type = config.get("model_type")
    if "config.json" not in names:
        raise ModelFileError("The folder has weights but no config.json; add the model's config.json.")
    if not isinstance(model_type, str) or not re.fullmatch(r"[\w.-]{1,80}", model_type, re.ASCII):
        raise ModelFileError("config.json must name the model_type, like 'llama'; save the model with save_pretrained.")
    if not found.n_parameters:
        raise ModelFileError("The weight file has no tensors; save the model again with save_pretrained.")
    check_sizes(config, largest=found.largest, n_tensors=found.n_tensors)
    has_tokenizer, sizes = _has_tokenizer(names), (found.n_parameters, found.n_bytes)
    return Contents(folder, found.files, model_type, has_tokenizer, *sizes, config, found.largest)


def _gguf(file: Path, config: dict[str, Any], names: list[str]) -> Contents:
    header = read_gguf_header(file)
    if not header.architecture:
        raise ModelFileError(f"{file.name} has no key general.architecture; convert the model again.")
    if not header.n_parameters:
        raise ModelFileError(f"{file.name} has no weights, only a vocabulary; use the file with the model's weights.")
    # Transformers guesses a missing number of layers, and takes many seconds to build layers without weights.
    key, limit = f"{header.architecture}.block_count", header.n_tensors
    if type(layers := header.values.get(key)) is not int or layers > limit:
        got = f"got {layers!r:.40}; convert the model again"
        raise ModelFileError(f"{file.name} needs a key {key} of at most its {limit:,} tensors, {got}.")
    has_tokenizer = "tokenizer.ggml.tokens" in header.values or _has_tokenizer(names)
    n_tokens = int(header.values.get("tokenizer.ggml.tokens", header.n_parameters))
    sizes, config = (header.n_parameters, header.n_bytes), config or header.values
    return Contents(file.parent, (file,), header.architecture, has_tokenizer, *sizes, config, n_tokens)


def _has_tokenizer(names: list[str]) -> bool:
    return not set(TOKENIZERS).isdisjoint(names)


def gguf_files(names: list[str]) -> list[str]:
    """The GGUF files with a language model, without image projectors."""
    return [name for name in names if name.endswith(".gguf") and not name.startswith(("mmproj", "."))]


def _refuse(names: list[str]) -> NoReturn:
    """Raise `ModelFileError` with the reason why none of these files can be opened."""
    if pickles := [name for name in names if name.endswith(PICKLES) and name != "training_args.bin"]:
        what = f"only as a pickle ({pickles[0][:80]}), which is not read because it can run arbitrary code"
        how = f"load the model where you trust it and write {SINGLE} with save_pretrained, or use a GGUF file"
        raise ModelFileError(f"The weights exist {what}; {how}.")
    if others := [name for name in names if name.endswith((".safetensors", *OTHERS))]:
        raise ModelFileError(f"{others[0][:80]!r} alone is not a readable model; use {WORKS}.")
    raise ModelFileError(f"There are no weights; use {WORKS}.")


WIDTHS = {
    "vocab_size", "hidden_size", "intermediate_size", "d_model", "d_ff", "d_inner", "n_embd", "n_inner", "dim", "hidden_dim",
    "embedding_size", "embed_dim", "emb_dim", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size",
    "type_vocab_size", "moe_intermediate_size", "num_local_experts", "num_experts",
}  # fmt: skip
"""Settings that equal a dimension of at least one tensor."""

DEPTHS = {
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "num_encoder_layers",
}  # fmt: skip
"""Settings that count layers. Each layer has its own tensors, except in a few families that share one layer."""

HEADS = {
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
    "num_key_value_heads", "num_kv_heads",
}  # fmt: skip

MAY_BE_0 = {"type_vocab_size", "num_labels", "moe_intermediate_size", "num_local_experts", "num_experts"}

SMALL = 128
"""Sizes up to this are harmless; small layers and heads may share tensors."""

MAX_LABELS = 100_000
"""The limit on listed classes, which a model without its head may still have."""

MAX_DEPTH = 32
"""The deepest nesting of configurations."""


def check_sizes(config: Mapping[str, Any], *, largest: int, n_tensors: int) -> None:
    """Raise `ModelFileError` for a configured size that the tensors of the file rule out.

    Args:
        config: The content of config.json.
        largest: The largest dimension of any tensor in the file.
        n_tensors: The number of tensors in the file.
    """
    for part in _parts(config, 0):
        for name, value in part.items():
            if name == "id2label" and isinstance(value, Mapping):
                name, value = "num_labels", len(value)
            most, having = max(largest, SMALL), f"no dimension over {largest:,}"
            if name in DEPTHS:
                most, having = max(n_tensors, SMALL), f"{n_tensors:,} tensors"
            elif name == "num_labels":
                most = max(largest, MAX_LABELS)
            elif name not in WIDTHS | HEADS:
                continue
            if value is None:
                continue
            least = 0 if name in MAY_BE_0 else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                what = f"In config.json, {name} must be an integer of at least {least}"
                raise ModelFileError(f"{what}, like 12, got {value!r:.40}.")
            if value > most:
                what = f"In config.json, {name} is {value:,}, but the weights have {having}"
                raise ModelFileError(f"{what}; use the config.json that the model was saved with.")


def _parts(config: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if not isinstance(config, Mapping) or depth > MAX_DEPTH:
        return
    yield config
    for value in config.values():
        yield from _parts(value, depth + 1)


BYTES_PER_PARAMETER = 4
"""Models run in float32: half precision is slow on a CPU, and its rounding would hide the effect of edits."""

OVERHEAD_BYTES = 120_000_000
"""The bytes of a model's classes, its tokenizer, and a first short run."""

PEAK_FACTOR = 1.2
"""The peak memory of loading per byte of weights. Mapped files do not count, as the system can drop their pages."""

PEAK_FACTOR_GGUF = 1.6
"""The same for a GGUF file, whose blocks are unpacked into arrays that are then copied into tensors."""


def needed_bytes(n_parameters: int, *, is_gguf: bool) -> int:
    """Estimate the peak memory of opening a model."""
    factor = PEAK_FACTOR_GGUF if is_gguf else PEAK_FACTOR
    return OVERHEAD_BYTES + int(factor * BYTES_PER_PARAMETER * n_parameters)


def check_free(name: str, needed: int, free: int) -> None:
    """Raise `NotEnoughMemoryError` if opening the named model takes more memory than is free."""
    if needed > free:
        what = f"{name[:80]} needs {megabytes(needed)} of memory, but {megabytes(free)} are free"
        raise NotEnoughMemoryError(f"{what}; close other models or use a smaller one.")


MAX_FILES = 2_000

TEXTS = (".json", ".txt", ".jinja", ".model", ".spm", ".tiktoken")

MAX_TEXT = 128 * 1024**2
"""The size limit of a tokenizer file, which is read at once. The largest known one has 35 MB."""

TOKENIZERS = (
    "tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "source.spm",
)  # fmt: skip
"""Any one of these files defines a tokenizer."""


def file_names(folder: Path) -> list[str]:
    """The names of a model's files. Raises `ModelFileError` for a link out of the folder or a file that is too large."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, MAX_FILES + 1))
    except OSError as problem:
        raise ModelFileError(f"The folder {folder.name!r:.100} cannot be read: {problem.strerror}.") from None
    if len(names) > MAX_FILES:
        what = f"The folder {folder.name!r:.100} has more than {MAX_FILES:,} files"
        raise ModelFileError(f"{what}; use the folder of one model.")
    inside = _whole_model(folder)
    for name in names:
        file = folder / name
        if not Path(os.path.realpath(file)).is_relative_to(inside):
            raise ModelFileError(f"{name!r:.100} is a link out of the model's folder; copy the file into the folder.")
        if name.endswith(TEXTS) and file.exists() and (size := file.stat().st_size) > MAX_TEXT:
            what = f"{name!r:.100} has {size:,} bytes"
            raise ModelFileError(f"{what}; a file other than the weights may have at most {MAX_TEXT:,}.")
    return names


def _whole_model(folder: Path) -> Path:
    """The folder that must contain all files. A snapshot in the hub's cache links to blobs elsewhere in its repository."""
    folder = Path(os.path.realpath(folder))
    repository = folder.parent.parent
    is_snapshot = folder.parent.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_snapshot else folder


def checked_config(folder: Path, names: list[str]) -> dict[str, Any]:
    """config.json, or an empty dictionary. Raises `ModelFileError` for unsupported settings, such as remote code."""
    if "adapter_config.json" in names:
        how = "merge the two with merge_and_unload and save the result with save_pretrained"
        raise ModelFileError(f"This folder holds an adapter for another model (adapter_config.json); {how}.")
    config = read_object(folder / "config.json") if "config.json" in names else {}
    tokenizer = read_object(folder / "tokenizer_config.json") if "tokenizer_config.json" in names else {}
    for part in (config, *config.values()):  # a model of images and text has a configuration for each
        _check_no_code("config.json", part)
    _check_no_code("tokenizer_config.json", tokenizer)
    if named := config.get("transformers_weights"):
        what = f"config.json names {str(named)[:60]!r} under transformers_weights, which is not supported"
        raise ModelFileError(f"{what}; rename the weights to {SINGLE} and remove the entry.")
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        what = f"The weights are quantised with {str(method or 'an unnamed method')[:40]!r}, which is not supported"
        raise ModelFileError(f"{what}; use the model's float weights, or a GGUF file of it.")
    return config


def _check_no_code(file: str, config: Any) -> None:
    if isinstance(config, Mapping) and (own := config.get("auto_map")):
        first = next(iter(own.values()), "") if isinstance(own, Mapping) else own
        what = f"This model needs its own code ({file} names {str(first)[:60]!r} under auto_map), which is never run"
        raise ModelFileError(f"{what}; use a model that the package transformers supports itself.")
