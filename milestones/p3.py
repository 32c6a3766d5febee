"""p3: `generate_full`, `generate_cached` and `top_p_sample`, written for a model that the course never served.

The brief is projects/p3_kv_serve/README.md.
"""

import math
from collections import Counter
from typing import Any

from milestones import p3_probes as probes
from milestones.harness import Check, CheckFailed, will_be_shown
from milestones.seed import ids

README = "projects/p3_kv_serve/README.md"
MODEL = "the docstring of projects/p3_kv_serve/given_model.py"

# Shapes of the given model: the default, and others that find a decoder which knows only that one.
SHAPES: dict[str, dict[str, int]] = {
    "default": {"vocab_size": 101, "max_seq_len": 64, "dim": 48, "n_layers": 3, "n_heads": 4},
    "one head": {"vocab_size": 67, "max_seq_len": 40, "dim": 32, "n_layers": 2, "n_heads": 1},
    "deep": {"vocab_size": 53, "max_seq_len": 80, "dim": 36, "n_layers": 6, "n_heads": 6},
    "one layer": {"vocab_size": 89, "max_seq_len": 48, "dim": 40, "n_layers": 1, "n_heads": 2},
}

# A right sampler's chi-square statistic is above these once in a million seeds: the upper 1e-6 points of the
# chi-square distribution with 1, 2, ... degrees of freedom.
CRITICAL = (23.93, 27.63, 30.66, 33.38, 35.89, 38.26, 40.52, 42.7, 44.81, 46.86, 48.87, 50.83, 52.75, 54.64, 56.49)


# ---- generate_full and generate_cached -------------------------------------------------------------------------


def judge_generate(case: dict[str, Any], evidence: Any) -> None:
    """The prompt and then exactly the greedy tokens, twice, and the caller's prompt as it was."""
    _judge_output(case, evidence["output"], evidence)
    if evidence["prompt_after"] != case["prompt"]:
        raise CheckFailed(
            "the caller's prompt_ids as they were",
            f"{evidence['prompt_after']}",
            "the new tokens are added to the caller's own list: begin with a copy, list(prompt_ids)",
        )
    try:
        _judge_output(case, evidence["again"], None)
    except CheckFailed as failure:
        failure.cause = (
            "the same call was right before: something is kept between calls. Is the cache a global or a default "
            "argument, or is the model changed?"
        )
        raise


def _judge_output(case: dict[str, Any], value: Any, evidence: dict[str, Any] | None) -> None:
    from milestones.judges import around, clip, near_tie, token_list
    from milestones.p3_diagnose import cause_of
    from milestones.reference import build_model, first_divergence, greedy

    function, prompt, n = case["function"], case["prompt"], case["n"]
    model = build_model(case["model"])
    tokens = token_list(value, f"{function}(...)", model.config.vocab_size)
    if tokens[: len(prompt)] != prompt:
        cause = "the prompt comes first in what is returned: return the prompt and then the new tokens"
        raise CheckFailed(f"{function}: the prompt, {clip(prompt)}, and then {n} new tokens", clip(tokens), cause)
    new = tokens[len(prompt) :]
    difference = first_divergence(model, prompt, new[:n])
    if difference is not None:
        at = difference.position
        expected = new[:at] + greedy(model, prompt + new[:at], min(n - at, 6))
        raise CheckFailed(
            f"{function}: token {difference.expected} at position {at} of the new tokens: {around(expected, at)}",
            f"token {difference.found}{near_tie(difference.gap)}: {around(new, at)}",
            cause_of(case, new[:n], at, evidence) if will_be_shown.get() else "",
        )
    if len(new) != n:
        cause = "the tokens are right, but not their number: n_new counts the new ones, without the prompt"
        raise CheckFailed(f"{function}: {n} new tokens", f"{len(new)}: {clip(new)}", cause)
    if case["model"].get("change") == "ties":  # exact ones: rounding is no excuse
        expected = greedy(model, prompt, n)
        at = next((i for i in range(n) if new[i] != expected[i]), None)
        if at is not None:
            cause = "several logits are exactly the largest: take the lowest token id among them, as argmax does"
            raise CheckFailed(f"{function}, new tokens: {around(expected, at)}", around(new, at), cause)


