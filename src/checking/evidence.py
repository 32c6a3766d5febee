"""What judges of every subject ask of a probe's evidence, beside tokens."""

from typing import Any

from checking.check import CheckFailed


def judge_refusal(evidence: Any, words: list[str], what: str) -> None:
    """Whether the engine refused with a ValueError whose message has all of `words`.

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
    missing = [word for word in words if word not in str(evidence.get("message"))]
    if missing:
        raise CheckFailed(
            f"a message that names {' and '.join(missing)}, because {what}",
            f"ValueError: {evidence.get('message')}",
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
