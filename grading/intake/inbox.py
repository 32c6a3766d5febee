"""Who handed in: an inbox of folders and archives, by student."""

import re
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


def find_submissions(inbox: Path) -> dict[str, Path]:
    """Student id -> folder or archive, for everything in an inbox.

    The id is the name of the folder or file without its ending. nbgrader's own layout (`STUDENT/m13/`) is one.

    Raises:
        ValueError: there is no such folder, two entries of one name, or a name that cannot be an id.
    """
    if not inbox.is_dir():
        raise ValueError(f"expected a folder of submissions at {inbox}; found {'a file' if inbox.exists() else 'none'}")
    found: dict[str, Path] = {}
    for path in sorted(inbox.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        student = path.name
        if not path.is_dir():
            ending = next(
                (e for e in (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar", ".zip") if student.endswith(e)), ""
            )
            if not ending:
                continue
            student = student.removesuffix(ending)
        student = student.replace(" ", "_")
        if not NAME.fullmatch(student):
            raise ValueError(
                f"expected names of letters, digits and . _ @ + - in {inbox}; found {path.name!r}. Rename it to the "
                "student's id"
            )
        if student in found:
            raise ValueError(f"expected one submission of {student}; found {found[student].name} and {path.name}")
        found[student] = path
    return found
