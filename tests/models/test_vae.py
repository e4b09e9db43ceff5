import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import distributions as oracle
from torch.nn import functional

from dose_ood.errors import InputError
from dose_ood.models.distributions import DiagonalGaussian, MixturePrior
from dose_ood.models.vae import BetaVAE, VAEConfig, estimate
from dose_ood.noise import content_normal, generator

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = VAEConfig(shape=(1, 12, 12), depth=4, components=7, draws=5)
LIKELIHOODS = [
    TINY,
    replace(TINY, likelihood="logit_normal", scale=0.7),
    replace(TINY, likelihood="logit_normal", scale_kind="shared"),
    replace(TINY, likelihood="logit_normal", scale_kind="pixel"),
    replace(TINY, likelihood="discretized_logit_normal", scale_kind="pixel"),
    replace(TINY, likelihood="discretized_logit_normal"),
]
SHAPES = [
    replace(TINY, shape=(3, 9, 14), latent=5, decoder="mirror"),
    replace(TINY, shape=(2, 1, 7), decoder="mirror", components=1),
    replace(TINY, shape=(3, 32, 32), slope=0.0, draws=2),
]
each_likelihood = pytest.mark.parametrize("config", LIKELIHOODS, ids=lambda c: f"{c.likelihood}-{c.scale_kind}")
each_model = pytest.mark.parametrize("config", LIKELIHOODS + SHAPES)
NAMES = ["xent", "ent", "rate", "distortion", "iwae"]


def images(config, count, name="images"):
    """Blobs at different places and of different sizes, so that no two have the same latent."""
    random = generator(name)
    channels, height, width = config.shape
    y, x = np.mgrid[0.0 : 1.0 : height * 1j, 0.0 : 1.0 : width * 1j]
    at, size = random.uniform(0.1, 0.9, (2, count, channels, 1, 1)), random.uniform(0.1, 0.4, (count, 1, 1, 1))
    grey = 255 * np.exp(-((y - at[0]) ** 2 + (x - at[1]) ** 2) / (2 * size**2))
    return torch.from_numpy(np.floor(grey).astype(np.uint8))


def noise(seed=0):
    return torch.Generator().manual_seed(seed)


def loss(model, x, seed=0, **options):
    return model.objective(x, noise(seed), **({"beta": 1.0, "samples": 3, "burn_in": False} | options))


def same(first, second, rtol=0.0, atol=0.0):
    assert list(first) == list(second) == NAMES
    for name in NAMES:
        torch.testing.assert_close(first[name], second[name], rtol=rtol, atol=atol)


# The statistics, on a model whose evidence is known.


class LinearGaussian:
    """x = W z + ε, z ~ N(0, 1): the columns of W are orthogonal, so that the true posterior is a diagonal Gaussian."""

    def __init__(self, rows, latent=3, pixels=8, sigma=0.6):
        random = generator("linear Gaussian")
        basis, _ = np.linalg.qr(random.normal(size=(pixels, latent)))
        self.weight = torch.from_numpy(basis * np.array([0.5, 1.0, 2.0]))
        self.sigma = sigma
        z, epsilon = random.normal(size=(rows, latent)), random.normal(size=(rows, pixels))
        self.x = torch.from_numpy(z) @ self.weight.T + sigma * torch.from_numpy(epsilon)
        self.prior = MixturePrior(torch.zeros(0, latent))
        covariance = self.weight @ self.weight.T + sigma**2 * torch.eye(pixels, dtype=torch.float64)
        evidence = oracle.MultivariateNormal(torch.zeros(pixels, dtype=torch.float64), covariance)
        self.log_evidence = evidence.log_prob(self.x)
        precision = 1 + self.weight.square().sum(0) / sigma**2
        self.posterior = DiagonalGaussian(
            self.x @ self.weight / sigma**2 / precision, (-0.5 * precision.log()).expand(rows, -1)
        )

    def log_likelihood(self, z):
        return oracle.Normal(z @ self.weight.T, self.sigma).log_prob(self.x[:, None]).sum(-1)

    def statistics(self, posterior, draws):
        epsilon = torch.from_numpy(generator("draws").normal(size=(len(self.x), draws, self.weight.shape[1])))
        with torch.no_grad():
            return estimate(posterior, epsilon, self.log_likelihood, self.prior.log_prob)


