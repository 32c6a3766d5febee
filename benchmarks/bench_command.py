"""`course bench`: it reads options, runs, writes a JSON file and two figures, and prints the table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]


def register(app: typer.Typer) -> None:
    """Add `course bench`."""
    app.command()(bench)


def bench(
    workload: Annotated[
        list[str] | None, typer.Option(help="w1-fp32, w1-bf16, w2-fp32, w2-bf16, w3; default all.")
    ] = None,
    peers: Annotated[list[str] | None, typer.Option(help="Who serves; default everybody who is installed.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Rounds; the table shows medians.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every peer.")] = 2,
    workspace: Annotated[Path | None, typer.Option(help="What `course import smollm2` wrote; w1 needs it.")] = None,
    envs: Annotated[Path, typer.Option(help="The peers' environments, see benchmarks/README.md.")] = ROOT
    / ".course"
    / "peers",
    out: Annotated[Path, typer.Option(help="The folder for the JSON file and the figures.")] = ROOT
    / "benchmarks"
    / "results",
    scaling: Annotated[bool, typer.Option(help="Also measure the roofline, decode steps and how they grow.")] = True,
) -> None:
    """Measure the engine beside its peers, all in one run."""
    from ai_playground.workspace import write_json
    from benchmarks import figures, rounds
    from benchmarks.workloads import WORKLOADS

    names = workload or [name for name in WORKLOADS if workspace or WORKLOADS[name].model == "toy"]
    for name, known in [(name, WORKLOADS) for name in names] + [(peer, rounds.PEERS) for peer in peers or ()]:
        if name not in known:
            raise typer.BadParameter(f"no {name!r}; there are {', '.join(known)}")
    console = Console()
    cache = ROOT / ".course" / "bench"
    settings = rounds.Settings(
        names, peers or list(rounds.PEERS), runs, threads, workspace, envs.absolute(), cache, console.print
    )
    try:
        found = {"machine": rounds.machine(), "settings": {"runs": runs, "threads": threads}}
        if scaling:
            found["probes"] = rounds.probe(settings)
        out.mkdir(parents=True, exist_ok=True)
        for so_far in rounds.serve_all(settings):
            found |= so_far
            write_json(out / "bench.json", found)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    figures.draw(found, out)
    for name, rows in found["medians"].items():
        table = Table(
            "peer", "CPU s", "wall s", "tokens/s", "start s", "peak MB", "runs", title=name, title_justify="left"
        )
        for peer, row in sorted(rows.items(), key=lambda item: item[1]["cpu_seconds"]):
            table.add_row(
                peer, f"{row['cpu_seconds']:.2f}", f"{row['wall_seconds']:.2f}", f"{row['tokens_per_second']:.0f}",
                f"{row['start_seconds']:.1f}", f"{row['peak_mb']:.0f}", str(row["runs"]),
            )  # fmt: skip
        console.print(table)
