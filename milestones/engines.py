"""Finding an engine: the modules of a folder, or the one `serve_myllm.py` of a workspace."""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ai_playground.workspace import repo_root

MODULES = {
    "load_model": "m13a_load_model",
    "greedy_reference": "m13b_greedy",
    "greedy_paged": "m13b_greedy",
    "serve": "m13c_serve",
    "finale": "m13d_finale",
    "generate_full": "kv_generate",
    "generate_cached": "kv_generate",
    "top_p_sample": "kv_generate",
}


@dataclass(frozen=True)
class Assignment:
    """Where an assignment's parts are, from the repository's root."""

    student: str  # the student's own engine
    reference: str
    tests: str  # what `uv run pytest` takes to run its checks


ASSIGNMENTS = {
    "m13": Assignment("checkpoints/myllm/src/serve_myllm.py", "solutions/m13", "tests/milestones"),
    "p3": Assignment("projects/p3_kv_serve", "solutions/p3_kv_serve", "projects/p3_kv_serve"),
}


def engine_path(name: str, assignment: str = "m13") -> Path:
    """Where an engine of an assignment lives: `assignments` is the student's own, `solutions` the reference; or any
    path.

    Raises:
        ValueError: nothing is there.
    """
    parts = ASSIGNMENTS[assignment]
    known = {"assignments": repo_root() / parts.student, "solutions": repo_root() / parts.reference}
    path = known.get(name, Path(name))
    if not path.exists():
        here = available_engines(assignment)
        raise ValueError(f"no engine {name!r}: {path} does not exist; known engines are {here}")
    return path


def available_engines(assignment: str = "m13") -> list[str]:
    """The engines of this checkout; `solutions` only where the instructor's half is."""
    reference = repo_root() / ASSIGNMENTS[assignment].reference
    return ["assignments"] + (["solutions"] if reference.is_dir() else [])


class Engine:
    """A student's functions by name, each imported when it is first asked for.

    One module that does not even parse must not cost the milestones that do not need it, so nothing is
    imported before it is used.

    Args:
        path: a folder with the modules of `MODULES`, or a single file such as `serve_myllm.py`. The chapter's
            probes read `.path` themselves: it is the notebook then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        folder = self.path.parent if self.path.is_file() else self.path
        _forget_other_engines()
        sys.path.insert(0, str(folder))

    def source(self, name: str) -> Path:
        """The file that should hold a function; nothing of it is run."""
        return self.path if self.path.is_file() else self.path / f"{MODULES[name]}.py"

    def __getattr__(self, name: str) -> Any:
        if name not in MODULES:
            raise AttributeError(name)
        module = _import_file(self.path) if self.path.is_file() else importlib.import_module(MODULES[name])
        if not hasattr(module, name):
            raise ImportError(f"{module.__file__} has no function {name}; the contract asks for it")
        return getattr(module, name)


def _forget_other_engines() -> None:
    """Drop every engine module from an earlier load, so that two engines in one process never mix."""
    for module in [*dict.fromkeys(MODULES.values()), "serve_myllm"]:
        loaded = sys.modules.pop(module, None)
        if loaded is not None and loaded.__file__:
            folder = str(Path(loaded.__file__).parent)
            sys.path[:] = [entry for entry in sys.path if entry != folder]


def _import_file(path: Path) -> ModuleType:
    if path.stem in sys.modules:
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
