"""Characters: windows of the text, the split, the alphabet, invalid texts, and generation past the window."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.at_work import failing_with
from tests.training.tiny import tiny_model
from xformer.config import TaskConfig
from xformer.decoding import MAX_TOKENS, Sampling, continue_text
from xformer.errors import ConfigError, InputError
from xformer.model import Transformer
from xformer.presets import preset
from xformer.tasks import Task, texts
from xformer.tasks.batch import IGNORED

LINE = "Grüße, *Wörld* <b>$x$</b> · 100 %\tend\n"
TEXT = "".join(f"{number}: {LINE}" for number in range(60)) + "Finis."  # no window occurs twice at either end


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store an uploaded text in a temporary folder."""
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path / "data"))
    texts.read.cache_clear()
    texts.encoded.cache_clear()
    return texts.keep(TEXT.encode())


def of(text: str, architecture: str = "decoder", context: int = 7, alphabet: str | None = None, **more: Any) -> Task:
    alphabet = texts.alphabet_of(TEXT) if alphabet is None else alphabet
    values = {"text": text, "alphabet": alphabet, "symbols": len(alphabet), "min_len": context, "max_len": context}
    return Task(TaskConfig(name="characters", architecture=architecture, **(values | more)))


def text_of(task: Task, tokens: list[int]) -> str:
    return "".join(task.config.alphabet[token - 1] for token in tokens)


def random_characters(architecture: str = "decoder", context: int = 7) -> tuple[Task, Transformer]:
    alphabet = "abcdefghij"
    task = of("python", architecture, context, alphabet)
    sizes = {"n_layers": 2, "norm": "pre", "positions": "learned", "embed_std": 1.0, "init_scale": 2.0}
    return task, Transformer(tiny_model(task, max_len=context, **sizes), torch.Generator().manual_seed(5)).eval()


# The text and its windows.


def test_windows_are_substrings_and_labels_the_next_characters(name: str) -> None:
    task = of(name)
    batch = task.sample(23, seed=3, steps=2, purpose="train")
    assert batch.tokens.shape == batch.labels.shape == (46, 7)
    assert batch.layout.segments is None
    assert torch.equal(batch.labels[:, :-1], batch.tokens[:, 1:])
    windows = {text_of(task, row) for row in torch.cat((batch.tokens, batch.labels[:, -1:]), dim=1).tolist()}
    assert all(window in TEXT for window in windows)
    assert len(windows) > 20
    again, other = (task.sample(23, seed=seed, steps=2, purpose="train").tokens for seed in (3, 4))
    assert torch.equal(again, batch.tokens)
    assert not torch.equal(other, batch.tokens)


def test_training_does_not_use_held_out_characters(name: str) -> None:
    task = of(name, context=11)
    split = len(TEXT) - round(0.1 * len(TEXT))
    parts = {purpose: task.rule.part(purpose) for purpose in ("train", "held-out", "test")}
    assert parts == {"train": (0, split), "held-out": (split, len(TEXT)), "test": (split, len(TEXT))}
    seen = {}
    for purpose in parts:
        cells, _ = task.rule.sources(3000, paired=False, draw=torch.Generator().manual_seed(1), purpose=purpose)
        seen[purpose] = {text_of(task, row) for row in cells.tolist()}
    windows = lambda text: {text[at : at + 12] for at in range(len(text) - 11)}  # noqa: E731
    assert seen["train"] <= windows(TEXT[:split])
    assert seen["held-out"] == seen["test"] == windows(TEXT[split:])  # all of them, including the first and the last


def test_an_encoder_decoder_reads_one_window_and_predicts_the_next(name: str) -> None:
    task = of(name, "encoder-decoder", context=5)
    batch = task.sample(17, seed=1)
    assert batch.target is not None
    start = task.vocabulary.special.start
    assert task.vocabulary.special.end is None
    for tokens, target, labels in zip(batch.tokens.tolist(), batch.target.tolist(), batch.labels.tolist(), strict=True):
        assert len(tokens) == len(labels) == 5
        assert text_of(task, tokens + labels) in TEXT
        assert target == [start, *labels[:-1]]
    example = task.example(task.vocabulary.read("0: Grüß"))
    assert (text_of(task, example.tokens[0].tolist()), text_of(task, example.labels[0].tolist())) == ("0: G", "rüß")
    assert task.answer(list(example.source)) == example.labels[0].tolist()


