"""The `course` command: thin sub-commands over the library, the milestones and, where it is there, grading."""

import typer

app = typer.Typer(help="Train, serve and check M13.", no_args_is_help=True, add_completion=False)


def main() -> None:
    app()
