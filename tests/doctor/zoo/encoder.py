"""An encoder in the style of older libraries: heads flattened into the batch, bmm, a padding mask, and post-norm."""

import torch
from torch import nn


class MultiHead(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.depth = heads, hidden // heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dense = nn.Linear(hidden, hidden)

    def split(self, x):
        batch, length, hidden = x.shape
        x = x.reshape(batch, length, self.heads, self.depth)
        x = x.permute(0, 2, 1, 3)
        return x.reshape(batch * self.heads, length, self.depth)

    def forward(self, x, mask):
        batch, length, hidden = x.shape
        query = self.split(self.query(x))
        key = self.split(self.key(x))
        value = self.split(self.value(x))
        scores = torch.bmm(query, key.transpose(1, 2))
        scores = scores / self.depth**0.5
        if mask is not None:
            hidden_keys = mask[:, None, :].eq(0)
            hidden_keys = hidden_keys.repeat_interleave(self.heads, dim=0)
            scores = scores.masked_fill(hidden_keys, -1e9)
        probs = torch.softmax(scores, dim=2)
        context = torch.bmm(probs, value)
        context = context.reshape(batch, self.heads, length, self.depth)
        context = context.permute(0, 2, 1, 3).reshape(batch, length, hidden)
        return self.dense(context)


class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.attention = MultiHead(hidden, heads)
        self.intermediate, self.output = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)
        self.attention_norm, self.output_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, hidden_states, mask):
        attended = self.attention(hidden_states, mask)
        hidden_states = self.attention_norm(hidden_states + attended)
        inner = self.output(nn.functional.gelu(self.intermediate(hidden_states)))
        return self.output_norm(hidden_states + inner)


class Model(nn.Module):
    def __init__(self, vocab=61, hidden=30, heads=3, layers=2, longest=64):
        super().__init__()
        self.words = nn.Embedding(vocab, hidden)
        self.places = nn.Embedding(longest, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.head = nn.Linear(hidden, vocab)

    def forward(self, input_ids, attention_mask=None):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.places(places))
        for layer in self.layers:
            x = layer(x, attention_mask)
        return self.head(x)
