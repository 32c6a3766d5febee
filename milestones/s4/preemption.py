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


class Scene:
    """The requests of a case as they must stand: no token is ever lost or added, whatever is preempted.

    Attributes:
        prompts: of each request.
        lengths: output tokens of each request so far.
        after: when this is, in words: the acts so far.
    """

    def __init__(self, case: Case) -> None:
        self.prompts = [scripted_prompt(i, prompt_len) for i, (prompt_len, _) in enumerate(case["requests"])]
        self.lengths = [output_len for _, output_len in case["requests"]]
        self._played: list[str] = []

    def play(self, act: str, note: dict[str, Any]) -> None:
        """Count the tokens that an act makes: one for each running request, or for each prefilled one."""
        self._played.append(act)
        self.after = f"after {', '.join(self._played)}"
        made = {"decode": note["running"], "admit": [seq_id for seq_id, _ in note["prefilled"]]}
        for seq_id in made.get(act, []):
            self.lengths[seq_id] += 1


def judge_preempt(case: Case, notes: Any) -> None:
    """Section 8: preemption frees the youngest request's blocks and changes no token."""
    scene = Scene(case)
    for (act, *_), expected, note in zip(case["acts"], case["expected"], notes, strict=True):
        scene.play(act, note)
        _judge_tokens(scene, note["tokens"])
        if act == "make_room":
            running, waiting, preemptions = expected
            _judge_running(scene, note["running"], running)
            _judge_waiting(scene, note["waiting"], waiting)
            _judge_slots(scene, note["held"], running)
            _judge_count(scene, note["preemptions"], preemptions)


def _judge_tokens(scene: Scene, tokens: list[list[list[int]]]) -> None:
    """A request's tokens are kept, and prompt and output apart: only its keys and values are computed again."""
    for seq_id, (prompt, output) in enumerate(tokens):
        right_prompt = scene.prompts[seq_id]
        right = scripted_output(right_prompt, scene.lengths[seq_id])
        if prompt == right_prompt and output == right:
            continue
        cause = "preemption gives back blocks, never tokens: `prompt` and `output` stay as they are"
        if len(prompt) > len(right_prompt):
            cause = (
                "tokens folded into the prompt: `request.tokens` is prompt + output already, so the re-admission "
                "prefills the folded ones twice, and once more at each further preemption"
            )
        elif len(output) < len(right):
            cause = "the output was lost: what has been generated is kept, only its keys and values are recomputed"
        raise CheckFailed(
            f"request {seq_id}: prompt of {len(right_prompt)} tokens, output of {len(right)} {scene.after}",
            f"prompt of {len(prompt)} tokens, output of {len(output)}",
            cause,
        )


def _judge_running(scene: Scene, found: list[int], right: list[int]) -> None:
    """When there is no block left, the youngest running request is preempted, and no more than it takes."""
    if found == right:
        return
    lost = [i for i in right if i not in found]
    kept = [i for i in found if i not in right]
    if lost and kept:
        cause = "the youngest running request is preempted, the last of `running`: the oldest keeps its progress"
    elif lost:
        cause = "preempt only when no block is free for the next token, and one request at a time"
    else:
        cause = "a preempted request leaves `running`, also when it is the one that asked for the slot"
    raise CheckFailed(f"running {right} {scene.after}", f"running {found}", cause)


def _judge_waiting(scene: Scene, found: list[int], right: list[int]) -> None:
    """A preempted request goes to the front of `waiting`."""
    if found == right:
        return
    cause = "a preempted request goes to the front of `waiting`: it came before all who have not yet started"
    missing = [i for i in right if i not in found]
    if missing:
        cause = f"request {missing[0]} is lost: a preempted request must come back"
    raise CheckFailed(f"waiting {right} {scene.after}", f"waiting {found}", cause)


def _judge_slots(scene: Scene, found: list[list[int]], running: list[int]) -> None:
    """A preempted request gives back all its blocks, and every other has a slot for each of its tokens."""
    right = [[i, len(scene.prompts[i]) + scene.lengths[i]] for i in sorted(running)]
    if found != right:
        extra = [i for i, _ in found if i not in running]
        raise CheckFailed(
            f"slots held {scene.after}: {right} (request, slots)",
            f"{found}",
            f"request {extra[0]} was preempted and still holds its blocks: release them"
            if extra
            else "every request that goes on running gets exactly one slot for its next token",
        )


def _judge_count(scene: Scene, found: Any, right: int) -> None:
    """`preemptions` counts them."""
    if found != right:
        raise CheckFailed(f"preemptions = {right} {scene.after}", repr(found), "count each preemption once")
