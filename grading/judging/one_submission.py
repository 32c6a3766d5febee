"""Judging: a student's files -> points and messages, through a sandboxed worker.

    with Sandbox() as sandbox:
        sandbox.check()
        result = judge(submission, sandbox)

A result is plain JSON. `visible` is what the student may read; `hidden` is the instructor's alone.
"""

import hashlib
import re
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ai_playground.checkout import repo_root
from checking.check import Check, Result
from checking.judging import run_check
from checking.supervisor import Worker
from grading.assignments import ASSIGNMENTS, CHECKED_WITH, Unit, place
from grading.intake.submission import Submission
from grading.judging.sandbox import Sandbox
from milestones.m13 import probes

FORMAT = 2  # of a result; older ones are judged again
IMPORT_SECONDS = 5.0
AFTER_TIMEOUT = 3.0  # who has hung once gets no more than this for each further check
HANGING = 15.0  # seconds of limits that one submission may run into, all its checks together
ALL_CHECKS = 60.0  # CPU seconds of one submission, where they can be counted
MAX_MESSAGE = 6_000


def judge(submission: Submission, sandbox: Sandbox) -> dict[str, Any]:
    """Judge everything in one submission.

    Raises:
        WorkerBroken, SandboxError: the sandbox failed; the submission was not judged.
    """
    start = time.monotonic()
    assignment = ASSIGNMENTS[submission.assignment]
    with sandbox.folder() as folder:
        written = submission.write(folder)
        with sandbox.worker(written) as worker:
            judged, budget = {}, Budget(worker)
            for unit in assignment.units():
                where = place(assignment.name, unit.notebook) if unit.notebook else assignment.engine
                judged[unit.name] = _judge_unit(unit, sandbox.path(written, where), budget)
    used = worker.group.used if hasattr(worker, "group") else {}
    figures = [shown for unit in judged.values() if (shown := unit.pop("figures"))]
    return {
        "format": FORMAT,
        "student": submission.student,
        "assignment": submission.assignment,
        "key": key_of(submission, sandbox.unsafe),
        "score": round(sum(unit["score"] for unit in judged.values()), 2),
        "of": sum(unit["of"] for unit in judged.values()),
        "units": judged,
        "notes": [clean(note, 500) for note in submission.notes] + _stumbled(judged),
        "unsafe": sandbox.unsafe,
        "seconds": round(time.monotonic() - start, 2),
        "cpu_seconds": round(used["cpu_ns"] / 1e9, 2) if "cpu_ns" in used else None,
        "peak_mib": used["peak_bytes"] // 2**20 if "peak_bytes" in used else None,
        "figures": figures[0] if figures else None,
        "judged_at": time.time(),
    }


def _stumbled(units: dict[str, dict[str, Any]]) -> list[str]:
    """A note for each check that broke down while it judged: its points are to be given by hand."""
    checks = [check for unit in units.values() for kind in ("visible", "hidden") for check in unit[kind]]
    return [
        f"{check['name']}, {check['of']:g} points, was not judged: the check itself stumbled ({check['stumbled']}). "
        "Look at this engine by hand, and mend the check"
        for check in checks
        if check["stumbled"]
    ]


