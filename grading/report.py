"""What comes out of grading: a report for each student, a page and a figure for the class, grades.csv, similarities.

Student reports hold the visible checks' messages and the points of the hidden ones, nothing else of them. All text
that a student had a hand in is escaped, and the pages allow no script.
"""

import csv
import html
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ai_playground.checkout import repo_root
from grading.assignments import ASSIGNMENTS, place, released
from grading.nbgrader_hooks import unit_report
from milestones.points import CHAPTER

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; text-align: left; border-bottom: 1px solid #8886; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .6rem; border-radius: .3rem; }
.passed::before { content: "\\2713\\00a0"; color: #2a8; } .failed::before { content: "\\2717\\00a0"; color: #d33; }
.not_written::before { content: "\\2013\\00a0"; } .warn { border-left: 4px solid #d33; padding-left: .8rem; }
img { max-width: 100%; background: white; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:"
SIMILAR = 0.6  # the share of a file in another one from which on a pair is shown
_UNSAFE = "Judged with --unsafe: this code ran without a sandbox, so the result may have been tampered with."


def student_text(result: dict[str, Any]) -> str:
    """A student's report as plain text."""
    lines = [f"{_title(result)}, {result['student']}: {result['score']:g} of {result['of']:g} points", ""]
    lines += [_UNSAFE, ""] if result["unsafe"] else []
    lines += [f"Note: {note}" for note in result["notes"]] + ([""] if result["notes"] else [])
    for name, unit in result["units"].items():
        lines += [f"{name}: {unit_report(unit)}", ""]
    if result["figures"]:
        lines += ["Your engine's own figures:"] + [
            f"  {key}: {_show(value)}" for key, value in result["figures"].items()
        ]
    return "\n".join([*lines, _used(result), ""])


def student_html(result: dict[str, Any]) -> str:
    """A student's report as a page of its own."""
    parts = [f"<h1>{_title(result)}, {_e(result['student'])}: {result['score']:g} of {result['of']:g} points</h1>"]
    parts += [f'<p class="warn">{_UNSAFE}</p>'] if result["unsafe"] else []
    parts += [f'<p class="warn">{_e(note)}</p>' for note in result["notes"]]
    rows = [
        [_e(name), f"{unit['score']:g}", f"{unit['of']:g}", f"{unit['visible_points']:g} of {unit['visible_of']:g}",
         f"{unit['hidden_points']:g} of {unit['hidden_of']:g}" if unit["hidden_of"] else ""]
        for name, unit in result["units"].items()
    ]  # fmt: skip
    parts.append(_table(["part", "points", "of", "visible checks", "hidden checks"], rows, numeric={1, 2, 3, 4}))
    for name, unit in result["units"].items():
        parts.append(f"<h2>{_e(name)}</h2><ul>")
        for check in unit["visible"]:
            failed = check["status"] != "passed" and check["message"]
            message = f"<pre>{_e(check['message'])}</pre>" if failed else ""
            claim = f"<b>{_e(check['name'])}</b>: {_e(check['claim'])}"
            parts.append(f'<li><span class="{check["status"]}">{claim}</span>{message}</li>')
        parts.append("</ul>")
    if result["figures"]:
        rows = [[_e(key), _e(_show(value))] for key, value in result["figures"].items()]
        parts += ["<h2>Your engine's own figures</h2>", _table(["", ""], rows)]
    return _page(f"{_title(result)}, {result['student']}", [*parts, f"<p>{_used(result)}</p>"])


def class_html(
    assignment: str, results: list[dict[str, Any]], errors: dict[str, str], similar: list[tuple[float, str, str, str]]
) -> str:
    """The class at a glance, for the instructor."""
    names = list(parts_of(results[0])) if results else []
    rows = [
        [f'<a href="{_e(r["student"])}/report.html">{_e(r["student"])}</a>', f"{r['score']:g}",
         *(f"{score:g}" for score in parts_of(r).values()), f"{r['seconds']:.0f}", _folded(r["notes"])]
        for r in sorted(results, key=lambda r: r["student"])
    ]  # fmt: skip
    parts = [
        f"<h1>{ASSIGNMENTS[assignment].title}: {len(results)} submissions</h1>",
        '<p><img src="class.png" alt="Scores, and the checks that fail"></p>',
    ]
    if any(r["unsafe"] for r in results):
        parts.append(f'<p class="warn">{_UNSAFE}</p>')
    if errors:
        parts.append("<h2>Not judged</h2><p>These have no score. Nothing of theirs counts as 0: run again.</p>")
        parts.append(
            _table(["student", "why"], [[_e(s), f"<pre>{_e(why)}</pre>"] for s, why in sorted(errors.items())])
        )
    parts.append(
        _table(["student", "score", *map(_e, names), "s", "notes"], rows, numeric=set(range(1, len(names) + 3)))
    )
    parts.append("<h2>Checks that fail most</h2>")
    parts.append(_table(["check", "students"], [[_e(n), str(c)] for n, c in most_failed(results)[:15]], numeric={1}))
    parts.append("<h2>Similar files</h2><p>A place to look, never a verdict: short files on one task look alike.</p>")
    pairs = [[f"{share:.0%}", *map(_e, names)] for share, *names in similar[:50]]
    parts.append(_table(["share", "file", "one", "other"], pairs, numeric={0}))
    return _page(f"{ASSIGNMENTS[assignment].title}, the class", parts)


def parts_of(result: dict[str, Any]) -> dict[str, float]:
    """The scores of a result's parts, the chapter's cells as one."""
    parts: dict[str, float] = {}
    for name, unit in result["units"].items():
        part = "chapter" if name in CHAPTER else name
        parts[part] = round(parts.get(part, 0.0) + unit["score"], 2)
    return parts


def _folded(notes: list[str]) -> str:
    items = "".join(f"<li>{_e(note)}</li>" for note in notes)
    return f"<details><summary>{len(notes)}</summary><ul>{items}</ul></details>" if notes else ""


def most_failed(results: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Checks by the number of students who wrote something and do not pass them; hidden ones are marked."""
    failed: Counter[str] = Counter()
    for result in results:
        for unit in result["units"].values():
            failed.update(check["name"] for check in unit["visible"] if check["status"] == "failed")
            failed.update(f"{check['name']} (hidden)" for check in unit["hidden"] if check["status"] == "failed")
    return failed.most_common()


def class_figure(assignment: str, results: list[dict[str, Any]], path: Path) -> None:
    """Score distribution, and the checks that fail most, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    of = ASSIGNMENTS[assignment].points
    step = of / 10
    left.hist([r["score"] for r in results], bins=[step * i for i in range(11)], color="#3b6ea8", edgecolor="white")
    left.set(xlabel=f"points of {of:g}", ylabel="students", title=f"{len(results)} submissions", xlim=(0, of))
    left.yaxis.get_major_locator().set_params(integer=True)
    failed = most_failed(results)[:10][::-1]
    right.barh([name for name, _ in failed], [count for _, count in failed], color="#c8743c")
    right.set(xlabel="students", title="checks that fail most")
    right.xaxis.get_major_locator().set_params(integer=True)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def grades_csv(scores: dict[str, float], assignment: str, roster: str | None = None) -> str:
    """grades.csv as Canvas imports it (docs: community.canvaslms.com, "import grades in the Gradebook").

    Args:
        scores: student id -> points.
        assignment: a name of `ASSIGNMENTS`, whose column and points they are.
        roster: a gradebook that Canvas exported, as text: its names, IDs and sections are taken over by the SIS login
            (the student's id here). Without it the student's id stands in `Student` and `SIS Login ID`.

    Raises:
        ValueError: a roster without Canvas's columns.
    """
    columns = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, ASSIGNMENTS[assignment].column])
    writer.writerow(["    Points Possible", "", "", "", "", f"{ASSIGNMENTS[assignment].points:g}"])
    known: dict[str, list[str]] = {}
    if roster is not None:
        reader = csv.DictReader(io.StringIO(roster.lstrip("\ufeff")))
        if missing := [
            column for column in ("Student", "ID", "SIS Login ID") if column not in (reader.fieldnames or ())
        ]:
            raise ValueError(f"expected a gradebook exported from Canvas; it has no column {', '.join(missing)}")
        known = {row["SIS Login ID"]: [row.get(column) or "" for column in columns] for row in reader}
    for student, score in sorted(scores.items()):
        row = known.get(student, [student, "", "", student, ""])
        writer.writerow([*map(_no_formula, row), f"{score:g}"])
    return out.getvalue()


def similarities(folders: dict[str, Path], assignment: str) -> list[tuple[float, str, str, str]]:
    """Pairs of students whose files of one name share much code: (share, file, student, student), highest first.

    By copydetect (winnowing, Schleimer et al., SIGMOD 2003); what stands in the released stubs does not count.
    """
    import copydetect

    found = []
    for name in (name for name in released(assignment) if name.endswith(".py")):
        owner = {str(path): student for student, folder in folders.items() if (path := folder / name).is_file()}
        detector = copydetect.CopyDetector(autoopen=False, silent=True)
        detector.add_file(str(repo_root() / place(assignment, name)), "boilerplate")
        for path in owner:
            detector.add_file(path)
        if len(owner) > 1:
            detector.run()
            # Not its list of copied code, which holds both texts of each pair: a large class would not fit in memory.
            shares = np.triu(detector.similarity_matrix.max(axis=2), 1)
            students = [owner[path] for path in detector.test_files]
            found += [
                (float(shares[i, j]), name, *sorted((students[i], students[j])))
                for i, j in np.argwhere(shares > SIMILAR)
            ]
    return sorted(found, reverse=True)


def write_reports(
    folder: Path,
    assignment: str,
    results: list[dict[str, Any]],
    errors: dict[str, str],
    similar: list[tuple[float, str, str, str]],
) -> None:
    """All pages below `folder`: `index.html`, `class.png`, and `STUDENT/report.html` and `.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        own = folder / result["student"]
        own.mkdir(exist_ok=True)
        (own / "report.html").write_text(student_html(result), encoding="utf-8")
        (own / "report.txt").write_text(student_text(result), encoding="utf-8")
    class_figure(assignment, results, folder / "class.png")
    (folder / "index.html").write_text(class_html(assignment, results, errors, similar), encoding="utf-8")


def _title(result: dict[str, Any]) -> str:
    return ASSIGNMENTS[result["assignment"]].title


def _used(result: dict[str, Any]) -> str:
    memory = f", at most {result['peak_mib']} MiB of memory" if result["peak_mib"] else ""
    cpu = f" ({result['cpu_seconds']:g} s of CPU)" if result["cpu_seconds"] else ""
    return f"Judged in {result['seconds']:g} s{cpu}{memory}."


def _show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _no_formula(text: str) -> str:
    """A spreadsheet would run a cell that begins so."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t") else text


def _e(text: str) -> str:
    return html.escape(str(text))


def _table(head: list[str], rows: list[list[str]], numeric: set[int] = frozenset()) -> str:
    def line(tag: str, cells: list[str]) -> str:
        marked = (f'<{tag} class="n">' if index in numeric else f"<{tag}>" for index in range(len(cells)))
        return "<tr>" + "".join(f"{open_}{cell}</{tag}>" for open_, cell in zip(marked, cells, strict=True)) + "</tr>"

    return "<table>" + line("th", head) + "".join(line("td", row) for row in rows) + "</table>"


def _page(title: str, parts: list[str]) -> str:
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head += f'<meta name="viewport" content="width=device-width"><title>{_e(title)}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'
