"""As a first readable version is written: one sequence at a time, one token at a time into the pool."""

import math

import torch

from ai_playground.models.layers import apply_rope
from ai_playground.workspace import default_workspace
from m13a_load_model import load_model

_loaded = []


def default_model():
    if not _loaded:
        _loaded.append(load_model(default_workspace()))
    return _loaded[0]


def check_request(name, prompt_ids, max_new, config):
    if len(prompt_ids) == 0:
        raise ValueError(f"{name}: empty prompt")
    bad = [t for t in prompt_ids if t < 0 or t >= config.vocab_size]
    if bad:
        raise ValueError(f"{name}: token {bad[0]} is not in the vocabulary of {config.vocab_size}")
    if len(prompt_ids) + max_new > config.max_seq_len:
        raise ValueError(f"{name}: {len(prompt_ids)} + {max_new} exceeds max_seq_len {config.max_seq_len}")


@torch.no_grad()
def greedy_reference(prompt_ids, n, *, model=None):
    model = default_model() if model is None else model
    check_request("greedy_reference", prompt_ids, n, model.config)
    sequence = list(prompt_ids)
    for _ in range(n):
        sequence.append(model(torch.tensor([sequence]))[0, -1].argmax().item())
    return sequence[-n:] if n else []


class Pool:
    """A pool a layer, keys and values apart, heads before offsets."""

    def __init__(self, model, num_blocks, block_size):
        c = model.config
        dtype = model.embedding.weight.dtype
        self.block_size = block_size
        self.k = [torch.empty(num_blocks, c.n_kv_heads, block_size, c.head_dim, dtype=dtype) for _ in model.layers]
        self.v = [torch.empty(num_blocks, c.n_kv_heads, block_size, c.head_dim, dtype=dtype) for _ in model.layers]
        self.available = set(range(num_blocks))


class Table:
    """The blocks of one sequence, and how many of their slots are taken."""

    def __init__(self, pool):
        self.pool, self.blocks, self.length = pool, [], 0

    def lacks(self, tokens):
        return max(0, math.ceil((self.length + tokens) / self.pool.block_size) - len(self.blocks))

    def extend(self, tokens):
        for _ in range(self.lacks(tokens)):
            self.blocks.append(self.pool.available.pop())

    def free(self):
        self.pool.available.update(self.blocks)
        self.blocks, self.length = [], 0


@torch.no_grad()
def forward(model, table, tokens):
    """Logits after the last of some new tokens of one sequence, whose slots are there."""
    c, pool, size = model.config, table.pool, table.pool.block_size
    start = table.length
    places = [divmod(start + i, size) for i in range(len(tokens))]
    total = start + len(tokens)
    x = model.embedding(torch.tensor(tokens))
    freqs = model.rope_frequencies(x.device)[start:total]
    for number, layer in enumerate(model.layers):
        h = layer.attn_norm(x)
        q = layer.attn.wq(h).view(1, -1, c.n_heads, c.head_dim)
        k = layer.attn.wk(h).view(1, -1, c.n_kv_heads, c.head_dim)
        v = layer.attn.wv(h).view(-1, c.n_kv_heads, c.head_dim)
        q, k = apply_rope(q, k, freqs)
        for i, (block, offset) in enumerate(places):
            pool.k[number][table.blocks[block], :, offset] = k[0, i]
            pool.v[number][table.blocks[block], :, offset] = v[i]
        keys = torch.cat([pool.k[number][b] for b in table.blocks], dim=1)[:, :total]
        values = torch.cat([pool.v[number][b] for b in table.blocks], dim=1)[:, :total]
        group = c.n_heads // c.n_kv_heads
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scores = q[0].transpose(0, 1).float() @ keys.float().transpose(1, 2) / math.sqrt(c.head_dim)
        for i in range(len(tokens)):
            scores[:, i, start + i + 1 :] = float("-inf")
        mixed = scores.softmax(-1).to(values.dtype) @ values
        x = x + layer.attn.wo(mixed.transpose(0, 1).reshape(len(tokens), -1))
        x = x + layer.ffn(layer.ffn_norm(x))
    table.length = total
    return model.unembed(model.norm(x))[-1]


def greedy_paged(prompt_ids, n, *, model=None, block_size=16):
    model = default_model() if model is None else model
    check_request("greedy_paged", prompt_ids, n, model.config)
    table = Table(Pool(model, math.ceil((len(prompt_ids) + n) / block_size), block_size))
    made, feed = [], list(prompt_ids)
    for _ in range(n):
        table.extend(len(feed))
        feed = [int(forward(model, table, feed).argmax())]
        made.extend(feed)
    return made
