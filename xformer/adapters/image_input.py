"""An image as a vision model reads it: named pictures and uploads, cut into patches (Dosovitskiy et al. 2020)."""

from __future__ import annotations

import hashlib
import io
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from xformer.adapters.adapter import Input
from xformer.errors import InputError
from xformer.installed import needed
from xformer.model_shape import ModelShape

SAMPLES = {"flower": "flower.jpg", "temple": "china.jpg"}
"""Photographs that scikit-learn carries, by the name they have here."""
MOST_UPLOADS, MOST_PIXELS, KEPT_SIDE = 64, 40_000_000, 512
"""Uploads that stay at most; the largest image that is opened; the longer side of what is kept of one."""


class PatchedImage(Input):
    """The name of a picture: "flower", "temple", or an upload's."""

    kind: ClassVar[str] = "picture"
    one: ClassVar[str] = "patch"
    many: ClassVar[str] = "patches"
    instead_of_an_answer: ClassVar[str] = "said unchanged"
    sampled: ClassVar[str] = "image"
    name = "picture"
    does = "Choose a picture or upload one; it says what the picture shows."
    typed = "The name of a picture."
    default = "flower"
    missing = "Pictures are chosen or uploaded, not drawn at random."

    def __init__(self, shape: ModelShape, processor: Any, model: nn.Module) -> None:
        config: Any = model.config
        vision = getattr(config, "vision_config", config)
        side, patch = getattr(vision, "image_size", 224), getattr(vision, "patch_size", 16)
        if not shape.vocab_size:
            self.does = "Choose a picture or upload one; the model gives a vector for each of its patches."
        self.processor, self.n_channels = processor, getattr(vision, "num_channels", 3)
        self.side: tuple[int, int] = tuple(side) if isinstance(side, list | tuple) else (side, side)  # type: ignore[assignment]
        self.patch: tuple[int, int] = tuple(patch) if isinstance(patch, list | tuple) else (patch, patch)  # type: ignore[assignment]
        self.grid = self.side[0] // self.patch[0], self.side[1] // self.patch[1]
        self.n_special = max(0, shape.max_len - self.grid[0] * self.grid[1])
        self.dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)

    def examples(self) -> dict[str, str]:
        return {name: name for name in SAMPLES}

    def read(self, text: str) -> tuple[int, ...]:
        """The letters of the picture's name: what stands for it in a link. Raises `InputError` for a name of none."""
        _picture(text.strip())
        return tuple(text.strip().encode())

    def text(self, source: Sequence[int]) -> str:
        return bytes(source).decode(errors="replace")

    def names(self, n: int) -> tuple[str, ...]:
        """The position of each patch by row and column; what a model puts before them is special."""
        rows, columns = self.grid
        special = self.n_special
        if n - special != rows * columns:  # an image of another size than the configuration's
            rows = columns = math.isqrt(max(0, n - special))
        if rows * columns != n - special:
            return tuple(str(at + 1) for at in range(n))
        before = ("class", *(f"special {at}" for at in range(1, special)))[:special]
        return (*before, *(f"r{row + 1} c{column + 1}" for row in range(rows) for column in range(columns)))

    def n_positions(self, pixels: Float[Tensor, "batch channel row column"]) -> int:
        """How many positions a model reads an image of this size as."""
        return self.n_special + (pixels.shape[-2] // self.patch[0]) * (pixels.shape[-1] // self.patch[1])

    def pixels(self, typed: Any) -> tuple[tuple[int, ...], Float[Tensor, "batch channel row column"]]:
        """The source and the pixels of a picture's name, a PIL image, or a tensor that is ready for the model."""
        if isinstance(typed, Tensor):
            pixels = typed if typed.dim() == 4 else typed[None]
            if pixels.dim() != 4 or pixels.shape[1] != self.n_channels:
                raise InputError(
                    f"Pixels are [batch, {self.n_channels}, row, column], like [1, {self.n_channels}, {self.side[0]}, "
                    f"{self.side[1]}], got {list(typed.shape)}."
                )
            return (), pixels.to(self.dtype)
        if isinstance(typed, str):
            typed = self.read(typed)
        if isinstance(typed, tuple) and all(isinstance(one, int) for one in typed):
            return typed, self._prepared(_picture(self.text(typed)))
        return (), self._prepared(typed)

    def shown(self, pixels: Float[Tensor, "channel row column"]) -> np.ndarray:
        """The image that a model saw, as colours 0 to 255 [row, column, 3]: what was done to its values is undone."""
        mean, std = (torch.as_tensor(getattr(self.processor, f"image_{name}", None) or 0.5) for name in ("mean", "std"))
        if self.processor is not None and not getattr(self.processor, "do_normalize", True):
            mean, std = torch.zeros(()), torch.ones(())
        values = pixels.cpu().float() * std.reshape(-1, 1, 1) + mean.reshape(-1, 1, 1)
        return (values * 255).round().clamp(0, 255).byte().expand(3, -1, -1).permute(1, 2, 0).numpy()

    def _prepared(self, image: Any) -> Float[Tensor, "1 channel row column"]:
        """By the processor that the model was saved with; without one, resized and with values from −1 to 1."""
        if self.processor is not None:
            pixels = self.processor(images=image, return_tensors="pt")["pixel_values"]
        else:
            small = image.convert("L" if self.n_channels == 1 else "RGB").resize(self.side[::-1])
            array = np.asarray(small, dtype=np.float32).reshape(*self.side, -1)[..., : self.n_channels]
            pixels = torch.from_numpy(array / 127.5 - 1).permute(2, 0, 1)[None]
        return pixels.to(self.dtype)


_UPLOADS: OrderedDict[str, Any] = OrderedDict()
_LOCK = threading.Lock()


def keep_upload(data: bytes) -> str:
    """Keep an uploaded image, made small, and return its name. Raises `InputError` where it is none."""
    with needed("PIL", "An image", "pillow"):
        from PIL import Image
    try:
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP", "GIF", "BMP"))
        if image.width * image.height > MOST_PIXELS:
            raise InputError(f"An image has at most {MOST_PIXELS:,} pixels, got {image.width} × {image.height}.")
        image = image.convert("RGB")
    except InputError:
        raise
    except Exception as error:  # whatever a stranger's file makes of a library
        raise InputError("This file is no image that can be read; take a PNG, JPEG, WebP, GIF or BMP file.") from error
    image.thumbnail((KEPT_SIDE, KEPT_SIDE))
    name = f"upload-{hashlib.sha256(image.tobytes()).hexdigest()[:12]}"
    with _LOCK:
        _UPLOADS[name] = image
        while len(_UPLOADS) > MOST_UPLOADS:
            _UPLOADS.popitem(last=False)
    return name


def _picture(name: str) -> Any:
    """A picture by its name. Raises `InputError` where there is none of that name."""
    if name in _UPLOADS:
        return _UPLOADS[name]
    if name in SAMPLES:
        with needed("sklearn", "A sample picture", "scikit-learn"):
            from sklearn.datasets import load_sample_image
        from PIL import Image

        return Image.fromarray(load_sample_image(SAMPLES[name]))
    uploaded = "Uploads stay for a while only; upload it again." if name.startswith("upload-") else ""
    raise InputError(
        f"The pictures here are {', '.join(SAMPLES)} and what was uploaded, got {name[:40]!r}. {uploaded}".strip()
    )


def picture(source: Sequence[int]) -> Any:
    """The PIL image that a source names."""
    return _picture(bytes(source).decode(errors="replace"))
