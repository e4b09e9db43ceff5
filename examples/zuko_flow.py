"""A normalising flow of zuko (pip install zuko) as the model: which handwritten digits did it never see?"""

import numpy as np
import torch
import zuko
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dose_ood import Detector, WhitenedSVM
from dose_ood.benchmark.metrics import auroc
from dose_ood.measure import measure


class Flow(nn.Module):
    """The paper's statistics of a flow: like = latent + jac."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.flow = zuko.flows.MAF(features, transforms=3, hidden_features=(128, 128))

    def measure(self, x: Tensor) -> dict[str, Tensor]:
        """Log-density, that of the latent variable, and the log-determinant of the Jacobian."""
        flow = self.flow()
        z, jac = flow.transform.call_and_ladj(prepared(x))
        latent = flow.base.log_prob(z)
        return {"like": latent + jac, "latent": latent, "jac": jac}


def prepared(x: Tensor) -> Tensor:
    """Images of 17 grey levels as rows of reals around 0; the noise depends on nothing but the position of a pixel."""
    noise = torch.rand(64, generator=torch.Generator().manual_seed(0))
    return (x.float().flatten(1) + noise) / 8.5 - 1


def main() -> float:
    """Train on 0 to 6, and tell them from 7 to 9; the AUROC."""
    digits = load_digits()
    known, unknown = digits.images[digits.target < 7], digits.images[digits.target >= 7]
    known = np.random.default_rng(0).permutation(known)
    train, held_out, test = known[:800], known[800:1000], known[1000:]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Flow(64)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
        rows = torch.from_numpy(train)
        for _ in range(200):
            optimiser.zero_grad()
            noisy = prepared(rows) + 0.2 * torch.randn(800, 64)
            loss = -model.flow().log_prob(noisy).mean()
            loss.backward()
            optimiser.step()
    detector = Detector.fit(measure(model, train), measure(model, held_out), WhitenedSVM())
    inlier, outlier = (detector.score(measure(model, images)).score for images in (test, unknown))
    reached = auroc(inlier, outlier)
    print(f"{detector.statistics}: AUROC {reached:.3f} of 7–9 against 0–6")
    return reached


if __name__ == "__main__":
    main()
