"""Digits: classify images of handwriting with a vision transformer (Dosovitskiy et al. 2021).

A source is the image's 64 pixels and its digit; only the pixels are input. Its text is "test 17" for the 18th test image, or
"drawn" and the pixels in base 17 without trailing blanks. A drawn image has no known digit, so it has no right answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from xformer.config import MAX_INK
from xformer.errors import InputError
from xformer.tasks.framing import Purpose, rows_of
from xformer.tasks.images import N_TEST, SIDE, digit_images
from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences

N_PIXELS = SIDE**2
UNKNOWN = 0
"""The placeholder digit of a drawn image, never shown."""
_INK = "0123456789abcdefg"
_TEXT = re.compile(rf"(?:drawn ?|[0-9]-)([{_INK}]{{0,{N_PIXELS}}})", re.ASCII)  # "7-…": older links that name the digit
_TEST = re.compile(r"test ([0-9]{1,4})", re.ASCII)


class Digits(Rule):
    """answer = the digit. Ten symbols, the digits; `min_len` = `max_len` = the image's side in pixels."""

    name = "digits"
    verb = "reads"
    instruction = "Draw a digit or choose an image of one; the model recognises it."
    score_name = "ink"
    score_meaning = "goes from the class token to patches with ink"
    attention_hint = (
        "Look at the row of the **class** token: the digit is predicted there, so it has to gather all information from the "
        "patches. Patches can only learn from each other which stroke they belong to."
    )
    unit = "pixels per side"
    has_numbers = False
    sample_text = "test 0"
    initial_text = ""
    accepted_text = f"A test image, “test 0” to “test {N_TEST - 1}”, or drawn pixels, “drawn 00d9…”."
    is_image = True
    library_bytes = 200 * 10**6  # scikit-learn, which provides the images

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.config.symbols)))

    @property
    def n_held_out(self) -> int | None:
        return N_TEST

    def examples(self) -> dict[str, str]:
        _, test = digit_images()
        firsts = [int((test.digits == digit).nonzero()[0, 0]) for digit in range(self.config.symbols)]
        upside_down = test.sources[firsts[7]].tolist()
        return {
            "… reads a clear seven": f"test {firsts[7]}",
            "… tells an eight from a three": f"test {firsts[8]}",
            "… reads a seven upside down": self.source_text([*upside_down[:-1][::-1], UNKNOWN]) or "",
            "… reads an empty page": "drawn",
            "… reads a page full of ink": "drawn " + _INK[MAX_INK] * N_PIXELS,
        }

    def source_length(self, size: int) -> int:
        return N_PIXELS + 1

    def size(self, source: Sequence[int]) -> int:
        return SIDE

    def stream_length(self, size: float) -> float:
        return 1 + (SIDE // self.config.patch) ** 2

    def about_causal_mask(self, source: Sequence[int]) -> str:
        return "the class token comes first, so it then sees only itself and nothing of the image."

    def answer_length(self, n: int) -> int:
        return 1

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        """Draw n images of the training or of the test part, see `rows_of`."""
        images = digit_images()[0 if purpose == "train" else 1]
        return rows_of(images.sources, n, purpose=purpose, draw=draw), torch.full((n,), N_PIXELS + 1)

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        return source[:, -1:], torch.ones_like(lengths)

    def read(self, text: str) -> list[int]:
        words = text.strip()
        if match := _TEST.fullmatch(words):
            if int(match[1]) >= N_TEST:
                raise InputError(f"The test images are 0 to {N_TEST - 1}, got {int(match[1])}; for example test 17.")
            return digit_images()[1].sources[int(match[1])].tolist()
        if match := _TEXT.fullmatch(words):
            pixels = [_INK.index(letter) for letter in match[1]]
            pixels += [0] * (N_PIXELS - len(pixels))
            same = (digit_images()[1].pixels == torch.tensor(pixels)).all(dim=1).nonzero()
            return digit_images()[1].sources[int(same[0, 0])].tolist() if len(same) else [*pixels, UNKNOWN]
        raise InputError(
            f"This model reads images of digits; choose one, draw one, or type one, for example {self.default}."
        )

    def test_number(self, source: Sequence[int]) -> int | None:
        """Return the number of a test image, or None for another image."""
        same = (digit_images()[1].sources == torch.tensor(list(source))).all(dim=1).nonzero()
        return int(same[0, 0]) if len(same) else None

    def source_text(self, source: Sequence[int]) -> str | None:
        """Return the text of an image: a test image by number, any other by its pixels."""
        if len(source) != N_PIXELS + 1:
            return None  # an answer
        if (number := self.test_number(source)) is not None:
            return f"test {number}"
        return f"drawn {''.join(_INK[ink] for ink in source[:-1]).rstrip('0')}".rstrip()

    def has_right_answer(self, source: Sequence[int]) -> bool:
        """Return whether the image is a test image."""
        return self.test_number(source) is not None

    def check(self, source: Sequence[int]) -> None:
        if len(source) != N_PIXELS + 1 or not all(0 <= ink <= MAX_INK for ink in source[:-1]):
            raise InputError(
                f"An image has {N_PIXELS} pixels from 0 to {MAX_INK}, and then the digit that it is, got {len(source)} "
                "numbers; for example [0] * 64 + [7]."
            )
        if not 0 <= source[-1] < self.config.symbols:
            raise InputError(f"An image shows a digit from 0 to 9, got {source[-1]}; for example 7.")

    def remark(self, source: Sequence[int]) -> str:
        ink = sum(source[:-1]) / N_PIXELS
        return "" if 2 <= ink <= 8 else f"{ink:.1f} of {MAX_INK} ink per pixel; training images have about 5."

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "1 patch"]:
        """Return True for the patches with ink."""
        side = SIDE // self.config.patch
        grid = source[:N_PIXELS].view(side, self.config.patch, side, self.config.patch)  # [row, y, column, x]
        return (grid > 0).any(dim=3).any(dim=1).flatten()[None]

    def head_score(
        self, pattern: Float[Tensor, "head query key"], source: Sequence[int], queries: Sequence[int]
    ) -> Float[Tensor, " head"]:
        """Return the fraction of the class token's attention on patches with ink."""
        inked = self.target_pattern(torch.tensor(list(source), device=pattern.device))[0]  # [patch]
        return pattern[:, 0, 1:][:, inked].sum(dim=-1)
