"""Attention goes through the block table one block at a time, with a running maximum and sum: nothing is gathered.

As in the paged attention kernel of vLLM and in FlashAttention: each block's scores are exponentiated against the
largest score so far, and what was summed before is scaled when a larger one comes.
"""

from functools import cache

import torch

from ai_playground.models.layers import apply_rope
from ai_playground.workspace import default_workspace
from m13a_load_model import load_model


@cache
def default_model():
    return load_model(default_workspace())


def check_request(name, prompt_ids, max_new, config):
    bad = [token for token in prompt_ids if token not in range(config.vocab_size)]
    if len(prompt_ids) == 0:
        raise ValueError(f"{name}: a prompt has 0 tokens, it needs 1 or more")
    if bad:
        raise ValueError(f"{name}: {bad[0]} is no token id, these go from 0 to {config.vocab_size - 1}")
    if max_new < 0 or len(prompt_ids) + max_new > config.max_seq_len:
        raise ValueError(f"{name}: {len(prompt_ids)} and {max_new} new tokens; the model takes {config.max_seq_len}")


@torch.no_grad()
def greedy_reference(prompt_ids, n, *, model=None):
    model = default_model() if model is None else model
    check_request("the prompt", prompt_ids, n, model.config)
    text = torch.tensor([prompt_ids])
    for _ in range(n):
        text = torch.cat((text, model(text)[:, -1:].argmax(-1)), dim=1)
    return text[0, len(prompt_ids) :].tolist()


class BlockManager:
    def __init__(self, num_blocks, block_size):
        self.block_size, self.free, self.tables = block_size, list(range(num_blocks)), {}

    def blocks_for(self, num_tokens):
        return (num_tokens + self.block_size - 1) // self.block_size

    def reserve(self, seq_id, num_tokens):
        table = self.tables.get(seq_id, [])
        missing = self.blocks_for(num_tokens) - len(table)
        if missing > len(self.free):
            return False
        fresh, self.free = self.free[: max(missing, 0)], self.free[max(missing, 0) :]
        self.tables[seq_id] = table + fresh
        return True

    def release(self, seq_id):
        self.free = self.tables.pop(seq_id) + self.free


class PagedKVCache:
    def __init__(self, model, num_blocks, block_size):
        c = model.config
        self.block_size = block_size
        shape = (2, c.n_layers, num_blocks, block_size, c.n_kv_heads, c.head_dim)
        self.pool = torch.zeros(shape, dtype=model.embedding.weight.dtype)


def attend(q, positions, tables, keys, values):
    """`q` (B, T, n_kv_heads, group, head_dim), `keys` and `values` (num_blocks, block_size, n_kv_heads, head_dim)."""
    size = keys.shape[1]
    largest = torch.full(q.shape[:-1], -torch.inf)
    total, summed = torch.zeros(q.shape[:-1]), torch.zeros(q.shape)
    for column in range(tables.shape[1]):
        k, v = keys[tables[:, column]].float(), values[tables[:, column]].float()  # (B, block_size, n_kv_heads, hd)
        scores = torch.einsum("btkgd,bskd->btkgs", q.float(), k) / q.shape[-1] ** 0.5
        hidden = column * size + torch.arange(size) > positions[..., None]  # (B, T, block_size)
        scores = scores.masked_fill(hidden[:, :, None, None], -torch.inf)
        new = torch.maximum(largest, scores.amax(-1))
        scale, weights = (largest - new).exp(), (scores - new[..., None]).exp()
        total = total * scale + weights.sum(-1)
        summed = summed * scale[..., None] + torch.einsum("btkgs,bskd->btkgd", weights, v)
        largest = new
    return (summed / total[..., None]).to(q.dtype)


@torch.no_grad()
def paged_forward(model, cache, tokens, positions, block_tables):
    c, size = model.config, cache.block_size
    angles = model.rope_frequencies(tokens.device)[positions]
    block, offset = block_tables.gather(1, positions // size), positions % size
    x = model.embedding(tokens)
    for keys, values, layer in zip(*cache.pool, model.layers, strict=True):
        h = layer.attn_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, c.head_dim)) for w in (layer.attn.wq, layer.attn.wk, layer.attn.wv))
        q, k = apply_rope(q, k, angles)
        keys[block, offset], values[block, offset] = k, v
        out = attend(q.unflatten(2, (c.n_kv_heads, -1)), positions, block_tables, keys, values)
        x = x + layer.attn.wo(out.flatten(2))
        x = x + layer.ffn(layer.ffn_norm(x))
    return model.unembed(model.norm(x[:, -1]))


def greedy_paged(prompt_ids, n, *, model=None, block_size=16):
    model = default_model() if model is None else model
    check_request("the prompt", prompt_ids, n, model.config)
    manager = BlockManager((len(prompt_ids) + n) // block_size + 1, block_size)
    cache, text, known = PagedKVCache(model, len(manager.free), block_size), list(prompt_ids), 0
    while len(text) < len(prompt_ids) + n:
        manager.reserve("the only one", len(text))
        places = torch.arange(known, len(text))
        tokens, table = torch.tensor(text[known:]), torch.tensor(manager.tables["the only one"])
        known = len(text)
        text.append(paged_forward(model, cache, tokens[None], places[None], table[None]).argmax().item())
    return text[len(prompt_ids) :]
