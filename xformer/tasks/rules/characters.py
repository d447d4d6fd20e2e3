"""Characters: predict the next character of a real text.

    decoder            input  c₁ … c_n                   output  c₂ … c_{n+1}       every position has a label
    encoder-decoder    input  c₁ … c_n  and  start c_{n+1} … c_{2n−1}       output  c_{n+1} … c_{2n}

There are no separators and no end token. Windows of `max_len` characters start anywhere in the text, drawn from
(seed, purpose, step). The last 10% of the text is held out.

A typed text is read whole, and its own characters are the labels, except for the last position. An encoder-decoder reads the
first half and generates the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from xformer.errors import InputError
from xformer.tasks import texts
from xformer.tasks.batch import IGNORED
from xformer.tasks.framing import Purpose, Specials, Stream
from xformer.tasks.rules.rule import Answers, Lengths, Rule, Sequences, shown

HELD_OUT = 0.1
"""Fraction of a text, at its end, that is not used in training."""
SIGNS = {"\n": "↵", "\t": "⇥"}
"""Symbols with which control characters are typed and shown."""
SPACE = "·"
"""Symbol with which a space is shown."""
_PHRASES = {
    "… finishes a word": ("The function retur", "What is thy nam", "the"),
    "… continues after a full stop": ("This is an object. ", "I am sorry. ", "a. "),
    "… repeats a phrase": ("the list, the list, the li", "to the king, to the ki", "ab ab a"),
    "… closes quotes and brackets": ('The "class" statement and the "def', "(see section 3", "'tis true, 'ti"),
    "… handles a new line": ("   try:↵      f = open(", "KING RICHARD:↵What", "a↵a"),
    "… has to guess a new word": ("An ", "A ", "a "),
}


class Characters(Rule):
    """answer[i] = the character after i. Symbols 1 … are the alphabet's characters in order."""

    name = "characters"
    verb = "continues"
    instruction = "Type the beginning of a text; the model continues it, character by character."
    score_name = "character before"
    score_meaning = "is on the previous character"
    attention_hint = (
        "Look for a head whose weight lies **one step left of the diagonal**: it gives every position the previous "
        "character. Others may attend to the **beginning of the word**, or to earlier occurrences of the same letters."
    )
    unit = "characters"
    separator = ""
    has_numbers = False
    can_pack = False
    is_open_ended = True
    stalled_above = 2.8  # character frequencies give about 3.2, bigrams 2.5

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self._sign(c, {**SIGNS, " ": SPACE}) for c in self.config.alphabet)

    @property
    def typed_labels(self) -> tuple[str, ...]:
        return tuple(self._sign(c, SIGNS) for c in self.config.alphabet)

    @property
    def typed_example(self) -> str:
        found = next((text for text in ("The list", "the list") if self._reads(text)), "")
        return found or "".join(sorted(self.typed_labels, key=lambda sign: not sign.isalnum())[:2]) * 2

    @property
    def format_hint(self) -> str:
        return f"A text of up to {self.longest_typed} characters, including spaces. ↵ is a new line."

    @property
    def default(self) -> str:
        texts = ("The list of arguments is ", "What is thy name, my lord", "the list of")
        found = next((text for text in texts if self._reads(text)), self.typed_example)
        return found[: self.longest_typed]

    @property
    def no_sample_reason(self) -> str:
        if texts.is_here(self.config.text):
            return ""
        return f"The text it was trained on, {texts.title(self.config.text)}, is not on this machine."

    def examples(self) -> dict[str, str]:
        fits = {
            purpose: next((text for text in phrases if self._reads(text) and len(text) <= self.longest_typed), "")
            for purpose, phrases in _PHRASES.items()
        }
        return {purpose: text for purpose, text in fits.items() if len(text) > 1} or {"… continues": self.default}

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads one half of a text and a decoder generates the other."""
        return self.config.architecture == "encoder-decoder"

    @property
    def longest_typed(self) -> int:
        """The length of a training window in characters."""
        return self.config.max_len * (2 if self.is_encoder_decoder else 1)

    def special_names(self) -> tuple[str, ...]:
        return ("start",) if self.is_encoder_decoder else ()

    def source_length(self, size: int) -> int:
        return 2 * size if self.is_encoder_decoder else size + 1  # one more, as the label of the last character

    def typed_length(self, n: int) -> int:
        return n if self.is_encoder_decoder else n - 1

    def stream_length(self, size: float) -> float:
        return size + 2

    def as_typed(
        self, tokens: Sequences, labels: Sequences, *, is_encoder_decoder: bool
    ) -> tuple[Sequences, Sequences]:
        """Remove the label of the last character; for an encoder-decoder, join both halves."""
        if is_encoder_decoder:
            return torch.cat((tokens, labels), dim=1), labels
        labels = labels.clone()
        labels[:, -1] = IGNORED
        return tokens, labels

    @property
    def probe_size(self) -> int:
        return min(self.config.max_len, 24)

    def sources(self, n: int, *, paired: bool, draw: torch.Generator, purpose: Purpose) -> tuple[Sequences, Lengths]:
        """Draw n windows from the part of the text for this purpose."""
        length = self.source_length(self.config.max_len)
        text, (begin, end) = texts.encoded(self.config.text, self.config.alphabet), self.part(purpose)
        if end - begin < length:
            raise InputError(
                f"The text {texts.title(self.config.text)} has {len(text):,} characters, of which {end - begin:,} are for this "
                f"purpose, and a window of max_len={self.config.max_len} needs {length}; use a longer text or smaller windows."
            )
        first = torch.randint(begin, end - length + 1, (n, 1), generator=draw)
        cells = text[first + torch.arange(length)].long()  # [batch, pos]
        return cells, torch.full((n,), length)

    def part(self, purpose: Purpose) -> tuple[int, int]:
        """Return the start and end of the part of the text for a purpose, in characters."""
        n = len(texts.encoded(self.config.text, self.config.alphabet))
        split = n - round(HELD_OUT * n)
        return (split, n) if purpose in ("held-out", "test") else (0, split)

    def answer(self, source: Sequences, lengths: Lengths) -> Answers:
        # the number of characters without a label
        first = (lengths + 1) // 2 if self.is_encoder_decoder else torch.ones_like(lengths)
        index = first[:, None] + torch.arange(source.shape[1], device=source.device)  # [batch, pos]
        return source.gather(1, index.clamp(max=source.shape[1] - 1)), lengths - first

    def frame(self, source: Sequences, lengths: Lengths, special: Specials) -> tuple[Stream, Stream | None]:
        """Lay out sampled windows, in which every position has a label."""
        answer, n_answer = self.answer(source, lengths)
        if not self.is_encoder_decoder:
            return Stream(source[:, :-1], answer[:, :-1], n_answer), None
        assert special.start is not None
        read = int((lengths.max() + 1) // 2)
        answer = answer[:, : int(n_answer.max())]
        target = torch.nn.functional.pad(answer[:, :-1], (1, 0), value=special.start)  # start c_{n+1} … c_{2n−1}
        return Stream(source[:, :read], source[:, :read], lengths - n_answer), Stream(target, answer, n_answer)

    def frame_typed(self, source: Sequences, lengths: Lengths, special: Specials) -> tuple[Stream, Stream | None]:
        """Lay out typed texts, in which the last character has no label."""
        if self.is_encoder_decoder:
            return self.frame(source, lengths, special)
        return Stream(source, torch.nn.functional.pad(source[:, 1:], (0, 1), value=IGNORED), lengths), None

    def prompt_length(self, n: int) -> int:
        """Return 1: the first character is the prompt, all others are labels."""
        return 1

    def answer_queries(self, n: int) -> range:
        return range(n // 2 if self.is_encoder_decoder else n - 1)

    def read(self, text: str) -> list[int]:
        place = self._places()
        for character in text:
            if character not in place:
                what = f"This model knows {len(self.config.alphabet)} characters"
                raise InputError(f"{what}, and “{shown(character)}” is not one of them; try {self.typed_example}.")
        source = [place[character] for character in text]
        self.check(source)
        return source

    def check(self, source: Sequence[int]) -> None:
        if len(source) < 2:
            raise InputError(f"Type at least two characters, got {len(source)}; for example {self.typed_example}.")

    def remark(self, source: Sequence[int]) -> str:
        if not self.is_encoder_decoder or len(source) == self.longest_typed:
            return ""
        n = self.config.max_len
        trained = f"It was trained to read {n} characters and predict the next {n}"
        return f"{trained}; of these {len(source)} it reads the first half."

    def target_pattern(self, source: Int[Tensor, " pos"]) -> Bool[Tensor, "answer pos"]:
        """Return the character before the query; in an encoder-decoder, the last one of the source."""
        n = len(source)
        if self.is_encoder_decoder:
            wanted = torch.zeros(n // 2, n - n // 2, dtype=torch.bool, device=source.device)
            wanted[:, -1] = True
            return wanted
        return torch.ones(n - 1, n, dtype=torch.bool, device=source.device).tril(-1).triu(-1)

    def _sign(self, character: str, signs: dict[str, str]) -> str:
        sign = signs.get(character, character)
        return character if sign != character and sign in self.config.alphabet else sign

    def _places(self) -> dict[str, int]:
        """Return the token of each character, and of the symbol that represents it unless the alphabet has that symbol."""
        place = {character: 1 + index for index, character in enumerate(self.config.alphabet)}
        signs = {sign: place[character] for character, sign in {**SIGNS, " ": SPACE}.items() if character in place}
        return signs | place

    def _reads(self, text: str) -> bool:
        return set(text) <= set(self._places())
