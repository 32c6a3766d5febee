"""Gradescope: a zip of this autograder, and what runs in Gradescope's container.

The zip holds the library, the checks, the workspace and the hidden cases, but no solution. In the container student
code runs in bubblewrap if that works there. If not, the container is what keeps students apart, and the worker runs
under an unprivileged uid that cannot read the hidden cases or write the results.

Format: gradescope-autograders.readthedocs.io/en/latest/specs
"""

import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path, PurePath
from typing import Any

from ai_playground.checkout import repo_root
from ai_playground.workspace import write_json
from checking.supervisor import Worker
from grading.assignments import ASSIGNMENTS
from grading.intake.archives import entries_of
from grading.intake.take_in import take_in
from grading.judging.one_submission import judge
from grading.judging.sandbox import Sandbox, SandboxError
from grading.judging.sandbox_view import inner_env, limits
from grading.report.words import unit_report

HIDDEN_FROM_STUDENTS = ("solutions", "grading")

_SETUP = """#!/usr/bin/env bash
# Runs once, when Gradescope builds the container.
set -euo pipefail
apt-get update && apt-get install -y bubblewrap curl
export UV_INSTALL_DIR=/usr/local/bin UV_PYTHON_INSTALL_DIR=/opt/python UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy
curl -LsSf https://astral.sh/uv/install.sh | sh
cd /autograder/source/repo
# torch from its own index is the one without CUDA: a tenth of the size
uv venv --python 3.11
uv pip install --torch-backend cpu -e . "nbgrader>=0.9.5"
chmod -R a+rX . /opt/python
chmod -R go-rwx solutions grading
"""
_RUN = """#!/usr/bin/env bash
# Runs for each submission.
set -euo pipefail
cd /autograder/source/repo
exec .venv/bin/python -m grading.gradescope {} /autograder/submission /autograder/results/results.json
"""


def build(out: Path, assignment: str = "m13") -> list[str]:
    """Write the autograder's zip; returns the names in it.

    Raises:
        ValueError: an unknown assignment.
    """
    if assignment not in ASSIGNMENTS:
        raise ValueError(f"expected an assignment of {', '.join(ASSIGNMENTS)}; found {assignment!r}")
    root = repo_root()
    patterns = ("pyproject.toml", "README.md", "LICENSE", "src/**/*", "milestones/**/*", "assignments/m13/*",
                "checkpoints/myllm/**/*", "projects/p3_kv_serve/*", "solutions/*/hidden*",
                "grading/*.py",
                "grading/intake/*.py", "grading/judging/*.py", "grading/report/*.py")  # fmt: skip
    paths = sorted(
        {
            path
            for pattern in patterns
            for path in root.glob(pattern)
            if path.is_file() and "__pycache__" not in path.parts
        }
    )
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("setup.sh", _SETUP), ("run_autograder", _RUN.format(assignment))):
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o755 << 16
            archive.writestr(info, text)
        for path in paths:
            archive.write(path, f"repo/{path.relative_to(root).as_posix()}")
        return archive.namelist()


class ContainerSandbox(Sandbox):
    """Where bubblewrap cannot run: an unprivileged uid in a container that has one submission and no other."""

    def __init__(self) -> None:
        self.unsafe = False
        self.is_root = True
        self.stage = ""
        self.uid = 64_000

    def path(self, submission: Path, name: str | PurePath) -> Path:
        return submission / name

    def worker(self, submission: Path) -> Worker:
        return Worker(self.command(submission, [sys.executable, "-s", "-m", "checking.worker"]), {"PATH": os.defpath})

    def command(self, submission: Path | None, program: list[str], group: Any = None) -> list[str]:
        variables = [f"{key}={value}" for key, value in inner_env().items()]
        identity = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--no-new-privs"]
        return [*identity, "env", "-i", *variables, *limits(), *program]

    def check(self) -> dict[str, Any]:
        """That the uid can start Python and cannot read what is hidden.

        Raises:
            SandboxError: it can, or it cannot start Python.
        """
        if os.geteuid() != 0:
            raise SandboxError("expected to run as root in Gradescope's container, to be able to drop to another uid")
        for name in HIDDEN_FROM_STUDENTS:
            for path in sorted((repo_root() / name).rglob("*")):
                os.chmod(path, 0o700 if path.is_dir() else 0o600)
            os.chmod(repo_root() / name, 0o700)
        hidden = shlex.quote(str(repo_root() / "solutions"))
        script = f"{shlex.quote(sys.executable)} -c 'print(1)' && ! ls {hidden} 2>/dev/null && id -u"
        done = subprocess.run(self.command(None, ["sh", "-c", script]), capture_output=True, text=True, timeout=60)
        if done.stdout.split() != ["1", str(self.uid)]:
            raise SandboxError(f"the uid {self.uid} cannot be used: {done.stdout.strip()} {done.stderr.strip()[-500:]}")
        return {"memory_group": "none"}


def results_json(result: dict[str, Any]) -> dict[str, Any]:
    """A judged result in Gradescope's format."""
    tests = []
    for name, unit in result["units"].items():
        for check in unit["visible"]:
            tests.append(
                {
                    "name": check["name"],
                    "score": check["points"],
                    "max_score": check["of"],
                    "status": "passed" if check["status"] == "passed" else "failed",
                    "output": check["message"] or check["claim"],
                    "output_format": "text",
                    "visibility": "visible",
                }
            )
        if unit["hidden_of"]:
            tests.append(
                {
                    "name": f"{name}, hidden checks",
                    "score": unit["hidden_points"],
                    "max_score": unit["hidden_of"],
                    "output": "The grader's own cases: other prompts, models and sizes.",
                    "output_format": "text",
                    "visibility": "visible",
                }
            )
    return {
        "score": result["score"],
        "execution_time": result["seconds"],
        "output": "\n".join(
            [*result["notes"], *(f"{n}: {unit_report(u).splitlines()[0]}" for n, u in result["units"].items())]
        ),
        "output_format": "text",
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def main(assignment: str, submission: Path, out: Path) -> None:
    """Judge one submission in the container. A failure of the container raises, and Gradescope shows it as one."""
    try:
        sandbox: Sandbox = Sandbox()
        sandbox.check()
    except SandboxError as error:
        print(f"no bubblewrap here ({str(error).splitlines()[0]}); using another uid")
        sandbox = ContainerSandbox()
        sandbox.check()
    with sandbox:
        result = judge(take_in("submission", entries_of(submission), assignment), sandbox)
    write_json(out, results_json(result))
    print(json.dumps({key: result[key] for key in ("score", "of", "seconds", "cpu_seconds", "peak_mib")}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
