"""The parts that a LLaMA-style block is made of: RMSNorm, SwiGLU and rotary position embeddings."""

from collections.abc import Sequence

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


class RopeTable(Tensor):
    """A complex tensor that stays complex in a model that is moved to another precision.

    `model.to(torch.bfloat16)` casts complex buffers too, which drops every sine. A table of this type follows to
    another device and keeps its numbers. What is computed from it, `table[positions]` included, is a plain tensor.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    def to(self, *args, **kwargs) -> "RopeTable":
        """`Tensor.to`, but for a dtype that is not complex, which is ignored."""
        real = lambda value: isinstance(value, torch.dtype) and not value.is_complex  # noqa: E731
        args = [None if real(value) else value for value in args]
        kwargs = {name: value for name, value in kwargs.items() if not real(value)}
        return super().to(*args, **kwargs).as_subclass(RopeTable)

    def __deepcopy__(self, memo: dict) -> "RopeTable":
        return memo.setdefault(id(self), self.clone().as_subclass(RopeTable))


def precompute_rope_frequencies(
    head_dim: int,
    max_len: int,
    theta: float = 10_000.0,
    *,
    factors: Sequence[float] | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Every rotation that RoPE needs (Su et al., 2021), as complex numbers: multiplying by one turns a pair.

    Pair `j` of a head at position `pos` turns by `pos * theta_j / factors[j]` radians, where
    `theta_j = theta ** (-2 j / head_dim)`.

    Args:
        head_dim: numbers in a head, even.
        max_len: positions, from 0 on.
        theta: the base of the frequencies.
        factors: `head_dim // 2` numbers by which the frequencies are divided: how a model is stretched to contexts
            longer than those it was first trained on (linear scaling, Llama 3's, `rope_freqs.weight` in GGUF).
            None divides by 1.
        scale: the length of every rotation. It multiplies queries and keys alike, so scores grow by its square:
            YaRN's attention factor (Peng et al., 2023).

    Returns:
        complex64 `(max_len, head_dim // 2)`: `scale * exp(i * pos * theta_j / factors[j])`. `apply_rope` takes it
        whole, or indexed with positions, `freqs[positions]`. It is a `RopeTable`, and may be a model's buffer.

    Raises:
        ValueError: an odd `head_dim`, since RoPE rotates pairs; another number of factors than pairs.
    """
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, because RoPE rotates pairs; got {head_dim}")
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)  # (head_dim / 2,)
    if factors is not None:
        if len(factors) != head_dim // 2:
            raise ValueError(
                f"factors must hold one number for each of the {head_dim // 2} pairs of a head, got {len(factors)}"
            )
        frequencies = frequencies / torch.tensor(factors, dtype=torch.float32)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies)  # (max_len, head_dim / 2)
    return torch.polar(torch.full_like(angles, scale), angles).as_subclass(RopeTable)


def apply_rope(q: Tensor, k: Tensor, freqs: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions; neighbouring numbers `(2i, 2i + 1)` form a pair.

    Args:
        q: `(B, T, n_heads, head_dim)`; without a batch, `(T, n_heads, head_dim)`, too.
        k: `(B, T, n_kv_heads, head_dim)`, as q.
        freqs: complex rotations from `precompute_rope_frequencies`, one of
            - `(max_len, head_dim // 2)`, the whole table: its first `T` rows are used, so the tokens stand at
              positions 0 to T - 1;
            - `(T, head_dim // 2)`, rows picked for `T` positions that all sequences of the batch share;
            - `(B, T, head_dim // 2)`, rows picked for each sequence.
            With two axes, row `t` always belongs to token `t`, and rows behind the `T`-th are not looked at. So a
            batch of `B` single tokens (`T = 1`) at positions of their own needs three axes:
            `freqs[positions]` with positions `(B, 1)`, not `(B,)`, which would rotate all of them by the first row.

    Returns:
        The rotated `q` and `k`, with their shapes and dtypes. The rotation itself is done in float32.

    Raises:
        ValueError: fewer rows than tokens; three axes that are not `(B, T)` and pairs; rotations that are not complex.
    """
    *batch, length = q.shape[:-2]
    if not freqs.is_complex():
        raise ValueError(
            f"freqs must be complex, as precompute_rope_frequencies returns it, got {freqs.dtype}; was the table cast "
            "to another dtype, which drops the sines?"
        )
    if freqs.ndim == 2:
        freqs = freqs[:length]
    if freqs.shape[-2] != length or (freqs.ndim > 2 and list(freqs.shape[:-2]) not in ([1], batch)):
        sequences = batch[0] if batch else 1
        raise ValueError(
            f"freqs of shape {tuple(freqs.shape)} do not rotate {sequences} sequences of {length} tokens: expected "
            f"(rows, head_dim / 2) with at least {length} rows, or ({sequences}, {length}, head_dim / 2)"
        )
    freqs = freqs.unsqueeze(-2)  # (..., T, 1, head_dim / 2): the same for every head
    return _rotate(q, freqs), _rotate(k, freqs)


def _rotate(x: Tensor, freqs: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())  # (..., head_dim / 2)
    return torch.view_as_real(pairs * freqs).flatten(-2).to(x.dtype)
