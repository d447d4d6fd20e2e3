"""A folder of the Transformers library, opened as the class that it was saved as; nothing in it is executed.

Only safetensors and GGUF are read, from this machine alone. A weight that the class needs and the file does not have would be
random: the model is refused, unless the weight has no effect on what is shown.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xformer.adapters.adapter import ModelAdapter
from xformer.adapters.any_module import AnyModule
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.huggingface_opening import OUTPUT_OF, call, example_inputs, output_kind
from xformer.errors import CheckpointError, InputError, XformerError
from xformer.installed import needed
from xformer.model_files.contents import Contents, check_memory, inspect, read_object

Step = Callable[[float, float, str], object]
"""Told how far loading is: done, of how many, and what is being done."""
POOLING_MODES: dict[str, Literal["mean", "last", "first"]] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""The poolings of sentence-transformers that are known here, by their key in `1_Pooling/config.json`."""


def open_model(path: str | Path, *, step: Step | None = None) -> HuggingFaceModel:
    """Open a model's folder, or a .gguf file. Raises `CheckpointError` or `InputError`, each with one plain sentence."""
    tell = step or (lambda done, of, what: None)
    where = Path(path)
    contents = inspect(where)  # before anything is loaded: no pickles, no code, no lies about sizes
    check_memory(contents)
    tell(0, 3, "importing the library that knows its family")
    name = where.stem if where.suffix == ".gguf" else where.name
    try:
        with _quietly():
            transformers = library()
            tell(1, 3, "reading the weights")
            model, report = _loaded(transformers, contents)
            _check_numbers(model)
            tokenizer = tokenizer_of(transformers, contents)
            processor = _image_processor(transformers, contents.folder)
            notes = _notes(model, report)
            tell(2, 3, "comparing with the original model")
            opened = HuggingFaceModel.open(model, tokenizer, name, image_processor=processor)
    except (XformerError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # whatever a stranger's files make of a library; a panic in Rust is no Exception
        raise CheckpointError(f"{where.name[:80]} cannot be opened: {plain_sentence(error)}") from error
    tell(3, 3, "done")
    verification = replace(opened.verification, notes=(*opened.verification.notes, *notes))
    return replace(opened, verification=verification, pooling=_pooling(contents.folder))


def library() -> Any:
    """The Transformers library. Raises `MissingLibraryError` where it is not installed."""
    with needed("transformers", "A Hugging Face model", "xformer[models]"):
        import transformers
    return transformers


def _options(contents: Contents) -> dict[str, Any]:
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    return options if contents.gguf_file is None else options | {"gguf_file": contents.gguf_file}


def config_of(transformers: Any, contents: Contents) -> Any:
    """Its configuration, in which outputs have names whatever the file says."""
    config = transformers.AutoConfig.from_pretrained(contents.folder, **_options(contents))
    config.return_dict = True
    return config


def _loaded(transformers: Any, contents: Contents) -> tuple[Any, dict[str, Any]]:
    """The model, and the library's report on what of it was in the file."""
    config, options = config_of(transformers, contents), _options(contents)
    last: Exception | None = None
    for kind in classes_of(transformers, config):
        model, report = kind.from_pretrained(
            contents.folder,
            **options,
            config=config,
            dtype=torch.float32,
            attn_implementation="eager",
            use_safetensors=contents.gguf_file is None or None,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report
        )
        try:
            _check_complete(model, report)
            return model, report
        except CheckpointError as error:
            last = error
    raise last or CheckpointError(f"The library knows no class for a model of type {contents.model_type!r}.")


def classes_of(transformers: Any, config: Any) -> Sequence[Any]:
    """The class that the configuration names. Without a name: those that may be meant, the most able first."""
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return [found]
    if config.architectures:
        raise CheckpointError(
            f"config.json says that it was saved from {config.architectures[0]!r}, which the installed library does not have; "
            "another version of transformers may."
        )
    heads = ("Seq2SeqLM",) if config.is_encoder_decoder else ("CausalLM", "MaskedLM")
    autos = [getattr(transformers, f"AutoModelFor{head}") for head in heads] + [transformers.AutoModel]
    return [auto for auto in autos if type(config) in auto._model_mapping]


def _check_numbers(model: Any) -> None:
    """Raise `CheckpointError` for a weight that holds NaN or infinity."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise CheckpointError(f"{name[:80]} holds numbers that are not finite; the file is damaged.")


def _check_complete(model: Any, report: dict[str, Any]) -> None:
    """Raise `CheckpointError` where a weight that has an effect on the output was not in the file, or is of another shape."""
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, wanted = mismatched[0]
        raise CheckpointError(
            f"{name[:80]} is {list(found)} in the file, and config.json asks for {list(wanted)}; take the config.json that the "
            "model was saved with."
        )
    missing = sorted(report["missing_keys"])
    if missing and _matters(model, missing):
        raise CheckpointError(
            f"The file has no {_listed(missing)}, which {type(model).__name__} needs: with random numbers in its place the "
            "output would mean nothing. Save the model again with all its weights, or name its real class in config.json."
        )


@torch.no_grad()
def _matters(model: Any, names: Sequence[str]) -> bool:
    """Whether the output on an example input moves with these weights."""
    inputs = example_inputs(model)
    returned = call(model, inputs)
    output_of = OUTPUT_OF[output_kind(model, returned, inputs)]
    weights: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    before = {name: weights[name].clone() for name in names if name in weights}
    for name in before:
        weights[name].copy_(torch.randn(before[name].shape, generator=torch.Generator().manual_seed(1)))
    moved = output_of(call(model, inputs))
    for name, value in before.items():
        weights[name].copy_(value)
    return len(before) < len(names) or not torch.equal(moved, output_of(returned))


def _notes(model: Any, report: dict[str, Any]) -> tuple[str, ...]:
    """What a user should know of a file that does not match its class."""
    notes = []
    if missing := sorted(report["missing_keys"]):
        notes.append(f"The file has no {_listed(missing)}; nothing that is shown depends on it.")
    if unused := sorted(report["unexpected_keys"]):
        notes.append(f"The file has {_listed(unused)} as well, which {type(model).__name__} does not use.")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name[:80] for name in names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def tokenizer_of(transformers: Any, contents: Contents) -> Any:
    """The folder's own tokenizer before the one in a .gguf file, which takes twenty seconds to unpack; None for none."""
    if not contents.has_tokenizer:
        return None
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if contents.gguf_file is not None and not (contents.folder / "tokenizer.json").exists():
        options["gguf_file"] = contents.gguf_file
    return transformers.AutoTokenizer.from_pretrained(contents.folder, **options)


def _image_processor(transformers: Any, folder: Path) -> Any:
    """What the folder says of how an image is prepared; None where it says nothing that can be used here."""
    if not (folder / "preprocessor_config.json").exists():
        return None
    with suppress(Exception):  # a processor of sounds, or one that needs another library
        return transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    return None


def _pooling(folder: Path) -> Literal["mean", "last", "first"] | None:
    """The pooling that the folder of a sentence-transformers model asks for; None where it says none, or one unknown here.

    (The file: https://sbert.net/docs/package_reference/sentence_transformer/models.html)
    """
    path = folder / "1_Pooling" / "config.json"
    if not path.exists():
        return None
    config = read_object(path)
    asked = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    return POOLING_MODES.get(asked[0]) if len(asked) == 1 else None


def plain_sentence(error: BaseException) -> str:
    """What an error says, in one line, without folders of this machine and without control characters."""
    text = re.sub(r"(?:/[^\s'\"`:,/]+){2,}/?", lambda found: found[0].rstrip("/").rpartition("/")[2], str(error))
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the progress bars that a library paints on a server's terminal."""
    with redirect_stderr(io.StringIO()):
        yield


def is_foreign(path: Path) -> bool:
    """Whether a path holds a model in the layout of the Transformers library, or a .gguf file."""
    return path.suffix == ".gguf" or (path / "config.json").is_file() or any(path.glob("*.gguf"))


def opened_from(path: Path) -> ModelAdapter:
    """The model in a folder or a .gguf file; the last one stays open."""
    return _opened_from(path.resolve())


@lru_cache(maxsize=1)
def _opened_from(path: Path) -> ModelAdapter:
    return open_model(path)


def opened_module(module: nn.Module, inputs: Any, tokenizer: Any) -> ModelAdapter:
    """A loaded model of the Transformers library, or any module with inputs that it is called with."""
    if hasattr(module, "config") and hasattr(module, "main_input_name"):
        return HuggingFaceModel.open(module, tokenizer, type(module).__name__)
    if isinstance(inputs, str):
        raise InputError("This module reads tensors, not a text; give what it is called with.")
    return AnyModule.open(module, inputs, type(module).__name__)