def test_typed_text_has_labels_at_all_positions_but_the_last(name: str) -> None:
    task = of(name)
    source = task.vocabulary.read("Grüße")
    example = task.example(source, max_len=7)
    assert example.input_ids.tolist() == [source]
    assert example.labels.tolist() == [[*source[1:], IGNORED]]
    assert task.answer(source) == source[1:]
    with pytest.raises(InputError, match=r"reads at most 7 tokens, and these 8 characters need 8"):
        task.example(source + source[:3], max_len=7)


def test_the_head_score_is_the_weight_on_the_previous_character(name: str) -> None:
    task = of(name)
    pattern = torch.zeros(1, 4, 4)
    pattern[0, 0, 0] = 1.0  # the first has no previous character and does not count
    pattern[0, 1, 0], pattern[0, 2, 1], pattern[0, 2, 2], pattern[0, 3, 2] = 0.75, 0.25, 0.75, 1.0
    source = task.vocabulary.read("Wörl")
    assert task.rule.head_score(pattern, source, task.answer_queries(4)).tolist() == [0.5]


# The alphabet, and typed texts.


def test_text_in_a_link_round_trips() -> None:
    """This holds even if the symbol that represents another character is itself in the alphabet."""
    for text in ("  two  ", "a\nb", "tab\tbed", "*b* <b> $x$ _` ä", "a\n ↵·", "· \n↵"):
        task = of("python", alphabet="".join(sorted(set(text) | set("xyz"))))
        tokens = task.vocabulary.read(text)
        assert text_of(task, tokens) == text
        shown = task.vocabulary.text(tokens)
        assert not {"\n", "\t"} & set(shown) or "↵" in text
        assert task.vocabulary.read(shown) == tokens
        assert len(set(task.vocabulary.labels)) == len(task.vocabulary.labels)
    plain = of("python", alphabet="a\n ")
    assert text_of(plain, plain.vocabulary.read("a·a↵a")) == "a a\na"
    assert plain.vocabulary.labels == ("pad", "a", "↵", "·")


UNKNOWN = r"^This model knows 3 characters, and “.” is not one of them; try .*\.$"


