"""The solution must get all points before anybody is graded: else the machine or the checks are broken."""

from typing import Any

from ai_playground.checkout import repo_root
from grading.assignments import released
from grading.intake.submission import Submission
from grading.judging.sandbox import SandboxError


def reference_submission(assignment: str = "m13") -> Submission:
    """The solution, as if a student had handed it in; what has none is as it is released."""
    folder = repo_root() / "solutions" / assignment
    paths = {name: folder / name for name in released(assignment)}
    files = {name: path.read_bytes() if path.is_file() else released(assignment)[name] for name, path in paths.items()}
    return Submission("reference", files, assignment=assignment)


def check_reference(result: dict[str, Any]) -> None:
    """Refuse to grade a class where the solution itself does not get all points.

    Raises:
        SandboxError: naming the checks.
    """
    if "error" in result:
        raise SandboxError(f"expected the solution to be judged; found {result['error']}")
    failed = [
        check["name"]
        for unit in result["units"].values()
        for check in (*unit["visible"], *unit["hidden"])
        if check["status"] != "passed"
    ]
    if failed:
        raise SandboxError(
            f"expected the solution to get {result['of']:g} points before anybody; found {result['score']:g}. "
            f"Failed: {', '.join(failed)}. Is this machine too busy, or the workspace or a check broken?"
        )
