"""Batched prefill, padded on the left: all that are admitted together go through the model in one rectangle.

Everything ends in the last column, so the next tokens are there for a prefill and a decode alike. Padding is written
to a block of its own that nobody reads. A pool for each layer; the block that was given back first is taken first.
"""

from collections import deque

import torch
import torch.nn.functional as F

from ai_playground.models.layers import apply_rope
from m13b_greedy import check_request, default_model


class Request:
    def __init__(self, index, prompt, max_new):
        self.index, self.prompt, self.output, self.left, self.table = index, list(prompt), [], max_new, []

    @property
    def all_tokens(self):
        return self.prompt + self.output


class PaddedModel:
    def __init__(self, model, blocks, size):
        c = model.config
        self.model, self.size, self.nowhere = model, size, blocks
        shape = (2, blocks + 1, size, c.n_kv_heads, c.head_dim)
        self.pools = [torch.zeros(shape, dtype=model.embedding.weight.dtype) for _ in model.layers]

    @torch.no_grad()
    def __call__(self, batch, count):
        """The next tokens after the last `count(r)` tokens of each request."""
        counts = torch.tensor([count(r) for r in batch])
        ends = torch.tensor([len(r.all_tokens) for r in batch])
        columns = int(counts.max())
        position = ends[:, None] - columns + torch.arange(columns)  # (B, T); padding stands before the new tokens
        real = torch.arange(columns) >= columns - counts[:, None]
        rows = [[0] * (columns - count(r)) + r.all_tokens[-count(r) :] for r in batch]
        width = max(len(r.table) for r in batch)
        table = torch.tensor([r.table + [self.nowhere] * (width - len(r.table)) for r in batch])
        safe = position.clamp(min=0)
        block = torch.where(real, table.gather(1, safe // self.size), self.nowhere)
        visible = (torch.arange(width * self.size) <= safe[..., None])[:, None]
        angles = self.model.rope_frequencies(safe.device)[safe]
        x = self.model.embedding(torch.tensor(rows))
        for pool, layer in zip(self.pools, self.model.layers, strict=True):
            h, heads = layer.attn_norm(x), (-1, self.model.config.head_dim)
            q, k = apply_rope(layer.attn.wq(h).unflatten(-1, heads), layer.attn.wk(h).unflatten(-1, heads), angles)
            pool[0, block, safe % self.size] = k
            pool[1, block, safe % self.size] = layer.attn.wv(h).unflatten(-1, heads)
            keys, values = pool[:, table].flatten(2, 3).transpose(2, 3)
            out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, visible, enable_gqa=True)
            x = x + layer.attn.wo(out.transpose(1, 2).flatten(2))
            x = x + layer.ffn(layer.ffn_norm(x))
        return self.model.unembed(self.model.norm(x[:, -1])).argmax(-1).tolist()


def serve(
    requests,
    max_new,
    block_budget=None,
    *,
    model=None,
    block_size=16,
    max_batch=8,
    continuous=True,
    eos_id=None,
    on_step=None,
):
    model = model or default_model()
    for i, prompt in enumerate(requests):
        check_request(f"request {i}", prompt, max_new, model.config)
    blocks = lambda tokens: -(-tokens // block_size)  # noqa: E731
    if block_budget is None:
        first = requests[:max_batch]
        half = sum(blocks(len(p) + max_new // 2) for p in first)
        block_budget = max([half, *(blocks(len(p) + max_new - 1) for p in requests)])
    for i, prompt in enumerate(requests):
        if max_new and blocks(len(prompt) + max_new - 1) > block_budget:
            raise ValueError(f"request {i} has {len(prompt)} tokens and can never end in {block_budget} blocks")
    everybody = [Request(i, prompt, max_new) for i, prompt in enumerate(requests)]
    waiting, running = deque(everybody if max_new else ()), deque()
    free, forward = deque(range(block_budget)), PaddedModel(model, block_budget, block_size)
    history, preemptions, last = [], 0, frozenset([eos_id] if type(eos_id) is int else eos_id or [])

    def extend(r):
        missing = blocks(len(r.all_tokens)) - len(r.table)
        if missing > len(free):
            return False
        r.table += [free.popleft() for _ in range(missing)]
        return True

    def clear(r):
        free.extend(r.table)
        r.table = []

    def hand_out(batch, tokens):
        for r, token in zip(batch, tokens, strict=True):
            r.output.append(token)
            r.left = 0 if token in last else r.left - 1
            if not r.left:
                running.remove(r)
                clear(r)

    while waiting or running:
        admitted = []
        if continuous or not running:
            while waiting and len(running) < max_batch and extend(waiting[0]):
                admitted.append(waiting.popleft())
                running.append(admitted[-1])
        if admitted:
            hand_out(admitted, forward(admitted, lambda r: len(r.all_tokens)))
        for r in list(running):
            while r in running and not extend(r):
                victim = running.pop()
                clear(victim)
                waiting.appendleft(victim)
                preemptions += 1
        batch = list(running)
        if batch:
            hand_out(batch, forward(batch, lambda _: 1))
        history.append(
            {
                "running": len(batch),
                "reserved": sum(len(r.prompt) + max_new for r in running),
                "allocated": sum(len(r.table) for r in running) * block_size,
                "used": sum(len(r.all_tokens) - 1 for r in running),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": sum(not r.left for r in everybody),
        "preemptions": preemptions,
        "outputs": [r.output for r in everybody],
        "steps": len(history),
        "history": history,
    }
