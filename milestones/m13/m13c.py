"""M13c: `serve` gives each request the tokens it would get alone, whatever is batched and preempted around it."""

from typing import Any

from checking.check import Check
from checking.seed import SEED, ids
from checking.shapes import HEAVY_CACHE, SHAPES
from milestones.m13 import probes
from milestones.m13.serving.serve_judges import judge_refused, judge_serve, judge_static
from milestones.subjects import M13

READ = "milestones/m13/m13c.md"


TEXTS = ("Once upon a time", "One day, a little girl", "There was a small dog who")


EOS = 16


WORDS = "there was a little boy who lived near the forest and had a red ball"


_SILENT = 30  # so many tokens the model never writes; each prompt begins with one of its own


_SPEAKING = SHAPES["gqa"]["vocab_size"] - _SILENT


_GQA = {"config": SHAPES["gqa"], "seed": 2, "silent": _SILENT, "ties": True}


_VOCAB, _LIMIT = SHAPES["gqa"]["vocab_size"], SHAPES["gqa"]["max_seq_len"]


def _prompts(lengths: list[int], seed: int) -> list[list[int]]:
    return [[_VOCAB - 1 - at, *ids(length - 1, _SPEAKING, seed * 100 + at)] for at, length in enumerate(lengths)]


def alike(requests: list[list[int]], pairs: dict[int, int]) -> list[list[int]]:
    """The requests, of which those with a pair begin as the other does, or are equal to it; lengths stay."""
    return [
        [*requests[pairs[at]], *prompt[len(requests[pairs[at]]) :]][: len(prompt)] if at in pairs else prompt
        for at, prompt in enumerate(requests)
    ]


