"""What went through the model while `serve` ran, against its report, its pool and first come, first served."""

from itertools import pairwise
from typing import Any

from checking.check import CheckFailed
from checking.reference import build_model, prompt_ids
from milestones.m13.serving.history import NO_PREEMPTION
from milestones.m13.serving.records import judge_records
from milestones.m13.serving.seen import Seen, readings, shared


def judge_seen(case: dict[str, Any], report: dict[str, Any], lookups: list[list[int]]) -> None:
    """What went through the model, against the report and against first come, first served.

    Each prompt begins with a token that the model never writes: whenever it is looked up, that request is being
    (re)computed from its beginning.
    """
    if case["max_new"] == 0:
        return
    requests, outputs = [prompt_ids(prompt) for prompt in case["requests"]], report["outputs"]
    ideal = [len(prompt) + len(output) - 1 for prompt, output in zip(requests, outputs, strict=True)]
    total = sum(map(len, lookups))
    least = sum(ideal) - sum(shared(requests))
    if total < least:
        raise CheckFailed(
            f"at least {least} tokens through the model",
            f"{total}, looked up in the embedding",
            "the tokens do not come from the model, or not all of them",
        )
    if "silent" not in case.get("model", {}):
        if case.get("min_preemptions") and (total == sum(ideal) or not report["preemptions"]):
            raise CheckFailed(
                "at least one preemption: this pool cannot hold the first batch to its end",
                f"report['preemptions'] == {report['preemptions']}, and {total - sum(ideal)} tokens recomputed",
                NO_PREEMPTION,
            )
        return
    first = None
    for seen in readings(requests, outputs, lookups):
        if seen is None:
            return
        try:
            _judge_reading(case, report, requests, seen, total)
            return  # right in one reading is right
        except CheckFailed as failure:
            first = first or failure
    raise first


def _judge_reading(
    case: dict[str, Any], report: dict[str, Any], requests: list[list[int]], seen: Seen, total: int
) -> None:
    """One way to read the calls, of which there may be several where prompts begin alike."""
    outputs, order = report["outputs"], seen.order
    ideal = [len(prompt) + len(output) - 1 for prompt, output in zip(requests, outputs, strict=True)]
    _judge_prefills(case, order)
    _judge_preemptions(case, report, order, total - sum(ideal) - seen.again)
    again = sum(ideal[index] for at, index in enumerate(order) if index in order[:at])
    # Prompts that are prefilled together may be padded to the longest of them.
    longest = max(map(len, requests)) if len(order) == len(requests) else max(ideal)
    padding = sum(longest - len(requests[index]) for index in order)
    if total > 1.25 * (sum(ideal) + again) + len(requests) + padding:
        raise CheckFailed(
            f"about {sum(ideal)} tokens through the model, and at most {again} more after preemptions",
            f"{total} tokens, looked up in the embedding",
            "the cache is not used: tokens that are in it go through the model again",
        )
    if case.get("no_preemption") and case.get("continuous", True) and not seen.lost:
        _judge_admissions(case, outputs, seen)
    judge_records(case, requests, report, seen)


def _judge_prefills(case: dict[str, Any], order: list[int]) -> None:
    requests = case["requests"]
    seen = {requests[index][0] for index in order}  # of prompts that begin alike one is enough
    missing = [index for index, prompt in enumerate(requests) if prompt[0] not in seen]
    if missing:
        raise CheckFailed(
            "each prompt through the model, from its first token on",
            f"the prompt of request {missing[0]} never went through it",
            "the tokens do not come from the model that was passed as `model=`",
        )
    first = list(dict.fromkeys(order))
    if first != sorted(first):
        raise CheckFailed(
            "prefills in the order of the requests, first come, first served",
            f"the order {first}",
            "first come, first served: one that does not fit yet holds back those behind it, and a preempted one goes "
            "to the front",
        )
    if order.count(0) > 1:
        raise CheckFailed(
            "request 0, the oldest, is never preempted",
            f"it was computed from its beginning {order.count(0)} times",
            "the youngest running request is preempted, so that the oldest always gets on (progress)",
        )
    if case.get("equal"):
        for at, index in enumerate(order):
            late = next((j for j in order[:at] if j > index and index in order[:at] and j not in order[at:]), None)
            if late is not None:
                raise CheckFailed(
                    f"request {late} preempted before request {index}, which is older",
                    f"request {index} was preempted while request {late} stayed",
                    "the youngest running request is preempted, and a preempted one goes to the front of those "
                    "that wait: first come, first served",
                )


