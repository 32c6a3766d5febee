"""Generation with a contiguous KV cache: what the chapter generalises to a paged one."""

from ai_playground.inference.generate import KVCache, generate, sample_top_p

__all__ = ["KVCache", "generate", "sample_top_p"]
