"""Which files of `solutions/` students get a version of, where it goes, and the stubs of the modules among them."""

import re
from pathlib import Path

from grading.release.markers import SOLUTION, ReleaseError, find_regions, strip
from grading.release.release_files import files_below, read_text

# Where the student's version of each source folder goes.
TREES = {"solutions/m13": "assignments/m13", "solutions/p3_kv_serve": "projects/p3_kv_serve"}


def released_files(folder: Path) -> list[Path]:
    """The files of a source folder that students get a version of: notebooks, and modules with a solution region.

    Raises:
        ReleaseError: markers that are wrong, or a file with `hidden` in its name that asks to be released.
    """
    released = []
    for path in files_below(folder):
        module = path.suffix == ".py" and any(r.kind == SOLUTION for r in find_regions(read_text(path), str(path)))
        if not module and path.suffix != ".ipynb":
            continue
        if "hidden" in path.relative_to(folder).as_posix():
            raise ReleaseError(
                f"{path}:1: expected a file with 'hidden' in its name to stay with the instructor; found one that "
                "would be released (a notebook, or a module with solution regions). Rename it, or take the markers out"
            )
        released.append(path)
    return released


def module_stubs(folder: Path) -> dict[str, str]:
    """The stubs of one source folder: path in that folder, with `/` -> text.

    Raises:
        ReleaseError: see `released_files`, `label_and_card` and `grading.markers.strip`.
    """
    modules = (path for path in released_files(folder) if path.suffix == ".py")
    return {path.relative_to(folder).as_posix(): stub(path) for path in modules}


def released_sources(root: Path) -> dict[Path, str]:
    """Source file -> where its student's version goes, for everything that has one."""
    return {path: destination(path, root) for source in TREES for path in released_files(root / source)}


def destination(path: Path, root: Path) -> str:
    """Where the student's version of a source file goes, from the repository's root."""
    source = next(source for source in TREES if path.is_relative_to(root / source))
    return f"{TREES[source]}/{path.relative_to(root / source).as_posix()}"


def stub(path: Path) -> str:
    """A module's stub, with its own milestone and card."""
    return strip(read_text(path), *label_and_card(path), str(path))


def label_and_card(path: Path) -> tuple[str, str]:
    """What a module's stub calls its milestone, and the card it points to: `("M13b", "milestones/m13/m13b.md")`.

    Raises:
        ReleaseError: a name that tells no milestone.
    """
    if milestone := re.match(r"(m\d+[a-z])_", path.name):
        return milestone[1].capitalize(), f"milestones/{milestone[1][:-1]}/{milestone[1]}.md"
    if project := re.match(r"(p\d+)_", path.parent.name):
        return project[1], f"projects/{path.parent.name}/README.md"
    raise ReleaseError(
        f"{path}:1: expected a module named like m13b_greedy.py, or one in a folder named like p3_kv_serve; found "
        f"{path.name} in {path.parent.name}. Its stub must say which milestone it is and where its card is"
    )
