"""The one place that holds the assignment's points: M13a-d, and the chapter's graded cells."""

MILESTONES: dict[str, int] = {"m13a": 10, "m13b": 25, "m13c": 25, "m13d": 10}
