"""What students handed in -> the files that they were asked to edit, and nothing else of it.

A submission comes as a folder, a zip or a tar, laid out in any way: the whole repository, one folder, loose files.
Files are found by their names. Nothing is unpacked: the wanted members are read, up to a cap, and the rest is never
touched, so that links, devices, paths with `..` and archives that grow have no effect. Of a notebook only the answer
cells are taken, by their `grade_id`, into a copy of the released one.
"""

import hashlib
import json
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ai_playground.checkout import repo_root
from grading.assignments import ASSIGNMENTS, place, released

OPTIONAL = ("serve_myllm.py",)  # a student may write the whole engine in it, and need not
MAX_FILE = {".py": 2**20, ".ipynb": 32 * 2**20}  # bytes; a notebook comes with its pictures
MAX_ENTRIES = 20_000  # a virtual environment that was packed too has about as many
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


@dataclass
class Submission:
    """One student's files, cleaned.

    Attributes:
        student: the student's id.
        files: name -> content, for every file that was asked for; what is missing is the released one.
        notes: what intake had to do, in words for the student.
        assignment: what it was handed in for, a name of `ASSIGNMENTS`.
    """

    student: str
    files: dict[str, bytes]
    notes: list[str] = field(default_factory=list)
    assignment: str = "m13"

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


def take_in(student: str, path: Path, assignment: str = "m13") -> Submission:
    """The cleaned submission at `path`; whatever is wrong with it becomes a note."""
    notes: list[str] = []
    try:
        received = _received(path, assignment, notes)
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        NotImplementedError,
        zipfile.BadZipFile,
        tarfile.TarError,
    ) as error:
        notes.append(
            f"{path.name} cannot be read ({type(error).__name__}: {str(error)[:200]}); nothing was found in it"
        )
        received = {}
    files = {}
    for name, original in released(assignment).items():
        data = received.get(name)
        if name.endswith(".ipynb"):
            data = _notebook(name, data, _others(received, assignment), original, notes)
        elif data is None and name not in OPTIONAL:
            notes.append(f"{name} was not handed in; the released file, with nothing filled in, stands in its place")
        files[name] = original if data is None else data
    return Submission(student, files, notes, assignment)


def _others(received: dict[str, bytes], assignment: str) -> dict[str, bytes]:
    """Notebooks with names that nobody asked for: one of them may be a renamed one."""
    return {n: data for n, data in received.items() if n.endswith(".ipynb") and n not in released(assignment)}


def _received(path: Path, assignment: str, notes: list[str]) -> dict[str, bytes]:
    """The wanted files (and any notebook) of a folder or archive, by name."""
    if path.is_dir():
        return _choose(_walk(path), assignment, notes)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            entries = (
                (PurePosixPath(info.filename.replace("\\", "/")), info.file_size, _zip_reader(archive, info))
                for info in archive.infolist()
                if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16)
            )
            return _choose(entries, assignment, notes)
    with tarfile.open(path) as archive:  # members are read one by one: nothing is extracted
        members = _limited(member for member in archive if member.isreg())
        entries = [(PurePosixPath(m.name), m.size, _tar_reader(archive, m)) for m in members]
        return _choose(entries, assignment, notes)


Entry = tuple[PurePosixPath, int, Callable[[int], bytes]]


def _choose(entries: Any, assignment: str, notes: list[str]) -> dict[str, bytes]:
    """Of each wanted name the entry in the likeliest place, read up to its cap."""
    wanted = released(assignment)
    candidates: dict[str, list[Entry]] = {}
    for entry in _limited(entries):
        name = entry[0].name
        skipped = {"__MACOSX", ".ipynb_checkpoints", "site-packages", ".venv", ".git"} & set(entry[0].parts)
        if not skipped and (name in wanted or name.endswith(".ipynb")):
            candidates.setdefault(name, []).append(entry)
    files = {}
    for name, found in candidates.items():
        home = place(assignment, name).parent.parts if name in wanted else ()
        found.sort(key=lambda e: (e[0].parent.parts[-len(home) :] != home, len(e[0].parts), str(e[0])))
        path, size, read = found[0]
        if len(found) > 1:
            notes.append(f"{name} is there {len(found)} times; {path} was taken")
        most = MAX_FILE[path.suffix]
        data = b"" if size > most else read(most + 1)
        if size > most or len(data) > most:
            notes.append(f"{name} is larger than {most // 2**20} MiB and was left out")
        else:
            files[name] = data
    return files


