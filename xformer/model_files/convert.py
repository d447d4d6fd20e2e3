"""Making a folder that opens fast and safely of what a package carries: `python -m xformer.model_files.convert KIND FOLDER`.

gguf        numbers in blocks become float32 in safetensors, mapped in a second where unpacking takes half a minute each time
reactions   RXNMapper's weights, a pickle from 2020, become safetensors, and its rule for cutting SMILES a tokenizer.json

A pickle is read here and nowhere else, and never for a visitor: this one file, known by its sha256, and by PyTorch's reader
of tensors alone (weights_only), in a process that ends with it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from xformer.errors import ModelFileError
from xformer.model_files.headers import SINGLE

if TYPE_CHECKING:
    from torch import Tensor

RXN_PICKLE = "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2"
SMILES = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
"""What is one token of a molecule: an atom in brackets, an element, a bond, a ring's number (Schwaller and others, 2019)."""


def gguf(folder: Path) -> None:
    """Write config.json, the tokenizer and model.safetensors of the one GGUF file there, and remove it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    [file] = folder.glob("*.gguf")
    AutoTokenizer.from_pretrained(folder, gguf_file=file.name, local_files_only=True).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, local_files_only=True)
    model.config.__dict__.pop("quantization_config")  # its numbers are whole from now on
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    _write(model.state_dict(), folder)
    file.unlink()


def reactions(folder: Path) -> None:
    """Write model.safetensors and the tokenizer of RXNMapper, and remove the pickle."""
    import torch

    file = folder / "pytorch_model.bin"
    if hashlib.sha256(file.read_bytes()).hexdigest() != RXN_PICKLE:
        raise ModelFileError(f"{file.name} is not RXNMapper's, and no other pickle is read.")
    _write(torch.load(file, weights_only=True, map_location="cpu"), folder)
    smiles_tokenizer((folder / "vocab.txt").read_text(encoding="utf-8").split(), folder)
    file.unlink()


def smiles_tokenizer(words: list[str], folder: Path) -> None:
    """Write the tokenizer of reactions that has these words; what is no SMILES is passed over, as RXNMapper does."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES), "removed", invert=True)  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(word, numbers[word]) for word in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    special = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("unk", "cls", "sep", "pad", "mask")}
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special)
    whole.save_pretrained(folder)


def _write(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """The tensors as safetensors, each once: a matrix that serves twice is tied again when the model is opened."""
    from safetensors.torch import save_file

    own: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in tensors.items():
        own.setdefault(tensor.data_ptr(), (name, tensor.contiguous()))
    save_file(dict(own.values()), folder / SINGLE, metadata={"format": "pt"})
    (folder / SINGLE).chmod(0o644)


if __name__ == "__main__":
    {"gguf": gguf, "reactions": reactions}[sys.argv[1]](Path(sys.argv[2]))
