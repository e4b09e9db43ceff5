"""How models are trained: the paper's recipes, their CPU-sized twins and tiny ones for tests, as frozen values."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from dose_ood.errors import InputError
from dose_ood.models.glow import Glow, GlowConfig
from dose_ood.models.vae import BetaVAE, LikelihoodKind, VAEConfig
from dose_ood.muon import Muon

Shape: TypeAlias = tuple[int, ...]  # (channels, height, width)
Share: TypeAlias = tuple[int, int]  # (rank, world): which of how many equal shards of a batch
M = TypeVar("M", bound=nn.Module)

MUTATION = 0.15  # of the paper's background model
BERNOULLI = ("mnist", "mnist_sample", "omniglot")  # data sets of strokes; others have a density of grey levels


@dataclass(frozen=True)
class Recipe(ABC, Generic[M]):
    """An objective, its schedules and an optimiser; schedules are functions of the step, counted from 0.

    Parameters
    ----------
    epochs
        Times that every training image is seen.
    batch
        Images of a step.
    rate
        The learning rate at its highest.
    muon_rate
        That of Muon, which then takes the steps of the model's matrices; 0 leaves them to the others' optimiser.
    cool_down
        The share of all steps, at the end, in which the learning rates fall to 0.
    patience
        Steps that the loss may stay far above its best before training is stopped.
    """

    epochs: int
    batch: int
    rate: float
    muon_rate: float = 0.0
    cool_down: float = 0.0
    patience: int = 500
    others: ClassVar[type[torch.optim.Adam] | type[torch.optim.Adamax]]

    @abstractmethod
    def config(
        self, data: str, shape: Shape, likelihood: LikelihoodKind | None = None, latent: int | None = None
    ) -> VAEConfig | GlowConfig:
        """The model for a data set: its name, the shape of its images; a likelihood, latent dimensions if wanted."""

    def lasting(self, epochs: int) -> Self:
        """The same recipe with exactly so many epochs."""
        return replace(self, epochs=epochs)

    def steps_in_all(self, steps_per_epoch: int) -> int:
        """The steps of a run."""
        return self.epochs * steps_per_epoch

    def optimisers(self, model: M) -> list[torch.optim.Optimizer]:
        """What takes the steps, at the highest learning rates; every parameter is with one of them."""
        if not self.muon_rate:
            return [self.others(model.parameters(), lr=self.rate)]
        matrices = self.matrices(model)
        with_muon = set(matrices)
        others = self.others([each for each in model.parameters() if each not in with_muon], lr=self.rate)
        return [Muon(matrices, lr=self.muon_rate), others]

    @abstractmethod
    def matrices(self, model: M) -> list[nn.Parameter]:
        """The weights of hidden layers, of which Muon may take the steps."""

    def schedule(self, step: int, steps_per_epoch: int) -> float:
        """The share of the highest learning rates that a step has."""
        steps = self.steps_in_all(steps_per_epoch)
        fall = self.cool_down * steps
        left = min(1.0, (steps - step) / fall) if fall else 1.0
        return min(self.course(step, steps_per_epoch), left)

    @abstractmethod
    def course(self, step: int, steps_per_epoch: int) -> float:
        """The same without the fall at the end."""

    @abstractmethod
    def losses(self, model: M, x: Tensor, noise: torch.Generator, epoch: int, share: Share) -> Tensor:
        """What is minimised, in nats for each image of a shard."""

    @abstractmethod
    def held_out_losses(self, model: M, x: Tensor, noise: torch.Generator) -> Tensor:
        """An upper bound of −log q(x), in nats for each image."""

    @abstractmethod
    def penalty(self, model: M) -> Tensor:
        """What is minimised beside the mean loss, the same for every batch."""

    @abstractmethod
    def bits_per_dim(self, model: M, loss: float, dimensions: int) -> float:
        """A mean loss in bits per pixel and channel."""

    @abstractmethod
    def prepare(self, model: M, x: Tensor, noise: torch.Generator) -> None:
        """Set up a fresh model from the first batch."""

    @abstractmethod
    def objective_changes_after(self, epoch: int) -> bool:
        """Whether losses of later epochs are not to be compared with those before."""


def has_bfloat16(device: torch.device) -> bool:
    """Whether a processor computes in bfloat16 itself, which is slower than float32 where it does not."""
    if device.type != "cpu":
        return True
    told: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    found = [bool(has) for name, has in told.items() if name.endswith("bf16")]
    return any(found) or not found


@dataclass(frozen=True)
class VAERecipe(Recipe[BetaVAE]):
    """Adam with a halving rate; the decoder burnt in on samples of the prior; β halved down to 1.

    Parameters
    ----------
    depth
        Channels of the outer convolutions.
    samples
        Draws from the posterior for each image.
    halve_rate_steps
        Steps after which the learning rate is halved, again and again.
    burn_in_epochs
        First epochs, in which the decoder learns from samples of the prior.
    beta
        β after the burn-in.
    halve_beta_epochs
        Epochs, or a part of one, after which β is halved, until it is 1; β changes between epochs.
    bfloat16
        Whether the layers compute in bfloat16 while they are trained, on processors that have it; weights, likelihoods
        and everything that is measured keep their precision.
    """

    depth: int = 32
    samples: int = 16
    halve_rate_steps: int = 10_000
    burn_in_epochs: int = 1
    beta: float = 100.0
    halve_beta_epochs: float = 3
    bfloat16: bool = False
    others = torch.optim.Adam

    def config(
        self, data: str, shape: Shape, likelihood: LikelihoodKind | None = None, latent: int | None = None
    ) -> VAEConfig:
        """Bernoulli for MNIST, logit-normal of scale 1 for FashionMNIST and everything else; two latent dimensions."""
        chosen = likelihood or ("bernoulli" if data in BERNOULLI else "logit_normal")
        channels, height, width = shape
        dimensions = VAEConfig.latent if latent is None else latent
        return VAEConfig(shape=(channels, height, width), latent=dimensions, depth=self.depth, likelihood=chosen)

    def matrices(self, model: BetaVAE) -> list[nn.Parameter]:
        """Convolutions between the first and the last layers."""
        return model.matrices()

    def course(self, step: int, steps_per_epoch: int) -> float:
        """One, halved every `halve_rate_steps`."""
        return math.pow(0.5, step // self.halve_rate_steps)

    def beta_of(self, epoch: int) -> float:
        """β of an epoch: the ELBO that is left at the end has β = 1."""
        halvings = max(0, epoch - self.burn_in_epochs) // self.halve_beta_epochs
        return max(1.0, self.beta * math.pow(0.5, halvings))

    def losses(self, model: BetaVAE, x: Tensor, noise: torch.Generator, epoch: int, share: Share) -> Tensor:
        """Distortion + β · rate."""
        beta, burn_in = self.beta_of(epoch), epoch < self.burn_in_epochs
        with torch.autocast(x.device.type, torch.bfloat16, self.bfloat16 and has_bfloat16(x.device)):
            return model.objective(x, noise, beta=beta, samples=self.samples, burn_in=burn_in, share=share)

    def held_out_losses(self, model: BetaVAE, x: Tensor, noise: torch.Generator) -> Tensor:
        """−ELBO."""
        return model.objective(x, noise, beta=1.0, samples=self.samples, burn_in=False)

    def penalty(self, model: BetaVAE) -> Tensor:
        """Nothing."""
        return torch.zeros(())

    def bits_per_dim(self, model: BetaVAE, loss: float, dimensions: int) -> float:
        """Of a density, as if it were constant within a grey level."""
        return model.bits_per_dim(torch.tensor(loss, dtype=torch.float64)).item()

    def prepare(self, model: BetaVAE, x: Tensor, noise: torch.Generator) -> None:
        """Nothing: the first weights are as drawn."""

    def objective_changes_after(self, epoch: int) -> bool:
        """After the burn-in."""
        return epoch + 1 == self.burn_in_epochs


@dataclass(frozen=True)
class GlowRecipe(Recipe[Glow]):
    """Adamax with a rate that rises linearly and then stays; λ Σ w² is added to the loss.

    Parameters
    ----------
    filters
        Channels of the couplings' networks.
    levels, steps
        Levels of the flow, and steps of each.
    opening
        How far the couplings may scale, see `GlowConfig`.
    exits
        Whether what leaves a level is scaled and shifted by what goes on.
    noise
        Whether grey levels get noise.
    warm_up_epochs
        Epochs in which the learning rate rises from 0.
    least_warm_up
        Steps that this takes at least: on few images a few epochs are a rise so steep that the flow explodes.
    least_steps
        Steps of a run at least: few images are seen in more epochs.
    l2
        λ.
    bfloat16
        Whether the couplings' networks compute in bfloat16 while they are trained, on processors that have it; the flow
        itself, weights, likelihoods and everything that is measured keep their precision.
    """

    filters: int = 400
    levels: int = 3
    steps: int = 8
    opening: float = 2.0
    exits: bool = True
    noise: bool = True
    warm_up_epochs: int = 10
    least_warm_up: int = 500
    least_steps: int = 0
    l2: float = 0.05
    bfloat16: bool = False
    others = torch.optim.Adamax

    def config(
        self, data: str, shape: Shape, likelihood: LikelihoodKind | None = None, latent: int | None = None
    ) -> GlowConfig:
        """The same for every data set."""
        if likelihood is not None:
            raise InputError(f"a likelihood is for the VAE; a Glow has none to choose, got {likelihood}")
        if latent is not None:
            raise InputError(f"latent dimensions are for the VAE; a Glow has as many as an image, got {latent}")
        channels, height, width = shape
        size = channels, height, width
        return GlowConfig(size, self.levels, self.steps, self.filters, self.opening, self.exits, self.noise)

    def lasting(self, epochs: int) -> Self:
        """The same recipe with exactly so many epochs, however few steps they have."""
        return replace(self, epochs=epochs, least_steps=0)

    def steps_in_all(self, steps_per_epoch: int) -> int:
        """Whole epochs, as many as asked for and as many as make the least number of steps."""
        return max(self.epochs, math.ceil(self.least_steps / steps_per_epoch)) * steps_per_epoch

    def matrices(self, model: Glow) -> list[nn.Parameter]:
        """The couplings' convolutions."""
        return model.matrices()

    def course(self, step: int, steps_per_epoch: int) -> float:
        """A linear rise."""
        rise = max(self.warm_up_epochs * steps_per_epoch, self.least_warm_up)
        return min(1.0, step / rise) if rise else 1.0

    def losses(self, model: Glow, x: Tensor, noise: torch.Generator, epoch: int, share: Share) -> Tensor:
        """−log q(x)."""
        rounded = self.bfloat16 and has_bfloat16(x.device)
        return model.objective(x, noise, share=share, networks=torch.bfloat16 if rounded else None)

    def held_out_losses(self, model: Glow, x: Tensor, noise: torch.Generator) -> Tensor:
        """−log q(x)."""
        return model.objective(x, noise)

    def penalty(self, model: Glow) -> Tensor:
        """λ Σ w²."""
        return self.l2 * model.l2()

    def bits_per_dim(self, model: Glow, loss: float, dimensions: int) -> float:
        """Of grey levels, as the dequantised density is that of pixels of width 1."""
        return loss / dimensions / math.log(2)

    def prepare(self, model: Glow, x: Tensor, noise: torch.Generator) -> None:
        """Let ActNorm normalise the first batch."""
        model.initialize(x, noise)

    def objective_changes_after(self, epoch: int) -> bool:
        """Never."""
        return False


