import shutil
from pathlib import Path

import pytest

from ai_playground.workspace import default_workspace, read_metrics
from checking.check import Check
from checking.supervisor import Worker
from milestones.m13.m13d import CHECKS, record  # noqa: F401  conftest.py reads CHECKS
from tests.milestones.verdict import judge


def test_m13d(engine: str, check: Check, worker: Worker, tmp_path: Path) -> None:
    result = judge(check, engine, worker)
    ws = default_workspace()
    if engine != "assignments":  # the paper trail in the workspace is the student's
        shutil.copy(ws / "metrics.json", tmp_path)
        ws = tmp_path
    before = read_metrics(ws)
    record(result.evidence[0], ws)
    after = read_metrics(ws)
    assert after["m13_finale"]["text"] == result.evidence[0]["report"]["text"]
    assert {key: after[key] for key in before if key != "m13_finale"} == {
        key: value for key, value in before.items() if key != "m13_finale"
    }, "metrics.json accumulates: earlier keys stay as they were"
    if engine == "assignments":
        print(f"recorded in {ws / 'metrics.json'}: {after['m13_finale']}")


def test_the_paper_trail_starts_with_the_training() -> None:
    if "m7_training" not in read_metrics(default_workspace()):
        pytest.skip("this workspace was not trained by `course train`")
