"""The inputs of external models: tokenized text, images in patches, and named arguments."""

from __future__ import annotations

import hashlib
import io
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.adapter import UNCHANGED_PREDICTION, Input, OpenText
from xformer.errors import InputError
from xformer.installed import needed
from xformer.model_shape import ModelShape

BETWEEN = ">>"
"""Separates the source and the target of an encoder-decoder, or two texts."""
_LINE_BREAK = "↵"
"""A line break as typed in a one-line text box."""


def tokenize(tokenizer: Any, *texts: str) -> tuple[int, ...]:
    """Tokenize one or two texts. Raises `InputError` if the tokenizer fails."""
    try:
        return tuple(tokenizer(*texts)["input_ids"])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # no token for an unknown word, or a panic in Rust, which is not an Exception
        raise InputError(f"The model's tokenizer cannot read this text: {str(error)[:200]}") from error


def prepare(processor: Any, image: Any) -> Float[Tensor, "batch channel row column"]:
    """The pixel values of an image from a model's own processor. Raises `InputError` if the processor fails."""
    try:
        return processor(images=image, return_tensors="pt")["pixel_values"]
    except Exception as error:  # the settings are untrusted
        raise InputError(f"The model's image processor cannot prepare this image: {str(error)[:200]}") from error


class TokenizedText(OpenText):
    """Text for a causal language model with a tokenizer. The class texts may contain the fields {mask} and {limit}."""

    continuation_length: ClassVar[int] = 16
    instruction = "Type the beginning of a text; the model continues it token by token."
    format_hint = "A text of up to {limit} tokens. ↵ stands for a new line."

    def __init__(
        self, tokenizer: Any, n_tokens: int, max_len: int, default: str, purposes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.tokenizer, self.n_tokens, self.max_len, self.purposes = tokenizer, n_tokens, max_len, purposes
        self.name = f"{type(self).__name__} {n_tokens}"
        self.instruction = self.instruction.format(mask=getattr(tokenizer, "mask_token", None))
        self.format_hint = self.format_hint.format(limit=f"{max_len:,}")
        self.default, self.replacements = default, range(n_tokens)

    def examples(self) -> dict[str, str]:
        return dict(self.purposes)

    def read(self, text: str) -> tuple[int, ...]:
        """Tokenize a text, including special tokens. Those at its ends that the text already has are not added again."""
        ids = tokenize(self.tokenizer, text.replace(_LINE_BREAK, "\n"))
        if not ids:
            raise InputError("This model reads text, got none; type a word.")
        added = tuple(self.tokenizer("")["input_ids"])  # such as a BOS, which the template of a chat also writes
        if added and ids[:2] == added[:1] * 2:
            ids = ids[1:]
        return ids[:-1] if added and len(ids) > 2 and ids[-2:] == added[-1:] * 2 else ids

    def text(self, source: Sequence[int]) -> str:
        """The text of the tokens, without the special tokens that the tokenizer adds."""
        ids = list(source)
        around = self.tokenizer("")["input_ids"]
        if len(around) > 1 and ids[: len(around) - 1] == around[:-1] and ids[-1] == around[-1]:
            ids = ids[len(around) - 1 : -1]
        elif ids[: len(around)] == around:
            ids = ids[len(around) :]
        text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text).replace("\n", _LINE_BREAK)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without any special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def random(self, seed: int) -> str:
        """Random tokens, repeated once: induction heads respond to these."""
        draw = torch.Generator().manual_seed(seed)
        drawn = torch.randint(0, min(self.n_tokens, len(self.tokenizer)), (60,), generator=draw).tolist()
        special = set(self.tokenizer.all_special_ids)
        kept = [token for token in drawn if token not in special and self.decode([token]).isprintable()]
        kept = [token for token in kept if "\N{REPLACEMENT CHARACTER}" not in self.decode([token])][:12]
        return self.text([*kept, *kept])

    def truncate(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """The end of a text that is too long for the context."""
        return source[-self.max_len :]


_PURPOSES = {
    "smollm": (
        ("… finds who is meant", "When Mary and John went to the store, John gave a drink to"),
        (
            "… repeats a sequence",
            "The cat sat on the mat. The dog ran in the park. The cat sat on the mat. The dog ran in the",
        ),
        ("… recalls a capital", "The capital of France is"),
    )
}


def purposes(name: str) -> tuple[tuple[str, str], ...]:
    """Purposes and example inputs of models that are known by name; empty for others."""
    return next((known for model, known in _PURPOSES.items() if model in name.lower()), ())


class PlainText(TokenizedText):
    """Text that is classified, searched for an answer, or turned into vectors."""

    reference_label: ClassVar[str] = UNCHANGED_PREDICTION
    is_open_ended: ClassVar[bool] = False
    instruction = "Type a text for the model to classify or encode."


class TwoTexts(PlainText):
    """Two texts in one input: question and context, or two sentences."""

    instruction = f"Type two texts with {BETWEEN} between them: a question and its context, or two sentences."
    format_hint = f"Two texts with {BETWEEN} between them, up to {{limit}} tokens."

    def read(self, text: str) -> tuple[int, ...]:
        """Tokenize both texts, with special tokens around and between them."""
        first, between, second = text.replace(_LINE_BREAK, "\n").partition(BETWEEN)
        if not between:
            return super().read(text)
        return tokenize(self.tokenizer, first.strip(), second.strip())

    def text(self, source: Sequence[int]) -> str:
        """Both texts, joined by the separator."""
        ids, sep = list(source), self.tokenizer.sep_token_id
        if sep is None or ids.count(sep) < 2:
            return super().text(source)
        at = ids.index(sep)
        return f"{self.decode(ids[:at]).strip()} {BETWEEN} {self.decode(ids[at:]).strip()}"


class TextWithGaps(PlainText):
    """Text with or without masks, for a masked language model."""

    instruction = "Type a text with {mask} in place of a word; the model predicts the word."


class TextPair(PlainText):
    """A source, optionally followed by >> and a target."""

    instruction = f"Type a text; the model generates the output, or reads the output that you type after {BETWEEN}."

    def read(self, text: str) -> tuple[int, ...]:
        """The source alone."""
        return super().read(text.partition(BETWEEN)[0].strip())


class ArgumentsOnly(Input):
    """Sounds and other inputs that cannot be typed; they are passed as named arguments."""

    name = "arguments"
    instruction = "This model's input cannot be typed; pass its arguments by name in Python."
    format_hint = "No typed input."
    default = ""
    no_sample_reason = "This model takes no typed input."

    def __init__(self, model: str, argument: str) -> None:
        self.model, self.argument = model, argument

    def read(self, text: str) -> tuple[int, ...]:
        """Raises `InputError`."""
        what = {"input_features": "sounds", "input_values": "sounds"}.get(self.argument, self.argument)
        raise InputError(f"{self.model} reads {what}; pass its arguments by name, {{'{self.argument}': …}}.")

    def text(self, source: Sequence[int]) -> str:
        return ""


SAMPLES = {"flower": "flower.jpg", "temple": "china.jpg"}
"""Photographs included in scikit-learn."""

MAX_UPLOADS, MAX_PIXELS, KEPT_SIDE, MAX_ASPECT = 64, 40_000_000, 512, 16
"""Limits on uploads: the number that is kept, the pixels of an image, the longer side of a kept image, and the ratio of sides.

A processor that enlarges the shorter side makes a very long image of a thin one.
"""


class PatchedImage(Input):
    """An image, cut into patches (Dosovitskiy et al. 2020), chosen by name: "flower", "temple", or the name of an upload."""

    kind: ClassVar[str] = "picture"
    unit: ClassVar[str] = "patch"
    units: ClassVar[str] = "patches"
    reference_label: ClassVar[str] = UNCHANGED_PREDICTION
    sample_noun: ClassVar[str] = "image"
    name = "picture"
    instruction = "Choose a picture or upload one; the model classifies it."
    format_hint = "The name of a picture."
    default = "flower"
    no_sample_reason = "Pictures are chosen or uploaded, not drawn at random."

    def __init__(self, shape: ModelShape, processor: Any, model: nn.Module) -> None:
        config: Any = model.config
        vision = getattr(config, "vision_config", config)
        side, patch = getattr(vision, "image_size", 224), getattr(vision, "patch_size", 16)
        if not shape.vocab_size:
            self.instruction = "Choose a picture or upload one; the model returns a vector for each patch."
        self.processor, self.n_channels = processor, getattr(vision, "num_channels", 3)
        self.side: tuple[int, int] = tuple(side) if isinstance(side, list | tuple) else (side, side)  # type: ignore[assignment]
        self.patch: tuple[int, int] = tuple(patch) if isinstance(patch, list | tuple) else (patch, patch)  # type: ignore[assignment]
        self.grid = self.side[0] // self.patch[0], self.side[1] // self.patch[1]
        self.n_special = max(0, shape.max_len - self.grid[0] * self.grid[1])
        self.is_grid = not shape.numbered
        self.dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)

    def examples(self) -> dict[str, str]:
        return {name: name for name in SAMPLES}

    def read(self, text: str) -> tuple[int, ...]:
        """The image's name as bytes, which represent it in links. Raises `InputError` for an unknown name."""
        _picture(text.strip())
        return tuple(text.strip().encode())

    def text(self, source: Sequence[int]) -> str:
        return bytes(source).decode(errors="replace")

    def names(self, n: int) -> tuple[str, ...]:
        """The row and column of each patch, after the special tokens."""
        rows, columns = self.grid
        special = self.n_special
        if n - special != rows * columns:  # not the image size in the configuration
            rows = columns = math.isqrt(max(0, n - special))
        if not self.is_grid or rows * columns != n - special:
            return tuple(str(at + 1) for at in range(n))
        before = ("class", *(f"special {at}" for at in range(1, special)))[:special]
        return (*before, *(f"r{row + 1} c{column + 1}" for row in range(rows) for column in range(columns)))

    def n_positions(self, pixels: Float[Tensor, "batch channel row column"]) -> int:
        """The number of positions of an image of this size."""
        return self.n_special + (pixels.shape[-2] // self.patch[0]) * (pixels.shape[-1] // self.patch[1])

    def pixels(self, inputs: Any) -> tuple[tuple[int, ...], Float[Tensor, "batch channel row column"]]:
        """The source and the pixels of an image's name, a PIL image, or a tensor of pixel values."""
        if isinstance(inputs, Tensor):
            pixels = inputs if inputs.dim() == 4 else inputs[None]
            if pixels.dim() != 4 or pixels.shape[1] != self.n_channels:
                raise InputError(
                    f"Pixels must be [batch, {self.n_channels}, row, column], like [1, {self.n_channels}, {self.side[0]}, "
                    f"{self.side[1]}], got {list(inputs.shape)}."
                )
            return (), pixels.to(self.dtype)
        if isinstance(inputs, list):
            every = [self.pixels(one) for one in inputs]
            if not every:
                raise InputError(f"{self.format_hint} Got an empty list.")
            return every[0][0], torch.cat([pixels for _, pixels in every])
        if isinstance(inputs, str):
            inputs = self.read(inputs)
        if isinstance(inputs, tuple) and all(isinstance(one, int) for one in inputs):
            return inputs, self._prepared(_picture(self.text(inputs)))
        return (), self._prepared(inputs)

    def shown(self, pixels: Float[Tensor, "channel row column"]) -> np.ndarray:
        """The image that a model read, denormalised to 0–255 [row, column, 3]."""
        mean, std = (torch.as_tensor(getattr(self.processor, f"image_{name}", None) or 0.5) for name in ("mean", "std"))
        if self.processor is not None and not getattr(self.processor, "do_normalize", True):
            mean, std = torch.zeros(()), torch.ones(())
        values = pixels.cpu().float() * std.reshape(-1, 1, 1) + mean.reshape(-1, 1, 1)
        return (values * 255).round().clamp(0, 255).byte().expand(3, -1, -1).permute(1, 2, 0).numpy()

    def _prepared(self, image: Any) -> Float[Tensor, "1 channel row column"]:
        """Pixel values from the model's own processor; without one, resized and scaled to −1 … 1."""
        if self.processor is not None:
            pixels = prepare(self.processor, image)
        else:
            if not hasattr(image, "convert"):
                raise InputError(
                    f"An image is a tensor, a PIL image or {self.format_hint.lower()} Got a {type(image).__name__}."
                )
            small = image.convert("L" if self.n_channels == 1 else "RGB").resize(self.side[::-1])
            array = np.asarray(small, dtype=np.float32).reshape(*self.side, -1)[..., : self.n_channels]
            pixels = torch.from_numpy(array / 127.5 - 1).permute(2, 0, 1)[None]
        return pixels.to(self.dtype)


_UPLOADS: OrderedDict[str, Any] = OrderedDict()

_LOCK = threading.Lock()


def keep_upload(data: bytes) -> str:
    """Keep a small copy of an uploaded image and return its name. Raises `InputError` if the data is not an image."""
    with needed("PIL", "An image", "pillow"):
        from PIL import Image
    try:
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP", "GIF", "BMP"))
        if image.width * image.height > MAX_PIXELS:
            raise InputError(f"An image may have at most {MAX_PIXELS:,} pixels, got {image.width} × {image.height}.")
        if max(image.size) > MAX_ASPECT * min(image.size):
            how = f"at most {MAX_ASPECT} times as long as the other; crop it"
            raise InputError(f"One side of an image may be {how}, got {image.width} × {image.height}.")
        image = image.convert("RGB")
    except InputError:
        raise
    except Exception as error:  # an untrusted file may make a library raise anything
        raise InputError("This file cannot be read as an image; upload a PNG, JPEG, WebP, GIF or BMP file.") from error
    image.thumbnail((KEPT_SIDE, KEPT_SIDE))
    name = f"upload-{hashlib.sha256(image.tobytes()).hexdigest()[:12]}"
    with _LOCK:
        _UPLOADS[name] = image
        while len(_UPLOADS) > MAX_UPLOADS:
            _UPLOADS.popitem(last=False)
    return name


def _picture(name: str) -> Any:
    """An image by its name. Raises `InputError` for an unknown name."""
    if name in _UPLOADS:
        return _UPLOADS[name]
    if name in SAMPLES:
        with needed("sklearn", "A sample picture", "scikit-learn"):
            from sklearn.datasets import load_sample_image
        from PIL import Image

        return Image.fromarray(load_sample_image(SAMPLES[name]))
    expired = "Uploads are kept only for a while; upload it again." if name.startswith("upload-") else ""
    raise InputError(f"A picture is {', '.join(SAMPLES)} or an upload, got {name[:40]!r}. {expired}".strip())


def picture(source: Sequence[int]) -> Any:
    """The PIL image of a source."""
    return _picture(bytes(source).decode(errors="replace"))


_SIGNS = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"})

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@lru_cache(maxsize=4)
def vocabulary(tokenizer: Any, n: int) -> tuple[str, ...]:
    """The text of each of `n` tokens; a number for tokens without text."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(min(n, len(tokenizer)))))
    known = readable([token if token is not None else f"#{index}" for index, token in enumerate(tokens)])
    return known + tuple(f"#{index}" for index in range(len(known), n))


def readable(tokens: Sequence[str]) -> tuple[str, ...]:
    """Tokens in readable form: a space is ·, a line break ↵, bytes that are not valid text ‹e2 80›.

    byte-level   "ĠMary"   →  ·Mary         (Radford et al. 2019)
    pieces       "▁Mary"   →  ·Mary         (Kudo & Richardson 2018)
    word pieces  "##ing"   →  ##ing
    """
    is_bytes = any(token.startswith("Ġ") for token in tokens)
    return tuple(_of_bytes(token) if is_bytes else _of_pieces(token) for token in tokens)


def _of_bytes(token: str) -> str:
    try:
        raw = token.translate(_byte_of()).encode("latin-1")
    except UnicodeEncodeError:
        return token.translate(_SIGNS)  # a special token does not represent bytes
    try:
        return raw.decode().translate(_SIGNS)
    except UnicodeDecodeError:
        return f"‹{raw.hex(' ')}›"


def _of_pieces(token: str) -> str:
    byte = _BYTE.fullmatch(token)
    if byte is None:
        return token.replace("▁", " ").translate(_SIGNS)
    number = int(byte[1], 16)
    return chr(number).translate(_SIGNS) if number in (9, 10, 13, 32) else f"‹{number:02x}›"


@cache
def _byte_of() -> dict[int, int]:
    """The byte of each character of a byte-level vocabulary: printable characters are themselves, the rest start at 256.

    Characters that do not represent a byte map to 0xFFFF.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return dict.fromkeys(others, 0xFFFF) | {256 + index: byte for index, byte in enumerate(others)}


_SMOLLM2_PAIRS = {
    "… finds who is meant": (
        "When Mary and John went to the store, John gave a drink to",
        "When Mary and John went to the store, Mary gave a drink to",
    ),
    "… finds who gets the book": (
        "After Tom and Sarah had lunch, Sarah handed the book to",
        "After Tom and Sarah had lunch, Tom handed the book to",
    ),
    "… finds who is sung to": (
        "While Anna and Peter were in the garden, Peter sang a song for",
        "While Anna and Peter were in the garden, Anna sang a song for",
    ),
    "… recalls a capital": ("The capital of France is", "The capital of Germany is"),
}


def known_pairs(name: str) -> dict[str, tuple[str, str]]:
    """Minimal pairs of prompts for models that are known by name; empty for others."""
    return dict(_SMOLLM2_PAIRS) if "smollm" in name.lower() else {}
