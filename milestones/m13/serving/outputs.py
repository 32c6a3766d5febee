"""Each output of `serve` is what its request would get alone; and if not, what others have to do with it."""

from typing import Any

from ai_playground.workspace import default_workspace
from checking.causes import REPLAYED
from checking.check import CheckFailed, will_be_shown
from checking.reference import build_model, first_divergence, greedy
from checking.tokens import FIRST_INDEX, judge_tokens

SHIPPED = str(default_workspace())


_BATCH = (
    "if greedy_paged passes, look at what a batch adds: each row has its own token, position and block table, and a "
    "block never belongs to two requests (handed out while in use, given back twice, or a table kept after it)"
)


_SECOND_BATCH = (
    "the first batch is right, and those that got its blocks and places are not: is a block given back twice, handed "
    "out while it is in use, or a table kept after it was given back? Each block is free or has one owner"
)


_EQUAL_PROMPTS = (
    "equal prompts are requests of their own: is something kept by the prompt (a dict, a set, ==) that must be kept by "
    "the request's number?"
)


def judge_outputs(
    case: dict[str, Any], requests: list[list[int]], outputs: Any, lookups: list[list[int]] | None
) -> None:
    if type(outputs) is not list or len(outputs) != len(requests):
        found = f"{len(outputs)} of them" if type(outputs) is list else f"{str(outputs)[:80]}"
        raise CheckFailed(
            f"report['outputs']: a list of {len(requests)} outputs, one a request",
            found,
            _EQUAL_PROMPTS
            if type(outputs) is list and len(outputs) == len(set(map(tuple, requests)))
            else "a request is lost between waiting, running and done: a preempted one must come back",
        )
    spec = case.get("model") or {"workspace": SHIPPED}
    size, eos_id = case.get("block_size", 16), case.get("eos_id")
    for index, (prompt, output) in enumerate(zip(requests, outputs, strict=True)):
        try:
            judge_tokens(spec, prompt, case["max_new"], output, f"outputs[{index}]", eos_id, block_size=size)
        except CheckFailed as failure:
            if not will_be_shown.get():
                raise
            if failure.cause == FIRST_INDEX or failure.cause.startswith("the prompt contains the end token"):
                raise  # nobody else has to do with it
            in_a_batch = _cause_in_a_batch(case, requests, outputs, lookups, index)
            if in_a_batch:
                failure.cause = in_a_batch
            elif len(requests) > 1 and failure.found.startswith("token ") and REPLAYED not in failure.cause:
                failure.cause = _BATCH
            if "are missing" in failure.found and not case.get("no_preemption"):
                failure.cause = (
                    f"is a preempted request lost? It must wait, come back and get the rest. Or {failure.cause}"
                )
            if _wrong_where_equal(case, requests, outputs):
                failure.cause = f"the wrong outputs are those of equal prompts. {_EQUAL_PROMPTS}"
            if len(requests) > 1:
                right = [i for i in range(len(requests)) if not _is_wrong(case, requests[i], outputs[i])]
                failure.found += _which_are_right(right, len(requests))
                if failure.cause == _BATCH and right == list(range(case.get("max_batch", 8))):
                    failure.cause = _SECOND_BATCH
            raise


def _which_are_right(right: list[int], requests: int) -> str:
    """Half of a diagnosis: what is right, beside what is wrong."""
    if not right:
        return "; no output is right"
    every = len(right) == requests - 1
    return "; all other outputs are right" if every else f"; right are only the outputs {' '.join(map(str, right))}"


def _wrong_where_equal(case: dict[str, Any], requests: list[list[int]], outputs: list[Any]) -> bool:
    """Whether the wrong outputs are those of prompts that come more than once, and others are right."""
    wrong = [i for i in range(len(requests)) if _is_wrong(case, requests[i], outputs[i])]
    return len(wrong) < len(set(map(tuple, requests))) and all(requests.count(requests[i]) > 1 for i in wrong)


def _is_wrong(case: dict[str, Any], prompt: list[int], output: Any) -> bool:
    model = build_model(case.get("model") or {"workspace": SHIPPED})
    if type(output) is not list or any(type(t) is not int or not 0 <= t < model.config.vocab_size for t in output):
        return True
    right = greedy(model, prompt, case["max_new"], case.get("eos_id"))
    return len(output) != len(right) or first_divergence(model, prompt, output) is not None


def _cause_in_a_batch(
    case: dict[str, Any], requests: list[list[int]], outputs: list[Any], lookups: list[list[int]] | None, index: int
) -> str:
    """What other requests, and the request's own preemptions, have to do with its wrong output; "" if unknown."""
    others = (i for i in range(len(outputs)) if requests[i] != requests[index])
    twin = next((i for i in others if not _is_wrong(case, requests[index], outputs[i])), None)
    if type(outputs[index]) is not list or any(type(token) is not int for token in outputs[index]):
        return ""
    if twin is not None:
        return (
            f"the tokens of request {index} are in outputs[{twin}]: the outputs must be in the order of the requests, "
            "not in that in which they end"
        )
    lost = _lost_beginning(case, requests[index], outputs[index])
    if lost:
        return (
            f"its first {lost} token(s) are lost: what was made before a preemption must stay in the output, though it "
            "goes through the model again with the prompt"
        )
    if mixed := _mixed_rows(case, requests, outputs):
        return mixed
    alone = sum(prompt[0] == requests[index][0] for prompt in requests) == 1  # else its prefills are not told apart
    if (
        lookups is not None
        and "silent" in case.get("model", {})
        and alone
        and (again := _recomputed_wrongly(case, requests[index], outputs[index], lookups))
    ):
        return again
    return ""


