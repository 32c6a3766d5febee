"""One submission's budget: who hangs everywhere holds up nobody, and who is right is never cut short."""

from dataclasses import replace
from pathlib import Path

import pytest

from checking.check import Check, Result
from grading.judging import one_submission
from grading.judging.one_submission import ALL_CHECKS, HANGING, Budget
from milestones.m13 import m13b

CHECK = replace(m13b.CHECKS[0], limit=10.0)


class Group:
    def __init__(self, used: float) -> None:
        self.used = used

    def cpu_seconds(self) -> float:
        return self.used


class CountingWorker:
    def __init__(self, used: float = 0.0) -> None:
        self.group = Group(used)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits of the checks that were run; each hangs until it is ended."""
    given: list[float] = []

    def hang(check: Check, where: Path, worker: CountingWorker) -> Result:
        given.append(check.limit)
        return Result(check, "failed", "no answer", seconds=2 * check.limit, timed_out=True)

    monkeypatch.setattr(one_submission, "run_check", hang)
    return given


def test_who_hangs_everywhere_runs_out(limits: list[float]) -> None:
    budget = Budget(CountingWorker())
    results = [budget.run(CHECK, Path()) for _ in range(60)]
    assert limits[0] == CHECK.limit
    assert sum(limits) <= HANGING < 20.0
    assert "not run" in results[-1].message and "hung for 15 s" in results[-1].message
    assert {result.status for result in results} == {"failed"}


def test_who_takes_too_much_in_all_runs_out(limits: list[float]) -> None:
    result = Budget(CountingWorker(ALL_CHECKS + 1.0)).run(CHECK, Path())
    assert not limits and "61 CPU s" in result.message


def test_who_is_right_has_each_limit_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        one_submission, "run_check", lambda check, where, worker: Result(check, "passed", seconds=check.limit)
    )
    budget = Budget(CountingWorker())
    assert {budget.run(CHECK, Path()).check.limit for _ in range(60)} == {CHECK.limit}
