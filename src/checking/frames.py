"""Which frames of a traceback a student should see: those of the student's own files."""

import sys
import sysconfig
from pathlib import Path

_PYTHON = Path(sysconfig.get_path("stdlib"))


def is_foreign(file: str, probe: str) -> bool:
    """Whether a frame would only hide the student's own: Python's, an installed package's, or one of the checks.

    Args:
        file: where the frame stands.
        probe: the module of the probe that was called; its whole package belongs to the checks.
    """
    checks = [Path(__file__).parent, *sys.modules[probe.split(".")[0]].__path__]
    if file.startswith("<frozen") or "site-packages" in Path(file).parts:
        return True
    return any(Path(file).is_relative_to(folder) for folder in (_PYTHON, *checks))
