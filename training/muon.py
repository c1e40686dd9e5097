"""Muon for the matrices: orthogonalized momentum, with all matrices of one shape in one product."""

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315  # the quintic of the Newton-Schulz iteration


def orthogonal(batch: Tensor, turns: int = 5) -> Tensor:
    """Bring all singular values of [n, rows, columns] matrices close to 1."""
    x = batch.bfloat16() if batch.is_cuda else batch.float()
    flip = x.size(-2) > x.size(-1)
    x = x.mT if flip else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(turns):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return (x.mT if flip else x).to(batch.dtype)


class Muon(torch.optim.Optimizer):
    """Updates matrices by their orthogonalized momentum, with decoupled weight decay."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.02
    ) -> None:
        shapes = sorted({tuple(p.shape) for p in params})
        groups = [{"params": [p for p in params if tuple(p.shape) == shape]} for shape in shapes]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = group["params"]
            grads = torch.stack([p.grad for p in params])
            state = self.state[params[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(grads)
            state["momentum"].lerp_(grads, 1 - group["momentum"])
            update = orthogonal(grads.lerp(state["momentum"], group["momentum"]))
            scale = group["lr"] * max(1.0, grads.size(-2) / grads.size(-1)) ** 0.5
            for p, u in zip(params, update, strict=True):
                p.mul_(1 - group["lr"] * group["decay"]).add_(u, alpha=-scale)
