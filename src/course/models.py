"""`course import` and `course serve`: other people's models, and your engine as a command."""

from pathlib import Path
from typing import Annotated

import typer
from rich.panel import Panel
from rich.text import Text

from course.console import console, stop
from course.paths import default_engine


def import_model(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, a .gguf file, or `smollm2`.")],
    workspace: Annotated[Path, typer.Argument(help="The workspace to write.")],
) -> None:
    """Turn a local LLaMA-family model into a workspace that your engine can serve."""
    from ai_playground import importing

    try:
        source = importing.import_model(model, workspace)
    except ValueError as error:
        stop(str(error))
    console.print(
        f"{workspace}: {source.parameters:,} parameters, {source.config.n_layers} layers, a vocabulary of "
        f"{source.config.vocab_size:,}. Try: course serve --workspace {workspace} "
        + ("--chat 'What is a cache?'" if source.chat_template else "'Once upon a time'")
    )


def serve(
    prompts: Annotated[list[str], typer.Argument(help="Texts to go on from; several are served together.")],
    workspace: Annotated[Path | None, typer.Option(help="The folder of the model.")] = None,
    engine: Annotated[str | None, typer.Option(help="`assignments`, `solutions` or a path.")] = None,
    max_new: Annotated[int, typer.Option(help="Tokens to make for each prompt, at most.")] = 128,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt as a question to a chat model.")] = False,
) -> None:
    """Serve prompts of your own, greedily, through an engine."""
    from ai_playground.importing import chat_ids
    from ai_playground.workspace import default_workspace, load_tokenizer
    from milestones.subjects import M13

    ws = workspace or default_workspace()
    try:
        functions = M13.engine(M13.find(engine or default_engine()))
        model, tokenizer = functions.load_model(ws), load_tokenizer(ws)
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
