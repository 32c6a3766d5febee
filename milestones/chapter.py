"""The chapter's graded cells, sessions S4.1 and S4.2: cases, points, and the one call that the notebook makes.

    check_cell("block_manager", globals())

The probes and judges are in `chapter_cells.py`.
"""

import json
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milestones import chapter_cells as cells
from milestones.harness import Check, CheckFailed
from milestones.points import CHAPTER, VISIBLE_SHARE
from milestones.worker import plain

Case = dict[str, Any]
WIDTH = 82  # `nbgrader validate` indents by 4 and cuts off what is beyond 87


# The table of checks --------------------------------------------------------------------------------------------


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
    return CellCheck(
        answers, task, Check(name, claim, probe, tuple(cases), judge, f"section {section} of this notebook")
    )


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
            cells.probe_kv_bytes, cells.judge_kv_bytes,
            [
                {"label": "2 layers, 1 KV head of 4, 2 bytes", "shape": [2, 1, 4, 2]},
                {"label": "32 layers, 32 KV heads of 128, 2 bytes", "shape": [32, 32, 128, 2]},
            ],
        ),
        _check(
            ("block_manager",), 2,
            "the class BlockManager: blocks_for, can_admit, admit, can_append, append_slot, slot, release and the "
            "two counts",
            "blocks are handed out one by one, found again, and all given back", cells.probe_block_manager,
            cells.judge_block_manager,
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
            "attention through a block table equals attention over contiguous memory", cells.probe_attention,
            cells.judge_attention,
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
            "a decode step gives the logits of full recompute", cells.probe_decode, cells.judge_decode,
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
            "the scheduler keeps its rules in every step", cells.probe_engine, cells.judge_engine,
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
            cells.probe_memory, cells.judge_memory,
            [
                {"label": "the chapter's workload, blocks of 16", "block_size": 16},
                {"label": "the chapter's workload, blocks of 4", "block_size": 4},
                {"label": "the chapter's workload, blocks of 64", "block_size": 64},
            ],
        ),
        _check(
            ("static_steps",), 7, "static_steps: how many steps static batching takes, by arithmetic alone",
            "a static batch lasts as long as its longest request", cells.probe_static_steps, cells.judge_static_steps,
            [
                {"label": "[5, 3] in a batch of 2", "stop_after": [5, 3], "max_batch": 2, "expected": 4},
                {"label": "[5, 3, 9, 2, 4] in batches of 2", "stop_after": [5, 3, 9, 2, 4], "max_batch": 2,
                 "expected": 15},
            ],
        ),
        _check(
            ("preempt",), 8, "the methods _make_room and _preempt of the class PreemptingEngine",
            "preemption frees the youngest request's blocks and changes no token",
            cells.probe_preempt, cells.judge_preempt,
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
                "a question to check yourself", cells.probe_question, cells.judge_question,
                [{"label": cell, "cell": cell}],
            )
            for cell, section in (("q_fragmentation", 2), ("q_paging", 2), ("q_phases", 4), ("q_proof", 4),
                                  ("q_preemption", 8))
        ),
    )
}  # fmt: skip
CELLS: dict[str, CellCheck] = {name: _BY_NAME[name] for name in CHAPTER}  # in the notebook's order
CHECKS = tuple(cell.check for cell in CELLS.values())


# The call in the notebook ---------------------------------------------------------------------------------------


class CellFailed(AssertionError):
    """A graded cell's report, shown in the notebook without a traceback through the checks."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


@dataclass
class Outcome:
    """One case: passed, or the text that says why not."""

    passed: bool
    message: str = ""
    not_written: bool = False


def run_cases(check: CellCheck, names: dict[str, Any], cases: tuple[Case, ...]) -> list[Outcome]:
    """Probe and judge in this process, for a student's own notebook."""
    outcomes = []
    for case in cases:
        try:
            evidence = json.loads(json.dumps(plain(check.check.probe(names, case))))
            check.check.judge(case, evidence)
            outcomes.append(Outcome(True))
        except CheckFailed as failure:
            outcomes.append(Outcome(False, _report(case, failure, check.check.read)))
        except NotImplementedError as error:
            outcomes.append(Outcome(False, f"{_where(error) or check.answers[-1]} is not written yet.", True))
        except KeyError as error:
            name = str(error.args[0]) if error.args else ""
            if name.isidentifier() and name in check.task and name not in names:
                found = f"{name} is not defined: run its cell first."
                outcomes.append(Outcome(False, found, True))
            else:
                outcomes.append(Outcome(False, _report(case, _raised(error), check.check.read)))
        except Exception as error:
            outcomes.append(Outcome(False, _report(case, _raised(error), check.check.read)))
    return outcomes


