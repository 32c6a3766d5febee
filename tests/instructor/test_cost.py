"""What a step costs: the sequences that run, whoever waits and however large the pool is; and memory stays flat.

Everything is counted (calls, operators, bytes); nothing is timed.
"""

import gc
import sys
import tracemalloc
from collections import deque
from itertools import count

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ai_playground.checkout import repo_root
from ai_playground.models import TransformerConfig
from checking.reference import random_model
from milestones.subjects import M13

SHAPE = {"vocab_size": 31, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8, "max_seq_len": 64}


@pytest.fixture(scope="module")
def m13c():
    """The reference's `m13c_serve` module."""
    assert M13.engine(repo_root() / "solutions" / "m13").serve
    return sys.modules["m13c_serve"]


class CountingRunner:
    """A model that takes no time: every next token is 1."""

    def __init__(self, *_: object) -> None: ...

    def prefill(self, prompts: list[list[int]], tables: list[list[int]]) -> list[int]:
        return [1] * len(prompts)

    def decode(self, tokens: list[int], positions: list[int], tables: list[list[int]]) -> list[int]:
        return [1] * len(tokens)


def forbidden(*_: object) -> None:
    raise AssertionError("a step went through all of it")


SCANS = ("__iter__", "__contains__", "__reversed__", "__eq__", "copy", "count", "index", "remove", "reverse")


class Waiting(deque):
    """A deque whose ends may be used, and nothing else."""


class Free(list):
    """A list that may grow and shrink at its end, and nothing else."""


for container in (Waiting, Free):
    for scan in SCANS:
        setattr(container, scan, forbidden)
Free.insert = Free.sort = forbidden


def calls_of_steps(m13c, waiting: int, num_blocks: int, steps: int) -> list[int]:
    """Python and C calls in each of the first steps: admissions, decodes, preemptions and retirements."""
    sequences = [m13c.Sequence(index, [1, 2, 3], 5 + index % 3) for index in range(waiting)]
    engine = m13c.Engine(None, sequences, num_blocks, block_size=2, make_runner=CountingRunner)
    # As if somebody else held all but 20 blocks, so that this pool preempts too; and it is not scanned for it.
    engine.manager.free = Free(engine.manager.free[:20])
    engine.waiting = Waiting(engine.waiting)
    calls = []
    for _ in range(steps):
        seen = count()
        sys.setprofile(lambda frame, event, arg, seen=seen: next(seen) if event in ("call", "c_call") else None)
        engine.step()
        sys.setprofile(None)
        calls.append(next(seen))
    assert engine.preemptions > 0 and engine.completed > 0 and engine.waiting
    return calls


def test_a_step_costs_what_runs_and_not_what_waits_or_the_pool(m13c) -> None:
    few = calls_of_steps(m13c, waiting=30, num_blocks=100, steps=12)
    assert few == calls_of_steps(m13c, waiting=10_000, num_blocks=100, steps=12)
    assert few == calls_of_steps(m13c, waiting=30, num_blocks=100_000, steps=12)


class Operators(TorchDispatchMode):
    """Each operator that makes something, and how much."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view and not function._schema.name.endswith("_"):
            sizes = [tensor.numel() for tensor in (result if isinstance(result, tuple) else (result,))]
            self.seen.append((str(function), sum(sizes)))
        return result


def test_a_forward_pass_makes_nothing_of_the_size_of_the_pool(m13c) -> None:
    model = random_model(TransformerConfig(**SHAPE), 0)

    def operators(num_blocks: int) -> list[tuple[str, int]]:
        sequences = [m13c.Sequence(index, [1, 2, 3], 8) for index in range(4)]
        engine = m13c.Engine(model, sequences, num_blocks, block_size=2)
        with Operators() as operators:
            for _ in range(4):
                engine.step()
        return operators.seen

    assert operators(100) == operators(100_000)


def test_the_memory_of_a_long_run_is_flat(m13c) -> None:
    engine = m13c.Engine(None, [], 100, block_size=4, make_runner=CountingRunner)
    numbers = count()

    def run(steps: int) -> int:
        for _ in range(steps):
            while len(engine.waiting) < 4:
                engine.waiting.append(m13c.Sequence(next(numbers), [1, 2, 3], 12))
            engine.step()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(500)
        after = run(5_000)
    finally:
        tracemalloc.stop()
    assert engine.completed > 2_000
    assert after - before < 4_000, "bytes; a record of each step would be more than 200 each"


def test_serve_still_keeps_a_record_of_each_step(m13c) -> None:
    seen: list[dict] = []
    report = m13c.serve(
        [[1, 2], [3]], 4, model=random_model(TransformerConfig(**SHAPE), 0), block_size=2, on_step=seen.append
    )
    assert report["history"] == seen and len(seen) == report["steps"]
    assert torch.tensor([record["running"] for record in seen]).max() == 2