# What the paper leaves open (its batch sizes, whether the burn-in epoch is one of the 50) is set here. A cpu twin keeps
# objective, schedules in shape, likelihood and statistics, and is smaller where docs/train.md says so.
CPU_VAE = VAERecipe(
    epochs=20,
    batch=64,
    rate=2e-3,
    depth=16,
    samples=1,
    halve_rate_steps=4_000,
    halve_beta_epochs=0.5,
    bfloat16=True,
)
VAE_RECIPES: dict[str, VAERecipe] = {
    "paper": VAERecipe(epochs=50, batch=64, rate=1e-4),
    "cpu": CPU_VAE,
    "deep": replace(CPU_VAE, depth=32, rate=1e-3),
    "demo": VAERecipe(epochs=12, batch=64, rate=2e-3, depth=8, samples=1, halve_rate_steps=500, halve_beta_epochs=1),
    "tiny": VAERecipe(epochs=3, batch=32, rate=1e-3, depth=4, samples=2, halve_beta_epochs=1, beta=2.0),
}
GLOW_RECIPES: dict[str, GlowRecipe] = {
    "paper": GlowRecipe(epochs=250, batch=32, rate=1e-3),
    # Without exits, as the tables of results/ are (decision 17).
    "cpu": GlowRecipe(epochs=12, batch=32, rate=1e-3, filters=64, exits=False, warm_up_epochs=1, least_steps=8_000),
    "tiny": GlowRecipe(epochs=3, batch=32, rate=1e-3, filters=8, levels=2, steps=2, warm_up_epochs=1, least_warm_up=50),
}
RECIPES: dict[str, dict[str, VAERecipe] | dict[str, GlowRecipe]] = {"vae": VAE_RECIPES, "glow": GLOW_RECIPES}


def recipe_named(name: str, model: str) -> "Recipe[nn.Module]":
    """The recipe of this name for this kind of model; one that it does not have is refused."""
    if name not in RECIPES[model]:
        raise InputError(f"a {model} has the recipes {', '.join(RECIPES[model])}, got {name}")
    return cast("Recipe[nn.Module]", RECIPES[model][name])
