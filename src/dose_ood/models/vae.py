"""The β-VAE of the paper, whose statistics are `xent`, `ent`, `rate`, `distortion` and `iwae`."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dose_ood.errors import InputError
from dose_ood.models.checks import check_counts, check_images, check_shape
from dose_ood.models.distributions import (
    LEVELS,
    SMALLEST_SCALE,
    SOFTPLUS_1,
    Bernoulli,
    DiagonalGaussian,
    DiscretizedLogitNormal,
    Likelihood,
    LogitNormal,
    MixturePrior,
    ScaleKind,
    log_softplus,
)
from dose_ood.models.parallel import at_once, workers
from dose_ood.noise import content_normal, generator

LikelihoodKind = Literal["bernoulli", "logit_normal", "discretized_logit_normal"]
DecoderKind = Literal["reference", "mirror"]
Layer = TypeVar("Layer", nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
KERNEL, BLOCK = 5, 4
LATER = torch.device("meta")  # weights without values: no draw from the global generator


@dataclass(frozen=True)
class VAEConfig:
    """What a β-VAE is made of; the defaults are the paper's for MNIST.

    Parameters
    ----------
    shape
        Channels, height and width of an image.
    latent
        Dimensions of the latent space.
    depth
        Channels of the outer convolutions; the inner ones have twice as many.
    decoder
        "reference": as in the code of Choi et al., which has two more convolutions of stride 1 than the encoder, one
        after the first layer and one before the last; "mirror": without them, at half the cost.
    likelihood
        "bernoulli" for MNIST, "logit_normal" for FashionMNIST, or "discretized_logit_normal", a proper probability of
        grey levels.
    scale, scale_kind
        The logit-normal's scale, and whether it is "fixed", starts one learned number ("shared") or starts a second
        output of the decoder for every "pixel".
    components
        Gaussians in the learned prior.
    draws
        Monte Carlo draws behind each statistic.
    slope
        Of the leaky ReLU below 0. Choi et al. use 0.2; 0 is a ReLU.
    """

    shape: tuple[int, int, int] = (1, 28, 28)
    latent: int = 2
    depth: int = 32
    decoder: DecoderKind = "reference"
    likelihood: LikelihoodKind = "bernoulli"
    scale: float = 1.0
    scale_kind: ScaleKind = "fixed"
    components: int = 200
    draws: int = 16
    slope: float = 0.2

    def __post_init__(self) -> None:
        """Refuse by name what no model can be built from."""
        check_shape(self.shape)
        check_counts(self, "latent", "depth", "components", "draws")
        for name, kinds in (("decoder", DecoderKind), ("likelihood", LikelihoodKind), ("scale_kind", ScaleKind)):
            if getattr(self, name) not in get_args(kinds):
                raise InputError(f"{name} must be one of {', '.join(get_args(kinds))}, got {getattr(self, name)!r}")
        for name, least in (("scale", 2 * SMALLEST_SCALE), ("slope", 0.0)):
            value: object = getattr(self, name)
            if not isinstance(value, int | float) or not least <= value < math.inf:
                raise InputError(f"{name} must be a number from {least:g}, got {value!r}")


def estimate(
    posterior: DiagonalGaussian,
    noise: Tensor,
    log_likelihood: Callable[[Tensor], Tensor],
    log_prior: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """The paper's five statistics of a latent variable model, all from the same draws z_t ~ q(z|x), in their precision.

    xent = −mean log r(z_t), ent = −mean log q(z_t|x), rate = xent − ent, distortion = mean log p(x|z_t) (a
    log-likelihood, as in the paper: higher is better) and iwae = log mean p(x|z_t) r(z_t)/q(z_t|x).

    Parameters
    ----------
    posterior
        q(z|x) for n samples.
    noise
        Standard normal, shape (n, draws, d); row i belongs to sample i.
    log_likelihood, log_prior
        log p(x|z) and log r(z), shape (n, draws), of latents of shape (n, draws, d).
    """
    z, log_q = posterior.draw(noise)
    log_p, log_r = log_likelihood(z), log_prior(z)
    xent, ent = -log_r.mean(1), -log_q.mean(1)
    return {
        "xent": xent,
        "ent": ent,
        "rate": xent - ent,
        "distortion": log_p.mean(1),
        "iwae": torch.logsumexp(log_p + log_r - log_q, dim=1) - math.log(noise.shape[1]),
    }


class BetaVAE(nn.Module):
    """A convolutional β-VAE with a learned mixture as its prior.

    Parameters
    ----------
    config
        What it is made of.
    seed
        Draws the first weights; nothing global is read or changed.

    References
    ----------
    *WAIC, but Why? Generative Ensembles for Robust Anomaly Detection (Choi et al., 2018)*
    *Importance Weighted Autoencoders (Burda et al., 2015)*

    Examples
    --------
    >>> model = BetaVAE(VAEConfig(shape=(1, 8, 8), depth=4, components=10))
    >>> statistics = model.measure(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
    >>> list(statistics), statistics["iwae"].shape
    (['xent', 'ent', 'rate', 'distortion', 'iwae'], torch.Size([3]))
    """

    kind: ClassVar[str] = "vae"

    def __init__(self, config: VAEConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        random = generator("vae weights", seed)
        self.likelihood = _likelihood(config)
        self.encoder = Encoder(config, random)
        self.decoder = Decoder(config, config.shape[0] * self.likelihood.outputs, random)
        self.prior = MixturePrior(torch.from_numpy(random.normal(size=(config.components - 1, config.latent))))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types leave it out

    def measure(self, x: Tensor) -> dict[str, Tensor]:
        """The five statistics of each image, in float64, from draws that depend on the image alone.

        Of a logit-normal, `distortion` and `iwae` are densities of the logits, which the decoder describes. Those of
        grey levels are larger by `likelihood.log_volume`, a function of the image that no model has a part in: the
        darker or whiter an image, the larger. Losses in training, and bits per dimension, are those of grey levels.

        The encoder works in float64, and the decoder once more, on the draw of the largest likelihood: far from what
        the model knows, the likelihood falls so steeply in z that iwae is that draw's alone, and an SVM sees the
        rounding of float32 in it. Images go through the network one at a time, each with all its draws. So many rows
        keep a processor busy and few enough stay in its cache, and the same image meets the same shapes, and rounding,
        in any batch.
        """
        check_images(x, self.config.shape)
        x = x.contiguous()
        threads, exact = workers(len(x), least=1), copy.deepcopy(self).double()
        jobs = [partial(self._measure_each, exact, part) for part in torch.tensor_split(x, threads)]
        parts = at_once(jobs, threads)
        rows = [row for part in parts for row in part]
        names = ("xent", "ent", "rate", "distortion", "iwae")
        return {name: torch.stack([row[name] for row in rows]) if rows else _no_rows(x) for name in names}

    def _measure_each(self, exact: "BetaVAE", x: Tensor) -> list[dict[str, Tensor]]:
        noise = torch.from_numpy(content_normal(x.cpu().numpy(), self.config.draws, (self.config.latent,)))
        return [self._measure_one(exact, image, draws) for image, draws in zip(x, noise, strict=True)]

    def _measure_one(self, exact: "BetaVAE", image: Tensor, noise: Tensor) -> dict[str, Tensor]:
        x, volume = image[None], self.likelihood.log_volume(image[None])[:, None]

        def log_likelihood(z: Tensor) -> Tensor:
            found = self.log_likelihood(x, z, torch.float64)
            best = found.argmax(1)
            found[:, best] = exact.log_likelihood(x, z[:, best], torch.float64)
            return found - volume

        found = estimate(exact.encoder.posterior(x), noise[None].to(x.device), log_likelihood, self.prior.log_prob)
        return {name: value[0] for name, value in found.items()}

    def objective(
        self,
        x: Tensor,
        noise: torch.Generator,
        *,
        beta: float,
        samples: int,
        burn_in: bool,
        share: tuple[int, int] = (0, 1),
    ) -> Tensor:
        """The loss of each image in nats: −E log p(x|z) + β KL[q(z|x), r(z)], shape (n,).

        During burn-in, −E log p(x|z) over draws of the prior instead: it trains the decoder and nothing else.

        Parameters
        ----------
        x
            Images.
        noise
            What draws the latents; they do not depend on how a batch is shared out.
        beta
            Weight of the KL divergence.
        samples
            Draws for each image; the paper takes 16.
        burn_in
            Whether this is the paper's first epoch.
        share
            (rank, world): the images are this one of so many equal and adjacent parts of a batch.
        """
        check_images(x, self.config.shape)
        rank, world = share
        rows, own = len(x) * world, slice(rank * len(x), (rank + 1) * len(x))
        dtype = self.dtype()

        def drawn(draw: Callable[..., Tensor], *size: int) -> Tensor:
            everyone = draw(rows, samples, *size, generator=noise, device=noise.device, dtype=dtype)
            return everyone[own].to(x.device)

        epsilon = drawn(torch.randn, self.config.latent)
        if burn_in:
            z = self.prior.sample(drawn(torch.rand), epsilon).detach()
            return -self.log_likelihood(x, z, dtype).mean(1)
        posterior = self.encoder.posterior(x)
        z, _ = posterior.draw(epsilon)
        # The entropy is exact here: the same gradient as from the draws, with less noise in the value.
        kl = -self.prior.log_prob(z).mean(1) - posterior.entropy()
        return beta * kl - self.log_likelihood(x, z, dtype).mean(1)

    def bits_per_dim(self, loss: Tensor) -> Tensor:
        """A loss in nats per image as bits per pixel and channel; of a density, as if constant within a grey level."""
        return (loss / math.prod(self.config.shape) + self.likelihood.log_levels) / math.log(2)

    def matrices(self) -> list[nn.Parameter]:
        """The convolutions whose inputs and outputs are hidden."""
        layers = [*self.encoder.layers[1:], *self.decoder.layers]
        return [cast(nn.Parameter, layer.weight) for layer in layers]

    def sample(self, count: int, seed: int) -> Tensor:
        """Images of latents drawn from the prior, uint8: the middle of what the decoder says, without pixel noise."""
        random = generator("vae samples", seed)
        uniform, noise = random.random(count), random.normal(size=(count, self.config.latent))
        device = self.prior.means.device
        with torch.no_grad():
            z = self.prior.sample(torch.from_numpy(uniform).to(device), torch.from_numpy(noise).to(device))
            return self.likelihood.middle(self.decoder(z.to(self.dtype())))

    def reconstruct(self, x: Tensor) -> Tensor:
        """The middle of what the decoder says of the posterior's mean, uint8."""
        check_images(x, self.config.shape)
        with torch.no_grad():
            return self.likelihood.middle(self.decoder(self.encoder.posterior(x).mean))

    def log_likelihood(self, x: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
        """log p(x[i] | z[i, t]), shape (n, draws), for latents of shape (n, draws, d); pixels are added in `dtype`."""
        output = self.decoder(z.flatten(0, 1).to(self.dtype())).unflatten(0, z.shape[:2])
        return self.likelihood.log_prob(x[:, None], output.to(dtype)).sum((2, 3, 4))

    def dtype(self) -> torch.dtype:
        """The precision of the network, float32 unless it was moved to another."""
        return self.prior.means.dtype


def _no_rows(x: Tensor) -> Tensor:
    return torch.zeros(0, dtype=torch.float64, device=x.device)


def _likelihood(config: VAEConfig) -> Likelihood:
    if config.likelihood == "bernoulli":
        return Bernoulli()
    kind = LogitNormal if config.likelihood == "logit_normal" else DiscretizedLogitNormal
    return kind(config.scale_kind, config.scale)


class Encoder(nn.Module):
    """Convolutions 5×5 of strides 1-2-1-2, then one over all that remains, to the posterior's mean and raw scale."""

    def __init__(self, config: VAEConfig, random: np.random.Generator) -> None:
        super().__init__()
        self.slope = config.slope
        channels, *sizes = config.shape
        depth, last = config.depth, (_half(_half(sizes[0])), _half(_half(sizes[1])))
        gain = 2 / (1 + config.slope**2)
        plan = [(channels, depth, 1), (depth, depth, 2), (depth, 2 * depth, 1), (2 * depth, 2 * depth, 2)]
        self.layers = nn.ModuleList(
            _initialised(nn.Conv2d(i, o, KERNEL, s, padding=2, device=LATER), i * KERNEL**2, gain, random)
            for i, o, s in plan
        )
        to_latent = nn.Conv2d(2 * depth, 2 * config.latent, last, device=LATER)
        self.latent = _initialised(to_latent, 2 * depth * math.prod(last), 1.0, random)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, 2 · latent)."""
        for layer in self.layers:
            x = functional.leaky_relu_(layer(x).contiguous(memory_format=torch.channels_last), self.slope)
        found: Tensor = self.latent(x)
        return found.flatten(1)

    def posterior(self, x: Tensor) -> DiagonalGaussian:
        """q(z|x) of each uint8 image, in the precision of the weights."""
        dtype = self.latent.weight.dtype
        # Grey levels to the middles of 256 equal parts of (−1, 1).
        mean, raw = self((x.to(dtype) + 0.5) / (LEVELS / 2) - 1).to(dtype).chunk(2, dim=1)
        return DiagonalGaussian(mean, log_softplus(raw + SOFTPLUS_1))


class Decoder(nn.Module):
    """The encoder's mirror image, from latents to the likelihood's outputs for every pixel.

    Of a single pixel a transposed convolution is a linear map, and of stride 1 it is a convolution with its kernel
    turned round; both are written as what they are.
    """

    def __init__(self, config: VAEConfig, outputs: int, random: np.random.Generator) -> None:
        super().__init__()
        self.slope, depth = config.slope, config.depth
        full = config.shape[1:]
        half = _half(full[0]), _half(full[1])
        quarter = _half(half[0]), _half(half[1])
        gain = 2 / (1 + config.slope**2)

        def same(i: int, o: int) -> nn.Module:
            return _initialised(nn.Conv2d(i, o, KERNEL, padding=2, device=LATER), i * KERNEL**2, gain, random)

        def up(i: int, target: tuple[int, int]) -> nn.Module:
            more = 1 - target[0] % 2, 1 - target[1] % 2
            layer = nn.ConvTranspose2d(i, i, KERNEL, 2, padding=2, output_padding=more, device=LATER)
            return _initialised(layer, i * KERNEL**2 / 4, gain, random)

        self.block = (*quarter, 2 * depth)
        self.first = _initialised(
            nn.Linear(config.latent, math.prod(self.block), device=LATER), config.latent, gain, random
        )
        layers = [up(2 * depth, half), same(2 * depth, depth), up(depth, full)]
        if config.decoder == "reference":
            layers = [same(2 * depth, 2 * depth), *layers, same(depth, depth)]
        self.layers = nn.ModuleList(layers)
        to_pixels = nn.Conv2d(depth, outputs, KERNEL, padding=KERNEL // 2, device=LATER)
        self.last = _initialised(to_pixels, depth * KERNEL**2, 1.0, random)

    def forward(self, z: Tensor) -> Tensor:
        """Shape (rows, outputs, height, width) for latents of shape (rows, d)."""
        x = functional.leaky_relu_(self.first(z), self.slope).view(-1, *self.block).permute(0, 3, 1, 2)
        for layer in self.layers:
            x = functional.leaky_relu_(layer(x), self.slope)
        return _narrow_convolution(x, self.last.weight, self.last.bias)


def _narrow_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A 5×5 convolution of stride 1 to few channels: all 4×4 pixels of a block at once, each a channel of its own.

    A processor computes 16 channels in the time of one. A block sees 8×8 pixels, so its kernels are the given one, each
    shifted by another pixel and padded with zeros.
    """
    outputs, height, width = len(weight), *x.shape[2:]
    reach = BLOCK + KERNEL - 1
    shifted = functional.pad(weight.contiguous(), [BLOCK - 1] * 4).unfold(2, reach, 1).unfold(3, reach, 1).flip(2, 3)
    kernels = shifted.permute(0, 2, 3, 1, 4, 5).reshape(outputs * BLOCK**2, -1, reach, reach)
    kernels = kernels.contiguous(memory_format=torch.channels_last)
    if height % BLOCK or width % BLOCK:
        x = functional.pad(x, (0, -width % BLOCK, 0, -height % BLOCK))
    each = None if bias is None else bias.repeat_interleave(BLOCK**2)
    blocks = functional.conv2d(x, kernels, each, stride=BLOCK, padding=KERNEL // 2)
    return functional.pixel_shuffle(blocks, BLOCK)[..., :height, :width]


def _initialised(layer: Layer, inputs: float, gain: float, random: np.random.Generator) -> Layer:
    """He's uniform weights, for so many inputs to each output, and biases of 0."""
    bound = math.sqrt(3 * gain / inputs)
    layer.to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(random.uniform(-bound, bound, size=tuple(layer.weight.shape))))
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def _half(size: int) -> int:
    return (size + 1) // 2
