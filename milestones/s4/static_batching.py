"""Section 7: static batching by pencil."""

from typing import Any

from checking.check import CheckFailed
from milestones.s4.answers import Case, names_of
from milestones.s4.tensors import number


def probe_static_steps(engine: Any, case: Case) -> Any:
    return number(names_of(engine, "static_steps")["static_steps"](list(case["stop_after"]), case["max_batch"]))


def judge_static_steps(case: Case, found: Any) -> None:
    if type(found) is int and found == case["expected"]:
        return
    batches = -(-len(case["stop_after"]) // case["max_batch"])
    cause = "a static batch lasts as long as its longest member, and the next one starts when it is done"
    if found == case["expected"] + batches:
        cause = "the first step of a request gives two tokens: one from its prefill and one from its decode"
    raise CheckFailed(f"{case['expected']} steps (int)", repr(found), cause)
