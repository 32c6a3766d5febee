"""The same tokens, sooner: a runner for `Engine` whose forward pass is one C++ call (fast.cpp).

    engine = Engine(model, sequences, num_blocks, make_runner=fast_runner(model))

The scheduler stays the one of `m13c_serve`. What makes this fast, and what each part is worth, is in
benchmarks/README.md. It needs a C++ compiler with OpenMP and `ninja` (`uv sync --extra fast`); where the file cannot
be built, `fast_runner` says so and gives the readable runner.
"""

import ctypes
import hashlib
import mmap
import platform
import subprocess
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ai_playground.checkout import repo_root
from ai_playground.models import TransformerConfig
from ai_playground.models.transformer import rope_table
from m13c_serve import ModelRunner

SOURCE = Path(__file__).with_name("fast.cpp")
PANEL = 32  # columns that a packed panel holds, as in fast.cpp
ROWS = 512  # tokens that go through the model in one call, at most: what a long prompt needs of memory
SMALL = 16e6  # multiplications below which a second thread costs more than it brings


def fast_runner(model: nn.Module) -> Callable[[nn.Module, int, int], ModelRunner]:
    """What `Engine(make_runner=...)` takes: a maker of `FastRunner`s that share one copy of packed weights.

    Args:
        model: a `Transformer` in float32 or bfloat16 on the CPU. It is only read.

    Returns:
        `ModelRunner` itself, with a warning that says why, where the C++ part cannot be built.
    """
    try:
        packed = PackedModel(model.config, dict(model.state_dict()))
    except NotBuilt as problem:
        warnings.warn(f"the plain PyTorch runner is used: {problem}", stacklevel=2)
        return ModelRunner
    return packed.runner


