"""From a check's result to pytest's: passed, failed with the teaching message, or skipped as not written yet."""

import pytest

from checking.check import Check, Result
from checking.judging import run_check
from checking.supervisor import Worker


def judge(check: Check, engine: str, worker: Worker) -> Result:
    """Run one check on one engine; returns its result if it passed."""
    result = run_check(check, check.subject.find(engine), worker)
    if result.status == "not_written":
        pytest.skip(result.message)
    if result.status == "failed":
        pytest.fail(result.message, pytrace=False)
    return result
