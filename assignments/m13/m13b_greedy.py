"""M13b: greedy decoding, once by full recompute and once through a paged KV cache.

The paged cache follows PagedAttention (Kwon et al., SOSP 2023): physical memory is a pool of equal blocks of
`block_size` token slots, and each sequence has a block table that says which blocks hold its tokens, in order.

Card: milestones/m13/m13b.md
"""

from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ai_playground.models import TransformerConfig
from ai_playground.models.layers import apply_rope
from ai_playground.workspace import default_workspace
from m13a_load_model import load_model


@lru_cache(maxsize=1)
def _model_of(ws: Path) -> nn.Module:
    return load_model(ws)


def default_model() -> nn.Module:
    """The workspace's model, loaded on first use (given)."""
    return _model_of(default_workspace())


def check_request(name: str, prompt_ids: list[int], max_new: int, config: TransformerConfig) -> None:
    """Refuse a request that cannot be served, before any work is done (given).

    Raises:
        ValueError: an empty prompt, a negative `max_new`, a token outside the vocabulary or a request longer
            than `max_seq_len`; the message names the request and the numbers.
    """
    if not prompt_ids:
        raise ValueError(f"{name}: the prompt is empty; give at least one token id")
    if max_new < 0:
        raise ValueError(f"{name}: the number of new tokens must not be negative, got {max_new}")
    for position, token in enumerate(prompt_ids):
        if not 0 <= token < config.vocab_size:
            raise ValueError(f"{name}: token id {token} at position {position} is outside [0, {config.vocab_size})")
    if len(prompt_ids) + max_new > config.max_seq_len:
        raise ValueError(
            f"{name}: {len(prompt_ids)} prompt tokens + {max_new} new ones are more than max_seq_len "
            f"({config.max_seq_len})"
        )


@torch.no_grad()
def greedy_reference(prompt_ids: list[int], n: int, *, model: nn.Module | None = None) -> list[int]:
    """The `n` most likely next tokens, one after the other, with the whole sequence recomputed for each.

    Slow and hard to get wrong: this is what the paged engine is compared with.

    Args:
        prompt_ids: token ids, at least one.
        n: how many tokens to make.
        model: any `Transformer`; None takes the workspace's.

    Returns:
        The `n` new token ids, without the prompt; the argmax, and the first index on a tie.

    Raises:
        ValueError: what `check_request` refuses, before any work.
    """
    model = model or default_model()
    raise NotImplementedError("M13b: greedy_reference is not written yet. Card: milestones/m13/m13b.md")


class BlockManager:
    """Hands the blocks of a pool to sequences and takes them back. It never touches the tensors.

    `tables[seq_id]` is that sequence's block table: the physical block of its tokens `0..block_size - 1`, then
    of the next `block_size` tokens, and so on. `free` are the blocks that nobody owns. Every block is always in
    exactly one of these places.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.tables: dict[int, list[int]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        raise NotImplementedError("M13b: BlockManager.blocks_for is not written yet. Card: milestones/m13/m13b.md")

    def reserve(self, seq_id: int, num_tokens: int) -> bool:
        """Grow the sequence's table, new or not, until it holds `num_tokens` tokens.

        Returns:
            False, with nothing changed, if too few blocks are free.
        """
        raise NotImplementedError("M13b: BlockManager.reserve is not written yet. Card: milestones/m13/m13b.md")

    def release(self, seq_id: int) -> None:
        """Take all blocks of a sequence back and forget its table."""
        raise NotImplementedError("M13b: BlockManager.release is not written yet. Card: milestones/m13/m13b.md")


class PagedKVCache:
    """The physical memory: for each layer the keys and values of `num_blocks * block_size` token slots.

    `keys` and `values` are `(n_layers, num_blocks, block_size, n_kv_heads, head_dim)`, in the dtype and on the
    device of the model's weights. It knows no sequences: block tables say whose slot is whose.
    """

    def __init__(self, model: nn.Module, num_blocks: int, block_size: int) -> None:
        config, weight = model.config, next(model.parameters())
        shape = (config.n_layers, num_blocks, block_size, config.n_kv_heads, config.head_dim)
        self.block_size = block_size
        self.keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.values = torch.zeros(shape, dtype=weight.dtype, device=weight.device)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store the keys and values of new tokens in their slots.

        Args:
            layer: index of the layer.
            slots: `(B, T)` int64 flat slot numbers, `block * block_size + offset`.
            k, v: `(B, T, n_kv_heads, head_dim)`.
        """
        raise NotImplementedError("M13b: PagedKVCache.write is not written yet. Card: milestones/m13/m13b.md")

    def gather(self, layer: int, block_tables: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values that the block tables point to, each sequence's in order.

        Args:
            layer: index of the layer.
            block_tables: `(B, max_blocks)` int64; short tables are padded with any valid block.

        Returns:
            keys and values, each `(B, max_blocks * block_size, n_kv_heads, head_dim)`. What stands beyond a
            sequence's context is garbage that attention must mask.
        """
        raise NotImplementedError("M13b: PagedKVCache.gather is not written yet. Card: milestones/m13/m13b.md")


@torch.no_grad()
def paged_forward(
    model: nn.Module, cache: PagedKVCache, tokens: Tensor, positions: Tensor, block_tables: Tensor
) -> Tensor:
    """Run new tokens through the model; their keys and values go to the pool, and they attend through it.

    One function serves both phases: prefill is one sequence with many new tokens, decode is many sequences
    with one new token each. Nothing here loops over sequences.

    Args:
        model: a `Transformer`.
        cache: the pool.
        tokens: `(B, T)` int64, the new tokens.
        positions: `(B, T)` int64, where each of them stands in its sequence. Everything before the first of a
            row is in the pool already.
        block_tables: `(B, max_blocks)` int64, padded with any valid block.

    Returns:
        `(B, vocab_size)` logits after the last new token of each row.
    """
    raise NotImplementedError("M13b: paged_forward is not written yet. Card: milestones/m13/m13b.md")


def greedy_paged(prompt_ids: list[int], n: int, *, model: nn.Module | None = None, block_size: int = 16) -> list[int]:
    """The same tokens as `greedy_reference`, with each token going through the model once.

    Args, Returns, Raises: as `greedy_reference`; `block_size` is the number of token slots in a block.
    """
    model = model or default_model()
    raise NotImplementedError("M13b: greedy_paged is not written yet. Card: milestones/m13/m13b.md")
