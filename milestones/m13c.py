"""M13c: `serve` gives each request the tokens it would get alone, whatever is batched and preempted around it."""

from itertools import pairwise
from typing import Any

from ai_playground.workspace import default_workspace
from milestones import probes
from milestones.harness import Check, CheckFailed, will_be_shown
from milestones.seed import SEED, ids
from milestones.shapes import HEAVY_CACHE, SHAPES

READ = "milestones/m13c.md"
SHIPPED = str(default_workspace())
TEXTS = ("Once upon a time", "One day, a little girl", "There was a small dog who")
EOS = 16
WORDS = "there was a little boy who lived near the forest and had a red ball"


_BATCH = (
    "if greedy_paged passes, look at what a batch adds: each row has its own token, position and block table, and a "
    "block never belongs to two requests (handed out while in use, given back twice, or a table kept after it)"
)
_SECOND_BATCH = (
    "the first batch is right, and those that got its blocks and places are not: is a block given back twice, handed "
    "out while it is in use, or a table kept after it was given back? Each block is free or has one owner"
)
_NO_PREEMPTION = (
    "the budget is not kept, or memory is reserved ahead: when a running request needs a block and none is free, the "
    "youngest gives its blocks back, waits, and is recomputed"
)


def judge_serve(case: dict[str, Any], evidence: Any) -> None:
    """All requests complete with exactly their own tokens, and what was seen of the run agrees with the report."""
    from milestones.reference import prompt_ids

    requests = [prompt_ids(prompt) for prompt in case["requests"]]
    report = evidence["report"]
    if evidence.get("stopped"):
        raise _never_ended(case, requests, evidence.get("lookups"))
    if type(report) is not dict or "not_plain" in report:
        found = "None" if report is None else str(report)[:100]
        raise CheckFailed("a report: a dict with completed, preemptions, outputs, steps and history", found)
    _judge_outputs(case, requests, report.get("outputs"), evidence.get("lookups"))
    _judge_report(case, requests, report)
    if evidence.get("requests_after") != requests:
        raise CheckFailed(
            "the caller's prompts as they were",
            "prompts that the engine wrote into",
            "copy a prompt before you extend it: the list belongs to the caller",
        )
    if evidence.get("lookups") is not None:
        _judge_seen(case, report, evidence["lookups"])
    if case.get("observe") == "memory":
        _judge_memory(case, evidence["memory"])


def _judge_outputs(
    case: dict[str, Any], requests: list[list[int]], outputs: Any, lookups: list[list[int]] | None
) -> None:
    from milestones.judges import REPLAYED, judge_tokens

    if type(outputs) is not list or len(outputs) != len(requests):
        found = f"{len(outputs)} of them" if type(outputs) is list else f"{str(outputs)[:80]}"
        raise CheckFailed(
            f"report['outputs']: a list of {len(requests)} outputs, one a request",
            found,
            "a request is lost between waiting, running and done: a preempted one must come back",
        )
    spec = case.get("model") or {"workspace": SHIPPED}
    size, eos_id = case.get("block_size", 16), case.get("eos_id")
    for index, (prompt, output) in enumerate(zip(requests, outputs, strict=True)):
        try:
            judge_tokens(spec, prompt, case["max_new"], output, f"outputs[{index}]", eos_id, block_size=size)
        except CheckFailed as failure:
            if not will_be_shown.get():
                raise
            in_a_batch = _cause_in_a_batch(case, requests, outputs, lookups, index)
            if in_a_batch:
                failure.cause = in_a_batch
            elif len(requests) > 1 and failure.found.startswith("token ") and REPLAYED not in failure.cause:
                failure.cause = _BATCH
            if "are missing" in failure.found and not case.get("no_preemption"):
                failure.cause = (
                    f"is a preempted request lost? It must wait, come back and get the rest. Or {failure.cause}"
                )
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


def _is_wrong(case: dict[str, Any], prompt: list[int], output: Any) -> bool:
    from milestones.reference import build_model, first_divergence, greedy

    model = build_model(case.get("model") or {"workspace": SHIPPED})
    if type(output) is not list or any(type(t) is not int or not 0 <= t < model.config.vocab_size for t in output):
        return True
    right = greedy(model, prompt, case["max_new"], case.get("eos_id"))
    return len(output) != len(right) or first_divergence(model, prompt, output) is not None


