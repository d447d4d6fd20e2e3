"""Seeded mutants of every kind of untrusted file. Each must be read, or rejected in one sentence.

A mutant of a model folder is opened as in the app: first in a trial process with resource limits and, if that succeeds, for
real. Only the second step must never raise another error, hang, abort or take much memory.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.adapters.families import FAMILIES, IMAGE, tiny_model
from tests.adapters.test_huggingface import WORDS, tokenizer
from tests.model_files.small_files import tiny_gguf
from tests.training.tiny import tiny_preset
from tests.trials import Kind
from xformer import load, record
from xformer.adapters.load import import_transformers, limit_memory, limit_time, open_model, try_out
from xformer.checkpoints import from_bytes
from xformer.errors import XformerError
from xformer.reading import read
from xformer.trace import load_trace, save_trace
from xformer.training.card import from_file, to_file
from xformer.training.loop import iter_train
from xformer.training.run_store import RunStore

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 2**31, 2**62, 2**40, 10**7, -(2**70), 1e9, "", "=cmd|' /C calc'!A0", "\ud800", "a" * 5000, [], {},
    [[[]]], {"name": []}, "../../etc/passwd", 0.5, "nan", [2**31], "\x1b[2J", "<b>", [0, 2**62],
)  # fmt: skip
SECONDS = 5.0
"""Limit in CPU seconds for opening and reading a model folder."""
WALL = 60
"""Limit in seconds of wall time, with a margin for a busy machine."""
FOLDERS = ("Llama", "GPT-2", "BERT", "T5", "ViT", "CLIPVision", "Whisper")
SIZES = (-1, 0, 1, 65_537, 10**6, 10**9, 10**12, 1e308, float("inf"), float("nan"))
"""Sizes that take much memory or time, or none."""
LONG = 100_000
"""The length of long lists."""
SETTINGS = {
    "preprocessor_config.json": (
        "size", "crop_size", "pad_size", "patch_size", "rescale_factor", "image_mean", "image_std", "resample", "max_pixels",
        "shortest_edge", "longest_edge", "n_fft", "hop_length", "chunk_length", "sampling_rate", "feature_size", "size_divisor",
    ),
    "tokenizer.json": ("added_tokens", "padding", "truncation", "normalizer", "pre_tokenizer", "post_processor", "decoder"),
    "tokenizer_config.json": (
        "model_max_length", "extra_special_tokens", "additional_special_tokens", "added_tokens_decoder", "extra_ids", "offset",
        "chat_template", "max_length", "pad_to_multiple_of",
    ),
    "special_tokens_map.json": ("additional_special_tokens", "pad_token", "mask_token"),
    "added_tokens.json": ("[A]", "[B]"),
    "generation_config.json": (
        "max_new_tokens", "num_beams", "bad_words_ids", "suppress_tokens", "forced_decoder_ids", "begin_suppress_tokens",
    ),
}  # fmt: skip
"""The settings files and the names in them that lead to memory or time."""


def damage(good: bytes, draw: random.Random, *, until: float = 1.0) -> bytes:
    """Return the bytes truncated, with one 8-byte number replaced, or with random bytes replaced.

    Only the first `until` of the bytes, a fraction, are affected.
    """
    data, how, most = bytearray(good), draw.randrange(3), max(9, int(len(good) * until))
    if how == 0:
        return bytes(data[: draw.randrange(most)])
    if how == 1:
        at = draw.choice((0, draw.randrange(most - 8)))
        data[at : at + 8] = draw.choice((0, 1, 7, len(data), 2**31, 2**62, 2**64 - 1, 10**7)).to_bytes(8, "little")
    for _ in range(draw.choice((1, 2, 8, 64)) * (how == 2)):
        data[draw.randrange(most)] = draw.randrange(256)
    return bytes(data)


def put_odd(where: Any, draw: random.Random) -> None:
    """Put an odd value into a random place of parsed JSON, including JSON inside its strings."""
    keys = list(where) if isinstance(where, dict) else list(range(len(where)))
    key = draw.choice(keys) if keys else None
    value = None if key is None else where[key]
    if isinstance(value, str) and draw.random() < 0.7:
        with suppress(ValueError):
            inner = json.loads(value)
            if isinstance(inner, dict | list):
                put_odd(inner, draw)
                where[key] = json.dumps(inner)
                return
    if isinstance(value, dict | list) and value and draw.random() < 0.8:
        put_odd(value, draw)
    elif isinstance(where, dict) and (key is None or draw.random() < 0.2):
        where[draw.choice(["", "\ud800", "=1", "d_model", "__metadata__", "x" * 999])] = copy.deepcopy(draw.choice(ODD))
    elif key is not None:
        where[key] = copy.deepcopy(draw.choice(ODD))


def mutant(good: bytes, draw: random.Random) -> bytes:
    """Return a safetensors file with damaged bytes, or with an odd value in the JSON of its header."""
    if draw.random() < 0.5:
        return damage(good, draw)
    n = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + n])
    put_odd(header, draw)
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + good[8 + n :]


@cache
def originals() -> dict[str, bytes]:
    """Return a checkpoint, an exported run and a trace of a tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(folder)
        run = store.add(tiny_preset(), name="good", state="finished")
        rows = [progress.row() for progress in iter_train(tiny_preset(), out=store.folder_of(run), device="cpu")]
        store.put_rows(run, rows)
        store.change(run, step=12)
        model = load(store.folder_of(run)).model
        save_trace(record(model, torch.tensor([[1, 2, 3]])), Path(folder) / "trace.safetensors")
        return {
            "checkpoint": (store.folder_of(run) / "model.safetensors").read_bytes(),
            "import": to_file(store, run),
            "trace": (Path(folder) / "trace.safetensors").read_bytes(),
        }