class Budget:
    """What one submission may use in all, beside each check's own limit: nobody holds up a class by hanging everywhere.

    Args:
        worker: what its checks are run with.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker, self.hung = worker, 0.0

    def run(self, check: Check, where: Path) -> Result:
        """`run_check`, with what is left; or a failure that says why it was not run."""
        limit = check.limit if not self.hung else min(check.limit, AFTER_TIMEOUT, HANGING - self.hung)
        used = self.worker.group.cpu_seconds() if hasattr(self.worker, "group") else 0.0
        if limit < min(1.0, AFTER_TIMEOUT) or used > ALL_CHECKS:
            why = f"earlier checks hung for {self.hung:.0f} s" if self.hung else f"earlier ones took {used:.0f} CPU s"
            message = f"not run, since {why}, and nobody gets more. What the first failing check says comes first."
            return Result(check, "failed", message)
        result = run_check(replace(check, limit=limit), where, self.worker)
        if result.timed_out:
            self.hung += min(limit, result.seconds)
        return result


def _judge_unit(unit: Unit, where: Path, budget: Budget) -> dict[str, Any]:
    """Visible checks first: what a student reads must not know the hidden cases."""
    stop = _cannot_import(unit, where, budget) if unit.functions else None
    parts: dict[str, list[dict[str, Any]]] = {"visible": [], "hidden": []}
    figures = None
    for kind, checks in (("visible", unit.visible), ("hidden", unit.hidden)):
        for check, of in checks:
            result = replace(stop, check=check) if stop is not None else budget.run(check, where)
            earned = result.passed / len(check.cases) if unit.notebook else float(result.status == "passed")
            if result.status == "passed" and check.name == "m13d.finale" and kind == "visible":
                figures = _figures(result.evidence[0])
            parts[kind].append(
                {
                    "name": check.name,
                    "claim": check.claim,
                    "status": result.status,
                    "points": round(of * earned, 4),
                    "of": round(of, 4),
                    "message": clean(result.message),
                    "stumbled": clean(result.stumbled, 400),
                    "seconds": round(result.seconds, 2),
                }
            )
    earned = {kind: sum(check["points"] for check in checks) for kind, checks in parts.items()}
    return {
        "score": round(min(earned["visible"] + earned["hidden"], unit.points), 2),
        "of": unit.points,
        "visible_points": round(earned["visible"], 2),
        "visible_of": round(sum(of for _, of in unit.visible), 2),
        "hidden_points": round(earned["hidden"], 2),
        "hidden_of": round(sum(of for _, of in unit.hidden), 2),
        **parts,
        "figures": figures,
    }


def _cannot_import(unit: Unit, where: Path, budget: Budget) -> Result | None:
    """The failure that all of a milestone's checks share when its module cannot even be imported."""
    check = Check(
        name=f"{unit.name}.imports",
        claim="the module can be imported",
        probe=probes.imports,
        cases=({"label": f"import {', '.join(unit.functions)}", "functions": list(unit.functions)},),
        judge=lambda case, evidence: None,
        read=unit.visible[0][0].read,
        subject=unit.visible[0][0].subject,
        limit=IMPORT_SECONDS,
    )
    result = budget.run(check, where)
    return None if result.status == "passed" else replace(result, passed=0)


def _figures(evidence: Any) -> dict[str, Any]:
    """What the engine said of its own run: shown, never graded."""
    report = evidence["report"]
    keys = ("text", "tokens_per_sec", "steps", "preemptions", "mean_occupancy", "kv_waste_naive", "kv_waste_paged")
    return {key: clean(report[key], 500) if isinstance(report[key], str) else report[key] for key in keys}


def clean(text: str, most: int = MAX_MESSAGE) -> str:
    """Text of unknown origin, fit to be stored and shown: no control characters, no surrogates, not endless."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    text = re.sub(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]", "\ufffd", text)
    return text if len(text) <= most else text[:most] + " ..."


def key_of(submission: Submission, unsafe: bool) -> str:
    """Changes when a submission, or what it is judged by, does."""
    return hashlib.sha256(
        f"{FORMAT} {unsafe} {submission.assignment} {submission.digest} {_checks_digest()}".encode()
    ).hexdigest()


@lru_cache(maxsize=1)
def _checks_digest() -> str:
    root = repo_root()
    paths = [path for folder in CHECKED_WITH for path in (root / folder).rglob("*.py")]
    paths += [*(root / "solutions").glob("*/hidden*"), *(root / "checkpoints" / "myllm").glob("*.*")]
    paths += [root / name for assignment in ASSIGNMENTS.values() for name in assignment.given]
    paths += [root / "grading" / "assignments.py", *(root / "grading" / "judging").glob("*.py")]
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file() and path.name != "metrics.json"):
        digest.update(path.relative_to(root).as_posix().encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
