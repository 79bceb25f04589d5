"""The workloads of step_bench, and language models, for PyTorch: modules, inputs and FLOPs.

Each workload is a function that makes one on the current default device.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

import measuring


class LinearRelu(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Stack(nn.Module):
    """Layers one after another; the loss is the mean of the last activation's squares."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return (x.float() ** 2).mean()


class Block(nn.Module):
    """Attention with causal mask and an MLP, GELU or SwiGLU, each after an RMSNorm."""

    def __init__(self, width, heads, kv_heads, hidden, swiglu):
        super().__init__()
        self.heads, self.kv_heads, self.head_width, self.swiglu = heads, kv_heads, width // heads, swiglu
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, hidden * (2 if swiglu else 1), bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        parts = [n * self.head_width for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (part.view(batch, length, -1, self.head_width).transpose(1, 2)
                   for part in self.qkv(self.attention_norm(x)).split(parts, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        hidden = self.up(self.mlp_norm(x))
        if self.swiglu:
            gate, hidden = hidden.chunk(2, -1)
            hidden = F.silu(gate) * hidden
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return x + self.down(hidden)


class LanguageModel(nn.Module):
    """The loss is the cross-entropy over the vocabulary."""

    def __init__(self, blocks, width, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), labels.flatten())


@dataclasses.dataclass
class Workload:
    model: nn.Module
    inputs: tuple  # of the model's forward
    flops: float  # of the matrix products of one microbatch


def seed4():
    x = torch.randn(8192, 16384, dtype=torch.bfloat16).requires_grad_()
    return Workload(Stack(LinearRelu(16384) for _ in range(4)), (x,), measuring.mlp_flops(4, 16384, 0, 8192, True))


def _mlp(width, hidden, tokens):
    x = torch.randn(tokens, width, dtype=torch.bfloat16)
    return Workload(Stack(Mlp(width, hidden) for _ in range(4)), (x,),
                    measuring.mlp_flops(4, width, hidden, tokens, False))


def mlp4():
    return _mlp(4096, 16384, 4096)


def mlp4s():
    return _mlp(1024, 4096, 1024)


def _language_model(layers, width, heads, kv_heads, hidden, vocabulary, swiglu, batch, length):
    model = LanguageModel([Block(width, heads, kv_heads, hidden, swiglu) for _ in range(layers)], width, vocabulary)
    in_products = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name)
    attention = 2 * layers * length * width  # scores and values, half of them masked
    tokens = [torch.randint(0, vocabulary, (batch, length)) for _ in range(2)]
    return Workload(model, tuple(tokens), 3.0 * batch * length * (2 * in_products + attention))


def gpt124():
    return _language_model(12, 768, 12, 12, 3072, 50304, False, 4, 1024)


def llama8():
    return _language_model(8, 4096, 32, 8, 14336, 32000, True, 1, 4096)


WORKLOADS = {f.__name__: f for f in (seed4, mlp4, mlp4s, gpt124, llama8)}
