"""What the chapter gives its reader: the toy model, the physical KV memory, prefill, requests and a workload.

The notebook `mini_vllm.ipynb` imports this module and shows its source where it is used. What the reader writes
(the block manager, paged attention, decode, the engine) lives in the notebook alone.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ai_playground.models import Transformer, TransformerConfig
from ai_playground.models.layers import apply_rope
from ai_playground.models.transformer import Attention

__all__ = [
    "TOY",
    "KVPool",
    "OutOfBlocks",
    "Request",
    "chapter_workload",
    "greedy_full",
    "prefill",
    "project_qkv",
    "rotate",
]

TOY = TransformerConfig(
    vocab_size=256, dim=128, n_layers=4, n_heads=8, n_kv_heads=4, head_dim=16, hidden_dim=256, max_seq_len=512
)


class OutOfBlocks(RuntimeError):
    """A sequence needs a block and the pool has none left."""


class KVPool:
    """The physical memory: keys and values of every slot of every block of every layer.

    It knows nothing of sequences. Slot `s` is place `s % block_size` of block `s // block_size`.

    Shapes:
        keys, values: `(n_layers, num_blocks, block_size, n_kv_heads, head_dim)`, float32.
    """

    def __init__(self, config: TransformerConfig, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        shape = (config.n_layers, num_blocks, block_size, config.n_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape)
        self.values = torch.zeros(shape)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store one key and one value in each of `slots`, for one layer.

        Args:
            layer: index of the layer.
            slots: `(T,)` int64 slot numbers.
            keys: `(T, n_kv_heads, head_dim)`.
            values: `(T, n_kv_heads, head_dim)`.
        """
        # flatten is a view here: (num_blocks * block_size, n_kv_heads, head_dim)
        self.keys[layer].flatten(0, 1)[slots] = keys
        self.values[layer].flatten(0, 1)[slots] = values


def project_qkv(attention: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of `T` tokens, not yet rotated.

    Args:
        attention: one layer's attention.
        x: `(T, dim)`, already normed.

    Returns:
        q `(T, n_heads, head_dim)`, k and v `(T, n_kv_heads, head_dim)`.
    """
    return tuple(
        linear(x).unflatten(-1, (-1, attention.head_dim)) for linear in (attention.wq, attention.wk, attention.wv)
    )


def rotate(q: Tensor, k: Tensor, freqs: Tensor) -> tuple[Tensor, Tensor]:
    """RoPE for `T` tokens that stand at `T` positions of their own.

    Args:
        q: `(T, n_heads, head_dim)`.
        k: `(T, n_kv_heads, head_dim)`.
        freqs: complex64 `(T, head_dim // 2)`, the model's rotations at the tokens' positions.
    """
    q, k = apply_rope(q.unsqueeze(0), k.unsqueeze(0), freqs)
    return q.squeeze(0), k.squeeze(0)


@torch.no_grad()
def prefill(model: Transformer, pool: KVPool, manager, seq_id: int, tokens: list[int]) -> Tensor:
    """Run a whole sequence through the model in one pass; leave its keys and values in its slots.

    Attention is the ordinary causal one over the keys of this very pass: the pool is not read.

    Args:
        manager: has given `seq_id` room for its tokens; `manager.slot(seq_id, position)` says where.
        tokens: ids of positions 0 to T - 1.

    Returns:
        `(vocab_size,)` logits of the token that comes next.
    """
    slots = torch.tensor([manager.slot(seq_id, position) for position in range(len(tokens))])
    x = model.embedding(torch.tensor(tokens))  # (T, dim)
    freqs = model.rope_frequencies(x.device)[: len(tokens)]  # positions 0 to T - 1
    for index, layer in enumerate(model.layers):
        q, k, v = project_qkv(layer.attn, layer.attn_norm(x))  # (T, heads, head_dim)
        q, k = rotate(q, k, freqs)
        pool.write(index, slots, k, v)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True, enable_gqa=True
        )  # (n_heads, T, head_dim)
        x = x + layer.attn.wo(out.transpose(0, 1).flatten(1))
        x = x + layer.ffn(layer.ffn_norm(x))
    return model.unembed(model.norm(x[-1]))  # only the last position has a next token to predict


@torch.no_grad()
def greedy_full(model: Transformer, prompt: list[int], n: int) -> list[int]:
    """The `n` greedy tokens after `prompt` by full recompute: no cache, so nothing a cache could get wrong."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


@dataclass(eq=False)  # two requests are the same only if they are one object
class Request:
    """One user's request, and what has been generated for it so far.

    `max_new` is what the user allows, and what a slab must reserve. `stop_after` plays the part of the
    end-of-sequence token: generation ends there, and no scheduler may look at it beforehand.
    """

    id: int
    prompt: list[int]
    max_new: int
    stop_after: int
    output: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The whole sequence so far: prompt, then output."""
        return self.prompt + self.output

    @property
    def finished(self) -> bool:
        """The last token has been generated."""
        return len(self.output) >= self.stop_after


def chapter_workload() -> list[Request]:
    """24 requests from a fixed seed: prompts of 8 to 47 tokens, 48 to 79 tokens allowed, a part of them used."""
    rng = np.random.default_rng(7)
    requests = []
    for index in range(24):
        max_new = int(rng.integers(48, 80))
        prompt_len = int(rng.integers(8, 48))
        stop_after = int(rng.integers(5, max_new))
        # A generator of its own for the ids, so that the lengths above do not depend on them.
        prompt = np.random.default_rng((7, index)).integers(0, TOY.vocab_size, prompt_len).tolist()
        requests.append(Request(index, prompt, max_new, stop_after))
    return requests
