"""The module contract that sibling courses rely on: positional calls, these names, these keys."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from ai_playground.checkout import repo_root
from ai_playground.workspace import default_workspace, load_tokenizer, read_metrics
from checking.student_engine import Engine
from milestones.m13.m13d import record
from milestones.subjects import M13


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """`serve_myllm.py` as it is shipped, in a checkout whose student wrote what the reference has."""
    src = tmp_path / "checkpoints" / "myllm" / "src"
    src.mkdir(parents=True)
    shutil.copy(repo_root() / "checkpoints" / "myllm" / "src" / "serve_myllm.py", src)
    shutil.copytree(repo_root() / "solutions" / "m13", tmp_path / "assignments" / "m13")
    return M13.engine(src / "serve_myllm.py")


def test_a_sibling_courses_test_works_unchanged(engine: Engine, tmp_path: Path) -> None:
    ws = default_workspace()
    serve_myllm = importlib.import_module("serve_myllm")
    prompt = load_tokenizer(ws).encode("Once upon a time")

    serve_myllm.load_model(ws)
    assert serve_myllm.greedy_paged(prompt, 20) == serve_myllm.greedy_reference(prompt, 20)

    requests = [prompt + prompt[1 : 1 + index] for index in range(16)]
    report = serve_myllm.serve(requests, max_new=16, block_budget=None)
    assert report["completed"] == 16
    assert report["preemptions"] >= 1
    assert all(len(output) == 16 for output in report["outputs"])
    assert Path(sys.modules["m13c_serve"].__file__).is_relative_to(tmp_path)

    copy = tmp_path / "metrics"
    copy.mkdir()
    shutil.copy(ws / "metrics.json", copy)
    record({"report": serve_myllm.finale(ws)}, copy)
    finale = read_metrics(copy)["m13_finale"]
    assert isinstance(finale["text"], str) and finale["text"]
    assert finale["tokens_per_sec"] > 0


def test_one_broken_milestone_leaves_the_others_usable(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "assignments" / "m13" / "m13c_serve.py").write_text("def serve(:\n")
    assert engine.load_model(default_workspace()).config
    with pytest.raises(SyntaxError):
        _ = engine.serve


def test_everything_can_be_written_in_the_one_file(tmp_path: Path) -> None:
    (tmp_path / "serve_myllm.py").write_text(
        "def serve(requests, max_new, block_budget=None):\n    return {'mine': 1}\n"
    )
    engine = M13.engine(tmp_path / "serve_myllm.py")
    assert engine.serve([], 1) == {"mine": 1}
    with pytest.raises(ImportError, match="has no function finale"):
        _ = engine.finale
