"""Files that share much code: a place to look for a person."""

import ast
import tempfile
from pathlib import Path

import numpy as np

from ai_playground.checkout import repo_root
from grading.assignments import place, released

SIMILAR = 0.6  # the share of a file in another one from which on a pair is shown


def similarities(folders: dict[str, Path], assignment: str) -> list[tuple[float, str, str, str]]:
    """Pairs of students whose files of one name share much code: (share, file, student, student), highest first.

    By copydetect (winnowing, Schleimer et al., SIGMOD 2003), which compares kinds of tokens and not names, wherever a
    function stands. Comments, docstrings and layout are taken away first; what the released stubs hold does not count.
    """
    import copydetect

    found = []
    for name in (name for name in released(assignment) if name.endswith(".py")):
        with tempfile.TemporaryDirectory(prefix="course-similar-") as temporary:
            given = _bare(repo_root() / place(assignment, name), Path(temporary) / "given.py")
            owner = {}
            for number, (student, folder) in enumerate(folders.items()):
                if (folder / name).is_file():
                    owner[_bare(folder / name, Path(temporary) / f"{number}.py")] = student
            if len(owner) < 2:
                continue
            detector = copydetect.CopyDetector(autoopen=False, silent=True)
            detector.add_file(given, "boilerplate")
            for path in owner:
                detector.add_file(path)
            detector.run()
        # Not its list of copied code, which holds both texts of each pair: a large class would not fit in memory.
        shares = np.triu(detector.similarity_matrix.max(axis=2), 1)
        students = [owner[path] for path in detector.test_files]
        found += [
            (float(shares[i, j]), name, *sorted((students[i], students[j]))) for i, j in np.argwhere(shares > SIMILAR)
        ]
    return sorted(found, reverse=True)


def _bare(source: Path, out: Path) -> str:
    """Write a module to `out` without comments, docstrings, layout and names of its own; one that does not parse as it
    is. (copydetect by itself tells `self` from other names.)"""
    text = source.read_bytes().decode("utf-8", "replace")
    try:
        tree = ast.parse(text)
        bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        bound |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in ast.walk(tree):
            if isinstance(node, ast.arg):
                node.arg = "name"
            elif isinstance(node, ast.Name) and node.id in bound:
                node.id = "name"
            elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                node.body = [child for child in node.body if not _is_text(child)] or [ast.Pass()]
        text = ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    out.write_text(text, encoding="utf-8", errors="replace")
    return str(out)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
