"""Who handed in: an inbox in any of the forms in which a class comes, by student.

    Canvas             loose files  lastnamefirst[_LATE]_USERID_FILEID_originalname[-N].ext
    Moodle             Full Name_ID_assignsubmission_file_/... or loose files that begin so
    Gradescope         submission_ID/... beside submission_metadata.yml
    GitHub Classroom   assignment-user/ with .git
    nbgrader exchange  user+assignment+timestamp+.../
    folders            a folder or archive a student, named by the student; nbgrader's STUDENT/ASSIGNMENT/ is one

The inbox is a folder, or the zip as it was downloaded. Which form it is shows in its names.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from grading.intake.archives import ARCHIVES, BROKEN, Entry, entries_of, in_archive
from grading.names import distinct_ids, original_name, version_of
from grading.roster import Roster

_CANVAS = re.compile(
    r"(?P<name>[^_/]+)(?P<late>_late)?_(?P<user>\d+)_(?:(?P<file>\d+)_)?(?P<original>.+)", re.IGNORECASE
)
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<user>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<original>.*)", re.DOTALL)
_EXCHANGE = re.compile(r"(?P<name>[^+]+)\+(?P<assignment>[^+]+)\+(?P<time>\d{4}-[^+]+?)(?:\+.*)?")
_METADATA = "submission_metadata.yml"
STRAY = {"thumbs.db", "desktop.ini"}  # the system's own; so is what begins with a dot


@dataclass
class HandIn:
    """What one student handed in, not opened yet.

    Attributes:
        student: a safe id, unique in the inbox.
        name: the name as it came, for reports.
        parts: where its files come from; each gives entries anew.
        time: when it came, as `YYYY-MM-DD HH:MM:SS UTC`; "" where the LMS does not say.
        late: the LMS says that it is late.
        notes: what grouping had to decide.
    """

    student: str
    name: str
    parts: list[Callable[[], Iterable[Entry]]]
    time: str = ""
    late: bool = False
    notes: list[str] = field(default_factory=list)

    def entries(self) -> Iterator[Entry]:
        for part in self.parts:
            yield from part()


@dataclass
class Inbox:
    """`kind` is the form, in words; `strays` are names in it that belong to nobody."""

    kind: str
    hand_ins: list[HandIn]
    strays: list[str]


@dataclass(frozen=True)
class _Item:
    """Something at the top of an inbox: a folder or a file, and how to get at what is in it."""

    name: str
    entries: Callable[[], Iterable[Entry]]
    is_folder: bool
    time: str
    has_git: bool = False


def read_inbox(path: Path, assignment: str = "m13", roster: Roster | None = None) -> Inbox:
    """Recognise an inbox and group it by student.

    Args:
        roster: who is who; where it knows a name or an id of the LMS, the student's id is the roster's.

    Raises:
        ValueError: there is no such folder or zip, or it cannot be read.
    """
    items = _items(path, assignment)
    if len(items) == 1 and items[0].is_folder and _kind_of(inner := _grouped(items[0].entries())):
        items = inner  # the zip was unpacked into a folder of its own
    strays = [item.name for item in items if item.name.startswith(".") or item.name.lower() in STRAY]
    items = [item for item in items if item.name not in strays]
    kind = _kind_of(items)
    group = {"Canvas": _canvas, "Moodle": _moodle, "Gradescope": _gradescope, "nbgrader's exchange": _exchange}
    if kind in group:
        found, more = group[kind](items)
    elif any(item.has_git for item in items):
        kind = "GitHub Classroom"
        found, more = _classroom(items, path.name)
    else:
        kind = "a folder or archive for each student"
        found, more = _folders(items)
    return Inbox(kind, _identified(found, roster or Roster([])), strays + more)


def _kind_of(items: list[_Item]) -> str:
    """The LMS's form, if it is one: that of most names."""
    if any(item.name == _METADATA for item in items):
        return "Gradescope"
    for kind, pattern in (("Moodle", _MOODLE), ("nbgrader's exchange", _EXCHANGE), ("Canvas", _CANVAS)):
        named = [item for item in items if not (kind == "Canvas" and item.is_folder)]
        if named and sum(bool(pattern.fullmatch(item.name)) for item in named) * 2 > len(items):
            return kind
    return ""