def _lost_beginning(case: dict[str, Any], prompt: list[int], output: list[int]) -> int:
    """How many tokens too late the output begins, if it is right otherwise; else 0."""
    model = build_model(case.get("model") or {"workspace": SHIPPED})
    n = min(2 * case["max_new"], model.config.max_seq_len - len(prompt))
    right = greedy(model, prompt, n)
    shown = output[: case["max_new"]][:6]
    return next((k for k in range(1, n - len(shown) + 1) if len(shown) > 1 and right[k : k + len(shown)] == shown), 0)


def never_ended(case: dict[str, Any], requests: list[list[int]], lookups: list[list[int]] | None) -> CheckFailed:
    """What was seen of an engine until it was stopped."""
    expected = f"an end: {len(requests)} requests of {case['max_new']} new tokens"
    cause = (
        "a loop that never ends. If nobody can get on: are blocks given back when a request is done or preempted, and "
        "is a request that never fits refused? If somebody goes on for ever: is a request done exactly with its last "
        "token, also when a prefill makes it, or can it run past its last token?"
    )
    if lookups is None or "silent" not in case.get("model", {}):
        return CheckFailed(expected, "it did not end and was stopped", cause)
    total, ideal = sum(map(len, lookups)), sum(len(prompt) + case["max_new"] - 1 for prompt in requests)
    firsts = [prompt[0] for prompt in requests]
    starts = [sum(first in tokens for tokens in lookups) for first in firsts]
    found = f"it did not end and was stopped, with {total} tokens through the model where {ideal} are enough if nobody "
    found += "is preempted"
    if 0 in starts:
        found += f"; request {starts.index(0)} was never admitted"
    for index, prompt in enumerate(requests):
        again = _recomputed_wrongly(case, prompt, [], lookups) if starts[index] > 1 == firsts.count(prompt[0]) else ""
        if again and "were the right ones" not in again:
            return CheckFailed(expected, found, f"request {index}: {again}")
    return CheckFailed(expected, found, cause)


def _mixed_rows(case: dict[str, Any], requests: list[list[int]], outputs: list[Any]) -> str:
    """Whether wrong tokens are other requests' right ones of the same moment."""
    model = build_model(case.get("model") or {"workspace": SHIPPED})
    found, expected = {}, {}
    for index, (prompt, output) in enumerate(zip(requests, outputs, strict=True)):
        plain = type(output) is list and all(type(token) is int and token < model.config.vocab_size for token in output)
        first = first_divergence(model, prompt, output[: case["max_new"]]) if plain else None
        if first is not None:
            found[index], expected[index] = first.found, first.expected
    if len(found) > 1 and sorted(found.values()) == sorted(expected.values()):
        index = next(iter(found))
        other = next(other for other, token in expected.items() if token == found[index])
        return (
            f"rows of the batch are mixed up: outputs[{index}] has the token that outputs[{other}] should get. Which "
            "row belongs to which request, also after one has left the batch?"
        )
    return ""


def _recomputed_wrongly(case: dict[str, Any], prompt: list[int], output: Any, lookups: list[list[int]]) -> str:
    """Whether what goes through the model after a preemption is the prompt and the tokens made so far; "" if unseen."""
    if "silent" not in case.get("model", {}):
        return ""
    speaking = case["model"]["config"]["vocab_size"] - case["model"]["silent"]
    runs = []
    for tokens in lookups:
        if prompt[0] in tokens:
            start = tokens.index(prompt[0])
            end = next((at for at in range(start + 1, len(tokens)) if tokens[at] >= speaking), len(tokens))
            runs.append(tokens[start:end])
    if len(runs) < 2:
        return ""
    right = prompt + greedy(build_model(case["model"]), prompt, case["max_new"], case.get("eos_id"))
    for number, run in enumerate(runs[1:], 1):
        if run == right[: len(run)] and len(run) > len(prompt):
            continue
        where = f"after preemption {number} of this request {len(run)} tokens were recomputed"
        if run == prompt:
            return f"{where}, the prompt only: the tokens that it had made are lost, or are made and counted again"
        longest = next(at for at, token in enumerate([*run, -1]) if at >= len(right) or token != right[at])
        for length in range(1, longest + 1):
            if longest >= length and run[longest : longest + length] == run[longest - length : longest]:
                return (
                    f"{where}, and {length} of them twice: those before position {longest} follow there once more. "
                    "What was made before an earlier preemption is folded into the prompt again"
                )
        return (
            f"{where}, and they are not its prompt and its tokens so far: right up to position {longest}, then "
            f"{run[longest : longest + 3]} where {right[longest : longest + 3]} belongs"
        )
    first = first_divergence(build_model(case["model"]), prompt, output)
    made_again = first is not None and first.found == output[first.position - 1]
    if made_again and first.position == len(runs[-1]) - len(prompt) + 1:
        return (
            f"after preemption {len(runs) - 1} of this request {len(runs[-1])} tokens were recomputed, one too few: "
            "its newest token, made but not yet in the cache, belongs to them"
        )
    return (
        f"the request was preempted {len(runs) - 1} time(s), and the tokens that were recomputed were the right ones. "
        "Were they at their positions (counted from the beginning of the sequence), in the blocks of a new table, and "
        "does the next step feed the newest token at the next position?"
    )
