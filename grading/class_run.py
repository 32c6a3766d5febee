"""`course grade`: from an inbox of submissions to results, a gradebook, reports and grades.csv."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ai_playground.checkout import repo_root
from grading.assignments import ASSIGNMENTS
from grading.folders import CLASS, RECEIVED, SUBMITTED
from grading.intake.inbox import find_submissions
from grading.intake.submission import Submission
from grading.intake.take_in import take_in
from grading.judging.judging_pool import judge_class, local_pool
from grading.judging.one_submission import key_of
from grading.judging.results import Results
from grading.judging.sandbox import Sandbox
from grading.judging.solution_first import check_reference, reference_submission
from grading.release.student_tree import stale
from grading.report.words import parts_of


@dataclass
class Run:
    """What a run did: student ids, and what could not be judged with the reason."""

    judged: list[str]
    unchanged: list[str]
    errors: dict[str, str]


def grade(
    inbox: Path,
    assignment: str = "m13",
    *,
    jobs: int,
    force: bool = False,
    unsafe: bool = False,
    scheduler: str | None = None,
    results: Results | None = None,
    console: Console | None = None,
) -> Run:
    """Judge all submissions of an inbox that are new or changed, and put their files where nbgrader looks.

    Args:
        inbox: a folder with a folder or archive for each student.
        assignment: a name of `ASSIGNMENTS`.
        jobs: judging processes on this machine.
        force: judge unchanged ones too.
        unsafe: no sandbox.
        scheduler: address of a Dask scheduler, whose workers judge instead.

    Raises:
        SandboxError: the sandbox is missing or does not hold, or the solution itself does not get all points.
        ValueError: an inbox that is none, an unknown assignment or a stale generated tree.
    """
    if assignment not in ASSIGNMENTS:
        raise ValueError(f"expected an assignment of {', '.join(ASSIGNMENTS)}; found {assignment!r}")
    results, console = results or Results(assignment), console or Console()
    if differences := stale(repo_root()):  # an interrupted `nbgrader generate_assignment` leaves half a tree
        raise ValueError(
            "the generated tree is out of date; `uv run course release` mends it: " + "; ".join(differences)
        )
    found = find_submissions(inbox)
    if inbox == SUBMITTED:  # it holds all assignments
        found = {student: path for student, path in found.items() if (path / assignment).is_dir()}
    make_executor: Callable[[], Executor] = partial(_dask, scheduler) if scheduler else partial(local_pool, jobs)
    window = 64 if scheduler else jobs + 1  # one ready for each process that becomes free
    if not scheduler:
        _check_sandbox(unsafe, console)
    run = Run([], [], {})
    with _progress(console) as progress:
        _judge_reference(assignment, results.folder.parent, make_executor, unsafe, progress)
        shown = _Shown(progress, len(found), jobs)
        changed = _changed(found, assignment, results, unsafe, force, run, shown)
        for result in judge_class(changed, make_executor, unsafe=unsafe, window=window, on_start=shown.started):
            if "error" in result:
                run.errors[result["student"]] = result["error"]
            else:
                results.write(result)
                run.judged.append(result["student"])
            shown.done(result["student"])
    return run


def _check_sandbox(unsafe: bool, console: Console) -> None:
    with Sandbox(unsafe) as sandbox:
        seen = sandbox.check()
    if unsafe:
        console.print("[bold red]--unsafe: student code runs as you, without a sandbox[/]")
    else:
        console.print(f"sandbox: holds; memory of all processes together limited by: {seen['memory_group']}")


def _changed(
    found: dict[str, Path], assignment: str, results: Results, unsafe: bool, force: bool, run: Run, shown: "_Shown"
) -> Iterator[Submission]:
    """Take everybody in, note in `run` who has a result already, and yield the others."""
    for student, path in found.items():
        own = path / assignment  # nbgrader's layout
        submission = take_in(student, own if own.is_dir() else path, assignment)
        store(submission, path)
        earlier = results.read(student)
        if earlier and earlier.get("key") == key_of(submission, unsafe):
            submission.notes = submission.notes or earlier["notes"]
            if not force:
                run.unchanged.append(student)
                shown.done(student)
                continue
        yield submission


class _Shown:
    """The progress of the submissions, and who is in hand."""

    def __init__(self, progress: Progress, total: int, jobs: int) -> None:
        self.progress, self.jobs = progress, jobs
        self.task = progress.add_task("submissions", total=total)
        self.in_hand: dict[str, None] = {}

    def started(self, student: str) -> None:
        self.in_hand[student] = None
        self._show()

    def done(self, student: str) -> None:
        self.in_hand.pop(student, None)
        self.progress.advance(self.task)
        self._show()

    def _show(self) -> None:
        names = ", ".join(list(self.in_hand)[: self.jobs])
        self.progress.update(self.task, description=f"judging {names}" if names else "submissions")


def publish(run: Run, assignment: str = "m13", *, gradebook: bool, roster: Path | None, console: Console) -> None:
    """Gradebook, reports and grades.csv for everybody who has a result.

    Raises:
        ValueError: a roster that is none.
    """
    from grading import gradebook as book
    from grading.report.class_page import write_reports
    from grading.report.grades_csv import grades_csv
    from grading.report.similar_files import similarities

    results, work = Results(assignment), CLASS / assignment
    everybody = [result for student in sorted([*run.judged, *run.unchanged]) if (result := results.read(student))]
    scores = {result["student"]: result["score"] for result in everybody}
    if gradebook:
        with _progress(console) as progress:
            task = progress.add_task("gradebook", total=len(everybody))
            known = book.scores(assignment)
            missing = [student for student in run.unchanged if student not in known]
            progress.update(task, total=len(run.judged) + len(missing))
            failures = book.record([*run.judged, *missing], assignment, lambda student: progress.advance(task))
        for student, why in failures.items():
            console.print(f"[red]{student} is judged, but not in the gradebook:[/] {why}", highlight=False)
        scores |= {student: score for student, score in book.scores(assignment).items() if student in scores}
    with console.status("similarities and reports"):
        folders = {result["student"]: SUBMITTED / result["student"] / assignment for result in everybody}
        similar = similarities(folders, assignment) if len(folders) > 1 else []
        write_reports(work / "reports", assignment, everybody, run.errors, similar)
    table = grades_csv(scores, assignment, roster.read_text(encoding="utf-8") if roster else None)
    (work / "grades.csv").write_text(table, encoding="utf-8")
    console.print(_table(everybody, scores))
    for student, why in run.errors.items():
        console.print(f"[red]{student} was not judged and has no score:[/] {why}", highlight=False)
    console.print(
        f"{len(run.judged)} judged, {len(run.unchanged)} unchanged, {len(run.errors)} not judged. "
        f"Reports: {work / 'reports' / 'index.html'}   Grades: {work / 'grades.csv'}",
        soft_wrap=True,
    )


def _table(results: list[dict[str, Any]], scores: dict[str, float]) -> Table:
    names = list(parts_of(results[0])) if results else []
    table = Table("student", *names, "score", "s", "notes")
    for result in results:
        cells = [*parts_of(result).values(), scores[result["student"]]]
        notes = str(len(result["notes"]) or "")  # they stand in the report
        table.add_row(result["student"], *(f"{cell:g}" for cell in cells), f"{result['seconds']:.0f}", notes)
    return table


def store(submission: Submission, path: Path, submitted: Path = SUBMITTED) -> None:
    """Put the cleaned files where nbgrader looks for them; what stood there before is kept in RECEIVED."""
    folder = submitted / submission.student / submission.assignment
    there = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} if folder.is_dir() else {}
    stamp = there.pop("timestamp.txt", None) or _stamp(path / submission.assignment, path)
    if there == submission.files and not any(p.is_dir() or p.is_symlink() for p in folder.iterdir()):
        return
    if folder.exists():
        kept = RECEIVED / submission.student / submission.assignment / time.strftime("%Y%m%dT%H%M%S")
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(kept, ignore_errors=True)
        folder.rename(kept)
    folder.mkdir(parents=True)
    for name, data in submission.files.items():
        (folder / name).write_bytes(data)
    (folder / "timestamp.txt").write_bytes(stamp)


def _stamp(collected: Path, path: Path) -> bytes:
    """When a submission came: nbgrader's own file, or the time of the folder or archive."""
    with contextlib.suppress(OSError):
        return (collected / "timestamp.txt").read_bytes()[:100]
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(path.stat().st_mtime)).encode()


def _judge_reference(
    assignment: str, folder: Path, make_executor: Callable[[], Executor], unsafe: bool, progress: Progress
) -> None:
    """The solution must get all points first: else the machine or the checks are broken, not the class."""
    submission = reference_submission(assignment)
    kept = Results(assignment, folder / "reference")
    earlier = kept.read("reference")
    if earlier and earlier.get("key") == key_of(submission, unsafe):
        return check_reference(earlier)
    task = progress.add_task("judging the solution first", total=1)
    (result,) = judge_class([submission], make_executor, unsafe=unsafe)
    check_reference(result)
    kept.write(result)
    progress.remove_task(task)


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console,
    )  # fmt: skip


def _dask(address: str) -> Executor:
    """A cluster's workers as an executor; a submission whose worker dies goes to another one.

    Raises:
        ValueError: Dask is not installed.
    """
    try:
        from dask.distributed import Client
    except ImportError:
        raise ValueError(
            "expected dask.distributed for --scheduler; install it with `uv sync --extra cluster`"
        ) from None
    return Client(address).get_executor(pure=False, retries=3)


def default_jobs() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
