"""No pool tensor at all: a block is a tensor of its own, made when it is first needed and kept for later use.

K and V of all layers lie together in it, layers innermost but for the head.
"""

import torch

from ai_playground.models.layers import apply_rope
from ai_playground.workspace import default_workspace
from m13a_load_model import load_model


def default_model():
    return load_model(default_workspace())


def check_request(name, prompt_ids, max_new, config):
    if not prompt_ids:
        raise ValueError(f"{name} is empty")
    for token in prompt_ids:
        if token not in range(config.vocab_size):
            raise ValueError(f"{name}: no token {token} in a vocabulary of {config.vocab_size}")
    if len(prompt_ids) + max_new > config.max_seq_len:
        raise ValueError(f"{name}: {len(prompt_ids)} and {max_new} more exceed {config.max_seq_len}")


@torch.no_grad()
def greedy_reference(prompt_ids, n, *, model=None):
    model = model or default_model()
    check_request("the prompt", prompt_ids, n, model.config)
    tokens = torch.tensor([prompt_ids])
    for _ in range(n):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    return tokens[0, len(prompt_ids) :].tolist()


class BlockManager:
    """Blocks by number; the tensors are made lazily in `storage`."""

    def __init__(self, num_blocks, block_size):
        self.block_size, self.free, self.tables = block_size, list(range(num_blocks)), {}

    def blocks_for(self, num_tokens):
        return (num_tokens + self.block_size - 1) // self.block_size

    def reserve(self, seq_id, num_tokens):
        table = self.tables.setdefault(seq_id, [])
        more = self.blocks_for(num_tokens) - len(table)
        if more > len(self.free):
            return False
        for _ in range(more):
            table.append(self.free.pop(0))
        return True

    def release(self, seq_id):
        self.free += self.tables.pop(seq_id)


class PagedKVCache:
    def __init__(self, model, num_blocks, block_size):
        self.block_size, self.storage = block_size, {}

    def block(self, model, number):
        if number not in self.storage:
            c = model.config
            shape = (self.block_size, c.n_kv_heads, 2, c.n_layers, c.head_dim)
            self.storage[number] = torch.zeros(shape, dtype=model.embedding.weight.dtype)
        return self.storage[number]


@torch.no_grad()
def paged_forward(model, cache, tokens, positions, block_tables):
    """Row by row; padding of the tables is cut off by each row's own length."""
    return torch.stack(
        [_row(model, cache, t, p, table.tolist()) for t, p, table in zip(tokens, positions, block_tables, strict=True)]
    )


def _row(model, cache, tokens, positions, table):
    c, size, total = model.config, cache.block_size, int(positions[-1]) + 1
    table = table[: (total + size - 1) // size]
    freqs = model.rope_frequencies(tokens.device)[positions]
    x = model.embedding(tokens)
    causal = torch.arange(total)[None, :] > positions[:, None]
    for number, layer in enumerate(model.layers):
        h = layer.attn_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, c.head_dim)) for w in (layer.attn.wq, layer.attn.wk, layer.attn.wv))
        q, k = apply_rope(q, k, freqs)
        for i, position in enumerate(positions.tolist()):
            slot = cache.block(model, table[position // size])[position % size]
            slot[:, 0, number] = k[i]
            slot[:, 1, number] = v[i]
        kv = torch.cat([cache.block(model, b)[:, :, :, number] for b in table])[:total]  # (context, n_kv_heads, 2, hd)
        kv = kv[:, torch.arange(c.n_heads) // (c.n_heads // c.n_kv_heads)]
        scores = torch.einsum("thd,chd->htc", q, kv[:, :, 0]) * c.head_dim**-0.5
        weights = scores.masked_fill(causal, -torch.inf).float().softmax(-1).to(x.dtype)
        out = torch.einsum("htc,chd->thd", weights, kv[:, :, 1]).flatten(1)
        x = x + layer.attn.wo(out)
        x = x + layer.ffn(layer.ffn_norm(x))
    return model.unembed(model.norm(x[-1]))


def greedy_paged(prompt_ids, n, *, model=None, block_size=16):
    model = model or default_model()
    check_request("the prompt", prompt_ids, n, model.config)
    total = len(prompt_ids) + n
    manager, cache = BlockManager(-(-total // block_size), block_size), PagedKVCache(model, 0, block_size)
    sequence = list(prompt_ids)
    done = 0
    while len(sequence) < total:
        manager.reserve("only", len(sequence))
        positions = torch.arange(done, len(sequence))
        tables = torch.tensor([manager.tables["only"]])
        logits = paged_forward(model, cache, torch.tensor([sequence[done:]]), positions[None], tables)
        done = len(sequence)
        sequence.append(int(logits.argmax()))
    return sequence[len(prompt_ids) :]