def files(kind: str, n: int, draw: random.Random) -> Iterator[str]:
    """Read n mutants of one of xformer's own files."""
    with tempfile.TemporaryDirectory() as folder:
        read = _reader(kind, Path(folder))
        for number in range(n):
            sentence = None
            try:
                read(mutant(originals()[kind], draw))
            except XformerError as error:
                sentence = str(error)
            except Exception as error:
                raise AssertionError(f"{kind} mutant {number}: {type(error).__name__}: {error}") from error
            if sentence is not None:
                sentence.encode()  # it can be displayed
                assert 0 < len(sentence.strip()) <= 2000, sentence
            yield "read" if sentence is None else "refused"


def _reader(kind: str, folder: Path) -> Callable[[bytes], object]:
    if kind == "checkpoint":
        return from_bytes
    store, file = RunStore(folder / "runs"), folder / "one.safetensors"

    def read_trace(content: bytes) -> None:
        file.write_bytes(content)
        load_trace(file)

    def take(content: bytes) -> None:
        taken = from_file(store, content, owner="me", file_name="a\ud800=1.safetensors")
        if taken.is_new:
            entry = store.entry(taken.run)
            f"{entry.name}{entry.title}{entry.about}{entry.message}".encode()  # it can be displayed
            to_file(store, taken.run)
            entry.settings()

    return read_trace if kind == "trace" else take


SQUARE = {"height": IMAGE["image_size"], "width": IMAGE["image_size"]}
PROCESSORS = {
    "ViT": {"image_processor_type": "ViTImageProcessor", "size": SQUARE},
    "CLIPVision": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 14}, "crop_size": SQUARE},
    "Whisper": {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 8,
        "chunk_length": 30,
        "hop_length": 160,
    },
}


@cache
def original(name: str) -> Path:
    """Return an undamaged model folder of a family, or a folder with a GGUF file."""
    where = Path(tempfile.mkdtemp(prefix="xformer-folders-"))
    if name == "GGUF":
        words = [*WORDS[:5], *"abcdefghijklmnopqrstuvwxyzĠ", "th", "the"]
        tiny_gguf(where / "tiny.gguf", words, ["t h", "th e"], width=32)
        return where
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_transformers().logging.set_verbosity_error()
        model = tiny_model("CLIPVisionModel", IMAGE) if name == "CLIPVision" else FAMILIES[name].make()
        model.save_pretrained(where)
        if name in PROCESSORS:
            (where / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[name]))
        if name not in ("ViT", "CLIPVision"):
            tokenizer().save_pretrained(where)
    return where


def spoil_folder(where: Path, draw: random.Random) -> Path:
    """Copy a model folder and damage one of its files."""
    shutil.copytree(original(draw.choice(FOLDERS)), where)
    file = draw.choice([file for file in where.iterdir() if file.stat().st_size])
    if draw.random() < 0.3:
        file.write_bytes(damage(file.read_bytes(), draw))
    elif file.suffix == ".json":
        content = json.loads(file.read_text())
        for _ in range(draw.choice((1, 2, 4))):
            put_odd(content, draw)
        file.write_text(json.dumps(content))
    else:
        tensors = load_file(file)
        change: Callable[[torch.Tensor], torch.Tensor] = draw.choice(
            (lambda x: torch.full_like(x, float("nan")), lambda x: x.to(torch.int64), lambda x: x.flatten()[:3].clone())
        )
        for name in draw.sample(sorted(tensors), k=min(len(tensors), draw.choice((1, 3, 99)))):
            tensors[draw.choice((name, f"{name}.more"))] = change(tensors.pop(name))
        save_file(tensors, file, {"format": "pt"})
    return where


