"""`course bench`: the workloads are fixed, a peer's run is measured, and one that is not there is skipped by name."""

import sys
from pathlib import Path

import pytest

from benchmarks import figures, rounds
from benchmarks.bench_models import prepare
from benchmarks.workloads import WORKLOADS

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="CPU time and memory are read from /proc")


def settings(tmp_path: Path, **changes) -> rounds.Settings:
    values = {
        "workloads": ["w3"], "peers": ["reference", "transformers"], "runs": 1, "threads": 1, "workspace": None,
        "envs": tmp_path / "envs", "cache": tmp_path / "cache", "say": lambda line: None,
    }  # fmt: skip
    return rounds.Settings(**values | changes)


def test_workloads_are_the_same_every_time_and_as_described() -> None:
    for name in ("w1-fp32", "w2-fp32"):
        workload = WORKLOADS[name]
        requests = workload.requests(256)
        assert requests == workload.requests(256)
        assert len(requests) == workload.count
        for prompt, new in requests:
            assert workload.prompt[0] <= len(prompt) <= workload.prompt[1]
            assert workload.new[0] <= new <= workload.new[1]


@linux_only
def test_a_run_is_measured_and_drawn(tmp_path) -> None:
    (found,) = rounds.serve_all(settings(tmp_path))
    (record,) = found["runs"]
    assert record["tokens"] == 891 and record["same_start"] == 1.0
    assert record["cpu_seconds"] > 0 and record["wall_seconds"] > 0 and record["peak_mb"] > 10
    assert found["medians"]["w3"]["reference"]["runs"] == 1
    figures.draw(found, tmp_path)
    assert (tmp_path / "speed.png").stat().st_size > 10_000


@linux_only
def test_what_is_not_there_or_fails_is_skipped_with_its_reason(tmp_path) -> None:
    model = prepare("toy", "float32", None, tmp_path / "cache")
    asked = settings(tmp_path)
    assert (
        "not installed" in rounds.run_peer("transformers", WORKLOADS["w2-fp32"], model, [([1, 2], 2)], asked)["failed"]
    )
    assert "IndexError" in rounds.run_peer("reference", WORKLOADS["w2-fp32"], model, [([999], 2)], asked)["failed"]


def test_smollm2_needs_its_workspace(tmp_path) -> None:
    with pytest.raises(ValueError, match="course import smollm2"):
        prepare("smollm2", "float32", None, tmp_path)
