"""Loads models of the Transformers library from a folder or a .gguf file, without executing code from it.

Only safetensors and GGUF are read, and only from this machine. A weight that is missing in the file would be random: the model
is refused, unless the weight does not affect the output.

A server first tries an untrusted model in a process with limits:

    rehearse(path)                            raises the problem as one sentence
    python -m xformer.adapters.load PATH      the process that it runs

Weights are not read there: the model's class is built on PyTorch's meta device and its parameters are compared with the file,
and the tokenizer reads texts on which malicious rules hang.

Models in the memory of this process have names: `xformer.show` keeps them here, and screens and `read` find them.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
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
"""Called with the progress: done, total, and the current step."""
POOLING_MODES: dict[str, Literal["mean", "last", "first"]] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""The supported poolings of sentence-transformers, by their key in `1_Pooling/config.json`."""


def open_model(path: str | Path, *, step: Step | None = None) -> HuggingFaceModel:
    """Open a model's folder, or a .gguf file. Raises `CheckpointError` or `InputError` with one plain sentence."""
    tell = step or (lambda done, of, what: None)
    where = Path(path)
    contents = inspect(where)  # before anything is loaded: no pickles, no code, no lies about sizes
    check_memory(contents)
    tell(0, 3, "importing the library that knows its family")
    name = where.stem if where.suffix == ".gguf" else where.name
    try:
        with redirect_stderr(io.StringIO()):  # the library's progress bars
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
    except BaseException as error:  # untrusted files; a panic in Rust is no Exception
        raise CheckpointError(f"{where.name[:80]} cannot be opened: {plain_sentence(error)}") from error
    tell(3, 3, "done")
    verification = replace(opened.verification, notes=(*opened.verification.notes, *notes))
    return replace(opened, verification=verification, pooling=_pooling(contents.folder))


def library() -> Any:
    """The Transformers library. Raises `MissingLibraryError` if it is not installed."""
    with needed("transformers", "A Hugging Face model", "xformer[models]"):
        import transformers
    return transformers


_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def _options(contents: Contents) -> dict[str, Any]:
    return _LOCAL if contents.gguf_file is None else _LOCAL | {"gguf_file": contents.gguf_file}


def config_of(transformers: Any, contents: Contents) -> Any:
    """The configuration, with named outputs."""
    config = transformers.AutoConfig.from_pretrained(contents.folder, **_options(contents))
    config.return_dict = True
    return config


def _loaded(transformers: Any, contents: Contents) -> tuple[Any, dict[str, Any]]:
    """The model, and the library's report on its weights."""
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
    """The class named in the configuration; without a name the candidates, most specific first."""
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
    """Raise `CheckpointError` for weights with NaN or infinity."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise CheckpointError(f"{name[:80]} holds numbers that are not finite; the file is damaged.")


def _check_complete(model: Any, report: dict[str, Any]) -> None:
    """Raise `CheckpointError` if a weight that affects the output is missing, or has another shape."""
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
    """Whether these weights affect the output for an example input."""
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
    """Remarks on a file that does not match its class."""
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
    """The folder's tokenizer, or the one in a .gguf file, which takes longer to unpack; None if there is none."""
    if not contents.has_tokenizer:
        return None
    options = _LOCAL if (contents.folder / "tokenizer.json").exists() else _options(contents)
    return transformers.AutoTokenizer.from_pretrained(contents.folder, **options)


def _image_processor(transformers: Any, folder: Path) -> Any:
    """The folder's image processor, or None."""
    if not (folder / "preprocessor_config.json").exists():
        return None
    with suppress(Exception):  # a processor of sounds, or one that needs another library
        return transformers.AutoImageProcessor.from_pretrained(folder, **_LOCAL, backend="pil")
    return None


