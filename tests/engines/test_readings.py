"""What the judges read out of a run: no right engine fails on any draw, and wrong ones do."""

import random
from pathlib import Path
from typing import Any

import pytest

from checking.check import CheckFailed
from milestones.m13 import probes
from milestones.m13.m13c import random_case
from milestones.m13.serving.serve_judges import judge_serve
from milestones.subjects import M13
from tests.engines.bench import KINDS


def drawn_case(seed: int) -> dict[str, Any]:
    """Requests of which half begin as an earlier one does, in a pool that is often tight."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 30) for _ in range(draw.randint(3, 8))]
    pairs = {at: draw.randrange(at) for at in range(1, len(lengths)) if draw.random() < 0.5}
    for at, other in pairs.items():
        lengths[at] = max(1, lengths[other] + draw.choice((0, 0, -1, 1, 7)))
    max_new, size = draw.randint(1, 20), draw.choice((1, 2, 4, 7, 16))
    needed = max(-(-(length + max_new) // size) for length in lengths)
    budget = needed + draw.randint(0, 2 * needed)
    more = {"eos_id": 16} if draw.random() < 0.5 else {}
    return random_case(lengths, seed, max_new, budget, size, pairs, max_batch=draw.choice((2, 4, 8)), **more)


@pytest.mark.parametrize("name", ["reference", "flat_batch", "prefill_but_last", "prefix_sharing"])
def test_a_right_engine_passes_whatever_is_drawn(name: str, tmp_path: Path) -> None:
    chosen = next(engine for engine in KINDS["right"] if engine.name == name)
    engine = M13.engine(chosen.write(tmp_path / name))
    for case in map(drawn_case, range(20)):
        judge_serve(case, probes.serve(engine, case))


def test_who_finds_all_blocks_again_was_preempted_all_the_same(tmp_path: Path) -> None:
    chosen = next(engine for engine in KINDS["right"] if engine.name == "lazy_preemption")
    case = random_case([4, 41, 4, 4], 7, 12, 8, 8, max_batch=3)
    judge_serve(case, probes.serve(M13.engine(chosen.write(tmp_path / "lazy")), case))


@pytest.mark.parametrize(
    ("name", "says"), [("running_after_retirement", "'running' is"), ("last_come_first_served", "first come")]
)
def test_a_wrong_one_is_caught_where_two_prompts_are_equal(name: str, says: str, tmp_path: Path) -> None:
    chosen = next(engine for engine in KINDS["wrong"] if engine.name == name)
    engine = M13.engine(chosen.write(tmp_path / name))
    case = random_case([6, 6, 9], 2, 10, 40, 4, {1: 0}, no_preemption=True, max_batch=1)
    with pytest.raises(CheckFailed) as failure:
        judge_serve(case, probes.serve(engine, case))
    assert says in failure.value.cause
