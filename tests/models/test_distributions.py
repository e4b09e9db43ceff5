import math

import mpmath
import numpy as np
import pytest
import torch
from torch import distributions as oracle

from dose_ood.models.distributions import (
    LEVELS,
    SMALLEST_SCALE,
    Bernoulli,
    DiagonalGaussian,
    DiscretizedLogitNormal,
    LogitNormal,
    MixturePrior,
    Scale,
    bernoulli_log_prob,
    discretized_logit_normal_log_prob,
    log_softplus,
    logit_normal_log_prob,
    logit_volume,
    softplus,
)
from dose_ood.noise import generator

GREY = torch.arange(LEVELS, dtype=torch.uint8)
DOUBLE = torch.float64
# Means and scales as a network gives them, and as no network should.
ORDINARY = [(0.0, 1.0), (-2.0, 0.3), (3.0, 2.5), (0.4, 0.05)]
EXTREME = [(0.0, 1e-3), (0.0, 1e4), (1e4, 1.0), (-1e4, 1.0), (30.0, 0.01), (-50.0, 1e3), (5.3, 1e-4), (1e4, 1e-3)]


def normal(*shape, name="distributions"):
    return torch.from_numpy(generator(name).normal(size=shape))


def pair(mean, scale, dtype=DOUBLE):
    return torch.tensor(mean, dtype=dtype), torch.tensor(scale, dtype=dtype)


def test_softplus_and_its_logarithm_to_the_last_digit():
    raw = torch.tensor([-1000.0, -41.0, -39.0, -3.0, 0.0, 3.0, 19.0, 21.0, 40.0, 1000.0], dtype=DOUBLE)
    exact = [mpmath.log1p(mpmath.exp(value)) for value in raw.tolist()]
    np.testing.assert_allclose(softplus(raw), [float(value) for value in exact], rtol=1e-15)
    np.testing.assert_allclose(log_softplus(raw), [float(mpmath.log(value)) for value in exact], rtol=1e-14)
    raw.requires_grad_()
    log_softplus(raw).sum().backward()
    slopes = [float(1 / (1 + mpmath.exp(-r)) / value) for r, value in zip(raw.tolist(), exact, strict=True)]
    np.testing.assert_allclose(raw.grad, slopes, rtol=1e-14)


def test_bernoulli():
    logits = 5 * normal(20, 1)
    black_or_white = torch.tensor([0, 255], dtype=torch.uint8)
    expected = oracle.Bernoulli(logits=logits).log_prob(torch.tensor([0.0, 1.0], dtype=DOUBLE))
    torch.testing.assert_close(bernoulli_log_prob(black_or_white, logits), expected)
    share = GREY.double() / 255
    mixed = share * expected[:, 1:] + (1 - share) * expected[:, :1]
    torch.testing.assert_close(bernoulli_log_prob(GREY, logits), mixed)
    assert torch.isfinite(bernoulli_log_prob(GREY, torch.tensor([[-1e4], [1e4]]))).all()


@pytest.mark.parametrize(("mean", "scale"), ORDINARY + EXTREME)
def test_logit_normal_density_is_that_of_the_transformed_variable(mean, scale):
    location, spread = pair(mean, scale)
    x = ((GREY.double() + 0.5) / LEVELS).requires_grad_()
    logit = torch.log(x) - torch.log1p(-x)
    (slope,) = torch.autograd.grad(logit.sum(), x)
    expected = oracle.Normal(location, spread).log_prob(logit.detach()) + slope.log()
    torch.testing.assert_close(logit_normal_log_prob(GREY, location, spread), expected, rtol=1e-12, atol=1e-12)
    sigmoid = oracle.TransformedDistribution(oracle.Normal(location, spread), oracle.SigmoidTransform())
    torch.testing.assert_close(sigmoid.log_prob(x.detach()), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(logit_volume(GREY), slope.log(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("mean", "scale"), ORDINARY + EXTREME)
def test_grey_levels_have_probabilities_that_sum_to_one(mean, scale, dtype, tolerance):
    found = discretized_logit_normal_log_prob(GREY, *pair(mean, scale, dtype))
    assert found.dtype == dtype
    assert torch.isfinite(found).all()
    assert abs(torch.logsumexp(found.double(), 0).exp().item() - 1) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-13), (torch.float32, 3e-6)])
@pytest.mark.parametrize(("mean", "scale"), ORDINARY + EXTREME)
def test_probability_of_a_grey_level_against_high_precision(mean, scale, dtype, tolerance):
    location, spread = pair(mean, scale, dtype)
    grey = GREY[[0, 1, 2, 50, 127, 128, 200, 253, 254, 255]]
    found = discretized_logit_normal_log_prob(grey, location, spread).double()
    expected = [exact_log_prob(level, location.item(), spread.item()) for level in grey.tolist()]
    # What float32 cannot hold is the edges: half a unit of theirs moves a far level by slope × unit.
    unit = torch.finfo(dtype).eps * (6 + abs(mean)) / scale
    slope = torch.tensor(expected, dtype=DOUBLE).abs().mul(2).sqrt()
    allowed = tolerance * (1 + found.abs()) + 2 * unit * (1 + slope)
    assert ((found - torch.tensor(expected, dtype=DOUBLE)).abs() <= allowed).all()


