"""Results as judging writes them, made without judging."""

from typing import Any

from grading.assignments import ASSIGNMENTS


def made(student: str, share: float, *, message: str = "", **changes: Any) -> dict[str, Any]:
    """A result in which the first checks pass, until `share` of the points is reached."""
    assignment = ASSIGNMENTS["m13"]
    left = share * assignment.points
    units = {}
    for unit in assignment.units():
        parts: dict[str, list[dict[str, Any]]] = {"visible": [], "hidden": []}
        for kind, checks in (("visible", unit.visible), ("hidden", unit.hidden)):
            for check, of in checks:
                points = max(0.0, min(of, left))
                left -= points
                passed = points > of - 1e-9
                text = "" if passed else message or f"expected what is right; found what {student} wrote"
                parts[kind].append(
                    {"name": check.name, "claim": check.claim, "status": "passed" if passed else "failed",
                     "points": points, "of": of, "message": text, "seconds": 0.5}
                )  # fmt: skip
        earned = {kind: sum(check["points"] for check in checks) for kind, checks in parts.items()}
        units[unit.name] = {
            "score": round(earned["visible"] + earned["hidden"], 2),
            "of": unit.points,
            "visible_points": round(earned["visible"], 2),
            "visible_of": sum(of for _, of in unit.visible),
            "hidden_points": round(earned["hidden"], 2),
            "hidden_of": sum(of for _, of in unit.hidden),
            **parts,
        }
    return {
        "format": 0, "student": student, "assignment": "m13", "key": "", "units": units,
        "score": round(sum(unit["score"] for unit in units.values()), 2), "of": assignment.points, "notes": [],
        "unsafe": False, "seconds": 9.0, "cpu_seconds": 8.0, "peak_mib": 700, "figures": None, "judged_at": 0.0,
    } | changes  # fmt: skip
