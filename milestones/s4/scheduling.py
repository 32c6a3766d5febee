"""Section 5: the engine, step by step."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor

from ai_playground.chapter import TOY, Request
from checking.check import CheckFailed
from milestones.s4.answers import Case, names_of, stand_ins
from milestones.s4.ledger import Ledger, one_hot, scripted, scripted_output, scripted_prompt


def probe_engine(engine: Any, case: Case) -> Any:
    """Serve the case's requests with the student's scheduling, and write down what happens in each step."""
    names = names_of(engine, "engine")
    contexts: dict[int, list[int]] = {}
    ledgers: list[Ledger] = []

    def manager(num_blocks: int, block_size: int) -> Ledger:
        ledgers.append(Ledger(num_blocks, block_size))
        return ledgers[0]

    def scripted_prefill(_model: Any, _pool: Any, ledger: Ledger, seq_id: int, tokens: list[int]) -> Tensor:
        contexts[seq_id] = list(tokens)
        ledger._note("prefill", seq_id, list(tokens))
        return one_hot([scripted(tokens)])[0]

    def scripted_decode(_model: Any, _pool: Any, ledger: Ledger, ids: list[int], tokens: list[int]) -> Tensor:
        for seq_id, token in zip(ids, tokens, strict=True):
            contexts[seq_id].append(token)
        ledger._note("decode", list(ids), [[len(contexts[i]), ledger.lengths.get(i, 0)] for i in ids])
        return one_hot([scripted(contexts[seq_id]) for seq_id in ids])

    requests = [
        Request(i, scripted_prompt(i, prompt_len), max_new, stop_after)
        for i, (prompt_len, max_new, stop_after) in enumerate(case["requests"])
    ]
    stand_in = SimpleNamespace(config=TOY)
    steps: list[dict[str, Any]] = []
    with stand_ins(names, BlockManager=manager, prefill=scripted_prefill, decode=scripted_decode):
        server = names["Engine"](
            stand_in, case["num_blocks"], block_size=1, max_batch=case["max_batch"], continuous=case["continuous"]
        )
        for request in requests:
            server.submit(request)
        log = ledgers[0].log
        while (server.waiting or server.running) and len(steps) < 500:
            log.clear()
            server.step()
            steps.append(
                {
                    "events": [list(event) for event in log],
                    "running": [request.id for request in server.running],
                    "waiting": [request.id for request in server.waiting],
                }
            )
            if not any(event[0] in ("prefill", "decode") for event in log):
                break  # it stands still
    return {
        "steps": steps,
        "outputs": [request.output for request in requests],
        "done": [request.id for request in server.done],
        "held": sorted(ledgers[0].lengths),
    }


class Replay:
    """The requests as they must stand, event by event of the engine's log.

    Attributes:
        made: tokens of each request so far.
        held: slots of each admitted request.
        waiting, running: as the engine's must be.
        at: which step this is, in words.
        busy_before: who was running when the step began.
        admitted: who was admitted in the step.
        free: slots free right after the last admission of the step.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.asked: dict[int, list[int]] = dict(enumerate(case["requests"]))  # prompt length, max_new, stop_after
        self.made = dict.fromkeys(self.asked, 0)
        self.held: dict[int, int] = {}
        self.waiting, self.running = list(self.asked), list[int]()

    def begin(self, number: int) -> None:
        self.at = f"in step {number}"
        self.busy_before, self.admitted = list(self.running), list[int]()
        self._count_free()

    def take(self, kind: str, what: list[Any]) -> None:
        """What an event changes."""
        if kind == "admit":
            seq_id = self.waiting.pop(0)
            self.running.append(seq_id)
            self.admitted.append(seq_id)
            self.held[seq_id] = self.prompt_len(seq_id)
            self._count_free()
        elif kind == "prefill":
            self.made[what[0]] += 1
        elif kind == "append":
            self.held[what[0]] += 1
        elif kind == "release":
            self.held.pop(what[0])
            self.running.remove(what[0])
        elif kind == "decode":
            for seq_id in what[0]:
                self.made[seq_id] += 1

    def prompt_len(self, seq_id: int) -> int:
        return self.asked[seq_id][0]

    def length(self, seq_id: int) -> int:
        """How many tokens a request gets in all."""
        return self.asked[seq_id][2]

    def finished(self, seq_id: int) -> bool:
        return self.made[seq_id] >= self.length(seq_id)

    def _count_free(self) -> None:
        self.free = self.case["num_blocks"] - sum(self.held.values())


