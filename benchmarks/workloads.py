"""What is served: requests as `(prompt ids, new tokens)`, the same for every peer, drawn with fixed seeds."""

import random
from dataclasses import dataclass

Requests = list[tuple[list[int], int]]


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        model: `smollm2` or `toy`.
        dtype: of the weights and the cache, `float32` or `bfloat16`.
        max_batch: requests that run at the same time, at most.
        count, prompt, new: how many requests, and the ranges of their lengths.
        peers: who serves it.
        threads: how many each peer gets, whatever `course bench --threads` says.
    """

    model: str
    dtype: str
    max_batch: int
    count: int
    prompt: tuple[int, int]
    new: tuple[int, int]
    peers: tuple[str, ...]
    threads: int | None = None

    def requests(self, vocab_size: int) -> Requests:
        """The requests; the end token is ignored, so each makes as many tokens as it says."""
        rng = random.Random(13)
        drawn = []
        for _ in range(self.count):
            length, new = rng.randint(*self.prompt), rng.randint(*self.new)
            drawn.append(([rng.randrange(3, vocab_size) for _ in range(length)], new))
        return drawn


EVERYBODY = ("fast", "reference", "vllm", "llama.cpp", "transformers-cb", "transformers")
_W1 = {"model": "smollm2", "max_batch": 8, "count": 32, "prompt": (16, 128), "new": (16, 128), "peers": EVERYBODY}
_W2 = {"model": "toy", "max_batch": 16, "count": 256, "prompt": (8, 48), "new": (5, 80), "peers": EVERYBODY}

WORKLOADS = {
    "w1-fp32": Workload(dtype="float32", **_W1),
    "w1-bf16": Workload(dtype="bfloat16", **_W1),
    "w2-fp32": Workload(dtype="float32", **_W2),
    "w2-bf16": Workload(dtype="bfloat16", **_W2),
    # The chapter's own 24 requests, drawn by `ai_playground.chapter`, and on one thread, as its notebook sets it.
    "w3": Workload("toy", "float32", 8, 24, (8, 47), (5, 79), ("fast", "reference", "chapter"), threads=1),
}
