"""A preempted request keeps its blocks, as a loan, until somebody needs them: they are called in from their end.

When it is admitted again it computes only what was called in meanwhile. Prefills are right after the admission and
make the first token; a decode is one pass for all.
"""

from dataclasses import dataclass, field

import torch

from m13b_greedy import PagedKVCache, check_request, default_model, paged_forward


@dataclass
class Job:
    number: int
    prompt: list
    made: list = field(default_factory=list)
    blocks: list = field(default_factory=list)
    valid: int = 0  # tokens of it that are in its blocks

    @property
    def text(self):
        return self.prompt + self.made


class Pool:
    def __init__(self, count, size):
        self.size, self.unused, self.loans = size, set(range(count)), []  # loans: oldest first

    def grow(self, job, tokens):
        """Give a job blocks for so many tokens, unused ones first and then the ends of loans; False if too few."""
        missing = -(-tokens // self.size) - len(job.blocks)
        lenders = [loan for loan in self.loans if loan is not job]
        if missing > len(self.unused) + sum(len(loan.blocks) for loan in lenders):
            return False
        for _ in range(missing):
            if not self.unused:
                loan = next(loan for loan in reversed(lenders) if loan.blocks)
                self.unused.add(loan.blocks.pop())
                loan.valid = min(loan.valid, len(loan.blocks) * self.size)
            job.blocks.append(self.unused.pop())
        return True


class Server:
    def __init__(self, model, jobs, max_new, blocks, size, max_batch, ends):
        self.model, self.cache, self.pool = model, PagedKVCache(model, blocks, size), Pool(blocks, size)
        self.max_new, self.max_batch, self.ends = max_new, max_batch, ends
        self.queue, self.active, self.preemptions = jobs, [], 0

    def run(self, jobs):
        """One pass over the part of each job that is not in its blocks, which must be equally long for all."""
        width = max(len(job.blocks) for job in jobs)
        logits = paged_forward(
            self.model,
            self.cache,
            torch.tensor([job.text[job.valid :] for job in jobs]),
            torch.tensor([list(range(job.valid, len(job.text))) for job in jobs]),
            torch.tensor([job.blocks + job.blocks[:1] * (width - len(job.blocks)) for job in jobs]),
        )
        for job, token in zip(list(jobs), logits.argmax(-1).tolist(), strict=True):
            job.valid = len(job.text)
            job.made.append(token)
            if len(job.made) == self.max_new or token in self.ends:
                self.active.remove(job)
                self.pool.unused.update(job.blocks)
                job.blocks = []

    def step(self, admit):
        while admit and self.queue and len(self.active) < self.max_batch:
            job = self.queue[0]
            if not self.pool.grow(job, len(job.text)):
                break
            if job in self.pool.loans:
                self.pool.loans.remove(job)
            self.active.append(self.queue.pop(0))
            self.run([job])
        for job in list(self.active):
            while job in self.active and not self.pool.grow(job, len(job.text)):
                youngest = self.active.pop()
                self.pool.loans.insert(0, youngest)
                self.queue.insert(0, youngest)
                self.preemptions += 1
        batch = list(self.active)
        if batch:
            self.run(batch)
        return len(batch)


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
    for number, prompt in enumerate(requests):
        check_request(f"request {number}", prompt, max_new, model.config)

    def blocks(tokens):
        return (tokens + block_size - 1) // block_size

    needs = [blocks(len(prompt) + max_new - 1) if max_new else 0 for prompt in requests]
    if block_budget is None:
        block_budget = max([0, *needs, sum(needs[:max_batch]) * 2 // 3])
    for number, need in enumerate(needs):
        if need > block_budget:
            raise ValueError(f"request {number}: needs {need} blocks of {block_size}; the pool: {block_budget}")
    jobs = [Job(number, list(prompt)) for number, prompt in enumerate(requests)]
    ends = eos_id if isinstance(eos_id, tuple) else (eos_id,)
    server = Server(model, list(jobs) if max_new else [], max_new, block_budget, block_size, max_batch, ends)
    history = []
    while server.queue or server.active:
        running = server.step(admit=continuous or not server.active)
        history.append(
            {
                "running": running,
                "reserved": sum(len(job.prompt) + max_new for job in server.active),
                "allocated": sum(len(job.blocks) for job in server.active) * block_size,
                "used": sum(job.valid for job in server.active),
            }
        )
        if on_step:
            on_step(history[-1])
    return {
        "completed": sum(bool(job.made) or not max_new for job in jobs),
        "preemptions": server.preemptions,
        "outputs": [job.made for job in jobs],
        "steps": len(history),
        "history": history,
    }
