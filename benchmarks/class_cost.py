"""What grading a class costs here, and in plain serial nbgrader: `uv run python -m benchmarks.class_cost`.

The same submissions are graded in two fresh clones of this checkout (so commit first). In the plain one nbgrader runs
the students' notebooks itself, one after the other and without a sandbox, and the milestones' cells run the hidden
checks too: the same checks as here. By itself it would grade the checkout's modules and not the student's, so everybody
hands in the solution, and the solution stands there. Linux, with bubblewrap.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ai_playground.checkout import repo_root
from ai_playground.workspace import write_json
from benchmarks.rounds import machine

OUT = Path(__file__).parent / "results" / "class_cost.json"
PLAIN_CONFIG = """
c.Autograde.pop("autograde_preprocessors")  # nbgrader's own: it runs the notebooks
c.Execute.timeout = 600
"""
PLAIN_CHECKS = """
from dataclasses import replace
import importlib
from solutions.m13.hidden import HIDDEN
for _name in MILESTONES:
    _module = importlib.import_module(f"milestones.m13.{_name}")
    _module.CHECKS += tuple(replace(c, cases=HIDDEN[c.name]) for c in _module.CHECKS if c.name in HIDDEN)
"""


def hand_in(inbox: Path, count: int) -> None:
    """The solution, so many times."""
    for index in range(count):
        folder = inbox / f"s{index:03d}"
        folder.mkdir(parents=True)
        for pattern in ("m13?_*.py", "mini_vllm.ipynb"):
            for path in (repo_root() / "solutions" / "m13").glob(pattern):
                shutil.copy(path, folder)


def clone(folder: Path) -> Path:
    """A checkout of the last commit."""
    subprocess.run(["git", "clone", "--quiet", str(repo_root()), str(folder)], check=True)
    return folder


def timed(root: Path, *arguments: str) -> dict[str, float]:
    """Run a program of this environment in a checkout: wall and CPU seconds, and the process's own peak memory.

    Raises:
        RuntimeError: it failed.
    """
    env = os.environ | {
        "PYTHONPATH": f"{root}:{root / 'src'}", "COURSE_WORKSPACE": str(root / "checkpoints" / "myllm"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    start, before = time.monotonic(), os.times()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watcher.start()
    said, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with status {process.returncode}: {said[-2_000:]}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall_seconds": time.monotonic() - start, "cpu_seconds": cpu, "peak_mb": peak[0] / 1e3}


def _watch(process: subprocess.Popen, peak: list[int]) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak[0] = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
        time.sleep(0.5)


def graded_here(root: Path, inbox: Path, jobs: int) -> dict[str, float]:
    """`course grade` on an inbox, once it has judged the solution, which it does once and not a class."""
    command = ["-c", "from course.cli import main; main()", "grade"]
    (empty := root.parent / "empty").mkdir(exist_ok=True)
    timed(root, *command, str(empty), "--jobs", str(jobs))
    used = timed(root, *command, str(inbox), "--jobs", str(jobs))
    # What runs in a sandbox is no child that anybody waits for: its control group says what it used.
    results = (root / "grading" / "class" / "m13" / "results").glob("*.json")
    used["cpu_seconds"] += sum(json.loads(path.read_text(encoding="utf-8"))["cpu_seconds"] or 0.0 for path in results)
    return used


def graded_plainly(root: Path, inbox: Path) -> dict[str, float]:
    """`nbgrader autograde` on the same files."""
    for name, text in (("nbgrader_config.py", PLAIN_CONFIG), ("milestones/notebook.py", PLAIN_CHECKS)):
        with (root / name).open("a", encoding="utf-8") as file:
            file.write(text)
    released = root / "assignments" / "m13"
    for student in inbox.iterdir():
        folder = root / "grading" / "class" / "submitted" / student.name / "m13"
        shutil.copytree(released, folder)
        shutil.copytree(student, folder, dirs_exist_ok=True)
    timed(root, "-m", "nbgrader", "generate_assignment", "m13", "--force")
    for path in (root / "solutions" / "m13").glob("m13?_*.py"):
        shutil.copy(path, released)
    return timed(root, "-m", "nbgrader", "autograde", "m13")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--submissions", type=int, default=40)
    parser.add_argument("--plain", type=int, default=8, help="how many of them nbgrader gets")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "when": datetime.now(UTC).isoformat(timespec="seconds")}
    with tempfile.TemporaryDirectory(prefix="grading-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the sandbox's uid is another one
        for what, count in (("plain nbgrader", options.plain), ("few", options.plain), ("all", options.submissions)):
            hand_in(inbox := folder / f"inbox {what}", count)
            root = clone(folder / what.replace(" ", "_"))
            used = graded_plainly(root, inbox) if what == "plain nbgrader" else graded_here(root, inbox, options.jobs)
            used |= {"submissions": count, "wall_seconds_each": used["wall_seconds"] / count}
            print(what, {key: round(value, 1) for key, value in used.items()}, flush=True)
            found[what] = used
    found["jobs"] = options.jobs
    found["wall_ratio"] = found["all"]["wall_seconds_each"] / found["plain nbgrader"]["wall_seconds_each"]
    print(f"wall time a submission: {found['wall_ratio']:.2f} of plain nbgrader's")
    write_json(OUT, found)


if __name__ == "__main__":
    main()
