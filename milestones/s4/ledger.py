"""Sections 5 and 8: stand-ins for the block manager and the model."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ai_playground.chapter import OutOfBlocks


class Ledger:
    """Stands in for the block manager: blocks of one slot that are counted, not handed out, and a log of calls."""

    def __init__(self, num_blocks: int, block_size: int = 1) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.lengths: dict[int, int] = {}
        self.log: list[list[Any]] = []
        self._asked = 0

    @property
    def free(self) -> range:
        return range(self.num_blocks - sum(self.lengths.values()))

    used_tokens = allocated_tokens = property(lambda self: sum(self.lengths.values()))

    def blocks_for(self, num_tokens: int) -> int:
        return num_tokens

    def can_admit(self, num_tokens: int) -> bool:
        return self._ask(num_tokens <= len(self.free))

    def can_append(self, seq_id: int) -> bool:
        if seq_id not in self.lengths:
            raise KeyError(f"sequence {seq_id} has no blocks: it was never admitted, or was released")
        return self._ask(len(self.free) > 0)

    def admit(self, seq_id: int, num_tokens: int) -> None:
        if num_tokens > len(self.free):
            raise OutOfBlocks(f"{num_tokens} tokens do not fit {len(self.free)} free slots: ask can_admit first")
        if seq_id in self.lengths:
            raise ValueError(f"sequence {seq_id} is admitted twice: it holds {self.lengths[seq_id]} tokens already")
        self.lengths[seq_id] = num_tokens
        self._note("admit", seq_id)

    def append_slot(self, seq_id: int) -> int:
        if not self.can_append(seq_id):
            raise OutOfBlocks(f"no free slot for sequence {seq_id}")
        self.lengths[seq_id] += 1
        self._note("append", seq_id)
        return 0

    def release(self, seq_id: int) -> None:
        if seq_id not in self.lengths:
            raise KeyError(f"sequence {seq_id} has no blocks to release: it was released before")
        del self.lengths[seq_id]
        self._note("release", seq_id)

    def _note(self, *event: Any) -> None:
        self.log.append(list(event))
        self._asked = 0

    def _ask(self, answer: bool) -> bool:
        self._asked += 1
        if self._asked > 1_000:
            raise RuntimeError("the same question was asked 1,000 times with nothing changed: this loop never ends")
        return answer


SCRIPT_VOCAB = 97


def scripted(context: list[int]) -> int:
    """The toy function that plays the model: the next token depends on every token before it and its place."""
    return (sum((place + 3) * token for place, token in enumerate(context)) + len(context)) % SCRIPT_VOCAB


def scripted_output(prompt: list[int], n: int) -> list[int]:
    context = list(prompt)
    for _ in range(n):
        context.append(scripted(context))
    return context[len(prompt) :]


def one_hot(tokens: list[int]) -> Tensor:
    return F.one_hot(torch.tensor(tokens), SCRIPT_VOCAB).float()


def scripted_prompt(seq_id: int, length: int) -> list[int]:
    return [(7 * seq_id + 5 * place + 1) % SCRIPT_VOCAB for place in range(length)]
