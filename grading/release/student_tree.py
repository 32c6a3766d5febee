"""The generated tree: the student's version of everything in `solutions/` that has one.

Everything is worked out in memory first and written only when nothing was refused. From `solutions/` go out: modules
that hold a solution region (as stubs) and notebooks (through nbgrader's own preprocessors). Anything else there, hidden
checks above all, is never copied.
"""

from pathlib import Path

from grading.release.markers import ReleaseError
from grading.release.release_files import files_below, read_text, write_all
from grading.release.stubs import TREES, destination, released_sources, stub
from grading.release.student_notebooks import parts_notebooks, strip_notebook

# Folders that hold nothing but generated files: what else is found there is out of date.
GENERATED_FOLDERS = ("assignments/m13",)


def generated(root: Path) -> dict[str, str]:
    """The student's version of everything in `solutions/` that has one, and the notebooks of PARTS.

    Returns:
        path in the repository -> text.

    Raises:
        ReleaseError: a file that would leak or not compile (see `grading.markers.strip`), a notebook that nbgrader
            refuses, or nothing to release at all.
    """
    made = parts_notebooks(root)
    texts = {path.relative_to(root).as_posix(): text for path, text in made.items()}
    for path, name in (released_sources(root) | {path: destination(path, root) for path in made}).items():
        notebook = path.suffix == ".ipynb"
        texts[name] = strip_notebook(path, made.get(path) or read_text(path), root) if notebook else stub(path)
    if not texts:
        raise ReleaseError(f"expected modules or notebooks in {', '.join(TREES)}; found none. Is {root} the checkout?")
    return texts


def stale(root: Path) -> list[str]:
    """What the committed tree has wrong: `path: why`, empty if it is what `solutions/` gives.

    Raises:
        ReleaseError: see `generated`.
    """
    return differences_to(root, generated(root))


def regenerate(root: Path) -> list[str]:
    """Write the generated tree, all of it or nothing, and take out of date files away.

    Returns:
        What was changed, as `stale` lists it.

    Raises:
        ReleaseError: see `generated`; nothing is written then.
    """
    texts = generated(root)
    changed = differences_to(root, texts)
    write_all(root, {name: text.encode() for name, text in texts.items()}, _extra(root, texts))
    return changed


def differences_to(root: Path, texts: dict[str, str]) -> list[str]:
    """What the tree at `root` has wrong, by what it should be."""
    differences = []
    for name, text in texts.items():
        path = root / name
        if not path.is_file():
            differences.append(f"{name}: missing")
        elif read_text(path) != text:
            differences.append(f"{name}: differs from what solutions/ gives")
    return differences + [f"{name}: nothing in solutions/ gives it any more" for name in _extra(root, texts)]


def _extra(root: Path, texts: dict[str, str]) -> list[str]:
    found = (path for folder in GENERATED_FOLDERS for path in files_below(root / folder))
    names = (path.relative_to(root).as_posix() for path in found if path.suffix in (".py", ".ipynb"))
    return [name for name in names if name not in texts]