def forward_flops(config: dict[str, int], length: int) -> int:
    """Floating-point operations of one full forward pass of the given GPT over `length` tokens.

    Two for each weight of every matrix and token (qkv 3, proj 1, up and down 4 each, in units of dim x dim), and
    two products of `length x length` scores a layer.
    """
    layer = 2 * 12 * config["dim"] ** 2 + 4 * config["dim"] * length
    return length * (config["n_layers"] * layer + 2 * config["dim"] * config["vocab_size"])


def judge_work(case: dict[str, Any], evidence: Any) -> None:
    """Right tokens, at most one full forward pass, and work within a quarter of one pass over all tokens."""
    from milestones.judges import judge_canaries

    _judge_output(case, evidence["output"], None)
    judge_canaries(evidence)
    calls = evidence["forward_calls"]
    if len(calls) > 1:
        raise CheckFailed(
            "at most one call of the model's full forward pass (for the prefill, if you like)",
            f"{len(calls)} calls, the last one with tokens of shape {tuple(calls[-1])}",
            "the tokens are right, but the whole sequence is computed again for each: decode from the cache",
        )
    passes = len(case["prompt"]) + case["n"] - 1
    share = evidence["flops"] / forward_flops(case["model"]["gpt"], passes)
    counted = f"{share * passes:.0f} token passes' work, {share:.2f} times as much (counted by torch's own formulas)"
    if share > 1.25:
        raise CheckFailed(
            f"the work of {passes} token passes: each of {len(case['prompt'])} prompt tokens and of the new ones once",
            counted,
            "tokens that are in the cache go through the layers again: after the prefill, feed one token a step",
        )
    if share < 0.5:
        raise CheckFailed(
            f"about the work of {passes} token passes",
            counted,
            "work is done where PyTorch does not see it: use the model's layers and torch's products, in this thread",
        )


def judge_refused(case: dict[str, Any], evidence: Any) -> None:
    """A ValueError that names the numbers."""
    from milestones.judges import judge_refusal

    judge_refusal(evidence, case["names"], case["label"])


# ---- top_p_sample ----------------------------------------------------------------------------------------------

Distribution = dict[int, float]  # token id -> probability, for those that can be drawn


