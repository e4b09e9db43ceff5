"""Glow, the flow of the paper, whose statistics are `like`, `latent` and `jac`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn

from dose_ood.errors import InputError
from dose_ood.models.bijectors import CoupledSplit, Split, Squeeze, Step, kept_of
from dose_ood.models.checks import check_counts, check_images, check_shape
from dose_ood.models.distributions import LEVELS, LOG_2PI
from dose_ood.models.fused import LEAST_IMAGES, Folded, FusedSteps, fold
from dose_ood.models.parallel import at_once, workers
from dose_ood.models.score_tests import score_tests
from dose_ood.noise import content_uniform, generator

AT_ONCE = 64  # images that a thread measures together
MIDDLE = 0.5  # of a grey level
WIDEST = 10  # an opening beyond it leaves a scale nothing to do, or lets the flow explode


@dataclass(frozen=True)
class GlowConfig:
    """What a Glow is made of; the defaults are the paper's.

    Parameters
    ----------
    shape
        Channels, height and width of an image.
    levels
        Spatial hierarchies: each squeezes pixels into channels, runs its steps, and puts out half the channels.
    steps
        Steps of the flow in each level.
    filters
        Width of the coupling networks.
    opening
        A coupling scales by σ(· + opening) / σ(opening): by 1 at first, and by 1 + exp(−opening) at most.
    exits
        Whether what leaves a level is scaled and shifted by what goes on.
    noise
        Whether grey levels get uniform noise; without, an image stands for the middles of its grey levels.
    """

    shape: tuple[int, int, int] = (3, 32, 32)
    levels: int = 3
    steps: int = 8
    filters: int = 400
    opening: float = 2.0
    exits: bool = True
    noise: bool = True

    def __post_init__(self) -> None:
        """Refuse by name what no model can be built from."""
        check_shape(self.shape)
        check_counts(self, "levels", "steps", "filters")
        opening: object = self.opening
        if not isinstance(opening, int | float) or not abs(opening) <= WIDEST:
            raise InputError(f"opening must be a number from {-WIDEST} to {WIDEST}, got {opening!r}")
        for name in ("exits", "noise"):
            told: object = getattr(self, name)
            if not isinstance(told, bool):
                raise InputError(f"{name} must be true or false, got {told!r}")
        for number, level in enumerate(_plan(self)):
            if level.channels < 2:
                raise InputError(
                    f"shape {self.shape} with {self.levels} levels leaves level {number} 1 channel of {level.height}×"
                    f"{level.width}, and a coupling needs 2: take fewer levels or images with even sides"
                )


@dataclass(frozen=True)
class _LevelShape:
    block: tuple[int, int]
    channels: int
    height: int
    width: int


def _plan(config: GlowConfig) -> list[_LevelShape]:
    """The shape of each level. A side that is odd is not squeezed: 28×28 goes 14×14, 7×7, 7×7."""
    channels, height, width = config.shape
    plan: list[_LevelShape] = []
    for _ in range(config.levels):
        p, q = (1 if side % 2 else 2 for side in (height, width))
        channels, height, width = channels * p * q, height // p, width // q
        plan.append(_LevelShape((p, q), channels, height, width))
        channels = kept_of(channels)
    return plan


@dataclass(frozen=True)
class Latents:
    """What a flow makes of a batch, a value for each level.

    Parameters
    ----------
    z
        Latent variables, shape (n, c, h, w); together they have as many dimensions as the image.
    latent
        log N(z; 0, 1), shape (n,), float64.
    jac
        log |det| of the level, shape (n,), float64; the first includes that of the preprocessing.
    """

    z: tuple[Tensor, ...]
    latent: tuple[Tensor, ...]
    jac: tuple[Tensor, ...]


class Level(nn.Module):
    """One spatial hierarchy: a squeeze and the steps of the flow."""

    def __init__(self, block: tuple[int, int], steps: Sequence[Step]) -> None:
        super().__init__()
        self.squeeze = Squeeze(block)
        self.steps = nn.ModuleList(steps)
        self.fused = FusedSteps()

    def train(self, mode: bool = True) -> Self:
        """Let go of the memory of earlier passes, whose kind is over."""
        self.fused.idle.clear()
        return super().train(mode)

    def each_step(self) -> list[Step]:
        """The steps, in the order of `forward`."""
        return [cast(Step, step) for step in self.steps]

    def fold(self, dtype: torch.dtype | None = None) -> Folded:
        """What its steps are, apart from any batch; the coupling networks in `dtype`, if it is told."""
        return fold(self.each_step(), dtype)

    def forward(self, x: Tensor, steps: Folded) -> tuple[Tensor, Tensor]:
        """What the level, folded, makes of a batch, and its log-determinants."""
        return self.fused(steps, self.squeeze(x))

    def inverse(self, y: Tensor) -> Tensor:
        """Undo it."""
        for step in reversed(self.each_step()):
            y = step.inverse(y)
        return self.squeeze.inverse(y)


class Glow(nn.Module):
    """A normalising flow of levels of steps of ActNorm, invertible 1×1 convolution and affine coupling.

    The density is that of x + u, a pixel's grey level 0 … 255 and noise u uniform on [0, 1). So `like`, in nats, is on
    average over u a lower bound of the discrete log-probability of the image, and −like / (dimensions · log 2) are the
    bits per dimension of the literature. Without noise u is ½, and `like` a density at points, which bounds nothing.
    The flow itself sees (x + u)/256 − ½; log-determinants include that scaling.

    A fresh flow is an orthogonal map of its input. Train it after `initialize`; before, `objective` and `measure`
    refuse, and elsewhere ActNorm is the identity.

    Parameters
    ----------
    config
        What it is made of.
    seed
        Draws the first weights; nothing global is read or changed.

    References
    ----------
    *Glow: Generative Flow with Invertible 1×1 Convolutions (Kingma and Dhariwal, 2018)*
    *Detecting Out-of-Distribution Inputs to Deep Generative Models Using Typicality (Nalisnick et al., 2019)*

    Examples
    --------
    >>> model = Glow(GlowConfig(shape=(1, 8, 8), levels=2, steps=2, filters=4))
    >>> images = torch.arange(192, dtype=torch.uint8).view(3, 1, 8, 8)
    >>> model.initialize(images, torch.Generator().manual_seed(0))
    >>> ", ".join(model.measure(images))
    'like, latent, jac, latent/0, latent/1, jac/0, jac/1, shift/0, mix/0, near/0, shift/1, mix/1, near/1'
    """

    kind: ClassVar[str] = "glow"

    def __init__(self, config: GlowConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        random = generator("glow weights", seed)
        step_of = partial(Step, filters=config.filters, opening=config.opening, random=random)
        plan = _plan(config)
        self.levels = nn.ModuleList(
            Level(shape.block, [step_of(shape.channels) for _ in range(config.steps)]) for shape in plan
        )
        self.exits = nn.ModuleList(CoupledSplit(shape.channels) if config.exits else Split() for shape in plan[:-1])

    @torch.no_grad()
    def measure(self, x: Tensor) -> dict[str, Tensor]:
        """The paper's statistics of each image, those of each level and its score tests, in float64.

        Noise comes from the image alone. like = latent + jac exactly, and the levels' add up to latent and jac. Images
        go through the flow a few at a time, however many there are, so that what they need stays in a processor's
        cache.
        """
        self._require_initialised()
        folded = self._fold()
        threads = workers(len(x), LEAST_IMAGES)
        turns = max(1, -(-len(x) // (threads * AT_ONCE)))
        some = torch.tensor_split(x, threads * turns)
        parts = at_once([partial(self._measure_some, part, folded) for part in some], threads)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def objective(
        self,
        x: Tensor,
        noise: torch.Generator,
        *,
        share: tuple[int, int] = (0, 1),
        networks: torch.dtype | None = None,
    ) -> Tensor:
        """−log q(x + u) of each image in nats, shape (n,), float64.

        Parameters
        ----------
        x
            Images.
        noise
            What draws u; it does not depend on how a batch is shared out.
        share
            (rank, world): the images are this one of so many equal and adjacent parts of a batch.
        networks
            What the coupling networks compute in, if not in the precision of their weights.
        """
        self._require_initialised()
        found = self._encode(self._dequantised(x, noise, share), self._fold(networks))
        return -(_sum(found.latent) + _sum(found.jac))

    def initialize(self, x: Tensor, noise: torch.Generator) -> None:
        """Set every ActNorm from the first batch of the training images, once."""
        image = self._centred(self._dequantised(x, noise, (0, 1)))
        for level in self._each_level():
            image = level.squeeze(image)
            for step in level.each_step():
                image = step.initialize(image)
            image = image[..., : kept_of(image.shape[-1])]

    def matrices(self) -> list[nn.Parameter]:
        """The coupling networks' convolutions as matrices."""
        nets = [step.coupling for level in self._each_level() for step in level.each_step()]
        return [matrix for net in nets for matrix in (net.hidden1, net.hidden2, net.last)]

    def l2(self) -> Tensor:
        """The sum of the squares of the couplings' and exits' weights, without biases."""
        flat = [
            weight.reshape(-1)
            for level in self._each_level()
            for step in level.each_step()
            for weight in step.coupling.weights()
        ]
        of_couplings = torch.stack([torch.dot(weight, weight) for weight in flat]).sum()
        of_exits = [split.weight.square().sum() for split in self._each_exit() if isinstance(split, CoupledSplit)]
        return of_couplings + torch.stack(of_exits).sum() if of_exits else of_couplings

    def forward(self, x: Tensor) -> Latents:
        """Images → latents, with noise that depends on each image alone."""
        return self.encode(self._with_content_noise(x))

    def inverse(self, z: Sequence[Tensor]) -> Tensor:
        """Latents → grey levels x + u, real numbers of shape (n, c, h, w)."""
        *out, image = (level.permute(0, 2, 3, 1) for level in z)
        image = self._each_level()[-1].inverse(image)
        levels, exits = self._each_level()[:-1], self._each_exit()
        for level, split, latent in reversed(list(zip(levels, exits, out, strict=True))):
            image = level.inverse(split.inverse(image, latent))
        return ((image + 0.5) * LEVELS).permute(0, 3, 1, 2)

    def encode(self, values: Tensor) -> Latents:
        """Grey levels x + u, real numbers of shape (n, c, h, w), → latents; differentiable, once."""
        return self._encode(values, self._fold())

    def _encode(self, values: Tensor, folded: Sequence[Folded]) -> Latents:
        image = self._centred(values)
        scaling = torch.full((len(values),), -math.prod(self.config.shape) * math.log(LEVELS), dtype=torch.float64)
        *levels, last = zip(self._each_level(), folded, strict=True)
        log_dets, z = [], []
        for (level, steps), split in zip(levels, self._each_exit(), strict=True):
            image, log_det = level(image, steps)
            image, latent, of_exit = split(image)
            log_dets.append(log_det + of_exit)
            z.append(latent)
        image, log_det = last[0](image, last[1])
        log_dets.append(log_det)
        z.append(image)
        jac = (scaling.to(values.device) + log_dets[0], *log_dets[1:])
        return Latents(tuple(part.permute(0, 3, 1, 2) for part in z), tuple(map(_log_normal, z)), jac)

    @torch.no_grad()
    def sample(self, count: int, seed: int, temperature: float = 1.0) -> Tensor:
        """Images drawn from the model, uint8.

        Parameters
        ----------
        count
            How many.
        seed
            What draws them.
        temperature
            Standard deviation of the latents; below 1 gives likelier and smoother images.
        """
        random, weight = generator("glow samples", seed), next(self.parameters())
        plan = _plan(self.config)
        channels = [level.channels // 2 for level in plan[:-1]] + [plan[-1].channels]
        z = [
            torch.from_numpy(temperature * random.normal(size=(count, number, level.height, level.width)))
            for number, level in zip(channels, plan, strict=True)
        ]
        values = self.inverse([part.to(weight.device, weight.dtype) for part in z])
        return values.floor().clamp(0, LEVELS - 1).to(torch.uint8)

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """What the inverse makes of the images' latents, the noise taken away again, uint8: the images themselves."""
        values = self._with_content_noise(x)
        noise = values - x
        found = self.inverse(self.encode(values).z) - noise
        return found.round().clamp(0, LEVELS - 1).to(torch.uint8)

    def _fold(self, networks: torch.dtype | None = None) -> list[Folded]:
        return [level.fold(networks) for level in self._each_level()]

    def _each_level(self) -> list[Level]:
        return [cast(Level, level) for level in self.levels]

    def _each_exit(self) -> list[Split | CoupledSplit]:
        return [cast(Split | CoupledSplit, split) for split in self.exits]

    def _centred(self, values: Tensor) -> Tensor:
        """(n, c, h, w) in [0, 256) → (n, h, w, c) in [−½, ½), in the precision of the weights."""
        dtype = next(self.parameters()).dtype
        return (values.permute(0, 2, 3, 1) / LEVELS - 0.5).to(dtype)

    def _measure_some(self, x: Tensor, folded: Sequence[Folded]) -> dict[str, Tensor]:
        found = self._encode(self._with_content_noise(x), folded)
        latent, jac = _sum(found.latent), _sum(found.jac)
        tests = [score_tests(z) for z in found.z]
        return {
            "like": latent + jac,
            "latent": latent,
            "jac": jac,
            **{f"latent/{level}": value for level, value in enumerate(found.latent)},
            **{f"jac/{level}": value for level, value in enumerate(found.jac)},
            **{f"{name}/{level}": value for level, each in enumerate(tests) for name, value in each.items()},
        }

    def _with_content_noise(self, x: Tensor) -> Tensor:
        check_images(x, self.config.shape)
        if not self.config.noise:
            return x + MIDDLE
        noise = content_uniform(x.contiguous().cpu().numpy(), self.config.shape)
        return x + torch.from_numpy(noise).to(x.device)

    def _dequantised(self, x: Tensor, noise: torch.Generator, share: tuple[int, int]) -> Tensor:
        check_images(x, self.config.shape)
        if not self.config.noise:
            return x + MIDDLE
        rank, world = share
        dtype = next(self.parameters()).dtype
        everyone = torch.rand(len(x) * world, *x.shape[1:], generator=noise, device=noise.device, dtype=dtype)
        return x + everyone[rank * len(x) : (rank + 1) * len(x)].to(x.device)

    def _require_initialised(self) -> None:
        if not all(step.norm.initialised for level in self._each_level() for step in level.each_step()):
            raise InputError("this Glow is not initialised: train it, or load trained weights, first")


def _sum(levels: Sequence[Tensor]) -> Tensor:
    """The levels' values added in their order."""
    return torch.stack(list(levels)).sum(0)


def _log_normal(z: Tensor) -> Tensor:
    """log N(z; 0, 1) of each sample, in float64."""
    dimensions = math.prod(z.shape[1:])
    return -0.5 * (z.double().square().sum((1, 2, 3)) + dimensions * LOG_2PI)
