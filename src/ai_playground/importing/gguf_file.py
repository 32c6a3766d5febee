"""GGUF files: metadata and places of tensors. Nobody vouches for a file, so every count is held against its size.

The format is llama.cpp's (ggml's docs/gguf.md); the package `gguf` knows the quantisations.
"""

import math
import re
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ai_playground.importing.refusals import ImportRefused, extra, few, refuse_pointer

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_LONGEST_NAME = 2**16  # bytes
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class Quantised:
    """One tensor of a GGUF file. Its dtype is the one that it has when it is read: float32 if it is quantised."""

    path: Path
    offset: int  # bytes from the file's beginning
    shape: tuple[int, ...]  # row-major, as PyTorch has it
    kind: Any  # gguf.GGMLQuantizationType
    stored: int  # bytes in the file

    @property
    def dtype(self) -> torch.dtype:
        return _PLAIN.get(self.kind.name, torch.float32)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Tensor:
        """The values; quantised ones are dequantised."""
        raw = torch.empty(self.stored, dtype=torch.uint8)
        with self.path.open("rb") as file:
            file.seek(self.offset)
            if file.readinto(raw.numpy()) != self.stored:
                raise ImportRefused(f"{self.path} became shorter while it was read")
        if self.kind.name in _PLAIN:
            return raw.view(self.dtype).view(self.shape)
        rows = raw.numpy().reshape(math.prod(self.shape[:-1]), -1)
        values = extra("gguf").quants.dequantize(rows, self.kind)
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(self.shape)


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Quantised]]:
    """Metadata and tensors of a file, or of all files of a split one; no tensor is read.

    Raises:
        ImportRefused: a file that is no GGUF or is cut short, a count or length beyond the file's size, a name that
            comes twice, a kind of tensor that cannot be dequantised, a part that is missing.
    """
    fields: dict[str, Any] = {}
    tensors: dict[str, Quantised] = {}
    for part in _parts(path):
        more, found = _read_file(part)
        fields = more | fields  # the first file has the metadata; the others only count themselves
        twice = sorted(set(tensors) & set(found))
        if twice:
            raise ImportRefused(f"{part}: {twice[0]} is in another part too")
        tensors |= found
    return fields, tensors


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF does, whatever it is called."""
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _parts(path: Path) -> list[Path]:
    match = _PART.search(path.name)
    if not match:
        return [path]
    stem, suffix = path.name[: match.start()], path.name[-5:]
    total = int(match[2])
    if not 1 <= total <= 999:
        raise ImportRefused(f"{path}: its name says that it has {total} parts")
    parts = [path.with_name(f"{stem}-{index:05}-of-{match[2]}{suffix}") for index in range(1, total + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ImportRefused(f"{path} is one of {total} parts; missing beside it: {few(missing)}")
    return parts


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, Quantised]]:
    refuse_pointer(path)
    with path.open("rb") as file:
        reader = _Reader(path, file)
        if file.read(4) != b"GGUF":
            raise ImportRefused(f"{path}: expected a GGUF file, found something else")
        version = reader.number("I")
        if version not in (2, 3):
            raise ImportRefused(f"{path}: expected a GGUF file of version 2 or 3 (little-endian), found {version}")
        tensor_count, field_count = reader.count(32), reader.count(13)
        fields: dict[str, Any] = {}
        for _ in range(field_count):
            name = reader.name(fields)
            fields[name] = reader.value(reader.number("I"))
        alignment = fields.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 2**20 or alignment % 8:
            raise ImportRefused(f"{path}: general.alignment is {alignment!r}")
        entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(tensor_count):
            name = reader.name(entries)
            axes = reader.number("I")
            if not 1 <= axes <= 4:
                raise ImportRefused(f"{path}: {name} has {axes} axes")
            shape = tuple(reader.number("Q") for _ in range(axes))[::-1]
            entries[name] = shape, reader.number("I"), reader.number("Q")
        start = -(-file.tell() // alignment) * alignment
    tensors = {name: _tensor(path, start, reader.size, name, *entry) for name, entry in entries.items()}
    end = max((tensor.offset + tensor.stored for tensor in tensors.values()), default=0)
    if end > reader.size:
        raise ImportRefused(f"{path} is {reader.size:,} bytes, its header promises {end:,}: download it again")
    places = sorted((tensor.offset, tensor.offset + tensor.stored, name) for name, tensor in tensors.items())
    for (_, before, _), (offset, _, name) in pairwise(places):
        if offset < before:
            raise ImportRefused(f"{path}: the bytes of {name} overlap those of another tensor")
    return fields, tensors


def _tensor(path: Path, start: int, size: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Quantised:
    gguf = extra("gguf")
    try:
        kind = gguf.GGMLQuantizationType(kind)
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise ImportRefused(f"{path}: {name} is stored in a way that is not known, number {kind}") from None
    if kind.name not in _PLAIN and kind not in gguf.quants._type_traits:
        raise ImportRefused(f"{path}: {name} is stored as {kind.name}, which cannot be dequantised here")
    if not all(shape) or math.prod(shape) > 32 * size * 8:
        raise ImportRefused(f"{path}: {name} would have the shape {shape}, more than the file can hold")
    if shape[-1] % per_block:
        raise ImportRefused(f"{path}: {name} has rows of {shape[-1]}, which {kind.name} cannot store")
    return Quantised(path, start + offset, shape, kind, math.prod(shape) // per_block * block_bytes)


class _Reader:
    """Numbers and strings from a file, none of which may reach beyond its end."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.size = path.stat().st_size

    def bytes(self, length: int) -> bytes:
        if length > self.size - self.file.tell():
            raise ImportRefused(
                f"{self.path} is {self.size:,} bytes, its header promises {self.file.tell() + length:,} or more: "
                "download it again"
            )
        return self.file.read(length)

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))[0]

    def count(self, at_least: int) -> int:
        """A number of things, each of which takes so many bytes at least."""
        count = self.number("Q")
        if count * at_least > self.size - self.file.tell():
            raise ImportRefused(
                f"{self.path} is {self.size:,} bytes, its header promises {count:,} entries of {at_least} bytes or "
                "more: download it again"
            )
        return count

    def text(self) -> str:
        # llama.cpp reads any bytes; some vocabularies hold halves of characters.
        return self.bytes(self.number("Q")).decode("utf-8", errors="replace")

    def name(self, known: dict[str, Any]) -> str:
        """The name of the next field or tensor."""
        name = self.text()
        if len(name) > _LONGEST_NAME or name in known:
            raise ImportRefused(f"{self.path}: the name {name[:60]!r} comes twice, or is too long")
        return name

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ImportRefused(f"{self.path}: metadata of the kind {kind} is not known")
        kind = self.number("I")
        if kind == _STRING:
            return [self.text() for _ in range(self.count(8))]
        if kind not in _SCALARS:
            raise ImportRefused(f"{self.path}: an array of arrays, or of the kind {kind}, is not known")
        width = struct.calcsize("<" + _SCALARS[kind])
        count = self.count(width)
        return list(struct.unpack(f"<{count}{_SCALARS[kind]}", self.bytes(count * width)))
