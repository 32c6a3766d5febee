"""The roster: the LMS's own list of who is in the course, as it exports it.

Known columns, in any order, of Canvas (gradebook), Moodle (grading worksheet, participants), Gradescope (roster),
GitHub Classroom (roster, grades) and of a plain table. A column `extension` gives days beyond the due date.
"""

import csv
import io
from dataclasses import dataclass, field

from grading.names import folded, safe_id

# The id of a student here is the first of these that is there; all of them find a student.
IDS = ("SIS Login ID", "Username", "github_username", "id", "SID", "SIS User ID", "ID number", "Email address", "Email",
       "identifier", "ID", "Identifier")  # fmt: skip
NAMES = ("Student", "Full name", "Name", "name")
FIRST, LAST = ("First name", "First Name", "first_name"), ("Last name", "Surname", "Last Name", "last_name")
TIMES = ("submission_timestamp", "submitted_at")
EXTENSIONS = ("extension", "extension_days", "Extension", "Extension (days)")


@dataclass
class Person:
    """One student of the roster; `row` is the line as the LMS wrote it, by column."""

    id: str
    name: str
    row: dict[str, str] = field(default_factory=dict)
    extension: float = 0.0  # days
    time: str = ""  # of the submission, where the LMS lists it


class Roster:
    """People by every id and name that they go by; what two of them share finds nobody."""

    def __init__(self, people: list[Person], columns: tuple[str, ...] = ()) -> None:
        self.people, self.columns = people, columns
        self._known: dict[str, Person | None] = {}
        for person in people:
            for key in {folded(key) for key in self._keys(person)} - {""}:
                self._known[key] = None if key in self._known else person

    @staticmethod
    def _keys(person: Person) -> list[str]:
        row = person.row
        keys = [person.id, person.name, *(row.get(column, "") for column in (*IDS, *NAMES))]
        keys += [key.split("@")[0] for key in keys if "@" in key]
        first, last = _first(row, FIRST), _first(row, LAST)
        if "," in person.name:  # Canvas writes `Last, First`
            last, first = (part.strip() for part in person.name.split(",", 1))
        elif not last and " " in person.name:
            first, last = person.name.rsplit(" ", 1)
        return [*keys, first + last, last + first]

    def find(self, key: str) -> Person | None:
        """Who goes by this id or name; nobody if two do."""
        return self._known.get(folded(key)) if key else None


def read_roster(text: str) -> Roster:
    """A roster from the text of a CSV file.

    Raises:
        ValueError: none of the known columns, or an extension that is no number of days.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    columns = tuple(reader.fieldnames or ())
    if not set(columns) & {*IDS, *NAMES}:
        raise ValueError(
            f"expected a roster with one of the columns {', '.join((*IDS, *NAMES))}; found "
            f"{', '.join(columns) or 'none'}. Export it anew from the LMS, as CSV with commas"
        )
    people = []
    for row in reader:
        row = {
            key: (value or "").strip() for key, value in row.items() if isinstance(key, str) and isinstance(value, str)
        }
        name = _first(row, NAMES) or " ".join(filter(None, (_first(row, FIRST), _first(row, LAST))))
        if not any(row.values()) or "points possible" in name.lower() or name == "Student, Test":
            continue  # Canvas's second line, and its made-up student
        ident = safe_id(_first(row, IDS) or name)
        extension = _first(row, EXTENSIONS) or "0"
        try:
            days = float(extension)
        except ValueError:
            raise ValueError(f"expected days in the column of extensions; found {extension!r} for {name}") from None
        people.append(Person(ident, name, row, days, _first(row, TIMES)))
    return Roster(people, columns)


def _first(row: dict[str, str], columns: tuple[str, ...]) -> str:
    return next((row[column].strip() for column in columns if row.get(column, "").strip()), "")
