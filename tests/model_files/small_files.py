"""Model files of a few bytes, valid and broken, built without transformers."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4}


def safetensors(tensors: dict[str, list[int]], dtype: str = "F32", width: int = 4) -> bytes:
    """A safetensors file with zero tensors of these shapes."""
    header, end = {}, 0
    for name, shape in tensors.items():
        n_bytes = width * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(end)


def folder_of(folder: Path, files: dict[str, bytes | str | dict[str, Any]]) -> Path:
    """Write a folder with these files, objects as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = json.dumps(content) if isinstance(content, dict) else content
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def a_model(folder: Path, **files: Any) -> Path:
    """Write a folder that passes `inspect`, with 12 parameters and a tokenizer. `files` are added or replaced."""
    usual = {"config.json": CONFIG, "model.safetensors": safetensors({"w": [3, 4]}), "tokenizer.json": {}}
    return folder_of(folder, usual | files)


def text(value: str) -> bytes:
    """A string in GGUF format."""
    return struct.pack("<Q", len(value)) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    """A key and its value in GGUF format."""
    return text(name) + struct.pack("<I", kind) + value


ARCHITECTURE = key("general.architecture", 8, text("llama"))
LAYERS = key("llama.block_count", 4, struct.pack("<I", 1))
TOKENS = key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b"))


def tensor(name: str = "w", shape: tuple[int, ...] = (32, 2), kind: int = 3, offset: int = 0) -> bytes:
    """A GGUF header's entry for a tensor. By default it has 64 numbers in blocks of 32 as Q4_1, which take 40 bytes."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(
    keys: tuple[bytes, ...] = (ARCHITECTURE, LAYERS, TOKENS),
    tensors: tuple[bytes, ...] = (tensor(),),
    *,
    data: int = 40,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
) -> bytes:
    """A GGUF file, whose claimed counts may differ from its contents."""
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join((*keys, *tensors))
    return head + bytes(-len(head) % 32 + data)


def tiny_gguf(path: Path, words: list[str], merges: list[str], width: int = 8) -> Path:
    """Write a Llama with one layer and a tokenizer of these words as a GGUF file."""
    import gguf as library
    import numpy as np

    writer, half, inner, n = library.GGUFWriter(path, "llama"), width // 2, 2 * width, len(words)
    settings = {
        "block_count": 1, "context_length": 64, "embedding_length": width, "feed_forward_length": inner, "head_count": 2,
        "head_count_kv": 1, "layer_norm_rms_eps": 1e-5, "rope_freq_base": 10_000.0, "vocab_size": n,
        "tokenizer_model": "gpt2", "token_list": words, "token_merges": merges, "eos_token_id": 0,
    }  # fmt: skip
    for name, value in settings.items():
        getattr(writer, f"add_{name}")(value)
    block = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (half, width)}
    block |= {"attn_v": (half, width), "attn_output": (width, width), "ffn_gate": (inner, width)}
    block |= {"ffn_up": (inner, width), "ffn_down": (width, inner)}
    shapes = {"token_embd": (n, width), "output_norm": (width,)} | {f"blk.0.{name}": of for name, of in block.items()}
    draw = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.normal(0, 0.2, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
