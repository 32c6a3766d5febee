"""The student's loop: `course status`, `course check`, `course hint` and `course watch`.

They run the same checks as `uv run pytest tests/milestones`, which stays the authority.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from course.console import console
from course.paths import ROOT
from milestones.subjects import MILESTONES, PARTS, SESSIONS

if TYPE_CHECKING:
    from checking.check import Check, Result
    from checking.supervisor import Worker

STATE = ROOT / ".course" / "state.json"  # which hints were given, and what the last run found; git ignores it
STUDENT_FILES = ("assignments/m13/*.py", "assignments/m13/*.ipynb", "checkpoints/myllm/src/*.py")
MARKS = {"passed": "[green]passed[/green]", "failed": "[red]failed[/red]", "not_written": "[dim]not written yet[/dim]"}

EngineOption = Annotated[str, typer.Option(help="`assignments` (yours), `solutions` (if it is here) or a path.")]


def check(
    name: Annotated[str, typer.Argument(help="A part, such as m13b, s4_1 or p3, or one check, such as m13b.lengths.")],
    engine: EngineOption = "assignments",
    workspace: Annotated[Path | None, typer.Option(help="The folder of the trained model.")] = None,
) -> None:
    """Run the checks of one session or milestone, or one check, and say what to look at."""
    from checking.supervisor import Worker

    with Worker(env=_environment(workspace)) as worker:
        results = list(_run(_checks(name), engine, worker, show=True))
    if any(result.status != "passed" for result in results):
        raise typer.Exit(1)


def status() -> None:
    """The sessions and milestones in order: state, points, and what to do next."""
    from checking.supervisor import Worker
    from milestones.points import CHAPTER
    from milestones.points import MILESTONES as POINTS

    points = {s: sum(CHAPTER[c.name.split(".")[1]] for c in _checks(s)) for s in SESSIONS} | POINTS

    remembered = _read_state().get("results", {})
    fingerprint = _fingerprint()
    with Worker() as worker:
        table = Table("part", "state", "checks passed", "points", title="M13", title_justify="left")
        following = ""
        for milestone in SESSIONS | MILESTONES:
            known = remembered.get(milestone, {})
            if known.get("fingerprint") != fingerprint:
                results = list(_run(_checks(milestone), "assignments", worker, show=False))
                known = {"fingerprint": fingerprint, "statuses": [result.status for result in results]}
                _write_state(results={**_read_state().get("results", {}), milestone: known})
            statuses = known["statuses"]
            state = _state_of(statuses)
            passed = f"{statuses.count('passed')} of {len(statuses)}"
            table.add_row(milestone.upper(), MARKS[state], passed, f"{points[milestone]}")
            if state != "passed" and not following:
                following = milestone
    console.print(table)
    console.print(
        "Points are given when the class is graded: the checks you see here, and hidden ones on other inputs."
    )
    if following:
        console.print(
            f"Next: {following.upper()}. Read {PARTS[following].card}, then `uv run course check {following}`."
        )
    else:
        console.print("All milestones pass. `uv run course finale --engine assignments` is yours to enjoy.")


def hint(
    milestone: Annotated[str, typer.Argument(help="Such as m13b or s4_1.")],
    again: Annotated[bool, typer.Option("--again", help="Show the hints so far, and no new one.")] = False,
) -> None:
    """The next rung of a card's hint ladder; it remembers where you were."""
    rungs = _hints(milestone)
    given = _read_state().get("hints", {})
    count = min(given.get(milestone, 0) + (0 if again else 1), len(rungs))
    if not count:
        console.print(f"No hint was given yet. `uv run course hint {milestone}` gives the first of {len(rungs)}.")
        return
    _write_state(hints={**given, milestone: count})
    for number in range(1 if again else count, count + 1):
        console.print(f"[bold]{milestone}, hint {number} of {len(rungs)}[/bold]")
        console.print(rungs[number - 1] + "\n", markup=False)
    if count == len(rungs):
        console.print("That was the last rung of this ladder.")


