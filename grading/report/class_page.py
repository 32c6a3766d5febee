"""The class at a glance, for the instructor: a page and a figure."""

from collections import Counter
from pathlib import Path
from typing import Any

from grading.assignments import ASSIGNMENTS
from grading.report.pages import escaped, page, table
from grading.report.student_page import student_html, student_text
from grading.report.words import UNSAFE, parts_of


def class_html(
    assignment: str, results: list[dict[str, Any]], errors: dict[str, str], similar: list[tuple[float, str, str, str]]
) -> str:
    """The class at a glance, for the instructor."""
    names = list(parts_of(results[0])) if results else []
    rows = [
        [f'<a href="{escaped(r["student"])}/report.html">{escaped(r["student"])}</a>', f"{r['score']:g}",
         *(f"{score:g}" for score in parts_of(r).values()), f"{r['seconds']:.0f}", _folded(r["notes"])]
        for r in sorted(results, key=lambda r: r["student"])
    ]  # fmt: skip
    parts = [
        f"<h1>{ASSIGNMENTS[assignment].title}: {len(results)} submissions</h1>",
        '<p><img src="class.png" alt="Scores, and the checks that fail"></p>',
    ]
    if any(r["unsafe"] for r in results):
        parts.append(f'<p class="warn">{UNSAFE}</p>')
    if errors:
        parts.append("<h2>Not judged</h2><p>These have no score. Nothing of theirs counts as 0: run again.</p>")
        parts.append(
            table(["student", "why"], [[escaped(s), f"<pre>{escaped(why)}</pre>"] for s, why in sorted(errors.items())])
        )
    parts.append(
        table(["student", "score", *map(escaped, names), "s", "notes"], rows, numeric=set(range(1, len(names) + 3)))
    )
    parts.append("<h2>Checks that fail most</h2>")
    parts.append(
        table(["check", "students"], [[escaped(n), str(c)] for n, c in most_failed(results)[:15]], numeric={1})
    )
    parts.append("<h2>Similar files</h2><p>A place to look, never a verdict: short files on one task look alike.</p>")
    pairs = [[f"{share:.0%}", *map(escaped, names)] for share, *names in similar[:50]]
    parts.append(table(["share", "file", "one", "other"], pairs, numeric={0}))
    return page(f"{ASSIGNMENTS[assignment].title}, the class", parts)


def _folded(notes: list[str]) -> str:
    items = "".join(f"<li>{escaped(note)}</li>" for note in notes)
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
