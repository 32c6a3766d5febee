"""One student's files, cleaned."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from ai_playground.checkout import repo_root
from grading.assignments import ASSIGNMENTS, place


@dataclass
class Submission:
    """One student's files, cleaned.

    Attributes:
        student: the student's id.
        files: name -> content, for every file that was asked for; what is missing is the released one.
        notes: what intake had to do, in words for the student.
        assignment: what it was handed in for, a name of `ASSIGNMENTS`.
        asks: nothing that can be graded was found, and this is what to ask the student for.
    """

    student: str
    files: dict[str, bytes]
    notes: list[str] = field(default_factory=list)
    assignment: str = "m13"
    asks: list[str] = field(default_factory=list)

    @cached_property
    def digest(self) -> str:
        """Changes when any file does."""
        digest = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
        return digest.hexdigest()

    def write(self, folder: Path) -> Path:
        """Lay the files out as in the repository, which is how the worker sees them; returns `folder`.

        What the assignment gives, and a student may not change, lies among them.
        """
        given = {PurePosixPath(name): (repo_root() / name).read_bytes() for name in ASSIGNMENTS[self.assignment].given}
        files = {place(self.assignment, name): data for name, data in self.files.items()}
        for name, data in (files | given).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder
