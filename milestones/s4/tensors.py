"""Numbers and tensors on their way from a probe to its judge."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from checking.check import CheckFailed

TOLERANCE = 1e-4  # fp32: far above what the order of additions changes, far below what a wrong idea changes


def numbers(value: Any) -> Any:
    """A tensor as JSON: its shape and its values in float64; anything else as a note of what it is."""
    if not isinstance(value, Tensor):
        return {"not_a_tensor": type(value).__name__}
    return {"shape": list(value.shape), "values": value.detach().double().flatten().tolist()}


def number(value: Any) -> Any:
    """A number of NumPy's or PyTorch's as the plain one that it is; anything else as it came."""
    return value.item() if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.ndim == 0) else value


def tensor_of(evidence: Any, shape: list[int], what: str, cause: str = "") -> Tensor:
    """The tensor that a probe sent.

    Raises:
        CheckFailed: it is none, has another shape, or holds a number that is not finite.
    """
    expected = f"{what} of shape {tuple(shape)}"
    if not isinstance(evidence, dict) or "values" not in evidence:
        kind = evidence.get("not_a_tensor", "something else") if isinstance(evidence, dict) else "something else"
        raise CheckFailed(expected, f"a {kind}", "the function returns something else than the tensor it computes")
    if evidence["shape"] != shape:
        raise CheckFailed(expected, f"shape {tuple(evidence['shape'])}", cause)
    tensor = torch.tensor(evidence["values"], dtype=torch.float64).reshape(shape)
    if not tensor.isfinite().all():
        raise CheckFailed(expected, "values that are not finite (inf or nan)", "a division by 0, or exp of a mask")
    return tensor


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a.double() - b.double()).abs().max() <= TOLERANCE)