def _items(path: Path, assignment: str) -> list[_Item]:
    if path.is_file():
        try:
            return _grouped(in_archive(path))
        except BROKEN as error:
            raise ValueError(
                f"expected a folder or a zip of submissions at {path}; it cannot be read: {error}"
            ) from None
    if not path.is_dir():
        raise ValueError(f"expected a folder or a zip of submissions at {path}; found nothing there")
    items = []
    for child in sorted(path.iterdir()):
        if child.is_symlink() or not (child.is_dir() or child.is_file()):
            continue
        own = child / assignment  # nbgrader's layout
        source = own if own.is_dir() else child
        items.append(
            _Item(child.name, lambda source=source: entries_of(source), child.is_dir(), _time_of(source),
                  (child / ".git").exists())
        )  # fmt: skip
    return items


def _time_of(path: Path) -> str:
    """When a folder or file came: what nbgrader noted in it, else the system's time."""
    noted = path / "timestamp.txt"
    if noted.is_file() and not noted.is_symlink():
        return noted.read_bytes()[:100].decode("utf-8", "replace").strip()
    return _stamp(path.stat().st_mtime)


def _grouped(entries: Iterable[Entry]) -> list[_Item]:
    """Entries of an archive by the first part of their paths."""
    items = []
    everything = sorted(entries, key=lambda entry: entry.path.parts)
    for name, group in groupby(everything, key=lambda entry: entry.path.parts[0]):
        members = list(group)
        is_folder = len(members[0].path.parts) > 1
        if is_folder:
            members = [replace(entry, path=PurePosixPath(*entry.path.parts[1:])) for entry in members]
        items.append(_Item(name, lambda members=members: members, is_folder, _stamp(max(e.modified for e in members))))
    return items


# Each form: items -> hand-ins (their `student` still to be found, `name` and the LMS's own id are known), and strays.

_Found = tuple[list[tuple[HandIn, str]], list[str]]


def _canvas(items: list[_Item]) -> _Found:
    people: dict[tuple[str, str], list[tuple[int, int, _Item, re.Match[str]]]] = {}
    strays = []
    for item in items:
        match = _CANVAS.fullmatch(item.name)
        if not match or item.is_folder:
            strays.append(item.name)
            continue
        key = (match["name"], match["user"])
        people.setdefault(key, []).append((version_of(match["original"]), int(match["file"] or 0), item, match))
    found = []
    for (person, user), files in people.items():
        newest: dict[str, tuple[int, int, _Item, re.Match[str]]] = {}
        for file in sorted(files, key=lambda file: file[:2]):
            newest[original_name(file[3]["original"])] = file
        hand_in = HandIn("", person, [_loose(file[2], name) for name, file in newest.items()])
        hand_in.late = any(file[3]["late"] for file in files)
        older = len(files) - len(newest)
        hand_in.notes += [f"{older} earlier versions of the same files were left out"] if older else []
        found.append((hand_in, user))
    return found, strays


def _loose(item: _Item, name: str) -> Callable[[], Iterable[Entry]]:
    """A loose file, under the name that the student gave it; an archive is opened."""
    ending = next((ending for ending in ARCHIVES if name.lower().endswith(ending)), "")
    return item.entries if ending else lambda: [replace(e, path=PurePosixPath(name)) for e in item.entries()]


def _moodle(items: list[_Item]) -> _Found:
    people: dict[tuple[str, str], HandIn] = {}
    strays = []
    for item in items:
        match = _MOODLE.fullmatch(item.name)
        if not match:
            strays.append(item.name)
            continue
        hand_in = people.setdefault((match["name"], match["user"]), HandIn("", match["name"], []))
        hand_in.parts.append(item.entries if item.is_folder else _loose(item, match["original"] or item.name))
        hand_in.time = max(hand_in.time, item.time)
    return [(hand_in, f"participant{user}") for (_, user), hand_in in people.items()], strays


