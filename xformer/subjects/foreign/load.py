"""A folder of the Transformers library becomes a subject: configuration, weights and tokenizer, nothing that can execute.

Only safetensors and GGUF are read, from this machine alone; code that a folder brings along is never run.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch

from xformer.errors import CheckpointError, XformerError
from xformer.installed import needed
from xformer.model_files.contents import check_memory, inspect
from xformer.subjects.foreign.language_model import LanguageModel

Step = Callable[[float, float, str], object]
"""Told how far loading is: done, of how many, and what is being done."""
_HEADS = (
    "ForCausalLM",
    "ForMaskedLM",
    "ForConditionalGeneration",
    "LMHeadModel",
    "WithLMHeadModel",
    "MTModel",
    "ForPreTraining",
)


def open_model(path: str | Path, *, step: Step | None = None) -> LanguageModel:
    """Open a model's folder, or a .gguf file. Raises `CheckpointError` or `InputError`, each with one plain sentence."""
    tell = step or (lambda done, of, what: None)
    where = Path(path)
    contents = inspect(where)  # before anything is loaded: no pickles, no code, no lies about sizes
    check_memory(contents)
    folder, gguf = contents.folder, contents.gguf_file
    tell(0, 3, "reading the library that knows its family")
    try:
        with _quietly():
            transformers = _library()
            tell(1, 3, "reading the weights")
            options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
            if gguf is not None:
                options["gguf_file"] = gguf
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            model = _class_of(transformers, config).from_pretrained(
                folder,
                **options,
                dtype=torch.float32,
                attn_implementation="eager",
                use_safetensors=gguf is None or None,
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_of_tokenizer(folder, options))
    except XformerError:
        raise
    except Exception as error:  # whatever a stranger's files make of a library
        raise CheckpointError(f"{where.name} cannot be opened: {_first_sentence(error)}") from error
    tell(2, 3, "comparing with the stock model")
    opened = LanguageModel.open(model, tokenizer, where.stem if where.suffix == ".gguf" else where.name)
    tell(3, 3, "done")
    return opened


def _library() -> Any:
    with needed("transformers", "A model of others", "transformers==5.23.0"):
        import transformers
    return transformers


def _class_of(transformers: Any, config: Any) -> Any:
    """The class that a configuration names, with the head that says words; else whatever predicts the next token."""
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if found is not None and name.endswith(_HEADS):
            return found
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    masked = type(config) in transformers.AutoModelForMaskedLM._model_mapping
    causal = type(config) in transformers.AutoModelForCausalLM._model_mapping
    return transformers.AutoModelForMaskedLM if masked and not causal else transformers.AutoModelForCausalLM


def _of_tokenizer(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """A folder's own tokenizer goes before the one that is packed into a .gguf file, which takes twenty seconds to unpack."""
    if (folder / "tokenizer.json").exists():
        return {name: value for name, value in options.items() if name != "gguf_file"}
    return options


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the progress bars that a library paints on a server's terminal."""
    with redirect_stderr(io.StringIO()):
        yield
