"""What the judges of several milestones share: types first, then tokens, then words for what went wrong."""

from typing import Any

from milestones.harness import CheckFailed
from milestones.reference import TIE_TOLERANCE, build_model, first_divergence, greedy


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
            raise CheckFailed(f"{what} as a list of ints", f"a {shown} at position {position}", "use `int(...)`")
        if not 0 <= token < vocab_size:
            raise CheckFailed(f"{what}: token ids in [0, {vocab_size})", f"{token} at position {position}")
    return value


def judge_tokens(
    model_spec: dict[str, Any],
    prompt: list[int],
    n: int,
    value: Any,
    what: str,
    eos_id: int | None = None,
    tolerance: float = TIE_TOLERANCE,
) -> None:
    """Whether `value` is the greedy continuation of `prompt`: its type, its tokens and its length.

    Raises:
        CheckFailed: with the first difference and what is around it.
    """
    model = build_model(model_spec)
    output = token_list(value, what, model.config.vocab_size)
    if len(output) > n:
        cause = "one step too many: is a request retired as soon as it has its last token?"
        raise CheckFailed(f"{what}: {n} tokens", f"{len(output)} tokens: {clip(output)}", cause)
    difference = first_divergence(model, prompt, output, tolerance)
    if difference is not None:
        at = difference.position
        expected = output[:at] + greedy(model, prompt + output[:at], min(n - at, 6), eos_id)
        raise CheckFailed(
            f"{what}: token {difference.expected} at position {at} of the new tokens: {around(expected, at)}",
            f"token {difference.found} (its logit is {difference.gap:.3g} lower): {around(output, at)}",
            likely_cause(prompt, output, at),
        )
    if eos_id is not None and eos_id in output:
        first = output.index(eos_id)
        if first != len(output) - 1:
            raise CheckFailed(
                f"{what}: nothing after the end token {eos_id} at position {first}", f"{len(output) - 1 - first} more"
            )
    elif len(output) < n:
        cause = "a request is retired before its last token, or tokens made before a preemption are lost"
        raise CheckFailed(f"{what}: {n} tokens", f"{len(output)} tokens: {clip(output)}", cause)


def likely_cause(prompt: list[int], output: list[int], at: int) -> str:
    """A guess at the mistake from where the tokens go wrong."""
    if at == 0:
        return "the very first token comes from the prefill: its mask, its positions, or its last row"
    if at == 1:
        return "the first decode step: the position of the new token, the token that is fed in, or what it attends to"
    for length in range(3, at + 1):
        if output[at : at + length] == output[at - length : at]:
            return "a run of tokens comes twice: what was made before a preemption is counted again after it"
    if (len(prompt) + at - 1) % 16 == 0:
        return "it goes wrong where a new block begins: is the block table extended before the token is written?"
    return "decode: compare the keys and values in the pool with those of a full forward pass, position by position"


def around(tokens: list[int], at: int) -> str:
    """The tokens near a position, that one in brackets."""
    shown = [f"[{token}]" if index == at else str(token) for index, token in enumerate(tokens)]
    first, last = max(0, at - 3), at + 5
    return ("... " if first else "") + " ".join(shown[first:last]) + (" ..." if last < len(shown) else "")


def clip(tokens: list[int], most: int = 12) -> str:
    """The first tokens of a list."""
    return " ".join(map(str, tokens[:most])) + (" ..." if len(tokens) > most else "")


def judge_refusal(evidence: Any, words: list[str], what: str) -> None:
    """Whether the engine refused with a ValueError whose message has all of `words`.

    Raises:
        CheckFailed: it did not refuse, raised something else, or did not name the culprit.
    """
    if not isinstance(evidence, dict) or evidence.get("raised") != "ValueError":
        raised = evidence.get("raised") if isinstance(evidence, dict) else None
        found = f"{raised}: {evidence.get('message')}" if raised else f"no error; it returned {evidence}"
        raise CheckFailed(f"a ValueError before any work, because {what}", found, "check what comes in first")
    missing = [word for word in words if word not in str(evidence.get("message"))]
    if missing:
        raise CheckFailed(
            f"a message that names {' and '.join(missing)}, because {what}",
            f"ValueError: {evidence.get('message')}",
            "whoever reads the message must find the culprit without a debugger",
        )


def plain_int(report: dict[str, Any], key: str) -> int:
    """`report[key]`, which must be a plain int.

    Raises:
        CheckFailed: it is missing or something else.
    """
    value = report.get(key)
    if type(value) is not int:
        raise CheckFailed(f"report[{key!r}] as a plain int", f"{value!r}" if key in report else "no such key")
    return value
