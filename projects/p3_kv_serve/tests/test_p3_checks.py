from checking.check import Check
from checking.supervisor import Worker
from milestones.p3.p3 import CHECKS  # noqa: F401  the conftest.py at the root reads them
from tests.milestones.verdict import judge


def test_p3(engine: str, check: Check, worker: Worker) -> None:
    judge(check, engine, worker)
