"""The models in onnxruntime against torch: statistics, scores, p-values and verdicts on the same images."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from exported import Session
from scipy.special import log_ndtr

from dose_ood import Detector, Likelihood, ProductKDE, WhitenedSVM
from dose_ood.export.file import image_model
from dose_ood.export.graph import FLOAT64, Graph
from dose_ood.export.likelihoods import ERFCX, ERFCX_CENTRE, log_likelihood
from dose_ood.guard import Guard, with_model
from dose_ood.measure import measure
from dose_ood.models.distributions import Bernoulli, DiscretizedLogitNormal, LogitNormal
from dose_ood.models.glow import GlowConfig
from dose_ood.models.registry import Loaded, build
from dose_ood.models.vae import VAEConfig
from dose_ood.noise import content_normal, content_uniform, generator
from standin import stripes

VAES = {
    "bernoulli": VAEConfig(likelihood="bernoulli", shape=(1, 8, 8), depth=4, components=5),
    "logit-normal, mirror": VAEConfig(likelihood="logit_normal", decoder="mirror", shape=(1, 8, 8), depth=4),
    "odd sides, shared scale": VAEConfig(
        likelihood="logit_normal", scale_kind="shared", shape=(2, 7, 9), depth=3, latent=3, draws=5
    ),
    "scale of each pixel": VAEConfig(likelihood="logit_normal", scale_kind="pixel", shape=(3, 6, 8), depth=4),
    "discretized": VAEConfig(
        likelihood="discretized_logit_normal", scale_kind="pixel", scale=0.2, shape=(1, 8, 8), depth=4, slope=0.0
    ),
}
GLOWS = {
    "grey": GlowConfig(shape=(1, 8, 8), levels=2, steps=2, filters=4),
    "colour, one odd side": GlowConfig(shape=(3, 7, 8), levels=3, steps=2, filters=5, opening=1.5),
    "without exits": GlowConfig(shape=(3, 8, 8), levels=2, steps=2, filters=4, exits=False),
    "without noise": GlowConfig(shape=(3, 8, 8), levels=2, steps=2, filters=4, noise=False),
    "one level": GlowConfig(shape=(3, 4, 4), levels=1, steps=3, filters=4),
}


def images_for(shape, count, seed=0):
    return generator("exported images", seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def trained(config):
    """A model whose every weight has moved, as training would do."""
    model = build(config, seed=3)
    if isinstance(config, GlowConfig):
        model.initialize(torch.from_numpy(images_for(config.shape, 50, 9)), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            moved = 0.05 * generator(f"moved {name}").normal(size=parameter.shape)
            parameter.add_(torch.from_numpy(np.asarray(moved)).to(parameter.dtype))
    return model.eval()


def guarded(config, estimator, statistics=None) -> Guard:
    model = trained(config)
    tables = [measure(model, images_for(config.shape, count, seed)) for count, seed in ((80, 1), (40, 2))]
    return Guard.of(with_model(Detector.fit(*tables, estimator, statistics), Loaded(model, {"seed": 3})))


@pytest.mark.parametrize("name", [*VAES, *GLOWS])
def test_statistics_scores_and_verdicts_are_torchs(name):
    config = {**VAES, **GLOWS}[name]
    guard = guarded(config, ProductKDE(discard=0.3))
    session = Session(image_model(guard.detector))
    images = images_for(config.shape, 40, 3)
    images[1], images[2], images[3, :, ::2] = 0, 255, 0
    found, rows = session.images(images), guard.measure(images)
    spread = guard.measure(images_for(config.shape, 80, 1)).values.std(axis=0)
    assert (np.abs(found["statistics"] - rows.values) < 1e-4 * spread + 1e-6 * np.abs(rows.values)).all()
    exact = [column for column, label in enumerate(rows.names) if label in ("xent", "ent", "rate")]
    np.testing.assert_allclose(found["statistics"][:, exact], rows.values[:, exact], rtol=1e-11, atol=1e-11)
    expected = guard.score(images)
    np.testing.assert_allclose(found["score"], expected.score, rtol=1e-4)
    np.testing.assert_array_equal(found["is_typical"], expected.is_typical)
    np.testing.assert_allclose(found["p_value"], expected.p_value, atol=1.01 / 41)
    assert 0 < found["is_typical"].sum() < 40


@pytest.mark.parametrize("name", VAES)
def test_of_the_likeliest_draw_all_statistics_are_exact(name):
    guard = guarded(replace(VAES[name], draws=1), ProductKDE())
    images = images_for(VAES[name].shape, 20, 3)
    found = Session(image_model(guard.detector)).images(images)["statistics"]
    np.testing.assert_allclose(found, guard.measure(images).values, rtol=1e-11, atol=1e-11)


def test_a_whitened_svm_and_a_baseline_on_top_of_a_model():
    for estimator in (WhitenedSVM(), Likelihood()):
        guard = guarded(VAES["bernoulli"], estimator)
        images = images_for((1, 8, 8), 30, 3)
        found = Session(image_model(guard.detector)).images(images)
        np.testing.assert_allclose(found["score"], guard.score(images).score, rtol=1e-4)
        np.testing.assert_array_equal(found["is_typical"], guard.score(images).is_typical)


def test_only_what_the_detectors_statistics_need_is_in_the_file():
    guard = guarded(VAES["bernoulli"], ProductKDE(), ("ent", "rate"))  # neither needs the decoder
    model = image_model(guard.detector)
    assert "ConvTranspose" not in {node.op_type for node in model.graph.node}
    images = images_for((1, 8, 8), 20, 3)
    found = Session(model).images(images)
    np.testing.assert_allclose(found["statistics"], guard.measure(images).select(("ent", "rate")).values, rtol=1e-5)


def test_noise_decides_the_draws_and_each_image_has_its_own():
    guard = guarded(VAES["bernoulli"], ProductKDE())
    session = Session(image_model(guard.detector))
    images = images_for((1, 8, 8), 6, 3)
    found = session.images(images)["statistics"]
    noise = content_normal(images, 16, (2,))
    np.testing.assert_array_equal(session.images(images, noise)["statistics"], found)
    turned = session.images(images, noise[::-1].copy())["statistics"]
    assert (np.abs(turned - found).max(axis=1) > 1e-3).all()
    for i in range(len(images)):  # whatever else is in the batch
        alone = session.images(images[i : i + 1], noise[i : i + 1])["statistics"][0]
        np.testing.assert_allclose(alone, found[i], rtol=1e-5)


def test_the_log_determinants_of_a_flow_are_those_of_its_layers():
    config = GLOWS["colour, one odd side"]
    guard = guarded(config, ProductKDE(), ("like", "latent", "jac", "jac/0", "jac/1", "jac/2"))
    images = images_for(config.shape, 4, 3)
    like, latent, jac, *levels = Session(image_model(guard.detector)).images(images)["statistics"].T
    np.testing.assert_allclose(like, latent + jac, rtol=1e-14)
    np.testing.assert_allclose(jac, sum(levels), rtol=1e-14)
    x = torch.from_numpy((images + content_uniform(images, config.shape)) / 256 - 0.5).permute(0, 2, 3, 1)
    total = torch.full((4,), -math.prod(config.shape) * math.log(256), dtype=torch.float64)
    model = guard.model.double()
    with torch.no_grad():
        for number, level in enumerate(model.levels):
            x = level.squeeze(x)
            for step in level.steps:
                x, log_det = step(x)
                total += log_det
            if number < len(model.exits):
                x, _, log_det = model.exits[number](x)
                total += log_det
    np.testing.assert_allclose(jac, total.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "likelihood",
    [
        Bernoulli(),
        LogitNormal("pixel", 1.0),
        DiscretizedLogitNormal("fixed", 1.0),
        DiscretizedLogitNormal("fixed", 0.02),
        DiscretizedLogitNormal("pixel", 1.0),
    ],
    ids=["bernoulli", "logit-normal", "discretized", "narrow", "discretized, pixel"],
)
def test_likelihoods_of_every_grey_level_however_far_from_the_mean(likelihood):
    import onnx
    import onnxruntime

    grey = np.arange(256, dtype=np.uint8).reshape(256, 1, 1, 1)
    means = np.array([-300.0, -40.0, -9.0, -5.5, -1.0, 0.0, 1e-9, 0.3, 5.0, 8.0, 77.0, 1e4])
    output = np.broadcast_to(means[None, :, None, None, None], (256, 12, likelihood.outputs, 1, 1)).copy()
    if likelihood.outputs == 2:
        output[:, :, 1] = np.linspace(-30, 3, 12)[:, None, None]
    graph = Graph()
    images = graph.input("images", np.dtype(np.uint8), ("n", 1, 1, 1))
    outputs = graph.input("outputs", FLOAT64, ("n", 12, likelihood.outputs, 1, 1))
    described = graph.finish("test", {"p": (log_likelihood(likelihood, images, outputs), ("n", 12))})
    model = onnx.helper.make_model(described, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=7)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(None, {"images": grey, "outputs": output})[0]
    images, outputs = torch.from_numpy(grey), torch.from_numpy(output)
    expected = likelihood.log_prob(images[:, None], outputs).detach().sum((2, 3, 4))
    expected -= likelihood.log_volume(images)[:, None]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-11, atol=1e-11)


def test_the_polynomial_behind_the_normal_distribution():
    y = np.concatenate([np.linspace(0, 30, 5_001), np.geomspace(30, 1e9, 500)])
    erfcx = np.polynomial.polynomial.polyval((y - ERFCX_CENTRE) / (y + ERFCX_CENTRE), ERFCX) / (1 + 2 * y)
    x = -y * math.sqrt(2)
    np.testing.assert_allclose(np.log(erfcx / 2) - y**2, log_ndtr(x), rtol=1e-13)


@pytest.mark.slow
def test_a_trained_model_on_stripes():
    """Longer: a model of the paper's size on images with structure."""
    model = build(VAEConfig(shape=(1, 28, 28), depth=32, likelihood="logit_normal"), seed=1).eval()
    tables = [measure(model, stripes(count, seed, 28)) for count, seed in ((200, 0), (100, 1))]
    guard = Guard.of(with_model(Detector.fit(*tables, ProductKDE()), Loaded(model, {})))
    images = np.concatenate([stripes(150, 2, 28), images_for((1, 28, 28), 50)])
    found, expected = Session(image_model(guard.detector)).images(images), guard.score(images)
    np.testing.assert_allclose(found["score"], expected.score, rtol=1e-4)
    np.testing.assert_array_equal(found["is_typical"], expected.is_typical)
