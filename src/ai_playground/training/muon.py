"""The Muon optimiser in float32, with matrices of one shape orthogonalised together.

`torch.optim.Muon` iterates in bfloat16, one matrix at a time. On a CPU without bfloat16 units that takes longer than
the forward and backward passes of a small model; this one does the same arithmetic in float32, in a few batched
matrix products.
"""

import torch
from torch import Tensor, nn

_A, _B, _C = 3.4445, -4.7750, 2.0315  # Jordan et al. (2024): the quintic whose slope at 0 is as steep as can be


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Bring every singular value near 1 (into about [0.7, 1.2]) by a Newton-Schulz iteration.

    Args:
        matrices: `(N, rows, columns)` float32.
        steps: number of iterations.

    Returns:
        `(N, rows, columns)`: roughly `U @ V^T` of each matrix's singular value decomposition.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices  # the Gram matrix is then the smaller one
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = _A * x + (_B * gram + _C * (gram @ gram)) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Jordan et al., 2024, "Muon: an optimizer for hidden layers in neural networks").

    For the matrices of hidden layers; embeddings and norms belong to AdamW. Nesterov momentum, no weight decay, and
    updates of tall matrices are scaled by `sqrt(rows / columns)`, as in `torch.optim.Muon`.
    """

    def __init__(self, params: list[nn.Parameter], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients; parameters without one are left alone."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                updates = []
                for p in params:
                    buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(buffer, group["momentum"]))
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonalise(torch.stack(updates)), strict=True):
                    p.add_(update, alpha=-group["lr"] * scale)
