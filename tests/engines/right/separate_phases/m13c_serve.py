"""As vLLM's first scheduler: a step is either prefills (padded into one batch) or one decode of all that run.

Requests stand in one deque of waiting and one of running; the victim of a preemption is found by its position.
"""

from collections import deque
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from ai_playground.models.layers import apply_rope
from m13b_greedy import check_request, default_model


class Blocks:
    def __init__(self, count, size):
        self.size, self.free = size, deque(range(count))

    def short_of(self, request, length):
        return -(-length // self.size) - len(request.table)

    def give(self, request, length):
        request.table += [self.free.popleft() for _ in range(self.short_of(request, length))]

    def take_back(self, request):
        self.free.extend(request.table)
        request.table = []


@torch.inference_mode()
def run(model, pool, batch, new):
    """Argmax after the new tokens of each request: `new[i]` tokens of `batch[i]`, padded on the right."""
    c, size = model.config, pool.shape[3]
    longest, width = max(new), max(len(r.table) for r in batch)
    ends = torch.tensor([len(r.tokens) for r in batch])
    starts = ends - torch.tensor(new)
    positions = starts[:, None] + torch.arange(longest)  # (B, T); what lies behind a row's end is padding
    real = positions < ends[:, None]
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, (r, count) in enumerate(zip(batch, new, strict=True)):
        tokens[row, :count] = torch.tensor(r.tokens[-count:])
    tables = torch.tensor([r.table + [-1] * (width - len(r.table)) for r in batch])
    blocks = tables.gather(1, (positions // size).clamp(max=width - 1))
    rows, columns = real.nonzero(as_tuple=True)
    where = blocks[rows, columns], positions[rows, columns] % size
    angles = model.rope_frequencies(tokens.device)[positions.clamp(max=c.max_seq_len - 1)]
    visible = (torch.arange(width * size) <= positions[..., None])[:, None]
    x = model.embedding(tokens)
    for number, layer in enumerate(model.layers):
        h = layer.attn_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, c.head_dim)) for w in (layer.attn.wq, layer.attn.wk, layer.attn.wv))
        q, k = apply_rope(q, k, angles)
        pool[number, 0][where] = k[rows, columns]
        pool[number, 1][where] = v[rows, columns]
        kv = pool[number][:, tables].flatten(2, 3).transpose(2, 3)  # (2, B, n_kv_heads, context, head_dim)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), kv[0], kv[1], visible, enable_gqa=True)
        x = x + layer.attn.wo(out.transpose(1, 2).flatten(2))
        x = x + layer.ffn(layer.ffn_norm(x))
    last = x[torch.arange(len(batch)), torch.tensor(new) - 1]
    return model.unembed(model.norm(last)).argmax(-1).tolist()


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
    if block_budget is None:
        first = [-(-len(p) // block_size) for p in requests[:max_batch]]
        last = [-(-(len(p) + max_new - 1) // block_size) for p in requests]
        block_budget = max([0, *last, sum(first) + (sum(last[:max_batch]) - sum(first)) // 2])
    for i, prompt in enumerate(requests):
        if max_new and len(prompt) + max_new - 1 > block_budget * block_size:
            raise ValueError(f"request {i} of {len(prompt)} tokens never fits {block_budget} blocks")
    everybody = [SimpleNamespace(tokens=list(p), prompt=len(p), table=[]) for p in requests]
    waiting, running = deque(everybody if max_new else []), deque()
    manager = Blocks(block_budget, block_size)
    pool = torch.zeros(
        c.n_layers, 2, block_budget, block_size, c.n_kv_heads, c.head_dim, dtype=model.embedding.weight.dtype
    )
    history, preemptions = [], 0
    ends = eos_id if isinstance(eos_id, tuple) else (eos_id,)

    def done(r):
        made = len(r.tokens) - r.prompt
        return made == max_new or (made and r.tokens[-1] in ends)

    while waiting or running:
        admitted = []
        if continuous or not running:
            while waiting and len(running) + len(admitted) < max_batch:
                if manager.short_of(waiting[0], len(waiting[0].tokens)) > len(manager.free):
                    break
                manager.give(waiting[0], len(waiting[0].tokens))
                admitted.append(waiting.popleft())
        if admitted:
            batch = admitted
            made = run(model, pool, batch, [len(r.tokens) for r in batch])
            running.extend(admitted)
        else:
            position = 0
            while position < len(running):
                if manager.short_of(running[position], len(running[position].tokens)) > len(manager.free):
                    victim = running[len(running) - 1]
                    del running[len(running) - 1]
                    manager.take_back(victim)
                    waiting.insert(0, victim)
                    preemptions += 1
                else:
                    manager.give(running[position], len(running[position].tokens))
                    position += 1
            batch = list(running)
            made = run(model, pool, batch, [1] * len(batch))
        for r, token in zip(batch, made, strict=True):
            r.tokens.append(token)
            if done(r):
                running.remove(r)
                manager.take_back(r)
        history.append(
            {
                "running": len(batch),
                "reserved": sum(r.prompt + max_new for r in running),
                "allocated": sum(len(r.table) for r in running) * block_size,
                "used": sum(len(r.tokens) - 1 for r in running),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": len(everybody),
        "preemptions": preemptions,
        "outputs": [r.tokens[r.prompt :] for r in everybody],
        "steps": len(history),
        "history": history,
    }
