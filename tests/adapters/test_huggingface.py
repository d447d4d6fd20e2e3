"""Language models from a folder: text, tokens, and the reference at each output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import xformer
from tests.adapters.families import FAMILIES
from xformer.adapters.huggingface import HuggingFaceModel
from xformer.adapters.inputs import readable
from xformer.errors import CheckpointError, InputError, ModelFileError

WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "[MASK]", "the", "cat", "sat", "on", "mat", "dog"]
WORDS += ["saw", "a", "bird", "and", "then", "it", "flew"]


def tokenizer() -> Any:
    """A tokenizer that splits text at spaces and gives special tokens the ids that the tiny models use."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "bos", "eos", "unk", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def folder_of(name: str, path: Path) -> Path:
    """Save a tiny model of a family with its tokenizer, and return the folder."""
    FAMILIES[name].make().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def test_a_folder_is_read_like_a_checkpoint(tmp_path: Path) -> None:
    reading = xformer.read(folder_of("Llama", tmp_path / "tiny-llama"), "the cat sat on the mat")
    stock = FAMILIES["Llama"].make()
    ids = torch.tensor([[5, 6, 7, 8, 5, 9]])
    with torch.no_grad():
        assert torch.allclose(reading.logits, stock(input_ids=ids).logits, rtol=0, atol=1e-5)
    assert reading.tokens == ("the", "cat", "sat", "on", "the", "mat")
    assert reading.answers == ("cat", "sat", "on", "the", "mat")
    assert reading.answer_name == "actual next token"
    assert not reading.has_right_answer
    assert reading.loss == pytest.approx(stock(input_ids=ids, labels=ids).loss.item(), abs=1e-5)
    assert str(reading.code) == f"xformer.read({str(tmp_path / 'tiny-llama')!r}, 'the cat sat on the mat')"


def test_generation_with_a_cache_equals_full_runs(tmp_path: Path) -> None:
    reading = xformer.read(folder_of("Llama", tmp_path / "tiny"), "the cat sat")
    stock, ids = FAMILIES["Llama"].make(), [5, 6, 7]
    for step in reading.adapter.steps(reading.example, 5):
        with torch.no_grad():
            probabilities = stock(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].softmax(dim=-1)
        assert torch.allclose(step.probabilities, probabilities, rtol=0, atol=1e-5)
        ids.append(int(probabilities.argmax()))
        assert step.token == ids[-1]
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        reading.adapter.steps(reading.example, 5, temprature=2.0)  # type: ignore[call-arg]


def test_a_masked_model_predicts_the_masked_tokens() -> None:
    reading = xformer.read(FAMILIES["BERT"].make(), "the [MASK] sat on the [MASK]", tokenizer=tokenizer())
    assert reading.target_positions == (1, 5)
    assert reading.predicted == reading.answer == tuple(reading.logits[0, [1, 5]].argmax(-1).tolist())
    assert reading.answer_name == "unchanged prediction"
    whole = xformer.read(FAMILIES["BERT"].make(), "the cat sat", tokenizer=tokenizer())
    assert whole.answers == ("the", "cat", "sat")


def test_an_encoder_decoder_generates_a_target_or_reads_the_given_one() -> None:
    model = FAMILIES["BART"].make()
    own = xformer.read(model, "the cat sat", tokenizer=tokenizer())
    assert own.predicted == own.answer
    assert own.ids("decoder")[0] == 2
    given = xformer.read(model, "the cat sat >> a bird", tokenizer=tokenizer())
    assert given.answers == ("a", "bird")
    assert given.tokens_of("encoder") == ("the", "cat", "sat")
    assert given.tokens_of("decoder") == ("[EOS]", "a")


def test_an_invalid_decoder_start_token_is_rejected() -> None:
    model = FAMILIES["T5"].make()
    for wrong in ("../../etc/passwd", -3, 2**31, [2]):
        model.config.decoder_start_token_id = wrong
        with pytest.raises(InputError, match="decoder_start_token_id must be an id from 0 to 96, like 0, got"):
            xformer.read(model, "the cat sat", tokenizer=tokenizer())


def test_a_translator_may_have_a_smaller_target_vocabulary() -> None:
    from transformers import FSMTConfig, FSMTForConditionalGeneration

    config = FSMTConfig(
        langs=["en", "de"], src_vocab_size=61, tgt_vocab_size=13, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8,
    )  # fmt: skip
    model = FSMTForConditionalGeneration(config).eval()
    assert xformer.read(model, ([50, 60, 4], [2, 5, 12])).logits.shape == (1, 3, 13)
    tokens = torch.tensor([[50, 60, 4]])
    for typed in (([50, 60, 4], [2, 13]), {"input_ids": tokens, "decoder_input_ids": torch.tensor([[2, 13]])}):
        with pytest.raises(InputError, match="range from 0 to 12, got 13"):
            xformer.read(model, typed)
    assert xformer.diagnose(model, checks=["determinism"]).ok


