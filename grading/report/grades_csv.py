"""grades.csv, for the LMS."""

import csv
import io

from grading.assignments import ASSIGNMENTS
from grading.roster import Roster

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")


def grades_csv(scores: dict[str, float], assignment: str, roster: Roster | None = None) -> str:
    """grades.csv as the LMS imports it (for Canvas: community.canvaslms.com, "import grades in the Gradebook").

    Args:
        scores: student id -> points.
        assignment: a name of `ASSIGNMENTS`, whose column and points they are.
        roster: what the LMS exported. Its columns and lines are taken over; who has no score gets an empty cell, and
            who is not on it stands at the end. Without one the columns are Canvas's, with the student's id in
            `Student` and `SIS Login ID`.
    """
    canvas = roster is None or not roster.columns or "SIS Login ID" in roster.columns
    columns = CANVAS if canvas else roster.columns
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, ASSIGNMENTS[assignment].column])
    if canvas:
        writer.writerow(["    Points Possible", "", "", "", "", f"{ASSIGNMENTS[assignment].points:g}"])
    known = {person.id: [person.row.get(c, "") for c in columns] for person in roster.people} if roster else {}
    for student in sorted({*known, *scores}):
        unknown = [student, "", "", student, ""] if canvas else [student, *[""] * (len(columns) - 1)]
        score = f"{scores[student]:g}" if student in scores else ""
        writer.writerow([*map(_no_formula, known.get(student, unknown)), score])
    return out.getvalue()


def _no_formula(text: str) -> str:
    """A spreadsheet would run a cell that begins so."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t") else text
