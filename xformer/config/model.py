"""The shape of one transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self, get_args

from pydantic import model_validator

from xformer.components import FEED_FORWARDS, KEY_VALUE_HEADS, MASKS, NORMS, FeedForward, KeyValueHeads, Mask, Norm
from xformer.config.base import Config, setting
from xformer.errors import ConfigError
from xformer.positions import POSITION_KINDS, PositionKind
from xformer.task_limits import Architecture

DropoutSite = Literal["embed", "attention", "ffn", "residual"]
DROPOUT_SITES: tuple[DropoutSite, ...] = get_args(DropoutSite)
"""After the positions are added · on the attention weights · inside the feed-forward · before each residual sum."""
if TYPE_CHECKING:
    Positions = NormKind = Activation = MaskName = str
else:
    Positions, NormKind = Literal[tuple(POSITION_KINDS)], Literal[tuple(NORMS)]
    Activation, MaskName = Literal[tuple(FEED_FORWARDS)], Literal[tuple(MASKS)]
MAX_IMAGE_SIDE = 256
MAX_INK = 16
"""A pixel is a whole number from 0 (paper) to this (full ink), as in scikit-learn's digits."""
MAX_POSITION_CELLS = 2**24
"""The largest table of positions: max_len × d_model."""


# fmt: off
class ModelConfig(Config, frozen=True):
    """The shape of a transformer. `d_head` is the paper's d_k, `d_value` its d_v.

    A config is frozen, checked when it is made, and has `replace`, `to_json` and `from_json`. An encoder-decoder has `n_layers`
    layers in each of its two stacks.

    Raises:
        ConfigError: A setting breaks a rule; the message says which, and a value that works.

    Example:
        >>> import xformer
        >>> config = xformer.ModelConfig(
        ...     architecture="decoder", vocab_size=20, d_model=16, n_layers=2, n_heads=4, d_ff=32, max_len=8
        ... )
        >>> config.d_head, config.causal, config.replace(positions="rotary").positions
        (4, True, 'rotary')
    """

    architecture: Architecture
    vocab_size: Annotated[int, setting("Vocabulary", "", 1, 1_000_000, 16)]
    d_model: Annotated[int, setting("Stream width", "d_model: how many numbers carry each token (the residual stream).",
                                    1, 16_384, 16)]
    n_layers: Annotated[int, setting("Layers", "n_layers: of an encoder-decoder, in each of its two stacks.", 1, 256, 16)]
    n_heads: Annotated[int, setting("Heads", "n_heads: attention heads in each layer.", 1, 256, 16)]
    d_ff: Annotated[int, setting("Feed-forward width", "d_ff: 0 leaves the feed-forward layers out.", 0, 131_072, 16)]
    max_len: Annotated[int, setting("Longest it reads", "max_len, in tokens; at least what the task needs.", 1, 65_536, 16)]
    d_head: Annotated[int, setting("Query width", "d_head: 0 means d_model / n_heads.", 0, 16_384, 16)] = 0
    d_value: Annotated[int, setting("Value width", "d_value: 0 means d_head.", 0, 16_384, 16)] = 0
    n_kv_heads: Annotated[int, setting("Key/value heads", "n_kv_heads: heads that share keys and values form a group; 0 means "
                                       "n_heads, one each.", 0, 256, 4)] = 0
    mask: Annotated[MaskName, setting("Mask", "Which keys self-attention may look at, besides what causality says.")] = "full"
    window: Annotated[int, setting("Window", "With a sliding window: keys fewer than this many positions away are seen.",
                                   0, 65_536, 8)] = 0
    causal: Annotated[bool | None, setting("Causal", "May a position only see earlier ones? auto: a decoder.",
                                           example=True)] = None
    see_self: Annotated[bool, setting("Sees itself", "With a causal mask: may a position see itself?")] = True
    norm: Annotated[Literal["pre", "post", "none"],
                    setting("Normalisation", "A norm before each part, after it, or none.")] = "post"
    norm_kind: Annotated[NormKind, setting("Kind of norm", "LayerNorm, or RMSNorm without mean and shift.")] = "layer"
    norm_eps: Annotated[float, setting("Norm ε", "Added to the variance, so that the normalisation never divides by zero.",
                                       1e-12, 1e12, 1.0)] = 1e-5
    final_norm: Annotated[bool | None, setting("Final norm", "After each stack; auto: with pre-norm.", example=True)] = None
    positions: Annotated[Positions, setting("Positions", "How the model knows where a token is.")] = "sinusoidal"
    position_base: Annotated[float,
                             setting("Position base", "Of sinusoidal and rotary wavelengths: 10,000 in the paper, §3.5.",
                                     1e-12, 1e12, 1.0)] = 10_000.0
    scale_embeddings: Annotated[bool, setting("Scale embeddings", "By √d_model (§3.4).")] = False
    activation: Annotated[Activation, setting("Activation", "The nonlinearity of the feed-forward part; SwiGLU has a gate and "
                                              "a third matrix.")] = "relu"
    attention_bias: Annotated[bool,
                              setting("Attention bias", "Added to queries, keys, values and the output of attention.")] = False
    ffn_bias: Annotated[bool, setting("Feed-forward bias", "Added in both layers of the feed-forward part.")] = True
    output_bias: Annotated[bool,
                           setting("Output bias", "Added to the logits, one number for each token of the vocabulary.")] = True
    tied_output: Annotated[bool, setting("Tied output", "Read the logits with the embedding matrix (§3.4).")] = False
    tied_source: Annotated[bool, setting("Tied source", "Encoder-decoder: one embedding matrix for both sides.")] = False
    dropout: Annotated[float,
                       setting("Dropout", "The share of numbers that is set to zero at random while training: 0 to below 1.",
                               0, None, 0.1, below=1)] = 0.0
    dropout_sites: Annotated[tuple[DropoutSite, ...], setting("Dropout at", "The places where numbers are dropped.",
                                                              example=())] = DROPOUT_SITES
    init: Annotated[Literal["xavier", "normal"], setting("Initialisation", "Xavier-uniform, or normal.")] = "xavier"
    init_scale: Annotated[float, setting("Init scale", "Gain of the Xavier bound, or the standard deviation.",
                                         1e-12, 1e12, 1.0)] = 1.0
    embed_std: Annotated[float,
                         setting("Embedding std", "Fresh embeddings: at 1 the positions drown, 0.1 to 0.3 learns at once.",
                                 1e-12, 1e12, 1.0)] = 0.1
    pad_token: Annotated[int, setting("Padding")] = 0
    start_token: Annotated[int | None, setting("Start token", "What a decoder is started with.", example=0)] = None
    end_token: Annotated[int | None, setting("End token", "What ends an answer.", example=0)] = None
    image: Annotated[int, setting("Image", "The side of the square images that it reads, in pixels; 0 reads tokens.")] = 0
    patch: Annotated[int, setting("Patch", "The side of the square patches that an image is cut into, in pixels.")] = 0
    # fmt: on

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Put in what follows from other fields, and check the rules that hold between them."""
        if self.d_head == 0:
            if self.d_model % self.n_heads:
                raise ConfigError(
                    f"d_head is d_model / n_heads unless it is given, and {self.d_model} is not divisible by "
                    f"{self.n_heads}; give d_head, for example d_head={max(1, self.d_model // self.n_heads)}."
                )
            self._derive("d_head", self.d_model // self.n_heads)
        if self.d_value == 0:
            self._derive("d_value", self.d_head)
        if self.causal is None:
            self._derive("causal", self.architecture != "encoder")
        if self.final_norm is None:
            self._derive("final_norm", self.norm == "pre")
        self.position_kind.check(self)
        for component in (self.norm_component, self.ffn_component, self.mask_component, self.kv_component):
            component.check(self)
        self._check_rules()
        if self.image or self.patch:
            self._check_image()
        return self

    def _check_rules(self) -> None:
        if self.max_len * self.d_model > MAX_POSITION_CELLS:
            raise ConfigError(
                f"max_len × d_model must be at most {MAX_POSITION_CELLS:,}, got {self.max_len} × {self.d_model}; "
                f"for example max_len={MAX_POSITION_CELLS // self.d_model}."
            )
        if self.architecture != "encoder" and not self.causal:
            raise ConfigError(
                f"A {self.architecture} is trained to predict what comes next, so causal must be true, got false; "
                "use architecture='encoder', or lift the mask of one run with the edit set_causal(False)."
            )
        if not (self.see_self or self.causal):
            raise ConfigError("see_self=False narrows a causal mask, so it needs causal=True, got causal=False.")
        if self.tied_source and self.architecture != "encoder-decoder":
            raise ConfigError(
                f"tied_source shares the source's embeddings with the target's, so it needs "
                f"architecture='encoder-decoder', got {self.architecture!r}; use tied_source=False."
            )
        if len(set(self.dropout_sites)) != len(self.dropout_sites):
            raise ConfigError(f"dropout_sites must name each place once, got {self.dropout_sites}.")
        for name in ("pad_token", "start_token", "end_token"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab_size:
                raise ConfigError(
                    f"{name} must be a token from 0 to vocab_size - 1 = {self.vocab_size - 1}, got {token}; "
                    f"for example {name}=0."
                )

    def _check_image(self) -> None:
        if not 1 <= self.patch <= self.image <= MAX_IMAGE_SIDE or self.image % self.patch:
            raise ConfigError(
                f"An image is cut into whole patches, so patch must divide image, which is at most {MAX_IMAGE_SIDE}, got "
                f"image={self.image} and patch={self.patch}; for example image=8, patch=2."
            )
        if self.architecture != "encoder" or self.tied_output or self.scale_embeddings:
            raise ConfigError(
                "Images are read by an encoder without an embedding table that could be tied or scaled, got "
                f"architecture={self.architecture!r}, tied_output={self.tied_output}, "
                f"scale_embeddings={self.scale_embeddings}; for example architecture='encoder', False, False."
            )
        if self.max_len != 1 + self.n_patches:
            raise ConfigError(
                f"An image of {self.n_patches} patches takes 1 + {self.n_patches} positions, the class token's first, got "
                f"max_len={self.max_len}; use max_len={1 + self.n_patches}."
            )

    @property
    def position_kind(self) -> PositionKind:
        """How it knows where a token stands."""
        return POSITION_KINDS[self.positions]

    @property
    def norm_component(self) -> Norm:
        """The registered norm of `norm_kind`."""
        return NORMS[self.norm_kind]

    @property
    def ffn_component(self) -> FeedForward:
        """The registered feed-forward network of `activation`."""
        return FEED_FORWARDS[self.activation]

    @property
    def mask_component(self) -> Mask:
        """The registered attention mask of `mask`."""
        return MASKS[self.mask]

    @property
    def kv_component(self) -> KeyValueHeads:
        """How key/value heads are shared: by no heads, or by groups of them."""
        return KEY_VALUE_HEADS["multi_head" if self.n_kv_heads in (0, self.n_heads) else "grouped_query"]

    def looks_back_only(self, stack: str) -> bool:
        """Whether self-attention in the "encoder" or the "decoder" is masked so that nothing sees what comes later."""
        return stack == "decoder" or (self.architecture == "encoder" and bool(self.causal))

    @property
    def n_patches(self) -> int:
        """How many patches an image is cut into; 0 for a model of tokens."""
        return (self.image // self.patch) ** 2 if self.patch else 0

    @property
    def n_inputs(self) -> int:
        """What it reads are whole numbers from 0 to `n_inputs` - 1: tokens, or the ink of a pixel."""
        return 1 + MAX_INK if self.image else self.vocab_size

    def n_positions(self, n: int) -> int:
        """How many positions the stream has for an input of `n` numbers: as many, or one for each patch and the class token."""
        return 1 + self.n_patches if self.image else n
