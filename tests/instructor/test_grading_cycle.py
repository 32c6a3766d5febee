"""The whole way, in a copy of the checkout: `course grade`, nbgrader's own commands, reports, a second run."""

import csv
import html
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ai_playground.checkout import repo_root
from grading.assignments import ASSIGNMENTS, released
from tests.instructor.hostile import NOTEBOOK, B, Student, graded, instead, modules, notebook

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not shutil.which("bwrap"), reason="needs Linux and bubblewrap"
)

# The machinery is what is tried here, so a few quick checks stand for all.
KEPT = ("m13a.shipped_model", "m13b.shipped_prompts", "m13b.refusals", "m13c.refusals")
FEW = f"\nCHECKS = tuple(c for c in CHECKS if c.name in {KEPT}) or CHECKS[:1]\n"


class Checkout:
    """A copy in which commands run as in the real one."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        skipped = shutil.ignore_patterns("__pycache__", "class", "*.partial")
        for name in ("src", "milestones", "solutions", "assignments", "projects", "checkpoints", "grading"):
            shutil.copytree(repo_root() / name, self.root / name, ignore=skipped)
        for name in ("nbgrader_config.py", "pyproject.toml"):
            shutil.copy(repo_root() / name, self.root)
        for name in ("m13a", "m13b", "m13c"):
            with (self.root / "milestones" / "m13" / f"{name}.py").open("a") as file:
                file.write(FEW)
        hidden = self.root / "solutions" / "m13" / "hidden.py"
        hidden.write_text(f"{hidden.read_text()}\nHIDDEN = {{k: v for k, v in HIDDEN.items() if k in {KEPT}}}\n")
        self.work = self.root / "grading" / "class"
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        os.chmod(folder, 0o755)

    def run(self, *arguments: str, code: int = 0) -> str:
        env = os.environ | {
            "PYTHONPATH": f"{self.root}:{self.root / 'src'}", "OMP_NUM_THREADS": "1", "COLUMNS": "160",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COURSE_WORKSPACE": str(self.root / "checkpoints" / "myllm"),
        }  # fmt: skip
        program = ["-m", "nbgrader"] if arguments[0] == "nbgrader" else ["-c", "from course.cli import main; main()"]
        done = subprocess.run(
            [sys.executable, *program, *arguments[1:]],
            cwd=self.root,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def scores(self, assignment: str = "m13") -> dict[str, float]:
        with (self.work / assignment / "grades.csv").open() as file:
            rows = list(csv.reader(file))
        title = ASSIGNMENTS[assignment].column
        assert rows[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", title]
        assert rows[1][0].strip() == "Points Possible"
        return {row[3]: float(row[5]) for row in rows[2:]}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A graded class of five."""
    checkout = Checkout(tmp_path_factory.mktemp("cycle"))
    solutions = repo_root() / "solutions" / "m13"
    right = {path.name: path.read_text() for path in (*solutions.glob("m13*.py"), solutions / "mini_vllm.ipynb")}
    for student in (
        Student("right", files=right),
        Student("copycat", files=right),
        Student("untouched", files=dict(released("m13"))),
        Student("script", files=modules(instead("raise RuntimeError('<script>alert(1)</script>')"))),
        Student("repeated", files=modules(B, **{NOTEBOOK: notebook(lambda cells: cells.extend(graded(cells)))})),
        Student("José O'Brien", build=lambda path: Path(f"{path}.rar").write_bytes(b"Rar!")),
    ):
        student.hand_in(checkout.inbox)
    checkout.printed = checkout.run("course", "grade", str(checkout.inbox), "--jobs", "2")
    return checkout


def test_the_class_is_graded(checkout: Checkout) -> None:
    scores = checkout.scores()
    assert scores["right"] == scores["copycat"] > scores["repeated"] > scores["script"] > scores["untouched"] == 0
    results = {path.stem: json.loads(path.read_text()) for path in (checkout.work / "m13" / "results").glob("*.json")}
    assert {student: result["score"] for student, result in results.items()} == scores
    assert results["right"]["score"] == results["right"]["of"]
    assert "5 judged, 0 unchanged, 0 not judged, 1 not gradable" in checkout.printed
    assert "Jose_OBrien: cannot be graded: José O'Brien.rar" in checkout.printed
    assert "Warning" not in checkout.printed, "what libraries say stands in the log"


def test_reports_say_what_happened_and_nothing_hidden(checkout: Checkout) -> None:
    reports = checkout.work / "m13" / "reports"
    page = (reports / "script" / "report.html").read_text()
    assert "&lt;script&gt;alert(1)" in page and "<script" not in page
    assert "hidden checks" in (reports / "script" / "report.txt").read_text()
    index = (reports / "index.html").read_text()
    assert (reports / "class.png").read_bytes().startswith(b"\x89PNG")
    assert "copycat" in index.split("Similar files")[1] and "right" in index.split("Similar files")[1]
    results = json.loads((checkout.work / "m13" / "results" / "script.json").read_text())
    secret = [c["message"] for u in results["units"].values() for c in u["hidden"] if "input:" in c["message"]]
    assert secret
    for message in secret:
        line = next(line for line in message.splitlines() if line.startswith("  input:"))
        assert line == "  input:        " or f"{html.escape(line)}\n" not in page


def test_a_second_run_judges_only_what_changed(checkout: Checkout) -> None:
    before = (checkout.work / "m13" / "results" / "right.json").read_bytes()
    (checkout.inbox / "untouched" / "m13a_load_model.py").write_text(modules(None)["m13a_load_model.py"])
    printed = checkout.run("course", "grade", str(checkout.inbox))
    assert "1 judged, 4 unchanged" in printed
    assert (checkout.work / "m13" / "results" / "right.json").read_bytes() == before
    assert checkout.scores()["untouched"] > 0


