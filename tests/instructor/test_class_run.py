"""From results on disk to pages and grades.csv."""

from pathlib import Path

import pytest
from rich.console import Console

from grading import class_run
from grading.class_run import Run, publish
from grading.judging import results
from grading.report.class_page import ClassSeen, class_html, write_reports
from grading.report.grades_csv import grades_csv
from grading.roster import read_roster
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


def test_a_roster_of_canvas_comes_back_with_a_column_more() -> None:
    roster = read_roster(
        'Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n"L, Ada",7,s7,ada,M1\n'
        '"H, G",8,s8,grace,M1\n'
    )
    assert grades_csv({"ada": 90.5, "=evil()": 1.0}, "m13", roster).splitlines() == [
        "Student,ID,SIS User ID,SIS Login ID,Section,M13 mini vLLM",
        "    Points Possible,,,,,100",
        "'=evil(),,,'=evil(),,1",
        '"L, Ada",7,s7,ada,M1,90.5',
        '"H, G",8,s8,grace,M1,',
    ]


def test_moodles_roster_keeps_its_own_columns() -> None:
    roster = read_roster("Identifier,Full name,Email address\nParticipant 4711,Ada L,ada@x.org\n")
    assert grades_csv({"ada@x.org": 50.0}, "m13", roster).splitlines() == [
        "Identifier,Full name,Email address,M13 mini vLLM",
        "Participant 4711,Ada L,ada@x.org,50",
    ]


def test_the_class_page_says_who_still_needs_something_and_what_went_wrong() -> None:
    results = [made("ada", 1.0), made("bob", 0.3, message="expected 4; found <b>5</b>")]
    seen = ClassSeen(
        names={"cy": "Cy O'N"},
        ungradable={"cy": ["x.rar cannot be graded: ask for a .zip"]},
        missing=["dan"],
        late=["bob"],
    )
    text = class_html("m13", results, seen)
    assert "cy (Cy O&#x27;N)" in text and "ask for a .zip" in text
    assert "Has not handed in: 1" in text and "dan" in text
    assert "Median 65 of 100" in text
    assert "expected 4; found &lt;b&gt;5&lt;/b&gt;" in text and "<b>5</b>" not in text
    assert "script-src 'sha256-" in text


@pytest.mark.parametrize("number", [0, 2])
def test_a_small_class_has_a_page_too(number: int, tmp_path: Path) -> None:
    write_reports(tmp_path, "m13", [made(f"s{i}", 1.0) for i in range(number)], ClassSeen())
    text = (tmp_path / "index.html").read_text()
    assert ("Nobody has a result yet" in text) == (number == 0)
    assert (tmp_path / "class.png").exists() == (number > 0)
