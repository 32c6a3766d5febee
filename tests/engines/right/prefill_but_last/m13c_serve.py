"""A prefill only fills the cache: it takes all tokens but the newest, and makes none.

The first token of a request comes from the batch, like every other, in the step after its admission. So there is one
place where tokens are made and one where requests end.
"""

import torch

from m13b_greedy import PagedKVCache, check_request, default_model, paged_forward


class Blocks:
    """A free list threaded through one list: `next[block]` is the next free block."""

    def __init__(self, count):
        self.next, self.head, self.count = list(range(1, count + 1)), 0, count

    def pop(self):
        block, self.head, self.count = self.head, self.next[self.head], self.count - 1
        return block

    def push(self, block):
        self.next[block], self.head, self.count = self.head, block, self.count + 1


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
        block_budget = max([0, *((len(p) + max_new) // block_size + 1 for p in requests)]) * max(1, max_batch // 2)
    for i, prompt in enumerate(requests):
        need = (len(prompt) + max_new - 2) // block_size + 1 if max_new else 0
        if need > block_budget:
            raise ValueError(f"request {i} with {len(prompt)} tokens: {need} blocks, of which there are {block_budget}")
    cache, free = PagedKVCache(model, block_budget, block_size), Blocks(block_budget)
    texts = [list(prompt) for prompt in requests]
    tables: dict[int, list[int]] = {}  # of those that run
    upcoming = list(reversed(range(len(requests)))) if max_new else []  # the next one is the last
    order: list[int] = []
    history, preemptions = [], 0
    ends = eos_id if isinstance(eos_id, (tuple, list, set)) else {eos_id}

    def hold(i, tokens):
        lacking = -(-tokens // block_size) - len(tables[i])
        if lacking > free.count:
            return False
        tables[i] += [free.pop() for _ in range(lacking)]
        return True

    def drop(i):
        for block in tables.pop(i):
            free.push(block)

    def forward(rows):
        tokens, places, members = zip(*rows, strict=True)
        width = max(len(tables[i]) for i in members)
        padded = torch.tensor([(tables[i] * width)[:width] for i in members])  # the mask hides what is repeated
        return paged_forward(model, cache, torch.tensor(tokens), torch.tensor(places), padded).argmax(-1).tolist()

    while upcoming or order:
        open_batch = continuous or not order
        at = 0
        while at < len(order):
            if hold(order[at], len(texts[order[at]])):
                at += 1
                continue
            victim = order.pop()
            drop(victim)
            upcoming.append(victim)
            preemptions += 1
        newcomers = []
        while open_batch and upcoming and len(order) + len(newcomers) < max_batch:
            i = upcoming[-1]
            tables[i] = []
            if not hold(i, len(texts[i])):
                del tables[i]
                break
            newcomers.append(upcoming.pop())
        batch = list(order)
        if batch:
            made = forward([([texts[i][-1]], [len(texts[i]) - 1], i) for i in batch])
            for i, token in zip(batch, made, strict=True):
                texts[i].append(token)
                if len(texts[i]) == len(requests[i]) + max_new or token in ends:
                    order.remove(i)
                    drop(i)
        for i in newcomers:
            if len(texts[i]) > 1:
                forward([(texts[i][:-1], list(range(len(texts[i]) - 1)), i)])
        order += newcomers
        history.append(
            {
                "running": len(batch),
                "reserved": sum(len(requests[i]) + max_new for i in order),
                "allocated": sum(len(tables[i]) for i in order) * block_size,
                "used": sum(len(texts[i]) - 1 for i in order),
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
