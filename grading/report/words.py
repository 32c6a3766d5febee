"""The words that all reports share: for one unit, for a whole result."""

from textwrap import wrap
from typing import Any

from grading.assignments import ASSIGNMENTS
from milestones.points import CHAPTER

UNSAFE = "Judged with --unsafe: this code ran without a sandbox, so the result may have been tampered with."


def unit_report(unit: dict[str, Any]) -> str:
    """What a student reads about one milestone or cell, in plain text; of hidden checks only their points."""
    lines = [f"{unit['score']:g} of {unit['of']:g} points"]
    for check in unit["visible"]:
        lines.append(f"  {check['name']}: {check['status'].replace('_', ' ')}")
        if check["status"] != "passed" and check["message"]:
            for line in check["message"].splitlines():  # pages show it as it is, and cut what is wider
                lines += wrap(f"    {line}", 110, subsequent_indent=" " * 20, break_long_words=False) or [""]
    if unit["hidden_of"]:
        lines.append(f"  hidden checks: {unit['hidden_points']:g} of {unit['hidden_of']:g} points")
    return "\n".join(lines)


def parts_of(result: dict[str, Any]) -> dict[str, float]:
    """The scores of a result's parts, the chapter's cells as one."""
    parts: dict[str, float] = {}
    for name, unit in result["units"].items():
        part = "chapter" if name in CHAPTER else name
        parts[part] = round(parts.get(part, 0.0) + unit["score"], 2)
    return parts


def title_of(result: dict[str, Any]) -> str:
    """The assignment's name in reports."""
    return ASSIGNMENTS[result["assignment"]].title


def used(result: dict[str, Any]) -> str:
    """What judging took, in words."""
    memory = f", at most {result['peak_mib']} MiB of memory" if result["peak_mib"] else ""
    cpu = f" ({result['cpu_seconds']:g} s of CPU)" if result["cpu_seconds"] else ""
    return f"Judged in {result['seconds']:g} s{cpu}{memory}."


def shown(value: Any) -> str:
    """A figure of an engine's own, in short."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
