"""A LLaMA-style decoder-only Transformer with grouped-query attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ai_playground.models.config import TransformerConfig
from ai_playground.models.layers import RMSNorm, SwiGLU, apply_rope, precompute_rope_frequencies


class NormedLinear(nn.Linear):
    """A projection to heads whose outputs are normed head by head (Qwen3's queries and keys): RMSNorm over head_dim.

    Shapes:
        input `(..., dim)`, output `(..., heads * head_dim)`.
    """

    def __init__(self, dim: int, width: int, bias: bool, head_dim: int, eps: float) -> None:
        super().__init__(dim, width, bias)
        self.norm = RMSNorm(head_dim, eps)

    def forward(self, x: Tensor) -> Tensor:
        heads = super().forward(x).unflatten(-1, (-1, self.norm.weight.shape[0]))  # (..., heads, head_dim)
        return self.norm(heads).flatten(-2)


class Attention(nn.Module):
    """Causal self-attention with rotary positions; several query heads share a key/value head.

    Parameters: `wq (n_heads * head_dim, dim)`, `wk` and `wv (n_kv_heads * head_dim, dim)`,
    `wo (dim, n_heads * head_dim)`. LLaMA's have no biases; `config.qkv_bias` gives the first three one, and
    `config.qk_norm` makes `wq` and `wk` a `NormedLinear`. So whoever calls the projections need not know either.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = _to_heads(config, config.n_heads)
        self.wk = _to_heads(config, config.n_kv_heads)
        self.wv = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=config.qkv_bias)
        self.wo = nn.Linear(config.n_heads * config.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, freqs: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Attend from `x (B, T, dim)` to itself and to what `cache` holds of the tokens before it.

        Args:
            x: `(B, T, dim)`.
            freqs: complex64 `(T, head_dim // 2)`, the rotations of these `T` positions.
            cache: this layer's contiguous keys and values, each `(B, context, n_kv_heads, head_dim)`, whose
                last `T` places are free: they receive the new keys and values.

        Returns:
            `(B, T, dim)`.
        """
        q = self.wq(x).unflatten(-1, (-1, self.head_dim))  # (B, T, n_heads, head_dim)
        k = self.wk(x).unflatten(-1, (-1, self.head_dim))  # (B, T, n_kv_heads, head_dim)
        v = self.wv(x).unflatten(-1, (-1, self.head_dim))
        q, k = apply_rope(q, k, freqs)
        if cache is not None:
            keys, values = cache
            keys[:, -k.shape[1] :] = k
            values[:, -v.shape[1] :] = v
            k, v = keys, values
        new, context = q.shape[1], k.shape[1]
        # Row t of the new tokens stands at position context - new + t and sees everything up to itself.
        mask = torch.ones(new, context, dtype=torch.bool, device=x.device).tril(context - new)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, enable_gqa=True
        )  # (B, n_heads, T, head_dim)
        return self.wo(out.transpose(1, 2).flatten(-2))


def _to_heads(config: TransformerConfig, heads: int) -> nn.Linear:
    """The projection that makes queries, or keys."""
    width = heads * config.head_dim
    if config.qk_norm:
        return NormedLinear(config.dim, width, config.qkv_bias, config.head_dim, config.norm_eps)
    return nn.Linear(config.dim, width, bias=config.qkv_bias)


class Block(nn.Module):
    """Pre-norm block: attention, then the feed-forward layer, each added to the residual stream."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.dim, config.norm_eps)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn = SwiGLU(config.dim, config.hidden_dim)

    def forward(self, x: Tensor, freqs: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """`(B, T, dim)` to `(B, T, dim)`; the arguments are those of `Attention.forward`."""
        x = x + self.attn(self.attn_norm(x), freqs, cache)
        return x + self.ffn(self.ffn_norm(x))


def rope_table(config: TransformerConfig) -> Tensor:
    """complex64 `(max_seq_len, head_dim // 2)`: the rotations that a configuration asks for, factors included."""
    return precompute_rope_frequencies(
        config.head_dim,
        config.max_seq_len,
        config.rope_theta,
        factors=config.rope_factors,
        scale=config.rope_scale,
    )


class Transformer(nn.Module):
    """Token ids to next-token logits.

    Submodules: `embedding`, `layers[i].{attn_norm, attn.{wq, wk, wv, wo}, ffn_norm, ffn.{gate, up, down}}`,
    `norm`, `head`. They are created in this order, so a seed fixes the weights. With `tie_embeddings` the
    head shares the embedding's matrix, and the state dict holds it once, as `embedding.weight`.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = None if config.tie_embeddings else nn.Linear(config.dim, config.vocab_size, bias=False)
        self.place_rope_table()

    def place_rope_table(self) -> None:
        """Compute the rotations anew. They are no buffer: what the configuration says need not be in a state dict."""
        self._freqs = rope_table(self.config)

    def rope_frequencies(self, device: torch.device) -> Tensor:
        """`rope_table(self.config)`, kept on the device that asked last, whatever the dtype of the weights."""
        if self._freqs.device != device:
            self._freqs = self._freqs.to(device)
        return self._freqs

    def unembed(self, x: Tensor) -> Tensor:
        """`(..., dim)` hidden states, already normed, to `(..., vocab_size)` logits."""
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x)

    def forward(self, tokens: Tensor, cache: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Logits of every position.

        Args:
            tokens: `(B, T)` int64.
            cache: for each layer the contiguous keys and values of the whole context, these `T` tokens
                included (see `Attention.forward`); None means that `tokens` is the whole context.

        Returns:
            `(B, T, vocab_size)`, in the dtype of the weights.

        Raises:
            ValueError: a context longer than `max_seq_len`.
        """
        context = tokens.shape[1] if cache is None else cache[0][0].shape[1]
        if context > self.config.max_seq_len:
            raise ValueError(f"{context} tokens are more than the model's max_seq_len of {self.config.max_seq_len}")
        freqs = self.rope_frequencies(tokens.device)[context - tokens.shape[1] : context]
        x = self.embedding(tokens)  # (B, T, dim)
        for index, layer in enumerate(self.layers):
            x = layer(x, freqs, None if cache is None else cache[index])
        return self.unembed(self.norm(x))
