"""What PyTorch itself sees of an engine, whatever the engine says of itself.

What a model reads of its input must come through a lookup in its embedding, every matrix product is an operator
with a known cost, and what an engine keeps is kept in a storage. All three are seen by PyTorch's dispatcher, below
every function that an engine can call.
"""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

aten = torch.ops.aten
_EMBEDDING = (aten.embedding.default, aten.index_select.default)
_LOOKUPS = frozenset((*_EMBEDDING, aten.index.Tensor, aten.select.int))
_FORMULAS = dict(flop_registry)  # PyTorch's own; copied before any student code could change them


class TokenLog:
    """The tokens of each lookup in a model's embedding, row by row, in `calls`; and when the lookups were, in `times`.

    Inside `with`, the embedding's matrix is a `_Watched` one; everything else runs at its own speed. Without a model
    the first `nn.Embedding` that is called is watched.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.calls: list[list[int]] = []
        self.times: list[float] = []  # seconds, of `time.perf_counter`
        self._module = None if model is None else model.embedding
        self._matrix: nn.Parameter | None = None
        self._hook: RemovableHandle | None = None

    def __enter__(self) -> "TokenLog":
        if self._module is not None:
            self._watch(self._module)
        else:
            self._hook = register_module_forward_pre_hook(lambda module, _: self._watch(module))
        return self

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self._matrix is not None:
            self._module.weight = self._matrix

    def _watch(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding) and self._matrix is None:
            if self._hook is not None:
                self._hook.remove()  # found: a hook makes each call of a module slower
            self._module, self._matrix = module, module.weight
            module.weight = nn.Parameter(_Watched(module.weight.detach(), self.calls, self.times), requires_grad=False)


class _Watched(Tensor):
    """An embedding matrix that writes down which rows are read."""

    @staticmethod
    def __new__(cls, matrix: Tensor, *_: Any) -> "_Watched":
        return Tensor._make_wrapper_subclass(
            cls, matrix.shape, strides=matrix.stride(), dtype=matrix.dtype, device=matrix.device
        )

    def __init__(self, matrix: Tensor, calls: list[list[int]], times: list[float]) -> None:
        self.matrix, self.calls, self.times = matrix, calls, times

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watched = next(value for value in tree_leaves((args, kwargs)) if isinstance(value, cls))
        args, kwargs = tree_map_only(cls, lambda value: value.matrix, (args, kwargs or {}))
        tokens = looked_up(function, args, watched.shape[0]) if function in _LOOKUPS else None
        if tokens is not None:
            watched.calls.append(tokens)
            watched.times.append(perf_counter())
        result = function(*args, **kwargs)
        # A view of the whole matrix (`.data`, `.detach()`) or a copy of it is as good as the matrix.
        same = isinstance(result, Tensor) and result.shape == watched.shape and function not in _LOOKUPS
        return cls(result, watched.calls, watched.times) if same else result


class Finite:
    """Looks at the logits of a model for NaN and infinity, at its final norm where the head is no module.

    Attributes:
        first: "NaN" or "infinity", whichever came first; "" if neither did, or if nobody has the model yet.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.first = ""
        self._module = None if model is None else model.norm if model.head is None else model.head

    def __enter__(self) -> "Finite":
        if self._module is not None:
            self._hook = self._module.register_forward_hook(lambda module, args, output: self._look(output))
        return self

    def __exit__(self, *_: object) -> None:
        if self._module is not None:
            self._hook.remove()

    def _look(self, logits: Tensor) -> None:
        if not self.first and not bool(logits.isfinite().all()):
            self.first = "NaN" if bool(logits.isnan().any()) else "infinity"


def warm_up() -> None:
    """Let PyTorch load what it loads for the first parameter of a subclass: half a second that forks then share."""
    with TokenLog() as log:
        log._watch(nn.Embedding(1, 1))


class Observer(TorchDispatchMode):
    """Writes down the tokens that go through a model, the work, and the memory that lives on between passes.

    Attributes:
        calls, times: for each lookup its tokens, row by row, and when it was.
        flops: floating-point operations so far, by the formulas of `torch.utils.flop_counter`.
        memory: for each lookup the bytes, at that moment, of all storages that are not the model's. A lookup
            begins a forward pass, so what the last pass needed for itself is gone and the cache is what is left.
    """

    def __init__(self, model: nn.Module | None, vocab_size: int | None = None) -> None:
        """Give the model, or, where nobody has it yet, the length of its vocabulary."""
        super().__init__()
        self.vocab_size = vocab_size or model.config.vocab_size
        self.calls: list[list[int]] = []
        self.times: list[float] = []
        self.flops = 0
        self.memory: list[int] = []
        self._given = _storages_of(model)
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and skipping would import torch's compiler, which takes seconds

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # composite operators arrive whole there: take them apart first
            with self:
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        tokens = looked_up(function, args, self.vocab_size) if function in _LOOKUPS else None
        if tokens is not None:
            self.calls.append(tokens)
            self.times.append(perf_counter())
            self.memory.append(self._bytes_alive())
        result = function(*args, **kwargs)
        formula = _FORMULAS.get(function.overloadpacket)
        if formula is not None:
            self.flops += _flops(formula, function, args, kwargs, result)
        if not function.is_view:
            self._remember(result)
            self._remember(args[0] if args else None)  # a pool made elsewhere shows when it is written
        return result

    def _remember(self, value: Any) -> None:
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            key = storage._cdata
            if key not in self._given and key not in self._seen:
                self._seen[key] = (StorageWeakRef(storage), storage.nbytes())
        elif isinstance(value, (tuple, list)):
            for item in value:
                self._remember(item)

    def _bytes_alive(self) -> int:
        # A storage's address is not used again while a weak reference to it is kept, so the keys are unique.
        self._seen = {key: entry for key, entry in self._seen.items() if not entry[0].expired()}
        return sum(size for _, size in self._seen.values())


def looked_up(function: Any, args: Any, vocab_size: int) -> list[int] | None:
    """The tokens, if this call of one of `_LOOKUPS` reads rows of a table that is as long as the vocabulary."""
    table = args[0]
    if table.dim() != 2 or table.shape[0] != vocab_size:
        return None
    if function is aten.select.int:
        return [args[2]] if args[1] == 0 else None
    tokens = args[-1] if function in _EMBEDDING else args[1][0]
    return None if tokens is None or tokens.dtype is torch.bool else tokens.flatten().tolist()


def _flops(formula: Any, function: Any, args: Any, kwargs: Any, result: Any) -> int:
    if function.overloadpacket is aten._scaled_dot_product_flash_attention_for_cpu:
        q, k = args[:2]  # (B, n_heads, T, head_dim), (B, n_kv_heads, context, head_dim); the formula refuses GQA
        return 4 * q.numel() * k.shape[-2]
    return int(formula(*args, **kwargs, out_val=result))


def _storages_of(model: nn.Module | None) -> set[int]:
    """The storages of a model: parameters, buffers and tensors that its modules keep as plain attributes."""
    if model is None:
        return set()
    tensors = [*model.parameters(), *model.buffers()]
    for module in model.modules():
        tensors += [value for value in vars(module).values() if isinstance(value, Tensor)]
    return {tensor.untyped_storage()._cdata for tensor in tensors}