def softmax(logits: list[float]) -> list[float]:
    """Probabilities in float64; `-inf` gets 0."""
    largest = max(logits)
    weights = [math.exp(logit - largest) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def nucleus(probs: list[float], p: float) -> list[int]:
    """The smallest set of most likely tokens whose mass reaches `p`, most likely first, lower ids first on a tie."""
    order = sorted((token for token, prob in enumerate(probs) if prob > 0), key=lambda token: (-probs[token], token))
    mass, size = 0.0, 0
    while size < len(order) and mass < p:
        mass += probs[order[size]]
        size += 1
    return order[:size]


def chi_square(draws: list[int], probs: list[float], expected: Distribution) -> tuple[float, int]:
    """Pearson's statistic of draws, and its degrees of freedom.

    Tokens of equal probability of which only some are in the set are one bin, since any of them may be taken; so
    are all tokens that are expected fewer than 5 times. Infinite if something was drawn that is not expected.
    """
    partly = {probs[token] for token in expected} & {prob for t, prob in enumerate(probs) if t not in expected}
    bins: dict[Any, list[float]] = {}  # what the bin is -> [expected, found]
    counts = Counter(draws)
    for token in set(expected) | set(counts):
        mean = expected.get(token, 0.0) * len(draws)
        if token not in expected and probs[token] not in partly:
            return math.inf, 0
        name = ("equal", probs[token]) if probs[token] in partly else token if mean >= 5 else "rare"
        total = bins.setdefault(name, [0.0, 0.0])
        total[0] += mean
        total[1] += counts[token]
    statistic = sum((found - mean) ** 2 / mean for mean, found in bins.values())
    return statistic, len(bins) - 1


def fits(draws: list[int], probs: list[float], expected: Distribution) -> bool:
    """Whether draws can come from a distribution, at the level of `CRITICAL`."""
    statistic, freedom = chi_square(draws, probs, expected)
    return statistic <= (CRITICAL[freedom - 1] if freedom else 1e-9)


def judge_sample(case: dict[str, Any], evidence: Any) -> None:
    """Token ids of the nucleus, as often as their renormalised probabilities say."""
    import torch

    from milestones.judges import token_list

    logits = [-math.inf if value is None else value for value in case["logits"]]
    logits = torch.tensor(logits).to(getattr(torch, case.get("dtype", "float32"))).double().tolist()
    draws = token_list(evidence["draws"], "the draws of top_p_sample", len(logits))
    probs = softmax(logits)
    kept = nucleus(probs, case["p"])
    mass = sum(probs[token] for token in kept)
    expected = {token: probs[token] / mass for token in kept}
    if evidence["logits_changed"]:
        cause = "the caller's tensor is written into: make a new one (masked_fill and not masked_fill_, for example)"
        raise CheckFailed("the logits as they were after the call", "other values in them", cause)
    drawn = set(draws)
    smallest = min(probs[token] for token in kept)
    outside = sorted(token for token in drawn if probs[token] < smallest)
    if outside or len(drawn) > len(kept):
        found = f"token(s) {outside[:5]}, which are less likely" if outside else f"{len(drawn)} different tokens"
        raise CheckFailed(
            f"only tokens of the nucleus: {_shown(expected)}", f"{found}: {_counts(draws)}", _why(case, draws, probs)
        )
    if not fits(draws, probs, expected):
        statistic, freedom = chi_square(draws, probs, expected)
        raise CheckFailed(
            f"draws from the nucleus, renormalised: {_shown(expected)}",
            f"in {len(draws)} draws: {_counts(draws)}; chi-square {statistic:.1f} with {freedom} degrees of freedom, "
            f"where a right sampler stays below {CRITICAL[freedom - 1] if freedom else 0}",
            _why(case, draws, probs),
        )


def _why(case: dict[str, Any], draws: list[int], probs: list[float]) -> str:
    """The mistake whose own distribution the draws fit, if one does."""
    kept = nucleus(probs, case["p"])
    order = nucleus(probs, 2.0)  # every token that can be drawn at all
    at_rank = [probs[token] for token in order] + [0.0] * (len(probs) - len(order))

    def renormalised(tokens: list[int]) -> Distribution:
        mass = sum(probs[token] for token in tokens)
        return {token: probs[token] / mass for token in tokens}

    by_rank = {rank: prob for rank, prob in enumerate(renormalised(kept).values())}
    if fits(draws, at_rank, by_rank):
        return "an index into the sorted probabilities is returned, not the token id that stands there"
    if len(kept) > 1 and fits(draws, probs, renormalised(kept[:-1])):
        return (
            "the token that makes the mass reach p is dropped: it belongs to the nucleus, so compare p with the mass "
            "before each token"
        )
    if len(kept) < len(order) and fits(draws, probs, renormalised(order[: len(kept) + 1])):
        return "one token too many: the set is complete as soon as its mass reaches p, also when it is exactly p"
    if len(kept) < len(order) and fits(draws, probs, renormalised(order)):
        return "p is ignored: every token can be drawn"
    rest = 1.0 - sum(probs[token] for token in kept)
    for token in range(len(probs)):
        unnormalised = {kept_token: probs[kept_token] for kept_token in kept}
        unnormalised[token] = unnormalised.get(token, 0.0) + rest
        if rest > 0 and fits(draws, [unnormalised.get(t, 0.0) for t in range(len(probs))], unnormalised):
            return (
                f"the kept probabilities are not renormalised: they sum to {1 - rest:.3f}, and the missing "
                f"{rest:.3f} went to token {token}. Divide by their sum"
            )
    if fits(draws, [float(token in kept) for token in range(len(probs))], dict.fromkeys(kept, 1 / len(kept))):
        return "the nucleus is right, but its tokens are drawn evenly and not with their probabilities"
    if set(draws) == {kept[0]}:
        return "always the most likely token: nothing is drawn"
    if set(draws) <= set(kept):
        return "the nucleus is right and the frequencies are not: are they softmax(logits), renormalised, undistorted?"
    return "the set itself: sort by probability, largest first, and keep tokens until their mass reaches p"


def _shown(expected: Distribution) -> str:
    shown = [f"{token}: {prob:.3f}" for token, prob in list(expected.items())[:8]]
    return "{" + ", ".join(shown) + (f", ... {len(expected)} in all" if len(expected) > 8 else "") + "}"


def _counts(draws: list[int]) -> str:
    counts = Counter(draws)
    return _shown({token: count / len(draws) for token, count in counts.most_common()})


def judge_states(case: dict[str, Any], evidence: Any) -> None:
    """The generator, and nothing else, decides what is drawn."""
    from milestones.judges import clip, token_list

    size = len(case["logits"])
    same = [token_list(draws, "the draws of top_p_sample", size) for draws in evidence["same"]]
    other = token_list(evidence["other"], "the draws of top_p_sample", size)
    if same[0] != same[1] or same[0] != same[2] or evidence["global_used"]:
        kept = "with torch.manual_seed set to another value as well" if same[0] == same[1] else "called the same way"
        found = "torch's global random state is used" if evidence["global_used"] else f"other draws, {kept}"
        raise CheckFailed(
            f"the same draws for the same state of the generator: {clip(same[0])}",
            f"{found}: {clip(same[2] if same[0] == same[1] else same[1])}",
            "pass generator=generator to whatever draws the random number, and use no other source of randomness",
        )
    if len(set(same[0])) == 1 or same[0] == other:
        cause = "the generator is to be used as it is: no new one with a seed of its own, no state put back"
        raise CheckFailed(
            f"{len(other)} draws that vary, and others for another seed", f"{clip(same[0])} and {clip(other)}", cause
        )


def judge_imports(case: dict[str, Any], evidence: Any) -> None:
    """Nothing of `ai_playground.inference` is used."""
    if evidence["found"]:
        line, text = evidence["found"][0]
        found = f"{evidence['file']}:{line}: {text}"
    elif evidence["loaded"]:
        found = f"{evidence['loaded'][0]} is loaded after {evidence['file']} ran, by a name put together at run time"
    else:
        return
    raise CheckFailed(
        f"no import of ai_playground.inference in {evidence['file']}",
        found,
        "this project is written from a blank file; torch and the given model are all it needs",
    )


# ---- cases -----------------------------------------------------------------------------------------------------


def _model(shape: str, seed: int, change: str | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"gpt": SHAPES[shape], "seed": seed}
    return spec | {"change": change} if change else spec


def token_cases(function: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "label": f"{function}, given model '{shape}' with seed {seed}, a prompt of {length}, n_new={n}",
            "function": function,
            "model": _model(shape, seed),
            "prompt": ids(length, SHAPES[shape]["vocab_size"], seed=length),
            "n": n,
        }
        for seed, (shape, length, n) in enumerate((("default", 9, 20), ("one head", 12, 20), ("deep", 5, 24)))
    )


