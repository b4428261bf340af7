"""Muon: momentum whose update is made orthogonal by a Newton-Schulz iteration (K. Jordan et al., 2024)."""

import torch
from torch import Tensor

_STEPS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(g: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices, roughly, to g [n, rows, cols] with rows <= cols."""
    x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        a = x @ x.mT
        x = _A * x + (_B * a + _C * (a @ a)) @ x
    return x


class Muon:
    """Muon over matrices [rows, cols]; those of one shape are orthogonalised in one batch."""

    def __init__(self, params: list[torch.nn.Parameter], momentum: float, weight_decay: float) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.buffers = [torch.zeros_like(p) for p in params]
        self.params = params
        self.groups: dict[tuple[int, ...], list[int]] = {}
        for i, p in enumerate(params):
            self.groups.setdefault(tuple(sorted(p.shape)), []).append(i)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update. lr is the RMS step of a square matrix's singular directions; wide and tall ones follow by shape."""
        for indices in self.groups.values():
            stacked = []
            for i in indices:
                p, buffer = self.params[i], self.buffers[i]
                buffer.lerp_(p.grad, 1 - self.momentum)
                update = p.grad.lerp(buffer, self.momentum)
                stacked.append(update if p.shape[0] <= p.shape[1] else update.T)
            updates = orthogonalise(torch.stack(stacked))
            for i, update in zip(indices, updates):
                p = self.params[i]
                update = update if p.shape[0] <= p.shape[1] else update.T
                p.mul_(1 - lr * self.weight_decay)
                p.add_(update, alpha=-lr * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)

    def state_dict(self) -> dict:
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict) -> None:
        self.buffers = state["buffers"]