def test_the_gradebook_keeps_what_was_graded_by_hand(checkout: Checkout) -> None:
    code = """
import sys
from nbgrader.api import Gradebook
with Gradebook(sys.argv[1]) as book:
    grade = book.find_grade("test_m13a", "milestones", "m13", "script")
    if sys.argv[2] == "set":
        grade.manual_score, grade.extra_credit = 3.0, 0.5
        book.db.commit()
    print(grade.manual_score, grade.auto_score, book.find_submission("m13", "script").score)
"""
    url = f"sqlite:///{checkout.work / 'gradebook.db'}"
    by_hand = [sys.executable, "-c", code, url]
    subprocess.run([*by_hand, "set"], check=True, capture_output=True)
    checkout.run("nbgrader", "autograde", "m13", "--student", "script", "--force")
    done = subprocess.run([*by_hand, "get"], check=True, capture_output=True, text=True)
    assert done.stdout.split()[0] == "3.0"


def test_feedback_and_export_by_nbgrader(checkout: Checkout) -> None:
    checkout.run("nbgrader", "generate_feedback", "m13")
    pages = list((checkout.work / "feedback").rglob("*.html"))
    assert len(pages) >= 5
    for page in pages:
        text = page.read_text()
        assert "BEGIN HIDDEN" not in text and "hidden_chapter" not in text and "solutions" not in text, page
    text = (checkout.work / "feedback" / "script" / "m13" / "milestones.html").read_text()
    assert "&lt;script&gt;alert(1)" in text and "<script>alert(1)" not in text
    checkout.run("nbgrader", "export", "--to", str(checkout.work / "export.csv"))
    with (checkout.work / "export.csv").open() as file:
        exported = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert exported["right"] == checkout.scores()["right"]


def test_late_days_cost_what_the_settings_say_unless_extended(checkout: Checkout) -> None:
    settings = checkout.root / "nbgrader_config.py"
    before, text = checkout.scores(), settings.read_text()
    settings.write_text(f"{text}\nc.LateDays.per_day = 0.1\n")
    roster = checkout.inbox.parent / "roster.csv"
    roster.write_text("id,name,extension\nright,Rita,0\ncopycat,Cy,36500\nabsent,Abby,\n")
    printed = checkout.run(
        "course", "grade", str(checkout.inbox), "--roster", str(roster), "--due", "2020-01-01 00:00 UTC"
    )
    settings.write_text(text)
    assert "has not handed in: absent" in printed
    with (checkout.work / "m13" / "grades.csv").open() as file:
        scores = {row["id"]: row["M13 mini vLLM"] for row in csv.DictReader(file)}
    assert (scores["right"], scores["absent"]) == ("0", "")
    assert float(scores["copycat"]) == before["copycat"]


def test_p3_is_graded_on_the_same_path(checkout: Checkout) -> None:
    inbox = checkout.inbox.parent / "p3"
    right = (repo_root() / "solutions" / "p3_kv_serve" / "kv_generate.py").read_text()
    uncached = f"{right}\ngenerate_cached = generate_full\n"
    inbox.mkdir()
    for student in (
        Student("right", files={"kv_generate.py": right, "given_model.py": "1 / 0"}),
        Student("uncached", files={"projects/p3_kv_serve/kv_generate.py": uncached}),
        Student("cheat", files={"kv_generate.py": f"import ai_playground.inference.generate\n{right}"}),
        Student("untouched", files=dict(released("p3_kv_serve"))),
    ):
        student.hand_in(inbox)
    printed = checkout.run("course", "grade", str(inbox), "--assignment", "p3_kv_serve")
    assert "4 judged, 0 unchanged, 0 not judged" in printed
    scores = checkout.scores("p3_kv_serve")
    assert scores == {"right": 100.0, "uncached": 85.0, "cheat": 97.0, "untouched": 0.0}
    report = (checkout.work / "p3_kv_serve" / "reports" / "uncached" / "report.txt").read_text()
    assert report.startswith("p3, uncached: 85 of 100 points") and "hidden checks: 24 of 33 points" in report
    checkout.run("nbgrader", "generate_feedback", "p3_kv_serve")
    assert list((checkout.work / "feedback" / "right" / "p3_kv_serve").glob("*.html"))


def test_release_fetch_submit_collect_grade(checkout: Checkout) -> None:
    checkout.run("nbgrader", "generate_assignment", "m13", "--force")
    checkout.run("nbgrader", "release_assignment", "m13", "--force")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    shutil.rmtree(checkout.root / "m13", ignore_errors=True)
    checkout.run("nbgrader", "fetch_assignment", "m13")
    assert "NotImplementedError" in (checkout.root / "m13" / "m13b_greedy.py").read_text()
    (checkout.root / "m13" / "m13b_greedy.py").write_text(B)
    checkout.run("nbgrader", "submit", "m13")
    checkout.run("nbgrader", "collect", "m13")
    printed = checkout.run("course", "grade")
    assert "1 judged" in printed
    result = json.loads((checkout.work / "m13" / "results" / f"{user}.json").read_text())
    # M13a was handed in as its stub, and M13b's shipped prompts need it.
    assert 0 < result["units"]["m13b"]["score"] < result["units"]["m13b"]["of"]
    assert result["units"]["m13a"]["score"] == 0
