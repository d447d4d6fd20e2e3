"""What a person may type, and what is said to anything else."""

from __future__ import annotations

import pytest

from tests.training.tiny import tiny_task
from xformer.errors import InputError

TASK = tiny_task(symbols=19, end_token=True)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("3 7 12 9", [3, 7, 12, 9]),
        ("19", [19]),
        ("1,2;3", [1, 2, 3]),
        ("[4, 5, 6]", [4, 5, 6]),
        ("  (7)\t8\n9  ", [7, 8, 9]),
        ("007 1", [7, 1]),
        ("5\u00a06\u30007", [5, 6, 7]),  # spaces that came along with a copied text
        ("1 " * 5000, [1] * 5000),
    ],
)
def test_numbers_are_read(text: str, tokens: list[int]) -> None:
    assert TASK.vocabulary.read(text) == tokens


BAD = {
    "empty": "",
    "blank": "   \n\t ",
    "only brackets": "[()];,",
    "letters": "abc",
    "a letter among numbers": "3 x 5",
    "zero": "3 0 5",
    "the end token": "20",
    "the start token": "21",
    "beyond": "99",
    "negative": "-3",
    "signed": "+3",
    "a fraction": "2.5",
    "an exponent": "1e1",
    "hexadecimal": "0x3",
    "underscores": "1_0",
    "huge digits": "9" * 10_000,
    "a long word": "a" * 10_000,
    "Arabic digits": "٣ ٤",
    "superscript": "3²",
    "full-width digits": "３",
    "a lone surrogate": "3 \ud800 4",
    "a low surrogate": "\udfff",
    "a null": "3 \x00 4",
    "an escape": "3 \x1b[31m 4",
    "right to left": "3 \u202e4",
    "HTML": "<script>alert(1)</script>",
    "an image": '<img src=x onerror="alert(1)">',
    "markdown": "**3** $4$ :smile:",
    "ten thousand numbers and a word": "1 " * 10_000 + "word",
    "emoji": "3 👍",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_anything_else_gets_one_plain_sentence(text: str) -> None:
    with pytest.raises(InputError) as caught:
        TASK.vocabulary.read(text)
    message = str(caught.value)
    assert "from 1 to 19" in message
    assert message.endswith("3 8 13 18.")
    assert len(message) < 160
    assert message.isprintable()
    message.encode()  # a lone surrogate could not be shown


def test_the_example_in_the_sentence_can_be_typed() -> None:
    for symbols in (1, 2, 3, 7, 19, 1000):
        vocabulary = tiny_task(symbols=symbols).vocabulary
        with pytest.raises(InputError) as caught:
            vocabulary.read("?")
        assert len(vocabulary.read(str(caught.value).rpartition("try ")[2].removesuffix("."))) == 4


def test_the_word_that_is_wrong_is_the_one_named() -> None:
    with pytest.raises(InputError, match="“20” is not one"):
        TASK.vocabulary.read("3 19 20 x")


@pytest.mark.parametrize(
    ("architecture", "end_token", "labels"),
    [
        ("encoder", False, ("pad", "1", "2")),
        ("encoder", True, ("pad", "1", "2", "end")),
        ("decoder", False, ("pad", "1", "2", "end", "start")),
        ("encoder-decoder", False, ("pad", "1", "2", "end", "start")),
    ],
)
def test_labels_and_special_tokens(architecture: str, end_token: bool, labels: tuple[str, ...]) -> None:
    vocabulary = tiny_task(architecture, symbols=2, end_token=end_token).vocabulary
    assert vocabulary.labels == labels
    assert len(vocabulary) == len(labels)
    assert vocabulary.special.pad == 0
    assert vocabulary.special.end == (labels.index("end") if "end" in labels else None)
    assert vocabulary.special.start == (labels.index("start") if "start" in labels else None)


def test_text_is_what_read_reads() -> None:
    assert TASK.vocabulary.text([3, 7, 19]) == "3 7 19"
    assert TASK.vocabulary.read(TASK.vocabulary.text([3, 7, 19])) == [3, 7, 19]
    assert TASK.vocabulary.text([0, 1, 20]) == "pad 1 end"
