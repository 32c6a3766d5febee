"""Shapes of the small random models that the checks use: one for each kind of attention and head."""

from typing import Any

_BASE: dict[str, Any] = {
    "vocab_size": 97,
    "dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 12,
    "hidden_dim": 80,
    "max_seq_len": 96,
    "norm_eps": 1e-5,
    "rope_theta": 10_000.0,
}

SHAPES: dict[str, dict[str, Any]] = {
    "gqa": _BASE,
    "mha": _BASE | {"n_kv_heads": 4, "rope_theta": 500.0},
    "mqa": _BASE | {"n_kv_heads": 1, "n_layers": 3},
    "tied": _BASE | {"tie_embeddings": True},
    "wide_heads": _BASE | {"n_heads": 6, "n_kv_heads": 3, "head_dim": 16, "norm_eps": 1e-2},
}

# Much KV memory for little work: one layer whose keys and values are 2 KiB a token.
HEAVY_CACHE: dict[str, Any] = _BASE | {"n_layers": 1, "n_heads": 8, "n_kv_heads": 8, "head_dim": 32}

# The chapter's toy model.
TOY: dict[str, Any] = {
    "vocab_size": 256,
    "dim": 128,
    "n_layers": 4,
    "n_heads": 8,
    "n_kv_heads": 4,
    "head_dim": 16,
    "hidden_dim": 256,
    "max_seq_len": 512,
}
