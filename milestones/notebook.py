"""The graded cells of `milestones.ipynb` and of p3's notebook: the same checks as pytest runs, for nbgrader."""

from checking.judging import run_check
from checking.supervisor import Worker
from milestones.points import MILESTONES, P3, P3_SHOWN_WHOLE, VISIBLE_SHARE
from milestones.subjects import PARTS


class MilestoneOpen(AssertionError):
    """A milestone that is not done, shown in the notebook without a traceback through the checks."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


def check_milestone(name: str) -> float:
    """Run the checks of one milestone, or of one part of p3, on your engine, and return its points so far.

    What came of each check is printed. When a class is graded this is not run: the cell gets what the class grader
    found, hidden cases included.

    Args:
        name: `m13a` to `m13d`, or `p3_full`, `p3_cached`, `p3_sampler`, `p3_rules`.

    Raises:
        MilestoneOpen: with the first check that does not pass.
    """
    part = "p3" if name in P3 else name
    checks = [check for check in PARTS[part].checks(part) if name not in P3 or check.name in P3[name]]
    with Worker() as worker:
        for check in checks:
            result = run_check(check, check.subject.find("assignments"), worker)
            if result.status != "passed":
                raise MilestoneOpen(f"{check.name}: {result.status.replace('_', ' ')}\n{result.message}")
            print(f"{check.name}: passed")
    if name in P3:
        points = sum(of if key in P3_SHOWN_WHOLE else VISIBLE_SHARE * of for key, of in P3[name].items())
        total = sum(P3[name].values())
    else:
        points, total = VISIBLE_SHARE * MILESTONES[name], MILESTONES[name]
    carried = f" The grader's own cases carry {1 - points / total:.0%} of the points." if points < total else ""
    print(f"All {len(checks)} checks pass.{carried}")
    return float(points)
