"""grades.csv, for the LMS."""

import csv
import io

from grading.assignments import ASSIGNMENTS


def grades_csv(scores: dict[str, float], assignment: str, roster: str | None = None) -> str:
    """grades.csv as Canvas imports it (docs: community.canvaslms.com, "import grades in the Gradebook").

    Args:
        scores: student id -> points.
        assignment: a name of `ASSIGNMENTS`, whose column and points they are.
        roster: a gradebook that Canvas exported, as text: its names, IDs and sections are taken over by the SIS login
            (the student's id here). Without it the student's id stands in `Student` and `SIS Login ID`.

    Raises:
        ValueError: a roster without Canvas's columns.
    """
    columns = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, ASSIGNMENTS[assignment].column])
    writer.writerow(["    Points Possible", "", "", "", "", f"{ASSIGNMENTS[assignment].points:g}"])
    known: dict[str, list[str]] = {}
    if roster is not None:
        reader = csv.DictReader(io.StringIO(roster.lstrip("\ufeff")))
        if missing := [
            column for column in ("Student", "ID", "SIS Login ID") if column not in (reader.fieldnames or ())
        ]:
            raise ValueError(f"expected a gradebook exported from Canvas; it has no column {', '.join(missing)}")
        known = {row["SIS Login ID"]: [row.get(column) or "" for column in columns] for row in reader}
    for student, score in sorted(scores.items()):
        row = known.get(student, [student, "", "", student, ""])
        writer.writerow([*map(_no_formula, row), f"{score:g}"])
    return out.getvalue()


def _no_formula(text: str) -> str:
    """A spreadsheet would run a cell that begins so."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t") else text
