"""Prefix sharing: full blocks are found again by their contents, counted by reference, and kept until they are needed.

A block's key is the whole text up to its end. Blocks that nobody holds stay findable in the order in which they were
left, so a preempted request mostly finds its own again and computes only what is missing.
"""

from collections import OrderedDict

import torch

from ai_playground.models.layers import apply_rope
from m13b_greedy import check_request, default_model


class SharedBlocks:
    def __init__(self, count, size):
        self.size = size
        self.holders = [0] * count
        self.key_of = [None] * count
        self.by_key = {}
        self.idle = OrderedDict.fromkeys(range(count))  # held by nobody, the one left longest ago first

    def find(self, text):
        """The blocks that hold the beginning of a text; at least its last token is left to compute."""
        found = []
        for end in range(self.size, len(text), self.size):
            block = self.by_key.get(tuple(text[:end]))
            if block is None:
                break
            found.append(block)
        return found

    def hold(self, block):
        self.holders[block] += 1
        self.idle.pop(block, None)

    def take(self):
        block, _ = self.idle.popitem(last=False)
        if self.key_of[block] is not None:
            del self.by_key[self.key_of[block]]
            self.key_of[block] = None
        self.holders[block] = 1
        return block

    def publish(self, block, text):
        if self.key_of[block] is None and tuple(text) not in self.by_key:
            self.key_of[block] = tuple(text)
            self.by_key[self.key_of[block]] = block

    def leave(self, table):
        for block in reversed(table):  # ends are taken before beginnings
            self.holders[block] -= 1
            if not self.holders[block]:
                self.idle[block] = None


class Request:
    def __init__(self, prompt):
        self.text, self.asked, self.cached, self.table = list(prompt), len(prompt), 0, []


@torch.no_grad()
def compute(model, pool, request, size):
    """Put what is not cached through the model; the token that follows."""
    head_dim, start, end = model.config.head_dim, request.cached, len(request.text)
    at = torch.arange(end)
    slots = torch.tensor(request.table)[at // size] * size + at % size
    angles = model.rope_frequencies(at.device)[start:end]
    x = model.embedding(torch.tensor(request.text[start:]))
    hidden = at > at[start:, None]
    for number, layer in enumerate(model.layers):
        h = layer.attn_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, head_dim)) for w in (layer.attn.wq, layer.attn.wk, layer.attn.wv))
        q, k = apply_rope(q, k, angles)
        pool[number, slots[start:]] = torch.stack((k, v), dim=1)
        k, v = pool[number, slots].unbind(1)  # (end, n_kv_heads, head_dim)
        q = q.unflatten(1, (k.shape[1], -1))  # (new, n_kv_heads, group, head_dim)
        scores = torch.einsum("tkgd,skd->kgts", q, k) * head_dim**-0.5
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        x = x + layer.attn.wo(torch.einsum("kgts,skd->tkgd", weights, v).flatten(1))
        x = x + layer.ffn(layer.ffn_norm(x))
    request.cached = end
    return int(model.unembed(model.norm(x[-1])).argmax())


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
    c = model.config
    for i, prompt in enumerate(requests):
        check_request(f"request {i}", prompt, max_new, c)
    at_end = [-(-(len(prompt) + max(max_new - 1, 0)) // block_size) for prompt in requests]
    if block_budget is None:
        at_start = [-(-len(prompt) // block_size) for prompt in requests[:max_batch]]
        block_budget = max([0, (sum(at_start) + sum(at_end[:max_batch])) // 2, *at_end])
    for i, blocks in enumerate(at_end):
        if max_new and blocks > block_budget:
            raise ValueError(f"request {i} ends with {blocks} blocks, more than the {block_budget} of the pool")
    everybody = [Request(prompt) for prompt in requests]
    waiting, running = everybody[:] if max_new else [], []
    blocks = SharedBlocks(block_budget, block_size)
    pool = torch.zeros(
        c.n_layers, block_budget * block_size, 2, c.n_kv_heads, c.head_dim, dtype=model.embedding.weight.dtype
    )
    stop_at = eos_id if isinstance(eos_id, tuple) else (eos_id,)
    history, preemptions = [], 0

    def advance(request):
        token = compute(model, pool, request, block_size)
        for number in range(request.cached // block_size):
            blocks.publish(request.table[number], request.text[: (number + 1) * block_size])
        request.text.append(token)
        if len(request.text) == request.asked + max_new or token in stop_at:
            running.remove(request)
            blocks.leave(request.table)
            request.table = []

    while waiting or running:
        open_batch = continuous or not running
        while open_batch and waiting and len(running) < max_batch:
            request = waiting[0]
            found = blocks.find(request.text)
            missing = -(-len(request.text) // block_size) - len(found)
            if missing > len(blocks.idle) - sum(block in blocks.idle for block in found):
                break
            for block in found:
                blocks.hold(block)
            request.table = found + [blocks.take() for _ in range(missing)]
            request.cached = len(found) * block_size
            running.append(waiting.pop(0))
            advance(request)
        at = 0
        while at < len(running):
            request = running[at]
            if len(request.table) * block_size >= len(request.text):
                at += 1
            elif blocks.idle:
                request.table.append(blocks.take())
            else:
                victim = running.pop()
                blocks.leave(victim.table)
                victim.table = []
                waiting.insert(0, victim)
                preemptions += 1
        batch = list(running)
        for request in batch:
            advance(request)
        history.append(
            {
                "running": len(batch),
                "reserved": sum(r.asked + max_new for r in running),
                "allocated": len({block for r in running for block in r.table}) * block_size,
                "used": sum(r.cached for r in running),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": len(everybody),
        "preemptions": preemptions,
        "outputs": [r.text[r.asked :] for r in everybody],
        "steps": len(history),
        "history": history,
    }