def check_cell(name: str, names: dict[str, Any], hidden: Path | None = None) -> float:
    """Check one graded cell, print what came of it, and return its points.

    Args:
        name: the answer cell's `grade_id`.
        names: the notebook's `globals()`.
        hidden: the grader's further cases; None in a student's notebook.

    Returns:
        The points: all of them if every case passes; with `hidden`, a share for each part that does.

    Raises:
        CellFailed: something failed, and nobody is grading. It stops "Run all" where there is work to do.
    """
    check = CELLS[name]
    visible = run_cases(check, names, check.check.cases)
    further = () if hidden is None else tuple(json.loads(hidden.read_text(encoding="utf-8")).get(name, ()))
    lines = _summary(check, visible)
    if hidden is None and not all(outcome.passed for outcome in visible):
        raise CellFailed("\n".join(lines))
    outcomes = run_cases(check, names, further)
    if further:
        lines.append(f"further cases: {sum(outcome.passed for outcome in outcomes)} of {len(outcomes)} pass")
    elif hidden is None and name not in cells.QUESTIONS:
        lines.append(f"The grader has further cases of its own; they carry {1 - VISIBLE_SHARE:.0%} of the points.")
    if name in cells.QUESTIONS and visible[0].passed:
        lines += _wrap(cells.QUESTIONS[name].why[cells.QUESTIONS[name].answer])
    print("\n".join(lines))
    return points(check, [outcome.passed for outcome in visible], [outcome.passed for outcome in outcomes])


def points(check: CellCheck, visible: list[bool], further: list[bool]) -> float:
    """Points of a cell, between 0 and `check.points`, from which of its cases pass.

    Args:
        visible: one for each case of `check.check`.
        further: one for each of the grader's own cases; empty if it has none, then the visible ones carry all.
    """
    share = sum(visible) / len(visible)
    if further:
        share = VISIBLE_SHARE * share + (1 - VISIBLE_SHARE) * sum(further) / len(further)
    return round(check.points * share, 4)


def _summary(check: CellCheck, outcomes: list[Outcome]) -> list[str]:
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if not failed:
        return [
            f"{check.answers[-1]}: right" + (f", {len(outcomes)} of {len(outcomes)} cases" if len(outcomes) > 1 else "")
        ]
    if failed[0].not_written:
        return _wrap(f"{failed[0].message} What to write here is {check.task}. See {check.check.read}.")
    lines = [f"{check.answers[-1]}: {len(failed)} of {len(outcomes)} cases fail"] if len(outcomes) > 1 else []
    return lines + failed[0].message.splitlines()


def _report(case: Case, failure: CheckFailed, read: str) -> str:
    rows = [("expected", failure.expected), ("found", failure.found), ("input", case["label"])]
    rows += [("likely cause", failure.cause)] if failure.cause else []
    rows += [("read", read)]
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=f"  {head + ':':<14}", subsequent_indent=" " * 16)
        for head, text in rows
    )


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)


def _raised(error: Exception) -> CheckFailed:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_students(frame)]
    where = f", at `{frames[-1].line}` in {frames[-1].name}" if frames and frames[-1].line else ""
    return CheckFailed("a result", f"{type(error).__name__}: {error}{where}")


def _is_students(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is of a notebook's cell: those have no file that stands in a package."""
    return "site-packages" not in frame.filename and not Path(frame.filename).is_relative_to(Path(__file__).parents[1])


def _where(error: BaseException) -> str:
    """The innermost function that raised, such as `BlockManager.release`; empty at a cell's top level."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    name = "" if step is None else step.tb_frame.f_code.co_qualname
    return "" if name.startswith(("<", "_names", "probe_")) else name
