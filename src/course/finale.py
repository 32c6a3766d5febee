"""`course finale`: the trained model writes through an engine, and the run is drawn and put on record."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from course.console import console, stop
from course.paths import default_engine


def finale(
    engine: Annotated[
        str | None, typer.Option(help="`assignments` (yours), `solutions` (the reference, if it is here) or a path.")
    ] = None,
    workspace: Annotated[Path | None, typer.Option(help="The folder of the trained model.")] = None,
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("outputs/finale"),
) -> None:
    """Serve 16 prompts with the trained model: text, speed, occupancy, memory, and the paper trail."""
    # Imported here, because torch takes seconds and `course --help` should not.
    from ai_playground.prompts import FINALE_PROMPTS
    from ai_playground.workspace import default_workspace, record_metrics
    from milestones.subjects import M13

    name = engine or default_engine()
    ws = workspace or default_workspace()
    try:
        functions = M13.engine(M13.find(name))
        report, history = _serve(functions.finale, ws, len(FINALE_PROMPTS))
    except NotImplementedError as error:
        stop(f"This part is not written yet. {error}")
    except (ValueError, ImportError, SyntaxError) as error:
        stop(f"{type(error).__name__}: {error}")

    text = Text.assemble((FINALE_PROMPTS[0], "bold"), report["text"])
    console.print(Panel(text, title="the first request", width=88))
    console.print(_figures_table(report, history))
    for path in _draw(history, out):
        console.print(f"figure: {path}")

    if name == "solutions":  # the workspace's paper trail is for the student's own engine
        out.mkdir(parents=True, exist_ok=True)
        if (ws / "metrics.json").is_file():
            shutil.copy(ws / "metrics.json", out)
        ws = out
    metrics = record_metrics(ws, "m13_finale", {key: value for key, value in report.items() if key != "output_ids"})
    console.print(_paper_trail(metrics, ws / "metrics.json"))


def _serve(run: Any, ws: Path, total: int) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """The engine's report and its history, with a live progress bar while it works."""
    history: list[dict[str, int]] = []
    columns = (
        SpinnerColumn(),
        TextColumn("serving"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests done, {task.fields[running]} running, step {task.fields[step]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("serving", total=total, running=0, step=0)

        def on_step(record: dict[str, int]) -> None:
            history.append(record)
            progress.update(bar, completed=record["completed"], running=record["running"], step=len(history))

        return run(ws, on_step=on_step), history


def _figures_table(report: dict[str, Any], history: list[dict[str, int]]) -> Table:
    peak = {key: max(record[key] for record in history) for key in ("reserved", "allocated", "used")}
    table = Table(title=f"16 requests served by {report['engine']}", show_header=False, title_justify="left")
    for name, value in (
        ("speed", f"{report['tokens_per_sec']:.0f} tokens/s ({report['tokens']} tokens in {report['seconds']:.1f} s)"),
        ("steps", f"{report['steps']}"),
        ("mean occupancy", f"{report['mean_occupancy']:.0%} of the batch"),
        ("preemptions", f"{report['preemptions']}"),
        (
            "KV memory at the peak",
            "{reserved} tokens reserved as slabs, {allocated} allocated, {used} used".format(**peak),
        ),
        ("KV memory wasted", f"{report['kv_waste_naive']:.0%} with slabs, {report['kv_waste_paged']:.0%} with blocks"),
    ):
        table.add_row(name, value)
    return table


def _draw(history: list[dict[str, int]], out: Path) -> list[Path]:
    import matplotlib

    matplotlib.use("agg")
    from ai_playground.plotting import memory_figure, occupancy_figure

    out.mkdir(parents=True, exist_ok=True)
    figures = {
        "occupancy.png": occupancy_figure({"the finale": [record["running"] for record in history]}, max_batch=8),
        "memory.png": memory_figure(history),
    }
    for name, figure in figures.items():
        figure.savefig(out / name)
    return [out / name for name in figures]


def _paper_trail(metrics: dict[str, Any], path: Path) -> Table:
    table = Table("key", "value", title=f"the paper trail, {path}", title_justify="left")
    for milestone, values in metrics.items():
        entries = values.items() if isinstance(values, dict) else [("", values)]
        for key, value in entries:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            table.add_row(f"{milestone}.{key}", Text(shown if len(shown) <= 60 else shown[:57] + "..."))
    return table