def _limited(entries: Any) -> Iterator[Any]:
    for count, entry in enumerate(entries):
        if count >= MAX_ENTRIES:
            raise ValueError(f"more than {MAX_ENTRIES} files")
        yield entry


def _walk(folder: Path) -> Iterator[Entry]:
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        for name in sorted(names):
            path = Path(parent) / name
            state = path.lstat()
            if stat.S_ISREG(state.st_mode):  # no link, no pipe that would make us wait
                yield PurePosixPath(path.relative_to(folder).as_posix()), state.st_size, _file_reader(path)


def _file_reader(path: Path) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            return file.read(most)

    return read


def _zip_reader(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        with archive.open(info) as file:
            return file.read(most)

    return read


def _tar_reader(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        file = archive.extractfile(member)
        return b"" if file is None else file.read(most)

    return read


# Notebooks ------------------------------------------------------------------------------------------------------


def _notebook(name: str, data: bytes | None, others: dict[str, bytes], original: bytes, notes: list[str]) -> bytes:
    """The released notebook with the student's answer cells in it.

    Args:
        others: notebooks that were handed in under names that nobody asked for.
    """
    if not _answer_cells(original):
        return original  # nothing in it is the student's
    if data is None:
        mine = [other for other in others if _shared_cells(others[other], original)]
        if len(mine) != 1:
            notes.append(f"{name} was not handed in; the released one, with nothing filled in, stands in its place")
            return original
        notes.append(f"{name} was not handed in, but {mine[0]} has its cells and was taken for it")
        data = others[mine[0]]
    try:
        answers = _answer_cells(data)
    except (ValueError, RecursionError) as error:
        notes.append(f"{name} is no notebook ({str(error)[:120]}); the released one stands in its place")
        return original
    notebook = json.loads(original)
    deleted, repeated = [], []
    for cell in notebook["cells"]:
        grade_id = _answer_id(cell)
        if grade_id is None:
            continue
        sources = answers.get((cell["cell_type"], grade_id), [])
        if not sources:
            deleted.append(grade_id)
            continue
        if len(sources) > 1:
            repeated.append(grade_id)
        cell["source"] = sources[0].splitlines(keepends=True)
    if deleted:
        notes.append(f"{name}: no answer cell {', '.join(deleted)}; the released ones stand in their place")
    if repeated:
        notes.append(f"{name}: more than one answer cell {', '.join(repeated)}; the first one counts")
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _answer_id(cell: Any) -> str | None:
    """The `grade_id` of an answer cell; None for any other cell."""
    metadata = cell.get("metadata") if isinstance(cell, dict) else None
    meta = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    if not isinstance(meta, dict) or meta.get("solution") is not True or not isinstance(meta.get("grade_id"), str):
        return None
    return meta["grade_id"]


def _answer_cells(data: bytes) -> dict[tuple[str, str], list[str]]:
    """(cell type, grade_id) -> sources, in the order in which they stand.

    Raises:
        ValueError: no notebook.
    """
    notebook = json.loads(data.decode("utf-8"))
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ValueError("expected a notebook of format 4; it has no list of cells")
    answers: dict[tuple[str, str], list[str]] = {}
    for cell in notebook["cells"]:
        grade_id = _answer_id(cell)
        if grade_id is None:
            continue
        source = cell.get("source")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if isinstance(source, str):
            answers.setdefault((str(cell.get("cell_type")), grade_id), []).append(source)
    return answers


def _shared_cells(data: bytes, original: bytes) -> bool:
    try:
        return bool(set(_answer_cells(data)) & set(_answer_cells(original)))
    except (ValueError, RecursionError):
        return False
