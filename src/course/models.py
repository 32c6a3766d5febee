"""`course import`, `course models` and `course serve`: other people's models, and your engine as a command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.panel import Panel
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from course.console import console, stop
from course.paths import default_engine

if TYPE_CHECKING:
    from ai_playground.importing import Source


Precision = Literal["auto", "float32", "bfloat16", "float16"]


def import_model(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, a .gguf file, or `smollm2`.")],
    workspace: Annotated[Path | None, typer.Argument(help="The workspace to write.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what it is and what it needs; write nothing.")] = False,
    blocks: Annotated[int, typer.Option(help="For --check: a pool of so many blocks of 16 tokens.")] = 256,
) -> None:
    """Turn a local LLaMA-family model into a workspace that your engine can serve."""
    from ai_playground import importing

    try:
        source = importing.read_model(model)
        if check:
            console.print(_described(source, blocks))
            return
        if workspace is None:
            stop("expected the workspace to write behind the model, such as checkpoints/NAME; found none")
        with Progress(console=console) as progress:
            bar = progress.add_task(f"importing {source.path.name}", total=source.nbytes)
            importing.write_workspace(source, workspace, lambda nbytes: progress.advance(bar, nbytes))
    except ValueError as error:
        stop(str(error))
    console.print(
        f"{workspace}: {source.parameters:,} parameters, {source.config.n_layers} layers, a vocabulary of "
        f"{source.config.vocab_size:,}. Try: course serve --workspace {workspace} "
        + ("--chat 'What is a cache?'" if source.chat_template else "'Once upon a time'")
    )


def _described(source: "Source", blocks: int) -> Table:
    """What a model is and what it needs, as a table."""
    from ai_playground.models import end_tokens

    config = source.config
    cache = blocks * 16 * config.kv_values_per_token * source.dtype.itemsize
    table = Table(title=f"{source.path} can be served", show_header=False, title_justify="left")
    for name, value in (
        ("parameters", f"{source.parameters:,}, {source.dtype}"),
        ("shape", f"{config.n_layers} layers, {config.n_heads} heads, {config.n_kv_heads} of keys and values"),
        ("context", f"{config.max_seq_len:,} tokens"),
        ("tokenizer", f"{source.tokenizer.vocab_size:,} tokens, {config.vocab_size:,} rows"),
        ("chat template", "yes" if source.chat_template else "no"),
        ("end tokens", ", ".join(map(str, end_tokens(config.eos_id))) or "none"),
        ("memory", f"{source.nbytes / 1e9:.2f} GB of weights + {cache / 1e9:.2f} GB for {blocks} blocks of 16 tokens"),
    ):
        table.add_row(name, value)
    return table


def models() -> None:
    """List the models on this machine that could be imported, and what stands in the way of the others."""
    from ai_playground import importing

    table = Table("where", "model", "can be served", title="models on this machine", title_justify="left")
    for owner, name, place in importing.models_on_disk():
        try:
            source = importing.read_model(place)
            verdict = f"yes, {source.parameters:,} parameters: course import {place}"
        except ValueError as error:
            verdict = f"no: {error}"
        table.add_row(owner, name, Text(verdict))
    console.print(table if table.row_count else "no models found in packages and in the usual folders")


def serve(
    prompts: Annotated[list[str], typer.Argument(help="Texts to go on from; several are served together.")],
    workspace: Annotated[Path | None, typer.Option(help="The folder of the model.")] = None,
    engine: Annotated[str | None, typer.Option(help="`assignments`, `solutions` or a path.")] = None,
    max_new: Annotated[int, typer.Option(help="Tokens to make for each prompt, at most.")] = 128,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt as a question to a chat model.")] = False,
    dtype: Annotated[
        Precision, typer.Option(help="Of the weights and the cache; `auto` is what the file has.")
    ] = "auto",
) -> None:
    """Serve prompts of your own, greedily, through an engine.

    A model in float32 is loaded by your own `load_model`. Any other stays in the file's precision and in the file.
    """
    import torch

    from ai_playground.importing import chat_ids
    from ai_playground.workspace import default_workspace, load_tokenizer, mapped_model
    from milestones.subjects import M13

    ws = workspace or default_workspace()
    try:
        functions = M13.engine(M13.find(engine or default_engine()))
        wanted = None if dtype == "auto" else getattr(torch, dtype)
        model = mapped_model(ws, wanted)
        if wanted is None and next(model.parameters()).dtype == torch.float32:
            model = functions.load_model(ws)
        tokenizer = load_tokenizer(ws)
        requests = [chat_ids(ws, prompt) if chat else tokenizer.encode(prompt) for prompt in prompts]
        report = functions.serve(requests, max_new, model=model, eos_id=model.config.eos_id)
    except NotImplementedError as error:
        stop(f"This part is not written yet. {error}")
    except (ValueError, ImportError, SyntaxError) as error:
        stop(f"{type(error).__name__}: {error}")
    for prompt, output in zip(prompts, report["outputs"], strict=True):
        text = tokenizer.decode(output).strip() if chat else prompt + tokenizer.decode(output)
        console.print(Panel(Text(text), title=Text(prompt)))
    console.print(f"{report['steps']} steps, {report['preemptions']} preemptions")