def random_case(
    lengths: list[int],
    draw: int,
    max_new: int,
    budget: int,
    size: int,
    same: dict[int, int] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A case on the random GQA model, observed; `same` are pairs of requests that begin alike."""
    batch = f", batches of {more['max_batch']}" if "max_batch" in more else ""
    lengths_text = " ".join(map(str, lengths))
    few = "a prompt of" if len(lengths) == 1 else f"{len(lengths)} prompts of"
    equal = "".join(f"; request {one} begins as request {other}" for one, other in (same or {}).items())
    return {
        "label": f"{few} {lengths_text} tokens, {max_new} new ones each, {budget} blocks of {size}{batch}{equal}",
        "requests": alike(_prompts(lengths, draw), same or {}),
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
        form=probes.SERVED,
        cases=(
            random_case([5], 1, 20, 40, 16, no_preemption=True),
            random_case([6, 6], 2, 10, 40, 4, {1: 0}, no_preemption=True),
            random_case([3, 9, 5], 3, 10, 40, 4, {2: 1}, no_preemption=True),
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
        subject=M13,
    ),
    Check(
        name="m13c.continuous",
        claim="continuous batching takes fewer steps than static batching for the same tokens",
        probe=probes.serve_both,
        form=probes.BOTH_SERVED,
        cases=(
            random_case([5 + index % 7 for index in range(20)], 8, 32, 96, 16, {12: 5}, eos_id=EOS, no_preemption=True)
            | {"label": f"20 requests that end at different times (eos_id={EOS}), batches of 8"},
        ),
        judge=judge_static,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13c.tight_pool",
        claim="preemption changes nothing, however often and whenever it strikes the same request",
        probe=probes.serve,
        form=probes.SERVED,
        cases=(
            random_case([8, 8, 8], 7, 9, 4, 4, max_batch=1, no_preemption=True),
            random_case([15, 14, 13], 6, 3, 2, 16),
            random_case([8, 8], 0, 18, 8, 4, min_preemptions=1, equal=True),
            random_case([1, 1, 1], 4, 14, 15, 1, min_preemptions=2, equal=True),
            random_case([4, 4, 4, 4], 1, 24, 7, 4, min_preemptions=4, equal=True),
            random_case([16, 16, 16], 2, 18, 3, 16, equal=True),
            random_case([7, 6, 6, 8, 3, 9, 4, 10], 5, 12, 6, 4, min_preemptions=3),
            random_case([5, 9, 13, 2, 7, 11], 3, 20, 9, 4, min_preemptions=5),
            # An engine that admits last in its step preempts a request and admits it again within one step here.
            random_case([4, 9, 6, 11, 5, 8], 21, 11, 8, 4, max_batch=4),
        ),
        judge=judge_serve,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13c.edges",
        claim="no request, no token, one token, a pool of exactly one request, and an end token",
        probe=probes.serve,
        form=probes.SERVED,
        cases=(
            {"label": "no requests at all", "requests": [], "max_new": 4, "model": _GQA},
            random_case([3, 4], 1, 0, 4, 16) | {"label": "max_new=0"},
            random_case([16, 1, 17, 32], 2, 1, 2, 16) | {"label": "max_new=1: the prefill is all there is"},
            random_case([8, 8, 8], 3, 9, 1, 16, no_preemption=True, max_batch=1)
            | {"label": "prompt and output fill one block exactly: the last token is never cached"},
            random_case([_LIMIT - 20] * 3, 4, 20, _LIMIT // 16, 16)
            | {"label": "three requests as long as the model allows, a pool for one"},
            random_case([6, 5, 4, 7], 5, 30, 9, 4, {2: 0}, eos_id=EOS)
            | {"label": f"requests that end early (eos_id={EOS}), in a pool that preempts"},
            random_case([6, 5, 4, 7], 5, 24, 30, 1, eos_id=[EOS, 36, 60], min_preemptions=1)
            | {"label": f"three end tokens (eos_id=({EOS}, 36, 60)), in a pool that preempts"},
        ),
        judge=judge_serve,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13c.sixteen_requests",
        claim="16 requests on the trained model, in the default pool, complete with their own tokens and preempt",
        probe=probes.serve,
        form=probes.SERVED,
        cases=(
            {
                "label": "serve(16 prompts, max_new=16, block_budget=None)",
                "requests": [f"{TEXTS[index % len(TEXTS)]} {WORDS[: index // 6 * 24]}" for index in range(16)],
                "max_new": 16,
                "observe": "tokens",
                "min_preemptions": 1,
            },
        ),
        judge=judge_serve,
        read=READ,
        subject=M13,
        limit=40.0,
    ),
    Check(
        name="m13c.first_come_first_served",
        claim="requests are admitted in the order in which they came",
        probe=probes.serve,
        form=probes.SERVED,
        cases=(
            random_case([20, 2, 2, 20, 2, 2, 2, 2], 9, 10, 9, 4, max_batch=3),
            random_case([2, 30, 2, 2, 30, 2, 2, 2], 10, 10, 11, 4, max_batch=3),
        ),
        judge=judge_serve,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13c.block_budget",
        claim="the block budget is what the cache really takes",
        probe=probes.serve,
        form=probes.SERVED,
        cases=(
            random_case([15] * 5, 11, 34, 5, 16, observe="memory", min_preemptions=1, model=_MEMORY_MODEL, equal=True),
        ),
        judge=judge_serve,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13c.fresh_requests",
        claim="requests, pools and weights that were drawn for this run work too",
        probe=probes.serve,
        form=probes.SERVED,
        cases=fresh_cases(SEED),
        judge=judge_serve,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13c.refusals",
        claim="what cannot be served is refused, with the request and the numbers, before anything is served",
        probe=probes.serve_refusal,
        form=probes.REFUSAL,
        cases=tuple(
            {"label": label, "names": names, "model": _GQA, "max_new": 8, "block_budget": 40} | call
            for label, names, call in (
                ("request 1 is empty", ["1"], {"requests": [[5], [], [6]]}),
                (f"request 2 has token {_VOCAB}", ["2", str(_VOCAB)], {"requests": [[5], [6], [_VOCAB]]}),
                (
                    f"request 0 has {_LIMIT - 7} tokens, + 8 exceed {_LIMIT}",
                    ["0", [str(_LIMIT - 7), str(_LIMIT + 1)], str(_LIMIT)],
                    {"requests": [ids(_LIMIT - 7, _VOCAB, seed=2), [5]]},
                ),
                (
                    "request 1 needs 3 blocks of 16, and the pool has 2: it could never finish",
                    ["1", ["2", "32"]],
                    {"requests": [[5], ids(30, _VOCAB, seed=3)], "block_budget": 2, "block_size": 16},
                ),
                (
                    "request 0 fits at first, but not with its last cached token",
                    ["0", ["1", "16"]],
                    {"requests": [ids(9, _VOCAB, seed=4)], "block_budget": 1, "block_size": 16, "max_new": 9},
                ),
            )
        ),
        judge=judge_refused,
        read=READ,
        subject=M13,
    ),
)
