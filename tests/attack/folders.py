"""Seeded mutants of model folders and GGUF files: refused with a sentence or read, in seconds and with little memory.

Each is tried as the app tries it: first the rehearsal, in a process with limits that a mutant may run into, then, where that
found nothing, opened and read. Only the second must never raise, hang, abort or take much memory.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.adapters.families import FAMILIES
from tests.adapters.test_huggingface import WORDS, tokenizer
from tests.attack.damaged import ODD
from tests.attack.visitor import FindingError
from tests.model_files.small_files import tiny_gguf
from xformer.adapters.load import library, limit_memory, limit_time, open_model, try_out
from xformer.errors import XformerError
from xformer.reading import read

SECONDS = 5.0
"""Seconds of the processor that opening and reading may take."""
WALL = 60
"""On a busy machine."""
SIZES = (0, -1, 1, 2**31, 10**6, 10**7, 10**8, 2**62, 1e9, -7)
GOOD = ("Llama", "GPT-2", "BERT", "T5", "ViT")
RULES: tuple[dict[str, Any], ...] = (
    {"type": "Split", "pattern": {"Regex": "(a|aa)+$|(a*)*b"}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
    {"type": "Split", "pattern": {"Regex": "(.*)*(.*)*(.*)*!"}, "behavior": "Removed", "invert": True},
    {"type": "Unknown", "pattern": 3},
)
_GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "a " * 40}
NORMALISERS: tuple[dict[str, Any], ...] = (
    {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""},
    *({"type": "Sequence", "normalizers": [_GROWS] * n} for n in (1, 3, 6)),
)


@cache
def original(name: str) -> Path:
    """A whole folder of a kind, or one with a GGUF file."""
    where = Path(tempfile.mkdtemp(prefix="xformer-folders-"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library().logging.set_verbosity_error()
        if name == "GGUF":
            words = [*WORDS[:5], *"abcdefghijklmnopqrstuvwxyzĠ", "th", "the"]
            tiny_gguf(where / "tiny.gguf", words, ["t h", "th e"], width=32)
            return where
        FAMILIES[name].make().save_pretrained(where)
        if name != "ViT":
            tokenizer().save_pretrained(where)
    return where


def mutant(where: Path, draw: random.Random) -> str:
    """A folder with something wrong, and in a few words what."""
    name = draw.choice(GOOD)
    shutil.copytree(original(name), where)
    change = draw.choice((_config, _config, _config, _tensors, _tensors, _tokenizer, _tokenizer, _bytes))
    change(where, draw)
    return f"{name} {change.__name__[1:]}"


def _config(where: Path, draw: random.Random) -> None:
    file = where / "config.json"
    config = json.loads(file.read_text())
    for _ in range(draw.choice((1, 1, 2, 4))):
        keys = [key for key, value in config.items() if isinstance(value, int) and draw.random() < 0.7] or list(config)
        config[draw.choice(keys)] = draw.choice((*SIZES, *ODD))
    extra = draw.choice(
        ({}, {}, {"return_dict": False}, {"is_encoder_decoder": True}, {"num_labels": 10**8}, {"torch_dtype": "int8"},
         {"architectures": [draw.choice(("BertModel", "T5Model", "Unknown", "PreTrainedModel", "GPT2LMHeadModel"))]},
         {"model_type": draw.choice(("bert", "t5", "gpt2", "vit", "unknown"))}, {"pad_token_id": 10**9})
    )  # fmt: skip
    file.write_text(json.dumps(config | extra), errors="replace")


def _tensors(where: Path, draw: random.Random) -> None:
    file = where / "model.safetensors"
    tensors = load_file(file)
    names = draw.sample(sorted(tensors), k=min(len(tensors), draw.choice((1, 1, 3, 99))))
    how = draw.randrange(6)
    for name in names:
        if how == 0:
            del tensors[name]
        elif how == 1:
            tensors[name] = torch.full_like(tensors[name], draw.choice((float("nan"), float("inf"), -1e38)))
        elif how == 2:
            tensors[name] = tensors[name].to(draw.choice((torch.int64, torch.bool, torch.uint8, torch.float64)))
        elif how == 3:
            tensors[name] = tensors[name].flatten()[: draw.randrange(1, 5)].clone()
        elif how == 4:
            tensors[f"{name}.more"] = tensors.pop(name)
        else:
            tensors[name] = tensors[name][None].clone()
    save_file(tensors, file, {"format": draw.choice(("pt", "pt", "tf", "\x1b"))})


def _tokenizer(where: Path, draw: random.Random) -> None:
    file = where / "tokenizer.json"
    if not file.exists():
        return _config(where, draw)
    content = json.loads(file.read_text())
    how = draw.randrange(7)
    if how == 0:
        content["pre_tokenizer"] = draw.choice(RULES)
    elif how == 1:
        content["normalizer"] = draw.choice(NORMALISERS)
    elif how == 2:
        content["model"]["unk_token"] = draw.choice(("[NONE]", "", None, 3))
    elif how == 3:
        content["model"]["vocab"] = draw.choice(({}, {"a": -1}, {"a": 2**40}, dict.fromkeys(WORDS, 10**6), []))
    elif how == 4:
        content[draw.choice(list(content))] = draw.choice(ODD)
    elif how == 5:
        content["added_tokens"] = [{"id": 2**31, "content": "x" * 999, "special": True}] * 3
    else:
        file.unlink()
        return None
    file.write_text(json.dumps(content), errors="replace")
    return None


def _bytes(where: Path, draw: random.Random) -> None:
    file = draw.choice(sorted(where.iterdir()))
    data = bytearray(file.read_bytes())
    if draw.random() < 0.4:
        data = data[: draw.randrange(len(data))]
    for _ in range(draw.choice((1, 4, 64)) if data else 0):
        data[draw.randrange(len(data))] = draw.randrange(256)
    file.write_bytes(data)


def gguf_mutant(where: Path, draw: random.Random) -> str:
    """A GGUF file with something wrong in its first part, where keys and shapes are, or in its numbers."""
    data = bytearray((original("GGUF") / "tiny.gguf").read_bytes())
    start = int(len(data) * (0.15 if draw.random() < 0.8 else 1.0))
    how = draw.randrange(4)
    if how == 0:
        data = data[: draw.randrange(len(data))]
    elif how == 1:
        at = draw.randrange(start - 8)
        data[at : at + 8] = draw.choice((0, 1, 2**31, 2**62, 2**64 - 1, 10**7)).to_bytes(8, "little")
    elif how == 2:
        at = draw.randrange(len(data) - 4)
        data[at : at + 4] = np.float32(draw.choice((np.nan, np.inf))).tobytes()
    for _ in range(draw.choice((0, 1, 4, 32))):
        if data:
            data[draw.randrange(min(start, len(data)) or 1)] = draw.randrange(256)
    where.mkdir()
    (where / "tiny.gguf").write_bytes(data)
    return "gguf"


def attempts(make: Callable[[Path, random.Random], str], n: int, draw: random.Random) -> Iterator[str]:
    """Try n mutants, and say of each what came of it. Raises `FindingError` for what no mutant may do."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(n):
            where = Path(folder) / str(number)
            what = f"{make(where, draw)} mutant {number}"
            yield _tried(what, where / "tiny.gguf" if (where / "tiny.gguf").exists() else where)
            shutil.rmtree(where, ignore_errors=True)


