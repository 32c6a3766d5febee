"""What is in a folder, a zip or a tar, without unpacking it: paths, sizes, and a way to read each up to a cap."""

import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

Entry = tuple[PurePosixPath, int, Callable[[int], bytes]]

MAX_ENTRIES = 20_000  # a virtual environment that was packed too has about as many


def limited(entries: Any) -> Iterator[Any]:
    """The entries, up to MAX_ENTRIES.

    Raises:
        ValueError: there are more.
    """
    for count, entry in enumerate(entries):
        if count >= MAX_ENTRIES:
            raise ValueError(f"more than {MAX_ENTRIES} files")
        yield entry


def walk(folder: Path) -> Iterator[Entry]:
    """The plain files below a folder; no link is followed."""
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


def zip_reader(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[int], bytes]:
    """How to read a zip's member, up to so many bytes."""

    def read(most: int) -> bytes:
        with archive.open(info) as file:
            return file.read(most)

    return read


def tar_reader(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[int], bytes]:
    """How to read a tar's member, up to so many bytes."""

    def read(most: int) -> bytes:
        file = archive.extractfile(member)
        return b"" if file is None else file.read(most)

    return read
