"""M13c: `serve` gives each request the tokens it would get alone, whatever is batched and preempted around it."""

from typing import Any

from ai_playground.workspace import default_workspace
from milestones import probes
from milestones.harness import Check, CheckFailed
from milestones.m13b import ids
from milestones.shapes import SHAPES

READ = "milestones/m13c.md"
SHIPPED = str(default_workspace())
TEXTS = ("Once upon a time", "One day, a little girl", "There was a small dog who")
WORDS = "there was a little boy who lived near the forest and had a red ball"


def judge_serve(case: dict[str, Any], evidence: Any) -> None:
    """All requests complete with exactly their own tokens; preempted as often as the case asks for."""
    from milestones.judges import judge_tokens, plain_int
    from milestones.reference import prompt_ids

    requests = [prompt_ids(prompt) for prompt in case["requests"]]
    if type(evidence) is not dict or "not_plain" in evidence:
        found = "None" if evidence is None else str(evidence)[:100]
        raise CheckFailed("a report: a dict with completed, preemptions, outputs, steps and history", found)
    outputs = evidence.get("outputs")
    if type(outputs) is not list or len(outputs) != len(requests):
        found = f"{len(outputs)} of them" if type(outputs) is list else f"{str(outputs)[:80]}"
        raise CheckFailed(
            f"report['outputs']: a list of {len(requests)} outputs, one a request",
            found,
            "a request is lost between waiting, running and done: a preempted one must come back",
        )
    spec = case.get("model") or {"workspace": SHIPPED}
    for index, (prompt, output) in enumerate(zip(requests, outputs, strict=True)):
        try:
            judge_tokens(spec, prompt, case["max_new"], output, f"outputs[{index}]", case.get("eos_id"))
        except CheckFailed as failure:
            twin = next((i for i, other in enumerate(outputs) if i != index and _fits(spec, prompt, other, case)), None)
            if twin is not None:
                failure.cause = f"outputs[{twin}] is what outputs[{index}] should be: keep the order of the requests"
            raise
    if plain_int(evidence, "completed") != len(requests):
        raise CheckFailed(f"report['completed'] == {len(requests)}", f"{evidence['completed']}")
    if evidence.get("requests_after") != requests:
        raise CheckFailed(
            "the caller's prompts as they were", "prompts that the engine wrote into", "copy, do not extend"
        )
    preemptions, at_least = plain_int(evidence, "preemptions"), case.get("min_preemptions", 0)
    if preemptions < at_least:
        raise CheckFailed(
            f"at least {at_least} preemption(s) in this pool",
            f"report['preemptions'] == {preemptions}",
            "when a running request needs a block and none is free, the youngest gives its blocks back and waits",
        )
    if preemptions and case.get("no_preemption"):
        raise CheckFailed("no preemption: the pool is large enough for everybody", f"{preemptions}")
    steps, history = plain_int(evidence, "steps"), evidence.get("history")
    if type(history) is not list or len(history) != steps:
        raise CheckFailed(f"report['history']: one record a step, {steps}", f"{str(history)[:80]}")
    if case["max_new"] and max((record.get("running", 0) for record in history), default=0) > case.get("max_batch", 8):
        raise CheckFailed(f"at most {case.get('max_batch', 8)} requests running in a step", "more in the history")


def _fits(spec: dict[str, Any], prompt: list[int], output: Any, case: dict[str, Any]) -> bool:
    from milestones.judges import judge_tokens

    try:
        judge_tokens(spec, prompt, case["max_new"], output, "", case.get("eos_id"))
    except CheckFailed:
        return False
    return True


def judge_static(case: dict[str, Any], evidence: Any) -> None:
    """The same tokens in fewer steps than static batching takes, and in no fewer than possible."""
    judge_serve(case, evidence["continuous"])
    judge_serve(case, evidence["static"])
    continuous, static = evidence["continuous"]["steps"], evidence["static"]["steps"]
    if continuous >= static:
        raise CheckFailed(
            f"fewer steps than the {static} of static batching",
            f"{continuous} steps with continuous=True",
            "a place in the batch must be filled at the next step, not when the whole batch is done",
        )


def judge_order(case: dict[str, Any], evidence: Any) -> None:
    """Right tokens, and first prefills in the order of the requests."""
    judge_serve(case, evidence["report"])
    first_seen = []
    for index, prompt in enumerate(case["requests"]):
        calls = [at for at, tokens in enumerate(evidence["lookups"]) if _contains(tokens, prompt)]
        if not calls:
            raise CheckFailed(
                f"the prompt of request {index} looked up in the embedding, whole, when it is admitted", "never seen"
            )
        first_seen.append((calls[0], index))
    order = [index for _, index in sorted(first_seen)]
    if order != sorted(order):
        raise CheckFailed(
            "prefills in the order of the requests",
            f"the order {order}",
            "a request that does not fit yet must hold back those behind it, and a preempted one goes to the front",
        )


def _contains(tokens: list[int], prompt: list[int]) -> bool:
    width = len(prompt)
    return any(tokens[at : at + width] == prompt for at in range(len(tokens) - width + 1))