def _tried(what: str, path: Path) -> str:
    """What came of a mutant: "read", "refused", or "ended" by a limit of the rehearsal."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_try, args=(path, sender))
    child.start()
    sender.close()
    came: list[str] = []
    with suppress(EOFError):
        while receiver.poll(WALL):
            came.append(receiver.recv())
    child.kill()
    child.join()
    if "passed" not in came:
        return came[-1] if came else "ended"
    if came[-1] not in ("read", "refused"):
        raise FindingError(f"{what}: {came[-1]}, exit {child.exitcode}")
    return came[-1]


def _try(path: Path, sender: Any) -> None:
    """Rehearse, where anything may be raised and the limits may end the process; then open and read."""
    os.close(2)
    os.open(os.devnull, os.O_WRONLY)
    warnings.simplefilter("ignore")
    limit_memory()
    try:
        try_out(path, limit_time)
    except BaseException:
        return sender.send("refused")
    sender.send("passed")
    limit_time(SECONDS)
    try:
        model = open_model(path)
        read(model, model.input.default)
    except XformerError as error:
        sentence = str(error)
        is_plain = sentence.strip() and sentence.isprintable() and len(sentence) < 1_000 and str(path) not in sentence
        return sender.send("refused" if is_plain else f"the sentence {sentence[:300]!r}")
    except BaseException as error:
        return sender.send(f"{type(error).__name__}: {str(error)[:300]}")
    return sender.send("read")
