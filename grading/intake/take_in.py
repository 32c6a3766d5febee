"""What a student handed in -> the files that were asked for, and nothing else of it."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import PurePosixPath

from grading.assignments import place, released
from grading.intake.archives import BROKEN, Entry, expanded
from grading.intake.notebook_cells import rebuilt_notebook
from grading.intake.submission import Submission
from grading.names import original_name

OPTIONAL = ("serve_myllm.py",)  # a student may write the whole engine in it, and need not
MAX_FILE = {".py": 2**20, ".ipynb": 160 * 2**20}  # bytes; a notebook comes with its outputs, which are left out
MAX_CANDIDATES = 500  # modules and notebooks of one submission that are looked at
# What nobody can grade, and what to ask the student for.
UNGRADABLE = {
    ".rar": "a .zip of the same files", ".7z": "a .zip of the same files",
    ".pdf": "the .py and .ipynb files themselves",
    ".doc": "the .py and .ipynb files themselves", ".docx": "the .py and .ipynb files themselves",
    ".odt": "the .py and .ipynb files themselves", ".png": "the files and no picture of them",
    ".jpg": "the files and no picture of them", ".jpeg": "the files and no picture of them",
    ".html": "the files themselves, and no text or link", ".url": "the files themselves, and no link",
    ".webloc": "the files themselves, and no link", ".txt": "the files themselves, and no text or link",
    ".gz": "a .zip of the same files", ".xz": "a .zip of the same files",
}  # fmt: skip


def take_in(student: str, entries: Iterable[Entry], assignment: str = "m13") -> Submission:
    """The cleaned submission that `entries` hold; whatever is wrong with it becomes a note."""
    notes: list[str] = []
    asks: list[str] = []
    candidates: list[Entry] = []
    try:
        for entry in expanded(entries, asks):
            if entry.path.suffix.lower() in MAX_FILE and len(candidates) < MAX_CANDIDATES:
                candidates.append(entry)
            elif what := UNGRADABLE.get(entry.path.suffix.lower()):
                asks.append(f"{entry.path.name} cannot be graded: ask for {what}")
    except BROKEN as error:
        asks.append(f"it cannot be read ({type(error).__name__}: {str(error)[:200]}); nothing was found in it")
    received = _chosen(candidates, assignment, notes)
    found = [name for name in received if name in released(assignment)]
    files = {}
    for name, original in released(assignment).items():
        data = received.get(name)
        if name.endswith(".ipynb"):
            others = {other: data for other, data in received.items() if other not in released(assignment)}
            before = len(notes)
            data = rebuilt_notebook(name, data, others, original, notes)
            found += [name] if data != original or any("was taken for it" in note for note in notes[before:]) else []
        elif data is None and name not in OPTIONAL:
            notes.append(f"{name} was not handed in; the released file, with nothing filled in, stands in its place")
        files[name] = original if data is None else data
    asks = asks[:10]
    if not found:
        asks = asks or ["nothing that was asked for is in it: ask for the .py and .ipynb files of the assignment"]
    notes += asks
    return Submission(student, files, notes, assignment, [] if found else asks)


def _chosen(candidates: list[Entry], assignment: str, notes: list[str]) -> dict[str, bytes]:
    """Of each wanted name the file in the likeliest place, read up to its cap; and notebooks of other names.

    A module that goes by its own name comes first, then one whose name is a copy's (`... (1).py`), then one that
    defines what only that module has. Two that could be meant are named in a note, and neither is taken.
    """
    wanted = released(assignment)
    files: dict[str, bytes] = {}
    left = list(candidates)
    for name in wanted:
        home = place(assignment, name).parent.parts
        found = [entry for entry in left if entry.path.name == name]
        found.sort(key=lambda e: (e.path.parent.parts[-len(home) :] != home, len(e.path.parts), str(e.path)))
        copies = [e for e in left if e.path.name != name and original_name(e.path.name) == name.lower()]
        if len(found) > 1:
            notes.append(f"{name} is there {len(found)} times; {found[0].path} was taken")
        elif found and copies:
            notes.append(f"{name} is there, and so is {copies[0].path.name}; the first was taken")
        elif len(copies) == 1:
            notes.append(f"{name} was not handed in, but {copies[0].path.name} is a copy of it and was taken for it")
            found = copies
        elif copies:
            notes.append(
                f"{name} was not handed in, but {len(copies)} copies of it ({', '.join(e.path.name for e in copies)}); "
                "none was taken: say which one counts"
            )
        if found and (data := _read(found[0], name, notes)) is not None:
            files[name] = data
        taken = {id(entry) for entry in (*found, *copies)}
        left = [entry for entry in left if id(entry) not in taken]
    _by_content(left, files, assignment, notes)
    for entry in left:
        if entry.path.suffix.lower() == ".ipynb" and (data := _read(entry, entry.path.name, notes)) is not None:
            files.setdefault(entry.path.name, data)
    return files


def _by_content(left: list[Entry], files: dict[str, bytes], assignment: str, notes: list[str]) -> None:
    """Add modules of other names that define what exactly one missing module has."""
    meant: dict[str, list[tuple[Entry, bytes]]] = {}
    missing = {name: has for name, has in _functions(assignment).items() if name not in files}
    for entry in left if missing else ():
        if entry.path.suffix.lower() == ".py" and entry.size <= MAX_FILE[".py"]:
            data = entry.read(MAX_FILE[".py"])
            defined = _defined(data)
            names = [name for name, has in missing.items() if has <= defined]
            for name in names if len(names) == 1 else ():
                meant.setdefault(name, []).append((entry, data))
    for name, found in meant.items():
        there = ", ".join(str(entry.path) for entry, _ in found)
        if len({data for _, data in found}) > 1:
            notes.append(
                f"{name} was not handed in, and {there} could each be it; none was taken: say which one counts"
            )
        else:
            notes.append(f"{name} was not handed in, but {found[0][0].path} defines its functions and was taken for it")
            files[name] = found[0][1]


@cache
def _functions(assignment: str) -> dict[str, frozenset[str]]:
    """The functions that a student writes in each module and that stand in no other one."""
    defined = {name: _defined(data) for name, data in released(assignment).items() if name.endswith(".py")}
    shared = {f for name, has in defined.items() for f in has if any(f in o for n, o in defined.items() if n != name)}
    return {name: own for name, has in defined.items() if (own := frozenset(has - shared))}


def _defined(module: bytes) -> frozenset[str]:
    """The public functions at the top of a module, found without parsing: it may be hostile or broken."""
    return frozenset(name.decode() for name in re.findall(rb"^def ([a-zA-Z]\w*)\(", module, re.MULTILINE))


def _read(entry: Entry, name: str, notes: list[str]) -> bytes | None:
    most = MAX_FILE[PurePosixPath(name).suffix.lower()]
    try:
        data = b"" if entry.size > most else entry.read(most + 1)
    except BROKEN as error:
        notes.append(f"{name} cannot be read ({type(error).__name__}: {str(error)[:200]})")
        return None
    if entry.size > most or len(data) > most:
        notes.append(f"{name} is larger than {most // 2**20} MiB and was left out")
        return None
    return data
