"""What students receive: the generated tree (`course release`) and the student's half (`course release --out DIR`).

Everything is worked out in memory first and written only when nothing was refused. What a student may have is said
positively, so that a new file stays with the instructor until it earns its way out:

- from `solutions/`: modules that hold a solution region (as stubs) and notebooks (through nbgrader's own
  preprocessors). Anything else there, hidden checks above all, is never copied.
- of the rest of the repository: what git tracks, without INSTRUCTOR and without the blocks between
  `BEGIN INSTRUCTOR` and `END INSTRUCTOR` comments in documents and settings.
"""

import ast
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from grading.markers import MARKERS, SOLUTION, ReleaseError, find_regions, pair_markers, read_marker, strip
from milestones.points import P3

ROOT = Path(__file__).resolve().parents[1]

# Where the student's version of each source folder goes.
TREES = {"solutions/m13": "assignments/m13", "solutions/p3_kv_serve": "projects/p3_kv_serve"}
# A source folder of modules alone gets a notebook, since nbgrader grades nothing but cells: its parts and their points.
PARTS = {"solutions/p3_kv_serve": P3}
# Folders that hold nothing but generated files: what else is found there is out of date.
GENERATED_FOLDERS = ("assignments/m13",)
# The instructor's half. Tests that need any of it live in tests/instructor.
INSTRUCTOR = (
    "solutions",
    "grading",
    "nbgrader_config.py",
    "docs/engines.md",
    "docs/instructor.md",
    "tests/instructor",
    "tests/engines",
    "benchmarks",
    ".ci",
)
MANIFEST = ".course-release.json"

_CACHES = {"__pycache__", ".ipynb_checkpoints"}
_INSTRUCTOR_BLOCKS = {".md": "<!-- {} INSTRUCTOR -->", ".toml": "# {} INSTRUCTOR", ".gitignore": "# {} INSTRUCTOR"}


# ---- the generated tree ----------------------------------------------------------------------------------------


def generated(root: Path) -> dict[str, str]:
    """The student's version of everything in `solutions/` that has one, and the notebooks of PARTS.

    Returns:
        path in the repository -> text.

    Raises:
        ReleaseError: a file that would leak or not compile (see `grading.markers.strip`), a notebook that nbgrader
            refuses, or nothing to release at all.
    """
    made = _parts_notebooks(root)
    texts = {path.relative_to(root).as_posix(): text for path, text in made.items()}
    for path, name in (_released(root) | {path: _destination(path, root) for path in made}).items():
        notebook = path.suffix == ".ipynb"
        texts[name] = strip_notebook(path, made.get(path) or _read(path), root) if notebook else _stub(path)
    if not texts:
        raise ReleaseError(f"expected modules or notebooks in {', '.join(TREES)}; found none. Is {root} the checkout?")
    return texts


def released_files(folder: Path) -> list[Path]:
    """The files of a source folder that students get a version of: notebooks, and modules with a solution region.

    Raises:
        ReleaseError: markers that are wrong, or a file with `hidden` in its name that asks to be released.
    """
    released = []
    for path in _files(folder):
        module = path.suffix == ".py" and any(r.kind == SOLUTION for r in find_regions(_read(path), str(path)))
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
    return {path.relative_to(folder).as_posix(): _stub(path) for path in modules}


def _released(root: Path) -> dict[Path, str]:
    """Source file -> where its student's version goes, for everything that has one."""
    return {path: _destination(path, root) for source in TREES for path in released_files(root / source)}


def _destination(path: Path, root: Path) -> str:
    source = next(source for source in TREES if path.is_relative_to(root / source))
    return f"{TREES[source]}/{path.relative_to(root / source).as_posix()}"


def _stub(path: Path) -> str:
    return strip(_read(path), *label_and_card(path), str(path))


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


