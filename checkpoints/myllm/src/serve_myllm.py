"""Your engine in one import: `from serve_myllm import load_model, greedy_reference, greedy_paged, serve, finale`.

The functions come from your modules in `assignments/m13/`, each when it is first used, so a milestone that is
not written yet does not stand in the way of another. If you would rather write everything in one file, write it
here: a function that is defined in this file is the one that counts.
"""

import importlib
import sys
from pathlib import Path

_MODULES = Path(__file__).resolve().parents[3] / "assignments" / "m13"
_WHERE = {
    "load_model": "m13a_load_model",
    "greedy_reference": "m13b_greedy",
    "greedy_paged": "m13b_greedy",
    "serve": "m13c_serve",
    "finale": "m13d_finale",
}


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f"serve_myllm has no {name!r}")
    if str(_MODULES) not in sys.path:
        sys.path.insert(0, str(_MODULES))
    return getattr(importlib.import_module(_WHERE[name]), name)
