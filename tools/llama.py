"""A plain Llama for training on a CPU; parameter names are those of Hugging Face's LlamaForCausalLM."""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Shape:
    """Sizes of the model, under their config.json names."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 448
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0

    def config(self, eos_token_id: int) -> dict:
        """The model's config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **asdict(self),
            "rope_scaling": None,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": eos_token_id,
            "eos_token_id": eos_token_id,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_table(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each [length, 1, head_dim], for the rotate-half form."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * inverse
    angle = torch.cat((angle, angle), dim=-1)[:, None, :]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies the rotary embedding to x [batch, length, heads, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


BLOCK = 128


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in blocks of queries, each over the keys up to its end; on AMX its backward is faster than torch's own.

    q [batch, length, heads, head_dim]; k, v [batch, length, kv_heads, head_dim]; result as q.
    """
    batch, length, heads, dim = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    q = q.reshape(batch, length, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    outputs = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        rows = end - start
        block = q[:, :, :, start:end].reshape(batch, kv_heads, group * rows, dim)
        scores = (block @ k[:, :, :end].mT).view(batch, kv_heads, group, rows, end)
        future = torch.arange(end) > torch.arange(start, end)[:, None]
        scores = (scores.float() * dim**-0.5).masked_fill(future, float("-inf"))
        weights = scores.softmax(-1).to(q.dtype).view(batch, kv_heads, group * rows, end)
        outputs.append((weights @ v[:, :, :end]).view(batch, kv_heads, group, rows, dim))
    return torch.cat(outputs, dim=3).permute(0, 3, 1, 2, 4).reshape(batch, length, heads, dim)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape = s
        self.q_proj = nn.Linear(s.hidden_size, s.num_attention_heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden_size, s.num_key_value_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden_size, s.num_key_value_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.num_attention_heads * s.head_dim, s.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s = self.shape
        batch, length, _ = x.shape
        heads, kv_heads = s.num_attention_heads, s.num_key_value_heads
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        qkv = F.linear(x, weight).view(batch, length, heads + 2 * kv_heads, s.head_dim)
        qk, v = qkv.split((heads + kv_heads, kv_heads), dim=2)
        q, k = rotate(qk, cos.to(qk.dtype), sin.to(qk.dtype)).split((heads, kv_heads), dim=2)
        out = causal_attention(q, k, v)
        return self.o_proj(out.reshape(batch, length, heads * s.head_dim))


class Mlp(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.up_proj = nn.Linear(s.hidden_size, s.intermediate_size, bias=False)
        self.down_proj = nn.Linear(s.intermediate_size, s.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, torch.cat((self.gate_proj.weight, self.up_proj.weight))).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = Norm(s.hidden_size, s.rms_norm_eps)
        self.mlp = Mlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_hidden_layers))
        self.norm = Norm(s.hidden_size, s.rms_norm_eps)


class Llama(nn.Module):
    """Llama with tied embeddings. `forward` gives the loss, not logits, as training needs nothing else."""

    def __init__(self, s: Shape, seed: int = 0) -> None:
        super().__init__()
        self.model = Trunk(s)
        cos, sin = rope_table(s.max_position_embeddings, s.head_dim, s.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.02 if "embed" in name else 0.0 if is_output else s.hidden_size**-0.5 * 0.5
                nn.init.normal_(p, std=std, generator=generator)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats of targets [batch, length] after ids [batch, length]; targets of -100 are ignored."""
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)
