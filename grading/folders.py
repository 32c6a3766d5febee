"""Where grading a class writes; git ignores all of it."""

from ai_playground.checkout import repo_root

CLASS = repo_root() / "grading" / "class"
SUBMITTED = CLASS / "submitted"  # cleaned, as nbgrader looks for them: STUDENT/ASSIGNMENT
RECEIVED = CLASS / "received"  # what `nbgrader collect` brought, as it came
