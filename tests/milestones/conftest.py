"""Runs the checks of `milestones/` on every engine of this checkout.

The engine under test and a fresh copy of the metrics are chosen here; what is checked stands in `milestones/`.
"""

from collections.abc import Iterator

import pytest

from milestones.engines import available_engines
from milestones.harness import Check, Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" not in metafunc.fixturenames:
        return
    checks: tuple[Check, ...] = metafunc.module.CHECKS
    pairs = [(engine, check) for engine in available_engines() for check in checks]
    ids = [f"{engine}-{check.name}" for engine, check in pairs]
    metafunc.parametrize(("engine", "check"), pairs, ids=ids)
