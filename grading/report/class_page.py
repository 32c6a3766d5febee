"""The class, for the instructor: a page to work from. Who still needs something, how it went, where it failed, why."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from grading.assignments import ASSIGNMENTS
from grading.report.pages import SORTING, escaped, page, sortable, table
from grading.report.student_page import student_html, student_text
from grading.report.words import UNSAFE, parts_of

SHOWN_CHECKS = 20
SHOWN_SLOW = 10


@dataclass
class ClassSeen:
    """What the class page shows beside the results.

    Attributes:
        names, times: student id -> name as it came, and when; "" where it is not known.
        late: whom the LMS calls late without saying by how much.
        errors: who could not be judged, and why.
        ungradable: who handed in nothing that can be graded, and what to ask for.
        missing: who is on the roster and handed in nothing.
        scores: as in the gradebook, with manual grades and late penalties.
        similar: pairs of files that look alike: (share, file, student, student).
    """

    names: dict[str, str] = field(default_factory=dict)
    times: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    ungradable: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    similar: list[tuple[float, str, str, str]] = field(default_factory=list)


def class_html(assignment: str, results: list[dict[str, Any]], seen: ClassSeen) -> str:
    """The whole page."""
    title = ASSIGNMENTS[assignment].title
    parts = [f"<h1>{title}: {len(results)} submissions</h1>", *_needs(seen)]
    if any(result["unsafe"] for result in results):
        parts.append(f'<p class="warn">{UNSAFE}</p>')
    if results:
        scores = [_score(result, seen) for result in results]
        of = ASSIGNMENTS[assignment].points
        parts.append(f"<p>Median {median(scores):g} of {of:g}; lowest {min(scores):g}, highest {max(scores):g}.</p>")
        parts.append('<p><img src="class.png" alt="How many students have how many points, and the median"></p>')
        parts += [*_students(results, seen), *_failures(results), *_slowest(results)]
    else:
        parts.append("<p>Nobody has a result yet.</p>")
    return page(f"{title}, the class", [*parts, *_similar(seen)], script=SORTING)


def _needs(seen: ClassSeen) -> list[str]:
    """Everybody who has no score, or whose lateness a person must look up."""
    parts = []
    if seen.errors:
        rows = [[_named(student, seen), f"<pre>{escaped(why)}</pre>"] for student, why in sorted(seen.errors.items())]
        parts.append("<h2>Not judged</h2><p>These have no score. Nothing of theirs counts as 0: run again.</p>")
        parts.append(table(["student", "why"], rows))
    if seen.ungradable:
        rows = [[_named(student, seen), _list(asks)] for student, asks in sorted(seen.ungradable.items())]
        parts.append("<h2>Handed in, but not gradable</h2><p>These have no score until they hand in anew.</p>")
        parts.append(table(["student", "what to ask for"], rows))
    for heading, students in (
        ("Has not handed in", seen.missing),
        ("Late, as the LMS says, which does not say by how much", seen.late),
    ):
        if students:
            who = ", ".join(_named(student, seen) for student in students)
            parts.append(f"<h2>{heading}: {len(students)}</h2><p>{who}</p>")
    return parts


def _students(results: list[dict[str, Any]], seen: ClassSeen) -> list[str]:
    names = list(parts_of(results[0]))
    rows = [
        [_link(r["student"]), escaped(seen.names.get(r["student"], "")), escaped(seen.times.get(r["student"], "")),
         f"{_score(r, seen):g}", *(f"{score:g}" for score in parts_of(r).values()), f"{r['seconds']:.0f}",
         _folded(r["notes"])]
        for r in sorted(results, key=lambda r: r["student"])
    ]  # fmt: skip
    head = ["student", "name", "handed in", "score", *map(escaped, names), "s", "notes"]
    return ["<h2>Students</h2>", sortable(head, rows, numeric=set(range(3, len(names) + 5)))]


def _failures(results: list[dict[str, Any]]) -> list[str]:
    """The checks that fail most: what they say most often, and to whom."""
    failed = most_failed(results)
    if not failed:
        return ["<h2>Checks that fail</h2><p>None.</p>"]
    rows = []
    for name, messages in list(failed.items())[:SHOWN_CHECKS]:
        said = Counter(message for message in messages.values() if message)
        most = f"<pre>{escaped(said.most_common(1)[0][0])}</pre>" if said else ""
        who = ", ".join(_link(student) for student in sorted(messages))
        rows.append([escaped(name), str(len(messages)), most, f"<details><summary>who</summary>{who}</details>"])
    head = ["check", "students", "its most frequent message", ""]
    return ["<h2>Checks that fail most</h2>", sortable(head, rows, numeric={1})]


def _slowest(results: list[dict[str, Any]]) -> list[str]:
    slow = sorted(results, key=lambda result: -result["seconds"])[:SHOWN_SLOW]
    rows = [
        [_link(r["student"]), f"{r['seconds']:.1f}", f"{r['cpu_seconds'] or 0:.1f}", str(r["peak_mib"] or ""),
         str(len(r["notes"]))]
        for r in slow
    ]  # fmt: skip
    head = ["student", "s", "CPU s", "MiB", "notes"]
    return ["<h2>Slowest submissions</h2>", sortable(head, rows, numeric={1, 2, 3, 4})]


def _similar(seen: ClassSeen) -> list[str]:
    if not seen.similar:
        return []
    pairs = [[f"{share:.0%}", *map(escaped, names)] for share, *names in seen.similar[:50]]
    return [
        "<h2>Similar files</h2><p>A place to look, never a verdict: short files on one task look alike.</p>",
        sortable(["share", "file", "one", "other"], pairs, numeric={0}),
    ]


def _score(result: dict[str, Any], seen: ClassSeen) -> float:
    return seen.scores.get(result["student"], result["score"])


def _link(student: str) -> str:
    return f'<a href="{escaped(student)}/report.html">{escaped(student)}</a>'


def _named(student: str, seen: ClassSeen) -> str:
    name = seen.names.get(student, "")
    return escaped(student if name in ("", student) else f"{student} ({name})")


def _list(lines: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escaped(line)}</li>" for line in lines) + "</ul>"


def _folded(notes: list[str]) -> str:
    return f"<details><summary>{len(notes)}</summary>{_list(notes)}</details>" if notes else ""


def most_failed(results: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Check -> student -> message, of those who wrote something and do not pass it; most students first.

    Hidden checks are marked, and their messages are the instructor's alone.
    """
    failed: dict[str, dict[str, str]] = defaultdict(dict)
    for result in results:
        for unit in result["units"].values():
            for mark, checks in (("", unit["visible"]), (" (hidden)", unit["hidden"])):
                for check in checks:
                    if check["status"] == "failed":
                        failed[check["name"] + mark][result["student"]] = check["message"]
    return dict(sorted(failed.items(), key=lambda item: -len(item[1])))


def class_figure(assignment: str, scores: list[float], path: Path) -> None:
    """How the scores are spread, as a PNG; `scores` must not be empty."""
    from matplotlib.figure import Figure

    of = ASSIGNMENTS[assignment].points
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    axes.hist(scores, bins=[of / 10 * i for i in range(11)], color="#3b6ea8", edgecolor="white")
    axes.axvline(median(scores), color="#c8743c", label=f"median {median(scores):g}")
    axes.set(xlabel=f"points of {of:g}", ylabel="students", xlim=(0, of))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)


def write_reports(folder: Path, assignment: str, results: list[dict[str, Any]], seen: ClassSeen) -> None:
    """All pages below `folder`: `index.html`, `class.png`, and `STUDENT/report.html` and `.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        own = folder / result["student"]
        own.mkdir(exist_ok=True)
        (own / "report.html").write_text(student_html(result), encoding="utf-8")
        (own / "report.txt").write_text(student_text(result), encoding="utf-8")
    if results:
        class_figure(assignment, [_score(result, seen) for result in results], folder / "class.png")
    (folder / "index.html").write_text(class_html(assignment, results, seen), encoding="utf-8")
