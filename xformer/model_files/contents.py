"""What a folder or a .gguf file holds, told from names and headers alone: nothing is loaded, and no code of it runs.

contents = inspect("models/SmolLM2-135M-Instruct")
contents.model_type, contents.n_parameters, contents.has_tokenizer, contents.needed
AutoModel.from_pretrained(contents.folder, gguf_file=contents.gguf_file)   # somebody else's part
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from xformer.errors import ModelFileError
from xformer.memory import free_bytes
from xformer.model_files.config_sizes import check_sizes
from xformer.model_files.folder_rules import TOKENIZERS, checked_config, file_names
from xformer.model_files.headers import INDEX, SINGLE, read_gguf_header, weights_in
from xformer.model_files.needed_memory import check_free, needed_bytes

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
OTHERS = (".h5", ".msgpack", ".onnx", ".tflite", ".ot")
WORKS = f"a folder with config.json and {SINGLE}, or a .gguf file"


@dataclass(frozen=True)
class Contents:
    """A model that may be opened, as far as can be told before."""

    folder: Path
    weights: tuple[Path, ...]
    model_type: str
    """As config.json names it, "llama"; of a GGUF file its architecture."""
    architectures: tuple[str, ...]
    """The classes it was saved from, ("LlamaForCausalLM",); none where nobody says."""
    has_tokenizer: bool
    n_parameters: int
    n_bytes: int
    """What the weights take on the disk."""
    config: Mapping[str, Any]
    """config.json as it is, or the keys of the GGUF file."""

    @property
    def gguf_file(self) -> str | None:
        """The name of its GGUF file, which `from_pretrained` asks for; None of safetensors."""
        return self.weights[0].name if self.weights[0].suffix == ".gguf" else None

    @property
    def needed(self) -> int:
        """Bytes of memory that opening it takes."""
        return needed_bytes(self.n_parameters, is_gguf=self.gguf_file is not None)


def check_memory(contents: Contents, free: int | None = None) -> None:
    """Raise `NotEnoughMemoryError` where opening the model takes more than is free (on this machine, if not told)."""
    check_free(contents.folder.name, contents.needed, free_bytes() if free is None else free)


def inspect(path: str | Path) -> Contents:
    """What can be opened there. Raises `ModelFileError` with one sentence that says why not, and what would work."""
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise ModelFileError(f"There is nothing at {str(path)[:200]!r}; give {WORKS}.")
    if path.suffix != ".gguf":
        _refuse([path.name])
    if not (path.parent / "config.json").exists():  # a file by itself; what lies beside it is none of its business
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
            listed = ", ".join(files[:5])
            raise ModelFileError(
                f"The folder has {len(files)} GGUF files ({listed[:200]}); give the path of one of them."
            )
        _refuse(names)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not re.fullmatch(r"[\w.-]{1,80}", model_type, re.ASCII):
        raise ModelFileError(
            "config.json must name the model_type, like 'llama'; save the model again with save_pretrained."
            if "config.json" in names
            else "The folder has weights and no config.json, so nobody can tell what they are; put its config.json beside them."
        )
    if not found.n_parameters:
        raise ModelFileError("The weights' file has no tensors; save the model again with save_pretrained.")
    check_sizes(config, largest=found.largest, n_tensors=found.n_tensors)
    has_tokenizer = any(name in names for name in TOKENIZERS)
    sizes = found.n_parameters, found.n_bytes
    return Contents(folder, found.files, model_type, _architectures(config), has_tokenizer, *sizes, config)


def _gguf(file: Path, config: dict[str, Any], names: list[str]) -> Contents:
    header = read_gguf_header(file)
    if not header.architecture:
        raise ModelFileError(f"{file.name} does not say what it is (general.architecture); convert the model again.")
    if not header.n_parameters:
        raise ModelFileError(f"{file.name} has no weights, only a vocabulary; take the model's own file.")
    has_tokenizer = "tokenizer.ggml.tokens" in header.values or any(name in names for name in TOKENIZERS)
    sizes = header.n_parameters, header.n_bytes
    settings = config or header.values
    return Contents(file.parent, (file,), header.architecture, _architectures(config), has_tokenizer, *sizes, settings)


def gguf_files(names: list[str]) -> list[str]:
    """Those that hold a model: not what turns pictures into tokens beside it."""
    return [name for name in names if name.endswith(".gguf") and not name.startswith(("mmproj", "."))]


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _refuse(names: list[str]) -> NoReturn:
    """Say why none of these files can be opened."""
    if pickles := [name for name in names if name.endswith(PICKLES) and name != "training_args.bin"]:
        raise ModelFileError(
            f"The weights are there only as a pickle ({pickles[0][:80]}), and reading a pickle can run any code, so none is "
            f"read here; load the model where you trust it, and write {SINGLE} with save_pretrained, or take a GGUF file."
        )
    if loose := [name for name in names if name.endswith(".safetensors")]:
        raise ModelFileError(
            f"{loose[0][:80]!r} alone is not a model; give a folder with config.json and {SINGLE} (or its parts and {INDEX})."
        )
    if others := [name for name in names if name.endswith(OTHERS)]:
        raise ModelFileError(f"{others[0][:80]!r} is of a kind that is not read here; give {WORKS}.")
    raise ModelFileError(f"There are no weights there; give {WORKS}.")
