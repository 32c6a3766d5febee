"""What a student handed in -> the files that were asked for, and nothing else of it."""

import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from grading.assignments import place, released
from grading.intake.archives import Entry, limited, tar_reader, walk, zip_reader
from grading.intake.notebook_cells import rebuilt_notebook
from grading.intake.submission import Submission

OPTIONAL = ("serve_myllm.py",)  # a student may write the whole engine in it, and need not
MAX_FILE = {".py": 2**20, ".ipynb": 32 * 2**20}  # bytes; a notebook comes with its pictures


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
            data = rebuilt_notebook(name, data, _others(received, assignment), original, notes)
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
        return _choose(walk(path), assignment, notes)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            entries = (
                (PurePosixPath(info.filename.replace("\\", "/")), info.file_size, zip_reader(archive, info))
                for info in archive.infolist()
                if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16)
            )
            return _choose(entries, assignment, notes)
    with tarfile.open(path) as archive:  # members are read one by one: nothing is extracted
        members = limited(member for member in archive if member.isreg())
        entries = [(PurePosixPath(m.name), m.size, tar_reader(archive, m)) for m in members]
        return _choose(entries, assignment, notes)


def _choose(entries: Any, assignment: str, notes: list[str]) -> dict[str, bytes]:
    """Of each wanted name the entry in the likeliest place, read up to its cap."""
    wanted = released(assignment)
    candidates: dict[str, list[Entry]] = {}
    for entry in limited(entries):
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
