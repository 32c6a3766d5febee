"""The one call that the notebook makes of a graded cell.

check_cell("block_manager", globals())
"""

import json
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checking.check import CheckFailed
from checking.worker import plain
from milestones.points import VISIBLE_SHARE
from milestones.s4.answers import Case
from milestones.s4.cells import CELLS, CellCheck
from milestones.s4.questions import QUESTIONS

WIDTH = 82  # `nbgrader validate` indents by 4 and cuts off what is beyond 87


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
    elif hidden is None and name not in QUESTIONS:
        lines.append(f"The grader has further cases of its own; they carry {1 - VISIBLE_SHARE:.0%} of the points.")
    if name in QUESTIONS and visible[0].passed:
        lines += _wrap(QUESTIONS[name].why[QUESTIONS[name].answer])
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
    return "site-packages" not in frame.filename and not Path(frame.filename).is_relative_to(Path(__file__).parents[2])


def _where(error: BaseException) -> str:
    """The innermost function that raised, such as `BlockManager.release`; empty at a cell's top level."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    name = "" if step is None else step.tb_frame.f_code.co_qualname
    return "" if name.startswith(("<", "names_of", "probe_")) else name