def _cause_in_a_batch(
    case: dict[str, Any], requests: list[list[int]], outputs: list[Any], lookups: list[list[int]] | None, index: int
) -> str:
    """What other requests, and the request's own preemptions, have to do with its wrong output; "" if unknown."""
    others = (i for i in range(len(outputs)) if i != index)
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
    if lookups is not None and (again := _recomputed_wrongly(case, requests[index], outputs[index], lookups)):
        return again
    return ""


def _lost_beginning(case: dict[str, Any], prompt: list[int], output: list[int]) -> int:
    """How many tokens too late the output begins, if it is right otherwise; else 0."""
    from milestones.reference import build_model, greedy

    model = build_model(case.get("model") or {"workspace": SHIPPED})
    n = min(2 * case["max_new"], model.config.max_seq_len - len(prompt))
    right = greedy(model, prompt, n)
    shown = output[: case["max_new"]][:6]
    return next((k for k in range(1, n - len(shown) + 1) if len(shown) > 1 and right[k : k + len(shown)] == shown), 0)


def _never_ended(case: dict[str, Any], requests: list[list[int]], lookups: list[list[int]] | None) -> CheckFailed:
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
    starts = [sum(prompt[0] in tokens for tokens in lookups) for prompt in requests]
    found = f"it did not end and was stopped, with {total} tokens through the model where {ideal} are enough if nobody "
    found += "is preempted"
    if 0 in starts:
        found += f"; request {starts.index(0)} was never admitted"
    for index, prompt in enumerate(requests):
        again = _recomputed_wrongly(case, prompt, [], lookups) if starts[index] > 1 else ""
        if again and "were the right ones" not in again:
            return CheckFailed(expected, found, f"request {index}: {again}")
    return CheckFailed(expected, found, cause)


def _mixed_rows(case: dict[str, Any], requests: list[list[int]], outputs: list[Any]) -> str:
    """Whether wrong tokens are other requests' right ones of the same moment."""
    from milestones.reference import build_model, first_divergence

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
    """Whether what goes through the model after a preemption is the prompt and the tokens made so far."""
    from milestones.reference import build_model, first_divergence, greedy

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
    if first is not None and first.position == len(runs[-1]) - len(prompt) + 1:
        return (
            f"after preemption {len(runs) - 1} of this request {len(runs[-1])} tokens were recomputed, one too few: "
            "its newest token, made but not yet in the cache, belongs to them"
        )
    return (
        f"the request was preempted {len(runs) - 1} time(s), and the tokens that were recomputed were the right ones. "
        "Were they at their positions (counted from the beginning of the sequence), in the blocks of a new table, and "
        "does the next step feed the newest token at the next position?"
    )


def _judge_report(case: dict[str, Any], requests: list[list[int]], report: dict[str, Any]) -> None:
    from milestones.judges import plain_int

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
            _NO_PREEMPTION + "; and count it",
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


def _judge_seen(case: dict[str, Any], report: dict[str, Any], lookups: list[list[int]]) -> None:
    """What went through the model, against the report and against first come, first served.

    Each prompt begins with a token that the model never writes: whenever it is looked up, that request is being
    (re)computed from its beginning.
    """
    from milestones.reference import prompt_ids

    if case["max_new"] == 0:
        return
    requests, outputs = [prompt_ids(prompt) for prompt in case["requests"]], report["outputs"]
    ideal = [len(prompt) + len(output) - 1 for prompt, output in zip(requests, outputs, strict=True)]
    total = sum(map(len, lookups))
    if total < sum(ideal):
        raise CheckFailed(
            f"at least {sum(ideal)} tokens through the model",
            f"{total}, looked up in the embedding",
            "the tokens do not come from the model, or not all of them",
        )
    if "silent" not in case.get("model", {}):
        if case.get("min_preemptions") and (total == sum(ideal) or not report["preemptions"]):
            raise CheckFailed(
                "at least one preemption: this pool cannot hold the first batch to its end",
                f"report['preemptions'] == {report['preemptions']}, and {total - sum(ideal)} tokens recomputed",
                _NO_PREEMPTION,
            )
        return
    order: list[int] = []  # the request of each prefill, in the order in which they came
    before: list[int] = []  # how many tokens had gone through the model before it
    seen = 0
    owner = {prompt[0]: index for index, prompt in enumerate(requests)}
    for tokens in lookups:
        ranked = [(token, at) for at, token in enumerate(tokens) if token in owner]
        for token, at in sorted(ranked, key=lambda pair: owner[pair[0]]):  # one call has no order
            order.append(owner[token])
            before.append(seen + at)
        seen += len(tokens)
    _judge_prefills(case, report, order)
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
    if case.get("no_preemption") and case.get("continuous", True):
        _judge_admissions(case, outputs, order, before)


