"""nbgrader's gradebook in PostgreSQL: a real server, two graders at once, nothing lost."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
pytestmark = pytest.mark.skipif(
    not SERVERS, reason="needs PostgreSQL's server: apt-get install postgresql, and the Python package psycopg[binary]"
)
GRADER = """
import sys
from nbgrader.api import Gradebook
url, who = sys.argv[1:]
for number in range(8):
    with Gradebook(url) as book:
        for student in (f"{who}{number}", f"shared{number}"):
            book.update_or_create_student(student)
            book.update_or_create_submission("m13", student)
            grade = book.find_grade("test_m13a", "milestones", "m13", student)
            grade.auto_score = number
            book.db.commit()
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server of its own, below the test's folder, reached by a socket there."""
    pytest.importorskip("psycopg")
    tools, folder = SERVERS[-1].parent, Path("/tmp") / f"course-pg-{os.getpid()}"  # a socket's path must be short
    folder.mkdir(mode=0o777)
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    try:
        data = str(folder / "data")
        subprocess.run([*as_user, tools / "initdb", "-D", data, "-A", "trust", "-U", "grader"], check=True, cwd="/",
                       capture_output=True)  # fmt: skip
        subprocess.run([*as_user, tools / "pg_ctl", "-D", data, "-o", options, "-l", f"{folder}/log", "-w", "start"],
                       check=True, cwd="/", stdout=subprocess.DEVNULL)  # fmt: skip
        yield f"postgresql://grader@/postgres?host={folder}"
        subprocess.run([*as_user, tools / "pg_ctl", "-D", data, "-m", "immediate", "stop"], cwd="/",
                       capture_output=True)  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_two_graders_at_once_lose_nothing(url: str) -> None:
    from nbgrader.api import Gradebook

    with Gradebook(url) as book:
        book.add_assignment("m13")
        book.add_notebook("milestones", "m13")
        book.add_grade_cell("test_m13a", "milestones", "m13", max_score=20, cell_type="code")
        for number in range(8):  # both graders judge these
            book.add_student(f"shared{number}")
            book.add_submission("m13", f"shared{number}")
    graders = [
        subprocess.Popen([sys.executable, "-c", GRADER, url, who], stderr=subprocess.PIPE, text=True)
        for who in ("one", "two")
    ]
    errors = [grader.communicate(timeout=120)[1] for grader in graders]
    assert [grader.returncode for grader in graders] == [0, 0], errors
    with Gradebook(url) as book:
        scores = {s.student.id: s.score for s in book.assignment_submissions("m13")}
    assert scores == {f"{who}{n}": n for who in ("one", "two", "shared") for n in range(8)}
