"""Load models of the Transformers library from a folder or a .gguf file, without executing code from it.

Only safetensors and GGUF are read, and only from this machine. A weight that is missing in the file would be random, so the
model is rejected unless that weight does not affect the output.

A server first tries an untrusted model in a process with resource limits:

    try_in_subprocess(path)                            raises the problem as one sentence
    python -m xformer.adapters.load PATH      the process that it runs

That process reads no weights. It builds the model's class on PyTorch's meta device and compares the number of parameters with
the file, and it runs the tokenizer on texts on which malicious rules hang.

Models in the memory of this process are registered by name: `xformer.show` adds them, and pages and `read` look them up.
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
from typing import Any

import torch
from torch import Tensor, nn

from xformer.adapters.adapter import ModelAdapter
from xformer.adapters.any_module import AnyModule
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.huggingface_opening import call, example_inputs, main_input, output_kind, output_of
from xformer.adapters.inputs import KEPT_SIDE, MAX_ASPECT, prepare
from xformer.errors import CheckpointError, InputError, XformerError
from xformer.installed import needed
from xformer.model_files.contents import Contents, check_memory, inspect, read_object
from xformer.model_files.settings import MAX_SIDE, check_processor, check_settings
from xformer.pooling import Pooling

Step = Callable[[float, float, str], object]
"""Called with the progress: done, total, and the current step."""
POOLING_MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""The supported poolings of sentence-transformers, by their key in `1_Pooling/config.json`."""


