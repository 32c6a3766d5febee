"""The search for solutions and hidden checks in what students are about to get."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grading.release.markers import MARKERS, ReleaseError
from grading.release.release_files import files_below, read_text
from grading.release.stubs import released_sources


def leaks(root: Path, files: dict[str, bytes]) -> list[str]:
    """What of `solutions/` stands in a student's half: `path: the line`, empty if nothing does.

    A secret is a line of more than 20 characters from a solution or hidden-test region, or from a file in
    `solutions/` that is not released. Markers are read here in nbgrader's loose way and not with
    `grading.markers`, so that a mistake there shows here. A line that students may read anyway, since it stands
    outside all regions too, is none. In generated files no secret may stand, be it in a cell's metadata or output;
    in a file written by hand single lines can be chance (or a card's last hint), so three in a row are a leak, and
    so is a marker. The name of a hidden file is a leak anywhere.

    Args:
        root: the instructor's checkout.
        files: path -> content of the student's half.
    """
    texts = {name: _all_text(name, data) for name, data in files.items()}
    released = released_sources(root)
    made = set(released.values())
    secret_blocks: list[list[str]] = []
    public = [text for name, text in texts.items() if name not in made]
    hidden_names = []
    for path in files_below(root / "solutions"):
        secret, open_text = _split_by_markers(path, released=path in released)
        secret_blocks += secret
        public.append(open_text)
        if "hidden" in path.name:
            hidden_names.append(path.name)
    known = "\n".join(public)
    secrets = {line for block in secret_blocks for line in _long_lines(block)}
    secrets = {line for line in secrets if line not in known}
    runs = {run for block in secret_blocks for run in _runs(block)}
    found = []
    for name, text in texts.items():
        if name in made:
            found += [f"{name}: {line}" for line in sorted(secrets) if line in text]
        else:
            lines = text.split("\n")
            found += [f"{name}: {' / '.join(run)}" for run in sorted(runs & set(_runs(lines)))]
            found += [f"{name}: {line.strip()}" for line in lines if line.strip() in MARKERS]
        found += [f"{name}: names {hidden}" for hidden in hidden_names if hidden in text]
    return found


def _split_by_markers(path: Path, released: bool) -> tuple[list[list[str]], str]:
    """The secret blocks of a file in solutions/, and the text outside them."""
    try:
        text = read_text(path)
    except ReleaseError:  # a binary file is compared by name alone
        return [], ""
    if not released:
        return [_strings(json.loads(text)) if path.suffix == ".ipynb" else text.split("\n")], ""
    if path.suffix != ".ipynb":
        return _toggle(text.split("\n"))
    secret, public = [], []
    for cell in json.loads(text)["cells"]:
        lines = "".join(cell["source"]).split("\n")
        blocks, rest = _toggle(lines)
        if cell["metadata"].get("nbgrader", {}).get("solution") and not blocks:
            blocks, rest = [lines], ""  # nbgrader replaces the whole cell
        secret += [*blocks, _strings(cell.get("outputs", []))]
        public.append(rest)
    return secret, "\n".join(public)


def _toggle(lines: list[str]) -> tuple[list[list[str]], str]:
    blocks: list[list[str]] = []
    public = []
    inside = False
    for line in lines:
        if "BEGIN SOLUTION" in line or "BEGIN HIDDEN TESTS" in line:
            inside = True
            blocks.append([])
        elif "END SOLUTION" in line or "END HIDDEN TESTS" in line:
            inside = False
        elif inside:
            blocks[-1].append(line)
        else:
            public.append(line)
    return blocks, "\n".join(public)


def _all_text(name: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:  # weights, pictures: no lines of text
        return ""
    return "\n".join(_strings(json.loads(text))) if name.endswith(".ipynb") else text


def _strings(value: Any) -> list[str]:
    """Every line of text in a JSON value; a notebook's list of lines is put together first."""
    if isinstance(value, str):
        return value.split("\n")
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "".join(value).split("\n")
    if isinstance(value, dict):
        value = [*value, *value.values()]
        return [line for item in value for line in _strings(item)]
    return [line for item in value for line in _strings(item)] if isinstance(value, list) else []


def _long_lines(lines: Iterable[str]) -> list[str]:
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if len(line) > 20]


def _runs(lines: list[str], length: int = 3) -> Iterator[tuple[str, ...]]:
    """Every `length` long lines in a row, imports aside: two files may well import the same things."""
    long = [line for line in _long_lines(lines) if not line.startswith(("import ", "from "))]
    return zip(*(long[start:] for start in range(length)), strict=False)
