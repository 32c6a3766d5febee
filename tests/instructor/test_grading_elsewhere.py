"""The same judging on a Dask cluster, in Gradescope's container, and with judging processes that die."""

import json
import os
import shutil
import signal
import sys
import zipfile
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ai_playground.checkout import repo_root
from grading import gradescope
from grading.assignments import released
from grading.intake.submission import Submission
from grading.judging import judging_pool
from grading.judging.judging_pool import judge_class
from grading.judging.one_submission import key_of
from tests.instructor.hostile import A

needs_bubblewrap = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not shutil.which("bwrap"), reason="needs Linux and bubblewrap"
)


def submissions(count: int) -> list[Submission]:
    """Everybody has M13a right and the rest untouched, and a comment of their own."""
    return [Submission(f"s{i}", released() | {"m13a_load_model.py": f"{A}\n# {i}\n".encode()}) for i in range(count)]


@needs_bubblewrap
def test_a_dask_worker_that_is_killed_costs_nobody_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="uv sync --group cluster")
    monkeypatch.setenv("PYTHONPATH", f"{repo_root()}:{repo_root() / 'src'}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    class_ = submissions(6)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        results: list[dict[str, Any]] = []
        for result in judge_class(class_, lambda: client.get_executor(pure=False, retries=3), window=6):
            results.append(result)
            if len(results) == 1:
                victim = next(iter(client.run(os.getpid).values()))
                os.kill(victim, signal.SIGKILL)
    assert sorted(result["student"] for result in results) == [s.student for s in class_]
    assert {result.get("score") for result in results} == {10.0}, results


class Dying(ThreadPoolExecutor):
    """An executor whose process dies the first times that it gets the submission `s1`."""

    deaths = 0

    def submit(self, function: Any, submission: Submission, unsafe: bool) -> Any:
        def run() -> dict[str, Any]:
            if submission.student == "s1" and Dying.deaths < 2:
                Dying.deaths += 1
                raise BrokenExecutor("a process in the pool ended abruptly")
            return {"student": submission.student, "key": key_of(submission, unsafe), "unsafe": unsafe}

        return super().submit(run)


def test_a_judging_process_that_dies_costs_nobody_anything() -> None:
    results = list(judge_class(submissions(5), lambda: Dying(1), window=2))
    assert sorted(result["student"] for result in results) == ["s0", "s1", "s2", "s3", "s4"]
    assert not any("error" in result for result in results)


def test_what_cannot_be_judged_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(submission: Submission, unsafe: bool) -> dict[str, Any]:
        if submission.student == "s1":
            raise OSError("the disk is full")
        other = "another version's key" if submission.student == "s2" else key_of(submission, unsafe)
        return {"student": submission.student, "key": other, "unsafe": unsafe}

    monkeypatch.setattr(judging_pool, "judge_here", broken)
    results = {r["student"]: r for r in judge_class(submissions(4), lambda: ThreadPoolExecutor(2))}
    assert "the disk is full" in results["s1"]["error"] and "score" not in results["s1"]
    assert "another version" in results["s2"]["error"]
    assert "error" not in results["s0"] and "error" not in results["s3"]


def test_gradescopes_zip_holds_no_solution(tmp_path: Path) -> None:
    names = gradescope.build(tmp_path / "autograder.zip")
    assert {"setup.sh", "run_autograder", "repo/milestones/m13/m13b.py", "repo/solutions/m13/hidden.py"} <= set(names)
    with zipfile.ZipFile(tmp_path / "autograder.zip") as archive:
        assert archive.getinfo("setup.sh").external_attr >> 16 == 0o755
        texts = [archive.read(name).decode("utf-8", "replace") for name in names]
    packed = {run for text in texts for run in runs(text)}
    for module in (repo_root() / "solutions" / "m13").glob("m13*.py"):
        for region in module.read_text().split("### BEGIN SOLUTION")[1:]:
            # Single lines can be chance; three in a row are not.
            assert not packed & runs(region.split("### END SOLUTION")[0]), module


def runs(text: str) -> set[tuple[str, ...]]:
    """Every three long lines in a row."""
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 20]
    return set(zip(lines, lines[1:], lines[2:], strict=False))


@needs_bubblewrap
def test_gradescopes_results_follow_its_format(tmp_path: Path) -> None:
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / "m13a_load_model.py").write_text(A)
    gradescope.main("m13", tmp_path / "submission", tmp_path / "results.json")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["score"] == 10
    assert sum(test["score"] for test in results["tests"]) == pytest.approx(results["score"], abs=0.01)
    assert sum(test["max_score"] for test in results["tests"]) == pytest.approx(100, abs=30.01)
    for test in results["tests"]:
        assert set(test) <= {"name", "score", "max_score", "status", "output", "output_format", "visibility"}
        assert test["visibility"] == "visible" and test.get("status") in (None, "passed", "failed")
    assert not any("hidden" in test["name"] and "found" in test["output"] for test in results["tests"])


@needs_bubblewrap
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="Gradescope's container runs as root")
def test_without_bubblewrap_another_uid_must_not_read_what_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = []
    monkeypatch.setattr(gradescope.os, "chmod", lambda path, mode: changed.append(Path(path).name))
    monkeypatch.setattr(gradescope.sys, "executable", "/bin/true")
    with pytest.raises(gradescope.SandboxError, match="cannot be used"):
        gradescope.ContainerSandbox().check()
    assert "hidden.py" in changed and "solutions" in changed