def test_an_empty_or_too_long_text_is_rejected() -> None:
    model = FAMILIES["GPT-2"].make()
    for typed, sentence in (("", "got none"), ("the " * 65, "reads 1 to 64 tokens, got 65")):
        with pytest.raises(InputError, match=sentence):
            xformer.read(model, typed, tokenizer=tokenizer())


def test_an_invalid_folder_is_rejected_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelFileError, match="There are no weights"):
        xformer.read(tmp_path, "the cat")
    folder = folder_of("Llama", tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "no-such-family"}))
    with pytest.raises(CheckpointError, match="cannot be opened"):
        xformer.read(folder, "the cat")


def test_unembedding_the_final_stream_state_gives_the_logits() -> None:
    for name in ("Gemma2", "Granite", "BERT", "BART"):
        model = HuggingFaceModel.open(FAMILIES[name].make(), tokenizer(), name)
        reading = xformer.read(model, "the cat sat >> a bird" if model.shape.is_encoder_decoder else "the cat sat")
        last = reading.attention[-1]
        found = model.unembed(reading[f"{last.stack}.{last.layer}.resid_post"])
        assert torch.allclose(found, reading.logits, rtol=0, atol=1e-4), name


def test_tokens_are_shown_in_readable_form() -> None:
    for vocabulary, shown in (
        (["ĠMary", "Ċ", "Ã©", "â", "<|endoftext|>"], ("·Mary", "↵", "é", "‹e2›", "<|endoftext|>")),
        (["▁Mary", "<0x0A>", "<0xE2>", "é"], ("·Mary", "↵", "‹e2›", "é")),
        (["the", "##ing"], ("the", "##ing")),
    ):
        assert readable(vocabulary) == shown


@pytest.mark.parametrize(
    ("inputs", "rows"),
    [
        ((torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 8]])), [([5, 6, 7, 8], [9, 8])]),
        (([[5, 6, 7, 8]], [[9, 8]]), [([5, 6, 7, 8], [9, 8])]),
        ((torch.tensor([[5, 6], [7, 8]]), torch.tensor([[9, 8], [7, 6]])), [([5, 6], [9, 8]), ([7, 8], [7, 6])]),
        (([[5, 6, 7], [8]], [[9], [8, 7]]), [([5, 6, 7], [9]), ([8], [8, 7])]),
        ([(torch.tensor([[5, 6]]), torch.tensor([[9, 8]]))], [([5, 6], [9, 8])]),
    ],
)
def test_sources_and_targets_are_given_as_rows_of_ids(inputs: Any, rows: list[tuple[list[int], list[int]]]) -> None:
    reading, model = xformer.read(FAMILIES["T5"].make(), inputs), FAMILIES["T5"].make()
    for at, (source, target) in enumerate(rows):
        with torch.no_grad():
            stock = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[0, *target[:-1]]])).logits
        assert torch.allclose(reading.logits[at, : len(target)], stock[0], rtol=0, atol=1e-4)
        assert reading.one(at).answer == tuple(target)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ((torch.tensor([[5, 6], [7, 8]]), torch.tensor([[9, 8]])), "one target for each source, got 2 and 1"),
        ((torch.tensor([[5.0, 6.0]]), torch.tensor([[9, 8]])), "Token ids are whole numbers"),
        (([5, 6.5], [7]), "Token ids are whole numbers"),
        (([[[5, 6], [7, 8]]], [[9]]), "Token ids are whole numbers"),
    ],
)
def test_other_pairs_are_refused(inputs: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        xformer.read(FAMILIES["T5"].make(), inputs)


def test_special_tokens_that_a_text_already_has_are_not_added_again() -> None:
    from tokenizers import processors

    words, model = tokenizer(), FAMILIES["Llama"].make()
    special = [("[BOS]", 1), ("[EOS]", 2)]
    both = processors.TemplateProcessing(single="[BOS] $A [EOS]", special_tokens=special)
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=special)
    words.chat_template = "{{ bos_token }} {{ messages[0]['content'] }}"
    chat = words.apply_chat_template([{"role": "user", "content": "the cat sat"}], tokenize=False)
    assert xformer.read(model, chat, tokenizer=words).tokens == ("[BOS]", "the", "cat", "sat")
    assert xformer.read(model, "the cat sat", tokenizer=words).tokens == ("[BOS]", "the", "cat", "sat")
    assert xformer.read(model, "[BOS] [BOS] the", tokenizer=words).tokens == ("[BOS]", "[BOS]", "the")
    words.backend_tokenizer.post_processor = both
    assert xformer.read(model, "[BOS] the cat [EOS]", tokenizer=words).tokens == ("[BOS]", "the", "cat", "[EOS]")
    assert xformer.read(model, "", tokenizer=words).tokens == ("[BOS]", "[EOS]")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # from PEFT itself
def test_the_folder_of_an_adapter_is_refused_by_name(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft", reason="peft is not installed: its models were NOT tested")
    peft.get_peft_model(FAMILIES["Llama"].make(), peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(
        tmp_path
    )
    with pytest.raises(ModelFileError, match="holds an adapter for another model"):
        xformer.read(tmp_path, [5, 6, 7])