@pytest.mark.parametrize(
    ("typed", "words"),
    [("aé", UNKNOWN), ("a\x00b", UNKNOWN), ("a\ud800", UNKNOWN), ("a<script>", UNKNOWN), ("", "got 0"), ("a", "got 1")],
)
def test_unknown_characters_and_too_short_texts_are_refused(typed: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        of("python", alphabet="ab ").vocabulary.read(typed)


def test_every_example_input_can_be_read() -> None:
    presets = [preset(one) for one in ("characters", "characters-shakespeare", "tutorial-seq2seq")]
    tasks = [(Task(one.task), one.model.max_len) for one in presets]
    for task, max_len in [*tasks, (of("python", alphabet="ЖД"), 7)]:
        for text in (task.rule.default, task.rule.typed_example, *task.rule.examples().values()):
            task.example(task.vocabulary.read(text), max_len=max_len)
    assert [len(task.rule.examples()) for task, _ in tasks] == [6, 6, 6]


# Invalid settings and texts.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text": "/etc/passwd"}, "text must be 'python', 'shakespeare' or"),
        ({"alphabet": "a", "symbols": 2}, "from 2 to 4,096 characters, got 1"),
        ({"alphabet": "a\ud800b", "symbols": 3}, "not contain control characters"),
        ({"min_len": 3}, "min_len must be max_len, got min_len=3 and max_len=7"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    config = of("python", alphabet="abc").config
    with pytest.raises(ConfigError, match=re.escape(words)):
        config.replace(**changes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"short", "at least 1,000 characters, and this has 5"),
        (b"x" * 2000 + b"\xff", "not UTF-8 text: byte 2,000 is invalid"),
        (b"x" * (8 * 1024**2 + 1), "at most 8 MB"),
        ("".join(map(chr, range(0x4E00, 0x4E00 + 4097))).encode(), "4,097 different characters, and at most 4,096"),
        (b"\x00" * 5000, "at least 1,000 characters, and this has 0"),
    ],
)
def test_invalid_texts_are_refused(content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XFORMER_DATA", str(tmp_path))
    with pytest.raises(InputError, match=re.escape(words)):
        texts.keep(content)
    assert not list(tmp_path.iterdir())


def test_a_text_is_stored_under_its_hash_with_normalised_newlines(name: str) -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", name)
    assert texts.read(name) == TEXT
    assert texts.keep(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode()) == name
    assert [path.name for path in texts.folder().iterdir()] == [f"{name}.txt"]


def test_texts_are_limited_to_their_share_of_the_disk_quota(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size, runs = texts.path_of(name).stat().st_size, texts.folder().parent / "runs"
    monkeypatch.setenv("XFORMER_RUNS", str(runs))
    monkeypatch.setenv("XFORMER_MAX_DISK", str(4 * (3 * size + 10)))
    more = [TEXT.replace("Finis", f"{number:05d}").encode() for number in range(3)]
    texts.keep(more[0])
    texts.keep(more[1])
    with pytest.raises(InputError, match=r"This text takes .* Texts on this server .* allowed; the server.s operator"):
        texts.keep(more[2])
    texts.keep(more[0])  # already stored
    assert len(list(texts.folder().iterdir())) == 3


def test_a_full_disk_raises_a_clear_error_and_leaves_no_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing_with(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(InputError, match=r"^The text could not be saved: No space left on device\.$"):
        texts.keep(TEXT.replace("Finis", "Other").encode())
    assert [path.stem for path in texts.folder().iterdir()] == [name]


def test_a_model_works_without_its_text_but_cannot_be_trained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(preset("characters-shakespeare").task)
    assert task.rule.no_sample_reason
    assert not of(name).rule.no_sample_reason
    words = r"^The text tiny Shakespeare is not on this machine; download it, or put it at .*\.$"
    with pytest.raises(InputError, match=words):
        task.draw(0)
    task.example(task.vocabulary.read(task.rule.default))
    monkeypatch.setattr(texts.urllib.request, "urlopen", failing_with(OSError("Network is unreachable")))
    words = r"could not be downloaded \(Network is unreachable\); without a network, put it at"
    with pytest.raises(InputError, match=words):
        texts.download_shakespeare()


def test_a_text_shorter_than_a_window_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"a window of max_len=999 needs 1000; use a longer text or smaller windows"):
        of(name, context=999).sample(1, seed=0)


# Generation and scores.


def test_generation_past_the_window_equals_a_loop_over_the_last_tokens() -> None:
    _, model = random_characters()
    prompt = [1, 4, 7, 10]
    tokens = list(prompt)
    for _ in range(20):
        with torch.no_grad():
            logits = model(torch.tensor([tokens[-7:]]))[0, -1]
        tokens.append(int(logits.argmax()))
    steps = list(continue_text(model, prompt, 20))
    assert [step.token for step in steps] == tokens[4:]
    assert [step.position for step in steps] == list(range(20))
    assert len(set(tokens[4:])) > 2  # the output varies, so that a wrong window would be detected
    last = steps[-1].trace()
    assert last["embed"].shape[1] == 7
    assert last.logits[0, -1].argmax() == steps[-1].token


def test_an_encoder_decoder_generates_window_by_window() -> None:
    task, model = random_characters("encoder-decoder", context=5)
    start: Any = task.vocabulary.special.start
    tokens = [3, 1, 4, 1, 5, 9, 2]
    said_so_far: list[int] = []
    while len(said_so_far) < 13:
        source, target = torch.tensor([tokens[-5:]]), [start]
        for _ in range(5):
            with torch.no_grad():
                target.append(int(model(source, torch.tensor([target]))[0, -1].argmax()))
        tokens, said_so_far = tokens + target[1:], said_so_far + target[1:]
    assert [step.token for step in continue_text(model, [3, 1, 4, 1, 5, 9, 2], 13)] == said_so_far[:13]


def test_generation_is_bounded_and_uses_its_generator() -> None:
    _, model = random_characters()

    def draw(seed: int) -> list[int]:
        how = {"sampling": Sampling(temperature=2.0), "generator": torch.Generator().manual_seed(seed)}
        return [step.token for step in continue_text(model, [1, 2], 30, **how)]

    assert draw(1) == draw(1) != draw(2)
    for n in (-1, MAX_TOKENS + 1):
        with pytest.raises(InputError, match=f"from 0 to 10,000 tokens, got {n}"):
            continue_text(model, [1], n)
    with pytest.raises(InputError, match="at least one token"):
        continue_text(model, [], 3)
