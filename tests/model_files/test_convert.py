"""What a package carries becomes a folder that says the same, and no other pickle is ever read."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import torch

from xformer.errors import ModelFileError
from xformer.model_files import convert, inspect

transformers = pytest.importorskip("transformers")
WORDS = [
    "[PAD]",
    "[unused1]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"cCNOF()=.1~",
    ">>",
    "Br",
    "Cl",
    "[O-]",
    "[Na+]",
    "%12",
]
REACTION = "CC[O-]~[Na+].BrCC.[Na+]~[H-]>>CCOCC"
"""Of a list of real ones; no word stands for its [H-]."""


def test_reactions_are_cut_as_the_rule_says(tmp_path: Path) -> None:
    convert.smiles_tokenizer(WORDS, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    cut = ["[UNK]" if word == "[H-]" else word for word in re.findall(convert.SMILES, REACTION)]
    ids = tokenizer(REACTION)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", *cut, "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("C%12C [MASK]xN")["input_ids"])[1:-1] == [
        "C",
        "%12",
        "C",
        "[MASK]",
        "N",
    ]
    assert tokenizer.decode(tokenizer("CC[O-].Br>>C")["input_ids"], skip_special_tokens=True) == "CC[O-].Br>>C"


def test_a_pickle_becomes_safetensors_with_each_matrix_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file

    file = tmp_path / "pytorch_model.bin"
    matrix = torch.arange(6.0).reshape(2, 3)
    torch.save({"embedding": matrix, "output": matrix, "bias": torch.ones(3)}, file)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    monkeypatch.setattr(convert, "RXN_PICKLE", hashlib.sha256(file.read_bytes()).hexdigest())
    convert.reactions(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert sorted(tensors) == ["bias", "embedding"]
    assert torch.equal(tensors["embedding"], matrix)
    assert not file.exists()
    assert inspect(tmp_path).n_parameters == 9


def test_another_pickle_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("read"))
    (tmp_path / "pytorch_model.bin").write_bytes(b"another")
    with pytest.raises(ModelFileError, match="is not RXNMapper's, and no other pickle is read"):
        convert.reactions(tmp_path)


def tiny_gguf(folder: Path) -> Path:
    """A llama of one layer with a vocabulary of letters, as GGUF."""
    writer_of = pytest.importorskip("gguf")
    writer = writer_of.GGUFWriter(folder / "tiny.gguf", "llama")
    width, hidden, tokens = 8, 16, ["<|e|>", "a", "b", "ab", "Ġ", "c"]
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    shapes = {"token_embd": (len(tokens), width), "output_norm": (width,)}
    block = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (4, width)}
    block |= {
        "attn_v": (4, width),
        "attn_output": (width, width),
        "ffn_gate": (hidden, width),
        "ffn_up": (hidden, width),
    }
    block |= {"ffn_down": (width, hidden)}
    generator = torch.Generator().manual_seed(0)
    for name, shape in (shapes | {f"blk.0.{name}": shape for name, shape in block.items()}).items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "tiny.gguf"


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_says_the_same_as_safetensors(tmp_path: Path) -> None:
    file = tiny_gguf(tmp_path)
    assert inspect(tmp_path).gguf_file == "tiny.gguf"
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        before = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name)(ids).logits
    cut = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)("abba c")["input_ids"]
    convert.gguf(tmp_path)
    found = inspect(tmp_path)
    assert (found.gguf_file, found.has_tokenizer, found.architectures) == (None, True, ("LlamaForCausalLM",))
    with torch.no_grad():
        after = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
    torch.testing.assert_close(after, before)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("abba c")["input_ids"] == cut
