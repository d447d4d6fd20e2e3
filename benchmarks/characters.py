"""A training step of the small character model: ours, alternating with the usual implementation from torch.nn.

    python -m benchmarks.characters [--rounds 40] [--threads 1] [--text python|shakespeare]

The peer follows nanoGPT (Karpathy 2023) and most small GPTs: one linear layer for q, k and v, causal
F.scaled_dot_product_attention, normalisation without bias, tied output, GELU. Each step stacks a batch from slices of the text;
AdamW with two parameter groups updates tensor by tensor, and gradients are clipped to 1. Both models have the same sizes and
learn from the same text; the peer has 1,152 parameters fewer because its normalisation has no bias.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from benchmarks.measure import Machine, in_turns, options, ratio, show
from xformer.config import ModelConfig, TrainConfig
from xformer.counting import n_parameters
from xformer.presets import preset
from xformer.tasks import Task, texts
from xformer.training.jobs import with_text
from xformer.training.loop import Run
from xformer.training.recipe import learning_rate


class Bare(nn.Module):
    """Layer normalisation with a scale but no shift."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class PlainLayer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.n_heads = c.n_heads
        self.before_attention, self.before_ffn = Bare(c.d_model), Bare(c.d_model)
        self.qkv = nn.Linear(c.d_model, 3 * c.d_model, bias=False)
        self.out = nn.Linear(c.d_model, c.d_model, bias=False)
        self.up = nn.Linear(c.d_model, c.d_ff, bias=False)
        self.down = nn.Linear(c.d_ff, c.d_model, bias=False)
        self.act = nn.GELU()

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.n_heads, width // self.n_heads).transpose(1, 2)  # [batch, head, pos, d_head]
            for part in self.qkv(self.before_attention(x)).split(width, dim=2)
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(z.transpose(1, 2).reshape(n, length, width))
        return x + self.down(self.act(self.up(self.before_ffn(x))))


class UsualGpt(nn.Module):
    """The peer model; its forward pass returns the loss."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(c.vocab_size, c.d_model), nn.Embedding(c.max_len, c.d_model)
        self.layers = nn.ModuleList(PlainLayer(c) for _ in range(c.n_layers))
        self.last = Bare(c.d_model)
        self.head = nn.Linear(c.d_model, c.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        for layer in self.layers:
            for matrix in (layer.out, layer.down):  # GPT-2 scales down projections that add to the residual stream
                nn.init.normal_(matrix.weight, std=0.02 / math.sqrt(2 * c.n_layers))  # pyright: ignore
        self.head.weight = self.token.weight

    def forward(self, tokens: Int[Tensor, "batch pos"], labels: Int[Tensor, "batch pos"]) -> Float[Tensor, ""]:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.last(x)).flatten(0, 1), labels.flatten())


def usual(model: UsualGpt, text: Tensor, recipe: TrainConfig, context: int, *, fused: bool) -> Callable[[], None]:
    """Return a function that takes one training step as such scripts do."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=(recipe.beta1, recipe.beta2), fused=fused)
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, count)
        starts = torch.randint(len(text) - context, (recipe.batch_size,)).tolist()
        tokens = torch.stack([text[start : start + context].long() for start in starts])
        labels = torch.stack([text[start + 1 : start + 1 + context].long() for start in starts])
        loss = model(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.clip_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def main() -> None:
    given = options(__doc__, rounds=40, text={"default": texts.PYTHON, "help": "python or shakespeare"})
    machine = Machine.start(given.threads)
    name = "characters-shakespeare" if given.text == texts.SHAKESPEARE else "characters"
    chosen = with_text(preset(name), given.text)
    task = Task(chosen.task)
    run = Run(chosen, task, torch.device("cpu"), None)
    text = texts.encoded(chosen.task.text, chosen.task.alphabet)[: task.rule.part("train")[1]]
    torch.manual_seed(0)
    peers = [UsualGpt(chosen.model) for _ in range(2)]
    biases = (2 * chosen.model.n_layers + 1) * chosen.model.d_model
    assert sum(p.numel() for p in peers[0].parameters()) == n_parameters(chosen.model) - biases, "not the same model"
    context = chosen.model.max_len
    variants = {
        "ours": run.train_step,
        "usual": usual(peers[0], text, chosen.train, context, fused=False),
        "usual, fused AdamW": usual(peers[1], text, chosen.train, context, fused=True),
    }
    seconds = in_turns(variants, given.rounds)
    rows = []
    for variant, taken in seconds.items():
        low, middle, high = ratio(taken, seconds["ours"])
        rows.append(
            {
                "step": variant,
                "ms": 1000 * statistics.median(taken),
                "× ours": middle,
                "quartiles": f"{low:.2f}–{high:.2f}",
                "characters / s": chosen.train.batch_size * context / statistics.median(taken),
            }
        )
    notes = [
        f"{n_parameters(chosen.model):,} parameters, batches of {chosen.train.batch_size} windows of {context} characters of "
        f"{texts.title(chosen.task.text)}. Ours draws batches from {len(text):,} characters and updates all tensors at once."
    ]
    show("a training step of the small character model", machine, rows, notes, given)


if __name__ == "__main__":
    main()
