"""Attention modules of packages that other people install: each pattern is compared with the package's own weights.

`make packages` installs them in an environment of their own; without them, these tests are skipped.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xformer
from xformer.errors import InputError

pytest.importorskip("x_transformers")
LIBRARY = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):  # timm imports torchvision, whose compiled functions may be missing
    LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")

Kept = list[Tensor]
D, H = 16, 4


def ids(batch: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randint(0, 19, (batch, n), generator=torch.Generator().manual_seed(n)),)


def vectors(batch: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, n, D, generator=torch.Generator().manual_seed(n)),)


def images(batch: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(n)),)


@contextmanager
def kernels_kept(kept: Kept) -> Iterator[None]:
    """Keep the weights of PyTorch's kernel, by its formula."""
    kernel = F.scaled_dot_product_attention

    def keeping(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        k_of = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores = q @ k_of.mT * (kwargs.get("scale") or q.shape[-1] ** -0.5)
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        if attn_mask is not None:
            scores = (
                scores.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
            )
        kept.append(scores.softmax(-1))
        return kernel(q, k, v, attn_mask, dropout_p, is_causal, **kwargs)

    with (
        mock.patch.object(F, "scaled_dot_product_attention", keeping),
        mock.patch.object(nn.functional, "scaled_dot_product_attention", keeping),
    ):
        yield


def own_weights(module: nn.Module, inputs: tuple[Any, ...]) -> Kept:
    """The weights of a call of the module itself: of kernels, of softmax modules, and of x-transformers' return values."""
    kept: Kept = []

    def keep(part: nn.Module, args: Any, output: Any) -> None:
        is_named = isinstance(output, tuple) and hasattr(output[1], "post_softmax_attn")
        found = output[1].post_softmax_attn if is_named else output if isinstance(part, nn.Softmax) else args[0]
        if found is not None:
            kept.append(found.detach())

    named = [
        part
        for name, part in module.named_modules()
        if isinstance(part, nn.Softmax) or type(part).__name__ == "Attend" or name.endswith("attn_drop")
    ]
    handles = [part.register_forward_hook(keep) for part in named]
    try:
        with kernels_kept(kept), torch.no_grad():
            module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return kept


def x_transformer(kind: str = "Decoder", **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import x_transformers as package

        layers = getattr(package, kind)(dim=D, depth=2, heads=H, attn_dim_head=8, **options)
        return package.TransformerWrapper(num_tokens=19, max_seq_len=16, attn_layers=layers)

    return build


def vit(module: str, name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from importlib import import_module

        given = {
            "image_size": 16,
            "patch_size": 8,
            "num_classes": 7,
            "dim": D,
            "depth": 2,
            "heads": H,
            "mlp_dim": 32,
        } | options
        return getattr(import_module(f"vit_pytorch.{module}"), name)(
            **{key: value for key, value in given.items() if value is not None}
        )

    return build


def timm_model(name: str, *, fused: bool, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from timm.layers import set_fused_attn
        from timm.models import create_model

        set_fused_attn(fused)
        return create_model(name, num_classes=7, **options)

    return build


VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": H}


def llama(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchtune.models.llama3 import llama3

        return llama3(
            vocab_size=19,
            num_layers=2,
            num_heads=H,
            num_kv_heads=2,
            embed_dim=D,
            max_seq_len=16,
            intermediate_dim=32,
            **options,
        )

    return build


def torchtune_attention() -> nn.Module:
    from torchtune.modules import MultiHeadAttention

    sizes = {"q_proj": (D, D), "k_proj": (D, 8), "v_proj": (D, 8), "output_proj": (D, D)}
    projections = {name: nn.Linear(*size, bias=False) for name, size in sizes.items()}
    options = {"embed_dim": D, "num_heads": H, "num_kv_heads": 2, "head_dim": 4, "max_seq_len": 16}
    return nn.Sequential(OnItself(MultiHeadAttention(**options, **projections)))


class OnItself(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x)


def pooling() -> nn.Module:
    from timm.layers import AttentionPoolLatent, set_fused_attn

    set_fused_attn(True)
    return AttentionPoolLatent(D, num_heads=H)


def two_scales() -> nn.Module:
    from vit_pytorch.cross_vit import CrossViT

    small = {
        f"sm_{name}": value for name, value in {"dim": 16, "patch_size": 4, "enc_depth": 1, "enc_heads": 2}.items()
    }
    large = {
        f"lg_{name}": value for name, value in {"dim": 16, "patch_size": 8, "enc_depth": 1, "enc_heads": 2}.items()
    }
    return CrossViT(image_size=16, num_classes=7, depth=1, cross_attn_depth=1, cross_attn_heads=2, **small, **large)


READ: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Any, ...]]]] = {
    "x-transformers": (x_transformer(), ids),
    "x-transformers, rotary, grouped": (x_transformer(rotary_pos_emb=True, attn_kv_heads=2), ids),
    "x-transformers, memory": (x_transformer("Encoder", alibi_pos_bias=True, attn_num_mem_kv=2), ids),
    "x-transformers, kernel": (x_transformer(attn_flash=True), ids),
    "x-transformers, one key head": (x_transformer(attn_one_kv_head=True), ids),
    "x-transformers, sparse": (x_transformer(attn_sparse_topk=2), ids),
    "x-transformers, distances": (x_transformer(attn_l2_distance=True), ids),
    "ViT": (vit("vit", "ViT"), images),
    "SimpleViT": (vit("simple_vit", "SimpleViT"), images),
    "ViT for small data": (vit("vit_for_small_dataset", "ViT"), images),
    "parallel ViT": (vit("parallel_vit", "ViT"), images),
    "T2T": (vit("t2t", "T2TViT", patch_size=None, t2t_layers=((3, 2), (3, 2))), images),
    "PiT": (vit("pit", "PiT", depth=(1, 1), patch_size=4), images),
    "CrossViT": (two_scales, images),
    "timm": (timm_model("vit_tiny_patch16_224", fused=False, **VIT), images),
    "timm, kernel": (timm_model("vit_tiny_patch16_224", fused=True, **VIT), images),
    "timm, BEiT": (timm_model("beit_base_patch16_224", fused=False, **VIT), images),
    "timm, EVA": (timm_model("eva02_tiny_patch14_224", fused=False, **VIT), images),
    "timm, pooling": (pooling, vectors),
    "torchtune, Llama": (llama(), ids),
    "torchtune, attention": (torchtune_attention, vectors),
}
SWIN = {"img_size": 16, "patch_size": 2, "embed_dim": 16, "depths": (2,), "num_heads": (2,), "window_size": 4}
REFUSED: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Any, ...]], str]] = {
    "x-transformers, sigmoid": (x_transformer(attn_sigmoid=True), ids, "from sigmoid, not from a softmax"),
    "x-transformers, Gumbel": (x_transformer(attn_gumbel_softmax=True), ids, "from gumbel_softmax"),
    "x-transformers, scripted cap": (x_transformer(attn_softclamp_logits=True), ids, "cannot be observed"),
    "DeepViT": (vit("deepvit", "DeepViT"), images, "mixed across heads"),
    "CaiT": (vit("cait", "CaiT", depth=1, cls_depth=1), images, "mixed across heads"),
    "XCiT": (vit("xcit", "XCiT", cls_depth=1), images, "between channels"),
    "timm, Swin": (timm_model("swin_tiny_patch4_window7_224", fused=False, **SWIN), images, "within windows"),
}


