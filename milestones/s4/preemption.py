"""Section 8: preemption by recompute."""

from collections import deque
from typing import Any

from ai_playground.chapter import Request
from checking.check import CheckFailed
from milestones.s4.answers import Case, names_of
from milestones.s4.ledger import Ledger, scripted, scripted_output, scripted_prompt


def probe_preempt(engine: Any, case: Case) -> Any:
    """Play a scene: make room, hand out tokens, let requests finish and come back; note the state after each act."""
    cls = names_of(engine, "preempt")["PreemptingEngine"]
    server = cls.__new__(cls)  # its __init__ is section 5's; the scene brings all that `_make_room` needs
    requests = []
    for seq_id, (prompt_len, output_len) in enumerate(case["requests"]):
        prompt = scripted_prompt(seq_id, prompt_len)
        requests.append(Request(seq_id, prompt, 64, 64, scripted_output(prompt, output_len)))
    server.manager = Ledger(case["num_blocks"])
    server.running = requests[: case["running"]]
    server.waiting = deque(requests[case["running"] :])
    server.done, server.history, server.preemptions = [], [], 0
    server.max_batch, server.continuous = 8, True
    for request in server.running:  # the newest token of a running request is not in the cache yet
        server.manager.admit(request.id, len(request.tokens) - 1)
    notes = []
    for act, *arguments in case["acts"]:
        prefilled = []
        if act == "make_room":
            server._make_room()
        elif act == "decode":
            for request in server.running:
                request.output.append(scripted(request.tokens))
        elif act == "finish":
            request = requests[arguments[0]]
            server.running.remove(request)
            server.manager.release(request.id)
        elif act == "admit":
            while server.waiting and server.manager.can_admit(len(server.waiting[0].tokens)):
                request = server.waiting.popleft()
                server.manager.admit(request.id, len(request.tokens))
                prefilled.append([request.id, request.tokens])
                request.output.append(scripted(request.tokens))
                server.running.append(request)
        notes.append(
            {
                "running": [request.id for request in server.running],
                "waiting": [request.id for request in server.waiting],
                "preemptions": server.preemptions,
                "held": sorted(server.manager.lengths.items()),
                "prefilled": prefilled,
                "tokens": [[list(request.prompt), list(request.output)] for request in requests],
            }
        )
        notes[-1]["held"] = [list(item) for item in notes[-1]["held"]]
    return notes


def judge_preempt(case: Case, notes: Any) -> None:
    lengths = [output_len for _, output_len in case["requests"]]
    prompts = [scripted_prompt(i, prompt_len) for i, (prompt_len, _) in enumerate(case["requests"])]
    played = []
    for (act, *_), expected, note in zip(case["acts"], case["expected"], notes, strict=True):
        played.append(act)
        after = f"after {', '.join(played)}"
        if act == "decode":
            for seq_id in note["running"]:
                lengths[seq_id] += 1
        elif act == "admit":
            for seq_id, _ in note["prefilled"]:
                lengths[seq_id] += 1
        outputs = [scripted_output(prompt, n) for prompt, n in zip(prompts, lengths, strict=True)]
        for seq_id, (prompt, output) in enumerate(note["tokens"]):
            if prompt == prompts[seq_id] and output == outputs[seq_id]:
                continue
            cause = "preemption gives back blocks, never tokens: `prompt` and `output` stay as they are"
            if len(prompt) > len(prompts[seq_id]):
                cause = (
                    "tokens folded into the prompt: `request.tokens` is prompt + output already, so the re-admission "
                    "prefills the folded ones twice, and once more at each further preemption"
                )
            elif len(output) < len(outputs[seq_id]):
                cause = "the output was lost: what has been generated is kept, only its keys and values are recomputed"
            raise CheckFailed(
                f"request {seq_id}: prompt of {len(prompts[seq_id])} tokens, output of {len(outputs[seq_id])} {after}",
                f"prompt of {len(prompt)} tokens, output of {len(output)}",
                cause,
            )
        if act != "make_room":
            continue
        running, waiting, preemptions = expected
        if note["running"] != running:
            lost = [i for i in running if i not in note["running"]]
            kept = [i for i in note["running"] if i not in running]
            if lost and kept:
                cause = (
                    "the youngest running request is preempted, the last of `running`: the oldest keeps its progress"
                )
            elif lost:
                cause = "preempt only when no block is free for the next token, and one request at a time"
            else:
                cause = "a preempted request leaves `running`, also when it is the one that asked for the slot"
            raise CheckFailed(f"running {running} {after}", f"running {note['running']}", cause)
        if note["waiting"] != waiting:
            cause = "a preempted request goes to the front of `waiting`: it came before all who have not yet started"
            missing = [i for i in waiting if i not in note["waiting"]]
            if missing:
                cause = f"request {missing[0]} is lost: a preempted request must come back"
            raise CheckFailed(f"waiting {waiting} {after}", f"waiting {note['waiting']}", cause)
        held = [[i, len(prompts[i]) + lengths[i]] for i in sorted(running)]
        if note["held"] != held:
            extra = [i for i, _ in note["held"] if i not in running]
            raise CheckFailed(
                f"slots held {after}: {held} (request, slots)",
                f"{note['held']}",
                f"request {extra[0]} was preempted and still holds its blocks: release them"
                if extra
                else "every request that goes on running gets exactly one slot for its next token",
            )
        if note["preemptions"] != preemptions:
            raise CheckFailed(
                f"preemptions = {preemptions} {after}", repr(note["preemptions"]), "count each preemption once"
            )
