"""Tiny models of the Transformers classes of each family, with arbitrary weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tests.adapters.families import FAMILIES, GPT, GROUPED, IMAGE, SIZES, SPECIAL, TEXT_SIZES, tiny_model
from tests.adapters.test_huggingface import tokenizer
from xformer.adapters.huggingface_opening import example_inputs

Attention = Literal["eager", "sdpa"]
N_LABELS = 5
TEXT, PAIR_TEXT = "the cat sat on the mat", "the cat sat on the mat >> a bird flew"


@dataclass(frozen=True)
class Member:
    """One class of one family: "Bert" and "ForMaskedLM" make BertForMaskedLM."""

    family: str
    head: str
    sizes: dict[str, Any]
    output: str
    """As `HuggingFaceInputs.output`."""

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.family + self.head

    def make(self, attention: Attention = "eager") -> Any:
        """The model in eval mode. Each call gives the same weights."""
        with torch.random.fork_rng():
            return tiny_model(self.name, self.sizes, attention)

    def inputs(self, model: Any) -> dict[str, Tensor]:
        """Arguments of the stock model for a batch of one, longer than the example inputs with which xformer opens it.

        For bidirectional models, the last two positions of a text are padding.
        """
        inputs = {name: value for name, value in example_inputs(model, 31).items() if isinstance(value, Tensor)}
        if "input_ids" in inputs:
            inputs["input_ids"] = torch.cat([inputs["input_ids"][:, :4], inputs["input_ids"]], dim=1)
        if self.reads == "text" and self.output != "similarity" and not self.is_causal:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            inputs["attention_mask"][:, -2:] = 0
        if self.family in ("Bert", "Electra"):  # these distinguish a second sentence
            inputs["token_type_ids"] = (torch.arange(inputs["input_ids"].shape[1]) > 5).long()[None]
        return inputs

    def save(self, path: Path) -> Path:
        """Save the model as it would be published, and return the folder."""
        self.make().save_pretrained(path)
        if self.reads == "text" or self.output in ("similarity", "pair_next_token", "ctc"):
            tokenizer().save_pretrained(path)
        if self.reads == "image" or self.output == "similarity":
            square = dict.fromkeys(("height", "width"), IMAGE["image_size"])
            image = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "size": square, "crop_size": square}
            if self.family == "CLIPVision":  # its type names no processor
                image["image_processor_type"] = "CLIPImageProcessor"
            (path / "preprocessor_config.json").write_text(json.dumps(image))
        return path

    @property
    def reads(self) -> str:
        """The kind of its main input; for a dual encoder, of the first one."""
        return MODALITIES.get(self.family, "text")

    @property
    def is_causal(self) -> bool:
        """Whether its only stack is causal."""
        return self.family in CAUSAL or self.sizes.get("is_decoder", False)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it has an encoder and a decoder."""
        return self.family in PAIRS and self.output != "audio_class" and "Encoder" not in self.head

    @property
    def text(self) -> str:
        """The typed text for models that read only text; "" for others."""
        if (
            self.reads != "text"
            or self.output == "similarity"
            or (self.is_encoder_decoder and self.output == "vectors")
        ):
            return ""
        if self.output == "pair_next_token":
            return PAIR_TEXT
        return f"{TEXT} [EOS]" if self.is_encoder_decoder else TEXT


CAUSAL = {"GPT2", "Llama", "CLIPText"}
PAIRS = {"T5", "Bart", "Whisper"}
MODALITIES = {
    **dict.fromkeys(("ViT", "DeiT", "Dinov2", "CLIPVision", "SiglipVision"), "image"),
    "Wav2Vec2": "sound",
    "Whisper": "spectrogram",
}
CLIP_TEXT = {**SIZES, **SPECIAL, "max_position_embeddings": 16}
DUAL = {"text_config": CLIP_TEXT, "vision_config": IMAGE}
SOUND = {
    **SIZES, "vocab_size": 31, "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
HEADS = {
    "Model": "vectors", "ForMaskedLM": "masked_token", "ForSequenceClassification": "sequence_class",
    "ForTokenClassification": "token_class", "ForQuestionAnswering": "answer_span",
    "ForNextSentencePrediction": "next_sentence", "ForPreTraining": "masked_token", "LMHeadModel": "next_token",
    "ForCausalLM": "next_token", "EncoderModel": "vectors", "ForConditionalGeneration": "pair_next_token",
    "ForImageClassification": "image_class", "ForAudioClassification": "audio_class",
    "ForCTC": "ctc",
}  # fmt: skip
"""The kind of output of a class, by the end of its name."""


def _members(family: str, sizes: dict[str, Any], *heads: str) -> list[Member]:
    """The classes of a family."""
    labels = {head: {"num_labels": N_LABELS} if head.endswith("Classification") else {} for head in heads}
    return [Member(family, head, {**sizes, **labels[head]}, HEADS[head]) for head in heads]


BERT = TEXT_SIZES
ZOO: tuple[Member, ...] = (
    *_members("Bert", BERT, "Model", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering",
              "ForNextSentencePrediction", "ForPreTraining"),
    *_members("Bert", {**BERT, "is_decoder": True}, "LMHeadModel"),
    *_members("DistilBert", FAMILIES["DistilBERT"].sizes, "ForSequenceClassification", "ForTokenClassification"),
    *_members("DebertaV2", FAMILIES["DeBERTa"].sizes, "Model"),
    Member("Electra", "ForPreTraining", {**TEXT_SIZES, "embedding_size": 10}, "token_class"),
    *_members("GPT2", {**GPT, "pad_token_id": 0}, "Model", "LMHeadModel"),
    *_members("Llama", GROUPED, "ForCausalLM", "ForSequenceClassification"),
    *_members("T5", {**FAMILIES["T5"].sizes, **SPECIAL}, "Model", "ForConditionalGeneration", "EncoderModel"),
    *_members("Bart", FAMILIES["BART"].sizes, "ForSequenceClassification"),
    *_members("ViT", IMAGE, "Model", "ForImageClassification"),
    Member("CLIP", "Model", {**DUAL, "projection_dim": 10}, "similarity"),
    Member("CLIPText", "ModelWithProjection", {**CLIP_TEXT, "projection_dim": 10}, "vectors"),
    *_members("DeiT", IMAGE, "ForImageClassification"),
    *_members("CLIPVision", IMAGE, "Model"),
    Member("Siglip", "Model", DUAL, "similarity"),
    *_members("SiglipVision", IMAGE, "Model"),
    *_members("Whisper", {**FAMILIES["Whisper"].sizes, "classifier_proj_size": 10}, "ForConditionalGeneration",
              "ForAudioClassification"),
    *_members("Wav2Vec2", SOUND, "ForCTC"),
)  # fmt: skip
"""Covers each kind of output and each kind of attention."""
