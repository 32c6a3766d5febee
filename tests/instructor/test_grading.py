"""A hostile class: everybody gets exactly what they earned, and nothing outside the sandbox changes."""

import hashlib
import os
import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ai_playground.checkout import repo_root
from grading.assignments import ASSIGNMENTS, Unit, Worth
from grading.intake.inbox import read_inbox
from grading.intake.take_in import take_in
from grading.judging import judging_pool, one_submission
from grading.judging.judging_pool import judge_class
from grading.judging.sandbox import FIRST_UID, Sandbox
from grading.judging.solution_first import check_reference, reference_submission
from tests.instructor.hostile import Student, the_class

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not shutil.which("bwrap"), reason="needs Linux and bubblewrap"
)

FEW = {"m13a.shipped_model": 1, "m13a.other_shapes": 1, "m13b.shipped_prompts": 2, "m13b.shapes": 3}


def few_units() -> tuple[Unit, ...]:
    """M13a and M13b with few cases and short limits: who gets through here is not a question of cases."""

    def few(checks: Worth) -> Worth:
        kept = [(check, of) for check, of in checks if check.name in FEW]
        more = sum(of for _, of in checks) / sum(of for _, of in kept)  # the unit is worth what it was
        return tuple((replace(c, cases=c.cases[: FEW[c.name]], limit=4.0), of * more) for c, of in kept)

    return tuple(
        replace(unit, visible=few(unit.visible), hidden=few(unit.hidden))
        for unit in ASSIGNMENTS["m13"].units()
        if unit.name in ("m13a", "m13b")
    )


def tree_digest(*folders: Path) -> dict[str, str]:
    """Every file, caches and git's own aside."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and not {".git", ".venv", "__pycache__", ".pytest_cache", ".ruff_cache", "outputs"} & set(path.parts)
    }


def strangers() -> list[str]:
    """Processes of the sandbox's uids, or for an ordinary user those called like the worker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            status = path.read_text()
            uid = int(status.split("Uid:")[1].split()[0])
            command = (path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except (OSError, IndexError):
            continue
        if "State:\tZ" in status:  # it has ended, and waits for its parent to notice
            continue
        if FIRST_UID <= uid < FIRST_UID + 1_000 or (
            os.geteuid() and uid == os.geteuid() and "checking.worker" in command
        ):
            found.append(f"{path.parent.name}: {command}")
    return found


@pytest.fixture(scope="module")
def graded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The class, or those of it that were chosen with -k, judged in threads: the sandboxes are the slow part."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = {chosen["name"] for chosen in params if "name" in chosen}
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("class")
    inbox, secret, results = folder / "inbox", folder / "secret.txt", folder / "results"
    inbox.mkdir(), results.mkdir()
    secret.write_text("the exam questions")
    (results / "gradebook.db").write_bytes(b"grades")
    few = few_units()
    patch.setitem(ASSIGNMENTS, "m13", replace(ASSIGNMENTS["m13"], units=lambda: few))
    patch.setattr(one_submission, "IMPORT_SECONDS", 5.0)
    patch.setattr(one_submission, "AFTER_TIMEOUT", 1.0)
    patch.setenv("COURSE_TEST_SECRET", "in the environment")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        everybody = the_class(secret, server.getsockname()[1], results)
        students = [student for student in everybody if student.name in chosen]
        for student in students:
            student.hand_in(inbox)
        before = tree_digest(repo_root(), folder)
        submissions = [take_in(hand_in.student, hand_in.entries()) for hand_in in read_inbox(inbox).hand_ins]
        judged = list(judge_class(submissions, lambda: ThreadPoolExecutor(3), window=4))
        after = tree_digest(repo_root(), folder)
        try:
            server.accept()
            connected = True
        except TimeoutError:
            connected = False
    patch.undo()
    judging_pool._here.pop(False).__exit__()
    return {
        "students": students,
        "results": {result["student"]: result for result in judged},
        "before": before,
        "after": after,
        "connected": connected,
    }


STUDENTS = [student.name for student in the_class(Path("secret"), 1, Path("results"))]


def test_the_class_is_large_enough() -> None:
    assert len(STUDENTS) >= 30


@pytest.mark.parametrize("name", STUDENTS)
def test_everybody_gets_what_they_earned(name: str, graded: dict[str, Any]) -> None:
    student: Student = next(student for student in graded["students"] if student.name == name)
    result = graded["results"][name]
    assert "error" not in result, result
    told = "\n".join([*result["notes"], *(c["message"] for u in result["units"].values() for c in u["visible"])])
    found = tuple(result["units"][unit]["score"] for unit in ("m13a", "m13b"))
    assert found == student.earns, told
    assert student.says in told
    if sum(student.earns) < 35:
        assert told.strip(), "whoever loses points is told why"


def test_nothing_outside_changed(graded: dict[str, Any]) -> None:
    assert graded["after"] == graded["before"]
    assert not graded["connected"]
    assert strangers() == []


def test_no_text_can_break_a_report(graded: dict[str, Any]) -> None:
    text = str(graded["results"]["script_in_the_message"])
    text.encode("utf-8")
    assert "\x1b" not in text


def test_the_solution_gets_all_points() -> None:
    with Sandbox() as sandbox:
        result = one_submission.judge(reference_submission(), sandbox)
    check_reference(result)
    assert result["score"] == result["of"]
