"""What a run of the milestones says at its end."""

import pytest

from checking.seed import SEED
from milestones.points import MILESTONES, VISIBLE_SHARE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = sum(MILESTONES.values())
    terminalreporter.write_sep("-", "milestones")
    terminalreporter.write_line(
        f"Of the {total} points of M13a-d, the checks above carry {VISIBLE_SHARE * total:g}. The other "
        f"{(1 - VISIBLE_SHARE) * total:g} are on hidden checks: the same ideas on other prompts, models and pools."
    )
    terminalreporter.write_line(f"The fresh_ checks drew their inputs with COURSE_SEED={SEED}.")
