"""Of a student's notebook the answer cells, by their `grade_id`, in a copy of the released one."""

import json
from typing import Any


def rebuilt_notebook(
    name: str, data: bytes | None, others: dict[str, bytes], original: bytes, notes: list[str]
) -> bytes:
    """The released notebook with the student's answer cells in it.

    Args:
        others: notebooks that were handed in under names that nobody asked for.
    """
    if not answer_cells(original):
        return original  # nothing in it is the student's
    if data is None:
        mine = [other for other in others if shares_cells(others[other], original)]
        if len(mine) != 1:
            notes.append(f"{name} was not handed in; the released one, with nothing filled in, stands in its place")
            return original
        notes.append(f"{name} was not handed in, but {mine[0]} has its cells and was taken for it")
        data = others[mine[0]]
    try:
        answers = answer_cells(data)
    except (ValueError, RecursionError) as error:
        notes.append(f"{name} is no notebook ({str(error)[:120]}); the released one stands in its place")
        return original
    notebook = json.loads(original)
    deleted, repeated = [], []
    for cell in notebook["cells"]:
        grade_id = _answer_id(cell)
        if grade_id is None:
            continue
        sources = answers.get((cell["cell_type"], grade_id), [])
        if not sources:
            deleted.append(grade_id)
            continue
        if len(sources) > 1:
            repeated.append(grade_id)
        cell["source"] = sources[0].splitlines(keepends=True)
    if deleted:
        notes.append(f"{name}: no answer cell {', '.join(deleted)}; the released ones stand in their place")
    if repeated:
        notes.append(f"{name}: more than one answer cell {', '.join(repeated)}; the first one counts")
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _answer_id(cell: Any) -> str | None:
    """The `grade_id` of an answer cell; None for any other cell."""
    metadata = cell.get("metadata") if isinstance(cell, dict) else None
    meta = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    if not isinstance(meta, dict) or meta.get("solution") is not True or not isinstance(meta.get("grade_id"), str):
        return None
    return meta["grade_id"]


def answer_cells(data: bytes) -> dict[tuple[str, str], list[str]]:
    """(cell type, grade_id) -> sources, in the order in which they stand.

    Raises:
        ValueError: no notebook.
    """
    notebook = json.loads(data.decode("utf-8"))
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ValueError("expected a notebook of format 4; it has no list of cells")
    answers: dict[tuple[str, str], list[str]] = {}
    for cell in notebook["cells"]:
        grade_id = _answer_id(cell)
        if grade_id is None:
            continue
        source = cell.get("source")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if isinstance(source, str):
            answers.setdefault((str(cell.get("cell_type")), grade_id), []).append(source)
    return answers


def shares_cells(data: bytes, original: bytes) -> bool:
    """Whether a notebook has answer cells of another one."""
    try:
        return bool(set(answer_cells(data)) & set(answer_cells(original)))
    except (ValueError, RecursionError):
        return False
