"""The chapter's graded cells, sessions S4.1 and S4.2, in the notebook's order: what each must do, and its cases."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checking.check import Check
from milestones.points import CHAPTER
from milestones.s4.answers import Case
from milestones.s4.blocks import judge_block_manager, probe_block_manager
from milestones.s4.decode_step import judge_decode, probe_decode
from milestones.s4.kv_size import judge_kv_bytes, probe_kv_bytes
from milestones.s4.memory import judge_memory, probe_memory
from milestones.s4.paged_attention import judge_attention, probe_attention
from milestones.s4.preemption import judge_preempt, probe_preempt
from milestones.s4.questions import judge_question, probe_question
from milestones.s4.scheduling import judge_engine, probe_engine
from milestones.s4.static_batching import judge_static_steps, probe_static_steps
from milestones.subjects import M13


@dataclass(frozen=True)
class CellCheck:
    """A graded cell: the answer cells that it judges, what to write there, and how it is judged."""

    answers: tuple[str, ...]
    task: str
    check: Check

    @property
    def points(self) -> float:
        """The most that it can give."""
        return float(CHAPTER[self.answers[-1]])


def _check(
    answers: tuple[str, ...],
    section: int,
    task: str,
    claim: str,
    probe: Callable[[Any, Case], Any],
    judge: Callable[[Case, Any], None],
    cases: list[Case],
) -> CellCheck:
    name = f"{'s4_1' if section <= 4 else 's4_2'}.{answers[-1]}"
    read = f"section {section} of this notebook"
    return CellCheck(answers, task, Check(name, claim, probe, tuple(cases), judge, read, M13))


_TINY = {
    "vocab_size": 61, "dim": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "hidden_dim": 32,
    "max_seq_len": 48,
}  # fmt: skip


_BY_NAME = {
    check.answers[-1]: check
    for check in (
        _check(
            ("kv_bytes",), 1, "kv_bytes_per_token: the number of bytes that one token keeps in the cache",
            "the size of a token in the KV cache follows from the model's shape",
            probe_kv_bytes, judge_kv_bytes,
            [
                {"label": "2 layers, 1 KV head of 4, 2 bytes", "shape": [2, 1, 4, 2]},
                {"label": "32 layers, 32 KV heads of 128, 2 bytes", "shape": [32, 32, 128, 2]},
            ],
        ),
        _check(
            ("block_manager",), 2,
            "the class BlockManager: blocks_for, can_admit, admit, can_append, append_slot, slot, release and the "
            "two counts",
            "blocks are handed out one by one, found again, and all given back", probe_block_manager,
            judge_block_manager,
            [
                {
                    "label": "one sequence over a block boundary, blocks of 4",
                    "num_blocks": 3, "block_size": 4,
                    "ops": [["admit", 1, 3], ["append_slot", 1], ["can_append", 1], ["append_slot", 1],
                            ["append_slot", 1]],
                },
                {
                    "label": "prompts that end on a block boundary",
                    "num_blocks": 4, "block_size": 4,
                    "ops": [["admit", 1, 4], ["admit", 2, 8], ["can_append", 2], ["append_slot", 2],
                            ["can_append", 1], ["can_append", 2]],
                },
                {
                    "label": "two sequences that grow in turn",
                    "num_blocks": 8, "block_size": 2,
                    "ops": [["admit", 5, 1], ["admit", 6, 1]] + [["append_slot", 5], ["append_slot", 6]] * 4,
                },
                {
                    "label": "everything comes back",
                    "num_blocks": 3, "block_size": 4,
                    "ops": [["admit", 1, 6], ["admit", 2, 4], ["release", 1], ["admit", 3, 5], ["release", 2],
                            ["append_slot", 3], ["release", 3], ["admit", 4, 12]],
                },
                {
                    "label": "a pool that runs dry: a call that fails changes nothing",
                    "num_blocks": 2, "block_size": 4,
                    "ops": [["admit", 1, 4], ["admit", 2, 5], ["admit", 2, 4], ["can_append", 1], ["append_slot", 1],
                            ["release", 2], ["append_slot", 1]],
                },
            ],
        ),
        _check(
            ("attention",), 3,
            "gather_kv (follow the block table, cut to the length) and paged_attention (one query against them)",
            "attention through a block table equals attention over contiguous memory", probe_attention,
            judge_attention,
            [
                {
                    "label": "as many KV heads as query heads; 8 tokens fill 2 blocks of 4",
                    "seed": 1, "heads": [2, 2, 4], "num_blocks": 4, "block_size": 4, "layer": 0, "table": [2, 0],
                    "slots": [8, 9, 10, 11, 0, 1, 2, 3],
                },
                {
                    "label": "GQA: 8 query heads on 4 KV heads; 8 tokens fill 2 blocks of 4",
                    "seed": 2, "heads": [8, 4, 8], "num_blocks": 4, "block_size": 4, "layer": 1, "table": [3, 1],
                    "slots": [12, 13, 14, 15, 4, 5, 6, 7],
                },
                {
                    "label": "a ragged context: 6 tokens in 2 blocks of 4",
                    "seed": 3, "heads": [4, 2, 8], "num_blocks": 5, "block_size": 4, "layer": 1, "table": [4, 1],
                    "slots": [16, 17, 18, 19, 4, 5],
                },
            ],
        ),
        _check(
            ("decode",), 4, "decode: one new token for each sequence of the batch, through the paged cache",
            "a decode step gives the logits of full recompute", probe_decode, judge_decode,
            [
                {
                    "label": "one sequence, 5 tokens of context",
                    "config": _TINY, "seed": 1, "contexts": [[3, 1, 4, 1, 5]], "tokens": [9],
                },
                {
                    "label": "three sequences at three positions",
                    "config": _TINY, "seed": 2, "contexts": [[7] * 2, list(range(20, 37)), list(range(9))],
                    "tokens": [11, 12, 13],
                },
            ],
        ),
        _check(
            ("engine",), 5, "the methods step, _admit and _retire of the class Engine",
            "the scheduler keeps its rules in every step", probe_engine, judge_engine,
            [
                {
                    "label": "5 requests, 2 places, continuous",
                    "requests": [[4, 9, 3], [5, 9, 7], [3, 9, 4], [6, 9, 5], [4, 9, 2]],
                    "num_blocks": 64, "max_batch": 2, "continuous": True,
                },
                {
                    "label": "the same 5 requests, 2 places, static",
                    "requests": [[4, 9, 3], [5, 9, 7], [3, 9, 4], [6, 9, 5], [4, 9, 2]],
                    "num_blocks": 64, "max_batch": 2, "continuous": False,
                },
                {
                    "label": "requests whose first token is their last",
                    "requests": [[4, 3, 1], [5, 9, 4], [3, 3, 1], [6, 3, 1]],
                    "num_blocks": 64, "max_batch": 3, "continuous": True,
                },
                {
                    "label": "a long prompt that does not fit at first, and a short one behind it",
                    "requests": [[10, 9, 5], [10, 9, 4], [14, 9, 3], [2, 9, 3]],
                    "num_blocks": 32, "max_batch": 4, "continuous": True,
                },
            ],
        ),
        _check(
            ("memory_prediction", "memory"), 6,
            "prediction (your guesses for block sizes 4 and 64) and measured_waste (what the run shows)",
            "waste is the share of the memory held over a run that held no token",
            probe_memory, judge_memory,
            [
                {"label": "the chapter's workload, blocks of 16", "block_size": 16},
                {"label": "the chapter's workload, blocks of 4", "block_size": 4},
                {"label": "the chapter's workload, blocks of 64", "block_size": 64},
            ],
        ),
        _check(
            ("static_steps",), 7, "static_steps: how many steps static batching takes, by arithmetic alone",
            "a static batch lasts as long as its longest request", probe_static_steps, judge_static_steps,
            [
                {"label": "[5, 3] in a batch of 2", "stop_after": [5, 3], "max_batch": 2, "expected": 4},
                {"label": "[5, 3, 9, 2, 4] in batches of 2", "stop_after": [5, 3, 9, 2, 4], "max_batch": 2,
                 "expected": 15},
            ],
        ),
        _check(
            ("preempt",), 8, "the methods _make_room and _preempt of the class PreemptingEngine",
            "preemption frees the youngest request's blocks and changes no token",
            probe_preempt, judge_preempt,
            [
                {
                    "label": "room for everybody: nobody is preempted",
                    "requests": [[4, 2], [3, 1]], "running": 2, "num_blocks": 10,
                    "acts": [["make_room"]], "expected": [[[0, 1], [], 0]],
                },
                {
                    "label": "one slot short: the youngest of three gives way, in front of one who waits",
                    "requests": [[4, 2], [3, 1], [2, 2], [3, 0]], "running": 3, "num_blocks": 13,
                    "acts": [["make_room"]], "expected": [[[0, 1], [2, 3], 1]],
                },
                {
                    "label": "the youngest itself asks for the last slot",
                    "requests": [[4, 2], [3, 1]], "running": 2, "num_blocks": 9,
                    "acts": [["make_room"]], "expected": [[[0], [1], 1]],
                },
                {
                    "label": "preempted, admitted again, preempted again",
                    "requests": [[4, 2], [3, 2]], "running": 2, "num_blocks": 11,
                    "acts": [["make_room"], ["decode"], ["make_room"], ["decode"], ["finish", 0], ["admit"],
                             ["make_room"], ["decode"]],
                    "expected": [[[0, 1], [], 0], None, [[0], [1], 1], None, None, None, [[1], [], 1], None],
                },
            ],
        ),
        *(
            _check(
                (cell,), section, f'the variable {cell}: the letter "a", "b", "c" or "d" of the true statement',
                "a question to check yourself", probe_question, judge_question,
                [{"label": cell, "cell": cell}],
            )
            for cell, section in (("q_fragmentation", 2), ("q_paging", 2), ("q_phases", 4), ("q_proof", 4),
                                  ("q_preemption", 8))
        ),
    )
}  # fmt: skip


CELLS: dict[str, CellCheck] = {name: _BY_NAME[name] for name in CHAPTER}  # in the notebook's order


CHECKS = tuple(cell.check for cell in CELLS.values())
