"""From results to nbgrader's gradebook, by nbgrader itself, one student after another: one writer, no lock trouble."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nbgrader.api import MissingEntry
from nbgrader.utils import parse_utc

from ai_playground.checkout import repo_root


def nbgrader_api(root: Path | None = None) -> Any:
    """nbgrader's API with this course's settings."""
    from nbgrader.apps import NbGrader
    from nbgrader.apps.api import NbGraderAPI

    root = root or repo_root()
    own = str(Path(sys.executable).parent)  # nbgrader calls alembic by its name
    if own not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = own + os.pathsep + os.environ["PATH"]
    with contextlib.chdir(root):
        app = NbGrader()
        app.config_file_paths  # noqa: B018  nbgrader looks for its settings in the current folder
        app.load_config_file()
    api = NbGraderAPI(config=app.config)
    api.log.setLevel(logging.ERROR)
    return api


def record(
    students: Iterable[str],
    assignment: str,
    on_done: Callable[[str], None] = lambda student: None,
    due: str = "",
    people: dict[str, tuple[str, float | None]] | None = None,
) -> dict[str, str]:
    """Autograde students whose results are on disk; manual grades and comments in the gradebook stay.

    Args:
        due: the due date, as nbgrader reads it; "" leaves what the gradebook has.
        people: student id -> (name, days of extension; None leaves what the gradebook has).

    Returns:
        What went wrong, by student; empty if nothing did.
    """
    errors: dict[str, str] = {}
    previous = Path.cwd()
    os.chdir(repo_root())  # nbgrader's folders are relative to it
    try:
        api = nbgrader_api()
        if problem := _generate(api, assignment):
            return dict.fromkeys(students, problem)
        if due:
            _set_due(api, assignment, due)
        students = list(students)
        _enter(api, assignment, {student: (people or {}).get(student, ("", None)) for student in students})
        for student in students:
            done = api.autograde(assignment, student, force=True, create=True)
            if not done["success"]:
                errors[student] = _last_lines(done)
            on_done(student)
    finally:
        os.chdir(previous)
    return errors


def _generate(api: Any, assignment: str) -> str:
    """Make sure that the gradebook has the assignment as it is released now; what went wrong, if anything did.

    nbgrader builds the student's version for that. It goes to a folder of its own: an interruption must not leave
    half of assignments/ behind.
    """
    names = {path.stem for path in (repo_root() / "solutions" / assignment).glob("*.ipynb")}
    with contextlib.suppress(MissingEntry), api.gradebook as gradebook:
        if {notebook.name for notebook in gradebook.find_assignment(assignment).notebooks} == names:
            return ""
    release_directory = api.coursedir.release_directory
    api.coursedir.release_directory = "grading/class/release"
    try:
        done = api.generate_assignment(assignment, force=True)
    finally:
        api.coursedir.release_directory = release_directory
    return "" if done["success"] else f"nbgrader generate_assignment failed: {_last_lines(done)}"


def _set_due(api: Any, assignment: str, due: str) -> None:
    try:
        when = parse_utc(due)
    except ValueError:
        raise ValueError(f"expected a due date like 2026-12-18 23:59 UTC; found {due!r}") from None
    with api.gradebook as gradebook:
        gradebook.update_or_create_assignment(assignment, duedate=when)


def _enter(api: Any, assignment: str, people: dict[str, tuple[str, float | None]]) -> None:
    """Enter names and extensions, which nbgrader's late penalty counts with."""
    with api.gradebook as gradebook:
        for student, (name, days) in people.items():
            gradebook.update_or_create_student(student, **({"last_name": name} if name else {}))
            if days is not None:
                gradebook.update_or_create_submission(assignment, student)
                gradebook.grant_extension(assignment, student, days=days)


def _last_lines(done: dict[str, Any]) -> str:
    text = str(done.get("error") or done.get("log") or "no reason given").strip()
    return "\n".join(text.splitlines()[-6:])


def scores(assignment: str) -> dict[str, float]:
    """Each student's score in the gradebook: with manual grades and late penalties; empty if there is no gradebook."""
    previous = Path.cwd()
    os.chdir(repo_root())
    try:
        with contextlib.suppress(MissingEntry), nbgrader_api().gradebook as gradebook:
            found = gradebook.assignment_submissions(assignment)
            return {s.student.id: max(0.0, s.score - (s.late_submission_penalty or 0.0)) for s in found}
        return {}
    finally:
        os.chdir(previous)
