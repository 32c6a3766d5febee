"""A student's functions: the modules of a folder, or the one `serve_myllm.py` of a workspace."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


class Engine:
    """A student's functions by name, each imported when it is first asked for.

    One module that does not even parse must not cost the milestones that do not need it, so nothing is
    imported before it is used.

    Args:
        path: a folder with the modules, or a single file such as `serve_myllm.py`. The chapter's probes read `.path`
            themselves: it is the notebook then.
        modules: function -> the module of a folder that it stands in.
    """

    def __init__(self, path: Path, modules: Mapping[str, str]) -> None:
        self.path, self.modules = path.resolve(), modules
        folder = self.path.parent if self.path.is_file() else self.path
        _forget_other_engines(modules)
        sys.path.insert(0, str(folder))

    def source(self, name: str) -> Path:
        """The file that should hold a function; nothing of it is run."""
        return self.path if self.path.is_file() else self.path / f"{self.modules[name]}.py"

    def __getattr__(self, name: str) -> Any:
        if name not in self.modules:
            raise AttributeError(name)
        module = _import_file(self.path) if self.path.is_file() else importlib.import_module(self.modules[name])
        if not hasattr(module, name):
            raise ImportError(f"{module.__file__} has no function {name}; the contract asks for it")
        return getattr(module, name)


def _forget_other_engines(modules: Mapping[str, str]) -> None:
    """Drop every engine module from an earlier load, so that two engines in one process never mix."""
    for module in [*dict.fromkeys(modules.values()), "serve_myllm"]:
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
