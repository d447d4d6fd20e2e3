"""Tiny saved models of the classes that the Transformers library has for each family, with arbitrary weights."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tests.adapters.families import FAMILIES, SIZES, SPECIAL
from tests.adapters.test_huggingface import tokenizer

Output = Literal[
    "next_token", "masked_token", "sequence_class", "token_class", "answer_span", "next_sentence", "image_class",
    "audio_class", "vectors", "similarity", "pair_next_token", "ctc",
]  # fmt: skip
"""What a model produces."""
Attention = Literal["eager", "sdpa"]
Modality = Literal["text", "image", "sound", "spectrogram"]
N_LABELS = 5
N_SOURCE, N_TARGET = 13, 5
"""Lengths of the inputs, unlike those that the library draws to try a model."""
TEXT, PAIR_TEXT = "the cat sat on the mat", "the cat sat on the mat >> a bird flew"


@dataclass(frozen=True)
class Member:
    """One class of one family."""

    name: str
    class_name: str
    config_name: str
    sizes: dict[str, Any]
    output: Output

    def make(self, attention: Attention = "eager") -> Any:
        """The model in eval mode; each call gives the same weights."""
        import transformers

        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            config = getattr(transformers, self.config_name)(**self.sizes, attn_implementation=attention)
            model = getattr(transformers, self.class_name)(config).eval()
            for weight in model.parameters():
                if weight.dim() > 1 and weight.requires_grad:  # sine tables stay, as a load makes them anew
                    weight.data.normal_(0, 0.2)
        return model

    def inputs(self, model: Any) -> dict[str, Tensor]:
        """Arguments of the stock model, a batch of one. An encoder of text has two places that are only padding."""
        config, draw = model.config, torch.Generator().manual_seed(31)
        main = "input_values" if self.reads == "sound" else model.main_input_name
        if self.output == "similarity":
            vision = config.vision_config
            image = torch.rand(1, 3, vision.image_size, vision.image_size, generator=draw)
            return {"input_ids": _tokens(7, draw), "pixel_values": image}
        if self.reads == "image":
            vision = getattr(config, "vision_config", config)
            return {main: torch.rand(1, 3, vision.image_size, vision.image_size, generator=draw)}
        if self.reads == "sound":
            return {main: torch.randn(1, 389, generator=draw)}
        if self.reads == "spectrogram":
            inputs = {main: torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions, generator=draw)}
            return inputs if self.output == "audio_class" else {**inputs, "decoder_input_ids": _tokens(N_TARGET, draw)}
        inputs = {main: _tokens(N_SOURCE, draw)}
        if not self.is_causal:
            inputs["attention_mask"] = torch.tensor([[1] * (N_SOURCE - 2) + [0, 0]])
        if self.reads_segments:
            inputs["token_type_ids"] = torch.tensor([[0] * 6 + [1] * (N_SOURCE - 6)])
        if config.is_encoder_decoder:
            if self.output == "sequence_class":  # which ends with its end token, and makes its own target of it
                inputs[main][0, N_SOURCE - 3] = config.eos_token_id
            else:
                inputs["decoder_input_ids"] = _tokens(N_TARGET, draw)
        return inputs

    def save(self, path: Path) -> Path:
        """A folder as it would be published."""
        self.make().save_pretrained(path)
        if self.reads == "text" or self.output in ("similarity", "pair_next_token", "ctc"):
            tokenizer().save_pretrained(path)
        if self.reads == "image" or self.output == "similarity":
            side = self.sizes.get("vision_config", self.sizes)["image_size"]
            square = {"height": side, "width": side}
            image = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "size": square, "crop_size": square}
            (path / "preprocessor_config.json").write_text(json.dumps(image))
        return path

    @property
    def reads(self) -> Modality:
        """What its main input is; of a dual encoder, its first one."""
        return MODALITIES.get(self.config_name, "text")

    @property
    def is_causal(self) -> bool:
        """Whether no position of its only stack sees a later one."""
        return self.config_name in CAUSAL or self.sizes.get("is_decoder", False)

    @property
    def is_pair(self) -> bool:
        """Whether it has an encoder and a decoder."""
        return self.config_name in PAIRS and self.output != "audio_class" and "Encoder" not in self.class_name

    @property
    def reads_segments(self) -> bool:
        """Whether the model distinguishes a second sentence from the first."""
        return self.config_name in ("BertConfig", "AlbertConfig", "ElectraConfig")

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention implementations that its family has."""
        return ("eager",) if self.config_name in ONLY_EAGER else ("eager", "sdpa")

    @property
    def text(self) -> str:
        """What is typed for a folder that reads text alone; "" for others."""
        if self.reads != "text" or self.output == "similarity" or (self.is_pair and self.output == "vectors"):
            return ""
        if self.output == "pair_next_token":
            return PAIR_TEXT
        return f"{TEXT} [EOS]" if self.is_pair else TEXT


def _tokens(n: int, draw: torch.Generator) -> Tensor:
    """Tokens [1, pos] with no special ones among them."""
    return torch.randint(11, 97, (1, n), generator=draw)


CAUSAL = {"GPT2Config", "LlamaConfig", "Qwen3Config", "MistralConfig", "CLIPTextConfig"}
PAIRS = {"T5Config", "BartConfig", "MarianConfig", "WhisperConfig"}
ONLY_EAGER = {"DebertaV2Config", "MPNetConfig"}
MODALITIES: dict[str, Modality] = {
    "ViTConfig": "image", "DeiTConfig": "image", "Dinov2Config": "image", "CLIPVisionConfig": "image",
    "SiglipVisionConfig": "image", "Wav2Vec2Config": "sound", "WhisperConfig": "spectrogram",
}  # fmt: skip
IMAGE = {"image_size": 12, "patch_size": 4, "hidden_size": 24, "intermediate_size": 44, "num_hidden_layers": 2,
         "num_attention_heads": 6}  # fmt: skip