def _judge_preemptions(case: dict[str, Any], report: dict[str, Any], order: list[int], more: int) -> None:
    """The count of preemptions against those that show.

    A preempted request mostly goes through the model from its beginning again, and then the count must be exact. One
    that finds blocks of its own again (prefix sharing, blocks that are kept until they are needed) shows only in
    tokens that were computed `more` often than this explains, and in the history: there the count has bounds.
    """
    again, reported = len(order) - len(case["requests"]), report["preemptions"]
    came_back = max(again, _came_back(case, report["history"]))
    shown = came_back + max(0, more)
    if case.get("no_preemption") and again > 0:
        twice = next(index for index in order if order.count(index) > 1)
        raise CheckFailed(
            "no preemption: the pool is large enough for everybody",
            f"{again}; request {twice} was recomputed",
            "a request is preempted although blocks are free: preempt only when a block is needed and none is free, "
            "and take back the blocks of requests that are done",
        )
    if shown < case.get("min_preemptions", 0):
        raise CheckFailed(
            f"at least {case['min_preemptions']} preemption(s) in this pool",
            f"{shown} seen (a preempted request goes through the model again), report['preemptions'] == {reported}",
            NO_PREEMPTION,
        )
    # Blocks found again at the end of a block cost no token, and one that leaves as another comes hides in the sums:
    # the upper bound is for the cases that are made for it.
    if reported < again or (reported > shown and "min_preemptions" in case):
        most, or_more = (f" to {shown}", ", or from where blocks were left") if shown > again else ("", "")
        raise CheckFailed(
            f"report['preemptions'] == {again}{most}: so often was a request recomputed from its beginning{or_more}",
            f"{reported}",
            "count a preemption exactly when a request gives its blocks back and goes back to waiting",
        )


def _came_back(case: dict[str, Any], history: list[dict[str, Any]]) -> int:
    """How often, at least, a request came back to the running ones, as the reserved tokens of the history say.

    Each request adds its own slab once when it is admitted first. What is added beyond that was added again.
    """
    slabs = [len(prompt) + case["max_new"] for prompt in case["requests"]]
    reserved = [0, *(record["reserved"] for record in history)]
    added = sum(max(0, after - before) for before, after in pairwise(reserved))
    return max(0, -(-(added - sum(slabs)) // max(slabs)))


def _judge_admissions(case: dict[str, Any], outputs: list[list[int]], seen: Seen) -> None:
    """When requests joined the batch, by the tokens that had been decoded before."""
    max_batch = case.get("max_batch", 8)
    decodes = [len(output) - 1 for output in outputs]
    latest = _latest_admissions(decodes, max_batch)
    for index, decoded in zip(seen.order, seen.decoded, strict=True):
        finished = index - max_batch + 1
        if finished > 0 and decoded < sum(sorted(decodes[:index])[:finished]):
            raise CheckFailed(
                f"request {index} admitted when {finished} request(s) are done: max_batch is {max_batch}",
                f"it was admitted after {decoded} decoded tokens, when they cannot be done",
                "max_batch is not looked at where a request is admitted",
            )
        if decoded > latest[index]:
            raise CheckFailed(
                f"request {index} admitted as soon as there is a place, after about {latest[index]} decoded tokens",
                f"it was admitted after {decoded}",
                "static batching: a place in the batch must be filled at the next step, not when all of it is done"
                if index >= max_batch
                else "no batching: requests must run together, up to max_batch of them",
            )


def _latest_admissions(decodes: list[int], max_batch: int) -> list[int]:
    """For each request, the decoded tokens before its admission, if a place stays empty for two steps; and slack."""
    latest, running, free_from, done, step = [], [], [0] * max_batch, 0, 0
    slack = 2 * max_batch + max_batch * (max_batch + 1) // 2  # for engines that admit one request a step
    waiting = list(decodes)
    while waiting:
        while waiting and free_from and min(free_from) <= step:
            free_from.remove(min(free_from))
            latest.append(done + slack)
            running.append(waiting.pop(0))
        done += len(running)
        step += 1
        free_from += [step + 2 for left in running if left <= 1]
        running = [left - 1 for left in running if left > 1]
    return latest


def judge_memory(case: dict[str, Any], memory: list[int]) -> None:
    token = build_model(case["model"]).config.kv_values_per_token * 4
    pool = case["block_budget"] * case["block_size"] * token
    most = max(memory, default=0)
    limit = 1.75 * pool + 64 * 1024
    if most > limit:
        raise CheckFailed(
            f"at most {limit / 1024:.0f} KiB kept between two passes: a pool of {case['block_budget']} blocks of "
            f"{case['block_size']} tokens is {pool // 1024} KiB",
            f"{most // 1024} KiB",
            "the block budget is not what the cache really takes: keys and values live outside the pool, or the pool "
            "is larger than the budget",
        )
    growing = sum(after - before > token / 2 for before, after in pairwise(memory))
    if growing > len(memory) / 2:
        raise CheckFailed(
            "memory that stands ready from the start, or grows by blocks",
            f"memory that grew in {growing} of {len(memory)} passes",
            "the cache grows token by token and is not paged: keys and values must be written into the pool's blocks",
        )
