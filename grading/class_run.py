"""`course grade`: from an inbox of submissions to results, a gradebook, reports and grades.csv."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ai_playground.checkout import repo_root
from grading.assignments import ASSIGNMENTS
from grading.folders import CLASS, RECEIVED, SUBMITTED
from grading.intake.inbox import HandIn, read_inbox
from grading.intake.submission import Submission
from grading.intake.take_in import take_in
from grading.judging.judging_pool import judge_class, local_pool
from grading.judging.one_submission import key_of
from grading.judging.results import Results
from grading.judging.sandbox import Sandbox
from grading.judging.solution_first import check_reference, reference_submission
from grading.library_log import libraries_logged
from grading.release.student_tree import stale
from grading.report.words import parts_of
from grading.roster import Roster


@dataclass
class Run:
    """What a run did, by student id.

    Attributes:
        judged, unchanged: who has a result, from this run or an earlier one.
        errors: who could not be judged, and why: never the student's fault.
        ungradable: who handed in nothing that can be graded, and what to ask for.
        missing: who is on the roster and handed in nothing.
        names: the names as they came.
        late: whom the LMS calls late, without saying by how much.
        times: when it came, where that is known.
    """

    judged: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    ungradable: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    times: dict[str, str] = field(default_factory=dict)


def grade(
    inbox: Path,
    assignment: str = "m13",
    *,
    jobs: int,
    force: bool = False,
    unsafe: bool = False,
    scheduler: str | None = None,
    roster: Roster | None = None,
    results: Results | None = None,
    console: Console | None = None,
) -> Run:
    """Judge all submissions of an inbox that are new or changed, and put their files where nbgrader looks.

    Args:
        inbox: what was downloaded: see `grading.intake.inbox`.
        assignment: a name of `ASSIGNMENTS`.
        jobs: judging processes on this machine.
        force: judge unchanged ones too.
        unsafe: no sandbox.
        scheduler: address of a Dask scheduler, whose workers judge instead.
        roster: who is in the course.

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
    roster = roster or Roster([])
    found = _find(inbox, assignment, roster, console)
    make_executor: Callable[[], Executor] = partial(_dask, scheduler) if scheduler else partial(local_pool, jobs)
    window = 64 if scheduler else jobs + 1  # one ready for each process that becomes free
    if not scheduler:
        _check_sandbox(unsafe, console)
    run = Run()
    for hand_in in found:
        run.names[hand_in.student], run.times[hand_in.student] = hand_in.name, hand_in.time
        run.late += [hand_in.student] if hand_in.late else []
    run.missing = sorted({person.id for person in roster.people} - set(run.names))
    run.names |= {person.id: person.name for person in roster.people}
    with _progress(console) as progress:
        _judge_reference(assignment, results.folder.parent, make_executor, unsafe, progress)
        shown = _Shown(progress, len(found), jobs, console)
        changed = _changed(found, assignment, results, unsafe, force, run, shown)
        for result in judge_class(changed, make_executor, unsafe=unsafe, window=window, on_start=shown.started):
            if "error" in result:
                run.errors[result["student"]] = result["error"]
                shown.done(result["student"], f"[red]not judged:[/] {escape(result['error'].splitlines()[0])}")
            else:
                results.write(result)
                run.judged.append(result["student"])
                shown.done(result["student"], f"{result['score']:g} of {result['of']:g}, {result['seconds']:.0f} s")
    return run


def _find(inbox: Path, assignment: str, roster: Roster, console: Console) -> list[HandIn]:
    """Everybody in the inbox; says which form it has and what in it is nobody's."""
    there = read_inbox(inbox, assignment, roster)
    if inbox == SUBMITTED:  # it holds all assignments
        there.hand_ins = [found for found in there.hand_ins if (inbox / found.student / assignment).is_dir()]
    console.print(f"{inbox}: {there.kind}; {len(there.hand_ins)} students", highlight=False, soft_wrap=True)
    if there.strays:
        console.print(f"nobody's, and left alone: {', '.join(there.strays)}", highlight=False, soft_wrap=True)
    return there.hand_ins


def _check_sandbox(unsafe: bool, console: Console) -> None:
    with Sandbox(unsafe) as sandbox:
        seen = sandbox.check()
    if unsafe:
        console.print("[bold red]--unsafe: student code runs as you, without a sandbox[/]")
    else:
        console.print(f"sandbox: holds; memory of all processes together limited by: {seen['memory_group']}")
        if seen["without_parent"]:
            console.print("sandbox: each worker loads torch itself, since no warm parent can be had", highlight=False)


def _changed(
    found: list[HandIn], assignment: str, results: Results, unsafe: bool, force: bool, run: Run, shown: "_Shown"
) -> Iterator[Submission]:
    """Take everybody in, note in `run` who has a result already, and yield the others."""
    for hand_in in found:
        student = hand_in.student
        submission = take_in(student, hand_in.entries(), assignment)
        submission.notes = hand_in.notes + submission.notes
        if submission.asks:
            run.ungradable[student] = submission.asks
            shown.done(student, f"[yellow]cannot be graded:[/] {escape(submission.asks[0])}")
            continue
        store(submission, hand_in.time)
        earlier = results.read(student)
        if earlier and earlier.get("key") == key_of(submission, unsafe):
            submission.notes = submission.notes or earlier["notes"]
            if not force:
                run.unchanged.append(student)
                shown.done(student, f"{earlier['score']:g} of {earlier['of']:g}, unchanged")
                continue
        yield submission