def judge_engine(case: Case, found: Any) -> None:
    """Section 5: admission, decode and retirement keep their rules in every step, and every request gets its tokens."""
    replay = Replay(case)
    for number, step in enumerate(found["steps"], start=1):
        replay.begin(number)
        for kind, *what in step["events"]:
            if kind == "admit":
                _judge_turn(replay, what[0])
            elif kind == "release":
                _judge_release(replay, what[0])
            elif kind == "decode":
                _judge_batch(replay, *what)
            replay.take(kind, what)
        decodes = sum(kind == "decode" for kind, *_ in step["events"])
        _judge_one_decode(replay, decodes)
        _judge_policy(replay)
        _judge_places(replay)
        _judge_progress(replay, decodes)
        _judge_retired(replay)
        _judge_queues(replay, number, step)
    _judge_end(replay)
    _judge_outputs(replay, found["outputs"])
    _judge_done(replay, found)


def _judge_turn(replay: Replay, seq_id: int) -> None:
    """Admission: first come, first served."""
    if not replay.waiting or seq_id != replay.waiting[0]:
        raise CheckFailed(
            f"request {replay.waiting[0] if replay.waiting else 'none'} to be admitted next {replay.at}",
            f"request {seq_id}",
            "first come, first served: only the head of `waiting` may be admitted, nobody overtakes",
        )


def _judge_release(replay: Replay, seq_id: int) -> None:
    """Retirement: only a finished request gives its blocks back; here nobody is preempted."""
    if not replay.finished(seq_id):
        raise CheckFailed(
            f"request {seq_id} to keep its blocks {replay.at}: it has {replay.made[seq_id]} of its tokens",
            "its blocks released",
            "only a finished request retires",
        )


def _judge_batch(replay: Replay, ids: list[int], lengths: list[list[int]]) -> None:
    """Decode: one token for every running request, each with a slot for its newest; none that is finished.

    Args:
        replay: the requests before it.
        ids: who is decoded.
        lengths: the tokens and the slots of each.
    """
    at, max_batch = replay.at, replay.case["max_batch"]
    late = [seq_id for seq_id in ids if replay.finished(seq_id)]
    if late:
        raise CheckFailed(
            f"request {late[0]} not to be decoded {at}: its prefill made its last token",
            "it was decoded once more: one token too many",
            "a prefill makes a token too: retire what is finished before decoding, not only after",
        )
    if len(ids) > max_batch:
        raise CheckFailed(f"at most {max_batch} sequences {at}", f"{len(ids)}", "max_batch limits the batch")
    if sorted(ids) != sorted(replay.running):
        raise CheckFailed(
            f"one token {at} for every running request, {sorted(replay.running)}",
            f"a decode of {sorted(ids)}",
            "a request admitted in this step is running too: it decodes in this step with all the others",
        )
    for seq_id, (tokens, slots) in zip(ids, lengths, strict=True):
        if tokens != slots:
            raise CheckFailed(
                f"a slot for each of the {tokens} tokens of request {seq_id} when it decodes {at}",
                f"{slots} slots",
                "make room first, then decode: once a step, after the admissions",
            )


def _judge_one_decode(replay: Replay, decodes: int) -> None:
    """A step is one decode of the whole batch."""
    if decodes > 1:
        raise CheckFailed(f"one decode {replay.at}, for the whole batch", f"{decodes} decodes", "batch the sequences")