def made(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    module = build().eval()
    for weight in module.parameters():
        if weight.requires_grad and not weight.any():
            nn.init.normal_(weight, std=0.1)
    return module


@pytest.mark.parametrize(("batch", "n"), [(1, 5), (3, 5), (3, H)])
@pytest.mark.parametrize("name", READ)
def test_patterns_are_the_packages_own_weights(name: str, batch: int, n: int) -> None:
    build, inputs_of = READ[name]
    module, inputs = made(build), inputs_of(batch, n)
    reading = xformer.read(module, inputs)
    patterns = [reading[f"{one.path}.pattern"] for one in reading.attention]
    for pattern, own in zip(patterns, own_weights(module, inputs), strict=True):
        assert pattern.shape == own.shape
        assert torch.allclose(pattern, own, atol=1e-6)


@pytest.mark.parametrize("name", READ)
def test_ablating_a_head_in_a_batch_equals_ablating_it_alone(name: str) -> None:
    build, inputs_of = READ[name]
    module, inputs = made(build), inputs_of(3, 5)
    reading = xformer.read(module, inputs)
    path = reading.attention[-1].path
    edits = [xformer.edits.ablate_head(path, reading[f"{path}.pattern"].shape[1] - 1)]
    together = xformer.read(module, inputs, edits=edits).logits
    assert not torch.equal(together, reading.logits)
    for row in range(3):
        alone = tuple(one[row : row + 1] for one in inputs)
        assert torch.allclose(together[row], xformer.read(module, alone, edits=edits).logits[0], atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shown_is_refused_with_its_reason(name: str) -> None:
    build, inputs_of, reason = REFUSED[name]
    with pytest.raises(InputError, match=reason):
        xformer.read(made(build), inputs_of(3, 5))