class _Shown:
    """One line of progress, with who is in hand, and above it a line for each student who is done."""

    def __init__(self, progress: Progress, total: int, jobs: int, console: Console) -> None:
        self.progress, self.jobs, self.console = progress, jobs, console
        self.task = progress.add_task("submissions", total=total)
        self.in_hand: dict[str, None] = {}

    def started(self, student: str) -> None:
        self.in_hand[student] = None
        self._show()

    def done(self, student: str, what: str) -> None:
        self.in_hand.pop(student, None)
        self.console.print(f"{escape(student)}: {what}", highlight=False, soft_wrap=True)
        self.progress.advance(self.task)
        self._show()

    def _show(self) -> None:
        names = ", ".join(list(self.in_hand)[: self.jobs])
        self.progress.update(self.task, description=f"judging {names}" if names else "submissions")


def publish(
    run: Run,
    assignment: str = "m13",
    *,
    gradebook: bool,
    roster: Roster | None,
    console: Console,
    due: str = "",
) -> None:
    """Gradebook, reports and grades.csv for everybody who has a result.

    Args:
        due: when the assignment was due, as nbgrader reads it; "" leaves the gradebook's.

    Raises:
        ValueError: a due date that is none.
    """
    from grading import gradebook as book
    from grading.report.class_page import ClassSeen, write_reports
    from grading.report.grades_csv import grades_csv
    from grading.report.similar_files import similarities

    results, work = Results(assignment), CLASS / assignment
    everybody = [result for student in sorted([*run.judged, *run.unchanged]) if (result := results.read(student))]
    scores = {result["student"]: result["score"] for result in everybody}
    if gradebook:
        with libraries_logged(work / "log.txt"), _progress(console) as progress:
            task = progress.add_task("gradebook", total=len(everybody))
            known = book.scores(assignment)
            # Who is late, and by how much, may have changed: a due date or an extension is given anew each time.
            again = run.unchanged if due or roster else [student for student in run.unchanged if student not in known]
            progress.update(task, total=len(run.judged) + len(again))
            failures = book.record(
                [*run.judged, *again], assignment, lambda student: progress.advance(task), due, _people(run, roster)
            )
            graded = book.scores(assignment)
        for student, why in failures.items():
            console.print(f"[red]{student} is judged, but not in the gradebook:[/] {why}", highlight=False)
        scores |= {student: score for student, score in graded.items() if student in scores}
    with libraries_logged(work / "log.txt"), console.status("similarities and reports"):
        folders = {result["student"]: SUBMITTED / result["student"] / assignment for result in everybody}
        similar = similarities(folders, assignment) if len(folders) > 1 else []
        seen = ClassSeen(run.names, run.times, run.late, run.errors, run.ungradable, run.missing, scores, similar)
        write_reports(work / "reports", assignment, everybody, seen)
    (work / "grades.csv").write_text(grades_csv(scores, assignment, roster), encoding="utf-8")
    console.print(_table(everybody, scores))
    for student, why in run.errors.items():
        console.print(f"[red]{student} was not judged and has no score:[/] {escape(why)}", highlight=False)
    for student, asks in run.ungradable.items():
        console.print(f"[yellow]{student} has no score:[/] {escape('; '.join(asks))}", highlight=False)
    if run.missing:
        console.print(f"[yellow]has not handed in:[/] {', '.join(run.missing)}", highlight=False, soft_wrap=True)
    console.print(
        f"{len(run.judged)} judged, {len(run.unchanged)} unchanged, {len(run.errors)} not judged, "
        f"{len(run.ungradable)} not gradable, {len(run.missing)} not handed in. "
        f"Reports: {work / 'reports' / 'index.html'}   Grades: {work / 'grades.csv'}",
        soft_wrap=True,
    )


def _people(run: Run, roster: Roster | None) -> dict[str, tuple[str, float | None]]:
    """student id -> (name, days of extension), for the gradebook."""
    known = {person.id: person.extension for person in roster.people} if roster else {}
    return {student: (name, known.get(student)) for student, name in run.names.items()}


def _table(results: list[dict[str, Any]], scores: dict[str, float]) -> Table:
    names = list(parts_of(results[0])) if results else []
    table = Table("student", *names, "score", "s", "notes")
    for result in results:
        cells = [*parts_of(result).values(), scores[result["student"]]]
        notes = str(len(result["notes"]) or "")  # they stand in the report
        table.add_row(result["student"], *(f"{cell:g}" for cell in cells), f"{result['seconds']:.0f}", notes)
    return table


def store(submission: Submission, time_of: str, submitted: Path = SUBMITTED) -> None:
    """Put the cleaned files where nbgrader looks for them; what stood there before is kept in RECEIVED.

    Args:
        time_of: when it came, which is how nbgrader knows who is late; "" if nobody knows.
    """
    folder = submitted / submission.student / submission.assignment
    there = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} if folder.is_dir() else {}
    stamp = time_of.encode()[:100] or there.get("timestamp.txt", b"")
    if there.pop("timestamp.txt", b"") == stamp and there == submission.files and not any(map(_odd, folder.iterdir())):
        return
    if folder.exists():
        kept = RECEIVED / submission.student / submission.assignment / time.strftime("%Y%m%dT%H%M%S")
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(kept, ignore_errors=True)
        folder.rename(kept)
    folder.mkdir(parents=True)
    for name, data in submission.files.items():
        (folder / name).write_bytes(data)
    if stamp:
        (folder / "timestamp.txt").write_bytes(stamp)


def _odd(path: Path) -> bool:
    return path.is_dir() or path.is_symlink()


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