def _judge_policy(replay: Replay) -> None:
    """Static batching forms a new batch only when the last one is done to its last request."""
    if not replay.case["continuous"] and replay.admitted and replay.busy_before:
        raise CheckFailed(
            f"static batching to admit nobody {replay.at}: {replay.busy_before} are still running",
            f"{replay.admitted} admitted",
            "with continuous=False a new batch is formed only when the last one has finished",
        )


def _judge_places(replay: Replay) -> None:
    """Admission goes on while the batch has a place and the free blocks hold the head of `waiting`."""
    case, busy_before = replay.case, replay.busy_before
    continuous, max_batch = case["continuous"], case["max_batch"]
    places = max_batch - len(busy_before) - len(replay.admitted)
    open_to_new = continuous or not busy_before
    if open_to_new and replay.waiting and places > 0 and replay.prompt_len(replay.waiting[0]) <= replay.free:
        raise CheckFailed(
            f"request {replay.waiting[0]} to be admitted {replay.at}: {places} of {max_batch} places and "
            f"{replay.free} slots were free",
            f"it is still waiting; admitted were {replay.admitted}, and {busy_before} were running before",
            "this is static batching: a place that becomes free is filled in the very next step"
            if continuous and busy_before
            else "admit until the batch is full or the head of `waiting` does not fit, not one a step",
        )


def _judge_progress(replay: Replay, decodes: int) -> None:
    """No step goes by without a decode while somebody is running."""
    if not decodes and replay.running:
        raise CheckFailed(
            f"a decode {replay.at} of {replay.running}", "none", "the step: admit, retire, make room, decode, retire"
        )


def _judge_retired(replay: Replay) -> None:
    """Retirement comes as soon as the last token is made."""
    finished = [seq_id for seq_id in replay.running if replay.finished(seq_id)]
    if finished:
        raise CheckFailed(
            f"request {finished[0]} to retire {replay.at}: it has all its {replay.length(finished[0])} tokens",
            "it still holds its blocks after the step",
            "retire as soon as the last token is made: its place and blocks are for whoever waits",
        )


def _judge_queues(replay: Replay, number: int, step: dict[str, Any]) -> None:
    """Each request is waiting, running or done: never two of them, never none."""
    running, waiting = replay.running, replay.waiting
    if sorted(step["running"]) != sorted(running) or step["waiting"] != waiting:
        raise CheckFailed(
            f"running {running} and waiting {waiting} after step {number}",
            f"running {step['running']} and waiting {step['waiting']}",
            "who holds blocks is in `running`, who does not yet is in `waiting`, nobody in both or neither",
        )


def _judge_end(replay: Replay) -> None:
    """The engine goes on until nobody is left."""
    if replay.waiting or replay.running:
        raise CheckFailed(
            "every step to make a token until all requests are done",
            f"a step that made none, with {replay.running} running and {replay.waiting} waiting",
            "the engine stands still: what does `_admit` wait for?",
        )


def _judge_outputs(replay: Replay, outputs: list[list[int]]) -> None:
    """Batching changes nothing: each request gets the tokens that it gets alone."""
    for seq_id in replay.asked:
        right = scripted_output(scripted_prompt(seq_id, replay.prompt_len(seq_id)), replay.length(seq_id))
        if outputs[seq_id] != right:
            raise CheckFailed(
                f"{len(right)} tokens for request {seq_id}, the ones it gets when it is alone: {_some(right)}",
                f"{len(outputs[seq_id])} tokens: {_some(outputs[seq_id])}",
                "tokens are handed to the requests in the order in which the batch was formed",
            )


def _judge_done(replay: Replay, found: Any) -> None:
    """At the end every request is in `done` and every block is free."""
    if sorted(found["done"]) != sorted(replay.asked) or found["held"]:
        raise CheckFailed(
            f"all {len(replay.asked)} requests in `done` at the end, and no block held",
            f"done {sorted(found['done'])}, blocks held by {found['held']}",
            "retiring: out of `running`, blocks released, into `done`",
        )


def _some(items: list[Any], n: int = 6) -> str:
    return f"{items[:n]}"[:-1] + (", ...]" if len(items) > n else "]")
