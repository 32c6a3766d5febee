"""Files of a checkout, for what a release reads and writes."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from grading.release.markers import ReleaseError

_CACHES = {"__pycache__", ".ipynb_checkpoints"}


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, in order, caches aside; none if there is no such folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if not _CACHES & set(path.relative_to(folder).parts))


def read_text(path: Path) -> str:
    """A file's text, with `\\n` line ends.

    Raises:
        ReleaseError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")  # \r\n becomes \n, so that a Windows checkout compares equal
    except UnicodeDecodeError as error:
        raise ReleaseError(f"{path}:1: expected UTF-8 text; found {error.reason} at byte {error.start}") from None


def write_all(root: Path, files: dict[str, bytes], remove: Iterable[str]) -> None:
    """Write all files or none: first beside the old ones, where a full disk does no harm, then in their place."""
    partial: dict[Path, Path] = {}
    before: dict[Path, bytes | None] = {}
    try:
        for name, data in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            partial[path] = path.with_name(path.name + ".partial")
            partial[path].write_bytes(data)
        for path, temporary in partial.items():
            old = path.read_bytes() if path.is_file() else None
            os.replace(temporary, path)
            before[path] = old
    except BaseException:
        for path, old in before.items():
            path.unlink() if old is None else path.write_bytes(old)
        raise
    finally:
        for temporary in partial.values():
            temporary.unlink(missing_ok=True)
    for name in remove:
        (root / PurePosixPath(name)).unlink(missing_ok=True)


def git(folder: Path, *arguments: str) -> str:
    """What a git command printed.

    Raises:
        ReleaseError: there is no git, or it failed.
    """
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, encoding="utf-8")
    except FileNotFoundError:
        raise ReleaseError("expected the command git; found none. Install git, then try again") from None
    if done.returncode:
        raise ReleaseError(f"`git {arguments[0]}` failed in {folder}: {done.stderr.strip()}")
    return done.stdout