def test_the_true_posterior_gives_the_evidence_with_any_draw():
    model = LinearGaussian(50)
    for draws in (1, 16):
        found = model.statistics(model.posterior, draws)
        torch.testing.assert_close(found["iwae"], model.log_evidence)
        torch.testing.assert_close(found["distortion"] - found["rate"], model.log_evidence)


def test_elbo_below_iwae_below_evidence_and_converging_as_draws_grow():
    model = LinearGaussian(2000)
    off = DiagonalGaussian(model.posterior.mean + 0.2, model.posterior.log_scale + 0.3)
    exact = oracle.Independent(oracle.Normal(model.posterior.mean, model.posterior.log_scale.exp()), 1)
    wrong = oracle.Independent(oracle.Normal(off.mean, off.log_scale.exp()), 1)
    elbo = model.log_evidence - oracle.kl_divergence(wrong, exact)
    gaps = []
    for draws in (1, 4, 16, 64, 256):
        found = model.statistics(off, draws)
        below = found["distortion"] - found["rate"]
        assert (below <= found["iwae"] + 1e-12).all()  # for the same draws, always
        error = (below - elbo).std() / math.sqrt(len(below))
        assert abs((below - elbo).mean()) < 4 * error
        gaps.append((model.log_evidence - found["iwae"]).mean().item())
    torch.testing.assert_close(gaps[0], (model.log_evidence - elbo).mean().item(), rtol=0.1, atol=0)
    assert all(more < less / 2 for less, more in pairwise(gaps))
    assert 0 < gaps[-1] < 0.005


def test_cross_entropy_entropy_and_rate_are_those_of_the_distributions():
    model = LinearGaussian(20)
    found = model.statistics(model.posterior, 20_000)
    q = oracle.Independent(oracle.Normal(model.posterior.mean, model.posterior.log_scale.exp()), 1)
    r = oracle.Independent(oracle.Normal(torch.zeros(3).double(), torch.ones(3).double()), 1)
    kl = oracle.kl_divergence(q, r)
    torch.testing.assert_close(found["ent"], q.entropy(), rtol=0, atol=0.05)
    torch.testing.assert_close(found["rate"], kl, rtol=0, atol=0.05)
    torch.testing.assert_close(found["xent"], kl + q.entropy(), rtol=0, atol=0.05)
    residual = (model.x - model.posterior.mean @ model.weight.T).square().sum(1)
    spread = (model.weight.square().sum(0) * (2 * model.posterior.log_scale).exp()).sum(1)
    expected = -0.5 * (residual + spread) / 0.36 - 4 * math.log(2 * math.pi * 0.36)
    torch.testing.assert_close(found["distortion"], expected, rtol=0, atol=0.05)


# The statistics of the network.


def described(model, x, output):
    """The log-density of what the decoder describes: logits, of a logit-normal."""
    if model.config.likelihood != "logit_normal":
        return model.likelihood.log_prob(x, output).sum()
    return oracle.Normal(*model.likelihood.scale(output)).log_prob(torch.logit((x.double() + 0.5) / 256)).sum()


