"""What a language model with a tokenizer reads: a text, cut into tokens; with a mask in it where the model fills gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from xformer.adapters.adapter import Input, OpenText
from xformer.errors import InputError

BETWEEN = ">>"
"""What stands between the source and the target of an encoder-decoder."""
_LINE_BREAK = "↵"
"""How a line break is typed into a box of one line."""


def cut(tokenizer: Any, *texts: str) -> tuple[int, ...]:
    """The tokens of a text, or of two. Raises `InputError` where the tokenizer cannot cut them."""
    try:
        return tuple(tokenizer(*texts)["input_ids"])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a tokenizer without a token for unknown words; a panic in Rust is no Exception
        raise InputError(f"The model's tokenizer cannot cut this text: {str(error)[:200]}") from error


class TokenizedText(OpenText):
    """A text as a tokenizer cuts it: a token is more than a character, and takes a large model longer."""

    continues: ClassVar[int] = 16

    def __init__(
        self, tokenizer: Any, n_tokens: int, max_len: int, default: str, purposes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.tokenizer, self.n_tokens, self.max_len, self.purposes = tokenizer, n_tokens, max_len, purposes
        self.name = f"{type(self).__name__} {n_tokens}"
        self.does = "Type the beginning of a text; it goes on with it, token by token."
        self.typed = f"A text of up to {max_len:,} tokens. ↵ stands for a new line."
        self.default, self.replacements = default, range(n_tokens)

    def examples(self) -> dict[str, str]:
        return dict(self.purposes)

    def read(self, text: str) -> tuple[int, ...]:
        """The tokens of a text, with whatever special ones the tokenizer puts around it."""
        ids = cut(self.tokenizer, text.replace(_LINE_BREAK, "\n"))
        if not ids:
            raise InputError("This model reads a text, got none; type a word.")
        return ids

    def text(self, source: Sequence[int]) -> str:
        """Special tokens that the tokenizer adds by itself are left out."""
        ids = list(source)
        around = self.tokenizer("")["input_ids"]
        if around and ids[: len(around) - 1] == around[:-1] and ids[-1:] == around[-1:] and len(around) > 1:
            ids = ids[len(around) - 1 : -1]
        elif around and ids[: len(around)] == around:
            ids = ids[len(around) :]
        text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text).replace("\n", _LINE_BREAK)

    def plain(self, tokens: Sequence[int]) -> str:
        """Special tokens are left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def random(self, seed: int) -> str:
        """Arbitrary tokens, said twice: what a head that copies is found with."""
        draw = torch.Generator().manual_seed(seed)
        drawn = torch.randint(0, min(self.n_tokens, len(self.tokenizer)), (60,), generator=draw).tolist()
        special = set(self.tokenizer.all_special_ids)
        kept = [token for token in drawn if token not in special and self.plain([token]).isprintable()]
        kept = [token for token in kept if "\N{REPLACEMENT CHARACTER}" not in self.plain([token])][:12]
        return self.text([*kept, *kept])

    def fitted(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """The end of a text that is too long."""
        return source[-self.max_len :]


class PlainText(TokenizedText):
    """A text that is read as a whole: classified, searched for an answer, or turned into vectors."""

    instead_of_an_answer: ClassVar[str] = "said unchanged"
    goes_on: ClassVar[bool] = False

    def __init__(self, tokenizer: Any, *sizes: Any) -> None:
        super().__init__(tokenizer, *sizes)
        self.does = "Type a text; it says what it makes of it."


class TwoTexts(PlainText):
    """Two texts in one input: a question and where to look for its answer, or two sentences."""

    def __init__(self, tokenizer: Any, n_tokens: int, max_len: int, default: str, *others: Any) -> None:
        super().__init__(tokenizer, n_tokens, max_len, default, *others)
        self.does = (
            f"Type two texts with {BETWEEN} between them, a question and a text with its answer or two sentences."
        )
        self.typed = f"Two texts with {BETWEEN} between them, up to {max_len:,} tokens."

    def read(self, text: str) -> tuple[int, ...]:
        """Both texts, with the special tokens that the tokenizer puts around and between them."""
        first, between, second = text.replace(_LINE_BREAK, "\n").partition(BETWEEN)
        if not between:
            return super().read(text)
        return cut(self.tokenizer, first.strip(), second.strip())

    def text(self, source: Sequence[int]) -> str:
        """Both texts with the sign between them."""
        ids, sep = list(source), self.tokenizer.sep_token_id
        if sep is None or ids.count(sep) < 2:
            return super().text(source)
        at = ids.index(sep)
        return f"{self.plain(ids[:at]).strip()} {BETWEEN} {self.plain(ids[at:]).strip()}"


class TextWithGaps(TokenizedText):
    """A text with masks in it, or without: of a model that sees both sides."""

    instead_of_an_answer: ClassVar[str] = "said unchanged"
    goes_on: ClassVar[bool] = False

    def __init__(self, tokenizer: Any, *sizes: Any) -> None:
        super().__init__(tokenizer, *sizes)
        self.does = f"Type a text with {tokenizer.mask_token} where a word is missing; it says which."


class TextPair(TokenizedText):
    """A source, and after >> a target, which the model writes itself where none is given."""

    instead_of_an_answer: ClassVar[str] = "said unchanged"
    goes_on: ClassVar[bool] = False

    def __init__(self, tokenizer: Any, *sizes: Any) -> None:
        super().__init__(tokenizer, *sizes)
        self.does = f"Type a text; it writes what belongs to it, or reads what you type after {BETWEEN}."

    def read(self, text: str) -> tuple[int, ...]:
        """The source alone: the target is the model's own."""
        return super().read(text.partition(BETWEEN)[0].strip())


class ArgumentsOnly(Input):
    """Sounds, and whatever else cannot be typed: read by the model's own arguments."""

    name = "arguments"
    does = "It reads what cannot be typed; give its arguments by name in Python."
    typed = "Nothing can be typed."
    default = ""
    missing = "Nothing can be typed for this model."

    def __init__(self, model: str, argument: str) -> None:
        self.model, self.argument = model, argument

    def read(self, text: str) -> tuple[int, ...]:
        """Raises `InputError`."""
        what = {"input_features": "sounds", "input_values": "sounds"}.get(self.argument, self.argument)
        raise InputError(f"{self.model} reads {what}; give its arguments by name, {{'{self.argument}': …}}.")

    def text(self, source: Sequence[int]) -> str:
        return ""
