"""The harness believes nothing that comes out of a worker, and nothing in there stops it."""

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checking.check import Result
from checking.evidence import names
from checking.form import ANY, misfit
from checking.judging import run_check
from checking.reference import Divergence, first_divergence, greedy
from checking.supervisor import Worker, WorkerBroken
from milestones.m13 import m13b, m13c

CHECK = next(check for check in m13b.CHECKS if check.name == "m13b.refusals")
FORGE = """
import json, os, sys
def send(line):
    for fd in range(3, 64):
        try:
            os.write(fd, (line + "\\n").encode())
        except OSError:
            pass
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def result_of(worker: Worker, folder: Path, code: str, **changes: object) -> Result:
    (folder / "m13b_greedy.py").write_text(FORGE + textwrap.dedent(code))
    return run_check(replace(CHECK, **changes), folder, worker)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker is one process, which the flood ends")
def test_a_flood_of_answers_is_cut_off(worker: Worker, tmp_path: Path) -> None:
    result = result_of(worker, tmp_path, "while True: send('{}' * 500_000)", limit=60.0)
    assert result.status == "failed" and "MiB" in result.message


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the worker's own output is the student's too")
def test_what_is_printed_is_cut_off_and_costs_nothing(worker: Worker, tmp_path: Path) -> None:
    """Two GiB: an honest chatterer goes on, and one that goes round `print` finds its pipe closed."""
    body = """
        def greedy_reference(*_, **__):
            for _ in range(64):
                print(spam)
            raise ValueError("still here")
        greedy_paged = greedy_reference
        spam = "spam " * 2**20
        """
    result = result_of(worker, tmp_path, body)
    assert "still here" in str(result.evidence), result.message
    assert len(result.evidence) == len(CHECK.cases)
    around = "\nwhile True:\n    os.write(2, b'spam ' * 2**20)"
    result = result_of(worker, tmp_path, around)
    assert "BrokenPipeError" in result.message
    worker.close()  # the next one has a pipe again


@pytest.mark.parametrize(
    "forged",
    [
        '{"id": 1, "case": 0, "evidence": 5}',
        '{"id": 1, "case": 0, "error": 5}',
        '{"id": 1, "case": 0, "error": {"traceback": 5, "type": {}, "message": ["\\\\ud800"]}}',
        '{"id": 1, "end": "done", "code": "zero"}',
        '{"id": 1, "end": ["done"], "code": null}',
        "[" * 100_000,
        "1" * 10_000,
        '{"ready": true}',
    ],
)
def test_a_forged_answer_is_a_failed_check(forged: str, worker: Worker, tmp_path: Path) -> None:
    line = forged.replace('"id": 1', f'"id": {worker.requests + 1}')
    result = result_of(worker, tmp_path, f"send({line!r})\nsys.exit(0)")
    assert result.status == "failed"


@pytest.mark.skipif(sys.platform != "linux", reason="a daemon is found by Linux's means")
def test_an_engine_that_was_stopped_has_timed_out(worker: Worker, tmp_path: Path) -> None:
    check = next(check for check in m13c.CHECKS if check.name == "m13c.edges")
    (tmp_path / "m13c_serve.py").write_text("def serve(*_, **__):\n    while True: pass\n")
    result = run_check(check, tmp_path, worker)
    assert result.timed_out and len(result.evidence) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="a daemon is found by Linux's means")
def test_a_daemon_is_ended_with_the_check(worker: Worker, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    result_of(
        worker,
        tmp_path,
        f"""
        import time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open({str(note)!r}, "w").write(str(os.getpid()))
                time.sleep(60)
            os._exit(0)
        while not os.path.exists({str(note)!r}) or not open({str(note)!r}).read():
            time.sleep(0.01)
        """,
    )
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_a_worker_that_does_not_start_is_nobodys_failed_check() -> None:
    worker = Worker([sys.executable, "-c", "raise SystemExit('no torch here')"])
    with pytest.raises(WorkerBroken, match="no torch here"):
        worker.ready()


def test_an_operation_that_torch_lacks_is_a_mistake_and_no_empty_stub(worker: Worker, tmp_path: Path) -> None:
    body = "def greedy_reference(*_, **__):\n    import torch\n    "
    lacking = result_of(worker, tmp_path, body + "return torch.ones(2) - torch.ones(2, dtype=bool)")
    assert lacking.status == "failed" and "m13b_greedy.py" in lacking.message
    stub = result_of(worker, tmp_path, body + "raise NotImplementedError('not yet')")
    assert stub.status == "not_written" and "not yet (m13b_greedy.py:" in stub.message


def test_what_is_not_written_is_tried_once(worker: Worker, tmp_path: Path) -> None:
    stub = "def greedy_paged(*_, **__):\n    raise NotImplementedError('not yet')\ngreedy_reference = greedy_paged\n"
    (tmp_path / "m13b_greedy.py").write_text(stub, encoding="utf-8")
    assert len(CHECK.cases) > 1
    assert len(worker.ask(CHECK.subject, tmp_path, CHECK.probe, list(CHECK.cases), 10.0).cases) == 1


def test_an_error_is_told_though_the_tools_for_it_were_broken(worker: Worker, tmp_path: Path) -> None:
    result = result_of(
        worker, tmp_path, "import traceback\ntraceback.extract_tb = None\nraise ValueError('the first mistake')"
    )
    assert result.status == "failed" and "ValueError: the first mistake" in result.message


def test_a_forged_excuse_is_no_crash(worker: Worker, tmp_path: Path) -> None:
    line = f'{{"id": {worker.requests + 1}, "case": 0, "error": {{"not_written": true, "traceback": 5}}}}'
    result = result_of(worker, tmp_path, f"send({line!r})\nsys.exit(0)")
    assert result.status != "passed"


def test_a_judge_that_stumbles_is_the_courses_fault_and_says_so(worker: Worker, tmp_path: Path) -> None:
    def stumble(case: dict, evidence: object) -> None:
        raise KeyError("model")

    code = "def greedy_paged(prompt, n, **_): raise ValueError(str(prompt))\ngreedy_reference = greedy_paged"
    result = result_of(worker, tmp_path, code, judge=stumble)
    assert result.status == "failed" and "KeyError" in result.stumbled
    assert "mistake of the course" in result.message and "in the form" not in result.message


def test_evidence_of_another_form_never_reaches_the_judge(worker: Worker, tmp_path: Path) -> None:
    line = f'{{"id": {worker.requests + 1}, "case": 0, "evidence": {{"raised": 5}}}}'
    result = result_of(worker, tmp_path, f"send({line!r})\nsys.exit(0)", judge=lambda case, evidence: 1 / 0)
    assert not result.stumbled and "in the form that the probe gives it" in result.message


@pytest.mark.parametrize(
    ("value", "form", "bad"),
    [
        ([[1, 2], []], [[int]], ""),
        ([[1, True]], [[int]], "evidence[0][1] is a bool, not a int"),
        ({"a": 1, "b": None}, {"a": int, "b": ([int], type(None))}, ""),
        ({"a": {}}, {"a": ANY, "b": int}, "evidence has no 'b'"),
        (5, {"a": int}, "evidence is a int, not a dict"),
        ("x", ([int], int), "evidence is a str, not a list"),
    ],
)
def test_a_form_says_where_a_value_does_not_fit(value: object, form: object, bad: str) -> None:
    assert misfit(value, form) == bad


@pytest.mark.parametrize(
    ("message", "name", "there"),
    [
        ("prompt has 0 tokens, need at least 1", "1", True),
        ("request 16 is empty", "1", False),
        ("request-1: too long", "1", True),
        ("token -1 is no id", "-1", True),
        ("2-1 tokens", "-1", False),
        ("p must be in (0, 1], got 0", "0.0", True),
        ("1,024 tokens are more than 1_000", "1024", True),
        ("layers.1.attn.wk.weight is missing", "layers.1.attn.wk.weight", True),
    ],
)
def test_a_number_is_looked_for_as_a_number(message: str, name: str, there: bool) -> None:
    assert names(message, name) is there


def test_what_the_reference_said_once_is_not_asked_again() -> None:
    """A class of right submissions gives the same outputs again and again; a wrong one is another question."""
    asked = []

    def model(tokens: torch.Tensor) -> torch.Tensor:  # the next token is always one more
        asked.append(tokens.tolist())
        return torch.nn.functional.one_hot(tokens + 1, 16).float()

    for _ in range(3):
        assert first_divergence(model, [1, 2], [3, 4]) is None
        assert greedy(model, [1, 2], 2) == [3, 4]
    assert asked == [[[1, 2, 3]], [[1, 2]], [[1, 2, 3]]]
    assert first_divergence(model, [1, 2], [3, 5]) == Divergence(1, 5, 4, 1.0)
    assert first_divergence(model, [1, 2], [3, 5], tolerance=2.0) is None
    assert len(asked) == 5