def judge_refused(case: dict[str, Any], evidence: Any) -> None:
    """A ValueError that names the request and the numbers."""
    from milestones.judges import judge_refusal

    judge_refusal(evidence, case["names"], case["label"])


_GQA = {"config": SHAPES["gqa"], "seed": 3}
_VOCAB, _LIMIT = SHAPES["gqa"]["vocab_size"], SHAPES["gqa"]["max_seq_len"]


def _prompts(lengths: list[int], seed: int) -> list[list[int]]:
    return [ids(length, _VOCAB, seed=seed * 100 + index) for index, length in enumerate(lengths)]


CHECKS = (
    Check(
        name="m13c.sixteen_requests",
        claim="16 requests on the trained model, in the default pool, complete with their own tokens and preempt",
        probe=probes.serve,
        cases=(
            {
                "label": "serve(16 prompts, max_new=16, block_budget=None)",
                "requests": [f"{TEXTS[index % len(TEXTS)]} {WORDS[: index * 4]}" for index in range(16)],
                "max_new": 16,
                "min_preemptions": 1,
            },
        ),
        judge=judge_serve,
        read=READ,
        limit=40.0,
    ),
    Check(
        name="m13c.roomy_pool",
        claim="batching alone changes nothing: requests of many lengths join and leave one batch",
        probe=probes.serve,
        cases=tuple(
            {
                "label": f"12 requests, batches of {max_batch}, blocks of {block_size}, a pool for everybody",
                "requests": _prompts([1, 15, 16, 17, 2, 31, 32, 33, 7, 48, 3, 9], seed=1),
                "max_new": 18,
                "block_budget": 600,
                "block_size": block_size,
                "max_batch": max_batch,
                "model": {"config": SHAPES[shape], "seed": 4},
                "no_preemption": True,
            }
            for max_batch, block_size, shape in ((3, 4, "mha"), (8, 16, "tied"), (12, 1, "mqa"))
        ),
        judge=judge_serve,
        read=READ,
    ),
    Check(
        name="m13c.tight_pool",
        claim="preemption changes nothing, however often and whenever it strikes the same request",
        probe=probes.serve,
        cases=tuple(
            {
                "label": f"{len(lengths)} requests of {max_new} tokens, {budget} blocks of {block_size}",
                "requests": _prompts(lengths, seed),
                "max_new": max_new,
                "block_budget": budget,
                "block_size": block_size,
                "model": _GQA,
                "min_preemptions": at_least,
            }
            for seed, (lengths, max_new, budget, block_size, at_least) in enumerate(
                (
                    ([8, 8], 24, 8, 4, 1),
                    ([4, 4, 4, 4], 40, 11, 4, 4),
                    ([16, 16, 16, 16, 16], 33, 5, 16, 3),
                    ([5, 9, 13, 2, 7, 11], 30, 11, 4, 6),
                    ([1, 1, 1], 30, 30, 1, 2),
                    ([7, 6, 5, 8, 3, 9, 4, 10], 12, 6, 4, 3),
                    ([15, 14, 13], 3, 2, 16, 1),
                )
            )
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
            {"label": "max_new=0", "requests": _prompts([3, 4], 1), "max_new": 0, "block_budget": 4, "model": _GQA},
            {
                "label": "max_new=1: the prefill is all there is",
                "requests": _prompts([16, 1, 17, 32], 2),
                "max_new": 1,
                "block_budget": 2,
                "model": _GQA,
            },
            {
                "label": "prompt and output fill one block exactly: the last token is never cached",
                "requests": _prompts([8, 8, 8], 3),
                "max_new": 9,
                "block_budget": 1,
                "block_size": 16,
                "model": _GQA,
                "no_preemption": True,
            },
            {
                "label": "three requests as long as the model allows, a pool for one",
                "requests": _prompts([_LIMIT - 20] * 3, 4),
                "max_new": 20,
                "block_budget": _LIMIT // 16,
                "block_size": 16,
                "model": _GQA,
            },
        ),
        judge=judge_serve,
        read=READ,
    ),
    Check(
        name="m13c.continuous",
        claim="continuous batching takes fewer steps than static batching for the same tokens",
        probe=probes.serve_both,
        cases=(
            {
                "label": "24 requests that end at different times (eos_id), batches of 8",
                "requests": [ids(5 + index % 7, _VOCAB, seed=index) for index in range(24)],
                "max_new": 40,
                "block_budget": 96,
                "eos_id": 43,
                "model": _GQA,
            },
        ),
        judge=judge_static,
        read=READ,
    ),
    Check(
        name="m13c.first_come_first_served",
        claim="requests are admitted in the order in which they came",
        probe=probes.serve_order,
        cases=tuple(
            {
                "label": f"8 requests, each beginning with a token of its own, {budget} blocks of 4",
                "requests": [[60 + index, *ids(length, 40, seed=index)] for index, length in enumerate(lengths)],
                "max_new": 10,
                "block_budget": budget,
                "block_size": 4,
                "max_batch": 3,
                "model": _GQA,
            }
            for lengths, budget in (([20, 2, 2, 20, 2, 2, 2, 2], 9), ([2, 30, 2, 2, 30, 2, 2, 2], 11))
        ),
        judge=judge_order,
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
