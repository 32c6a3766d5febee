"""M13b: `greedy_paged` gives the tokens of `greedy_reference`, which are those of full recompute, for less work."""

from itertools import pairwise
from typing import Any

from ai_playground.workspace import default_workspace
from checking.check import Check, CheckFailed
from checking.evidence import judge_canaries, judge_refusal
from checking.reference import TIE_TOLERANCE, build_model, prompt_ids, token_pass_flops
from checking.seed import SEED, ids
from checking.shapes import HEAVY_CACHE, SHAPES, TOY
from checking.tokens import blame_not_finite, judge_tokens
from milestones.m13 import probes
from milestones.subjects import M13

READ = "milestones/m13/m13b.md"
SHIPPED = str(default_workspace())
TEXTS = ("Once upon a time", "One day, a little girl", "There was a small dog who")
BOTH = ("greedy_reference", "greedy_paged")


def judge_greedy(case: dict[str, Any], evidence: Any) -> None:
    """The tokens of full recompute, and exactly `n` of them."""
    with blame_not_finite(evidence):
        judge_tokens(
            case.get("model") or {"workspace": SHIPPED},
            prompt_ids(case["prompt"]),
            case["n"],
            evidence["output"],
            case["function"],
            tolerance=case.get("tolerance", TIE_TOLERANCE),
            block_size=case.get("block_size", 16),
            paged=case["function"] == "greedy_paged",
        )


def judge_work(case: dict[str, Any], evidence: Any) -> None:
    """Right tokens for the work of one pass a token: within a quarter of it, and each token looked up once."""
    judge_greedy(case, evidence)
    judge_canaries(evidence)
    passes = len(case["prompt"]) + case["n"] - 1
    expected = (
        f"about {passes} token passes for {len(case['prompt'])} prompt tokens + {case['n']} new ones: one for each "
        "token that the model reads"
    )
    counted = {
        "counted in floating-point operations": evidence["flops"]
        / token_pass_flops(build_model(case["model"]).config, passes),
        "counted by the tokens looked up in the embedding": sum(map(len, evidence["lookups"])),
    }
    for how, found in counted.items():
        if found > 1.25 * passes:
            raise CheckFailed(
                expected,
                f"{found:.0f} token passes, {found / passes:.1f} times as many ({how})",
                "the cache is not used: tokens that are in it already go through the model again. After the prefill, "
                "feed one token a step",
            )
        if found < 0.8 * passes:
            raise CheckFailed(
                expected,
                f"{found:.0f} token passes ({how})",
                "the tokens do not come from the model that was passed as `model=`",
            )


