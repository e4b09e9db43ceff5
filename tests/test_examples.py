"""A model of somebody else's joins by one method; each example is run from its file to its result."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent / "examples"))


def test_a_gaussian_mixture_joins(capsys):
    import gaussian_mixture

    assert gaussian_mixture.main() > 0.8
    assert "AUROC" in capsys.readouterr().out


def test_a_classifier_joins():
    import classifier

    assert classifier.main() > 0.8


def test_a_flow_of_zuko_joins():
    pytest.importorskip("zuko")
    import zuko_flow

    assert zuko_flow.main() > 0.8


@pytest.mark.parametrize("name", ["gaussian_mixture", "classifier", "zuko_flow"])
def test_the_models_themselves_import_nothing_of_ours(name):
    """The class uses what measure hands it and nothing else."""
    source = (Path(__file__).parent.parent / "examples" / f"{name}.py").read_text()
    model = source[source.index("\nclass ") : source.index("\ndef main")]
    assert "def measure(self, x" in model
    for word in ("Detector", "auroc", "dose_ood", "measure("):
        assert model.count(word) == (1 if word == "measure(" else 0)


def test_statistics_of_a_classifier_are_what_they_say():
    import torch

    import classifier

    model = classifier.Classifier(7).eval()
    x = torch.arange(3 * 64, dtype=torch.uint8).reshape(3, 8, 8) % 17
    found = {name: column.detach().numpy() for name, column in model.measure(x).items()}
    logits = model.logits(model.features(x.float() / 16)).detach().double().numpy()
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["max_softmax"], shares.max(axis=1), rtol=1e-5)
    np.testing.assert_allclose(found["energy"], np.log(np.exp(logits).sum(axis=1)), rtol=1e-5)
