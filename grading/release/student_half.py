"""The student's half, as a repository of its own: `course release --out DIR`.

What a student may have is said positively, so that a new file stays with the instructor until it earns its way out:
what git tracks, without INSTRUCTOR and without the blocks between `BEGIN INSTRUCTOR` and `END INSTRUCTOR` comments in
documents and settings.
"""

import hashlib
import json
import re
from pathlib import Path

from grading.release.leaks import leaks
from grading.release.markers import ReleaseError
from grading.release.release_files import git, read_text, write_all
from grading.release.student_tree import differences_to, generated

# The instructor's half. Tests that need any of it live in tests/instructor.
INSTRUCTOR = (
    "solutions",
    "grading",
    "nbgrader_config.py",
    "docs",
    "tests/instructor",
    "tests/engines",
    "benchmarks",
    ".ci",
)
MANIFEST = ".course-release.json"

_INSTRUCTOR_BLOCKS = {".md": "<!-- {} INSTRUCTOR -->", ".toml": "# {} INSTRUCTOR", ".gitignore": "# {} INSTRUCTOR"}


def release_to(root: Path, out: Path) -> int:
    """Write the student's half into `out`, a git repository of its own, all of it or nothing.

    `out` is new, empty, or an earlier release that nobody has worked in since; whatever else lies in an earlier
    release (its .git, a workflow of yours) stays.

    Returns:
        The number of files.

    Raises:
        ReleaseError: the generated tree is stale, a leak (see `leaks`), or another kind of folder at `out`.
    """
    before = _earlier_release(out)
    files = student_half(root)
    found = leaks(root, files)
    if found:
        raise ReleaseError("the student's half would leak, so nothing was written:\n  " + "\n  ".join(found))
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    files[MANIFEST] = (json.dumps(digests, indent=1) + "\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    write_all(out, files, [name for name in before if name not in files])
    if not (out / ".git").exists():
        git(out, "init", "--quiet", "--initial-branch=main")
    return len(files)


def student_half(root: Path) -> dict[str, bytes]:
    """The student's half: path -> content, of every tracked file that a student receives.

    Raises:
        ReleaseError: no git checkout, a tracked file that is missing or a link, an instructor's block that is not
            closed, or a generated tree that is stale or not tracked.
    """
    texts = generated(root)
    if old := differences_to(root, texts):
        raise ReleaseError(
            "expected the generated tree to be up to date; run `uv run course release`:\n  " + "\n  ".join(old)
        )
    files = {}
    for name in git(root, "ls-files", "-z").split("\0"):
        if not name or any(name == part or name.startswith(part + "/") for part in INSTRUCTOR):
            continue
        path = root / name
        if path.is_symlink() or not path.is_file():
            raise ReleaseError(f"{name}: expected a plain file, since git tracks it; found a link or nothing")
        data = path.read_bytes()
        pattern = _INSTRUCTOR_BLOCKS.get(path.suffix or path.name)
        files[name] = cut_instructor_blocks(read_text(path), pattern, name).encode() if pattern else data
    untracked = [name for name in texts if name not in files and not name.startswith("solutions/")]
    if untracked:
        raise ReleaseError(f"expected git to track what is generated; `git add` these first: {', '.join(untracked)}")
    return files


def cut_instructor_blocks(text: str, pattern: str, name: str) -> str:
    """A document or settings file without the lines between (and with) its INSTRUCTOR comments.

    Raises:
        ReleaseError: a block that is nested, unclosed or unopened, or a comment that is nearly one.
    """
    begin, end = pattern.format("BEGIN"), pattern.format("END")
    kept: list[str] = []
    opened = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() in (begin, end):
            if (line.strip() == begin) == bool(opened):
                raise ReleaseError(
                    f"{name}:{number}: expected {begin} and {end} in turn; found {line.strip()} "
                    + (f"inside the block that begins at line {opened}" if opened else "without a BEGIN above")
                )
            opened = 0 if opened else number
        elif re.search(r"\b(BEGIN|END)\W*INSTRUCTOR", line, re.IGNORECASE):
            raise ReleaseError(
                f"{name}:{number}: expected {begin} or {end}; found {line.strip()!r}. Spell it exactly so"
            )
        elif not opened and (line.strip() or not kept or kept[-1].strip() or number == text.count("\n") + 1):
            kept.append(line)
    if opened:
        raise ReleaseError(f"{name}:{opened}: expected {end} further down; found the end of the file")
    return "\n".join(kept)


def _earlier_release(out: Path) -> list[str]:
    """The files of an earlier release at `out`; none if there is nothing yet."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return []
    manifest = out / MANIFEST
    if not manifest.is_file():
        raise ReleaseError(
            f"expected {out} to be new, empty or an earlier release; found other files there. Name another folder"
        )
    digests = json.loads(read_text(manifest))
    edited = [
        name
        for name, digest in digests.items()
        if (out / name).is_file() and hashlib.sha256((out / name).read_bytes()).hexdigest() != digest
    ]
    if edited:
        raise ReleaseError(
            f"expected the earlier release in {out} to be untouched; these files were changed since and would be lost: "
            f"{', '.join(edited)}. Put them back, or name another folder"
        )
    return list(digests)
