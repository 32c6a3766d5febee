"""What judges of every subject ask of a probe's evidence, beside tokens."""

import re
from typing import Any

from checking.check import CheckFailed

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\d+(?:\.\d+)?")


def names(message: str, name: str) -> bool:
    """Whether a message has a name in it; a number as a number, so that 1 is neither in 16 nor missing in 1.0."""
    if _NUMBER.fullmatch(name):
        found = _NUMBER.findall(message) + _NUMBER.findall(re.sub(r"(?<=\d)[,_'](?=\d{3})", "", message))
        return float(name) in map(float, found)
    return name in message


def judge_refusal(evidence: Any, wanted: list[str | list[str]], what: str) -> None:
    """Whether the engine refused with a ValueError whose message has all that is `wanted`.

    Args:
        wanted: numbers and names that the message must have; of a list in it, one. Its words are the engine's own.

    Raises:
        CheckFailed: it did not refuse, raised something else, or did not name the culprit.
    """
    if not isinstance(evidence, dict) or evidence.get("raised") != "ValueError":
        raised = evidence.get("raised") if isinstance(evidence, dict) else None
        found = f"{raised}: {evidence.get('message')}" if raised else f"no error; it returned {evidence}"
        if isinstance(evidence, dict) and evidence.get("stopped"):
            found = "no error; it did not end, and was stopped"
        raise CheckFailed(
            f"a ValueError before any work, because {what}",
            found,
            "what never fits, or cannot be served, is refused first",
        )
    message = str(evidence.get("message"))
    choices = [[choice] if isinstance(choice, str) else choice for choice in wanted]
    missing = [" or ".join(choice) for choice in choices if not any(names(message, name) for name in choice)]
    if missing:
        raise CheckFailed(
            f"a message that names {' and '.join(missing)}, because {what}",
            f"ValueError: {message}",
            "whoever reads the message must find the culprit without a debugger",
        )


def judge_canaries(evidence: dict[str, Any]) -> None:
    """Whether the products of known size in `probes.observed` were counted.

    Raises:
        CheckFailed: they were not.
    """
    if evidence["canaries"] != [2 * 8 * 16 * 32] * 2:
        raise CheckFailed("PyTorch to count work as it does", "a count that was tampered with", "leave torch as it is")


def plain_int(report: dict[str, Any], key: str) -> int:
    """`report[key]`, which must be a plain int.

    Raises:
        CheckFailed: it is missing or something else.
    """
    value = report.get(key)
    if type(value) is not int:
        raise CheckFailed(f"report[{key!r}] as a plain int", f"{value!r}" if key in report else "no such key")
    return value
