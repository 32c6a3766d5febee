"""From what a user points at to a `Source`, and on to a workspace."""

from collections.abc import Callable
from pathlib import Path

from ai_playground.importing.gguf_file import is_gguf
from ai_playground.importing.gguf_model import read_gguf_model
from ai_playground.importing.hf_folder import read_hugging_face
from ai_playground.importing.locate import locate
from ai_playground.importing.refusals import ImportRefused, refuse_pointer
from ai_playground.importing.source import Source, write_workspace


def read_model(model: str) -> Source:
    """Everything about a local model but the values of its tensors; nothing is written.

    Args:
        model: what `locate` takes.

    Raises:
        ImportRefused: there is no such model, or something about it cannot be served.
    """
    path = locate(model)
    if path.is_dir():
        source = read_hugging_face(path)
    else:
        refuse_pointer(path)
        if not is_gguf(path):
            raise ImportRefused(f"{path}: expected a GGUF file, or a Hugging Face folder; found something else")
        try:
            source = read_gguf_model(path)
        except (TypeError, ValueError) as error:  # metadata of a kind that nobody writes, such as a text for a number
            if isinstance(error, ImportRefused):
                raise
            raise ImportRefused(f"{path}: its metadata cannot be used: {error}") from None
    largest = max(source.tokenizer.backend.get_vocab().values(), default=-1)
    if largest >= source.config.vocab_size:
        raise ImportRefused(
            f"{path}: its tokenizer has an id {largest}, its embedding only {source.config.vocab_size} rows"
        )
    return source


def import_model(model: str, ws: Path, step: Callable[[int], None] = lambda _: None) -> Source:
    """Write the workspace of a local model: its shape, weights and tokenizer, and its chat template if it has one.

    Args:
        model: a Hugging Face folder, a `.gguf` file, or `smollm2`; see `locate`.
        ws: the folder to write.
        step: called with the number of bytes of each tensor that is written.

    Raises:
        ImportRefused: there is no such model, or something about it cannot be served; nothing is written then.
    """
    source = read_model(model)
    write_workspace(source, ws, step)
    return source
