"""What is in a folder, a zip or a tar, without unpacking it: paths, sizes, and a way to read each up to a cap."""

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO

ARCHIVES = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar", ".zip")
MAX_ARCHIVE = 512 * 2**20  # bytes of an archive inside another one
# Folders that hold nothing of a student's: an environment that was packed too has 20,000 files.
JUNK = {"__MACOSX", "__pycache__", ".ipynb_checkpoints", "site-packages", ".venv", "venv", ".git", "node_modules"}
BROKEN = (OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, tarfile.TarError)


@dataclass(frozen=True)
class Entry:
    """A plain file that was handed in: no link, no device.

    Attributes:
        path: where it lies, from where looking began.
        size: bytes, as the archive says; `read` is what counts.
        read: `read(most)` gives up to so many bytes.
        modified: seconds since 1970, 0 where it is not known.
    """

    path: PurePosixPath
    size: int
    read: Callable[[int], bytes]
    modified: float = 0.0

    @property
    def is_archive(self) -> bool:
        return self.path.name.lower().endswith(ARCHIVES)


def entries_of(path: Path) -> Iterator[Entry]:
    """The files below a folder, in an archive, or the one file that `path` is; those in JUNK are left out.

    Raises:
        one of BROKEN: it cannot be read.
    """
    if path.is_dir():
        yield from _walk(path)
    elif path.name.lower().endswith(ARCHIVES):
        yield from in_archive(path)
    else:
        yield _file(path, PurePosixPath(path.name))


def expanded(entries: Iterable[Entry], broken: list[str], depth: int = 2) -> Iterator[Entry]:
    """The entries, archives among them replaced by what is in them, `depth` deep.

    Args:
        broken: what could not be read is added to it, in words.
    """
    for entry in entries:
        if not entry.is_archive or not depth:
            yield entry
            continue
        try:
            data = entry.read(MAX_ARCHIVE + 1)
            if len(data) > MAX_ARCHIVE:
                raise ValueError(f"larger than {MAX_ARCHIVE // 2**20} MiB")
            inner = [replace(e, path=entry.path.parent / e.path) for e in in_archive(io.BytesIO(data))]
        except BROKEN as error:
            broken.append(f"{entry.path.name} cannot be read ({type(error).__name__}: {str(error)[:200]})")
            continue
        yield from expanded(inner, broken, depth - 1)


def in_archive(file: Path | BinaryIO) -> Iterator[Entry]:
    """The files in a zip or tar; the archive stays open as long as an entry of it is kept.

    Raises:
        one of BROKEN: it is neither, or broken.
    """
    if zipfile.is_zipfile(file):
        archive = zipfile.ZipFile(file)
        for info in archive.infolist():
            path = PurePosixPath(info.filename.replace("\\", "/"))
            if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16) and not JUNK & set(path.parts):
                yield Entry(path, info.file_size, _zip_reader(archive, info), _zip_time(info))
        return
    if not isinstance(file, Path):
        file.seek(0)
    tar = tarfile.open(file) if isinstance(file, Path) else tarfile.open(fileobj=file)  # noqa: SIM115  see above
    # All headers first: members are read one by one then, and nothing is extracted.
    members = [m for m in tar if m.isreg() and not JUNK & set(PurePosixPath(m.name).parts)]
    for member in members:
        yield Entry(PurePosixPath(member.name), member.size, _tar_reader(tar, member), float(member.mtime))


def _walk(folder: Path) -> Iterator[Entry]:
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(set(folders) - JUNK)
        for name in sorted(names):
            path = Path(parent) / name
            if stat.S_ISREG(path.lstat().st_mode):  # no link, no pipe that would make us wait
                yield _file(path, PurePosixPath(path.relative_to(folder).as_posix()))


def _file(path: Path, name: PurePosixPath) -> Entry:
    def read(most: int) -> bytes:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            return file.read(most)

    state = path.lstat()
    return Entry(name, state.st_size, read, state.st_mtime)


def _zip_reader(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        with archive.open(info) as file:
            return file.read(most)

    return read


def _zip_time(info: zipfile.ZipInfo) -> float:
    try:
        return datetime(*info.date_time, tzinfo=UTC).timestamp()
    except ValueError:  # a day 0, which some programs write
        return 0.0


def _tar_reader(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[int], bytes]:
    def read(most: int) -> bytes:
        file = archive.extractfile(member)
        return b"" if file is None else file.read(most)

    return read