def _pooling(folder: Path) -> Literal["mean", "last", "first"] | None:
    """The pooling of a sentence-transformers folder, or None.

    See https://sbert.net/docs/package_reference/sentence_transformer/models.html.
    """
    path = folder / "1_Pooling" / "config.json"
    if not path.exists():
        return None
    config = read_object(path)
    asked = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    return POOLING_MODES.get(asked[0]) if len(asked) == 1 else None


def plain_sentence(error: BaseException) -> str:
    """An error's message as one line, without local folders or control characters."""
    text = re.sub(r"(?:/[^\s'\"`:,/]+){2,}/?", lambda found: found[0].rstrip("/").rpartition("/")[2], str(error))
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


def is_external(path: Path) -> bool:
    """Whether a path holds a model in the layout of Transformers, or a .gguf file."""
    return path.suffix == ".gguf" or (path / "config.json").is_file() or any(path.glob("*.gguf"))


def opened_from(path: Path) -> ModelAdapter:
    """The model in a folder or a .gguf file; the last one stays open."""
    return _opened_from(path.resolve())


_opened_from = lru_cache(maxsize=1)(open_model)


def opened_module(module: nn.Module, inputs: Any, tokenizer: Any) -> ModelAdapter:
    """The adapter of a loaded Transformers model, or of any module with its inputs."""
    if hasattr(module, "config") and hasattr(module, "main_input_name"):
        return HuggingFaceModel.open(module, tokenizer, type(module).__name__)
    if isinstance(inputs, str):
        raise InputError("This module reads tensors, not a text; give what it is called with.")
    return AnyModule.open(module, inputs, type(module).__name__)


MEMORY_PREFIX = "memory:"
"""Begins the names of models in memory, in links and in code."""
_in_memory: dict[str, tuple[str, ModelAdapter]] = {}
_lock = threading.Lock()
_n_kept = 0


def keep_in_memory(adapter: ModelAdapter, title: str) -> str:
    """Keep a model, in place of the last one of that title. Returns its name, which no model had before.

    The app caches what it reads by name, and a model may be trained further between two calls.
    """
    global _n_kept
    with _lock:
        for name in [name for name, (other, _) in _in_memory.items() if other == title]:
            del _in_memory[name]
        _n_kept += 1
        name = f"{MEMORY_PREFIX}{title}" + (f".{_n_kept}" if _n_kept > 1 else "")
        _in_memory[name] = (title, adapter)
    return name


def in_memory(name: str) -> ModelAdapter | None:
    """The model in memory of that name, or None."""
    return _in_memory[name][1] if name in _in_memory else None


def titles_in_memory() -> dict[str, str]:
    """The titles of the models in memory by their names, the latest first."""
    return {name: title for name, (title, _) in reversed(list(_in_memory.items()))}


CPU_SECONDS = 120
"""Processor time of one rehearsal, imports included."""
TOKENS_A_SECOND = 1_000
"""Unpacking the tokenizer of a GGUF file: 49,152 tokens take twenty seconds."""
WALL_SECONDS = 180
"""On a busy machine."""
MEMORY = 1024**3
"""Memory beyond that of the imports; mapped files do not count."""
STEP_SECONDS = 4
"""Processor time for the tokenizer, and as much for the model, after the imports."""
MOST_RATIO = 2.0
"""A class may have this many times the parameters of its file, as tied weights are stored once."""
SLACK = 1_000_000
MOST_BESIDE = 512 * 1024**2
"""Bytes of buffers, which are in no file: masks, tables of positions."""
PROBES = ("a" * 2_000 + "!", " " * 2_000, "1" * 2_000, "\n" * 1_000, "é" * 500, "aB1 ,\t" * 300, "\u200b" * 300)
MOST_TOKENS = 4
"""Tokens per byte of text."""


