"""`course train`: train the model that the milestones serve."""

from pathlib import Path
from typing import Annotated

import typer


def train(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A third of the steps: a first model in under 3 minutes; it still mixes up names."
        ),
    ] = False,
    data: Annotated[Path | None, typer.Option(help="A UTF-8 text file to train on instead of the stories.")] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(
            "--workspace", "--out", help="The folder that the model goes to.", show_default="checkpoints/myllm"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of stories, weights and batches.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads for PyTorch.")] = 2,
) -> None:
    """M7: train a small story model and write the workspace (config, tokenizer, weights, loss curve, metrics)."""
    from dataclasses import replace

    import torch

    from ai_playground.training.trainer import DEFAULT, QUICK, STATE, TrainingError
    from ai_playground.training.trainer import train as run
    from ai_playground.workspace import default_workspace

    ws = workspace or default_workspace()
    torch.set_num_threads(threads)
    try:
        run(ws, replace(QUICK if quick else DEFAULT, seed=seed), data=data, resume=resume)
    except TrainingError as error:
        typer.secho(str(error), err=True, fg="red")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        saved = (ws / STATE).is_file()
        hint = "Go on with the same options and --resume." if saved else "Nothing was saved yet."
        typer.secho(f"\nStopped. {hint}", err=True)
        raise typer.Exit(130) from None