def exact_log_prob(level, mean, scale):
    """log [Φ(b) − Φ(a)] with so many digits that nothing cancels."""
    with mpmath.workdps(60):
        a, b = (
            (mpmath.log(mpmath.mpf(edge) / (256 - edge)) - mean) / scale
            if 0 < edge < 256
            else (edge - 128) * mpmath.inf
            for edge in (level, level + 1)
        )
        if a + b > 0:
            a, b = -b, -a
        # erfc of large arguments has full relative precision, the difference loses few of 60 digits.
        return float(mpmath.log((mpmath.erfc(-b / mpmath.sqrt(2)) - mpmath.erfc(-a / mpmath.sqrt(2))) / 2))


@pytest.mark.parametrize(("mean", "scale"), [*ORDINARY, (0.0, 50.0), (2.0, 1e-2)])
def test_slopes_of_the_probability_of_a_grey_level(mean, scale):
    means = torch.full((LEVELS,), mean, dtype=DOUBLE, requires_grad=True)
    scales = torch.full((LEVELS,), scale, dtype=DOUBLE, requires_grad=True)
    discretized_logit_normal_log_prob(GREY, means, scales).sum().backward()
    for found, step in ((means.grad, (1e-5 * scale, 0.0)), (scales.grad, (0.0, 1e-5 * scale))):
        ahead = discretized_logit_normal_log_prob(GREY, *pair(mean + step[0], scale + step[1]))
        behind = discretized_logit_normal_log_prob(GREY, *pair(mean - step[0], scale - step[1]))
        expected = (ahead - behind) / (2 * sum(step))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5 / scale)


@pytest.mark.parametrize(("mean", "scale"), EXTREME)
def test_slopes_are_finite_and_alike_in_single_precision(mean, scale):
    slopes = []
    for dtype in (torch.float32, DOUBLE):
        means = torch.full((LEVELS,), mean, dtype=dtype, requires_grad=True)
        scales = torch.full((LEVELS,), scale, dtype=dtype, requires_grad=True)
        discretized_logit_normal_log_prob(GREY, means, scales).sum().backward()
        slopes.append(torch.stack([means.grad, scales.grad]).double())
        assert torch.isfinite(slopes[-1]).all()
    size = slopes[1].abs().max(1, keepdim=True).values
    assert ((slopes[0] - slopes[1]).abs() / size).max() < 1e-3


def test_one_scale_for_many_means_gets_the_sum_of_their_slopes():
    means = normal(3, 4).requires_grad_()
    scale = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)
    grey = GREY[[3, 250, 0, 255]]
    assert torch.autograd.gradcheck(lambda m, s: discretized_logit_normal_log_prob(grey, m, s), (means, scale))
    assert torch.autograd.gradcheck(lambda m, s: logit_normal_log_prob(grey, m, s), (means, scale))


