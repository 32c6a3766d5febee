"""Runs the checks of `milestones/`, in tests/milestones and in projects, on every engine of this checkout.

The engine under test is chosen here; what is checked stands in `milestones/`.
"""

import os

# Before torch is imported: these models are too small to gain from a second thread, and two OpenMP threads that
# wait for each other on a busy machine are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from collections.abc import Iterator

import pytest

from checking.check import Check
from checking.supervisor import Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" not in metafunc.fixturenames:
        return
    checks: tuple[Check, ...] = metafunc.module.CHECKS
    pairs = [(engine, check) for engine in checks[0].subject.here() for check in checks]
    ids = [f"{engine}-{check.name}" for engine, check in pairs]
    metafunc.parametrize(("engine", "check"), pairs, ids=ids)