class NotBuilt(RuntimeError):
    """fast.cpp cannot be used here; the message says why."""


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """fast.cpp, built for this processor by PyTorch's extension loader, once for each of its versions.

    Raises:
        NotBuilt: no compiler, no ninja, or a compiler that fails.
    """
    # Built with -march=native: a home folder that several machines share must not share the file.
    try:
        processor = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
        processor = "".join(line for line in processor.splitlines() if line.startswith(("model name", "flags")))
    except OSError:
        processor = platform.processor()
    name = f"fast_{hashlib.sha256((processor + SOURCE.read_text()).encode()).hexdigest()[:12]}"
    folder = repo_root() / ".course" / "native" / name
    try:
        if not (folder / f"{name}.so").is_file():
            from torch.utils import cpp_extension  # here, since it takes a while and looks for GPUs

            folder.mkdir(parents=True, exist_ok=True)
            cpp_extension.load(
                name,
                [str(SOURCE)],
                extra_cflags=["-std=c++20", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-Wno-psabi"],
                extra_ldflags=["-fopenmp"],
                build_directory=str(folder),
                is_python_module=False,
            )
        return ctypes.CDLL(str(folder / f"{name}.so"))
    except (OSError, RuntimeError, ImportError, subprocess.SubprocessError) as error:  # no ninja, no compiler, ...
        raise NotBuilt(f"{SOURCE.name} cannot be built ({str(error).splitlines()[0]})") from error


def pack(rows: Tensor) -> Tensor:
    """A matrix `(out, in)` in the order in which fast.cpp reads it: panels of 32 outputs, padded with zeros.

    Returns:
        float32: `(panels, in, 32)`; bfloat16: `(panels, in / 2, 32, 2)`, pairs of inputs side by side.
    """
    pair = 2 if rows.dtype == torch.bfloat16 else 1
    padding = (0, -rows.shape[1] % pair, 0, -rows.shape[0] % PANEL)
    if any(padding):
        rows = nn.functional.pad(rows, padding)
    return rows.reshape(-1, PANEL, rows.shape[1] // pair, pair).transpose(1, 2)


def halves(rows: Tensor, head_dim: int) -> Tensor:
    """The rows of `wq` or `wk` with each head's pairs `(2i, 2i + 1)` taken apart: all `2i`, then all `2i + 1`."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """16 rows of gate, the same 16 of up, and so on: one panel holds what SwiGLU multiplies with each other."""
    padding = (0, 0, 0, -gate.shape[0] % 16)
    parts = [nn.functional.pad(part, padding).unflatten(0, (-1, 16)) for part in (gate, up)]
    return torch.stack(parts, dim=1).flatten(0, 2)


def _fields(kind: type, names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, kind) for name in names.split())


class _Layer(ctypes.Structure):
    _fields_ = _fields(ctypes.c_void_p, "attn_norm ffn_norm qkv wo gate_up down")


class _Model(ctypes.Structure):
    _fields_ = (
        *_fields(ctypes.c_int32, "dim n_layers n_heads n_kv_heads head_dim hidden vocab is_bf16"),
        ("eps", ctypes.c_float),
        *_fields(ctypes.c_void_p, "cos sin embedding head norm"),
        ("layers", ctypes.POINTER(_Layer)),
    )


class _Pool(ctypes.Structure):
    _fields_ = (
        *_fields(ctypes.c_int32, "num_blocks block_size value_dim"),
        *_fields(ctypes.c_void_p, "keys values"),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        *_fields(ctypes.c_int32, "rows width wanted threads"),
        *_fields(ctypes.c_void_p, "tokens positions table_of tables last next"),
    )


class Arena:
    """Memory for weights in huge pages, where the system has them: read front to back, as each step does, half as fast
    again as ordinary pages."""

    CHUNK = 2**25  # bytes

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy of a tensor that lives here."""
        size = tensor.numel() * tensor.element_size()
        if size > len(self._left):
            if hasattr(mmap, "MADV_HUGEPAGE"):  # which shared memory, Python's default, would not have
                memory = mmap.mmap(-1, max(size, self.CHUNK), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                memory.madvise(mmap.MADV_HUGEPAGE)
            else:
                memory = mmap.mmap(-1, max(size, self.CHUNK))
            self._left = torch.frombuffer(memory, dtype=torch.uint8)
        place, self._left = self._left[:size], self._left[-(-size // 64) * 64 :]
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


class PackedModel:
    """A model's weights as fast.cpp reads them, each exactly once."""

    def __init__(self, config: TransformerConfig, weights: dict[str, Tensor]) -> None:
        """Pack the weights.

        Args:
            config: the shape.
            weights: a `Transformer`'s state dict, float32 or bfloat16. It is emptied on the way, so that a caller
                who keeps no other reference never holds the model twice.

        Raises:
            NotBuilt: see `library`; also for another dtype or device.
        """
        self.library = library()
        self.config = config
        first = weights["embedding.weight"]
        if first.dtype not in (torch.float32, torch.bfloat16) or first.device.type != "cpu":
            raise NotBuilt(f"it takes float32 and bfloat16 on the CPU, not {first.dtype} on {first.device}")
        self.dtype = first.dtype
        self.parameters = sum(tensor.numel() for tensor in weights.values())
        self._kept: list[Tensor] = []  # what the pointers point to
        self._arena = Arena()

        def take(name: str) -> Tensor:
            return weights.pop(f"{name}.weight")

        layers = (_Layer * config.n_layers)()
        for index, layer in enumerate(layers):
            at = f"layers.{index}."
            q, k = (halves(take(f"{at}attn.{name}"), config.head_dim) for name in ("wq", "wk"))
            layer.qkv = self._keep(pack(torch.cat((q, k, take(f"{at}attn.wv")))))
            layer.gate_up = self._keep(pack(interleave(take(f"{at}ffn.gate"), take(f"{at}ffn.up"))))
            layer.wo, layer.down = (self._keep(pack(take(at + name))) for name in ("attn.wo", "ffn.down"))
            layer.attn_norm, layer.ffn_norm = (
                self._keep(take(at + name).float()) for name in ("attn_norm", "ffn_norm")
            )
        embedding = take("embedding")
        head = self._keep(pack(embedding if config.tie_embeddings else take("head")))
        rotations = rope_table(config)
        self.struct = _Model(
            config.dim, config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim, config.hidden_dim,
            config.vocab_size, self.dtype == torch.bfloat16, config.norm_eps,
            self._keep(rotations.real), self._keep(rotations.imag),
            None if config.tie_embeddings else self._keep(embedding), head, self._keep(take("norm").float()), layers,
        )  # fmt: skip

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(self._arena.copy(tensor))
        return self._kept[-1].data_ptr()

    def runner(self, model: object, num_blocks: int, block_size: int) -> "FastRunner":
        """What `Engine` calls; the weights are these, whatever model it names."""
        return FastRunner(self, num_blocks, block_size)


class FastRunner:
    """Takes the place of `ModelRunner`: a pool of its own layout, and prompts that go through the model together.

    Keys are `(n_layers, num_blocks, n_kv_heads, head_dim, block_size)`, so that the scores of a block's slots are
    computed side by side; values are `(n_layers, num_blocks, n_kv_heads, block_size, head_dim)`, the last one padded to
    a multiple of 16. Both have the dtype of the weights.
    """

    def __init__(self, packed: PackedModel, num_blocks: int, block_size: int) -> None:
        config = packed.config
        value_dim = -(-config.head_dim // 16) * 16
        shape = (config.n_layers, num_blocks, config.n_kv_heads)
        self.packed = packed
        self.keys = torch.zeros((*shape, config.head_dim, block_size), dtype=packed.dtype)
        self.values = torch.zeros((*shape, block_size, value_dim), dtype=packed.dtype)
        self._pool = _Pool(num_blocks, block_size, value_dim, self.keys.data_ptr(), self.values.data_ptr())
        self._room = (0, 0)

    def prefill(self, prompts: list[list[int]], tables: list[list[int]]) -> list[int]:
        """The next token after each prompt; see `ModelRunner.prefill`."""
        lengths = np.array([len(prompt) for prompt in prompts])
        tokens = np.concatenate([np.array(prompt, dtype=np.int32) for prompt in prompts])
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        owner = np.repeat(np.arange(len(prompts), dtype=np.int32), lengths)
        last = np.cumsum(lengths) - 1
        found: list[int] = []
        for start in range(0, len(tokens), ROWS):
            end = min(start + ROWS, len(tokens))
            wanted = last[(start <= last) & (last < end)] - start
            found += self._run(tokens[start:end], positions[start:end], owner[start:end], tables, wanted)
        return found

    def decode(self, tokens: list[int], positions: list[int], tables: list[list[int]]) -> list[int]:
        """The next token of each sequence; see `ModelRunner.decode`."""
        everybody = range(len(tokens))
        return self._run(tokens, positions, everybody, tables, everybody)

    def _run(self, tokens, positions, owner, tables: list[list[int]], wanted) -> list[int]:
        rows, width = len(tokens), max(map(len, tables))
        self._make_room(max(rows, len(tables)), width)
        self._tokens[:rows], self._positions[:rows], self._owner[:rows] = tokens, positions, owner
        self._last[: len(wanted)] = wanted
        for index, table in enumerate(tables):
            self._tables[index, : len(table)] = table  # what stands behind it is never looked at
        batch = self._batch
        batch.rows, batch.wanted = rows, len(wanted)
        batch.threads = torch.get_num_threads() if rows * self.packed.parameters > SMALL else 1
        self.packed.library.forward(ctypes.byref(self.packed.struct), ctypes.byref(self._pool), ctypes.byref(batch))
        return self._next[: len(wanted)].tolist()

    def _make_room(self, rows: int, width: int) -> None:
        """The index buffers that every step writes into; made anew only for a batch that is larger than any before."""
        if rows <= self._room[0] and width <= self._room[1]:
            return
        rows, width = max(rows, self._room[0]), max(2 * width, self._room[1])
        self._room = (rows, width)
        self._tokens, self._positions, self._owner, self._last = np.zeros((4, rows), dtype=np.int32)
        self._tables = np.zeros((rows, width), dtype=np.int32)
        self._next = np.zeros(rows, dtype=np.int64)
        arrays = (self._tokens, self._positions, self._owner, self._tables, self._last, self._next)
        self._batch = _Batch(0, width, 0, 1, *(array.ctypes.data for array in arrays))
