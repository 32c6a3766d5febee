"""One check from end to end: ask the worker for the evidence, and judge it here, case by case."""

import time
import traceback
from pathlib import Path
from typing import Any

from checking.check import Check, CheckFailed, Result, will_be_shown
from checking.form import misfit
from checking.messages import explain, no_answer, raised
from checking.supervisor import Answer, Worker


def run_check(check: Check, engine: Path, worker: Worker) -> Result:
    """Ask the worker for the evidence and judge it, case by case.

    Raises:
        WorkerBroken: see `Worker.ready`.
    """
    start = time.monotonic()
    answer = worker.ask(check.subject, engine, check.probe, list(check.cases), check.limit)
    result = Result(check, "passed", evidence=[case.get("evidence") for case in answer.cases])
    result.timed_out = answer.end == "timeout" or any(
        isinstance(evidence, dict) and evidence.get("stopped") is True for evidence in result.evidence
    )
    for index, case in enumerate(check.cases):
        shown = will_be_shown.set(result.status == "passed")
        try:
            _judge_case(check, case, index, answer)
            result.passed += 1
        except _NotWritten as note:
            result.status, result.message = "not_written", str(note)
            break
        except CheckFailed as failure:
            result.stumbled = result.stumbled or (str(failure) if isinstance(failure, JudgeStumbled) else "")
            if result.status == "passed":
                result.status, result.message = "failed", explain(check, case, failure, answer.printed)
        finally:
            will_be_shown.reset(shown)
    if result.status == "passed" and answer.end != "done":
        result.status = "failed"
        result.message = explain(check, {}, no_answer(check, answer), answer.printed)
    result.seconds = time.monotonic() - start
    return result


class JudgeStumbled(CheckFailed):
    """A judge raised something that is no verdict: not the student's fault, though the check cannot pass."""


class _NotWritten(Exception):
    """The student's code says of itself that this part is still to be written."""


def _judge_case(check: Check, case: dict[str, Any], index: int, answer: Answer) -> None:
    if index >= len(answer.cases):
        raise no_answer(check, answer)
    error = answer.cases[index].get("error")
    if isinstance(error, dict) and error.get("not_written"):
        lines = error.get("traceback")
        where = str(lines[-1]).split(" in ")[0] if isinstance(lines, list) and lines else "no traceback"
        raise _NotWritten(f"{error.get('message')} ({where})")  # where: the file and the line
    if isinstance(error, dict):
        raise raised(check, error)
    _judge(check, case, answer.cases[index].get("evidence"))


def _judge(check: Check, case: dict[str, Any], evidence: Any) -> None:
    """The check's judge, where the evidence has the form that the probe gives it: anything else was forged."""
    bad = misfit(evidence, check.form)
    if bad:
        raise CheckFailed(
            "evidence in the form that the probe gives it",
            bad,
            "something in the engine writes to the channel through which the checks read their answers",
        )
    try:
        check.judge(case, evidence)
    except CheckFailed:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise JudgeStumbled(
            "a verdict on your result, whatever it is",
            f"the check stumbled over it: {type(error).__name__}: {str(error)[:200]} "
            f"({Path(place.filename).name}:{place.lineno})",
            "a mistake of the course and not of yours, though your result is probably an unusual one: tell whoever "
            "runs the course. Graders see a note",
        ) from error
