"""`course check`, `hint` and `watch`, as a student meets them: broken engines of every kind, one message each."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from checking.judging import run_check
from checking.supervisor import Worker
from course import student
from course.cli import app
from milestones.m13.m13a import CHECKS as M13A
from milestones.m13.m13b import CHECKS as M13B

BROKEN = {
    "a syntax error": ("def load_model(ws:\n    return None\n", "failed", ["SyntaxError", "m13a_load_model.py:1"]),
    "returns None": ("def load_model(ws):\n    pass\n", "failed", ["found:        None", "must `return` the model"]),
    "an unwritten stub": (
        "def load_model(ws):\n    raise NotImplementedError('M13a: see the card')\n",
        "not_written",
        ["card"],
    ),
    "another name": ("def load(ws):\n    pass\n", "failed", ["has no function load_model"]),
    "a bad import": ("import numpi\n", "failed", ["No module named 'numpi'", "m13a_load_model.py:1"]),
    "ends Python": (
        "def load_model(ws):\n    import os\n    os._exit(0)\n",
        "failed",
        ["ended by itself", "exit status 0"],
    ),
    "exits": ("import sys\ndef load_model(ws):\n    sys.exit(0)\n", "failed", ["SystemExit"]),
    "prints": ("def load_model(ws):\n    print('here I am')\n", "failed", ["your code printed", "here I am"]),
    "crashes": (
        "def load_model(ws):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGTERM)\n",
        "failed",
        ["ended by itself"],
    ),
}


@pytest.fixture(scope="module")
def worker():
    with Worker() as worker:
        yield worker


def engine(folder: Path, source: str) -> Path:
    (folder / "m13a_load_model.py").write_text(source)
    return folder


@pytest.mark.parametrize("name", BROKEN)
def test_each_kind_of_broken_stub_is_told_what_is_wrong(name: str, worker: Worker, tmp_path: Path) -> None:
    source, status, words = BROKEN[name]
    result = run_check(M13A[0], engine(tmp_path, source), worker)
    assert result.status == status
    for word in words:
        assert word in result.message
    if status == "failed":
        order = [result.message.index(part) for part in ("expected:", "found:", "input:", "read:", "run again:")]
        assert order == sorted(order)


def test_a_missing_module_costs_only_the_milestones_that_need_it(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "m13a_load_model.py").write_text("raise NotImplementedError('M13a')\n")
    assert run_check(M13A[0], tmp_path, worker).status == "not_written"
    result = run_check(M13B[1], tmp_path, worker)
    assert result.status == "failed"
    assert "No module named 'm13b_greedy'" in result.message


def test_check_on_the_command_line_fails_with_the_message(tmp_path: Path) -> None:
    broken = engine(tmp_path, BROKEN["returns None"][0])
    result = CliRunner().invoke(app, ["check", "m13a.shipped_model", "--engine", str(broken)])
    assert result.exit_code == 1
    assert "must `return` the model" in result.output


def test_the_project_is_checked_by_the_same_command_and_has_no_hints(tmp_path: Path) -> None:
    (tmp_path / "kv_generate.py").write_text("def generate_full(model, prompt_ids, n_new):\n    return [1]\n")
    done = CliRunner().invoke(app, ["check", "p3.full_tokens", "--engine", str(tmp_path)])
    assert done.exit_code == 1 and "p3.full_tokens" in done.output and "expected:" in done.output
    hint = CliRunner().invoke(app, ["hint", "p3"])
    assert hint.exit_code == 2 and "from memory" in hint.output


def test_unknown_names_are_refused_with_those_there_are() -> None:
    for arguments, words in (
        (["check", "m99"], "no part 'm99'; there are s4_1, s4_2, m13a, m13b"),
        (["check", "m13a.nothing"], "m13a.shipped_model"),
        (["hint", "m99"], "no card m99.md"),
        (["check", "m13a", "--engine", "nowhere"], "no engine 'nowhere'"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert words in " ".join(result.output.replace("│", " ").split())


def test_hints_come_one_at_a_time_and_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(student, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(student, "ROOT", tmp_path)
    card = "# A card\n\n## Hints\n\n### 1\nthe place\n\n### 2\nthe question\n\n## After\nnot a hint\n"
    (tmp_path / "milestones" / "m13").mkdir(parents=True)
    (tmp_path / "milestones" / "m13" / "m13b.md").write_text(card)

    def output(*more: str) -> str:
        return CliRunner().invoke(app, ["hint", "m13b", *more]).output

    assert "No hint was given yet" in output("--again")
    first = output()
    assert "the place" in first and "the question" not in first
    second = output()
    assert "the question" in second and "last rung" in second
    assert "the question" in output(), "at the end the last rung stays"
    again = output("--again")
    assert "the place" in again and "the question" in again
    assert "not a hint" not in first + second + again