def edge_cases(function: str) -> tuple[dict[str, Any], ...]:
    limit, vocab = SHAPES["default"]["max_seq_len"], SHAPES["default"]["vocab_size"]
    sizes = (
        ("a prompt of one token", "default", 1, 12, None),
        ("n_new=0: the prompt comes back", "default", 6, 0, None),
        ("n_new=1", "default", 6, 1, None),
        (f"1 + {limit - 1} tokens, exactly max_seq_len", "default", 1, limit - 1, None),
        (f"{limit - 2} + 2 tokens, exactly max_seq_len", "default", limit - 2, 2, None),
        (f"{limit} + 0 tokens, exactly max_seq_len", "default", limit, 0, None),
        ("a model of one layer", "one layer", 8, 12, None),
        ("ties: the tokens 7, 8 and the last one always have the same, largest logit", "default", 4, 6, "ties"),
    )
    return tuple(
        {
            "label": f"{function}, {label}",
            "function": function,
            "model": _model(shape, 3, change),
            "prompt": ids(length, vocab - 12, seed=length),  # also inside the other shape's vocabulary
            "n": n,
        }
        for label, shape, length, n, change in sizes
    )


def refusal_cases(function: str) -> tuple[dict[str, Any], ...]:
    limit, vocab = SHAPES["default"]["max_seq_len"], SHAPES["default"]["vocab_size"]
    calls = (
        ("the prompt is empty", ["empty"], [], 4),
        (
            f"{limit - 3} prompt tokens + 4 are one more than max_seq_len {limit}",
            [str(limit - 3), "4", str(limit)],
            ids(limit - 3, vocab, seed=1),
            4,
        ),
        (f"{limit + 1} prompt tokens are more than {limit}", [str(limit + 1)], ids(limit + 1, vocab, seed=2), 0),
        (f"token {vocab} is outside the vocabulary of {vocab}", [str(vocab)], [1, vocab], 4),
        ("token -1 is outside the vocabulary", ["-1"], [5, -1], 4),
        ("n_new is negative", ["-2"], [5], -2),
    )
    return tuple(
        {"label": label, "names": names, "function": function, "model": _model("default", 3), "prompt": prompt, "n": n}
        for label, names, prompt, n in calls
    )


