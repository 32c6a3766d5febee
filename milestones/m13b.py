"""M13b: `greedy_paged` gives the tokens of `greedy_reference`, which are those of full recompute, for less work."""

from typing import Any

from ai_playground.workspace import default_workspace
from milestones import probes
from milestones.harness import Check, CheckFailed
from milestones.shapes import SHAPES, TOY

READ = "milestones/m13b.md"
SHIPPED = str(default_workspace())
TEXTS = ("Once upon a time", "One day, a little girl", "There was a small dog who")
BOTH = ("greedy_reference", "greedy_paged")


def ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """`count` token ids that look random and are the same everywhere."""
    state, out = seed * 2 + 1, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((state >> 33) % vocab_size)
    return out


def judge_greedy(case: dict[str, Any], evidence: Any) -> None:
    """The tokens of full recompute, and exactly `n` of them."""
    from milestones.judges import judge_tokens
    from milestones.reference import prompt_ids

    spec = case.get("model") or {"workspace": SHIPPED}
    judge_tokens(spec, prompt_ids(case["prompt"]), case["n"], evidence, case["function"])


def judge_work(case: dict[str, Any], evidence: Any) -> None:
    """Right tokens for at most 1.25 times the ideal work."""
    from milestones.reference import build_model, token_pass_flops

    if evidence["canary"] != [2 * 8 * 16 * 32] * 2:
        raise CheckFailed("PyTorch's FLOP counter as it was", "one that counts something else", "leave torch as it is")
    judge_greedy(case, evidence["output"])
    config = build_model(case["model"]).config
    passes = len(case["prompt"]) + case["n"] - 1
    one = token_pass_flops(config, passes)
    found = evidence["flops"] / one
    if found > 1.25 * passes:
        raise CheckFailed(
            f"about {passes} token passes for {len(case['prompt'])} prompt tokens + {case['n']} new ones",
            f"{found:.0f} token passes, {found / passes:.1f} times as many (counted by torch's FlopCounterMode)",
            "tokens that are in the cache already go through the model again: after the prefill, feed one token a step",
        )


def judge_refused(case: dict[str, Any], evidence: Any) -> None:
    """A ValueError that names the numbers."""
    from milestones.judges import judge_refusal

    judge_refusal(evidence, case["names"], case["label"])


def _shipped_cases() -> tuple[dict[str, Any], ...]:
    return tuple(
        {"label": f"{function}(tokenizer.encode({text!r}), 20)", "function": function, "prompt": text, "n": 20}
        for text in TEXTS
        for function in BOTH
    )


def _length_cases() -> tuple[dict[str, Any], ...]:
    model = {"config": SHAPES["gqa"], "seed": 3}
    limit = SHAPES["gqa"]["max_seq_len"]
    sizes = [(1, 20), (15, 20), (16, 20), (17, 20), (1, limit - 1), (limit - 1, 1), (31, 2), (32, 1), (5, 0)]
    return tuple(
        {
            "label": f"{function}, a prompt of {length}, {n} new tokens, blocks of 16",
            "function": function,
            "prompt": ids(length, SHAPES["gqa"]["vocab_size"], seed=length),
            "n": n,
            "model": model,
        }
        for length, n in sizes
        for function in BOTH
    )


def _shape_cases() -> tuple[dict[str, Any], ...]:
    cases = []
    for seed, (name, config) in enumerate(SHAPES.items()):
        for block_size in (1, 16) if seed % 2 else (4, 32):
            case = {"prompt": ids(13 + seed, config["vocab_size"], seed), "n": 12, "block_size": block_size}
            label = f"greedy_paged on a random {name} model, a prompt of {13 + seed}, blocks of {block_size}"
            model = {"config": config, "seed": seed}
            cases.append(case | {"label": label, "function": "greedy_paged", "model": model})
    return tuple(cases)


_LIMIT, _VOCAB = SHAPES["gqa"]["max_seq_len"], SHAPES["gqa"]["vocab_size"]

CHECKS = (
    Check(
        name="m13b.shipped_prompts",
        claim="on the trained model, both functions give the tokens of full recompute",
        probe=probes.greedy,
        cases=_shipped_cases(),
        judge=judge_greedy,
        read=READ,
    ),
    Check(
        name="m13b.lengths",
        claim="prompts and outputs of every length work, at block boundaries and up to max_seq_len",
        probe=probes.greedy,
        cases=_length_cases(),
        judge=judge_greedy,
        read=READ,
    ),
    Check(
        name="m13b.shapes",
        claim="multi-head, grouped and multi-query attention, tied heads and every block size work",
        probe=probes.greedy,
        cases=_shape_cases(),
        judge=judge_greedy,
        read=READ,
    ),
    Check(
        name="m13b.cached_work",
        claim="each token goes through the model once: the cache is real",
        probe=probes.greedy_flops,
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
    ),
    Check(
        name="m13b.refusals",
        claim="what cannot be served is refused with a ValueError that names the numbers",
        probe=probes.greedy_refusal,
        cases=tuple(
            {"label": label, "function": function, "names": names, "model": {"config": SHAPES["gqa"], "seed": 3}} | call
            for function in BOTH
            for label, names, call in (
                ("the prompt is empty", ["empty"], {"prompt": [], "n": 4}),
                (
                    f"token {_VOCAB} is outside the vocabulary of {_VOCAB}",
                    [str(_VOCAB)],
                    {"prompt": [1, _VOCAB], "n": 4},
                ),
                ("token -1 is outside the vocabulary", ["-1"], {"prompt": [5, -1], "n": 4}),
                (
                    f"{_LIMIT - 3} prompt tokens + 4 exceed max_seq_len {_LIMIT}",
                    [str(_LIMIT - 3), str(_LIMIT)],
                    {"prompt": ids(_LIMIT - 3, _VOCAB, seed=1), "n": 4},
                ),
            )
        ),
        judge=judge_refused,
        read=READ,
    ),
)