def judge_memory(case: dict[str, Any], evidence: Any) -> None:
    """The cache is whole blocks, and stays where it is while tokens are added."""
    judge_greedy(case, evidence)
    config, size = build_model(case["model"]).config, case["block_size"]
    cached = len(case["prompt"]) + case["n"] - 1
    blocks = -(-cached // size)
    token_bytes = config.kv_values_per_token * 4
    memory = evidence["memory"]
    # Half, since keys and values may be kept in a shorter dtype than float32.
    growing = sum(after - before > token_bytes / 2 for before, after in pairwise(memory[1:]))
    if growing > blocks + 2:
        raise CheckFailed(
            f"memory that grows by blocks, {blocks} of {size} token slots, or stands ready from the start",
            f"memory that grew in {growing} of {len(memory) - 2} decode steps",
            "the cache grows token by token (concatenated each step) and is not paged: keys and values must be "
            "written into the pool's blocks, in place",
        )
    if max(memory, default=0) < blocks * size * token_bytes / 2:
        raise CheckFailed(
            f"a pool of {blocks} block(s) of {size} token slots, {blocks * size * token_bytes // 1024} KiB",
            f"{max(memory, default=0) // 1024} KiB kept between two steps; {cached} tokens are "
            f"{cached * token_bytes // 1024} KiB",
            "either the cache is contiguous, or its blocks are of another size than `block_size`: blocks of that size "
            "are handed out whole",
        )


def judge_refused(case: dict[str, Any], evidence: Any) -> None:
    """A ValueError that names the numbers."""
    judge_refusal(evidence, case["names"], case["label"])


def _shipped_cases() -> tuple[dict[str, Any], ...]:
    return tuple(
        {"label": f"{function}(tokenizer.encode({text!r}), 20)", "function": function, "prompt": text, "n": 20}
        for text in TEXTS
        for function in BOTH
    )


def _length_cases() -> tuple[dict[str, Any], ...]:
    model = {"config": SHAPES["gqa"], "seed": 3, "ties": True}
    limit = SHAPES["gqa"]["max_seq_len"]
    sizes = [(9, 12), (1, 20), (15, 20), (16, 20), (17, 20), (31, 2), (32, 1), (1, 1), (5, 0), (1, limit - 1)]
    return tuple(
        {
            "label": f"{function}, a prompt of {length}, {n} new tokens, blocks of 16",
            "function": function,
            "prompt": ids(length, SHAPES["gqa"]["vocab_size"], seed=length),
            "n": n,
            "model": model,
        }
        for length, n in [*sizes, (limit - 1, 1)]
        for function in BOTH
    )


def _shape_case(name: str, seed: int, length: int, n: int, block_size: int) -> dict[str, Any]:
    return {
        "label": f"greedy_paged on a random {name} model, a prompt of {length}, {n} new tokens, blocks of {block_size}",
        "function": "greedy_paged",
        "prompt": ids(length, SHAPES[name]["vocab_size"], seed),
        "n": n,
        "block_size": block_size,
        "model": {"config": SHAPES[name], "seed": seed},
    }


def _shape_cases() -> tuple[dict[str, Any], ...]:
    sizes = {"mha": (4, 16), "gqa": (4, 32), "mqa": (1, 16), "tied": (4, 32), "wide_heads": (3, 16)}
    return tuple(
        _shape_case(name, seed, 13 + seed, 12, block_size)
        for seed, (name, block_sizes) in enumerate(sizes.items())
        for block_size in block_sizes
    )


def fresh_cases(seed: int) -> tuple[dict[str, Any], ...]:
    """Prompts that nobody has seen: another seed, other tokens, lengths, weights and block sizes."""
    cases = [
        _shape_case(name, seed + index, 1 + (seed + 7 * index) % 40, 4 + (seed + 5 * index) % 20, size)
        for index, (name, size) in enumerate((("gqa", 8), ("mha", 5), ("wide_heads", 16)))
    ]
    for function in BOTH:
        prompt = ids(6 + seed % 9, 256, seed)  # every byte-level vocabulary has these
        label = f"{function} on the trained model, a prompt of {len(prompt)}, 12 new tokens"
        cases.append({"label": label, "function": function, "prompt": prompt, "n": 12})
    return tuple(case | {"seed": seed} for case in cases)


_LIMIT, _VOCAB = SHAPES["gqa"]["max_seq_len"], SHAPES["gqa"]["vocab_size"]

CHECKS = (
    Check(
        name="m13b.lengths",
        claim="prompts and outputs of every length work, at block boundaries and up to max_seq_len",
        probe=probes.greedy,
        form=probes.GREEDY,
        cases=_length_cases(),
        judge=judge_greedy,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13b.shapes",
        claim="multi-head, grouped and multi-query attention, tied heads and every block size work",
        probe=probes.greedy,
        form=probes.GREEDY,
        cases=_shape_cases(),
        judge=judge_greedy,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13b.shipped_prompts",
        claim="on the trained model, both functions give the tokens of full recompute",
        probe=probes.greedy,
        form=probes.GREEDY,
        cases=_shipped_cases(),
        judge=judge_greedy,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13b.cached_work",
        claim="each token goes through the model once: the cache is real",
        probe=probes.greedy_observed,
        form=probes.SEEN,
        cases=(
            {
                "label": "greedy_paged on the chapter's toy model, a prompt of 37, 20 new tokens",
                "function": "greedy_paged",
                "prompt": ids(37, 256, seed=5),
                "n": 20,
                "model": {"config": TOY, "seed": 0},
            },
        ),
        judge=judge_work,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13b.paged_memory",
        claim="keys and values live in whole blocks of a pool, written in place",
        probe=probes.greedy_observed,
        form=probes.SEEN,
        cases=tuple(
            {
                "label": f"greedy_paged, a prompt of {length}, {n} new tokens, blocks of {block_size}",
                "function": "greedy_paged",
                "prompt": ids(length, 97, seed=length),
                "n": n,
                "block_size": block_size,
                "model": {"config": HEAVY_CACHE, "seed": 0},
            }
            for length, n, block_size in ((3, 6, 64), (20, 30, 16))
        ),
        judge=judge_memory,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13b.bfloat16",
        claim="the cache follows the model's dtype: each token is within 0.1 of the best logit in bfloat16",
        probe=probes.greedy,
        form=probes.GREEDY,
        cases=(
            _shape_case("gqa", 5, 20, 16, 4)
            | {"model": {"config": SHAPES["gqa"], "seed": 5, "dtype": "bfloat16"}, "tolerance": 0.1},
        ),
        judge=judge_greedy,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13b.fresh_prompts",
        claim="prompts, sizes and weights that were drawn for this run work too",
        probe=probes.greedy,
        form=probes.GREEDY,
        cases=fresh_cases(SEED),
        judge=judge_greedy,
        read=READ,
        subject=M13,
    ),
    Check(
        name="m13b.refusals",
        claim="what cannot be served is refused with a ValueError that names the numbers",
        probe=probes.greedy_refusal,
        form=probes.REFUSAL,
        cases=tuple(
            {"label": label, "function": function, "names": names, "model": {"config": SHAPES["gqa"], "seed": 3}} | call
            for function in BOTH
            for label, names, call in (
                ("the prompt is empty", [], {"prompt": [], "n": 4}),
                (
                    f"token {_VOCAB} is outside the vocabulary of {_VOCAB}",
                    [str(_VOCAB)],
                    {"prompt": [1, _VOCAB], "n": 4},
                ),
                ("token -1 is outside the vocabulary", ["-1"], {"prompt": [5, -1], "n": 4}),
                (
                    f"{_LIMIT - 3} prompt tokens + 4 exceed max_seq_len {_LIMIT}",
                    [[str(_LIMIT - 3), str(_LIMIT + 1)], str(_LIMIT)],
                    {"prompt": ids(_LIMIT - 3, _VOCAB, seed=1), "n": 4},
                ),
            )
        ),
        judge=judge_refused,
        read=READ,
        subject=M13,
    ),
)
