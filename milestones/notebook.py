"""The graded cells of `milestones.ipynb`: the same checks as `uv run pytest tests/milestones`, for nbgrader."""

import importlib

from milestones.engines import engine_path
from milestones.harness import Worker, run_check
from milestones.points import MILESTONES, VISIBLE_SHARE


class MilestoneOpen(AssertionError):
    """A milestone that is not done, shown in the notebook without a traceback through the checks."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def check_milestone(name: str) -> float:
    """Run the checks of one milestone on your engine, print what came of each, and return its points so far.

    When a class is graded this is not run: the cell gets what the class grader found, hidden cases included.

    Args:
        name: `m13a` to `m13d`.

    Raises:
        MilestoneOpen: with the first check that does not pass.
    """
    checks = importlib.import_module(f"milestones.{name}").CHECKS
    with Worker() as worker:
        for check in checks:
            result = run_check(check, engine_path("assignments"), worker)
            if result.status != "passed":
                raise MilestoneOpen(f"{check.name}: {result.status.replace('_', ' ')}\n{result.message}")
            print(f"{check.name}: passed")
    print(f"All {len(checks)} checks pass. The grader's own cases carry {1 - VISIBLE_SHARE:.0%} of the points.")
    return float(MILESTONES[name] * VISIBLE_SHARE)