def _judge_prefills(case: dict[str, Any], report: dict[str, Any], order: list[int]) -> None:
    requests = case["requests"]
    missing = [index for index in range(len(requests)) if index not in order]
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
    preemptions = len(order) - len(requests)
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
    if case.get("no_preemption") and preemptions:
        raise CheckFailed(
            "no preemption: the pool is large enough for everybody",
            f"{preemptions}; request {next(i for i in order if order.count(i) > 1)} was recomputed",
            "a request is preempted although blocks are free: preempt only when a block is needed and none is free, "
            "and take back the blocks of requests that are done",
        )
    if preemptions < case.get("min_preemptions", 0):
        raise CheckFailed(
            f"at least {case['min_preemptions']} preemption(s) in this pool",
            f"{preemptions} seen (a preempted request goes through the model again from its beginning), "
            f"report['preemptions'] == {report['preemptions']}",
            _NO_PREEMPTION,
        )
    if report["preemptions"] != preemptions:
        raise CheckFailed(
            f"report['preemptions'] == {preemptions}: so often was a request recomputed from its beginning",
            f"{report['preemptions']}",
            "count a preemption exactly when a request gives its blocks back and goes back to waiting",
        )


def _judge_admissions(case: dict[str, Any], outputs: list[list[int]], order: list[int], before: list[int]) -> None:
    """When requests joined the batch, by the decode steps that had gone before."""
    requests, max_batch = case["requests"], case.get("max_batch", 8)
    decodes = [len(output) - 1 for output in outputs]
    latest = _latest_admissions(decodes, max_batch)
    longest = max(map(len, requests), default=0)
    prefilled, padding = 0, 0  # prompts that are prefilled together may be padded to the longest of them
    for index, seen in zip(order, before, strict=True):
        decoded = seen - prefilled
        prefilled += len(requests[index])
        padding += longest - len(requests[index])
        finished = index - max_batch + 1
        if finished > 0 and decoded < sum(sorted(decodes[:index])[:finished]):
            raise CheckFailed(
                f"request {index} admitted when {finished} request(s) are done: max_batch is {max_batch}",
                f"it was admitted after {decoded} decoded tokens, when they cannot be done",
                "max_batch is not looked at where a request is admitted",
            )
        if decoded > latest[index] + padding:
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


def _judge_memory(case: dict[str, Any], memory: list[int]) -> None:
    from milestones.reference import build_model

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