class _RubyLoader(yaml.SafeLoader):
    """Gradescope's metadata is written by Ruby, whose objects are of no use here."""


_RubyLoader.add_multi_constructor("!ruby/", lambda loader, suffix, node: None)


def _gradescope(items: list[_Item]) -> _Found:
    (metadata,) = (item for item in items if item.name == _METADATA)
    data = next(iter(metadata.entries())).read(64 * 2**20)
    known = yaml.load(data, _RubyLoader) or {}
    found, strays = [], []
    for item in items:
        about = known.get(item.name)
        if not item.is_folder or not isinstance(about, dict):
            strays += [item.name] if item is not metadata else []
            continue
        for person in about.get(":submitters") or []:  # a group has several, and each gets the points
            hand_in = HandIn("", str(person.get(":name") or item.name), [item.entries], _time(about.get(":created_at")))
            found.append((hand_in, str(person.get(":sid") or person.get(":email") or "")))
    return _newest(found), strays


def _exchange(items: list[_Item]) -> _Found:
    found, strays = [], []
    for item in items:
        match = _EXCHANGE.fullmatch(item.name)
        if match:
            found.append((HandIn("", match["name"], [item.entries], _time(match["time"])), match["name"]))
        else:
            strays.append(item.name)
    return _newest(found), strays


def _classroom(items: list[_Item], inbox: str) -> _Found:
    folders = [item for item in items if item.is_folder]
    prefix = inbox.removesuffix("-submissions") + "-"
    if not all(item.name.startswith(prefix) for item in folders):
        first, last = min(item.name for item in folders), max(item.name for item in folders)
        common = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)]
        prefix = common[: common.rfind("-") + 1]
    found = [(HandIn("", item.name.removeprefix(prefix), [item.entries]), "") for item in folders]
    return found, [item.name for item in items if not item.is_folder]


def _folders(items: list[_Item]) -> _Found:
    found = []
    for item in items:
        name = item.name
        if not item.is_folder:
            ending = next((ending for ending in ARCHIVES if name.lower().endswith(ending)), PurePosixPath(name).suffix)
            name = name[: len(name) - len(ending)] or name
        found.append((HandIn("", name, [item.entries], item.time), name))
    return _newest(found), []


def _newest(found: list[tuple[HandIn, str]]) -> list[tuple[HandIn, str]]:
    """Of several hand-ins by one person the newest, with a note."""
    kept: dict[tuple[str, str], tuple[HandIn, str]] = {}
    for hand_in, key in sorted(found, key=lambda pair: pair[0].time):
        if (earlier := kept.get((hand_in.name, key))) is not None:
            hand_in.notes = [*earlier[0].notes, f"an earlier submission{_at(earlier[0].time)} was left out"]
        kept[hand_in.name, key] = (hand_in, key)
    return list(kept.values())


def _at(time: str) -> str:
    return f" of {time}" if time else ""


def _identified(found: list[tuple[HandIn, str]], roster: Roster) -> list[HandIn]:
    """Give each hand-in its student's id: the roster's, or one made of the name (and of the LMS's id, if need be)."""
    unknown = {}
    for hand_in, key in found:
        person = roster.find(key) or roster.find(hand_in.name)
        if person:
            hand_in.student, hand_in.name = person.id, person.name or hand_in.name
            hand_in.time = _time(person.time) or hand_in.time
        else:
            unknown[id(hand_in)] = hand_in.name if key in ("", hand_in.name) else f"{hand_in.name} {key}"
    ids = distinct_ids(unknown.values())
    for hand_in, _ in found:
        hand_in.student = hand_in.student or ids[unknown[id(hand_in)]]
    return sorted((hand_in for hand_in, _ in found), key=lambda hand_in: hand_in.student)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if seconds else ""


def _time(value: Any) -> str:
    """A time of an LMS as nbgrader writes it; "" if it is none."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace(" UTC", "+00:00").strip())
        except ValueError:
            return ""
    if not isinstance(value, datetime):
        return ""
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