@each_model
def test_measure_against_a_plain_loop_over_images_and_draws(config):
    model, x = BetaVAE(config, seed=3).double(), images(config, 6)
    epsilon = torch.from_numpy(content_normal(x.numpy(), config.draws, (config.latent,)))
    with torch.no_grad():
        found = model.measure(x)
        mean, log_scale = model.encoder.posterior(x).mean, model.encoder.posterior(x).log_scale
        assert torch.pdist(mean).min() > 1e-5  # a mix-up of images and latents would show
        for i in range(len(x)):
            q = oracle.Independent(oracle.Normal(mean[i], log_scale[i].exp()), 1)
            terms = []
            for t in range(config.draws):
                z = mean[i] + log_scale[i].exp() * epsilon[i, t]
                log_p = described(model, x[i : i + 1], model.decoder(z[None]))
                terms.append(torch.stack([log_p, model.prior.log_prob(z), q.log_prob(z)]))
            log_p, log_r, log_q = torch.stack(terms, dim=1)
            weights = (log_p + log_r - log_q).exp() if config is TINY else None
            assert found["xent"][i].item() == pytest.approx(-log_r.mean().item(), rel=1e-9)
            assert found["ent"][i].item() == pytest.approx(-log_q.mean().item(), rel=1e-9)
            assert found["distortion"][i].item() == pytest.approx(log_p.mean().item(), rel=1e-9)
            log_mean = torch.logsumexp(log_p + log_r - log_q, 0) - math.log(config.draws)
            assert found["iwae"][i].item() == pytest.approx(log_mean.item(), rel=1e-9)
            if weights is not None:
                assert found["iwae"][i].item() == pytest.approx(weights.mean().log().item(), rel=1e-9)


@each_model
def test_a_batch_of_images_meets_its_own_latents(config):
    model, x = BetaVAE(config).double(), images(config, 4)
    z = torch.from_numpy(generator("latents").normal(size=(4, 3, config.latent)))
    with torch.no_grad():
        found = model.log_likelihood(x, z, torch.float64)
        for i in range(4):
            for t in range(3):
                expected = model.likelihood.log_prob(x[i : i + 1], model.decoder(z[i, t : t + 1])).sum()
                assert found[i, t].item() == pytest.approx(expected.item(), rel=1e-9)
        assert len(found.flatten().unique()) == 12


@each_model
def test_rate_is_exactly_the_difference_and_iwae_at_least_the_elbo(config):
    x = images(config, 6)
    with torch.no_grad():
        found = BetaVAE(config).measure(x)
    assert list(found) == NAMES
    assert all(column.dtype == torch.float64 and column.shape == (6,) for column in found.values())
    assert torch.equal(found["rate"], found["xent"] - found["ent"])
    assert (found["iwae"] >= found["distortion"] - found["rate"] - 1e-9).all()
    assert len(found["iwae"].unique()) == 6


@each_model
def test_single_precision_costs_little(config):
    x = images(config, 6)
    with torch.no_grad():
        same(BetaVAE(config).measure(x), BetaVAE(config).double().measure(x), rtol=2e-6, atol=2e-6)


@each_model
def test_what_the_encoder_alone_decides_is_found_in_double_precision(config):
    model, x = BetaVAE(config, seed=2), images(config, 5)
    found, exact = model.measure(x), BetaVAE(config, seed=2).double().measure(x)
    for name in ("xent", "ent", "rate"):
        torch.testing.assert_close(found[name], exact[name], rtol=1e-12, atol=1e-12)
    assert model.dtype() == torch.float32, "the model itself is left as it was"