WORK_CASES = tuple(
    {
        "label": f"generate_cached, given model '{shape}', a prompt of {length}, n_new={n}",
        "function": "generate_cached",
        "model": _model(shape, 5),
        "prompt": ids(length, SHAPES[shape]["vocab_size"], seed=length),
        "n": n,
    }
    for shape, length, n in (("default", 24, 20), ("deep", 1, 12))
)

# Most likely tokens are not the first ones, so that a rank cannot pass for a token id.
_LOGITS = [-1.0, 0.4, -0.3, 1.5, 0.9, -2.0, 1.2, 0.1, -0.8, 1.7]


def _sample_case(label: str, logits: list[float | None], p: float, draws: int, **more: Any) -> dict[str, Any]:
    return {"label": label, "logits": logits, "p": p, "draws": draws, "generator": 11} | more


DISTRIBUTION_CASES = (
    _sample_case("10 tokens, p=0.6", _LOGITS, 0.6, 1500),
    _sample_case("10 tokens, p=0.85", _LOGITS, 0.85, 1500),
    _sample_case("10 tokens, p=1.0: all of them", _LOGITS, 1.0, 1500),
    _sample_case("10 tokens, bfloat16, p=0.8", _LOGITS, 0.8, 500, dtype="bfloat16"),
    _sample_case("10 tokens, float16, p=0.8", _LOGITS, 0.8, 500, dtype="float16"),
    _sample_case("one likely token and 256 others, bfloat16, p=0.75", [5.6] + [0.0] * 256, 0.75, 300, dtype="bfloat16"),
)

EDGE_SAMPLES = (
    _sample_case("p=1e-6: always the most likely token", _LOGITS, 1e-6, 100),
    # However they are computed, 1/2 and 1/4 are exact.
    _sample_case("two tokens of 0.5, the others -inf, p=0.5: exactly one is enough", [None, 1.0, None, 1.0], 0.5, 200),
    _sample_case("four equal tokens, p=0.75: exactly three are enough", [2.0] * 4, 0.75, 200),
    _sample_case("four equal tokens, p=0.25: exactly one is enough", [-3.0] * 4, 0.25, 200),
    _sample_case("four equal tokens, p=1.0: all of them", [0.5] * 4, 1.0, 500),
    _sample_case("-inf logits are never drawn, p=1.0", [None, 0.0, None, 1.0, 0.5, None], 1.0, 500),
    _sample_case("one token that is not -inf", [None, None, -5.0], 0.9, 50),
    _sample_case("a vocabulary of one token", [0.3], 0.9, 20),
    _sample_case("logits around 1000", [1000.0, 1001.5, 999.0, 1001.0], 0.9, 500),
    _sample_case("float16 logits around -60000", [-60000.0, -60000.0, None], 1.0, 300, dtype="float16"),
)

