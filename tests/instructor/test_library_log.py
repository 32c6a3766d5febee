"""Warnings of libraries are kept, and not shown."""

import logging
import warnings
from pathlib import Path

import pytest

from grading.library_log import libraries_logged


def test_warnings_go_to_the_file_and_nowhere_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m13" / "log.txt"
    with libraries_logged(path):
        warnings.warn("a new submission", UserWarning, stacklevel=1)
        logging.getLogger("nbgrader").warning("Skipping a file that is not UTF-8")
    assert "a new submission" in path.read_text() and "Skipping" in path.read_text()
    assert capsys.readouterr() == ("", "")
    with pytest.warns(UserWarning):
        warnings.warn("shown again", UserWarning, stacklevel=1)
