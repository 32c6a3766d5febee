"""A workspace: the folder that holds one trained model and the paper trail of what was done with it.

checkpoints/myllm/
    config.json      the model's shape (TransformerConfig)
    final.pt         {"config": the same shape, "model": the state dict}
    tokenizer.json   the tokenizer that the model was trained with
    loss_final.json  the loss curve
    metrics.json     what was measured, one key a milestone; it only ever grows
    src/             serve_myllm.py: the engine that serves this model
"""

import json
import os
import tempfile
import warnings
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ai_playground.checkout import repo_root
from ai_playground.models import Transformer, TransformerConfig
from ai_playground.tokenizer import Tokenizer


class WorkspaceError(ValueError):
    """A workspace that cannot be used; the message says which file, what is wrong and what to do."""


def default_workspace() -> Path:
    """`checkpoints/myllm`, or the folder that the environment variable COURSE_WORKSPACE names."""
    override = os.environ.get("COURSE_WORKSPACE")
    return Path(override) if override else repo_root() / "checkpoints" / "myllm"


def read_config(ws: Path) -> TransformerConfig:
    """The model's shape, from `config.json`.

    Raises:
        WorkspaceError: no such folder or file, or one that is not a model configuration.
    """
    path = _require(ws, "config.json")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"expected a JSON object, found {type(values).__name__}")
        return TransformerConfig.from_dict(values)
    except ValueError as error:  # json.JSONDecodeError and UnicodeDecodeError are ValueErrors too
        raise WorkspaceError(f"{path} is not a model configuration: {error}. {_RESTORE}") from None


def load_checkpoint(ws: Path, *, mapped: bool = False) -> dict[str, Any]:
    """`final.pt`, read without running any code that it may carry (`torch.load(weights_only=True)`).

    Args:
        ws: the workspace.
        mapped: the tensors stay in the file and take memory as they are read; else they are copies.

    Returns:
        `{"config": TransformerConfig, "model": dict[str, Tensor]}`; tensors are on the CPU.

    Raises:
        WorkspaceError: the file is missing, truncated, holds more than tensors and plain values, has another
            layout, or its configuration disagrees with `config.json` (the fields that differ are named).
    """
    config = read_config(ws)
    path = _require(ws, "final.pt")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch raises UnpicklingError, RuntimeError, EOFError, OSError, KeyError, ...
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise WorkspaceError(
                f"{path} holds Python objects that are not tensors. Loading it could run code, so it was refused. "
                f"Use a checkpoint from a source that you trust. {_RESTORE}"
            ) from None
        raise WorkspaceError(
            f"{path} is truncated or is not a PyTorch checkpoint ({_first_line(error)}). {_RESTORE}"
        ) from None
    if not isinstance(checkpoint, dict) or set(checkpoint) != {"config", "model"}:
        found = sorted(map(str, checkpoint)) if isinstance(checkpoint, dict) else type(checkpoint).__name__
        raise WorkspaceError(f"{path} must hold exactly 'config' and 'model'; found {found}. {_RESTORE}")
    weights = checkpoint["model"]
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise WorkspaceError(f"{path}: 'model' must be a state dict, names to tensors. {_RESTORE}")
    # A field that is younger than the file has the value that it had before there was a choice: its default.
    stored = {field.name: field.default for field in fields(TransformerConfig) if field.default is not MISSING}
    stored |= checkpoint["config"] if isinstance(checkpoint["config"], dict) else {}
    expected = config.to_dict()
    differing = [
        f"{name}: config.json says {expected.get(name)!r}, final.pt says {stored.get(name)!r}"
        for name in sorted(set(expected) | set(stored))
        if expected.get(name) != stored.get(name)
    ]
    if differing:
        raise WorkspaceError(f"config.json and final.pt in {ws} disagree: {'; '.join(differing)}. {_RESTORE}")
    return {"config": config, "model": weights}


