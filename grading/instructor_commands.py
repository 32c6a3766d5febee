"""The instructor's sub-commands of `course`. Each is thin: it reads options, calls one function, prints."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ai_playground.checkout import repo_root
from grading.release.markers import ReleaseError
from grading.release.student_half import release_to
from grading.release.student_tree import regenerate, stale

ROOT = repo_root()


def register(app: typer.Typer) -> None:
    """Add the instructor's sub-commands to the `course` command."""
    app.command()(release)
    app.command()(grade)
    app.command()(gradescope)


def release(
    out: Annotated[
        Path | None, typer.Option(help="Write the student's half into this folder, as a repository of its own.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; list what is out of date, and fail if anything is.")
    ] = False,
) -> None:
    """Make assignments/ (and the project's stub) from solutions/; with --out, the student's half."""
    if out and check:
        raise typer.BadParameter("--out writes and --check does not: give one of them")
    try:
        if out:
            count = release_to(ROOT, out)
            typer.echo(f"{count} files in {out}. To publish them:  cd {out} && git add --all && git commit")
        elif check:
            if differences := stale(ROOT):
                typer.echo("Out of date (`uv run course release` mends it):\n  " + "\n  ".join(differences))
                raise typer.Exit(1)
            typer.echo("The generated tree is up to date.")
        else:
            changed = regenerate(ROOT)
            typer.echo("Written:\n  " + "\n  ".join(changed) if changed else "The generated tree was up to date.")
    except ReleaseError as error:
        typer.echo(f"Refused, and nothing was written.\n{error}", err=True)
        raise typer.Exit(1) from None


def grade(
    inbox: Annotated[
        Path | None,
        typer.Argument(help="What was downloaded from the LMS, zip or folder; default: what nbgrader collected."),
    ] = None,
    assignment: Annotated[str, typer.Option(help="m13 or p3_kv_serve.")] = "m13",
    jobs: Annotated[int | None, typer.Option(min=1, help="Judging processes; default: one a core.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Judge unchanged submissions again.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Without the sandbox: student code runs as you.")] = False,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler whose workers judge.")] = None,
    gradebook: Annotated[bool, typer.Option(help="Record the scores in nbgrader's gradebook.")] = True,
    roster: Annotated[
        Path | None, typer.Option(help="The LMS's list of students, as CSV: names, ids, extensions.")
    ] = None,
    due: Annotated[str, typer.Option(help='When it was due, such as "2026-12-18 23:59 UTC": for late days.')] = "",
) -> None:
    """Judge a class: results, gradebook, reports and grades.csv, below grading/class/ASSIGNMENT."""
    from checking.supervisor import WorkerBroken
    from grading import class_run  # here and not above: it loads torch, which the other sub-commands do without
    from grading.folders import SUBMITTED
    from grading.judging.sandbox import SandboxError
    from grading.roster import read_roster

    console = Console()
    try:
        people = read_roster(roster.read_text(encoding="utf-8-sig")) if roster else None
        done = class_run.grade(
            inbox or SUBMITTED, assignment, jobs=jobs or class_run.default_jobs(), force=force, unsafe=unsafe,
            scheduler=scheduler, roster=people, console=console,
        )  # fmt: skip
        class_run.publish(done, assignment, gradebook=gradebook, roster=people, console=console, due=due)
    except (SandboxError, WorkerBroken, ValueError) as error:
        typer.echo(f"Nothing was graded.\n{error}", err=True)
        raise typer.Exit(1) from None
    if done.errors:
        raise typer.Exit(1)


def gradescope(
    out: Annotated[Path, typer.Option(help="The zip to write.")] = Path("autograder.zip"),
    assignment: Annotated[str, typer.Option(help="m13 or p3_kv_serve.")] = "m13",
) -> None:
    """Build the zip that Gradescope takes as a programming assignment's autograder."""
    from grading.gradescope import build

    try:
        names = build(out, assignment)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(f"{out}: {len(names)} files. Upload it under Configure Autograder, with Ubuntu 22.04 or later.")
