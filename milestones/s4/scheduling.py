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


def judge_engine(case: Case, found: Any) -> None:
    """Follow the log step by step, and ask of each whether the rules of section 5 were kept."""
    asked = dict(enumerate(case["requests"]))
    made = dict.fromkeys(asked, 0)  # tokens of each request so far
    held: dict[int, int] = {}  # slots of each admitted request
    waiting, running = list(asked), []  # as they must stand
    max_batch, continuous = case["max_batch"], case["continuous"]
    for number, step in enumerate(found["steps"], start=1):
        at = f"in step {number}"
        busy_before, admitted = list(running), []
        free_slots = None  # slots free right after the last admission of this step
        decoded = [event for event in step["events"] if event[0] == "decode"]
        for kind, *what in step["events"]:
            if kind in ("admit", "prefill"):
                free_slots = None
            elif free_slots is None:
                free_slots = case["num_blocks"] - sum(held.values())
            if kind == "admit":
                seq_id = what[0]
                if not waiting or seq_id != waiting[0]:
                    raise CheckFailed(
                        f"request {waiting[0] if waiting else 'none'} to be admitted next {at}",
                        f"request {seq_id}",
                        "first come, first served: only the head of `waiting` may be admitted, nobody overtakes",
                    )
                waiting.pop(0)
                running.append(seq_id)
                admitted.append(seq_id)
                held[seq_id] = asked[seq_id][0]
            elif kind == "prefill":
                made[what[0]] += 1
            elif kind == "append":
                held[what[0]] += 1
            elif kind == "release":
                if made[what[0]] < asked[what[0]][2]:
                    raise CheckFailed(
                        f"request {what[0]} to keep its blocks {at}: it has {made[what[0]]} of its tokens",
                        "its blocks released",
                        "only a finished request retires",
                    )
                held.pop(what[0])
                running.remove(what[0])
            elif kind == "decode":
                ids, lengths = what
                late = [seq_id for seq_id in ids if made[seq_id] >= asked[seq_id][2]]
                if late:
                    raise CheckFailed(
                        f"request {late[0]} not to be decoded {at}: its prefill made its last token",
                        "it was decoded once more: one token too many",
                        "a prefill makes a token too: retire what is finished before decoding, not only after",
                    )
                if len(ids) > max_batch:
                    raise CheckFailed(
                        f"at most {max_batch} sequences {at}", f"{len(ids)}", "max_batch limits the batch"
                    )
                if sorted(ids) != sorted(running):
                    raise CheckFailed(
                        f"one token {at} for every running request, {sorted(running)}",
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
                    made[seq_id] += 1
        if len(decoded) > 1:
            raise CheckFailed(f"one decode {at}, for the whole batch", f"{len(decoded)} decodes", "batch the sequences")
        if not continuous and admitted and busy_before:
            raise CheckFailed(
                f"static batching to admit nobody {at}: {busy_before} are still running",
                f"{admitted} admitted",
                "with continuous=False a new batch is formed only when the last one has finished",
            )
        places = max_batch - len(busy_before) - len(admitted)
        free = case["num_blocks"] - sum(held.values()) if free_slots is None else free_slots
        if (continuous or not busy_before) and waiting and places > 0 and asked[waiting[0]][0] <= free:
            raise CheckFailed(
                f"request {waiting[0]} to be admitted {at}: {places} of {max_batch} places and {free} slots were free",
                f"it is still waiting; admitted were {admitted}, and {busy_before} were running before",
                "this is static batching: a place that becomes free is filled in the very next step"
                if continuous and busy_before
                else "admit until the batch is full or the head of `waiting` does not fit, not one a step",
            )
        if not decoded and running:
            raise CheckFailed(
                f"a decode {at} of {running}", "none", "the step: admit, retire, make room, decode, retire"
            )
        finished = [seq_id for seq_id in running if made[seq_id] >= asked[seq_id][2]]
        if finished:
            raise CheckFailed(
                f"request {finished[0]} to retire {at}: it has all its {asked[finished[0]][2]} tokens",
                "it still holds its blocks after the step",
                "retire as soon as the last token is made: its place and blocks are for whoever waits",
            )
        if sorted(step["running"]) != sorted(running) or step["waiting"] != waiting:
            raise CheckFailed(
                f"running {running} and waiting {waiting} after step {number}",
                f"running {step['running']} and waiting {step['waiting']}",
                "who holds blocks is in `running`, who does not yet is in `waiting`, nobody in both or neither",
            )
    if waiting or running:
        raise CheckFailed(
            "every step to make a token until all requests are done",
            f"a step that made none, with {running} running and {waiting} waiting",
            "the engine stands still: what does `_admit` wait for?",
        )
    for seq_id, (prompt_len, _, stop_after) in asked.items():
        right = scripted_output(scripted_prompt(seq_id, prompt_len), stop_after)
        if found["outputs"][seq_id] != right:
            raise CheckFailed(
                f"{len(right)} tokens for request {seq_id}, the ones it gets when it is alone: {_some(right)}",
                f"{len(found['outputs'][seq_id])} tokens: {_some(found['outputs'][seq_id])}",
                "tokens are handed to the requests in the order in which the batch was formed",
            )
    if sorted(found["done"]) != sorted(asked) or found["held"]:
        raise CheckFailed(
            f"all {len(asked)} requests in `done` at the end, and no block held",
            f"done {sorted(found['done'])}, blocks held by {found['held']}",
            "retiring: out of `running`, blocks released, into `done`",
        )


def _some(items: list[Any], n: int = 6) -> str:
    return f"{items[:n]}"[:-1] + (", ...]" if len(items) > n else "]")
