"""A GPT in one file: attention, blocks, training and text. `python docs/one_file_gpt.py` trains it in under a minute.

It reads a random word and says it again: "dbca:" → "dbca". Read it beside its own numbers:

    xformer.code_view(model, encode("dbca:dbc")).save_html("gpt.html")
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHARACTERS = "abcdefgh:"
WORD = 4  # letters
D_MODEL, N_HEADS, N_LAYERS, CONTEXT = 48, 3, 2, 2 * WORD + 1


class Attention(nn.Module):
    """Causal multi-head attention: softmax(q kᵀ / √d_head) v."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL)
        self.out = nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).split(D_MODEL, dim=-1)  # [batch, pos, d_model] each
        q = q.view(batch, length, N_HEADS, -1).transpose(1, 2)  # [batch, head, pos, d_head]
        k = k.view(batch, length, N_HEADS, -1).transpose(1, 2)
        v = v.view(batch, length, N_HEADS, -1).transpose(1, 2)
        scores = q @ k.transpose(-2, -1)  # [batch, head, query, key]
        scores = scores / math.sqrt(k.shape[-1])
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        pattern = scores.softmax(dim=-1)
        z = pattern @ v  # [batch, head, query, d_head]
        z = z.transpose(1, 2).reshape(batch, length, D_MODEL)
        return self.out(z)


class Block(nn.Module):
    """Pre-norm: each part reads the normalised stream and adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL)
        self.attention = Attention()
        self.up, self.down = nn.Linear(D_MODEL, 4 * D_MODEL), nn.Linear(4 * D_MODEL, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.up(self.norm2(x)))  # [batch, pos, d_ff]
        return x + self.down(hidden)


class GPT(nn.Module):
    """Characters in, the logits of the next character out."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(len(CHARACTERS), D_MODEL)
        self.position = nn.Embedding(CONTEXT, D_MODEL)
        self.blocks = nn.ModuleList(Block() for _ in range(N_LAYERS))
        self.norm = nn.LayerNorm(D_MODEL)
        self.head = nn.Linear(D_MODEL, len(CHARACTERS), bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # [batch, pos, vocab]


def encode(text: str) -> Tensor:
    return torch.tensor([[CHARACTERS.index(character) for character in text]])


def decode(tokens: Tensor) -> str:
    return "".join(CHARACTERS[int(token)] for token in tokens.flatten())


def batch_of(size: int, generator: torch.Generator) -> Tensor:
    """Random words, each followed by a colon and the word again [batch, pos]."""
    words = torch.randint(len(CHARACTERS) - 1, (size, WORD), generator=generator)
    colons = torch.full((size, 1), CHARACTERS.index(":"))
    return torch.cat([words, colons, words], dim=1)


def train(steps: int = 200, seed: int = 0) -> tuple[GPT, list[float]]:
    """Train on random words, and return the model with the loss of each step."""
    torch.manual_seed(seed)
    model, generator = GPT(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        tokens = batch_of(64, generator)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]  # the target is the next character
        logits = model(inputs)[:, WORD:]  # the first word is random, so nothing can be learned there
        loss = F.cross_entropy(logits.flatten(0, 1), targets[:, WORD:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), losses


@torch.no_grad()
def generate(model: GPT, text: str, n: int) -> str:
    """Continue a text, one most likely character at a time."""
    tokens = encode(text)
    for _ in range(n):
        logits = model(tokens[:, -CONTEXT:])[:, -1]  # [batch, vocab]
        tokens = torch.cat([tokens, logits.argmax(dim=-1, keepdim=True)], dim=1)
    return decode(tokens)


if __name__ == "__main__":
    model, losses = train()
    print(f"loss {losses[0]:.2f} → {losses[-1]:.3f}")
    print(generate(model, "dbca:", WORD))
