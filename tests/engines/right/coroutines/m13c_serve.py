"""Each request is a coroutine that says what it needs next: blocks, or a pass over its new tokens.

The loop knows no phases and no lengths: it grants blocks to the oldest first, closes the youngest when there are none
(its blocks come back in its `finally`), and runs together all passes that are equally wide.
"""

from collections import defaultdict

import torch

from m13b_greedy import PagedKVCache, check_request, default_model, paged_forward


class NeedBlock:
    pass


class NeedPass:
    def __init__(self, table, tokens, start):
        self.table, self.tokens, self.start = table, tokens, start


class Life:
    """A request; `text` outlives its coroutine, which is started anew after each preemption."""

    def __init__(self, prompt, max_new, ends, size, free):
        self.prompt, self.text, self.max_new, self.ends = len(prompt), list(prompt), max_new, ends
        self.size, self.free, self.table, self.cached = size, free, [], 0

    def run(self):
        try:
            while True:
                while len(self.table) * self.size < len(self.text):
                    self.table.append((yield NeedBlock()))
                token = yield NeedPass(self.table, self.text[self.cached :], self.cached)
                self.cached = len(self.text)
                self.text.append(token)
                if token in self.ends or len(self.text) == self.prompt + self.max_new:
                    return
        finally:
            self.free.extend(self.table)
            self.table, self.cached = [], 0


def run_passes(model, cache, wanted):
    """One forward pass for each width; the next token of each life."""
    made, widths = {}, defaultdict(list)
    for life, need in wanted:
        widths[len(need.tokens)].append((life, need))
    for group in widths.values():
        most = max(len(need.table) for _, need in group)
        tables = torch.zeros(len(group), most, dtype=torch.long)
        for row, (_, need) in zip(tables, group, strict=True):
            row[: len(need.table)] = torch.tensor(need.table)
        starts = torch.tensor([need.start for _, need in group])
        tokens = torch.tensor([need.tokens for _, need in group])
        logits = paged_forward(model, cache, tokens, starts[:, None] + torch.arange(tokens.shape[1]), tables)
        made.update((id(life), int(row.argmax())) for (life, _), row in zip(group, logits, strict=True))
    return [made[id(life)] for life, _ in wanted]


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
        lengths = sorted((len(p) + max_new for p in requests), reverse=True)
        block_budget = max([0, *(-(-n // block_size) for n in lengths[:1])]) * max(1, max_batch // 2)
    for i, prompt in enumerate(requests):
        if max_new and -(-(len(prompt) + max_new - 1) // block_size) > block_budget:
            raise ValueError(f"request {i} does not fit: {len(prompt)} + {max_new} tokens, {block_budget} blocks")
    free = list(range(block_budget))
    ends = set() if eos_id is None else {eos_id} if isinstance(eos_id, int) else set(eos_id)
    lives = [Life(prompt, max_new, ends, block_size, free) for prompt in requests]
    cache = PagedKVCache(model, block_budget, block_size)
    waiting, running = lives[:] if max_new else [], {}  # running: life -> [coroutine, what it needs]; oldest first
    history, preemptions = [], 0
    while waiting or running:
        gate = continuous or not running
        for life in list(running):
            while life in running and isinstance(running[life][1], NeedBlock):
                if free:
                    running[life][1] = running[life][0].send(free.pop())
                else:
                    youngest = list(running)[-1]
                    running.pop(youngest)[0].close()
                    waiting.insert(0, youngest)
                    preemptions += 1
        while gate and waiting and len(running) < max_batch and len(free) * block_size >= len(waiting[0].text):
            life = waiting.pop(0)
            coroutine = life.run()
            need = next(coroutine)
            while isinstance(need, NeedBlock):
                need = coroutine.send(free.pop())
            running[life] = [coroutine, need]
        wanted = [(life, need) for life, (_, need) in running.items()]
        for (life, _), token in zip(wanted, run_passes(model, cache, wanted), strict=True):
            try:
                running[life][1] = running[life][0].send(token)
            except StopIteration:
                del running[life]
        history.append(
            {
                "running": len(wanted),
                "reserved": sum(life.prompt + max_new for life in running),
                "allocated": sum(len(life.table) for life in running) * block_size,
                "used": sum(life.cached for life in running),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": len(lives),
        "preemptions": preemptions,
        "outputs": [life.text[life.prompt :] for life in lives],
        "steps": len(history),
        "history": history,
    }
