"""The checks themselves: near-ties, time limits, workers with and without fork, and what is seen from outside."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ai_playground.checkout import repo_root
from ai_playground.models import TransformerConfig
from checking import causes
from checking.calling import garbage
from checking.check import CheckFailed
from checking.judging import run_check
from checking.messages import explain
from checking.observe import Finite, Observer, TokenLog
from checking.reference import TIE_TOLERANCE, build_model, first_divergence, greedy, random_model
from checking.seed import ids
from checking.shapes import SHAPES
from checking.supervisor import Answer, Worker
from checking.tokens import blame_not_finite, judge_tokens
from milestones.m13 import m13a, m13b, m13c, probes
from milestones.subjects import M13

SPEC = {"config": SHAPES["gqa"], "seed": 5}


def named(name: str):
    return next(check for module in (m13a, m13b, m13c) for check in module.CHECKS if check.name == name)


def engine(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


# ---- near-ties


def near_tie(gap: float):
    """A model and a prompt after which the two best tokens differ by `gap`, and their ids, best first."""
    model = random_model(TransformerConfig.from_dict(SHAPES["gqa"]), 5)
    prompt = ids(7, 97, 3)
    best = int(model(torch.tensor([prompt]))[0, -1].argmax())
    other = (best + 1) % 97
    hidden = []
    hook = model.norm.register_forward_hook(lambda _, __, out: hidden.append(out[0, -1]))
    model(torch.tensor([prompt]))
    hook.remove()
    with torch.no_grad():
        # The other token's row is the best one's, moved along the hidden state by just so much.
        model.head.weight[other] = model.head.weight[best] - gap * hidden[0] / hidden[0].dot(hidden[0])
    return model, prompt, best, other


def test_a_near_tie_is_right_and_comparison_goes_on_along_the_engines_tokens() -> None:
    model, prompt, best, other = near_tie(TIE_TOLERANCE / 2)
    assert greedy(model, prompt, 1) == [best]
    along = [other, *greedy(model, [*prompt, other], 5)]
    assert first_divergence(model, prompt, along) is None
    wrong = [*along[:3], (along[3] + 1) % 97, *along[4:]]
    assert first_divergence(model, prompt, wrong).position == 3, "a wrong token next to a near-tie is still wrong"


def test_of_equal_logits_the_first_index_is_right() -> None:
    spec = SPEC | {"ties": True}
    model, prompt = build_model(spec), ids(9, 97, 1)
    right = greedy(model, prompt, 12)
    at = next(at for at, token in enumerate(right) if token % 4 == 0)
    later = [*right[:at], right[at] + 1]
    assert first_divergence(model, prompt, right) is None
    assert first_divergence(model, prompt, later).gap == 0.0
    with pytest.raises(CheckFailed) as tie:
        judge_tokens(spec, prompt, at + 1, later, "tokens")
    assert "first index on a tie" in tie.value.cause
    coarse = build_model(spec | {"dtype": "bfloat16"})
    assert first_divergence(coarse, prompt, [*greedy(coarse, prompt, 12)][:1], 0.1) is None


def test_one_equal_token_names_no_row_of_the_prompt() -> None:
    model, prompt = build_model(SPEC), ids(9, 97, 1)
    first = int(model(torch.tensor([prompt]))[0, 0].argmax())
    assert causes._row_of(model, prompt, [first, 1, 2, 3]) is None
    assert causes._row_of(model, prompt, [first, *greedy(model, [*prompt, first], 5)]) == 0
    assert causes._row_of(model, prompt, [first] * 6) == 0


def test_unwritten_memory_holds_garbage_and_is_blamed_first() -> None:
    with garbage():
        assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    model = build_model(SPEC)
    with Finite(model) as finite:
        model.head(torch.ones(1, 48))
        assert finite.first == ""
        model.head(torch.tensor([[torch.nan] * 48]))
    assert finite.first == "NaN"
    with pytest.raises(CheckFailed) as failed, blame_not_finite({"not_finite": "NaN"}):
        raise CheckFailed("a", "b", "another cause")
    assert failed.value.cause.startswith("the logits are NaN")


def test_a_gap_beyond_the_tolerance_is_wrong() -> None:
    model, prompt, _, other = near_tie(TIE_TOLERANCE * 20)
    assert first_divergence(model, prompt, [other]).position == 0


def test_tokens_of_another_mistake_are_told_apart() -> None:
    model = build_model(SPEC)
    prompt = ids(9, 97, 1)
    right = greedy(model, prompt, 12)
    with pytest.raises(CheckFailed) as twice:
        judge_tokens(SPEC, prompt, 12, right[:1] + right[:11], "tokens")
    assert "comes twice" in twice.value.cause
    with pytest.raises(CheckFailed) as short:
        judge_tokens(SPEC, prompt, 12, right[:11], "tokens")
    assert "one token short" in short.value.cause


# ---- workers


HANGS = "def greedy_paged(*a, **k):\n    while True:\n        pass\n\n\ngreedy_reference = greedy_paged\n"
ENDS = "import os\n\n\ndef greedy_paged(*a, **k):\n    os._exit(0)\n\n\ngreedy_reference = greedy_paged\n"


@pytest.mark.parametrize("fork", ["1", "0"])
def test_a_check_that_hangs_or_ends_python_leaves_the_others_judged(
    fork: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_FORK", fork)  # 0 is the way of macOS and Windows
    loading = (M13.find("solutions") / "m13a_load_model.py").read_text(encoding="utf-8")
    for name, text in (("hangs", HANGS), ("ends", ENDS)):
        (tmp_path / name).mkdir()
        engine(tmp_path / name, m13a_load_model=loading, m13b_greedy=text)
    lengths = replace(named("m13b.lengths"), limit=2.0)
    with Worker() as worker:
        hung = run_check(lengths, tmp_path / "hangs", worker)
        assert hung.status == "failed"
        assert "no answer after 0 of" in hung.message and "input:" in hung.message
        assert "m13b_greedy.py:" in hung.message, "it says where the engine was"
        assert "m13b" in hung.message and lengths.cases[0]["label"] in hung.message
        assert run_check(named("m13a.damaged_checkpoint"), tmp_path / "hangs", worker).status == "passed"
        ended = run_check(lengths, tmp_path / "ends", worker)
        assert ended.status == "failed" and "ended by itself" in ended.message
        assert run_check(named("m13a.damaged_checkpoint"), tmp_path / "ends", worker).status == "passed"


def test_an_error_of_torch_is_not_taken_for_an_unwritten_stub(tmp_path: Path) -> None:
    text = "import torch\n\n\ndef greedy_paged(*a, **k):\n    return torch.ones(2, dtype=torch.bool) - True\n"
    engine(tmp_path, m13b_greedy=text + "\n\ngreedy_reference = greedy_paged\n")
    with Worker() as worker:
        result = run_check(named("m13b.lengths"), tmp_path, worker)
    assert result.status == "failed" and "m13b_greedy.py:5" in result.message


def test_only_the_failure_that_is_shown_is_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(causes, "explain_tokens", lambda *args: asked.append(args) or "the cause")
    lengths = named("m13b.lengths")
    check = replace(lengths, cases=lengths.cases[-4:])
    wrong = Answer([{"evidence": {"output": [1, 2] * 40, "not_finite": ""}}] * 4, "done", 0, "")
    result = run_check(check, Path("anywhere"), SimpleNamespace(ask=lambda *args: wrong))
    assert (result.status, result.passed, len(asked)) == ("failed", 0, 1)
    assert "likely cause: the cause" in result.message


def test_two_engines_in_one_process_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_FORK", "0")
    check = replace(named("m13b.lengths"), cases=named("m13b.lengths").cases[:2])
    (tmp_path / "zeros").mkdir()
    zeros = "def greedy_paged(prompt, n, **k):\n    return [0] * n\n\n\ngreedy_reference = greedy_paged\n"
    engine(tmp_path / "zeros", m13b_greedy=zeros)
    with Worker() as worker:
        assert run_check(check, tmp_path / "zeros", worker).status == "failed"
        assert run_check(check, M13.find("solutions"), worker).status == "passed"
        assert run_check(check, tmp_path / "zeros", worker).status == "failed"


def test_an_edited_metrics_file_makes_nothing_green(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from ai_playground.workspace import default_workspace
    from milestones.m13 import m13d

    ws = tmp_path / "myllm"
    shutil.copytree(default_workspace(), ws)
    forged = {"m13_finale": {"text": "full marks", "tokens_per_sec": 1e6, "preemptions": 99}}
    (ws / "metrics.json").write_text(json.dumps(forged), encoding="utf-8")
    monkeypatch.setenv("COURSE_WORKSPACE", str(ws))
    finale = replace(m13d.CHECKS[0], cases=(m13d.CHECKS[0].cases[0] | {"workspace": str(ws)},))
    (tmp_path / "stubs").mkdir()
    engine(tmp_path / "stubs", m13d_finale="def finale(ws, **k):\n    raise NotImplementedError('M13d')\n")
    with Worker() as worker:
        assert run_check(finale, tmp_path / "stubs", worker).status == "not_written"


# ---- what is seen from outside


def test_both_observers_see_the_tokens_that_go_through_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    solution = M13.engine(M13.find("solutions"))
    model, prompt = build_model(SPEC), ids(11, 97, 2)
    with TokenLog(model) as log:
        output = solution.greedy_paged(prompt, 4, model=model)
    assert log.calls == [prompt, *([token] for token in output[:-1])]
    with Observer(model) as seen:
        solution.greedy_paged(prompt, 4, model=model)
    assert seen.calls == log.calls
    with TokenLog(model) as log:
        solution.greedy_reference(prompt, 2, model=model)
    assert log.calls == [prompt, [*prompt, output[0]]]
    assert type(model.embedding.weight) is torch.nn.Parameter, "the model is as it was"


def test_the_hook_that_looks_for_the_embedding_is_gone_once_it_is_found() -> None:
    from torch.nn.modules.module import _global_forward_pre_hooks as hooks

    embedding = torch.nn.Embedding(5, 3)
    for used in (True, False):
        with TokenLog() as log:
            assert len(hooks) == 1
            if used:
                embedding(torch.tensor([1, 2]))
                assert len(hooks) == 0, "it slows each call of each module"
                embedding(torch.tensor([4]))
        assert len(hooks) == 0
        assert log.calls == ([[1, 2], [4]] if used else [])
    assert type(embedding.weight) is torch.nn.Parameter


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_work_is_what_torch_counts(mode) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    solution = M13.engine(M13.find("solutions"))
    model, prompt = build_model(SPEC), ids(11, 97, 2)
    with mode(), Observer(model) as seen:
        solution.greedy_paged(prompt, 4, model=model)
    with FlopCounterMode(display=False) as counter:
        solution.greedy_paged(prompt, 4, model=model)
    assert seen.flops == counter.get_total_flops() > 0


def test_memory_is_the_pool_and_little_else() -> None:
    model = build_model(SPEC)
    pool = 6 * 16 * model.config.kv_values_per_token * 4
    with Observer(model) as seen:
        M13.engine(M13.find("solutions")).greedy_paged(ids(40, 97, 2), 50, model=model)
    assert pool <= max(seen.memory) <= pool + 16 * 1024


def test_a_silent_token_is_never_written() -> None:
    model = build_model({"config": SHAPES["gqa"], "seed": 2, "silent": 30})
    assert all(token < 67 for seed in range(5) for token in greedy(model, ids(5, 97, seed), 40))


def test_each_end_token_of_a_case_ends_a_request() -> None:
    cases = [case for check in m13c.CHECKS for case in check.cases if case.get("eos_id") is not None]
    assert any(type(case["eos_id"]) is list for case in cases)
    for case in cases:
        ends = case["eos_id"] if type(case["eos_id"]) is list else [case["eos_id"]]
        model = build_model(case["model"])
        outputs = [greedy(model, prompt, case["max_new"], ends) for prompt in case["requests"]]
        assert {output[-1] for output in outputs if len(output) < case["max_new"]} == set(ends), case["label"]


def test_the_drawn_inputs_differ_with_the_seed_and_say_it() -> None:
    assert m13b.fresh_cases(1) != m13b.fresh_cases(2) and m13b.fresh_cases(1) == m13b.fresh_cases(1)
    assert all(case["seed"] == 3 for case in m13b.fresh_cases(3) + m13c.fresh_cases(3))
    failing = replace(named("m13b.fresh_prompts"), cases=m13b.fresh_cases(3), probe=probes.greedy)
    assert "COURSE_SEED=3" in explain(failing, failing.cases[0], CheckFailed("a", "b"))


def test_the_observer_is_warm_before_the_forks() -> None:
    code = """
import sys, torch
from torch import nn
from checking.observe import TokenLog, warm_up
warm_up()
before = set(sys.modules)
embedding = nn.Embedding(5, 2)
with TokenLog() as log:
    embedding(torch.tensor([3, 1]))
assert log.calls == [[3, 1]] and len(log.times) == 1
assert set(sys.modules) == before, set(sys.modules) - before
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=repo_root())