def open_model(path: str | Path, *, step: Step | None = None) -> HuggingFaceModel:
    """Open a model's folder, or a .gguf file. Raises `CheckpointError` or `InputError` with one plain sentence."""
    progress = step or (lambda done, total, current: None)
    path = Path(path)
    contents = inspect(path)  # reject pickles, code and false sizes before anything is loaded
    check_memory(contents)
    check_settings(contents)
    progress(0, 3, "importing Transformers")
    name = path.stem if path.suffix == ".gguf" else path.name
    try:
        with redirect_stderr(io.StringIO()):  # the library's progress bars
            transformers = import_transformers()
            progress(1, 3, "reading the weights")
            model, report = _loaded(transformers, contents)
            _check_numbers(model)
            tokenizer = tokenizer_of(transformers, contents)
            processor = _image_processor(transformers, contents, model)
            notes = _notes(model, report)
            progress(2, 3, "comparing with the original model")
            opened = HuggingFaceModel.open(model, tokenizer, name, image_processor=processor)
            if processor is not None:  # it may make images of a size that the model does not take
                opened.opened.plain(opened.inputs_of(opened.to_example(opened.input.default)))
    except (XformerError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the files are untrusted, and a panic in Rust is not an Exception
        raise CheckpointError(f"{path.name[:80]} cannot be opened: {plain_sentence(error)}") from error
    progress(3, 3, "done")
    verification = replace(opened.verification, notes=(*opened.verification.notes, *notes))
    return replace(opened, verification=verification, pooling=_pooling(contents.folder))


def import_transformers() -> Any:
    """The Transformers library. Raises `MissingLibraryError` if it is not installed."""
    with needed("transformers", "A Hugging Face model", "xformer-studio[models]"):
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
    errors: list[CheckpointError] = []
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
            errors.append(error)
    raise errors[-1]


def classes_of(transformers: Any, config: Any) -> Sequence[Any]:
    """The class named in the configuration; if none is named, the candidates, most specific first.

    Raises `CheckpointError` if there is none.
    """
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return [found]
    if config.architectures:
        raise CheckpointError(
            f"config.json names the class {config.architectures[0]!r}, which the installed version of transformers does not "
            "have; another version may."
        )
    candidates = [
        (transformers.AutoModelForCausalLM, transformers.MODEL_FOR_CAUSAL_LM_MAPPING),
        (transformers.AutoModelForMaskedLM, transformers.MODEL_FOR_MASKED_LM_MAPPING),
    ]
    if config.is_encoder_decoder:
        candidates = [(transformers.AutoModelForSeq2SeqLM, transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING)]
    candidates.append((transformers.AutoModel, transformers.MODEL_MAPPING))
    if found := [auto for auto, known in candidates if type(config) in known]:
        return found
    raise CheckpointError(f"Transformers has no class for the model type {config.model_type!r}.")


def _check_numbers(model: Any) -> None:
    """Raise `CheckpointError` for weights with NaN or infinity."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise CheckpointError(f"{name[:80]} contains NaN or infinity; the file is damaged.")


def _check_complete(model: Any, report: dict[str, Any]) -> None:
    """Raise `CheckpointError` if a weight that affects the output is missing, or has another shape."""
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, wanted = mismatched[0]
        raise CheckpointError(
            f"{name[:80]} is {list(found)} in the file, but config.json requires {list(wanted)}; use the config.json that the "
            "model was saved with."
        )
    missing = sorted(report["missing_keys"])
    if missing and _matters(model, missing):
        raise CheckpointError(
            f"The file lacks {_listed(missing)}, which {type(model).__name__} needs; with random numbers instead, the output "
            "would be meaningless. Save the model again with all its weights, or name its correct class in config.json."
        )


@torch.no_grad()
def _matters(model: Any, names: Sequence[str]) -> bool:
    """Whether these weights affect the output for an example input."""
    inputs = example_inputs(model)
    returned = call(model, inputs)
    shown = output_of(output_kind(model, returned, inputs), returned, inputs, model)
    weights: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    before = {name: weights[name].clone() for name in names if name in weights}
    for name in before:
        weights[name].copy_(torch.randn(before[name].shape, generator=torch.Generator().manual_seed(1)))
    moved = shown(call(model, inputs))
    for name, value in before.items():
        weights[name].copy_(value)
    return len(before) < len(names) or not torch.equal(moved, shown(returned))


def _notes(model: Any, report: dict[str, Any]) -> tuple[str, ...]:
    """Remarks on a file that does not match its class."""
    notes = []
    if missing := sorted(report["missing_keys"]):
        notes.append(f"The file lacks {_listed(missing)}, which does not affect the output.")
    if unused := sorted(report["unexpected_keys"]):
        notes.append(f"The file also has {_listed(unused)}, which {type(model).__name__} does not use.")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name[:80] for name in names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def tokenizer_of(transformers: Any, contents: Contents) -> Any:
    """The folder's tokenizer, or the one in a .gguf file, which is slower to load; None if there is none."""
    if not contents.has_tokenizer:
        return None
    options = _LOCAL if (contents.folder / "tokenizer.json").exists() else _options(contents)
    tokenizer = transformers.AutoTokenizer.from_pretrained(contents.folder, **options)
    try:
        _ = tokenizer.all_special_ids
    except RecursionError:  # Transformers replaces it by itself
        raise CheckpointError("The tokenizer’s token for unknown words is not in its vocabulary.") from None
    return tokenizer


def _image_processor(transformers: Any, contents: Contents, model: nn.Module) -> Any:
    """The folder's image processor; None if there is none, or if the model's main input is not an image."""
    names = ("preprocessor_config.json", "processor_config.json")
    if main_input(model) != "pixel_values" or not any((contents.folder / name).exists() for name in names):
        return None
    check_processor(contents)
    return transformers.AutoImageProcessor.from_pretrained(contents.folder, **_LOCAL, backend="pil")


def _pooling(folder: Path) -> Pooling | None:
    """The pooling of a sentence-transformers folder, or None.

    See https://sbert.net/docs/package_reference/sentence_transformer/models.html.
    """
    path = folder / "1_Pooling" / "config.json"
    if not path.exists():
        return None
    config = read_object(path)
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    return POOLING_MODES.get(modes[0]) if len(modes) == 1 else None


def plain_sentence(error: BaseException) -> str:
    """An error's message as one line, without local folders or control characters."""
    text = re.sub(r"(?:/[^\s'\"`:,/]+){2,}/?", lambda found: found[0].rstrip("/").rpartition("/")[2], str(error))
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


def is_external(path: Path) -> bool:
    """Whether a path holds a model in the layout of Transformers, a .gguf file, or a PEFT adapter, which is refused by name."""
    is_marked = any((path / name).is_file() for name in ("config.json", "adapter_config.json"))
    return path.suffix == ".gguf" or is_marked or any(path.glob("*.gguf"))


def opened_from(path: Path) -> ModelAdapter:
    """The model in a folder or a .gguf file; the last one stays open."""
    return _opened_from(path.resolve())


_opened_from = lru_cache(maxsize=1)(open_model)


def opened_module(module: nn.Module, inputs: Any, tokenizer: Any) -> ModelAdapter:
    """The adapter of a loaded Transformers model, or of any module with its inputs."""
    if hasattr(module, "config") and hasattr(module, "main_input_name"):
        return HuggingFaceModel.open(module, tokenizer, type(module).__name__, inputs=inputs)
    if isinstance(inputs, str):
        raise InputError("This module reads tensors, got text; pass the arguments that it is called with.")
    return AnyModule.open(module, inputs, type(module).__name__)


MEMORY_PREFIX = "memory:"
"""The prefix of the names of models in memory, in links and in code."""
_in_memory: dict[str, tuple[str, ModelAdapter]] = {}
_lock = threading.Lock()
_n_kept = 0


def keep_in_memory(adapter: ModelAdapter, title: str) -> str:
    """Register a model in place of the last one with that title, and return a new, unique name.

    The name is never reused, as the app caches results by name and a model may be trained further between two calls.
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
"""The CPU time limit of one rehearsal, imports included."""
TOKENS_A_SECOND = 1_000
"""The assumed speed of loading the tokenizer of a GGUF file. Measured: 49,152 tokens in twenty seconds."""
WALL_SECONDS = 180
"""The timeout of one rehearsal, generous enough for a busy machine."""
MEMORY = 1024**3
"""The memory limit in bytes, beyond the memory of the imports. Mapped files do not count."""
STEP_SECONDS = 4
"""The CPU time limit of the model, and again of the tokenizer, after the imports."""
MAX_RATIO = 2.0
"""A class may have this many times the parameters of its file, as tied weights are stored once."""
SLACK = 1_000_000
"""Parameters allowed beyond that."""
MAX_BUFFER_BYTES = 512 * 1024**2
"""The limit on the bytes of buffers, such as masks and position tables, which are in no file."""
PROBES = ("a" * 2_000 + "!", " " * 2_000, "1" * 2_000, "\n" * 1_000, "é" * 500, "aB1 ,\t" * 300, "\u200b" * 300)
PICTURES = ((KEPT_SIDE, KEPT_SIDE), (KEPT_SIDE, KEPT_SIDE // MAX_ASPECT), (KEPT_SIDE // MAX_ASPECT, KEPT_SIDE))
"""The largest, the widest and the tallest picture that a visitor can upload, in pixels."""
MAX_PIXEL_VALUES = 3 * MAX_SIDE**2
"""The limit on the numbers that an image processor makes of a picture."""
MAX_TOKENS = 4
"""The largest plausible number of tokens per byte of text."""


def try_in_subprocess(path: str | Path) -> None:
    """Raise `CheckpointError` with one plain sentence if a model cannot be opened within the limits."""
    path = Path(path)
    try:
        command = [sys.executable, "-m", __name__, str(path)]
        done = subprocess.run(command, capture_output=True, timeout=WALL_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"{path.name[:80]} cannot be opened: loading it took over {WALL_SECONDS} s.") from None
    try:
        result = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise CheckpointError(
            f"{path.name[:80]} cannot be opened: loading it took more than {STEP_SECONDS} s of CPU time or "
            f"{MEMORY // 1024**3} GB of memory, or crashed the process."
        ) from None
    if result.get("error"):
        raise CheckpointError(str(result["error"]))


def try_out(path: Path, limit: Callable[[float], object] = lambda seconds: None) -> None:
    """Build the class and try the tokenizer, in this process. Raises any error of the libraries.

    `limit` is called before each step with the seconds of CPU time that it may take; see `limit_time`.
    """
    contents = inspect(path)
    check_settings(contents)
    transformers = import_transformers()
    tokens = contents.config.get("tokenizer.ggml.tokens", 0)
    seconds = STEP_SECONDS + (tokens / TOKENS_A_SECOND if isinstance(tokens, int) else 0)
    limit(seconds)
    config = config_of(transformers, contents)
    model = _count(transformers, config, contents.n_parameters)
    limit(seconds)
    tokenizer = tokenizer_of(transformers, contents)
    if tokenizer is not None:
        _check_tokenizer(tokenizer)
    limit(seconds)
    processor = _image_processor(transformers, contents, model)
    if processor is not None:
        _check_image_processor(processor)


def _count(transformers: Any, config: Any, n_stored: int) -> nn.Module:
    """Build the class on the meta device and count its parameters. Raises `CheckpointError` if the file has far fewer."""
    kind = classes_of(transformers, config)[0]
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    n_wanted = sum(weight.numel() for weight in model.parameters())
    if n_wanted > MAX_RATIO * n_stored + SLACK:
        raise CheckpointError(
            f"config.json describes a model of {n_wanted:,} parameters, but the file has {n_stored:,}; use the config.json "
            "that the model was saved with."
        )
    n_bytes = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if n_bytes > MAX_BUFFER_BYTES:
        raise CheckpointError(
            f"config.json requires {n_bytes // 1024**2:,} MB of buffers besides the weights; at most "
            f"{MAX_BUFFER_BYTES // 1024**2} MB are allowed."
        )
    return model


def _check_tokenizer(tokenizer: Any) -> None:
    """Raise `CheckpointError` for rules that inflate a text. The limit on CPU time ends rules that hang."""
    for text in PROBES:
        try:
            n = len(tokenizer(text)["input_ids"])
        except Exception:  # a tokenizer that lacks some characters may still read ordinary text
            continue
        if n > MAX_TOKENS * len(text.encode()) + 64:
            raise CheckpointError(
                f"The tokenizer makes {n:,} tokens of {len(text):,} characters; at most {MAX_TOKENS} per byte are allowed."
            )


def _check_image_processor(processor: Any) -> None:
    """Raise `CheckpointError` or `InputError` if it cannot prepare pictures. The limits end it if that takes too much."""
    from PIL import Image

    for width, height in PICTURES:
        n = prepare(processor, Image.new("RGB", (width, height))).numel()
        if n > MAX_PIXEL_VALUES:
            what = f"The image processor makes {n:,} numbers of a picture of {width} × {height}"
            raise CheckpointError(f"{what}; at most {MAX_PIXEL_VALUES:,} are allowed.")


def _limit(name: str, soft: float) -> None:
    import resource  # not on Windows

    what = getattr(resource, name)
    resource.setrlimit(what, (int(soft) + 1, resource.getrlimit(what)[1]))


def limit_time(seconds: float) -> None:
    """Kill this process after this many more seconds of CPU time."""
    _limit("RLIMIT_CPU", min(time.process_time() + seconds, CPU_SECONDS))


def limit_memory() -> None:
    """Limit this process to its current memory plus `MEMORY`, if the system supports that."""
    with suppress(OSError, ValueError, KeyError):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        _limit("RLIMIT_DATA", int(status["VmData"].split()[0]) * 1024 + MEMORY)


def main() -> int:
    """Try the model at the given path; print the problem as JSON."""
    path, error = Path(sys.argv[1]), ""
    _limit("RLIMIT_CORE", -1)
    limit_time(CPU_SECONDS)
    with suppress(ImportError):  # import before the limits, so that imports do not count
        import transformers
        from transformers import AutoModel, AutoTokenizer, PreTrainedModel  # noqa: F401  else imported lazily later

        transformers.logging.set_verbosity_error()
    limit_memory()
    try:
        try_out(path, limit_time)
    except XformerError as problem:
        error = plain_sentence(problem)
    except BaseException as problem:  # a panic in a Rust library is not an Exception
        error = f"{path.name[:80]} cannot be opened: {plain_sentence(problem)}"
    print(json.dumps({"error": error}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
