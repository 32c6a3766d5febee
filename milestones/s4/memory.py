"""Section 6: how much of the KV memory is wasted."""

import heapq
from typing import Any

from ai_playground.chapter import Request, chapter_workload
from checking.check import CheckFailed
from milestones.s4.answers import Case, names_of, stand_ins
from milestones.s4.tensors import number


def _timeline(block_size: int, max_batch: int = 8) -> list[dict[str, int]]:
    """The chapter's workload in a pool that is never short, as a queue at `max_batch` counters would be drawn up.

    A request that starts in step `s` has 2 tokens after it, so it leaves at the end of step `s + stop_after - 2`.
    """
    counters = [1] * max_batch  # the first step in which each place is free
    steps: dict[int, dict[str, int]] = {}
    last = 0
    for request in chapter_workload():
        start = heapq.heappop(counters)
        end = start + request.stop_after - 2
        heapq.heappush(counters, end + 1)
        last = max(last, end)
        for step in range(start, end):  # it has retired when step `end` is recorded
            cached = len(request.prompt) + step - start + 1
            record = steps.setdefault(step, {"reserved": 0, "allocated": 0, "used": 0})
            record["reserved"] += len(request.prompt) + request.max_new
            record["allocated"] += -(-cached // block_size) * block_size
            record["used"] += cached
    return [steps.get(step, {"reserved": 0, "allocated": 0, "used": 0}) for step in range(1, last + 1)]


def probe_memory(engine: Any, case: Case) -> Any:
    """Call the student's measurement on a run that is known to be right."""
    names = names_of(engine, "memory_prediction", "memory")
    made: list[list[int]] = []

    class RecordedEngine:
        def __init__(self, _model: Any, num_blocks: int, block_size: int = 16, **_options: Any) -> None:
            made.append([num_blocks, block_size])
            self.history = case.get("history") or _timeline(block_size)
            self.preemptions = 0

        def run(self, _requests: list[Request]) -> "RecordedEngine":
            return self

    with stand_ins(names, Engine=RecordedEngine):
        waste = names["measured_waste"](case["block_size"])
    if isinstance(waste, dict):
        waste = {key: number(value) for key, value in waste.items()}
    prediction = names.get("prediction")
    if isinstance(prediction, dict):
        prediction = [[key, number(value)] for key, value in prediction.items()]
    return {"waste": waste, "prediction": prediction, "made": made}


def judge_memory(case: Case, found: Any) -> None:
    prediction = dict(map(tuple, found["prediction"])) if isinstance(found["prediction"], list) else {}
    for size in (4, 64):
        value = prediction.get(size)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise CheckFailed(
                f"prediction[{size}] to be a share between 0 and 1, your guess",
                repr(value),
                "write down what you expect before you measure; a wrong guess costs nothing",
            )
    history = case.get("history") or _timeline(case["block_size"])
    total = {key: sum(record[key] for record in history) for key in ("reserved", "allocated", "used")}
    waste = found["waste"] if isinstance(found["waste"], dict) else {}
    for name, key in (("naive", "reserved"), ("paged", "allocated")):
        right, value = 1 - total["used"] / total[key], waste.get(name)
        if type(value) is float and abs(value - right) < 1e-6:
            continue
        cause = "wasted is what holds no token: 1 - used / reserved for slabs, 1 - used / allocated for blocks"
        if type(value) is float:
            shares = [1 - record["used"] / record[key] for record in history if record[key]]
            if abs(value - sum(shares) / len(shares)) < 1e-6:
                cause = "this is the mean of the steps' shares: sum over the steps first, then divide once"
            elif abs(value - total["used"] / total[key]) < 1e-6:
                cause = "this is the share that is used; the waste is the rest"
            elif abs(value - (1 - history[-1]["used"] / history[-1][key] if history[-1][key] else -1)) < 1e-6:
                cause = "this is the last step alone: sum over all steps"
        raise CheckFailed(f"waste[{name!r}] = {right:.4f} (a float)", repr(value), cause)