@each_model
def test_the_likeliest_draw_is_found_in_double_precision(config):
    only = replace(config, draws=1)
    found, exact = (model.measure(images(only, 5)) for model in (BetaVAE(only), BetaVAE(only).double()))
    same(found, exact, rtol=1e-12, atol=1e-12)

    model, x = BetaVAE(config, seed=2), images(config, 5)
    with torch.no_grad():
        for parameter in model.decoder.first.parameters():
            parameter *= 1_000  # so that nearby draws are far apart in likelihood, and iwae is one of them
        found, exact = model.measure(x), model.double().measure(x)
    alone = exact["iwae"] - exact["distortion"] + exact["rate"] > 100  # no other draw is heard
    assert alone.any()
    torch.testing.assert_close(found["iwae"][alone], exact["iwae"][alone], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("config", [TINY, SHAPES[0], VAEConfig(depth=8)])
def test_an_image_has_the_same_statistics_to_the_bit_alone_and_in_any_batch_and_order(config):
    model, x = BetaVAE(config), images(config, 9)
    order = torch.from_numpy(generator("order").permutation(9))
    with torch.no_grad():
        found = model.measure(x)
        same(model.measure(x[order]), {name: column[order] for name, column in found.items()})
        for i in (0, 4, 8):
            same(model.measure(x[i : i + 1]), {name: column[i : i + 1] for name, column in found.items()})
        same(model.measure(x.repeat(3, 1, 1, 1)[5:14]), {name: column.roll(-5) for name, column in found.items()})
        same(model.measure(x.contiguous(memory_format=torch.channels_last)), found)
    same({name: column.detach() for name, column in model.train().measure(x).items()}, found)  # no mode matters
    assert {name: len(column) for name, column in model.measure(x[:0]).items()} == dict.fromkeys(NAMES, 0)


def test_other_processes_and_thread_counts_give_the_same_statistics():
    config, count = VAEConfig(depth=8), 3
    code = f"""
import json, sys, torch
sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
import test_vae
model = test_vae.BetaVAE(test_vae.VAEConfig(depth=8))
for threads in (1, 2):
    torch.set_num_threads(threads)
    with torch.no_grad():
        found = model.measure(test_vae.images(model.config, {count}))
    print(json.dumps({{name: [value.hex() for value in column.tolist()] for name, column in found.items()}}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    with torch.no_grad():
        here = BetaVAE(config).measure(images(config, count))
    for line, tolerance in zip(run.stdout.splitlines(), (0.0, 1e-6), strict=True):
        there = {name: [float.fromhex(value) for value in column] for name, column in json.loads(line).items()}
        same({name: torch.tensor(column, dtype=torch.float64) for name, column in there.items()}, here, rtol=tolerance)


# The network.


@pytest.mark.parametrize("size", [(28, 28), (12, 12), (9, 14), (1, 7)])
def test_the_last_layer_in_blocks_is_a_convolution(size):
    config = replace(TINY, shape=(1, *size), decoder="mirror")
    decoder = BetaVAE(config, seed=1).double().decoder
    z = torch.from_numpy(generator("z").normal(size=(5, 2)))
    x = functional.leaky_relu(decoder.first(z), 0.2).reshape(5, *decoder.block).permute(0, 3, 1, 2)
    for layer in decoder.layers:
        x = functional.leaky_relu(layer(x), 0.2)
    expected = functional.conv2d(x, decoder.last.weight, decoder.last.bias, padding=2)
    assert expected.shape[2:] == size
    torch.testing.assert_close(decoder(z), expected)


def test_the_paper_s_architecture():
    model = BetaVAE(VAEConfig())
    layers = [layer for layer in model.encoder.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert [(layer.out_channels, layer.kernel_size[0], layer.stride[0]) for layer in layers] == [
        (32, 5, 1),
        (32, 5, 2),
        (64, 5, 1),
        (64, 5, 2),
        (4, 7, 1),
    ]
    assert [len(layer.weight.flatten()) // 25 // layer.in_channels for layer in model.decoder.layers] == [
        64,
        64,
        32,
        32,
        32,
    ]
    mirror = BetaVAE(VAEConfig(decoder="mirror"))
    assert [layer.stride[0] for layer in mirror.decoder.layers] == [2, 1, 2]
    assert model.prior.raw_scales.shape == (200, 2)


@each_model
def test_weights_come_from_the_seed_alone_and_signals_neither_fade_nor_grow(config):
    before = torch.get_rng_state()
    model, again, other = BetaVAE(config), BetaVAE(config, seed=0), BetaVAE(config, seed=1)
    x = images(config, 4)
    model.measure(x)
    model.sample(3, seed=0)
    loss(model, x).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    weights = model.state_dict()
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.state_dict().items())
    assert not torch.equal(other.decoder.first.weight, model.decoder.first.weight)
    with torch.no_grad():
        output = model.decoder(torch.from_numpy(generator("z").normal(size=(500, config.latent))).float())
    assert 0.05 < output.square().mean().sqrt() < 5
    json.dumps(asdict(config))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shape": (28, 28)}, "shape must be"),
        ({"shape": [1, 28, 28]}, "shape must be"),
        ({"shape": (1, 0, 28)}, "shape must be"),
        ({"latent": 0}, "latent must be"),
        ({"depth": 2.5}, "depth must be"),
        ({"draws": True}, "draws must be"),
        ({"components": "9"}, "components must be"),
        ({"likelihood": "normal"}, "likelihood must be one of bernoulli, logit_normal"),
        ({"scale_kind": "free"}, "scale_kind must be one of fixed, shared, pixel"),
        ({"decoder": "big"}, "decoder must be one of"),
        ({"scale": 0.0}, "scale must be"),
        ({"scale": math.nan}, "scale must be"),
        ({"slope": "0.2"}, "slope must be"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(wrong, message):
    with pytest.raises(InputError, match=message):
        VAEConfig(**wrong)


def test_images_of_another_kind_are_refused():
    model, x = BetaVAE(TINY), images(TINY, 2)
    for wrong in (x.float(), x[0], x[:, :, :11], x.repeat(1, 3, 1, 1)):
        for use in (model.measure, model.reconstruct, lambda x: loss(model, x)):
            with pytest.raises(InputError, match=r"expected uint8 images of shape \(n, 1, 12, 12\)"):
                use(wrong)


# Training.


@each_likelihood
def test_the_objective_is_the_negative_elbo_of_its_own_draws(config):
    model, x = BetaVAE(config).double(), images(config, 4)
    found = loss(model, x, samples=6, seed=9)
    epsilon = torch.randn(4, 6, config.latent, generator=noise(9), dtype=torch.float64)
    posterior = model.encoder.posterior(x)
    statistics = estimate(posterior, epsilon, lambda z: model.log_likelihood(x, z, torch.float64), model.prior.log_prob)
    expected = -statistics["distortion"] + statistics["xent"] - posterior.entropy()
    torch.testing.assert_close(found, expected)


def test_beta_weighs_the_divergence_and_nothing_else():
    model, x = BetaVAE(replace(TINY, components=1)).double(), images(TINY, 4)
    losses = [loss(model, x, beta=beta, samples=500) for beta in (0.0, 1.0, 100.0)]
    q = model.encoder.posterior(x)
    q = oracle.Independent(oracle.Normal(q.mean, q.log_scale.exp()), 1)
    r = oracle.Independent(oracle.Normal(torch.zeros(2).double(), torch.ones(2).double()), 1)
    torch.testing.assert_close(losses[1] - losses[0], oracle.kl_divergence(q, r), rtol=0.1, atol=0.2)
    torch.testing.assert_close(losses[2] - losses[0], 100 * (losses[1] - losses[0]))

    def slopes(part, beta):
        found = torch.autograd.grad(loss(model, x, beta=beta).sum(), list(part.parameters()), allow_unused=True)
        return torch.cat([slope.flatten() for slope in found if slope is not None])

    torch.testing.assert_close(slopes(model.decoder, 5.0), slopes(model.decoder, 1.0))
    torch.testing.assert_close(slopes(model.prior, 5.0), 5 * slopes(model.prior, 1.0))
    first, second, third = (slopes(model.encoder, beta) for beta in (1.0, 2.0, 3.0))
    torch.testing.assert_close(third - second, second - first)
    assert (third - second).abs().max() > 1e-6


@each_likelihood
def test_burn_in_trains_the_decoder_and_nothing_else(config):
    model, x = BetaVAE(config), images(config, 4)
    loss(model, x, burn_in=True, beta=100.0).sum().backward()
    for name, parameter in model.named_parameters():
        moved = parameter.grad is not None and bool((parameter.grad != 0).any())
        assert moved == name.startswith(("decoder", "likelihood")), name


def test_burn_in_is_the_loss_of_images_given_draws_of_the_prior():
    model, x = BetaVAE(TINY).double(), images(TINY, 3)
    found = loss(model, x, burn_in=True, samples=600)
    random = generator("prior draws")
    z = model.prior.sample(torch.from_numpy(random.random(600)), torch.from_numpy(random.normal(size=(600, 2))))
    expected = -model.log_likelihood(x, z.expand(3, -1, -1), torch.float64)
    error = expected.std(1) * math.sqrt(2 / 600)
    assert ((found - expected.mean(1)).abs() < 4 * error).all()


@pytest.mark.parametrize("burn_in", [False, True])
@pytest.mark.parametrize("world", [2, 4])
def test_shares_of_a_batch_see_the_noise_of_the_whole(world, burn_in):
    model, x = BetaVAE(TINY).double(), images(TINY, 8)
    random = [noise(5) for _ in range(world + 1)]
    options = {"beta": 2.0, "samples": 3, "burn_in": burn_in}
    whole = model.objective(x, random[-1], **options)
    parts = [
        model.objective(part, random[rank], share=(rank, world), **options) for rank, part in enumerate(x.chunk(world))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=0)
    after = [torch.rand(1, generator=each) for each in random]
    assert len({value.item() for value in after}) == 1  # and the next batch goes on from the same noise
    assert not torch.allclose(model.objective(x, noise(6), **options), whole)


def test_the_first_component_of_the_prior_is_not_trained():
    model = BetaVAE(TINY)
    loss(model, images(TINY, 4)).sum().backward()
    assert not {"prior.first_mean", "prior.first_logit"} & {name for name, _ in model.named_parameters()}
    assert {"prior.first_mean", "prior.first_logit"} < set(model.state_dict())
    assert (model.prior.means.grad != 0).any()


def test_bits_per_dim():
    x = images(TINY, 4)
    bernoulli, density, probability = (
        BetaVAE(replace(TINY, likelihood=kind)) for kind in ("bernoulli", "logit_normal", "discretized_logit_normal")
    )
    nats = torch.tensor([144 * math.log(2)])
    assert bernoulli.bits_per_dim(nats).item() == pytest.approx(1)
    assert probability.bits_per_dim(nats).item() == pytest.approx(1)
    assert density.bits_per_dim(nats).item() == pytest.approx(9)
    # The same weights, as a density at the middle of each grey level and as its integral over it.
    x = x.clamp(60, 200)
    as_density, as_probability = (model.bits_per_dim(loss(model, x, beta=0.0)) for model in (density, probability))
    torch.testing.assert_close(as_density, as_probability, rtol=0, atol=0.01)


@pytest.mark.parametrize("kind", ["bernoulli", "discretized_logit_normal"])
def test_a_little_training_lowers_the_loss_and_draws_the_images(kind):
    config = replace(TINY, likelihood=kind, depth=8, decoder="mirror", components=20)
    model, x, held_out = BetaVAE(config), images(config, 512), images(config, 64, name="held out")
    optimizer, random = torch.optim.Adam(model.parameters(), lr=3e-3), noise()
    with torch.no_grad():
        before = loss(model, held_out, samples=16).mean()
    for step in range(150):
        rows = torch.from_numpy(generator("batch", step).integers(0, len(x), size=32))
        value = model.objective(x[rows], random, beta=1.0, samples=2, burn_in=step < 15).mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    with torch.no_grad():
        after = loss(model, held_out, samples=16).mean()
        found = model.measure(held_out)
    gained = {"bernoulli": 15, "discretized_logit_normal": 60}[kind]  # nats
    assert after < before - gained
    # An average image is the best that a model without a latent can draw.
    average = (held_out.double() - x.double().mean(0)).abs().mean()
    error = (held_out.double() - model.reconstruct(held_out).double()).abs().mean()
    assert error < 0.7 * average
    assert found["rate"].mean() > 1
    drawn = model.sample(200, seed=1)
    assert drawn.dtype == torch.uint8
    assert drawn.shape == (200, *config.shape)
    assert torch.equal(model.sample(200, seed=1), drawn)
    assert not torch.equal(model.sample(200, seed=2), drawn)
    nearest = torch.cdist(drawn.flatten(1).double(), x.flatten(1).double()).min(1).values.median()
    apart = torch.cdist(x.flatten(1).double(), x.flatten(1).double()).median()
    assert nearest < 0.5 * apart  # samples look like the images