def _large(draw: random.Random) -> Any:
    """A value of any shape that may take much memory or time."""
    size = draw.choice(SIZES)
    edges = draw.sample(
        ("height", "width", "shortest_edge", "longest_edge", "max_pixels", "max_height", "max_width"), 2
    )
    named = {
        "content": "a",
        "special": True,
        "id": 30,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": True,
    }
    replace = {
        "type": "Replace",
        "pattern": {"Regex": draw.choice(("(a|aa)+$", "(a*)*b", "", "."))},
        "content": "a" * 50,
    }
    return draw.choice((
        size, [size], [size, size], dict.fromkeys(edges, size), {draw.choice(edges): size}, [1] * LONG, [[1]] * LONG,
        [f"[S{n}]" for n in range(LONG)], {str(n): named for n in range(30, LONG // 4)}, "x" * 10**7, "[S1]" * LONG,
        [named | {"id": n, "content": f"[S{n}]"} for n in range(18, LONG // 4)], "{% for a in range(10**9) %}{% endfor %}",
        {"strategy": {"Fixed": size}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        {"max_length": size, "strategy": "LongestFirst", "stride": 0}, replace,
        {"type": "Sequence", "normalizers": [replace] * draw.choice((2, 9, 999))},
        {"type": "Split", "pattern": replace["pattern"], "behavior": "Isolated", "invert": False},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[BOS]", "type_id": 0}}] * draw.choice((9, 9_999)),
         "pair": [], "special_tokens": {"[BOS]": {"id": "[BOS]", "ids": [1], "tokens": ["[BOS]"]}}},
    ))  # fmt: skip


def spoil_settings(where: Path, draw: random.Random, *, rules: bool = True) -> Path:
    """Copy a model folder and put large values into one of its settings files, into rules of its tokenizer too."""
    shutil.copytree(original(family := draw.choice(FOLDERS)), where)
    names = [name for name in SETTINGS if (name == "preprocessor_config.json") == (family in ("ViT", "CLIPVision"))]
    if family == "Whisper":
        names = list(SETTINGS)
    file = where / draw.choice(names)
    content = json.loads(file.read_text()) if file.exists() else {}
    for _ in range(draw.choice((1, 1, 2))):
        names = [name for name in SETTINGS[file.name] if rules or name not in ("normalizer", "pre_tokenizer")]
        content[draw.choice(names)] = _large(draw)
    if file.name == "preprocessor_config.json" and draw.random() < 0.2:
        file, content = where / "processor_config.json", {"image_processor": content}
    file.write_text(json.dumps(content))
    return where


def spoil_gguf(where: Path, draw: random.Random) -> Path:
    """Write a damaged GGUF file, mostly with the damage in its first part, which has the keys and shapes."""
    where.mkdir()
    file = where / "tiny.gguf"
    file.write_bytes(damage((original("GGUF") / file.name).read_bytes(), draw, until=draw.choice((0.15, 0.15, 1.0))))
    return file


def models(
    spoil: Callable[[Path, random.Random], Path], n: int, draw: random.Random, *, is_tried: bool = True
) -> Iterator[str]:
    """Open and read n mutants of external models, each in a separate process, as in the app or without a trial before."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(n):
            path = spoil(Path(folder) / str(number), draw)
            receiver, sender = context.Pipe(duplex=False)
            child = context.Process(target=_open, args=(path, sender, is_tried))
            child.start()
            sender.close()
            outcomes = ["ended by a limit"]
            with suppress(EOFError):
                while receiver.poll(WALL):
                    outcomes.append(receiver.recv())
            child.kill()
            child.join()
            if "passed" in outcomes or not is_tried:
                assert outcomes[-1] in ("read", "refused"), f"mutant {number}: {outcomes[-1]}, exit {child.exitcode}"
            yield outcomes[-1]


def _open(path: Path, sender: Any, is_tried: bool) -> None:
    """Try the folder out, which may raise anything or exceed a limit, then open and read it for real."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    limit_memory()
    try:
        if is_tried:
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


KINDS = (
    Kind("damaged files: checkpoint", partial(files, "checkpoint"), 60, 40_000),
    Kind("damaged files: import", partial(files, "import"), 30, 4_000),
    Kind("damaged files: trace", partial(files, "trace"), 60, 15_000),
    Kind("model folders", partial(models, spoil_folder), 4, 600),
    Kind("settings of model folders", partial(models, spoil_settings), 3, 60),
    Kind("settings in a library call", partial(models, partial(spoil_settings, rules=False), is_tried=False), 3, 60),
    Kind("GGUF files", partial(models, spoil_gguf), 4, 500),
)