def watch(
    name: Annotated[str | None, typer.Argument(help="One part, such as m13b or s4_1; else the next milestone.")] = None,
    engine: EngineOption = "assignments",
) -> None:
    """Run the current milestone's checks whenever a file is saved; Ctrl-C ends it."""
    from watchfiles import watch as watch_files

    from checking.supervisor import Worker

    checks = [check for part in ([name] if name else MILESTONES) for check in _checks(part)]
    paths = {_engine_path(engine, check) for check in checks}
    folders = {path if path.is_dir() else path.parent for path in paths}
    if engine == "assignments" and name != "p3":
        folders.add(ROOT / "assignments" / "m13")
    console.print(f"Watching {', '.join(map(str, sorted(folders)))}; Ctrl-C ends it.")
    with Worker() as worker:
        open_check = _watch_once(checks, engine, worker)
        for changes in watch_files(*folders, raise_interrupt=False):
            if any(changed.endswith((".py", ".ipynb")) for _, changed in changes):
                console.rule(time.strftime("%H:%M:%S"))
                # The one that is being worked on first: its message is what is waited for.
                checks.sort(key=lambda check: check.name != open_check)
                open_check = _watch_once(checks, engine, worker)


def _watch_once(checks: list["Check"], engine: str, worker: "Worker") -> str:
    """Go through the checks up to the first one that does not pass; returns its name, or ""."""
    start = time.monotonic()
    for result in _run(checks, engine, worker, show=True):
        if result.status != "passed":
            console.print(f"[dim]{time.monotonic() - start:.1f} s[/dim]")
            return result.check.name
    console.print(f"[green]All of these checks pass.[/green] [dim]{time.monotonic() - start:.1f} s[/dim]")
    return ""


def _checks(name: str) -> list["Check"]:
    """The checks that a name means.

    Raises:
        typer.BadParameter: no such milestone or check, with the names there are.
    """
    milestone = name.lower().split(".")[0]
    if milestone not in PARTS:
        raise typer.BadParameter(f"no part {name!r}; there are {', '.join(PARTS)}")
    checks = PARTS[milestone].checks(milestone)
    wanted = [check for check in checks if name.lower() in (milestone, check.name)]
    if not wanted:
        raise typer.BadParameter(f"no check {name!r}; there are {', '.join(check.name for check in checks)}")
    return wanted


def _run(checks: list["Check"], engine: str, worker: "Worker", *, show: bool) -> Iterator["Result"]:
    from checking.judging import run_check

    for check in checks:
        result = run_check(check, _engine_path(engine, check), worker)
        if show:
            console.print(f"{MARKS[result.status]}  {check.name}  [dim]{check.claim} ({result.seconds:.1f} s)[/dim]")
            if result.message:
                console.print(result.message, markup=False)
        yield result


def _engine_path(name: str, check: "Check") -> Path:
    """Where a check finds an engine, or the notebook of the same student."""
    if check.milestone in SESSIONS:
        folder = ROOT / name / "m13" if name in check.subject.here() else Path(name)
        name = str(folder / "mini_vllm.ipynb")
    try:
        return check.subject.find(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _state_of(statuses: list[str]) -> str:
    for state in ("failed", "not_written"):
        if state in statuses:
            return state
    return "passed"


def _hints(milestone: str) -> list[str]:
    """The rungs of a card's ladder: what stands below `### 1`, `### 2`, ... in its section `## Hints`.

    Raises:
        typer.BadParameter: no such card, or one without hints.
    """
    if milestone.lower() == "p3":
        raise typer.BadParameter("p3 has no hints: it is done from memory. projects/p3_kv_serve/README.md is its brief")
    if milestone.lower() not in PARTS:
        raise typer.BadParameter(f"no card {milestone}.md; there are {', '.join(sorted(SESSIONS | MILESTONES))}")
    path = ROOT / PARTS[milestone.lower()].card
    section = path.read_text(encoding="utf-8").partition("\n## Hints")[2].split("\n## ")[0]
    rungs = [rung.strip() for rung in re.split(r"^### \d+.*$", section, flags=re.MULTILINE)[1:]]
    if not rungs:
        raise typer.BadParameter(f"{path.name} has no hints")
    return rungs


def _fingerprint() -> str:
    """A hash of the student's files: results are remembered for as long as it stays the same."""
    digest = hashlib.sha256()
    for pattern in STUDENT_FILES:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _read_state() -> dict[str, Any]:
    try:
        return json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # a lost memory costs one run


def _write_state(**changes: Any) -> None:
    from ai_playground.workspace import write_json

    STATE.parent.mkdir(exist_ok=True)
    write_json(STATE, {**_read_state(), **changes})


def _environment(workspace: Path | None) -> dict[str, str] | None:
    if workspace is None:
        return None
    os.environ["COURSE_WORKSPACE"] = str(workspace.resolve())  # for the judge, which runs here
    return dict(os.environ)