def _parts_notebooks(root: Path) -> dict[Path, str]:
    """The notebooks of PARTS, with a graded cell for each part: where each belongs in `solutions/` -> text."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebooks = {}
    for source, parts in PARTS.items():
        modules = [path.name for path in released_files(root / source) if path.suffix == ".py"]
        if not modules:
            continue
        about = (
            f"# {PurePosixPath(source).name}\n\nNothing is written here. Your code stands in `{'`, `'.join(modules)}`; "
            f"each cell below checks one part of it, with the same checks as `uv run pytest {TREES[source]}`.\n\n"
            f"The brief is `{TREES[source]}/README.md`."
        )
        cells = [new_markdown_cell(about, id="about"), new_code_cell(_FIND_CHECKS, id="setup")]
        for part, checks in parts.items():
            graded = {
                "grade": True, "grade_id": f"test_{part}", "locked": True, "points": sum(checks.values()),
                "schema_version": 3, "solution": False, "task": False,
            }  # fmt: skip
            name, code = f"test-{part}".replace("_", "-"), f'check_milestone("{part}")'
            cells.append(new_code_cell(code, id=name, metadata={"nbgrader": graded}))
        text = nbformat.writes(new_notebook(cells=cells, metadata=metadata)) + "\n"
        notebooks[root / source / f"{PurePosixPath(source).name}.ipynb"] = text
    return notebooks


_FIND_CHECKS = """import sys
from pathlib import Path

import ai_playground

