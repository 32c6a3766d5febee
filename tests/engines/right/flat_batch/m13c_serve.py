"""vLLM v1's shape: one flat batch a step, chunks of prompts and decodes mixed, led by counts of computed tokens.

There are no phases: a step gives each request tokens up to a budget, and who has computed all that it has gets a new
one. The pool begins as NaN, so nothing that was not written may be read.
"""

import torch
import torch.nn.functional as F

from ai_playground.models.layers import apply_rope
from m13b_greedy import check_request, default_model

TOKENS_A_STEP = 24


class Request:
    def __init__(self, prompt):
        self.tokens, self.prompt, self.computed, self.blocks = list(prompt), len(prompt), 0, []


class Scheduler:
    def __init__(self, requests, blocks, size, max_batch, continuous):
        self.waiting, self.running, self.free = list(requests), [], list(range(blocks))
        self.size, self.max_batch, self.continuous, self.preemptions = size, max_batch, continuous, 0

    def allocate(self, request, tokens):
        missing = -(-tokens // self.size) - len(request.blocks)
        if missing > len(self.free):
            return False
        for _ in range(missing):
            request.blocks.append(self.free.pop())
        return True

    def release(self, request):
        while request.blocks:
            self.free.append(request.blocks.pop())

    def schedule(self):
        """Who computes how many tokens in this step, in pairs."""
        budget, batch, lost = max(TOKENS_A_STEP, self.max_batch), [], False
        for request in list(self.running):
            new = min(len(request.tokens) - request.computed, budget)
            while request in self.running and new and not self.allocate(request, request.computed + new):
                victim = self.running.pop()
                self.release(victim)
                victim.computed, lost = 0, True
                self.waiting.insert(0, victim)
                self.preemptions += 1
            if request in self.running and new:
                batch.append((request, new))
                budget -= new
        if lost or (self.running and not self.continuous and not self.filling):
            return batch
        self.filling = True  # a static batch is open until it is full or its first token is made
        while self.waiting and len(self.running) < self.max_batch and budget:
            request = self.waiting[0]
            new = min(len(request.tokens), budget)
            if not self.allocate(request, new):
                break
            self.running.append(self.waiting.pop(0))
            batch.append((request, new))
            budget -= new
        self.filling = not any(r.computed + new == len(r.tokens) for r, new in batch)
        return batch

    filling = False


@torch.no_grad()
def forward(model, pool, batch, size):
    """The next token of each request of the batch, after its last new one."""
    tokens, positions, slots, spans = [], [], [], []
    for request, new in batch:
        places = range(request.computed, request.computed + new)
        spans.append((len(tokens), len(tokens) + new))
        tokens += [request.tokens[p] for p in places]
        positions += places
        slots += [request.blocks[p // size] * size + p % size for p in places]
    contexts = []
    for request, new in batch:
        length = request.computed + new
        place = torch.arange(length)
        contexts.append(torch.tensor(request.blocks)[place // size] * size + place % size)
    position, slot = torch.tensor(positions), torch.tensor(slots)
    angles, heads = model.rope_frequencies(position.device)[position], model.config.head_dim
    x = model.embedding(torch.tensor(tokens))  # (tokens of all requests, dim)
    for k_pool, v_pool, layer in zip(*pool, model.layers, strict=True):
        h = layer.attn_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, heads)) for w in (layer.attn.wq, layer.attn.wk, layer.attn.wv))
        q, k = apply_rope(q, k, angles)
        k_pool[slot], v_pool[slot] = k, v
        out = torch.empty_like(q)
        for (start, end), where in zip(spans, contexts, strict=True):
            visible = position[start:end, None] >= torch.arange(len(where))
            qkv = (t.transpose(0, 1) for t in (q[start:end], k_pool[where], v_pool[where]))
            out[start:end] = F.scaled_dot_product_attention(*qkv, visible, enable_gqa=True).transpose(0, 1)
        x = x + layer.attn.wo(out.flatten(1))
        x = x + layer.ffn(layer.ffn_norm(x))
    ends = torch.tensor([end - 1 for _, end in spans])
    return model.unembed(model.norm(x[ends])).argmax(-1).tolist()


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
    most = []
    for i, prompt in enumerate(requests):
        check_request(f"request {i}", prompt, max_new, c)
        most.append(-(-(len(prompt) + max_new - 1) // block_size) if max_new else 0)
    if block_budget is None:
        begin = sum(-(-len(prompt) // block_size) for prompt in requests[:max_batch])
        block_budget = max([(begin + sum(most[:max_batch])) // 2, *most])
    for i, blocks in enumerate(most):
        if blocks > block_budget:
            raise ValueError(f"request {i} would need {blocks} blocks, there are {block_budget}")
    everybody = [Request(prompt) for prompt in requests]
    scheduler = Scheduler(everybody if max_new else [], block_budget, block_size, max_batch, continuous)
    shape = (block_budget * block_size, c.n_kv_heads, c.head_dim)
    pool = [
        [torch.full(shape, torch.nan, dtype=model.embedding.weight.dtype) for _ in model.layers] for _ in ("k", "v")
    ]
    history, ends = [], {eos_id} if isinstance(eos_id, int) else set(eos_id or ())
    while scheduler.waiting or scheduler.running:
        batch = scheduler.schedule()
        for (request, new), token in zip(batch, forward(model, pool, batch, block_size), strict=True):
            request.computed += new
            if request.computed < len(request.tokens):
                continue  # a chunk of the prompt: what follows it is known
            request.tokens.append(token)
            if len(request.tokens) == request.prompt + max_new or token in ends:
                scheduler.running.remove(request)
                scheduler.release(request)
        history.append(
            {
                "running": len(batch),
                "reserved": sum(r.prompt + max_new for r in scheduler.running),
                "allocated": sum(len(r.blocks) for r in scheduler.running) * block_size,
                "used": sum(r.computed for r in scheduler.running),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": len(everybody),
        "preemptions": scheduler.preemptions,
        "outputs": [r.tokens[r.prompt :] for r in everybody],
        "steps": len(history),
        "history": history,
    }