CLIP_TEXT = {**SIZES, **SPECIAL, "max_position_embeddings": 16}
DUAL = {"text_config": CLIP_TEXT, "vision_config": IMAGE}
SOUND = {
    "vocab_size": 31, "hidden_size": 24, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6,
    "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
HEADS: dict[str, Output] = {
    "Model": "vectors", "ForMaskedLM": "masked_token", "ForSequenceClassification": "sequence_class",
    "ForTokenClassification": "token_class", "ForQuestionAnswering": "answer_span",
    "ForNextSentencePrediction": "next_sentence", "ForPreTraining": "masked_token", "LMHeadModel": "next_token",
    "ForCausalLM": "next_token", "EncoderModel": "vectors", "ForConditionalGeneration": "pair_next_token",
    "MTModel": "pair_next_token", "ForImageClassification": "image_class", "ForAudioClassification": "audio_class",
    "ForCTC": "ctc",
}  # fmt: skip
"""What a class produces, by the end of its name."""


def _members(family: str, config: str, sizes: dict[str, Any], *heads: str) -> list[Member]:
    """The classes of a family whose names begin alike."""
    labels = {head: {"num_labels": N_LABELS} if head.endswith("Classification") else {} for head in heads}
    return [Member(family + head, family + head, config, {**sizes, **labels[head]}, HEADS[head]) for head in heads]


BERT = FAMILIES["BERT"].sizes
T5 = {**FAMILIES["T5"].sizes, **SPECIAL}
ZOO: tuple[Member, ...] = (
    *_members("Bert", "BertConfig", BERT, "Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification",
              "ForQuestionAnswering", "ForNextSentencePrediction", "ForPreTraining"),
    *_members("Bert", "BertConfig", {**BERT, "is_decoder": True}, "LMHeadModel"),
    *_members("DistilBert", "DistilBertConfig", FAMILIES["DistilBERT"].sizes, "Model", "ForMaskedLM",
              "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    *_members("Roberta", "RobertaConfig", FAMILIES["RoBERTa"].sizes, "Model", "ForMaskedLM",
              "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    *_members("Albert", "AlbertConfig", FAMILIES["ALBERT"].sizes, "Model", "ForMaskedLM", "ForSequenceClassification"),
    *_members("DebertaV2", "DebertaV2Config", FAMILIES["DeBERTa"].sizes, "Model", "ForMaskedLM",
              "ForSequenceClassification"),
    *_members("Electra", "ElectraConfig", {**BERT, "embedding_size": 10}, "Model", "ForMaskedLM"),
    Member("ElectraForPreTraining", "ElectraForPreTraining", "ElectraConfig", {**BERT, "embedding_size": 10},
           "token_class"),
    *_members("MPNet", "MPNetConfig", BERT, "Model"),
    *_members("GPT2", "GPT2Config", {**FAMILIES["GPT-2"].sizes, "pad_token_id": 0}, "Model", "LMHeadModel",
              "ForSequenceClassification", "ForTokenClassification"),
    *_members("Llama", "LlamaConfig", FAMILIES["Llama"].sizes, "Model", "ForCausalLM", "ForSequenceClassification"),
    *_members("Qwen3", "Qwen3Config", FAMILIES["Qwen3"].sizes, "ForCausalLM"),
    *_members("Mistral", "MistralConfig", FAMILIES["Mistral"].sizes, "ForCausalLM"),
    *_members("T5", "T5Config", T5, "Model", "ForConditionalGeneration", "EncoderModel"),
    *_members("Bart", "BartConfig", FAMILIES["BART"].sizes, "Model", "ForConditionalGeneration",
              "ForSequenceClassification"),
    *_members("Marian", "MarianConfig", FAMILIES["Marian"].sizes, "MTModel"),
    *_members("ViT", "ViTConfig", IMAGE, "Model", "ForImageClassification"),
    *_members("Dinov2", "Dinov2Config", {**IMAGE, "mlp_ratio": 2}, "Model", "ForImageClassification"),
    *_members("DeiT", "DeiTConfig", IMAGE, "ForImageClassification"),
    Member("CLIPModel", "CLIPModel", "CLIPConfig", {**DUAL, "projection_dim": 10}, "similarity"),
    Member("CLIPTextModel", "CLIPTextModel", "CLIPTextConfig", CLIP_TEXT, "vectors"),
    Member("CLIPTextModelWithProjection", "CLIPTextModelWithProjection", "CLIPTextConfig",
           {**CLIP_TEXT, "projection_dim": 10}, "vectors"),
    Member("CLIPVisionModel", "CLIPVisionModel", "CLIPVisionConfig", IMAGE, "vectors"),
    Member("SiglipModel", "SiglipModel", "SiglipConfig", DUAL, "similarity"),
    Member("SiglipVisionModel", "SiglipVisionModel", "SiglipVisionConfig", IMAGE, "vectors"),
    *_members("Whisper", "WhisperConfig", {**FAMILIES["Whisper"].sizes, "classifier_proj_size": 10}, "Model",
              "ForConditionalGeneration", "ForAudioClassification"),
    Member("Wav2Vec2Model", "Wav2Vec2Model", "Wav2Vec2Config", SOUND, "vectors"),
    Member("Wav2Vec2ForCTC", "Wav2Vec2ForCTC", "Wav2Vec2Config", SOUND, "ctc"),
)  # fmt: skip
