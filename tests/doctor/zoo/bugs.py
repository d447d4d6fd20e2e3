"""Bugs as people make them, each a change of one line of a correct model, with the name that the doctor should give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tests.widgets.test_code_view import imported

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Bug:
    """One changed line: what it read and reads, and the names that fit."""

    style: str
    old: str
    new: str
    causes: tuple[str, ...]
    seen: str = ""
    """The line that shows it, where the changed one computes nothing in a forward pass."""
    also: tuple[tuple[str, str], ...] = ()
    """Other lines that have to change for it to run."""

    @property
    def name(self) -> str:
        return f"{self.style}: {self.new.strip()[:50]}"


def planted(bug: Bug | str, folder: Path) -> tuple[nn.Module, int]:
    """The model of a style, or of a bug, from a file of its own; and the number of the changed line, 0 for none."""
    style = bug if isinstance(bug, str) else bug.style
    text, number = (FOLDER / f"{style}.py").read_text(), 0
    if isinstance(bug, Bug):
        for old, new in (*bug.also, (bug.old, bug.new)):
            assert text.count(old) == 1, (bug.style, old, text.count(old))
            number = text[: text.index(old)].count("\n") + 1
            text = text.replace(old, new)
        if bug.seen:
            assert text.count(bug.seen) == 1, bug
            number = text[: text.index(bug.seen)].count("\n") + 1
    path = folder / f"{style}.py"
    path.write_text(text)
    torch.manual_seed(0)
    return imported(path).Model().eval(), number


SPECS = {"nano": "gpt", "llama": "llama", "functional": "vaswani", "encoder": "bert"}
NANO, LLAMA, FUNCTIONAL, ENCODER = SPECS
BUGS = [
    # nano
    Bug(NANO, "(1.0 / math.sqrt(k.size(-1)))", "(1.0 / math.sqrt(C))", ("scale_by_d_model",)),
    Bug(NANO, "* (1.0 / math.sqrt(k.size(-1)))", "* math.sqrt(k.size(-1))", ("scale_inverted",)),
    Bug(NANO, "* (1.0 / math.sqrt(k.size(-1)))", "", ("scale_missing",)),
    Bug(NANO, "math.sqrt(k.size(-1))", "math.sqrt(k.size(1))", ("scale_by_n_heads",)),
    Bug(NANO, "math.sqrt(k.size(-1))", "k.size(-1)", ("scale_by_d_head",)),
    Bug(
        NANO,
        "q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)",
        "q = q.reshape(B, self.n_head, T, C // self.n_head)",
        ("split_without_transpose",),
    ),
    Bug(
        NANO,
        "v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)",
        "v = v.reshape(B, self.n_head, T, -1)",
        ("split_without_transpose",),
    ),
    Bug(
        NANO,
        "y = y.transpose(1, 2).contiguous().view(B, T, C)",
        "y = y.contiguous().view(B, T, C)",
        ("merge_without_transpose",),
    ),
    Bug(
        NANO,
        "y = y.transpose(1, 2).contiguous().view(B, T, C)",
        "y = y.mean(dim=1).repeat(1, 1, self.n_head)",
        ("heads_averaged",),
    ),
    Bug(NANO, "F.softmax(att, dim=-1)", "F.softmax(att, dim=-2)", ("softmax_over_queries",)),
    Bug(NANO, "F.softmax(att, dim=-1)", "F.softmax(att, dim=1)", ("softmax_over_heads",)),
    Bug(NANO, ":T] == 0,", ":T] == 1,", ("mask_inverted",)),
    Bug(
        NANO,
        'att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))',
        "att = att + self.bias[:, :, :T, :T]",
        ("mask_added_as_bool",),
    ),
    Bug(
        NANO,
        'att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))',
        "att = att * self.bias[:, :, :T, :T]",
        ("mask_multiplied",),
    ),
    Bug(
        NANO,
        'att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))',
        'att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))',
        ("mask_not_applied",),
    ),
    Bug(NANO, 'float("-inf"))', "-10.0)", ("mask_too_small",)),
    Bug(
        NANO,
        "att = self.attn_dropout(att)",
        "att = att.masked_fill(self.bias[:, :, :T, :T] == 0, 0.0)",
        ("mask_after_softmax",),
        also=((('        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n', "\n")),),
    ),
    Bug(
        NANO,
        "torch.tril(torch.ones(block_size, block_size))",
        "torch.tril(torch.ones(block_size, block_size), 1)",
        ("mask_off_by_one",),
        "att.masked_fill",
    ),
    Bug(NANO, "att = self.attn_dropout(att)", "att = F.dropout(att, 0.1)", ("dropout_in_eval",)),
    Bug(NANO, "x = x + self.attn(self.ln_1(x))", "x = self.attn(self.ln_1(x))", ("residual_missing",)),
    Bug(NANO, "x = x + self.mlp(self.ln_2(x))", "x = self.mlp(self.ln_2(x))", ("residual_missing",)),
    Bug(NANO, "x = x + self.attn(self.ln_1(x))", "x = self.ln_1(x); x = x + self.attn(x)", ("residual_from_norm",)),
    Bug(NANO, "x = x + self.mlp(self.ln_2(x))", "x = self.ln_2(x) + self.mlp(self.ln_2(x))", ("residual_from_norm",)),
    Bug(
        NANO,
        "pos = torch.arange(0, t, dtype=torch.long, device=idx.device)",
        "pos = torch.arange(0, b, dtype=torch.long, device=idx.device)",
        ("positions_from_batch", "positions_missing"),
    ),
    Bug(
        NANO,
        "F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))",
        "F.cross_entropy(logits.view(-1, logits.size(-1)), idx.view(-1))",
        ("targets_not_shifted",),
    ),
    Bug(NANO, "std=0.2)", "std=8.0)", ("initial_loss",), "logits = self.lm_head"),
    Bug(NANO, "x = F.gelu(x)", "pass", ("activation_missing",)),
    # llama
    Bug(LLAMA, "/ HEAD_DIM**0.5", "/ DIM**0.5", ("scale_by_d_model",)),
    Bug(LLAMA, "/ HEAD_DIM**0.5", "* HEAD_DIM**0.5", ("scale_inverted",)),
    Bug(LLAMA, "/ HEAD_DIM**0.5", "", ("scale_missing",)),
    Bug(LLAMA, "xk = self.wk(x)", "xk = self.wv(x)", ("shared_projection",), "xv = self.wv(x)"),
    Bug(
        LLAMA,
        "xk = xk.repeat_interleave(N_HEADS // N_KV, dim=1)",
        "xk = xk.repeat(1, N_HEADS // N_KV, 1, 1)",
        ("key_value_head_order",),
    ),
    Bug(
        LLAMA,
        "xv = xv.repeat_interleave(N_HEADS // N_KV, dim=1)",
        "xv = xv.repeat(1, N_HEADS // N_KV, 1, 1)",
        ("key_value_head_order",),
    ),
    Bug(LLAMA, "xk = xk * cos + rotate_half(xk) * sin", "pass", ("rotary_on_queries_only",), "xq = xq * cos"),
    Bug(
        LLAMA,
        "angles = torch.cat((angles, angles), dim=-1)",
        "angles = angles.repeat_interleave(2, dim=-1)",
        ("rotary_pairs_mixed",),
    ),
    Bug(
        LLAMA,
        "first, second = x.chunk(2, dim=-1)",
        "first, second = x[..., ::2], x[..., 1::2]",
        ("rotary_pairs_mixed",),
    ),
    Bug(LLAMA, ".triu(diagonal=1)", ".triu(diagonal=2)", ("mask_off_by_one",)),
    Bug(LLAMA, ".triu(diagonal=1)", ".tril(diagonal=-1)", ("mask_inverted",)),
    Bug(LLAMA, ".triu(diagonal=1)", ".triu()", ("mask_excludes_itself",)),
    Bug(
        LLAMA,
        'torch.full((seqlen, seqlen), float("-inf")).triu(diagonal=1)',
        "torch.ones(seqlen, seqlen).triu(diagonal=1)",
        ("mask_added_as_bool",),
    ),
    Bug(LLAMA, 'float("-inf")).triu', "-5.0).triu", ("mask_too_small",)),
    Bug(LLAMA, "scores = scores + mask", "scores + mask", ("mask_not_applied",)),
    Bug(LLAMA, "scores = scores + mask", "pass", ("mask_not_applied",), "scores = torch.matmul"),
    Bug(
        LLAMA,
        "out = out.transpose(1, 2).reshape(bsz, seqlen, -1)",
        "out = out.reshape(bsz, seqlen, -1)",
        ("merge_without_transpose",),
    ),
    Bug(
        LLAMA,
        "out = out.transpose(1, 2).reshape(bsz, seqlen, -1)",
        "out = out.transpose(2, 3).reshape(bsz, seqlen, -1)",
        ("merge_without_transpose",),
    ),
    Bug(LLAMA, "scores.softmax(dim=-1)", "scores.softmax(dim=2)", ("softmax_over_queries",)),
    Bug(LLAMA, "scores.softmax(dim=-1)", "scores.softmax(dim=0)", ("attention_over_batch",)),
    Bug(LLAMA, "x.pow(2).mean(dim=-1, keepdim=True)", "x.pow(2).mean(dim=1, keepdim=True)", ("norm_over_positions",)),
    Bug(
        LLAMA,
        "h = x + self.attention(self.attention_norm(x), cos, sin)",
        "h = self.attention(self.attention_norm(x), cos, sin)",
        ("residual_missing",),
    ),
    Bug(
        LLAMA,
        "out = h + self.feed_forward(self.ffn_norm(h))",
        "h = self.ffn_norm(h); out = h + self.feed_forward(h)",
        ("residual_from_norm",),
    ),
    Bug(
        LLAMA,
        "out = h + self.feed_forward(self.ffn_norm(h))",
        "out = x + self.feed_forward(self.ffn_norm(h))",
        ("residual_missing", "residual_other"),
    ),
    # functional
    Bug(FUNCTIONAL, "(WIDTH // HEADS) ** -0.5", "WIDTH**-0.5", ("scale_by_d_model",)),
    Bug(FUNCTIONAL, "(WIDTH // HEADS) ** -0.5", "(WIDTH // HEADS) ** 0.5", ("scale_inverted",)),
    Bug(FUNCTIONAL, "(WIDTH // HEADS) ** -0.5", "HEADS**-0.5", ("scale_by_n_heads",)),
    Bug(
        FUNCTIONAL,
        'k = einsum("bjd,dhe->bjhe", x, p[name + "_key"])',
        'k = einsum("bjd,dhe->bjhe", x, p[name + "_query"])',
        ("shared_projection",),
    ),
    Bug(
        FUNCTIONAL, 'v = einsum("bjd,dhe->bjhe", x, p[name + "_value"])', "v = k", ("shared_projection",), "mixed = einsum"
    ),
    Bug(FUNCTIONAL, "torch.where(j > i,", "torch.where(j < i,", ("mask_inverted",)),
    Bug(FUNCTIONAL, "torch.where(j > i,", "torch.where(j > i + 1,", ("mask_off_by_one",)),
    Bug(FUNCTIONAL, "torch.where(j > i, torch.tensor(-1e30), logits)", "logits - 3.0 * (j > i)", ("mask_too_small",)),
    Bug(FUNCTIONAL, "torch.where(j > i, torch.tensor(-1e30), logits)", "logits * (j <= i)", ("mask_multiplied",)),
    Bug(FUNCTIONAL, "weights.sum(-1, keepdim=True)", "weights.sum(-2, keepdim=True)", ("softmax_over_queries",)),
    Bug(
        FUNCTIONAL,
        "rate = 10000 ** (-torch.arange(0, width, 2) / width)",
        "rate = 10000 ** (-2 * torch.arange(0, width, 2) / width)",
        ("sinusoid_exponent",),
    ),
    Bug(FUNCTIONAL, "mu = x.mean(-1, keepdim=True)", "mu = x.mean(1, keepdim=True)", ("norm_over_positions",)),
    Bug(
        FUNCTIONAL,
        "layer_norm(x + attention(self.p, str(n), x),",
        "layer_norm(attention(self.p, str(n), x),",
        ("residual_missing",),
    ),
    Bug(
        FUNCTIONAL, 'hidden = torch.relu(x @ p[name + "_in"])', 'hidden = x @ p[name + "_in"]', ("activation_missing",)
    ),
    Bug(
        FUNCTIONAL,
        "sinusoids(ids.shape[1], WIDTH)",
        "sinusoids(ids.shape[0], WIDTH)[:, None]",
        ("positions_from_batch",),
    ),
    # encoder
    Bug(ENCODER, "self.depth**0.5", "length**0.5", ("scale_other",)),
    Bug(ENCODER, "/ self.depth**0.5", "/ hidden**0.5", ("scale_by_d_model",)),
    Bug(ENCODER, "x = x.permute(0, 2, 1, 3)", "pass", ("split_without_transpose",), "return x.reshape("),
    Bug(
        ENCODER,
        "context = context.permute(0, 2, 1, 3).reshape(batch, length, hidden)",
        "context = context.reshape(batch, length, hidden)",
        ("merge_without_transpose",),
    ),
    Bug(ENCODER, "torch.softmax(scores, dim=2)", "torch.softmax(scores, dim=1)", ("softmax_over_queries",)),
    Bug(
        ENCODER,
        "torch.softmax(scores, dim=2)",
        "torch.softmax(scores, dim=0)",
        ("attention_over_batch", "softmax_over_heads"),
    ),
    Bug(ENCODER, "mask[:, None, :].eq(0)", "mask[:, :, None].eq(0).expand(-1, -1, length)", ("padding_on_queries",)),
    Bug(ENCODER, "mask[:, None, :].eq(0)", "mask[:, None, :].eq(1)", ("mask_inverted", "padding_inverted")),
    Bug(
        ENCODER,
        "hidden_keys.repeat_interleave(self.heads, dim=0)",
        "hidden_keys.repeat(self.heads, 1, 1)",
        ("padding_in_head_order",),
    ),
    Bug(ENCODER, "(hidden_keys, -1e9)", "(hidden_keys, -1.0)", ("mask_too_small",)),
    Bug(ENCODER, "key = self.split(self.key(x))", "key = self.split(self.query(x))", ("shared_projection",)),
    Bug(
        ENCODER, "self.attention_norm(hidden_states + attended)", "self.attention_norm(attended)", ("residual_missing",)
    ),
    Bug(
        ENCODER,
        "torch.arange(input_ids.shape[1], device=input_ids.device)",
        "torch.zeros(input_ids.shape[1], dtype=torch.long)",
        ("positions_missing",),
    ),
    Bug(
        ENCODER,
        "probs = torch.softmax(scores, dim=2)",
        "probs = nn.functional.dropout(torch.softmax(scores, dim=2), 0.1)",
        ("dropout_in_eval",),
    ),
    # rotations, norms and sub-layers that are none
    Bug(LLAMA, "xk = xk * cos + rotate_half(xk) * sin", "xk = xk * cos - rotate_half(xk) * sin", ("rotary_directions",)),
    Bug(LLAMA, "(-second, first)", "(second, first)", ("rotary_no_rotation",)),
    Bug(LLAMA, "angles.cos(), angles.sin()", "angles.sin(), angles.sin()", ("rotary_no_rotation",)),
    Bug(LLAMA, "rotate_half(xk) * sin", "rotate_half(xk) * sin.roll(1, 0)", ("rotary_no_rotation", "rotary_differs")),
    Bug(LLAMA, "torch.rsqrt(var + self.eps)", "(var + self.eps)", ("norm_formula",)),
    Bug(LLAMA, "x.pow(2).mean(dim=-1, keepdim=True)", "x.pow(2).mean()", ("norm_over_positions",)),
    Bug(LLAMA, "self.feed_forward(self.ffn_norm(h))", "self.feed_forward(h)", ("norm_missing",)),
    Bug(LLAMA, "out = h + self.feed_forward", "out = self.ffn_norm(h) + self.feed_forward", ("residual_from_norm",)),
    Bug(LLAMA, "silu(self.w1(x)) * self.w3(x)", "self.w1(x) * self.w3(x)", ("activation_missing",)),
    Bug(LLAMA, "torch.matmul(weights, xv)", "torch.matmul(weights, xk)", ("shared_projection",)),
    Bug(LLAMA, "scores = scores + mask", "scores = scores - mask", ("mask_inverted",), "mask = torch.full"),
    Bug(NANO, "x = x + self.attn(self.ln_1(x))", "y = x + self.attn(self.ln_1(x))", ("output_unused",)),
    Bug(NANO, "F.softmax(att, dim=-1)", "F.softmax(att, dim=-1) + self.bias[:, :, :T, :T]", ("mask_after_softmax",)),
    Bug(NANO, "y = att @ v", "y = att.transpose(-2, -1) @ v", ("softmax_over_queries",)),
    Bug(
        NANO,
        "k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)",
        "k = k.view(B, T, C // self.n_head, self.n_head).permute(0, 3, 1, 2)",
        ("heads_interleaved",),
    ),
    Bug(NANO, "torch.arange(0, t, dtype=torch.long, device=idx.device)", "torch.zeros(t, dtype=torch.long)", ("positions_missing",)),
    Bug(FUNCTIONAL, "torch.where(j > i, torch.tensor(-1e30), logits)", "logits + (j > i)", ("mask_added_as_bool",)),
    Bug(FUNCTIONAL, "torch.arange(0, width, 2) / width", "torch.arange(0, width // 2) / width", ("sinusoid_exponent",)),
]
