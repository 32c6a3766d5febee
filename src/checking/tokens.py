"""Tokens against full recompute: types first, then token for token, then length, then words for what went wrong."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ai_playground.models import Transformer, end_tokens
from ai_playground.workspace import load_tokenizer
from checking.causes import likely_cause
from checking.check import CheckFailed, will_be_shown
from checking.reference import TIE_TOLERANCE, Divergence, EndTokens, build_model, first_divergence, greedy

FIRST_INDEX = (
    "two tokens have the same logit, and the later one was taken: greedy is the argmax, and the first index on a tie "
    "(torch.argmax does so; a sort, topk or max over the values may not)"
)
_NOT_FINITE = (
    "Memory that nobody has written holds garbage, NaN too, and NaN times 0 is NaN: a mask must select (masked_fill, "
    "torch.where), not multiply, and a weight of 0 does not hide a NaN in the values either. Begin with a pool of "
    "zeros, or cut the context to its length. A row that sees no key at all is NaN after the softmax, too"
)


def token_list(value: Any, what: str, vocab_size: int) -> list[int]:
    """`value` as a plain list of token ids.

    Raises:
        CheckFailed: it is anything else.
    """
    if isinstance(value, dict) and "not_plain" in value:
        raise CheckFailed(
            f"{what} as a plain list of ints",
            f"a {value['not_plain']}: {value.get('repr')}",
            "return `list`, not a tensor",
        )
    if value is None:
        raise CheckFailed(f"{what} as a list of ints", "None", "the function ends without a `return`")
    if type(value) is not list:
        raise CheckFailed(f"{what} as a list of ints", f"a {type(value).__name__}: {str(value)[:80]}")
    for position, token in enumerate(value):
        if type(token) is not int:
            shown = token.get("not_plain") if isinstance(token, dict) else type(token).__name__
            cause = "plain ints in a plain list: use `int(...)`, or `.tolist()`"
            raise CheckFailed(f"{what} as a plain list of ints", f"a {shown} at position {position}", cause)
        if not 0 <= token < vocab_size:
            cause = "is it the model that is passed as model= that is used, and only the row of its own logits?"
            raise CheckFailed(f"{what}: token ids in [0, {vocab_size})", f"{token} at position {position}", cause)
    return value


def judge_tokens(
    model_spec: dict[str, Any],
    prompt: list[int],
    n: int,
    value: Any,
    what: str,
    eos_id: EndTokens = None,
    tolerance: float = TIE_TOLERANCE,
    block_size: int = 16,
    paged: bool = True,
) -> None:
    """Whether `value` is the greedy continuation of `prompt`: its type, its tokens and its length.

    `block_size` and `paged` (whether a cache is expected) only help to find the likely cause.

    Raises:
        CheckFailed: with the first difference and what is around it.
    """
    model = build_model(model_spec)
    output = token_list(value, what, model.config.vocab_size)
    difference = first_divergence(model, prompt, output[:n], tolerance)
    if difference is not None:
        at = difference.position
        expected = output[:at] + greedy(model, prompt + output[:at], min(n - at, 6), eos_id)
        raise CheckFailed(
            f"{what}: token {difference.expected} at position {at} of the new tokens: "
            f"{around(expected, at)}{in_words(model_spec, expected)}",
            f"token {difference.found}{near_tie(difference.gap)}: {around(output, at)}{in_words(model_spec, output)}",
            _cause(difference, model, prompt, output, block_size, paged) if will_be_shown.get() else "",
        )
    if len(output) > n:
        one = "one token too many: " if len(output) == n + 1 else "too many tokens: "
        found = f"{len(output)} tokens: {around(output, n)}"
        if output[: len(prompt)] == prompt and len(output) == len(prompt) + n:
            raise CheckFailed(f"{what}: the {n} new tokens", found, "the prompt is in it: return only what is new")
        cause = one + "is a request done as soon as it has its last token, also when a prefill makes that token?"
        raise CheckFailed(f"{what}: {n} tokens", found, cause)
    ends = end_tokens(eos_id)
    first = next((index for index, token in enumerate(output) if token in ends), None)
    if first is not None:
        if first != len(output) - 1:
            raise CheckFailed(
                f"{what}: nothing after the end token {output[first]} at position {first}",
                f"{len(output) - 1 - first} more",
                "the end token is not noticed where it was made: a prefill can make it too"
                + (f"; and of several end tokens ({clip(list(ends))}) each ends its request" if len(ends) > 1 else ""),
            )
    elif len(output) < n:
        short = n - len(output)
        following = greedy(model, prompt + output, 1)
        if following[0] in ends:
            raise CheckFailed(
                f"{what}: ... and {following[0]}, the end token, as the last of the output",
                f"it stops before: {around(output, len(output) - 1)}",
                "the end token is missing: it ends the request, and it is kept",
            )
        if eos_id in prompt and not (output and output[-1] == eos_id):
            raise CheckFailed(
                f"{what}: {n} tokens, or fewer if the end token {eos_id} is made",
                f"{len(output)} tokens, and {eos_id} is none of them",
                f"the prompt contains the end token {eos_id}, and the engine ends there: a prompt may contain it, only "
                "a new token ends its request",
            )
        found = f"the first {len(output)} of them; the last {short}: {clip(greedy(model, prompt + output, short))}"
        cause = (
            "one token short: a request is done when its output has max_new tokens, the prefill's and the last one "
            "included (that the last is never cached is another matter)"
            if short == 1
            else "tokens are lost: what was made before a preemption must stay in the output, and a request is done "
            "only with its last token"
        )
        raise CheckFailed(f"{what}: {n} tokens", f"{found}, are missing", cause)


def _cause(
    difference: Divergence, model: Transformer, prompt: list[int], output: list[int], block_size: int, paged: bool
) -> str:
    if difference.gap == 0.0:
        return FIRST_INDEX
    return likely_cause(model, prompt, output, difference.position, block_size, paged)


@contextlib.contextmanager
def blame_not_finite(evidence: dict[str, Any]) -> Iterator[None]:
    """Put NaN and infinity, where the probe saw them, before any other cause of what is wrong inside."""
    try:
        yield
    except CheckFailed as failure:
        if evidence.get("not_finite"):
            failure.cause = f"the logits are {evidence['not_finite']}. {_NOT_FINITE}"
        raise


def near_tie(gap: float) -> str:
    """How near a wrong token was to the right one, where that is worth a thought."""
    if gap == 0.0:
        return " (a tie: both have the same logit)"
    return f" (nearly a tie: its logit is {gap:.2g} lower)" if gap < 0.01 else ""


def in_words(model_spec: dict[str, Any], tokens: list[int]) -> str:
    """The tokens as text, where the model has a tokenizer."""
    if "workspace" not in model_spec:
        return ""
    tokenizer = load_tokenizer(Path(model_spec["workspace"]))
    return f", {tokenizer.decode([token for token in tokens if token < tokenizer.vocab_size])[:80]!r}"


def around(tokens: list[int], at: int) -> str:
    """The tokens near a position, that one in brackets."""
    shown = [f"[{token}]" if index == at else str(token) for index, token in enumerate(tokens)]
    first, last = max(0, at - 3), at + 5
    return ("... " if first else "") + " ".join(shown[first:last]) + (" ..." if last < len(shown) else "")


def clip(tokens: list[int], most: int = 12) -> str:
    """The first tokens of a list."""
    return " ".join(map(str, tokens[:most])) + (" ..." if len(tokens) > most else "")