def test_density_and_probability_agree_where_a_grey_level_is_narrow():
    location, spread = pair(0.3, 1.2)
    density = logit_normal_log_prob(GREY, location, spread) - math.log(LEVELS)
    probability = discretized_logit_normal_log_prob(GREY, location, spread)
    torch.testing.assert_close(density[40:216], probability[40:216], rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", ["fixed", "shared", "pixel"])
@pytest.mark.parametrize("likelihood", [LogitNormal, DiscretizedLogitNormal])
def test_every_kind_of_scale_starts_where_it_is_told(likelihood, kind):
    model = likelihood(kind, 0.5)
    output = normal(4, 3, 6, 6).float()
    if kind == "pixel":
        given, output = output, torch.cat([output, torch.zeros_like(output)], dim=1)
    else:
        given = output
    assert output.shape[1] == 3 * model.outputs
    mean, scale = model.scale(output)
    torch.testing.assert_close(mean, given)
    torch.testing.assert_close(scale.expand_as(mean), torch.full_like(mean, 0.5))
    grey = torch.full((4, 3, 6, 6), 77, dtype=torch.uint8)
    fixed = likelihood("fixed", 0.5)
    torch.testing.assert_close(model.log_prob(grey, output), fixed.log_prob(grey, given))
    assert len(list(model.parameters())) == (kind == "shared")


def test_a_learned_scale_is_never_too_small():
    output = torch.tensor([0.0, -1e3]).reshape(1, 2, 1, 1)
    assert Scale("pixel", 1.0)(output)[1].item() == pytest.approx(SMALLEST_SCALE)


def test_the_middle_of_a_pixel():
    p = torch.tensor([0.0, 0.25, 0.5, 1.0]).reshape(1, 1, 2, 2)
    assert Bernoulli().middle(torch.logit(p)).flatten().tolist() == [0, 64, 128, 255]
    for likelihood in (LogitNormal(), DiscretizedLogitNormal()):
        middle = likelihood.middle(torch.logit((GREY.float() + 0.5) / LEVELS).reshape(1, 1, 16, 16))
        assert middle.flatten().tolist() == GREY.tolist()
    # Half of the probability is below the middle.
    probabilities = discretized_logit_normal_log_prob(GREY, *pair(0.9, 1.3)).exp().cumsum(0)
    middle = DiscretizedLogitNormal().middle(torch.full((1, 1, 1, 1), 0.9)).item()
    assert probabilities[middle - 1] < 0.5 <= probabilities[middle]


def test_diagonal_gaussian():
    mean, log_scale, noise = normal(5, 3), normal(5, 3, name="scales"), normal(5, 7, 3, name="noise")
    found = DiagonalGaussian(mean, log_scale)
    expected = oracle.Independent(oracle.Normal(mean, log_scale.exp()), 1)
    z, log_q = found.draw(noise)
    torch.testing.assert_close(z[:, 4], mean + log_scale.exp() * noise[:, 4])
    torch.testing.assert_close(log_q, expected.log_prob(z.transpose(0, 1)).T)
    torch.testing.assert_close(found.log_prob(z), log_q)
    torch.testing.assert_close(found.entropy(), expected.entropy())


def test_a_draw_keeps_its_density_where_its_digits_end():
    noise = normal(1, 4, 2)
    _, log_q = DiagonalGaussian(torch.full((1, 2), 1e9), torch.full((1, 2), -60.0)).draw(noise)
    expected = oracle.Normal(0.0, 1.0).log_prob(noise).sum(-1) + 120
    torch.testing.assert_close(log_q, expected)


def prior_and_oracle(components=6, latent=3):
    prior = MixturePrior(normal(components - 1, latent, name="means")).double()
    with torch.no_grad():
        prior.logits.copy_(normal(components - 1, name="logits"))
        prior.raw_scales.copy_(normal(components, latent, name="scales"))
    means = torch.cat([torch.zeros(1, latent, dtype=DOUBLE), prior.means]).detach()
    logits = torch.cat([torch.zeros(1, dtype=DOUBLE), prior.logits]).detach()
    scales = torch.nn.functional.softplus(prior.raw_scales.detach() + math.log(math.e - 1))
    parts = oracle.Independent(oracle.Normal(means, scales), 1)
    return prior, oracle.MixtureSameFamily(oracle.Categorical(logits=logits), parts)


@pytest.mark.parametrize(("components", "latent"), [(200, 2), (6, 3), (1, 1), (2, 17)])
def test_mixture_density(components, latent):
    prior, expected = prior_and_oracle(components, latent)
    z = 3 * normal(5, 7, latent, name="z")
    torch.testing.assert_close(prior.log_prob(z), expected.log_prob(z))
    torch.testing.assert_close(prior.float().log_prob(z), expected.log_prob(z), rtol=1e-5, atol=1e-5)
    far = torch.full((1, latent), 1e6, dtype=DOUBLE)
    assert torch.isfinite(prior.log_prob(far)).all()


def test_mixture_draws():
    prior, expected = prior_and_oracle()
    random = generator("mixture draws")
    uniform, noise = torch.from_numpy(random.random(200_000)), torch.from_numpy(random.normal(size=(200_000, 3)))
    z = prior.sample(uniform, noise).detach()
    sigma = (expected.variance / len(z)).sqrt()
    assert ((z.mean(0) - expected.mean).abs() < 4 * sigma).all()
    torch.testing.assert_close(z.var(0), expected.variance, rtol=0.03, atol=0)
    # The entropy, whose estimate depends on the whole density; as many draws of torch's own say how precisely.
    with torch.random.fork_rng(devices=[]):
        others = expected.log_prob(expected.sample((len(z),)))
    error = math.hypot(others.std().item(), prior.log_prob(z).std().item()) / math.sqrt(len(z))
    assert abs(prior.log_prob(z).mean() - others.mean()).item() < 4 * error
    assert prior.sample(torch.tensor([0.0, 1 - 2**-53], dtype=DOUBLE), noise[:2]).isfinite().all()


def test_the_first_component_does_not_learn_where_it_is():
    prior = MixturePrior(normal(4, 2))
    assert {name for name, _ in prior.named_parameters()} == {"means", "logits", "raw_scales"}
    prior.log_prob(normal(50, 2, name="z").float()).sum().backward()
    assert all((parameter.grad != 0).any() for parameter in prior.parameters())
    assert (prior.raw_scales.grad[0] != 0).all()
    assert prior.first_mean.grad is None
    assert prior.first_logit.grad is None
    assert {tensor.dtype for tensor in prior.state_dict().values()} == {torch.float32}
