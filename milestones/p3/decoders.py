"""The judges and cases of `generate_full` and `generate_cached`, and of p3's rule about imports."""

from typing import Any

from checking.check import CheckFailed, will_be_shown
from checking.evidence import judge_canaries, judge_refusal
from checking.reference import first_divergence, greedy
from checking.seed import ids
from checking.tokens import around, clip, near_tie, token_list
from milestones.p3.decoder_causes import cause_of
from milestones.p3.given_models import build_gpt

# Shapes of the given model: the default, and others that find a decoder which knows only that one.
SHAPES: dict[str, dict[str, int]] = {
    "default": {"vocab_size": 101, "max_seq_len": 64, "dim": 48, "n_layers": 3, "n_heads": 4},
    "one head": {"vocab_size": 67, "max_seq_len": 40, "dim": 32, "n_layers": 2, "n_heads": 1},
    "deep": {"vocab_size": 53, "max_seq_len": 80, "dim": 36, "n_layers": 6, "n_heads": 6},
    "one layer": {"vocab_size": 89, "max_seq_len": 48, "dim": 40, "n_layers": 1, "n_heads": 2},
}


_LOWEST = "several logits are exactly the largest: take the lowest token id among them, as argmax does"


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
    function, prompt, n = case["function"], case["prompt"], case["n"]
    model = build_gpt(case["model"])
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
            _LOWEST if difference.gap == 0.0 else cause_of(case, new[:n], at, evidence) if will_be_shown.get() else "",
        )
    if len(new) != n:
        cause = "the tokens are right, but not their number: n_new counts the new ones, without the prompt"
        raise CheckFailed(f"{function}: {n} new tokens", f"{len(new)}: {clip(new)}", cause)


def forward_flops(config: dict[str, int], length: int) -> int:
    """Floating-point operations of one full forward pass of the given GPT over `length` tokens.

    Two for each weight of every matrix and token (qkv 3, proj 1, up and down 4 each, in units of dim x dim), and
    two products of `length x length` scores a layer.
    """
    layer = 2 * 12 * config["dim"] ** 2 + 4 * config["dim"] * length
    return length * (config["n_layers"] * layer + 2 * config["dim"] * config["vocab_size"])


def judge_work(case: dict[str, Any], evidence: Any) -> None:
    """Right tokens, at most one full forward pass, and work within a quarter of one pass over all tokens."""
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
    judge_refusal(evidence, case["names"], case["label"])


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


def gpt_spec(shape: str, seed: int, change: str | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = {"gpt": SHAPES[shape], "seed": seed}
    return spec | {"change": change} if change else spec


def token_cases(function: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "label": f"{function}, given model '{shape}' with seed {seed}, a prompt of {length}, n_new={n}",
            "function": function,
            "model": gpt_spec(shape, seed),
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
            "model": gpt_spec(shape, 3, change),
            "prompt": ids(length, vocab - 12, seed=length),  # also inside the other shape's vocabulary
            "n": n,
        }
        for label, shape, length, n, change in sizes
    )


def refusal_cases(function: str) -> tuple[dict[str, Any], ...]:
    limit, vocab = SHAPES["default"]["max_seq_len"], SHAPES["default"]["vocab_size"]
    calls = (
        ("the prompt is empty", [], [], 4),
        (
            f"{limit - 3} prompt tokens + 4 are one more than max_seq_len {limit}",
            [[str(limit - 3), str(limit + 1)], str(limit)],
            ids(limit - 3, vocab, seed=1),
            4,
        ),
        (f"{limit + 1} prompt tokens are more than {limit}", [str(limit + 1)], ids(limit + 1, vocab, seed=2), 0),
        (f"token {vocab} is outside the vocabulary of {vocab}", [str(vocab)], [1, vocab], 4),
        ("token -1 is outside the vocabulary", ["-1"], [5, -1], 4),
        ("n_new is negative", ["-2"], [5], -2),
    )
    return tuple(
        {
            "label": label,
            "names": names,
            "function": function,
            "model": gpt_spec("default", 3),
            "prompt": prompt,
            "n": n,
        }
        for label, names, prompt, n in calls
    )


WORK_CASES = tuple(
    {
        "label": f"generate_cached, given model '{shape}', a prompt of {length}, n_new={n}",
        "function": "generate_cached",
        "model": gpt_spec(shape, 5),
        "prompt": ids(length, SHAPES[shape]["vocab_size"], seed=length),
        "n": n,
    }
    for shape, length, n in (("default", 24, 20), ("deep", 1, 12))
)
