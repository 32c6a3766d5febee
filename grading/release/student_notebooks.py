"""The student's version of a notebook, and the notebooks of projects that are modules alone."""

import ast
import json
from pathlib import Path, PurePosixPath
from typing import Any

from grading.release.markers import ReleaseError, pair_markers, read_marker
from grading.release.stubs import TREES, released_files
from milestones.points import P3

# A source folder of modules alone gets a notebook, since nbgrader grades nothing but cells: its parts and their points.
PARTS = {"solutions/p3_kv_serve": P3}


def parts_notebooks(root: Path) -> dict[Path, str]:
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
        # nbgrader's own, but for the one that needs the gradebook; the course's works on a whole assignment.
        if preprocessor.__module__.startswith("nbgrader.") and preprocessor is not SaveCells:
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


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
