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
    ### BEGIN SOLUTION
    check_request("greedy_reference", prompt_ids, n, model.config)
    device = next(model.parameters()).device
    tokens = list(prompt_ids)
    for _ in range(n):
        logits = model(torch.tensor([tokens], device=device))  # (1, T, vocab_size)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt_ids) :]
    ### END SOLUTION


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
        ### BEGIN SOLUTION
        return -(-num_tokens // self.block_size)  # ceiling division
        ### END SOLUTION

    def reserve(self, seq_id: int, num_tokens: int) -> bool:
        """Grow the sequence's table, new or not, until it holds `num_tokens` tokens.

        Returns:
            False, with nothing changed, if too few blocks are free.
        """
        ### BEGIN SOLUTION
        missing = self.blocks_for(num_tokens) - len(self.tables.get(seq_id, ()))
        if missing > len(self.free):
            return False
        table = self.tables.setdefault(seq_id, [])
        for _ in range(missing):
            table.append(self.free.pop())
        return True
        ### END SOLUTION

    def release(self, seq_id: int) -> None:
        """Take all blocks of a sequence back and forget its table."""
        ### BEGIN SOLUTION
        self.free.extend(self.tables.pop(seq_id))
        ### END SOLUTION


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
        ### BEGIN SOLUTION
        self.keys[layer].flatten(0, 1)[slots] = k  # flatten is a view here: the pool itself is written
        self.values[layer].flatten(0, 1)[slots] = v
        ### END SOLUTION

    def gather(self, layer: int, block_tables: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values that the block tables point to, each sequence's in order.

        Args:
            layer: index of the layer.
            block_tables: `(B, max_blocks)` int64; short tables are padded with any valid block.

        Returns:
            keys and values, each `(B, max_blocks * block_size, n_kv_heads, head_dim)`. What stands beyond a
            sequence's context is garbage that attention must mask.
        """
        ### BEGIN SOLUTION
        # (B, max_blocks, block_size, n_kv_heads, head_dim) -> blocks and offsets become one axis of positions
        return self.keys[layer][block_tables].flatten(1, 2), self.values[layer][block_tables].flatten(1, 2)
        ### END SOLUTION


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
    ### BEGIN SOLUTION
    block_size = cache.block_size
    freqs = model.rope_frequencies(tokens.device)[positions]  # (B, T, head_dim / 2), complex
    slots = block_tables.gather(1, positions // block_size) * block_size + positions % block_size  # (B, T)
    context = torch.arange(block_tables.shape[1] * block_size, device=tokens.device)
    # A token sees the positions up to its own: this hides the future, the unused tail of the last block and
    # the padding of the block tables at once.
    mask = (context <= positions[..., None]).unsqueeze(1)  # (B, 1, T, max_blocks * block_size)
    x = model.embedding(tokens)  # (B, T, dim)
    for index, layer in enumerate(model.layers):
        attn = layer.attn
        h = layer.attn_norm(x)
        q = attn.wq(h).unflatten(-1, (-1, attn.head_dim))  # (B, T, n_heads, head_dim)
        k = attn.wk(h).unflatten(-1, (-1, attn.head_dim))  # (B, T, n_kv_heads, head_dim)
        v = attn.wv(h).unflatten(-1, (-1, attn.head_dim))
        q, k = apply_rope(q, k, freqs)
        cache.write(index, slots, k, v)  # first write, then gather: a token attends to itself too
        keys, values = cache.gather(index, block_tables)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, enable_gqa=True
        )  # (B, n_heads, T, head_dim)
        x = x + attn.wo(out.transpose(1, 2).flatten(-2))
        x = x + layer.ffn(layer.ffn_norm(x))
    return model.unembed(model.norm(x[:, -1]))
    ### END SOLUTION


def greedy_paged(prompt_ids: list[int], n: int, *, model: nn.Module | None = None, block_size: int = 16) -> list[int]:
    """The same tokens as `greedy_reference`, with each token going through the model once.

    Args, Returns, Raises: as `greedy_reference`; `block_size` is the number of token slots in a block.
    """
    model = model or default_model()
    ### BEGIN SOLUTION
    check_request("greedy_paged", prompt_ids, n, model.config)
    device = next(model.parameters()).device
    num_blocks = -(-(len(prompt_ids) + n) // block_size)
    manager = BlockManager(num_blocks, block_size)
    cache = PagedKVCache(model, num_blocks, block_size)
    output: list[int] = []
    new, position = list(prompt_ids), 0  # prefill takes the whole prompt, each decode step one token
    while len(output) < n:
        manager.reserve(0, position + len(new))
        logits = paged_forward(
            model,
            cache,
            torch.tensor([new], device=device),
            torch.arange(position, position + len(new), device=device)[None],
            torch.tensor([manager.tables[0]], device=device),
        )
        position += len(new)
        new = [int(logits[0].argmax())]
        output += new
    return output
    ### END SOLUTION
