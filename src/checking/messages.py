"""What a student reads of a check that failed: expected, found, the input, the likely cause, where to look first."""

import re
from pathlib import Path
from typing import Any

from checking.check import Check, CheckFailed
from checking.frames import is_foreign
from checking.supervisor import MAX_ANSWERS, Answer


def explain(check: Check, case: dict[str, Any], failure: CheckFailed, printed: str = "") -> str:
    """What a student reads: expected, found, the input, the likely cause, where to read, how to rerun."""
    printed = _without_traceback(printed)
    lines = [
        f"{check.name}: {check.claim}",
        f"  expected:     {failure.expected}",
        f"  found:        {failure.found}",
        f"  input:        {case.get('label', '')}",
    ]
    if failure.cause:
        lines.append(f"  likely cause: {failure.cause}")
    milestone, name = check.name.split(".")
    lines.append(f"  read:         {check.read}")
    lines.append(f'  run again:    uv run pytest {check.subject.tests} -k "{milestone} and {name}"')
    if "seed" in case:
        lines.append(f"                with the environment variable COURSE_SEED={case['seed']}, for the same input")
    if printed.strip():
        lines.append("  your code printed:\n" + "\n".join(f"    {line}" for line in printed.strip().splitlines()[-12:]))
    return "\n".join(lines)


def raised(check: Check, error: dict[str, Any]) -> CheckFailed:
    where = error.get("traceback")
    where = [line for line in where if isinstance(line, str)] if isinstance(where, list) else []
    found = f"{error.get('type')}: {error.get('message')}"
    if where:
        found += "\n" + "\n".join(f"                  {line}" for line in where[-6:])
    message = str(error.get("message"))
    hints = (hint for hint in check.subject.hints if hint.error == error.get("type") and hint.message in message)
    cause = next((hint.cause for hint in hints), "")
    look = "the last line above that names your file is where to look first"
    return CheckFailed("a result", found, f"{cause}; {look}" if cause else look)


def no_answer(check: Check, answer: Answer) -> CheckFailed:
    done = f"after {len(answer.cases)} of {len(check.cases)} inputs"
    if answer.end == "timeout":
        where = _where_it_was(answer.printed, check)
        return CheckFailed(
            f"an answer to every input within {check.limit:g} s in all",
            f"no answer {done}; it was stopped" + (f" at {where}" if where else ""),
            check.subject.hang,
        )
    if answer.end == "flood":
        return CheckFailed(
            "answers of a sensible size",
            f"more than {MAX_ANSWERS // 2**20} MiB {done}; it was stopped",
            "something writes to the channel through which the checks read their answers",
        )
    return CheckFailed(
        "an answer to every input",
        f"the process ended by itself {done}, with exit status {answer.code}",
        "something in the engine ends Python (exit, os._exit) or crashes it, or memory ran out",
    )


_FRAME = re.compile(r'^\s*File "(.+)", line (\d+) in (\S+)$', re.MULTILINE)


def _where_it_was(printed: str, check: Check) -> str:
    """The engine's lines of the traceback that the worker prints shortly before the time is up."""
    frames = [
        f"{Path(path).name}:{line} in {function}"
        for path, line, function in _FRAME.findall(printed)
        if not is_foreign(path, check.probe.__module__)
    ]
    return ", called from ".join(frames[:3])


def _without_traceback(printed: str) -> str:
    start = printed.find("Timeout (")
    return printed if start < 0 else printed[:start]
