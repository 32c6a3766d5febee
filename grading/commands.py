"""The instructor's sub-commands of `course`. Each is thin: it reads options, calls one function, prints."""

from pathlib import Path
from typing import Annotated

import typer

from grading.markers import ReleaseError
from grading.release import ROOT, regenerate, release_to, stale


def register(app: typer.Typer) -> None:
    """Add the instructor's sub-commands to the `course` command."""
    app.command()(release)


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
