"""Muon, for convolutions as well as for matrices."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Muon(torch.optim.Muon):
    """torch's Muon without weight decay; it moves a convolution as the matrix that has a row for each output.

    A step moves a matrix by nearly the same amount in each of its directions, however small the gradient is in some.

    Parameters
    ----------
    weights
        Matrices, and convolutions that are kept channels last.
    lr
        The learning rate, at a step of about which every singular value of a square matrix moves.

    References
    ----------
    *Muon: An optimizer for hidden layers in neural networks (Jordan et al., 2024)*
    """

    def __init__(self, weights: Sequence[nn.Parameter], lr: float) -> None:
        self.weights = weights
        matrices = [_rows(weight.detach()).view(len(weight), -1) for weight in weights]  # in the same memory
        super().__init__(matrices, lr=lr, weight_decay=0.0)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the weights that have a gradient."""
        for matrix, weight in zip(self.param_groups[0]["params"], self.weights, strict=True):
            matrix.grad = None if weight.grad is None else _rows(weight.grad).reshape(len(weight), -1)
        super().step()  # type: ignore[no-untyped-call]


def _rows(weight: Tensor) -> Tensor:
    """The first dimension first, and channels last."""
    return weight if weight.ndim == 2 else weight.movedim(1, -1)
