"""The definitions of the bench hold, and a few engines come out as they should; `python -m tests.engines` runs all."""

from pathlib import Path

import pytest

from checking.supervisor import Worker
from milestones.m13 import m13a, m13b, m13c, m13d
from tests.engines.bench import KINDS, names_the_idea, problem, run_bench, stumbles, third_of
from tests.engines.engine import Engine

EVERY = [engine for engines in KINDS.values() for engine in engines]
NAMES = {check.name for module in (m13a, m13b, m13c, m13d) for check in module.CHECKS}


def test_there_are_as_many_as_promised_and_each_has_a_name_of_its_own() -> None:
    assert len(KINDS["wrong"]) >= 60 and len(KINDS["dishonest"]) >= 20 and len(KINDS["right"]) >= 40
    assert len({engine.name for engine in EVERY}) == len(EVERY)


@pytest.mark.parametrize("engine", EVERY, ids=lambda engine: engine.name)
def test_each_definition_fits_the_solution(engine: Engine, tmp_path: Path) -> None:
    path = engine.write(tmp_path / "engine")
    for module in [path] if path.is_file() else path.glob("*.py"):
        compile(module.read_text(encoding="utf-8"), str(module), "exec")
    if engine.fails:
        assert engine.fails in NAMES


def test_an_old_text_that_is_gone_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 'no such text' once"):
        Engine("x", "y", (("m13b_greedy", "no such text", ""),)).write(tmp_path / "engine")


def test_a_few_of_each_kind() -> None:
    some = ["gate_up_swapped", "gqa_repeat", "folded_twice", "paged_is_the_reference", "equal_to_everything"]
    outcomes = list(run_bench(["wrong", "dishonest"], some))
    assert len(outcomes) == len(some)
    for engine, outcome in outcomes:
        assert not problem(engine, outcome), outcome.message
        assert names_the_idea(engine, outcome), outcome.message


def test_no_judge_stumbles_whichever_case_is_the_first_that_fails(tmp_path: Path) -> None:
    some = ["prompt_only_recomputed", "outputs_are_tensors"]
    with Worker() as worker:
        for engine in (engine for engine in KINDS["wrong"] if engine.name in some):
            assert stumbles(engine, worker, tmp_path / engine.name, ("m13c",)) == []


def test_three_thirds_are_the_whole() -> None:
    thirds = [third_of(EVERY, number) for number in range(3)]
    assert sorted(engine.name for third in thirds for engine in third) == sorted(engine.name for engine in EVERY)
    assert max(map(len, thirds)) - min(map(len, thirds)) <= 1