def mapped_model(ws: Path, dtype: torch.dtype | None = None) -> Transformer:
    """A workspace's model around its weights as they lie in the file: no second copy, no other precision.

    Args:
        ws: the workspace.
        dtype: what the weights are converted to, which copies them; None is their own.

    Returns:
        In eval mode, without gradients.

    Raises:
        WorkspaceError: what `load_checkpoint` refuses, or weights that are not those of the configuration.
    """
    checkpoint = load_checkpoint(ws, mapped=True)
    with torch.device("meta"):  # shapes alone
        model = Transformer(checkpoint["config"])
    try:
        model.load_state_dict(checkpoint["model"], assign=True)
    except RuntimeError as error:  # names every tensor that is missing, unexpected or of another shape
        raise WorkspaceError(f"{ws / 'final.pt'} does not match its configuration: {error}. {_RESTORE}") from None
    model.place_rope_table()
    return model.to(dtype).eval().requires_grad_(False)


def save_checkpoint(ws: Path, config: TransformerConfig, weights: dict[str, Tensor]) -> None:
    """Write `config.json` and `final.pt` so that a crash leaves the old files or the new ones, never half of one."""
    ws.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    temporary = ws / "final.pt.partial"
    torch.save({"config": config.to_dict(), "model": weights}, temporary)
    os.replace(temporary, ws / "final.pt")
    write_json(ws / "config.json", config.to_dict())


def load_tokenizer(ws: Path) -> Tokenizer:
    """The workspace's `tokenizer.json`.

    Raises:
        WorkspaceError: it is missing or is not a tokenizer.
    """
    try:
        path = _require(ws, "tokenizer.json")
        return Tokenizer.from_file(path, read_config(ws).vocab_size if (ws / "config.json").is_file() else 0)
    except WorkspaceError:
        raise
    except ValueError as error:
        raise WorkspaceError(f"{error}. {_RESTORE}") from None


def read_metrics(ws: Path) -> dict[str, Any]:
    """What `metrics.json` holds; empty if there is none.

    A file that is not a JSON object is kept beside it under a name of its own, and a warning says so: results
    are never thrown away.
    """
    path = ws / "metrics.json"
    if not path.exists():
        return {}
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(metrics, dict):
            raise ValueError(f"expected a JSON object, found {type(metrics).__name__}")
    except ValueError as error:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        aside = path.with_name(f"metrics.corrupt-{stamp}.json")
        os.replace(path, aside)
        warnings.warn(
            f"{path} was not readable ({error}); it is kept as {aside.name} and a new one begun", stacklevel=2
        )
        return {}
    return metrics


def record_metrics(ws: Path, key: str, value: dict[str, Any]) -> dict[str, Any]:
    """Set one key of `metrics.json` and keep all the others; the file is replaced in one atomic step.

    Returns:
        All metrics, the new one included.

    Raises:
        ValueError: `value` is not plain JSON (a tensor, a NaN), named.
        WorkspaceError: the workspace does not exist.
    """
    _require_folder(ws)
    metrics = read_metrics(ws)
    metrics[key] = value
    try:
        write_json(ws / "metrics.json", metrics)
    except (TypeError, ValueError) as error:
        raise ValueError(f"metrics.json[{key!r}] must be plain JSON values: {error}") from None
    return metrics


def write_json(path: Path, value: Any) -> None:
    """Write JSON through a temporary file in the same folder, so that no reader ever sees half of it."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes it private
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


_RESTORE = "Train a model with `uv run course train`, or restore the shipped one with `git checkout checkpoints/myllm`."


def _require_folder(ws: Path) -> None:
    if not ws.is_dir():
        raise WorkspaceError(f"the workspace {ws} does not exist. {_RESTORE}")


def _require(ws: Path, name: str) -> Path:
    _require_folder(ws)
    if not (ws / name).is_file():
        raise WorkspaceError(f"the workspace {ws} has no {name}. {_RESTORE}")
    return ws / name


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200] or type(error).__name__
