"""A torch classifier as the model: largest softmax, energy and feature norm say which digits it never saw."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from dose_ood import Detector, WhitenedSVM
from dose_ood.benchmark.metrics import auroc
from dose_ood.measure import measure


class Classifier(nn.Module):
    """Two layers of features and one of logits; a module gets tensors, in eval mode, without gradients."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.logits = nn.Linear(64, classes)

    def measure(self, x: Tensor) -> dict[str, Tensor]:
        """What a classifier shows without labels."""
        features = self.features(x.float() / 16)
        logits = self.logits(features)
        return {
            "max_softmax": logits.softmax(dim=1).amax(dim=1),
            "energy": logits.logsumexp(dim=1),
            "feature_norm": features.norm(dim=1),
        }


def main() -> float:
    """Train on 0 to 6, and tell them from 7 to 9; the AUROC."""
    digits = load_digits()
    known = np.random.default_rng(0).permutation(np.flatnonzero(digits.target < 7))
    images, labels = digits.images[known], torch.from_numpy(digits.target[known])
    unknown = digits.images[digits.target >= 7]
    train, held_out, test = images[:800], images[800:1000], images[1000:]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Classifier(7)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        batch = torch.from_numpy(train.astype(np.float32))
        for _ in range(100):
            optimiser.zero_grad()
            loss = functional.cross_entropy(model.logits(model.features(batch / 16)), labels[:800])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    detector = Detector.fit(measure(model, train), measure(model, held_out), WhitenedSVM())
    inlier, outlier = (detector.score(measure(model, part)).score for part in (test, unknown))
    reached = auroc(inlier, outlier)
    print(f"{detector.statistics}: AUROC {reached:.3f} of 7–9 against 0–6")
    return reached


if __name__ == "__main__":
    main()
