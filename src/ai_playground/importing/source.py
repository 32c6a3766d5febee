"""A model as it was read, and writing it as a workspace: tensor by tensor, and whole or not at all."""

import os
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ai_playground.importing.chat import TEMPLATE, TOKENS
from ai_playground.importing.families import Piece, read_all
from ai_playground.importing.refusals import ImportRefused
from ai_playground.models import TransformerConfig
from ai_playground.tokenizer import Tokenizer
from ai_playground.workspace import write_json


@dataclass(frozen=True)
class Source:
    """A model of which everything is known but the values of its tensors, which stay in their files.

    Attributes:
        path: the folder or file.
        config: the shape.
        pieces: where each tensor of ours comes from.
        tokenizer: text to ids and back.
        chat_template: Jinja, or None.
        special_tokens: what the template may call by name, such as `bos_token`.
    """

    path: Path
    config: TransformerConfig
    pieces: dict[str, Piece]
    tokenizer: Tokenizer
    chat_template: str | None
    special_tokens: dict[str, str] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Of most weights: the embedding's."""
        return self.pieces["embedding.weight"].shelf.dtype

    @property
    def parameters(self) -> int:
        return sum(torch.Size(piece.shape).numel() for piece in self.pieces.values())

    @property
    def nbytes(self) -> int:
        """Of all weights, as they are written."""
        return sum(torch.Size(piece.shape).numel() * piece.shelf.dtype.itemsize for piece in self.pieces.values())


def write_workspace(source: Source, ws: Path, step: Callable[[int], None]) -> None:
    """Write shape, weights, tokenizer and chat template; memory is needed for one tensor at a time.

    Everything is written into a folder beside the workspace and moved when it is whole, so that a full disk, a damaged
    tensor or Ctrl-C leaves what was there.

    Args:
        source: what was read.
        ws: the folder to write; files that it has of another name stay.
        step: called with the bytes of each tensor that is written.

    Raises:
        ImportRefused: the disk has too little room, or a tensor holds NaN or infinity.
    """
    ws.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(ws.parent).free
    if source.nbytes > free:
        raise ImportRefused(f"{ws} would need {source.nbytes:,} bytes, {free:,} are free on its disk")
    beside = Path(tempfile.mkdtemp(dir=ws.parent, prefix=ws.name, suffix=".partial"))
    try:
        _write_weights(source, beside / "final.pt", step)
        write_json(beside / "config.json", source.config.to_dict())
        source.tokenizer.save(beside / "tokenizer.json")
        if source.chat_template:
            (beside / TEMPLATE).write_text(source.chat_template, encoding="utf-8")
            write_json(beside / TOKENS, source.special_tokens)
        ws.mkdir(exist_ok=True)
        for name in (TEMPLATE, TOKENS):
            (ws / name).unlink(missing_ok=True)  # of a model that was there before
        for path in sorted(beside.iterdir()):
            os.replace(path, ws / path.name)
    except OSError as error:
        raise ImportRefused(f"{ws} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write_weights(source: Source, path: Path, step: Callable[[int], None]) -> None:
    """`final.pt` as `torch.save` writes it: first with room for each tensor, which is then filled."""
    weights = {name: torch.empty(piece.shape, dtype=piece.shelf.dtype) for name, piece in source.pieces.items()}
    with torch.serialization.skip_data():
        torch.save({"config": source.config.to_dict(), "model": weights}, path)
    del weights  # memory that was never touched
    places = _storages(path)
    with path.open("r+b") as file:
        for index, (name, values) in enumerate(read_all(source.pieces, source.path, step)):
            start, room = places[index]
            if room != values.nbytes:
                raise RuntimeError(f"torch.save left {room} bytes for {name}, which has {values.nbytes}")
            file.seek(start)
            file.write(values.flatten().view(torch.uint8).numpy())
            del values


def _storages(path: Path) -> list[tuple[int, int]]:
    """Where in a file of `torch.save` the bytes of each tensor stand, in the order in which they were saved."""
    places = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for entry in archive.infolist():
            folder, _, key = entry.filename.rpartition("/")
            if folder.endswith("/data") and key.isdigit():
                file.seek(entry.header_offset + 26)  # the lengths of the name and of what follows it
                start = entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
                places[int(key)] = (start, entry.file_size)
    return [places[key] for key in sorted(places)]