ROOT = Path(ai_playground.__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
from milestones.notebook import check_milestone"""


def strip_notebook(path: Path, text: str, root: Path) -> str:
    """The student's version of a notebook, as `nbgrader generate_assignment` writes it, but without a gradebook.

    Args:
        path: the notebook; `text` is what stands in it, or will.

    Raises:
        ReleaseError: a marker that is not one, a notebook that nbgrader refuses, a cell that does not parse, or a
            cell without an id (it would get a new one each time).
    """
    import nbformat
    from IPython.core.inputtransformer2 import TransformerManager
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory
    from nbgrader.preprocessors import SaveCells
    from traitlets.config import PyFileConfigLoader

    from grading.nbgrader_hooks import StripModules

    try:
        raw = json.loads(text)
        ids = [cell.get("id") for cell in raw["cells"]]
        form = raw["nbformat"], raw["nbformat_minor"]
        if form < (4, 5) or None in ids or len(set(ids)) < len(ids):
            raise ReleaseError(
                f"{path}:1: expected notebook format 4.5 and an id of its own in each cell, or every release would "
                f"make up new ones; found {form[0]}.{form[1]} and {len(set(ids) - {None})} ids for {len(ids)} cells. "
                "Open it in a current JupyterLab and save it"
            )
        notebook = nbformat.reads(json.dumps(raw), as_version=4)
        nbformat.validate(notebook)
    except (KeyError, TypeError, AttributeError, ValueError, nbformat.ValidationError) as error:
        if isinstance(error, ReleaseError):
            raise
        raise ReleaseError(f"{path}:1: expected a valid notebook; found {_first_line(error)}") from None
    check_cells(notebook, str(path))
    config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
    converter = GenerateAssignment(coursedir=CourseDirectory(config=config), config=config)
    exporter = converter.exporter_class(parent=converter, config=converter.config)
    for preprocessor in converter.preprocessors:
        if preprocessor not in (SaveCells, StripModules):  # one needs the gradebook, one the whole assignment
            exporter.register_preprocessor(preprocessor)
    try:
        text, _ = exporter.from_notebook_node(notebook, {"metadata": {"path": str(path.parent)}})
    except Exception as error:  # nbgrader raises RuntimeError, ValueError, ValidationError, KeyError
        raise ReleaseError(f"{path}:1: nbgrader refuses this notebook: {_first_line(error)}") from None
    for index, cell in enumerate(json.loads(text)["cells"]):
        if cell["cell_type"] == "code":
            code = TransformerManager().transform_cell("".join(cell["source"]))  # magics to Python
            try:
                ast.parse(code)
            except SyntaxError as error:
                raise ReleaseError(
                    f"{path}:{error.lineno}: expected the student's version of cell {index} to be valid Python; "
                    f"found {error.msg}"
                ) from None
    return text


def check_cells(notebook: Any, path: str) -> None:
    """Refuse what nbgrader would let through: misspelt, crossed and unopened markers in a notebook's cells.

    Raises:
        ReleaseError: naming the cell and the line.
    """
    for index, cell in enumerate(notebook.cells):
        where = f"{path}, cell {index}"
        found = []
        for number, line in enumerate(cell.source.split("\n"), 1):
            prose = cell.cell_type != "code" or not line.lstrip().startswith("#")
            marker = read_marker(line, where, number, headings=prose)
            if marker:
                found.append((number, line[: len(line) - len(line.lstrip())], marker))
        pair_markers(found, where)


def stale(root: Path) -> list[str]:
    """What the committed tree has wrong: `path: why`, empty if it is what `solutions/` gives.

    Raises:
        ReleaseError: see `generated`.
    """
    return _differences(root, generated(root))


def regenerate(root: Path) -> list[str]:
    """Write the generated tree, all of it or nothing, and take out of date files away.

    Returns:
        What was changed, as `stale` lists it.

    Raises:
        ReleaseError: see `generated`; nothing is written then.
    """
    texts = generated(root)
    changed = _differences(root, texts)
    _write_all(root, {name: text.encode() for name, text in texts.items()}, _extra(root, texts))
    return changed


def _differences(root: Path, texts: dict[str, str]) -> list[str]:
    differences = []
    for name, text in texts.items():
        path = root / name
        if not path.is_file():
            differences.append(f"{name}: missing")
        elif _read(path) != text:
            differences.append(f"{name}: differs from what solutions/ gives")
    return differences + [f"{name}: nothing in solutions/ gives it any more" for name in _extra(root, texts)]


def _extra(root: Path, texts: dict[str, str]) -> list[str]:
    found = (path for folder in GENERATED_FOLDERS for path in _files(root / folder))
    names = (path.relative_to(root).as_posix() for path in found if path.suffix in (".py", ".ipynb"))
    return [name for name in names if name not in texts]


# ---- the student's half ----------------------------------------------------------------------------------------


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
    _write_all(out, files, [name for name in before if name not in files])
    if not (out / ".git").exists():
        _git(out, "init", "--quiet", "--initial-branch=main")
    return len(files)


def student_half(root: Path) -> dict[str, bytes]:
    """The student's half: path -> content, of every tracked file that a student receives.

    Raises:
        ReleaseError: no git checkout, a tracked file that is missing or a link, an instructor's block that is not
            closed, or a generated tree that is stale or not tracked.
    """
    texts = generated(root)
    if old := _differences(root, texts):
        raise ReleaseError(
            "expected the generated tree to be up to date; run `uv run course release`:\n  " + "\n  ".join(old)
        )
    files = {}
    for name in _git(root, "ls-files", "-z").split("\0"):
        if not name or any(name == part or name.startswith(part + "/") for part in INSTRUCTOR):
            continue
        path = root / name
        if path.is_symlink() or not path.is_file():
            raise ReleaseError(f"{name}: expected a plain file, since git tracks it; found a link or nothing")
        data = path.read_bytes()
        pattern = _INSTRUCTOR_BLOCKS.get(path.suffix or path.name)
        files[name] = cut_instructor_blocks(_read(path), pattern, name).encode() if pattern else data
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
    released = _released(root)
    made = set(released.values())
    secret_blocks: list[list[str]] = []
    public = [text for name, text in texts.items() if name not in made]
    hidden_names = []
    for path in _files(root / "solutions"):
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
        text = _read(path)
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


def _earlier_release(out: Path) -> list[str]:
    """The files of an earlier release at `out`; none if there is nothing yet."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return []
    manifest = out / MANIFEST
    if not manifest.is_file():
        raise ReleaseError(
            f"expected {out} to be new, empty or an earlier release; found other files there. Name another folder"
        )
    digests = json.loads(_read(manifest))
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


# ---- files -----------------------------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    """Every file below a folder, in order, caches aside; none if there is no such folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if not _CACHES & set(path.relative_to(folder).parts))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")  # \r\n becomes \n, so that a Windows checkout compares equal
    except UnicodeDecodeError as error:
        raise ReleaseError(f"{path}:1: expected UTF-8 text; found {error.reason} at byte {error.start}") from None


def _write_all(root: Path, files: dict[str, bytes], remove: Iterable[str]) -> None:
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


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, encoding="utf-8")
    except FileNotFoundError:
        raise ReleaseError("expected the command git; found none. Install git, then try again") from None
    if done.returncode:
        raise ReleaseError(f"`git {arguments[0]}` failed in {folder}: {done.stderr.strip()}")
    return done.stdout


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
