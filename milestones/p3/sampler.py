"""The judges and cases of `top_p_sample`: a chi-square test of its draws against the nucleus."""

import math
from collections import Counter
from typing import Any

import torch

from checking.check import CheckFailed
from checking.tokens import clip, token_list

# A right sampler's chi-square statistic is above these once in a million seeds: the upper 1e-6 points of the
# chi-square distribution with 1, 2, ... degrees of freedom.
CRITICAL = (23.93, 27.63, 30.66, 33.38, 35.89, 38.26, 40.52, 42.7, 44.81, 46.86, 48.87, 50.83, 52.75, 54.64, 56.49)


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


# Most likely tokens are not the first ones, so that a rank cannot pass for a token id.
LOGITS = [-1.0, 0.4, -0.3, 1.5, 0.9, -2.0, 1.2, 0.1, -0.8, 1.7]


def _sample_case(label: str, logits: list[float | None], p: float, draws: int, **more: Any) -> dict[str, Any]:
    return {"label": label, "logits": logits, "p": p, "draws": draws, "generator": 11} | more


DISTRIBUTION_CASES = (
    _sample_case("10 tokens, p=0.6", LOGITS, 0.6, 1500),
    _sample_case("10 tokens, p=0.85", LOGITS, 0.85, 1500),
    _sample_case("10 tokens, p=1.0: all of them", LOGITS, 1.0, 1500),
    _sample_case("10 tokens, bfloat16, p=0.8", LOGITS, 0.8, 500, dtype="bfloat16"),
    _sample_case("10 tokens, float16, p=0.8", LOGITS, 0.8, 500, dtype="float16"),
    _sample_case("one likely token and 256 others, bfloat16, p=0.75", [5.6] + [0.0] * 256, 0.75, 300, dtype="bfloat16"),
)


EDGE_SAMPLES = (
    _sample_case("p=1e-6: always the most likely token", LOGITS, 1e-6, 100),
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
