"""A step makes room first and admits after it, into the same pass; who runs holds one slot more than it needs.

So a request that gave its slot ahead away can be preempted and admitted again within one step. A tensor for each layer
and each key/value head; the pass is one flat batch with a mask over the whole pool, by the owner of each slot.
"""

import torch

from ai_playground.models.layers import apply_rope
from m13b_greedy import check_request, default_model


class Pool:
    """Who owns each slot of the pool, and which position of the owner's text stands in it."""

    def __init__(self, model, blocks, size):
        c, dtype = model.config, model.embedding.weight.dtype
        self.size, self.free = size, list(range(blocks))
        self.owner = torch.full((blocks * size,), -1)
        self.position = torch.zeros(blocks * size, dtype=torch.long)
        self.kv = [
            [torch.zeros(2, blocks * size, c.head_dim, dtype=dtype) for _ in range(c.n_kv_heads)] for _ in model.layers
        ]

    def give(self, number, blocks, tokens):
        """Extend a request's blocks until they hold so many tokens; False, and nothing, if too few are free."""
        missing = -(-tokens // self.size) - len(blocks)
        if missing > len(self.free):
            return False
        for _ in range(missing):
            block = self.free.pop()
            slots = slice(block * self.size, (block + 1) * self.size)
            self.owner[slots] = number
            self.position[slots] = torch.arange(self.size) + len(blocks) * self.size
            blocks.append(block)
        return True

    def take_back(self, number, blocks):
        self.owner[self.owner == number] = -1
        self.free += blocks
        blocks.clear()


@torch.no_grad()
def forward(model, pool, rows):
    """`rows`: (number, text, first new position); the next token of each."""
    c = model.config
    new = [(number, at, text[at]) for number, text, start in rows for at in range(start, len(text))]
    owner, position, tokens = torch.tensor(new).unbind(1)
    mine = pool.owner == owner[:, None]  # (T, slots)
    here = pool.position == position[:, None]
    slot = (mine & here).long().argmax(1)
    visible = mine & (pool.position <= position[:, None])
    angles = model.rope_frequencies(position.device)[position]
    x = model.embedding(tokens)
    for layer, heads in zip(model.layers, pool.kv, strict=True):
        h = layer.attn_norm(x)
        q = layer.attn.wq(h).view(len(new), c.n_heads, c.head_dim)
        k = layer.attn.wk(h).view(len(new), c.n_kv_heads, c.head_dim)
        q, k = apply_rope(q, k, angles)
        v = layer.attn.wv(h).view_as(k)
        attended, group = [], c.n_heads // c.n_kv_heads
        for number, kv in enumerate(heads):
            kv[0, slot], kv[1, slot] = k[:, number], v[:, number]
            for query in q[:, number * group : (number + 1) * group].unbind(1):
                scores = (query @ kv[0].T / c.head_dim**0.5).masked_fill(~visible, -torch.inf)
                attended.append(scores.softmax(-1) @ kv[1])
        x = x + layer.attn.wo(torch.cat(attended, -1))
        x = x + layer.ffn(layer.ffn_norm(x))
    last = torch.tensor([len(text) - start for _, text, start in rows]).cumsum(0) - 1
    return model.unembed(model.norm(x[last])).argmax(-1).tolist()


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
    if block_budget is None:
        ends = [len(prompt) + max_new for prompt in requests]
        block_budget = max([0, *(-(-end // block_size) for end in ends)]) * max(1, (max_batch + 1) // 2)
    for i, prompt in enumerate(requests):
        if max_new and len(prompt) + max_new - 1 > block_budget * block_size:
            raise ValueError(
                f"request {i} caches {len(prompt) + max_new - 1} tokens, {block_budget} blocks hold "
                f"{block_budget * block_size}"
            )
    texts, made = [list(prompt) for prompt in requests], [0] * len(requests)
    blocks, cached = [[] for _ in requests], [0] * len(requests)
    pool = Pool(model, block_budget, block_size)
    waiting, running = list(range(len(requests))) if max_new else [], []
    history, preemptions = [], 0
    stops = (eos_id,) if not isinstance(eos_id, tuple) else eos_id

    def ahead(i):
        """The newest token's slot and, if there can be one, that of the token after it."""
        return min(len(texts[i]) + 1, len(requests[i]) + max_new - 1)

    while waiting or running:
        open_batch = continuous or not running
        for i in list(running):
            while i in running and not pool.give(i, blocks[i], ahead(i)):
                victim = running.pop()
                pool.take_back(victim, blocks[victim])
                cached[victim] = 0
                waiting.insert(0, victim)
                preemptions += 1
        while open_batch and waiting and len(running) < max_batch:
            if not pool.give(waiting[0], blocks[waiting[0]], len(texts[waiting[0]])):
                break
            running.append(waiting.pop(0))
        batch = list(running)
        for i, token in zip(batch, forward(model, pool, [(i, texts[i], cached[i]) for i in batch]), strict=True):
            cached[i] = len(texts[i])
            texts[i].append(token)
            made[i] += 1
            if made[i] == max_new or token in stops:
                running.remove(i)
                pool.take_back(i, blocks[i])
        history.append(
            {
                "running": len(batch),
                "reserved": sum(len(requests[i]) + max_new for i in running),
                "allocated": sum(len(blocks[i]) for i in running) * block_size,
                "used": sum(cached[i] for i in running),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": len(requests),
        "preemptions": preemptions,
        "outputs": [text[len(prompt) :] for text, prompt in zip(texts, requests, strict=True)],
        "steps": len(history),
        "history": history,
    }
