"""What a student may read of a result: the visible checks' messages and the points of the hidden ones."""

from typing import Any

from grading.report.pages import escaped, page, table
from grading.report.words import UNSAFE, shown, title_of, unit_report, used


def student_text(result: dict[str, Any]) -> str:
    """A student's report as plain text."""
    lines = [f"{title_of(result)}, {result['student']}: {result['score']:g} of {result['of']:g} points", ""]
    lines += [UNSAFE, ""] if result["unsafe"] else []
    lines += [f"Note: {note}" for note in result["notes"]] + ([""] if result["notes"] else [])
    for name, unit in result["units"].items():
        lines += [f"{name}: {unit_report(unit)}", ""]
    if result["figures"]:
        lines += ["Your engine's own figures:"] + [
            f"  {key}: {shown(value)}" for key, value in result["figures"].items()
        ]
    return "\n".join([*lines, used(result), ""])


def student_html(result: dict[str, Any]) -> str:
    """A student's report as a page of its own."""
    parts = [
        f"<h1>{title_of(result)}, {escaped(result['student'])}: {result['score']:g} of {result['of']:g} points</h1>"
    ]
    parts += [f'<p class="warn">{UNSAFE}</p>'] if result["unsafe"] else []
    parts += [f'<p class="warn">{escaped(note)}</p>' for note in result["notes"]]
    rows = [
        [escaped(name), f"{unit['score']:g}", f"{unit['of']:g}",
         f"{unit['visible_points']:g} of {unit['visible_of']:g}",
         f"{unit['hidden_points']:g} of {unit['hidden_of']:g}" if unit["hidden_of"] else ""]
        for name, unit in result["units"].items()
    ]  # fmt: skip
    parts.append(table(["part", "points", "of", "visible checks", "hidden checks"], rows, numeric={1, 2, 3, 4}))
    for name, unit in result["units"].items():
        parts.append(f"<h2>{escaped(name)}</h2><ul>")
        for check in unit["visible"]:
            failed = check["status"] != "passed" and check["message"]
            message = f"<pre>{escaped(check['message'])}</pre>" if failed else ""
            claim = f"<b>{escaped(check['name'])}</b>: {escaped(check['claim'])}"
            parts.append(f'<li><span class="{check["status"]}">{claim}</span>{message}</li>')
        parts.append("</ul>")
    if result["figures"]:
        rows = [[escaped(key), escaped(shown(value))] for key, value in result["figures"].items()]
        parts += ["<h2>Your engine's own figures</h2>", table(["", ""], rows)]
    return page(f"{title_of(result)}, {result['student']}", [*parts, f"<p>{used(result)}</p>"])
