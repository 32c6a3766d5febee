"""Which engine a command means by default, and where the checkout is.

`milestones`, and in the instructor's half `grading` and `benchmarks`, are folders of the checkout and no installed
packages: importing this module lets them be imported too.
"""

import sys

from ai_playground.checkout import repo_root

ROOT = repo_root()

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


def default_engine() -> str:
    """The reference where the instructor's half is, the student's own everywhere else."""
    return "solutions" if (ROOT / "solutions" / "m13").is_dir() else "assignments"
