"""One submission, judged: what its result says."""

from dataclasses import replace

import pytest

from grading.assignments import ASSIGNMENTS, released
from grading.intake.submission import Submission
from grading.judging.one_submission import judge
from grading.judging.sandbox import Sandbox


def test_a_module_that_cannot_be_imported_fails_all_checks_of_its_milestone(monkeypatch: pytest.MonkeyPatch) -> None:
    assignment = ASSIGNMENTS["m13"]
    units = tuple(unit for unit in assignment.units() if unit.name == "m13a")
    monkeypatch.setitem(ASSIGNMENTS, "m13", replace(assignment, units=lambda: units))
    files = released("m13") | {"m13a_load_model.py": b"import no_such_module\n"}
    with Sandbox(unsafe=True) as sandbox:
        result = judge(Submission("ada", files), sandbox)
    unit = result["units"]["m13a"]
    assert result["score"] == 0
    checks = [*unit["visible"], *unit["hidden"]]
    assert {check["status"] for check in checks} == {"failed"}
    assert all("no_such_module" in check["message"] for check in checks)
