"""Tries an untrusted model in a separate process with limits, before the server opens it.

    rehearse(path)                                 raises the problem as one sentence
    python -m xformer.adapters.rehearsal PATH      the process that it runs

Weights are not read: the model's class is built on PyTorch's meta device and its parameters are compared with the file, and the
tokenizer reads texts on which malicious rules hang.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from xformer.errors import CheckpointError, XformerError

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
    from xformer.adapters import load
    from xformer.model_files.contents import inspect

    contents = inspect(path)
    transformers = load.library()
    tokens = contents.config.get("tokenizer.ggml.tokens", 0)
    seconds = STEP_SECONDS + (tokens / TOKENS_A_SECOND if isinstance(tokens, int) else 0)
    limit(seconds)
    config = load.config_of(transformers, contents)
    _count(transformers, load, config, contents.n_parameters)
    limit(seconds)
    tokenizer = load.tokenizer_of(transformers, contents)
    if tokenizer is not None:
        _check_tokenizer(tokenizer)


def _count(transformers: Any, load: Any, config: Any, n_stored: int) -> None:
    """Build the class without memory and count its parameters. Raises `CheckpointError` if the file has far fewer."""
    import torch

    kind = load.classes_of(transformers, config)[0]
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


def _limit(what: int, soft: float) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (int(soft) + 1, hard))


def limit_time(seconds: float) -> None:
    """Kill this process after so many more seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, min(used.ru_utime + used.ru_stime + seconds, CPU_SECONDS))


def limit_memory() -> None:
    """Let this process take `MEMORY` more than now, if the system supports that."""
    with suppress(OSError, ValueError, KeyError):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        _limit(resource.RLIMIT_DATA, int(status["VmData"].split()[0]) * 1024 + MEMORY)


def main() -> int:
    """Try the model at the given path; print the problem as JSON."""
    path = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_time(CPU_SECONDS)
    with suppress(ImportError):  # what the imports take is not the model's
        import torch  # noqa: F401
        import transformers
        from transformers import AutoModel, AutoTokenizer, PreTrainedModel  # noqa: F401  they are imported when asked for

        transformers.logging.set_verbosity_error()
    limit_memory()
    from xformer.adapters.load import plain_sentence as _sentence

    error = ""
    try:
        try_out(path, limit_time)
    except XformerError as problem:
        error = _sentence(problem)
    except BaseException as problem:  # a panic of a library in Rust is no Exception
        error = f"{path.name[:80]} cannot be opened: {_sentence(problem)}"
    print(json.dumps({"error": error}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
