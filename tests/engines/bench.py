"""Runs the bench: every engine against the checks, in parallel, and what came of it as a table."""

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from ai_playground.checkout import repo_root
from ai_playground.workspace import default_workspace
from checking.check import Check
from checking.judging import run_check
from checking.supervisor import Worker
from milestones.m13 import m13a, m13b, m13c, m13d
from solutions.m13.hidden import HIDDEN
from tests.engines.dishonest import DISHONEST
from tests.engines.engine import Engine
from tests.engines.right import RIGHT
from tests.engines.wrong import WRONG

MODULES = {"m13a": m13a, "m13b": m13b, "m13c": m13c, "m13d": m13d}
KINDS = {"wrong": WRONG, "dishonest": DISHONEST, "right": RIGHT}


@dataclass
class Outcome:
    """What the checks said of one engine.

    Attributes:
        kind, name, run: which engine, and which of its runs.
        caught: the first check that it did not pass; "" if it passed all.
        by_hidden: whether that was a hidden case.
        message: that check's message.
        seconds: for all of its checks.
    """

    kind: str
    name: str
    run: str
    caught: str
    by_hidden: bool
    message: str
    seconds: float


def checks_for(kind: str, engine: Engine, seed: int) -> Iterator[tuple[Check, bool]]:
    """The checks of the engine's milestone, visible ones first, with inputs drawn from `seed`.

    A right one gets all; what stands before the first module that it changes is the reference's, and is judged there.
    """
    first = min((patch[0][:4] for patch in engine.patches), default="") if not engine.files else ""
    milestones = [m for m in MODULES if m >= first] if kind == "right" else [engine.fails.split(".")[0]]
    for milestone in milestones:
        for check in MODULES[milestone].CHECKS:
            fresh = check.name.split(".")[1].startswith("fresh_")
            yield (replace(check, cases=MODULES[milestone].fresh_cases(seed)) if fresh else check), False
    if kind == "right" or engine.hidden:
        for milestone in milestones:
            for check in MODULES[milestone].CHECKS:
                if check.name in HIDDEN:
                    yield replace(check, cases=HIDDEN[check.name]), True


def judge(kind: str, engine: Engine, worker: Worker, folder: Path, run: str = "", seed: int = 7) -> Outcome:
    """Run an engine's checks until the first that it does not pass."""
    path = engine.write(folder)
    outcome = Outcome(kind, engine.name, run, "", False, "", 0.0)
    for check, is_hidden in checks_for(kind, engine, seed):
        result = run_check(check, path, worker)
        outcome.seconds += result.seconds
        if result.status != "passed":
            outcome.caught, outcome.by_hidden, outcome.message = check.name, is_hidden, result.message
            break
    return outcome


def stumbles(engine: Engine, worker: Worker, folder: Path, milestones: tuple[str, ...]) -> list[str]:
    """Where a judge stumbles over an engine, with each visible case as the first that fails."""
    path = engine.write(folder)
    found = []
    for check in (check for milestone in milestones for check in MODULES[milestone].CHECKS):
        for case in check.cases:
            result = run_check(replace(check, cases=(case,)), path, worker)
            if result.stumbled:
                found.append(f"{engine.name}, {check.name}, {case['label']}: {result.stumbled}")
    return found


def problem(engine: Engine, outcome: Outcome) -> str:
    """What is wrong with an outcome; "" if it is what the definition says."""
    if not engine.fails:
        return f"a right engine failed {outcome.caught}" if outcome.caught else ""
    if not outcome.caught:
        return "no check caught it"
    if (outcome.caught, outcome.by_hidden) != (engine.fails, engine.hidden):
        kinds = {False: "visible", True: "hidden"}
        return (
            f"expected {engine.fails} ({kinds[engine.hidden]}) to catch it; "
            f"{outcome.caught} ({kinds[outcome.by_hidden]}) did"
        )
    return ""


def names_the_idea(engine: Engine, outcome: Outcome) -> bool:
    """Whether the message has the definition's phrase."""
    return engine.says.lower() in " ".join(outcome.message.lower().split())


def third_of(engines: Sequence[Engine], number: int) -> list[Engine]:
    """Every third engine: three numbers that follow each other have all."""
    return list(engines[number % 3 :: 3])


def run_bench(
    kinds: list[str],
    only: list[str] | None = None,
    jobs: int | None = None,
    runs: int = 1,
    threads: tuple[int, ...] = (1,),
) -> Iterator[tuple[Engine, Outcome]]:
    """Yield each engine with its outcome, as they come.

    Args:
        kinds: of `KINDS`.
        only: names of engines; None or none is all.
        jobs: processes; None is one a core.
        runs: how often right engines are run, each time with other fresh inputs.
        threads: numbers of torch threads for the runs of right engines.
    """
    tasks: list[tuple[str, int, int, int]] = []
    for kind in kinds:
        for index, engine in enumerate(KINDS[kind]):
            if only and engine.name not in only:
                continue
            repeats = [(t, r) for t in threads for r in range(runs)] if kind == "right" else [(1, 0)]
            tasks += [(kind, index, count, number) for count, number in repeats]
    # All engines once, then all of them again: a run that is broken off has every engine in it. Right ones take
    # longest, so they come first.
    tasks.sort(key=lambda task: (task[3], task[0] != "right"))
    # A fork of this process has torch and the checks loaded already.
    context = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(prefix="student-half-") as half,
        ProcessPoolExecutor(jobs or os.cpu_count(), context) as pool,
    ):
        _copy_student_half(Path(half))
        for future in as_completed([pool.submit(_run, *task, Path(half)) for task in tasks]):
            kind, index, outcome = future.result()
            yield KINDS[kind][index], outcome


_workers: dict[object, Worker] = {}


def _run(kind: str, index: int, threads: int, number: int, half: Path) -> tuple[str, int, Outcome]:
    engine = KINDS[kind][index]
    run = f"run {number + 1}, {threads} thread(s)" if kind == "right" else ""
    with tempfile.TemporaryDirectory() as folder:
        worker = _worker(threads, half if engine.student_half else None)
        return kind, index, judge(kind, engine, worker, Path(folder) / "engine", run, seed=7 + 1_009 * number)


def _worker(threads: int, root: Path | None) -> Worker:
    key = (threads, root)
    if key not in _workers:
        count = str(threads)
        env = os.environ | {"COURSE_THREADS": count, "OMP_NUM_THREADS": count, "OMP_WAIT_POLICY": "PASSIVE"}
        env["COURSE_WORKSPACE"] = str(default_workspace())
        _workers[key] = Worker(env=env, root=root)
    return _workers[key]


def _copy_student_half(half: Path) -> None:
    """A checkout with what the worker needs and nothing of the instructor's."""
    for name in ("src", "milestones"):
        shutil.copytree(repo_root() / name, half / name, ignore=shutil.ignore_patterns("__pycache__"))
