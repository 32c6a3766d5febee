"""What the sub-commands print with, and how they end when something is wrong."""

from typing import NoReturn

import typer
from rich.console import Console

console = Console(highlight=False)


def stop(message: str) -> NoReturn:
    """Say what is wrong, without a traceback, and exit with status 1."""
    console.print(message, style="red", markup=False)
    raise typer.Exit(1)
