"""The `course` command: thin sub-commands over the library, the milestones and, where it is there, grading."""

import os
from importlib import import_module

import typer

from course.finale import finale
from course.models import import_model, serve
from course.paths import ROOT
from course.student import check, hint, status, watch
from course.train import train

app = typer.Typer(no_args_is_help=True, add_completion=False)
for command in (finale, train, status, check, hint, watch, serve):
    app.command()(command)
app.command("import")(import_model)


@app.callback()
def _course() -> None:
    """Train, serve and check M13."""
    # Threads that spin while they wait make two of them slower than one on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def add_instructor_commands() -> None:
    """The sub-commands of `grading/` and `benchmarks/`, where they are there: not in a student's checkout."""
    for folder, module in (("grading", "instructor_commands"), ("benchmarks", "bench_command")):
        if (ROOT / folder / f"{module}.py").is_file():
            import_module(f"{folder}.{module}").register(app)


def main() -> None:
    add_instructor_commands()
    app()
