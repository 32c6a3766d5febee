"""The report of `serve`: its counts, and each record of its history."""

from typing import Any

from checking.check import CheckFailed
from checking.evidence import plain_int

NO_PREEMPTION = (
    "the budget is not kept, or memory is reserved ahead: when a running request needs a block and none is free, the "
    "youngest gives its blocks back, waits, and is recomputed"
)


def judge_report(case: dict[str, Any], requests: list[list[int]], report: dict[str, Any]) -> None:
    max_batch, size = case.get("max_batch", 8), case.get("block_size", 16)
    if plain_int(report, "completed") != len(requests):
        raise CheckFailed(
            f"report['completed'] == {len(requests)}, all of them",
            f"{report['completed']}",
            "count a request once, when it leaves with its last token"
            + (": is one that is preempted counted too?" if report["completed"] > len(requests) else ""),
        )
    preemptions = plain_int(report, "preemptions")
    if preemptions < case.get("min_preemptions", 0):
        raise CheckFailed(
            f"at least {case['min_preemptions']} preemption(s) in this pool",
            f"report['preemptions'] == {preemptions}",
            NO_PREEMPTION + "; and count it",
        )
    if preemptions and case.get("no_preemption"):
        raise CheckFailed(
            "no preemption: the pool is large enough for everybody",
            f"report['preemptions'] == {preemptions}",
            "a request is preempted although blocks are free: preempt only when a block is needed and none is free, "
            "and take back the blocks of requests that are done",
        )
    steps, history = plain_int(report, "steps"), report.get("history")
    if type(history) is not list or len(history) != steps or not all(type(record) is dict for record in history):
        raise CheckFailed(f"report['history']: one record (a dict) a step, {steps}", f"{str(history)[:80]}")
    for at, record in enumerate(history):
        for key in ("running", "reserved", "allocated", "used"):
            if type(record.get(key)) is not int:
                raise CheckFailed(f"history[{at}][{key!r}] as a plain int", f"{record.get(key)!r}")
        if record["running"] > max_batch:
            raise CheckFailed(
                f"at most {max_batch} requests running in a step (max_batch)",
                f"history[{at}]['running'] == {record['running']}",
                "max_batch is not looked at where a request is admitted",
            )
        if "block_budget" in case and record["allocated"] > case["block_budget"] * size:
            raise CheckFailed(
                f"at most {case['block_budget']} blocks of {size} in use, {case['block_budget'] * size} token slots",
                f"history[{at}]['allocated'] == {record['allocated']} tokens",
                "more blocks are handed out than the budget has",
            )
