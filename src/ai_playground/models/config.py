"""The numbers that define a model's shape."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a LLaMA-style decoder (Touvron et al., 2023) with grouped-query attention (Ainslie et al., 2023).

    `n_kv_heads == n_heads` is multi-head attention, `n_kv_heads == 1` multi-query attention, and anything
    between is grouped-query attention. `head_dim` defaults to `dim // n_heads`, `n_kv_heads` to `n_heads`.
    `rope_factors` (`head_dim // 2` numbers) divide RoPE's frequencies and `rope_scale` multiplies its rotations; see
    `precompute_rope_frequencies`.

    Raises:
        ValueError: a size that cannot be built, naming the field and what it must be.
    """

    vocab_size: int
    dim: int
    n_layers: int
    n_heads: int
    hidden_dim: int
    max_seq_len: int
    n_kv_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = False
    eos_id: int | None = None
    rope_factors: tuple[float, ...] | None = None
    rope_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.head_dim is None:
            if self.n_heads and self.dim % self.n_heads:
                raise ValueError(
                    f"dim ({self.dim}) must be a multiple of n_heads ({self.n_heads}), or give head_dim explicitly"
                )
            object.__setattr__(self, "head_dim", self.dim // max(self.n_heads, 1))
        sizes = "vocab_size dim n_layers n_heads hidden_dim max_seq_len n_kv_heads head_dim"
        for name in sizes.split():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads ({self.n_heads}) must be a multiple of n_kv_heads ({self.n_kv_heads}): "
                "every key/value head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, because RoPE rotates pairs; got {self.head_dim}")
        if self.rope_factors is not None:
            if not isinstance(self.rope_factors, list | tuple):
                raise ValueError(f"rope_factors must be a list of numbers, got {self.rope_factors!r}")
            object.__setattr__(self, "rope_factors", tuple(self.rope_factors))
            if len(self.rope_factors) != self.head_dim // 2:
                raise ValueError(
                    f"rope_factors must hold one number for each of the {self.head_dim // 2} pairs of a head "
                    f"(head_dim {self.head_dim}), got {len(self.rope_factors)}"
                )
            for index, factor in enumerate(self.rope_factors):
                _check_positive(f"rope_factors[{index}]", factor)
        _check_positive("rope_scale", self.rope_scale)
        if self.eos_id is not None and not 0 <= self.eos_id < self.vocab_size:
            raise ValueError(f"eos_id must be in [0, {self.vocab_size}), got {self.eos_id}")

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token keeps in the KV cache: K and V, in every layer, for every key/value head."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `config.json` and `final.pt["config"]` hold them."""
        values = asdict(self)
        return values | {"rope_factors": list(self.rope_factors) if self.rope_factors else None}  # JSON has no tuples

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """The configuration that `to_dict` wrote.

        Raises:
            ValueError: an unknown field or a required one that is missing, named.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"unknown model configuration field(s) {unknown}; known are {sorted(known)}")
        try:
            return cls(**values)
        except TypeError as error:  # dataclass names the missing fields
            raise ValueError(f"incomplete model configuration: {error}") from None


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive, finite number, got {value!r}")
