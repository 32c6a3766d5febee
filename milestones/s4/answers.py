"""What a probe of the chapter is given: the answer cells of a notebook, and stand-ins for what they build on.

Each cell stands alone. Where it builds on an earlier one, its probe puts a stand-in under the earlier one's name
while it calls the student's code: a pool with one block a sequence in the place of the block table, a ledger that
only counts in the place of the block manager, a sum in the place of the model. So a mistake costs the cell that it
is in and no other, and nothing here could be handed in as an answer.

A probe gets the notebook's names (a dict), or an engine whose `path` is a notebook: then the answer cells alone
are run, see `load_cells`. Nothing else of a student's notebook is ever trusted.
"""

import contextlib
import json
import linecache
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ai_playground import chapter
from ai_playground.chapter import TOY
from ai_playground.models import Transformer

Case = dict[str, Any]


# The grade_ids of the answer cells, in the notebook's order.
ANSWER_CELLS = (
    "kv_bytes",
    "block_manager",
    "q_fragmentation",
    "q_paging",
    "attention",
    "decode",
    "q_phases",
    "q_proof",
    "engine",
    "memory_prediction",
    "memory",
    "static_steps",
    "preempt",
    "q_preemption",
)


def given_names() -> dict[str, Any]:
    """What the notebook's own cells have defined by the time its answer cells run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(TOY).eval()
    names = {name: getattr(chapter, name) for name in chapter.__all__}
    names |= {"torch": torch, "F": F, "deque": deque, "Transformer": Transformer, "model": model}
    # Later cells name these two in a signature or as a base class: a cell that does not run must not cost them.
    return names | {"BlockManager": object, "Engine": object}


def load_cells(notebook: Path) -> dict[str, Any]:
    """Run the answer cells of a notebook, and nothing else of it, one after the other in a fresh namespace.

    A cell that raises costs the names that it would have defined and leaves the others alone; what it raised is
    kept under `"__errors__"`, by `grade_id`.
    """
    sources: dict[str, str] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        meta = cell.get("metadata", {}).get("nbgrader", {})
        if cell.get("cell_type") == "code" and meta.get("solution"):
            sources.setdefault(meta.get("grade_id"), "".join(cell["source"]))
    names = given_names() | {"__name__": "__main__", "__errors__": {}}
    for cell in ANSWER_CELLS:
        source = sources.get(cell, f"raise NameError('the notebook has no cell {cell}')")
        file = f"<cell {cell}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        try:
            exec(compile(source, file, "exec"), names)
        except Exception as error:
            names["__errors__"][cell] = error
    return names


@lru_cache(maxsize=1)
def _cells_at(path: Path, _modified: int) -> dict[str, Any]:
    return load_cells(path)


def names_of(engine: Any, *cells: str) -> dict[str, Any]:
    """The namespace to probe; raises what the answer cells themselves raised."""
    names = engine if isinstance(engine, dict) else _cells_at(engine.path, engine.path.stat().st_mtime_ns)
    for cell in cells:
        if cell in names.get("__errors__", {}):
            raise names["__errors__"][cell]
    return names


@contextlib.contextmanager
def stand_ins(names: dict[str, Any], **replaced: Any) -> Iterator[None]:
    """Put other things under some global names of the student's code for a while."""
    missing = object()
    before = {name: names.get(name, missing) for name in replaced}
    names.update(replaced)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                del names[name]
            else:
                names[name] = value
