"""From results on disk to pages and grades.csv."""

from pathlib import Path

import pytest
from rich.console import Console

from grading import class_run
from grading.class_run import Run, publish
from grading.judging import results
from tests.instructor.made_results import made


def test_results_become_pages_and_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_run, "CLASS", tmp_path)
    monkeypatch.setattr(results, "CLASS", tmp_path)
    monkeypatch.setattr(class_run, "SUBMITTED", tmp_path / "submitted")
    for student, share in (("ada", 1.0), ("bob", 0.5)):
        results.Results("m13").write(made(student, share))
    with Console(record=True, width=160) as console:
        publish(Run(["ada"], ["bob"], {"eve": "no memory"}), "m13", gradebook=False, roster=None, console=console)
    assert "eve was not judged" in console.export_text()
    assert (tmp_path / "m13" / "grades.csv").read_text().splitlines()[2:] == [
        "ada,,,ada,,100",
        "bob,,,bob,,50",
    ]
    page = (tmp_path / "m13" / "reports" / "index.html").read_text()
    assert "ada/report.html" in page and "no memory" in page
    assert (tmp_path / "m13" / "reports" / "bob" / "report.txt").is_file()
