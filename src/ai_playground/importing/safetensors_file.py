"""Safetensors files: a header of JSON, then bytes. Nobody vouches for a header, so it is checked before it is used."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ai_playground.importing.refusals import ImportRefused, few, refuse_pointer

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_LARGEST_HEADER = 100_000_000  # bytes, as the format itself has it


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: where its bytes are."""

    path: Path
    offset: int  # bytes from the file's beginning
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> Tensor:
        """The values, in memory of their own: a mapped file would stay in memory as it is read."""
        values = torch.empty(self.shape, dtype=self.dtype)
        with self.path.open("rb") as file:
            file.seek(self.offset)
            found = file.readinto(values.flatten().view(torch.uint8).numpy())
        if found != self.nbytes:
            raise ImportRefused(f"{self.path} became shorter while it was read")
        return values


def read_safetensors(path: Path) -> dict[str, Stored]:
    """The tensors of one file, by name; only the header is read.

    Raises:
        ImportRefused: a file that is cut short, or a header that is wrong: its length, its JSON, a name that comes
            twice, a dtype that is not a float's, offsets that overlap, lie outside or do not fit the shape.
    """
    refuse_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > _LARGEST_HEADER:
            raise ImportRefused(f"{path} is not a safetensors file: its header would be {length:,} bytes long")
        if 8 + length > size:
            raise _too_short(path, size, 8 + length)
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_no_name_twice)
        if not isinstance(header, dict):
            raise ValueError("expected an object")
        header.pop("__metadata__", None)
        tensors = {name: _stored(path, 8 + length, name, entry) for name, entry in header.items()}
    except (ValueError, RecursionError) as error:
        if isinstance(error, ImportRefused):
            raise
        raise ImportRefused(f"{path} is not a safetensors file: {error}") from None
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if tensor.offset < end:
            raise ImportRefused(f"{path}: the bytes of {name} overlap those of another tensor")
        end = tensor.offset + tensor.nbytes
    if end > size:
        raise _too_short(path, size, end)
    return tensors


def _stored(path: Path, start: int, name: str, entry: object) -> Stored:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
        raise ValueError(f"{name} has no dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"{name} has a shape or offsets that are not lists of numbers from 0 on")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ImportRefused(f"{path}: {name} has the dtype {dtype!s:.20}; can be served: {few(DTYPES)}")
    stored = Stored(path, start + offsets[0] if offsets else start, tuple(shape), DTYPES[dtype])
    if len(shape) > 8 or len(offsets) != 2 or offsets[1] - offsets[0] != stored.nbytes:
        raise ValueError(f"{name} has {offsets} for bytes, which its shape {shape} of {dtype} does not fill")
    return stored


def _no_name_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} comes twice in its header")
    return dict(pairs)


def _too_short(path: Path, size: int, promised: int) -> ImportRefused:
    return ImportRefused(f"{path} is {size:,} bytes, its header promises {promised:,}: download it again")
