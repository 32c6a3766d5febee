"""M13c: continuous batching over one pool of blocks, with preemption by recompute.

Iteration-level scheduling follows Orca (Yu et al., OSDI 2022): requests join and leave the batch between two
steps. Preemption follows vLLM (Kwon et al., SOSP 2023): the youngest request gives its blocks back, waits, and
has its cache recomputed when it is admitted again.

Card: milestones/m13/m13c.md
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from m13b_greedy import BlockManager, PagedKVCache, check_request, default_model, paged_forward


@dataclass
class Sequence:
    """One request on its way: what was asked and what has been made so far (given)."""

    seq_id: int
    prompt: list[int]
    max_new: int
    output: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)

    def finished(self, eos_id: int | tuple[int, ...] | None) -> bool:
        """Whether its last token is made: `max_new` of them, or one of `eos_id`, which is kept as the last."""
        ends = eos_id if isinstance(eos_id, tuple) else (eos_id,)
        return len(self.output) == self.max_new or (bool(self.output) and self.output[-1] in ends)


class ModelRunner:
    """The model and its pool, as the scheduler sees them: lists of numbers in, the next token of each sequence out.

    Greedy: the argmax, and the first index on a tie. What can compute the same tokens sooner may take its place in
    `Engine`, which knows no tensors.
    """

    def __init__(self, model: nn.Module, num_blocks: int, block_size: int) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.cache = PagedKVCache(model, num_blocks, block_size)

    def prefill(self, prompts: list[list[int]], tables: list[list[int]]) -> list[int]:
        """Put whole prompts through the model, one after the other, since they differ in length.

        Args:
            prompts: all tokens of each sequence.
            tables: the block table of each sequence.
        """
        ### BEGIN SOLUTION
        next_tokens = []
        for prompt, table in zip(prompts, tables, strict=True):
            next_tokens += self._forward([prompt], [list(range(len(prompt)))], [table])
        return next_tokens
        ### END SOLUTION

    def decode(self, tokens: list[int], positions: list[int], tables: list[list[int]]) -> list[int]:
        """Put the newest token of each sequence through the model, in one pass for the whole batch.

        Args:
            tokens: the newest token of each sequence.
            positions: where it stands in its sequence.
            tables: the block table of each sequence.
        """
        ### BEGIN SOLUTION
        return self._forward([[token] for token in tokens], [[position] for position in positions], tables)
        ### END SOLUTION

    def _forward(self, tokens: list[list[int]], positions: list[list[int]], tables: list[list[int]]) -> list[int]:
        """One pass of `paged_forward` over B rows of T new tokens each."""
        ### BEGIN SOLUTION
        width = max(map(len, tables))
        # Padding with block 0 is safe: those positions lie beyond the sequence's own and are masked.
        padded = torch.tensor([table + [0] * (width - len(table)) for table in tables], device=self.device)
        rows = torch.tensor(tokens, device=self.device)  # (B, T)
        places = torch.tensor(positions, device=self.device)  # (B, T)
        return paged_forward(self.model, self.cache, rows, places, padded).argmax(dim=-1).tolist()
        ### END SOLUTION


class Engine:
    """Serves sequences, first come, first served, from one pool of KV blocks.

    A sequence is in `waiting`, in `running` (oldest first) or done. The newest token of a running sequence is
    known but not yet in the cache: the next decode step writes it. A step costs what is running, however many wait
    and however large the pool is, and nothing that an engine keeps grows with the steps that it has made.
    """

    def __init__(
        self,
        model: nn.Module,
        sequences: list[Sequence],
        num_blocks: int,
        *,
        block_size: int = 16,
        max_batch: int = 8,
        continuous: bool = True,
        eos_id: int | tuple[int, ...] | None = None,
        make_runner: Callable[[nn.Module, int, int], ModelRunner] = ModelRunner,
    ) -> None:
        self.manager = BlockManager(num_blocks, block_size)
        self.runner = make_runner(model, num_blocks, block_size)
        self.max_batch = max_batch
        self.continuous = continuous
        self.eos_id = eos_id
        self.waiting = deque(seq for seq in sequences if seq.max_new > 0)
        self.running: list[Sequence] = []
        self.completed = len(sequences) - len(self.waiting)
        self.preemptions = 0

    def step(self) -> dict[str, int]:
        """Admit what fits, give every running sequence one token, retire what is finished.

        Returns:
            The record of this step, see `_record`.
        """
        ### BEGIN SOLUTION
        self._admit()
        self._make_room()
        batch = len(self.running)
        self._decode()
        self._retire()
        ### END SOLUTION
        return self._record(batch)

    def _admit(self) -> None:
        """Move waiting sequences into the batch, oldest first, while there is a place and enough free blocks.

        What is admitted is prefilled at once, which makes its next token. After a preemption the prefill
        takes what had been made before too: prompt and output are kept apart, so nothing can be counted twice.
        With `continuous=False` a new batch is formed only when the last one is done.
        """
        ### BEGIN SOLUTION
        if self.running and not self.continuous:
            return
        admitted = []
        while self.waiting and len(self.running) < self.max_batch:
            seq = self.waiting[0]
            if not self.manager.reserve(seq.seq_id, len(seq)):
                break  # first come, first served: nobody overtakes the one that does not fit
            self.running.append(self.waiting.popleft())
            admitted.append(seq)
        if admitted:
            prompts = [seq.prompt + seq.output for seq in admitted]
            self._append(admitted, self.runner.prefill(prompts, self._tables(admitted)))
        self._retire()  # the prefill may have made the last token: decoding on would make one too many
        ### END SOLUTION

    def _make_room(self) -> None:
        """Give every running sequence a slot for its newest token, oldest first.

        When no block is free, the youngest running sequence is preempted: it may be the very one that asks.
        """
        ### BEGIN SOLUTION
        served = 0
        while served < len(self.running):
            seq = self.running[served]
            if self.manager.reserve(seq.seq_id, len(seq)):
                served += 1
            else:
                self._preempt(self.running.pop())
        ### END SOLUTION

    def _preempt(self, seq: Sequence) -> None:
        """Take the blocks of a sequence that has just left `running`; it is the next to be admitted again."""
        ### BEGIN SOLUTION
        self.manager.release(seq.seq_id)
        self.waiting.appendleft(seq)
        self.preemptions += 1
        ### END SOLUTION

    def _decode(self) -> None:
        """One token for every running sequence, in one forward pass for the whole batch."""
        ### BEGIN SOLUTION
        if not self.running:
            return
        tokens = [seq.output[-1] for seq in self.running]
        positions = [len(seq) - 1 for seq in self.running]
        self._append(self.running, self.runner.decode(tokens, positions, self._tables(self.running)))
        ### END SOLUTION

    def _tables(self, batch: list[Sequence]) -> list[list[int]]:
        """The block tables of a batch, in its order (given)."""
        return [self.manager.tables[seq.seq_id] for seq in batch]

    def _append(self, batch: list[Sequence], tokens: list[int]) -> None:
        """Give each sequence of a batch its new token (given)."""
        for seq, token in zip(batch, tokens, strict=True):
            seq.output.append(token)

    def _retire(self) -> None:
        """Take finished sequences out of the batch and give their blocks back."""
        ### BEGIN SOLUTION
        still_running = []
        for seq in self.running:
            if seq.finished(self.eos_id):
                self.manager.release(seq.seq_id)
                self.completed += 1
            else:
                still_running.append(seq)
        self.running = still_running
        ### END SOLUTION

    def _record(self, batch: int) -> dict[str, int]:
        """What there is to say of a step: its batch, and the KV memory in tokens at its end (given)."""
        block_size, tables = self.manager.block_size, self.manager.tables
        return {
            "running": batch,
            "reserved": sum(len(seq.prompt) + seq.max_new for seq in self.running),
            "allocated": sum(len(tables[seq.seq_id]) for seq in self.running) * block_size,
            "used": sum(len(seq) - 1 for seq in self.running),
            "completed": self.completed,
        }


def default_budget(requests: list[list[int]], max_new: int, block_size: int, max_batch: int) -> int:
    """Blocks for a pool in which a full batch can start but not finish, so that serving it preempts (given).

    Half way between what the first batch needs at its start and at its end, and never too small for the
    longest request alone.
    """

    def blocks(tokens: int) -> int:
        return -(-tokens // block_size)

    start = sum(blocks(len(prompt)) for prompt in requests[:max_batch])
    end = sum(blocks(len(prompt) + max_new - 1) for prompt in requests[:max_batch])
    return max([(start + end) // 2] + [blocks(len(prompt) + max_new - 1) for prompt in requests])


def serve(
    requests: list[list[int]],
    max_new: int,
    block_budget: int | None = None,
    *,
    model: nn.Module | None = None,
    block_size: int = 16,
    max_batch: int = 8,
    continuous: bool = True,
    eos_id: int | tuple[int, ...] | None = None,
    on_step: Callable[[dict[str, int]], None] | None = None,
) -> dict:
    """Serve all requests through one paged pool and report what happened.

    Args:
        requests: prompts, token ids each.
        max_new: tokens to make for each request.
        block_budget: number of blocks in the pool; None takes `default_budget`, which forces preemption.
        model: any `Transformer`; None takes the workspace's.
        block_size: token slots in a block.
        max_batch: sequences that run at the same time, at most.
        continuous: False serves in static batches, for comparison.
        eos_id: a token that ends its request early, or several; it is kept as the last of the output.
        on_step: called with each new record of the history, for a progress bar.

    Returns:
        `completed` (int), `preemptions` (int), `steps` (int), `outputs` (the new ids of each request, in the
        order of `requests`), `history` (a dict a step: `running`, and in tokens `reserved` as a slab for each
        request would, `allocated` in blocks, `used`).

    Raises:
        ValueError: a request that `check_request` refuses or that could not fit the pool even alone, or a
            size below 1. Nothing has been served then.
    """
    model = model or default_model()
    for name, size in (("block_size", block_size), ("max_batch", max_batch)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    for index, prompt in enumerate(requests):
        check_request(f"request {index}", prompt, max_new, model.config)
    if block_budget is None:
        block_budget = default_budget(requests, max_new, block_size, max_batch)
    ### BEGIN SOLUTION
    for index, prompt in enumerate(requests):
        # The last token is returned, never cached.
        needed = -(-(len(prompt) + max_new - 1) // block_size) if max_new else 0
        if needed > block_budget:
            raise ValueError(
                f"request {index}: {len(prompt)} prompt tokens + {max_new} new ones need {needed} blocks of "
                f"{block_size}, but the pool has {block_budget}: it could never finish"
            )
    sequences = [Sequence(index, list(prompt), max_new) for index, prompt in enumerate(requests)]
    engine = Engine(
        model,
        sequences,
        block_budget,
        block_size=block_size,
        max_batch=max_batch,
        continuous=continuous,
        eos_id=eos_id,
    )
    history = []
    while engine.waiting or engine.running:
        history.append(engine.step())
        if on_step is not None:
            on_step(history[-1])
    return {
        "completed": engine.completed,
        "preemptions": engine.preemptions,
        "outputs": [seq.output for seq in sequences],
        "steps": len(history),
        "history": history,
    }
    ### END SOLUTION
