"""How a model is refused, and what is looked at before a file is believed."""

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ai_playground.models import TransformerConfig

_LFS = b"version https://git-lfs.github.com/spec/"
_LARGEST_JSON = 2**26  # bytes; the largest tokenizer.json of a known model has a third of it


class ImportRefused(ValueError):
    """A model that this course cannot serve; the message names what is missing."""


def refuse_pointer(path: Path) -> None:
    """Refuse the small text file that Git leaves in place of a large one.

    Raises:
        ImportRefused: the file is a Git LFS pointer, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS))
    except OSError as error:
        raise ImportRefused(f"{path} cannot be read: {error.strerror}") from None
    if start == _LFS:
        raise ImportRefused(f"{path} is a Git LFS pointer: run `git lfs pull` in its folder, then try again")


def read_json(path: Path) -> dict[str, Any]:
    """A file with one JSON object.

    Raises:
        ImportRefused: it is missing, a Git LFS pointer, or something else.
    """
    if not path.is_file():
        raise ImportRefused(f"expected a JSON file at {path}: it does not exist")
    refuse_pointer(path)
    if path.stat().st_size > _LARGEST_JSON:
        raise ImportRefused(f"{path} is {path.stat().st_size:,} bytes: more than a JSON file of a model ever has")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ImportRefused(f"expected a JSON file at {path}: {error}") from None
    if not isinstance(values, dict):
        raise ImportRefused(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def make_config(path: Path, tensors: int, **values: Any) -> TransformerConfig:
    """The shape.

    Args:
        path: what is read, for the message.
        tensors: how many there are in the files: a file that claims more layers is not believed.

    Raises:
        ImportRefused: a size that is missing, impossible or larger than any model has, named.
    """
    for name, value in values.items():
        most = {"head_dim": 2**12, "n_layers": tensors}.get(name, 2**28 if name == "rope_theta" else 2**24)
        if isinstance(value, int) and value > most:
            raise ImportRefused(f"{path}: its configuration cannot be served: {name} = {value:,}, at most {most:,}")
    try:
        return TransformerConfig(**values)
    except (TypeError, ValueError) as error:
        raise ImportRefused(f"{path}: its configuration cannot be served: {error}") from None


def one_or_several(ends: list[Any]) -> Any:
    """An `eos_id` as `TransformerConfig` takes it, which also checks what these are."""
    ends = [end for index, end in enumerate(ends) if end not in ends[:index]]
    return (tuple(ends) if len(ends) > 1 else ends[0]) if ends else None


def extra(module: str) -> Any:
    """A module of the extra `import`.

    Raises:
        ImportRefused: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise ImportRefused(
            f"the package {package} is not installed: run `uv sync --extra import`, then try again"
        ) from None


def few(names: Iterable[str]) -> str:
    """The first four names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") or "none"