CHECKS = (
    Check(
        name="p3.full_tokens",
        claim="generate_full returns the prompt and the greedy tokens",
        probe=probes.generate,
        cases=token_cases("generate_full"),
        judge=judge_generate,
        read=f"{README}, part 1; {MODEL}",
    ),
    Check(
        name="p3.full_edges",
        claim="generate_full is right for one token, no token, the longest sequence and ties",
        probe=probes.generate,
        cases=edge_cases("generate_full"),
        judge=judge_generate,
        read=f"{README}, part 1",
    ),
    Check(
        name="p3.full_refusals",
        claim="generate_full refuses what it cannot decode with a ValueError that names the numbers",
        probe=probes.generate_refusal,
        cases=refusal_cases("generate_full"),
        judge=judge_refused,
        read=f"{README}, part 1",
    ),
    Check(
        name="p3.cached_tokens",
        claim="generate_cached gives the tokens of full recompute",
        probe=probes.generate_variants,
        cases=token_cases("generate_cached"),
        judge=judge_generate,
        read=f"{README}, part 2; {MODEL}",
    ),
    Check(
        name="p3.cached_edges",
        claim="generate_cached is right for one token, no token, the longest sequence and ties",
        probe=probes.generate,
        cases=edge_cases("generate_cached"),
        judge=judge_generate,
        read=f"{README}, part 2",
    ),
    Check(
        name="p3.cached_refusals",
        claim="generate_cached refuses what it cannot decode with a ValueError that names the numbers",
        probe=probes.generate_refusal,
        cases=refusal_cases("generate_cached"),
        judge=judge_refused,
        read=f"{README}, part 2",
    ),
    Check(
        name="p3.cached_work",
        claim="each token goes through the model once: the cache is real",
        probe=probes.generate_work,
        cases=WORK_CASES,
        judge=judge_work,
        read=f"{README}, part 2",
    ),
    Check(
        name="p3.sampler_distribution",
        claim="top_p_sample draws the nucleus' tokens with their renormalised probabilities",
        probe=probes.sample,
        cases=DISTRIBUTION_CASES,
        judge=judge_sample,
        read=f"{README}, part 3",
        limit=40.0,
    ),
    Check(
        name="p3.sampler_edges",
        claim="top_p_sample is right where p or the logits are extreme, equal or exact",
        probe=probes.sample,
        cases=EDGE_SAMPLES,
        judge=judge_sample,
        read=f"{README}, part 3",
    ),
    Check(
        name="p3.sampler_generator",
        claim="the generator, and nothing else, decides what top_p_sample draws",
        probe=probes.sample_states,
        cases=({"label": "40 draws, p=0.9", "logits": _LOGITS, "p": 0.9, "draws": 40, "generator": 21},),
        judge=judge_states,
        read=f"{README}, part 3",
    ),
    Check(
        name="p3.sampler_refusals",
        claim="top_p_sample refuses a p outside (0, 1] with a ValueError that names it",
        probe=probes.sample_refusal,
        cases=tuple(
            {"label": f"p={p} is outside (0, 1]", "names": [str(p)], "logits": _LOGITS, "p": p}
            for p in (0.0, -0.5, 1.5)
        ),
        judge=judge_refused,
        read=f"{README}, part 3",
    ),
    Check(
        name="p3.no_inference_import",
        claim="nothing of ai_playground.inference is used",
        probe=probes.inference_imports,
        cases=(
            {
                "label": "the module's syntax tree",
                "model": _model("default", 0),
                "prompt": [3, 1, 4],
                "n": 2,
                "logits": _LOGITS,
                "p": 0.9,
                "draws": 1,
                "generator": 1,
            },
        ),
        judge=judge_imports,
        read=f"{README}, rules",
    ),
)