def rehearse(path: str | Path) -> None:
    """Raise `CheckpointError` with one plain sentence if a model cannot be opened within the limits."""
    where = Path(path)
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(where)],
            capture_output=True,
            timeout=WALL_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"{where.name[:80]} cannot be opened: trying it took over {WALL_SECONDS} s.") from None
    try:
        result = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise CheckpointError(
            f"{where.name[:80]} cannot be opened: trying it took more than {STEP_SECONDS} s of processor time or "
            f"{MEMORY // 1024**3} GB of memory, or ended the process that tried it."
        ) from None
    if result.get("error"):
        raise CheckpointError(str(result["error"]))


def try_out(path: Path, limit: Callable[[float], object] = lambda seconds: None) -> None:
    """Build the class and try the tokenizer, in this process. Raises any error of the libraries.

    `limit` is called before each step with the processor seconds that it may take; see `limit_time`.
    """
    contents = inspect(path)
    transformers = library()
    tokens = contents.config.get("tokenizer.ggml.tokens", 0)
    seconds = STEP_SECONDS + (tokens / TOKENS_A_SECOND if isinstance(tokens, int) else 0)
    limit(seconds)
    config = config_of(transformers, contents)
    _count(transformers, config, contents.n_parameters)
    limit(seconds)
    tokenizer = tokenizer_of(transformers, contents)
    if tokenizer is not None:
        _check_tokenizer(tokenizer)


def _count(transformers: Any, config: Any, n_stored: int) -> None:
    """Build the class without memory and count its parameters. Raises `CheckpointError` if the file has far fewer."""
    kind = classes_of(transformers, config)[0]
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    n_wanted = sum(weight.numel() for weight in model.parameters())
    if n_wanted > MOST_RATIO * n_stored + SLACK:
        raise CheckpointError(
            f"config.json describes a model of {n_wanted:,} numbers, and the weights are {n_stored:,}; take the config.json "
            "that the model was saved with."
        )
    beside = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if beside > MOST_BESIDE:
        raise CheckpointError(
            f"config.json asks for {beside // 1024**2:,} MB of tables beside the weights; at most {MOST_BESIDE // 1024**2} MB "
            "are made."
        )


def _check_tokenizer(tokenizer: Any) -> None:
    """Raise `CheckpointError` for rules that multiply a text. The limit on processor time ends rules that hang."""
    for text in PROBES:
        try:
            n = len(tokenizer(text)["input_ids"])
        except Exception:  # one that does not know every sign may still read a text
            continue
        if n > MOST_TOKENS * len(text.encode()) + 64:
            raise CheckpointError(
                f"The tokenizer makes {n:,} tokens of {len(text):,} characters; its rules multiply a text."
            )


def _limit(name: str, soft: float) -> None:
    import resource  # not on Windows

    what = getattr(resource, name)
    resource.setrlimit(what, (int(soft) + 1, resource.getrlimit(what)[1]))


def limit_time(seconds: float) -> None:
    """Kill this process after so many more seconds of processor time."""
    _limit("RLIMIT_CPU", min(time.process_time() + seconds, CPU_SECONDS))


def limit_memory() -> None:
    """Let this process take `MEMORY` more than now, if the system supports that."""
    with suppress(OSError, ValueError, KeyError):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        _limit("RLIMIT_DATA", int(status["VmData"].split()[0]) * 1024 + MEMORY)


def main() -> int:
    """Try the model at the given path; print the problem as JSON."""
    path, error = Path(sys.argv[1]), ""
    _limit("RLIMIT_CORE", -1)
    limit_time(CPU_SECONDS)
    with suppress(ImportError):  # what the imports take is not the model's
        import transformers
        from transformers import AutoModel, AutoTokenizer, PreTrainedModel  # noqa: F401  they are imported when asked for

        transformers.logging.set_verbosity_error()
    limit_memory()
    try:
        try_out(path, limit_time)
    except XformerError as problem:
        error = plain_sentence(problem)
    except BaseException as problem:  # a panic of a library in Rust is no Exception
        error = f"{path.name[:80]} cannot be opened: {plain_sentence(problem)}"
    print(json.dumps({"error": error}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
