from checking.check import Check
from checking.supervisor import Worker
from milestones.m13.m13c import CHECKS  # noqa: F401  conftest.py reads them
from tests.milestones.verdict import judge


def test_m13c(engine: str, check: Check, worker: Worker) -> None:
    judge(check, engine, worker)