def judge_static(case: dict[str, Any], evidence: Any) -> None:
    """The same tokens in fewer steps than static batching takes, and in no fewer than possible."""
    judge_serve(case, evidence["continuous"])
    judge_serve(case | {"continuous": False}, evidence["static"])
    continuous, static = (evidence[kind]["report"] for kind in ("continuous", "static"))
    decoded = sum(len(output) - 1 for output in continuous["outputs"])
    least = max(-(-decoded // case.get("max_batch", 8)), max(len(output) for output in continuous["outputs"]) - 1)
    most = len(evidence["static"]["lookups"])
    if continuous["steps"] < least:
        raise CheckFailed(f"at least {least} steps for {decoded} decoded tokens", f"{continuous['steps']} steps")
    if static["steps"] > most:
        raise CheckFailed(f"at most {most} steps with continuous=False: so many passes", f"{static['steps']} steps")
    if continuous["steps"] >= static["steps"]:
        raise CheckFailed(
            f"fewer steps than the {static['steps']} of static batching",
            f"{continuous['steps']} steps with continuous=True",
            "a place in the batch must be filled at the next step, not when the whole batch is done (continuous "
            "batching); with continuous=False only then",
        )


def judge_refused(case: dict[str, Any], evidence: Any) -> None:
    """A ValueError that names the request and the numbers."""
    from milestones.judges import judge_refusal

    judge_refusal(evidence, case["names"], case["label"])


_SILENT = 30  # so many tokens the model never writes; each prompt begins with one of its own
_SPEAKING = SHAPES["gqa"]["vocab_size"] - _SILENT
_GQA = {"config": SHAPES["gqa"], "seed": 2, "silent": _SILENT}
_VOCAB, _LIMIT = SHAPES["gqa"]["vocab_size"], SHAPES["gqa"]["max_seq_len"]


def _prompts(lengths: list[int], seed: int) -> list[list[int]]:
    return [[_VOCAB - 1 - at, *ids(length - 1, _SPEAKING, seed * 100 + at)] for at, length in enumerate(lengths)]


def random_case(lengths: list[int], draw: int, max_new: int, budget: int, size: int, **more: Any) -> dict[str, Any]:
    """A case on the random GQA model, observed."""
    batch = f", batches of {more['max_batch']}" if "max_batch" in more else ""
    lengths_text = " ".join(map(str, lengths))
    few = "a prompt of" if len(lengths) == 1 else f"{len(lengths)} prompts of"
    return {
        "label": f"{few} {lengths_text} tokens, {max_new} new ones each, {budget} blocks of {size}{batch}",
        "requests": _prompts(lengths, draw),
        "max_new": max_new,
        "block_budget": budget,
        "block_size": size,
        "model": _GQA,
        "observe": "tokens",
    } | more


def fresh_cases(seed: int) -> tuple[dict[str, Any], ...]:
    """Requests that nobody has seen: other lengths, tokens, weights, pools and block sizes."""
    cases = []
    for at, size in enumerate((4, 7)):
        lengths = [1 + ids(8, 30, seed + at)[i] for i in range(8)]
        max_new = 12 + (seed + at) % 9
        enough = -(-(max(lengths) + max_new) // size)
        budget = enough + 1 + (seed >> 3) % 4
        more = {"max_batch": 3 + (seed + at) % 5, "model": _GQA | {"seed": seed + at}, "seed": seed}
        cases.append(random_case(lengths, seed + at, max_new, budget, size, **more))
    return tuple(cases)


_MEMORY_MODEL = {"config": HEAVY_CACHE, "seed": 6, "silent": _SILENT}

CHECKS = (
    Check(
        name="m13c.roomy_pool",
        claim="batching alone changes nothing: requests of many lengths join and leave one batch",
        probe=probes.serve,
        cases=(
            random_case([5], 1, 20, 40, 16, no_preemption=True),
            random_case([6, 6], 2, 10, 40, 4, no_preemption=True),
            random_case([3, 9, 5], 3, 10, 40, 4, no_preemption=True),
            *(
                random_case([1, 15, 16, 17, 2, 31, 32, 33, 7, 48, 3, 9], 1, 18, 600, size, max_batch=max_batch)
                | {"model": model, "observe": observe, "no_preemption": True}
                for max_batch, size, model, observe in (
                    (3, 4, {"config": SHAPES["mha"], "seed": 4, "silent": _SILENT}, "tokens"),
                    (8, 16, {"config": SHAPES["tied"], "seed": 4}, None),
                    (12, 1, {"config": SHAPES["mqa"], "seed": 4, "silent": _SILENT}, None),
                )
            ),
        ),
        judge=judge_serve,
        read=READ,
    ),
    Check(
        name="m13c.continuous",
        claim="continuous batching takes fewer steps than static batching for the same tokens",
        probe=probes.serve_both,
        cases=(
            random_case([5 + index % 7 for index in range(20)], 8, 32, 96, 16, eos_id=EOS, no_preemption=True)
            | {"label": f"20 requests that end at different times (eos_id={EOS}), batches of 8"},
        ),
        judge=judge_static,
        read=READ,
    ),
    Check(
        name="m13c.tight_pool",
        claim="preemption changes nothing, however often and whenever it strikes the same request",
        probe=probes.serve,
        cases=(
            random_case([8, 8, 8], 7, 9, 4, 4, max_batch=1, no_preemption=True),
            random_case([15, 14, 13], 6, 3, 2, 16, min_preemptions=1),
            random_case([8, 8], 0, 18, 8, 4, min_preemptions=1, equal=True),
            random_case([1, 1, 1], 4, 14, 15, 1, min_preemptions=2, equal=True),
            random_case([4, 4, 4, 4], 1, 24, 7, 4, min_preemptions=4, equal=True),
            random_case([16, 16, 16], 2, 18, 3, 16, min_preemptions=2, equal=True),
            random_case([7, 6, 5, 8, 3, 9, 4, 10], 5, 12, 6, 4, min_preemptions=3),
            random_case([5, 9, 13, 2, 7, 11], 3, 20, 9, 4, min_preemptions=5),
        ),
        judge=judge_serve,
        read=READ,
    ),
    Check(
        name="m13c.edges",
        claim="no request, no token, one token, a pool of exactly one request, and an end token",
        probe=probes.serve,
        cases=(
            {"label": "no requests at all", "requests": [], "max_new": 4, "model": _GQA},
            random_case([3, 4], 1, 0, 4, 16) | {"label": "max_new=0"},
            random_case([16, 1, 17, 32], 2, 1, 2, 16) | {"label": "max_new=1: the prefill is all there is"},
            random_case([8, 8, 8], 3, 9, 1, 16, no_preemption=True, max_batch=1)
            | {"label": "prompt and output fill one block exactly: the last token is never cached"},
            random_case([_LIMIT - 20] * 3, 4, 20, _LIMIT // 16, 16)
            | {"label": "three requests as long as the model allows, a pool for one"},
            random_case([6, 5, 4, 7], 5, 30, 9, 4, eos_id=EOS)
            | {"label": f"requests that end early (eos_id={EOS}), in a pool that preempts"},
        ),
        judge=judge_serve,
        read=READ,
    ),
    Check(
        name="m13c.sixteen_requests",
        claim="16 requests on the trained model, in the default pool, complete with their own tokens and preempt",
        probe=probes.serve,
        cases=(
            {
                "label": "serve(16 prompts, max_new=16, block_budget=None)",
                "requests": [f"{TEXTS[index % len(TEXTS)]} {WORDS[: index * 4]}" for index in range(16)],
                "max_new": 16,
                "observe": "tokens",
                "min_preemptions": 1,
            },
        ),
        judge=judge_serve,
        read=READ,
        limit=40.0,
    ),
    Check(
        name="m13c.first_come_first_served",
        claim="requests are admitted in the order in which they came",
        probe=probes.serve,
        cases=(
            random_case([20, 2, 2, 20, 2, 2, 2, 2], 9, 10, 9, 4, max_batch=3),
            random_case([2, 30, 2, 2, 30, 2, 2, 2], 10, 10, 11, 4, max_batch=3),
        ),
        judge=judge_serve,
        read=READ,
    ),
    Check(
        name="m13c.block_budget",
        claim="the block budget is what the cache really takes",
        probe=probes.serve,
        cases=(
            random_case([15] * 5, 11, 34, 5, 16, observe="memory", min_preemptions=1, model=_MEMORY_MODEL, equal=True),
        ),
        judge=judge_serve,
        read=READ,
    ),
    Check(
        name="m13c.fresh_requests",
        claim="requests, pools and weights that were drawn for this run work too",
        probe=probes.serve,
        cases=fresh_cases(SEED),
        judge=judge_serve,
        read=READ,
    ),
    Check(
        name="m13c.refusals",
        claim="what cannot be served is refused, with the request and the numbers, before anything is served",
        probe=probes.serve_refusal,
        cases=tuple(
            {"label": label, "names": names, "model": _GQA, "max_new": 8, "block_budget": 40} | call
            for label, names, call in (
                ("request 1 is empty", ["1", "empty"], {"requests": [[5], [], [6]]}),
                (f"request 2 has token {_VOCAB}", ["2", str(_VOCAB)], {"requests": [[5], [6], [_VOCAB]]}),
                (
                    f"request 0 has {_LIMIT - 7} tokens, + 8 exceed {_LIMIT}",
                    ["0", str(_LIMIT - 7), str(_LIMIT)],
                    {"requests": [ids(_LIMIT - 7, _VOCAB, seed=2), [5]]},
                ),
                (
                    "request 1 needs 3 blocks of 16, and the pool has 2: it could never finish",
                    ["1", "2"],
                    {"requests": [[5], ids(30, _VOCAB, seed=3)], "block_budget": 2, "block_size": 16},
                ),
                (
                    "request 0 fits at first, but not with its last cached token",
                    ["0", "1"],
                    {"requests": [ids(9, _VOCAB, seed=4)], "block_budget": 1, "block_size": 16, "max_new": 9},
                ),
            )
        ),
        judge=judge_refused,
        read=READ,
    ),
)
