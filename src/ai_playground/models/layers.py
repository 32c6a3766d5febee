"""The parts that a LLaMA-style block is made of: RMSNorm, SwiGLU and rotary position embeddings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (Zhang & Sennrich, 2019): `x / rms(x) * weight`, with no mean subtracted.

    The mean square is taken in float32, so that bfloat16 models normalise as precisely as float32 ones.

    Shapes:
        input and output `(..., dim)`, any float dtype.
    """

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight


class SwiGLU(nn.Module):
    """Gated feed-forward layer (Shazeer, 2020): `down(silu(gate(x)) * up(x))`, without biases.

    Shapes:
        input and output `(..., dim)`; inside, `(..., hidden)`.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def precompute_rope_frequencies(head_dim: int, max_len: int, theta: float = 10_000.0) -> Tensor:
    """Cosines and sines of every rotation that RoPE needs (Su et al., 2021).

    Pair `i` of a head turns by `position * theta ** (-2 i / head_dim)` radians.

    Returns:
        `(max_len, head_dim // 2, 2)` float32; the last axis is (cos, sin). Index it with positions:
        `freqs[positions]` is what `apply_rope` takes.

    Raises:
        ValueError: an odd `head_dim`, since RoPE rotates pairs.
    """
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, because RoPE rotates pairs; got {head_dim}")
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)  # (head_dim / 2,)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), inverse)  # (max_len, head_dim / 2)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def apply_rope(q: Tensor, k: Tensor, freqs: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions; neighbouring numbers `(2i, 2i + 1)` form a pair.

    Args:
        q: `(B, T, n_heads, head_dim)`.
        k: `(B, T, n_kv_heads, head_dim)`.
        freqs: the rows of `precompute_rope_frequencies` for the tokens' positions: `(T, head_dim // 2, 2)`
            when all sequences of the batch stand at the same positions, else `(B, T, head_dim // 2, 2)`.

    Returns:
        The rotated `q` and `k`, with their shapes and dtypes. The rotation itself is done in float32.
    """
    cos, sin = freqs.unsqueeze(-3).unbind(dim=-1)  # each (..., T, 1, head_dim / 2): the same for every head
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(dim=-1)  # each (..., head_dim / 2)
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return rotated.flatten(-2).to(x.dtype)
