import numpy as np
import pytest
import torch

from dose_ood import WAIC, Detector, InputError, LikelihoodRatio
from dose_ood.measure import measure
from dose_ood.models.ensemble import Ensemble
from standin import StandIn, StandInConfig, stripes

MODELS = [StandIn(StandInConfig(), seed=seed) for seed in range(3)]


def test_columns_are_those_of_each_model_under_its_prefix():
    x = torch.from_numpy(stripes(5))
    found = Ensemble(MODELS[:2], background=MODELS[2]).measure(x)
    assert list(found) == ["0/like", "0/norm", "1/like", "1/norm", "background/like", "background/norm"]
    for prefix, model in zip(("0/", "1/", "background/"), MODELS, strict=True):
        for name, column in model.measure(x).items():
            assert torch.equal(found[prefix + name], column)


def test_one_model_keeps_its_names():
    x = torch.from_numpy(stripes(5))
    assert list(Ensemble(MODELS[:1]).measure(x)) == ["like", "norm"]
    assert list(Ensemble(MODELS[:1], MODELS[1]).measure(x)) == ["like", "norm", "background/like", "background/norm"]
    with pytest.raises(InputError, match="needs at least one model"):
        Ensemble([])


def test_the_baselines_find_their_columns():
    parts = [stripes(60, seed=seed) for seed in range(2)]
    waic = [measure(Ensemble(MODELS), images) for images in parts]
    ratio = [measure(Ensemble(MODELS[:1], MODELS[1]), images) for images in parts]
    assert Detector.fit(*waic, WAIC()).statistics == ("0/like", "1/like", "2/like")
    assert Detector.fit(*ratio, LikelihoodRatio()).statistics == ("like", "background/like")


def test_members_are_measured_in_eval_mode():
    class Moody(StandIn):
        def measure(self, x):
            return {"training": np.full(len(x), float(self.training))}

    members = [Moody(StandInConfig()).train() for _ in range(2)]
    assert not measure(Ensemble(members), stripes(3)).values.any()
    assert all(member.training for member in members)
