"""Each record of the history against the run that was seen.

A record belongs to the end of its step. Which passes a step has is the engine's business (prefill and decode in one,
or a step for each; requests admitted before or after the decode), and so is whether room for the next token is made
at the end of a step or at the beginning of the next, and whether a prefill counts as taking part. So the judge looks
for a way through the run, from one pause between two passes to a later one, on which every field of every record is
what it must be there.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from checking.check import CheckFailed
from milestones.m13.serving.seen import Event, Seen

FIELDS = ("running", "reserved", "allocated", "used")
_MEANING = {
    "running": (
        "the requests that took part in the step: counted before those that are done leave the batch, and after those "
        "that were preempted have left it"
    ),
    "reserved": "len(prompt) + max_new of each request that is still running when the step is over, and of no other",
    "allocated": (
        "the blocks in the tables of those that are still running when the step is over, times block_size (if it is "
        "more: is memory reserved ahead, or not given back?)"
    ),
    "used": (
        "the tokens in the cache of those that are still running when the step is over: prompt and output of each, but "
        "for the newest token, which is not cached yet"
    ),
}


@dataclass(frozen=True)
class _State:
    """What holds memory between two calls, if just these requests do."""

    requests: frozenset[int]
    reserved: int
    least: int  # blocks for what is cached
    most: int  # blocks for one token more of each
    used: int

    def agrees(self, record: dict[str, int], size: int, ignored: str) -> bool:
        allocated = record["allocated"]
        return (
            (ignored == "reserved" or record["reserved"] == self.reserved)
            and (ignored == "used" or record["used"] == self.used)
            and (
                ignored == "allocated"
                or (allocated % size == 0 and self.least <= allocated // size <= self.most)
            )
        )  # fmt: skip


class _Judge:
    def __init__(self, case: dict[str, Any], requests: list[list[int]], outputs: list[list[int]], seen: Seen) -> None:
        self.size, self.max_new, self.seen = case.get("block_size", 16), case["max_new"], seen
        self.requests, self.outputs = requests, outputs
        self.fed: list[list[tuple[int, Event]]] = [[] for _ in range(seen.calls)]
        for index, events in enumerate(seen.events):
            for event in events:
                self.fed[event.call].append((index, event))
        self.decode_calls = [call for call, fed in enumerate(self.fed) if any(event.decodes for _, event in fed)]
        # Who missed a decode step may have been prefilled again, with the one token that was not in its blocks.
        self.came_back = {
            (index, event.call)
            for index, events in enumerate(seen.events)
            for before, event in pairwise(events)
            if self._decoded_between(before.call, event.call)
        }
        self.states = [self._states(call) for call in range(-1, seen.calls)]  # states[i]: before call i

    def _states(self, call: int) -> list[_State]:
        """How memory can be held after a call: who is done may hold it still, who begins again may have lost it.

        So may who misses a decode step that others get: an engine that leaves a preempted request's blocks until they
        are needed may find them all again. Who begins in the next call may have been admitted.
        """
        certain, done, doubtful, admitted = [], [], [], []
        for index, events in enumerate(self.seen.events):
            last = next((at for at in range(len(events) - 1, -1, -1) if events[at].call <= call), None)
            if last is None:
                admitted += [(index, 0)] if events and events[0].call == call + 1 else []
                continue
            event = events[last]
            one = (index, event.cached)
            if last + 1 == len(events):  # its last tokens went through
                done += [one] if event.call == call else []
            elif events[last + 1].begins or (index, events[last + 1].call) in self.came_back:
                doubtful.append(one)
            else:
                certain.append(one)
        return [
            self._state([*certain, *doubtful[:kept], *extra, *new])
            for kept in range(len(doubtful) + 1)  # the youngest are preempted first
            for extra in (([], done) if done else ([],))
            for new in (([], admitted) if admitted else ([],))
        ]

    def _decoded_between(self, call: int, later: int) -> bool:
        """Whether anybody was decoded in a call after one and before a later one."""
        return bisect_left(self.decode_calls, later) > bisect_right(self.decode_calls, call)

    def _state(self, held: list[tuple[int, int]]) -> _State:
        return _State(
            frozenset(index for index, _ in held),
            sum(len(self.requests[index]) + self.max_new for index, _ in held),
            sum(-(-cached // self.size) for _, cached in held),
            sum(-(-((cached or len(self.requests[index])) + 1) // self.size) for index, cached in held),
            sum(cached for _, cached in held),
        )

    def running(self, start: int, end: int, states: list[_State]) -> tuple[int, int] | None:
        """The least and the most that can have taken part in a step with the calls from `start` up to `end`.

        None if that is no step: a request would be decoded twice in it.
        """
        events = [pair for call in range(start, end) for pair in self.fed[call]]
        decoded = [index for index, event in events if event.decodes and (index, event.call) not in self.came_back]
        if len(decoded) > len(set(decoded)):
            return None
        fed = {index for index, _ in events}
        return len(decoded), max(len(fed | state.requests) for state in states) if fed else 0

    def path(self, history: list[dict[str, int]], ignored: str = "") -> list[int]:
        """The end of each step, in calls, as far as there is a way."""
        ways: list[dict[int, int]] = [{0: 0}]  # for each record: the ends that can be, and where each came from
        for record in history:
            ends: dict[int, int] = {}
            for end in range(min(ways[-1]), self.seen.calls + 1):
                states = [state for state in self.states[end] if state.agrees(record, self.size, ignored)]
                for start in sorted((start for start in ways[-1] if start <= end and states), reverse=True):
                    bounds = self.running(start, end, states)
                    if bounds and (ignored == "running" or bounds[0] <= record["running"] <= bounds[1]):
                        ends[end] = start
                        break
            if not ends:
                break
            ways.append(ends)
        at = max(ways[-1])
        found = []
        for ends in reversed(ways[1:]):
            found.append(at)
            at = ends[at]
        return found[::-1]

    def expected(self, name: str, record: dict[str, int], start: int, end: int) -> str:
        """What a field must be in a step with these calls, or "" if it is."""
        states = [state for state in self.states[end] if state.agrees(record, self.size, name)]
        if name == "running":
            ranges = {self.running(start, end, states) or (0, 0)}
        elif name == "allocated":
            ranges = {(state.least * self.size, state.most * self.size) for state in states}
        else:
            ranges = {(getattr(state, name),) * 2 for state in states}
        step = self.size if name == "allocated" else 1
        if any(record[name] in range(low, high + 1, step) for low, high in ranges):
            return ""
        return " or ".join(str(low) if low == high else f"{low} to {high}" for low, high in sorted(ranges))


def judge_records(case: dict[str, Any], requests: list[list[int]], report: dict[str, Any], seen: Seen) -> None:
    """Whether there is a way through the run on which every record is right.

    Raises:
        CheckFailed: there is none; it names the field if one field alone is in the way.
    """
    history = report["history"]
    if seen.lost or not history:
        return
    judge = _Judge(case, requests, report["outputs"], seen)
    ends = judge.path(history)
    if len(ends) == len(history) and ends[-1] == seen.calls:
        return
    if len(history) > 1 and all(record == history[0] for record in history):
        raise CheckFailed(
            "a record of its own for each step",
            f"{len(history)} times the same: {history[0]}",
            "one dict is changed and appended again and again: make a new one in each step",
        )
    if len(ends) == len(history):
        raise CheckFailed(
            f"a history up to the last of the {seen.calls} passes through the model",
            f"{len(history)} records that end at pass {ends[-1]}",
            "one record a step, made at its end: is the last one missing, or is each made before its step?",
        )
    for name in FIELDS:
        without = judge.path(history, name)
        if len(without) < len(history) or without[-1] != seen.calls:
            continue
        for at, (start, end) in enumerate(zip([0, *without], without, strict=False)):
            expected = judge.expected(name, history[at], start, end)
            if expected:
                raise CheckFailed(
                    f"history[{at}][{name!r}] == {expected}", f"{history[at][name]}", f"{name!r} is {_MEANING[name]}"
                )
    at = len(ends)
    raise CheckFailed(
        "a history that agrees with the run that was seen",
        f"history[{at}] == {history[at]}, which it was at no time" + (f" after history[{at - 1}]" if at else ""),
        "one record a step, at its end, in the order of the steps; "
        + "; ".join(f"{name!r} is {meaning}" for name, meaning in _MEANING.items()),
    )
