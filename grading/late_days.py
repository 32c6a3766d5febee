"""What a late submission loses: nbgrader's late-submission plugin, with a share of the points for each day begun."""

import math

from nbgrader.plugins import LateSubmissionPlugin
from traitlets import Float

DAY = 24 * 60 * 60


class LateDays(LateSubmissionPlugin):
    """nbgrader calls it with the seconds after the due date, extension included."""

    per_day = Float(0.0, min=0.0, max=1.0, help="The share of the points that each day begun takes.").tag(config=True)

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float | None:
        """The points to take away, at most all; None if lateness costs nothing."""
        if not self.per_day:
            return super().late_submission_penalty(student_id, score, total_seconds_late)
        return min(score, score * self.per_day * math.ceil(total_seconds_late / DAY))
