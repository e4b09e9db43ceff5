import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from dose_ood.errors import InputError
from dose_ood.models.glow import Glow, GlowConfig
from dose_ood.models.score_tests import score_tests
from dose_ood.noise import content_uniform, generator

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = GlowConfig(shape=(2, 4, 4), levels=2, steps=2, filters=5)
CONFIGS = [
    TINY,
    GlowConfig(shape=(1, 28, 28), levels=3, steps=2, filters=6),
    GlowConfig(shape=(3, 6, 10), levels=3, steps=1, filters=4),
    GlowConfig(shape=(1, 1, 2), levels=1, steps=2, filters=4),
    GlowConfig(shape=(3, 5, 5), levels=2, steps=2, filters=4),
    GlowConfig(shape=(3, 8, 8), levels=3, steps=1, filters=4, exits=False),
    GlowConfig(shape=(3, 32, 32), levels=3, steps=2, filters=8),
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "×".join(map(str, c.shape)))
# Statistics of one image in float32, in other company: nats for each dimension.
TOLERANCE = 2e-6


def images(config: GlowConfig, count: int = 6, seed: int = 0) -> Tensor:
    """Smooth images: as unlike noise as data are."""
    random = generator("images", seed)
    steps = random.normal(scale=6, size=(count, *config.shape)).cumsum(2).cumsum(3)
    return torch.from_numpy((128 + steps).clip(0, 255).astype(np.uint8))


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def trained(config: GlowConfig, by: float = 0.02) -> Glow:
    """A model with initialised ActNorm and every parameter moved somewhere else."""
    model = Glow(config, seed=1)
    model.initialize(images(config, 16, seed=9), noise())
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            shape = tuple(parameter.shape)
            parameter += by * torch.from_numpy(generator("disturb", number).normal(size=shape)).float()
    return model


def layer_by_layer(model: Glow, values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Latents and log-determinants from the bijectors themselves, nothing folded."""
    x = (values / 256 - 0.5).permute(0, 2, 3, 1)
    z, log_dets = [], [torch.full((len(x),), -x[0].numel() * math.log(256), dtype=torch.float64)]
    for number, level in enumerate(model.levels):
        x = level.squeeze(x)
        total = torch.zeros(len(x), dtype=torch.float64)
        for step in level.steps:
            x, log_det = step(x)
            total = total + log_det
        log_dets.append(total)
        if number + 1 < len(model.levels):
            x, out, of_exit = model.exits[number](x)
            log_dets[-1] = total + of_exit
            z.append(out)
    return [part.permute(0, 3, 1, 2) for part in [*z, x]], [log_dets[0] + log_dets[1], *log_dets[2:]]


def grey_levels(x: Tensor) -> Tensor:
    return x + torch.from_numpy(content_uniform(x.numpy(), x.shape[1:]))


def flat(z: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.flatten(1) for part in z], dim=1)


@pytest.mark.parametrize(
    "config",
    [TINY, replace(TINY, exits=False), replace(TINY, shape=(1, 3, 4)), replace(TINY, shape=(3, 3, 2), levels=3)],
)
def test_log_determinant_is_that_of_the_jacobian(config):
    model = trained(config).double()
    values = grey_levels(images(config, 2))
    expected = []
    for value in values:
        rows = []
        for index in range(value.numel()):
            leaf = value[None].clone().requires_grad_()
            flat(model.encode(leaf).z)[0, index].backward()
            rows.append(leaf.grad.reshape(-1))
        expected.append(torch.linalg.slogdet(torch.stack(rows)).logabsdet)
    found = sum(model.encode(values).jac)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-9, atol=1e-9)


@each_config
def test_inverse_undoes_encode_and_encode_undoes_inverse(config):
    model = trained(config).double()
    values = grey_levels(images(config))
    found = model.encode(values)
    torch.testing.assert_close(model.inverse(found.z), values, rtol=0, atol=1e-7)
    again = model.encode(model.inverse(found.z)).z
    torch.testing.assert_close(flat(again), flat(found.z), rtol=0, atol=1e-7)
    assert flat(found.z).shape[1] == math.prod(config.shape)


@each_config
@pytest.mark.parametrize(("networks", "apart"), [(torch.float64, 1e-4), (torch.bfloat16, 0.05)])
def test_networks_of_another_precision_give_nearly_the_same_losses_and_gradients(config, networks, apart):
    x, found = images(config, 20), {}
    for dtype in (None, networks):
        model = trained(config).train()
        losses = model.objective(x, noise(), networks=dtype)
        losses.sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert {each.dtype for each in gradients} == {torch.float32}
        found[dtype] = losses.detach(), torch.cat([each.flatten() for each in gradients])
    (exact, slope), (losses, other) = found.values()
    assert losses.dtype == torch.float64
    assert networks == torch.float64 or not torch.equal(losses, exact)
    torch.testing.assert_close(losses, exact, rtol=0, atol=apart * math.prod(config.shape) / 5)
    assert (other - slope).norm() < apart * slope.norm()


@each_config
def test_a_fresh_flow_is_an_orthogonal_map(config):
    model, values = Glow(config).double(), grey_levels(images(config))
    found = model.forward(images(config))
    length = (values / 256 - 0.5).flatten(1).norm(dim=1)
    torch.testing.assert_close(flat(found.z).norm(dim=1), length, rtol=1e-5, atol=0)  # weights are drawn in float32
    scaling = torch.full((6,), -math.prod(config.shape) * math.log(256), dtype=torch.float64)
    torch.testing.assert_close(sum(found.jac), scaling, rtol=1e-7, atol=1e-5)
    with torch.no_grad():
        other = flat(model.encode(256 - values).z)  # centred, its negative
    torch.testing.assert_close(other, -flat(found.z), rtol=0, atol=1e-9)


@each_config
def test_statistics_add_up_exactly(config):
    found = trained(config).measure(images(config))
    names = [f"{name}/{level}" for name in ("latent", "jac") for level in range(config.levels)]
    assert list(found)[: 3 + len(names)] == ["like", "latent", "jac", *names]
    assert all(value.dtype == torch.float64 and value.shape == (6,) for value in found.values())
    assert torch.equal(found["like"], found["latent"] + found["jac"])
    for name in ("latent", "jac"):
        levels = torch.stack([found[f"{name}/{level}"] for level in range(config.levels)])
        assert torch.equal(found[name], levels.sum(0))
    assert found["like"].std() > 0.1


@each_config
def test_measure_is_the_layers_one_after_the_other(config):
    model, x = trained(config), images(config)
    found = model.measure(x)
    exact = trained(config).double()
    z, log_dets = layer_by_layer(exact, grey_levels(x))
    bearable = TOLERANCE * math.prod(config.shape)
    for level, (part, log_det) in enumerate(zip(z, log_dets, strict=True)):
        latent = Normal(0.0, 1.0).log_prob(part).sum((1, 2, 3))
        torch.testing.assert_close(exact.measure(x)[f"latent/{level}"], latent, rtol=1e-10, atol=1e-9)
        torch.testing.assert_close(exact.measure(x)[f"jac/{level}"], log_det, rtol=1e-10, atol=1e-9)
        torch.testing.assert_close(found[f"latent/{level}"], latent, rtol=1e-5, atol=bearable)
        torch.testing.assert_close(found[f"jac/{level}"], log_det, rtol=1e-5, atol=bearable)
        for name, value in score_tests(part).items():
            torch.testing.assert_close(exact.measure(x)[f"{name}/{level}"], value, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found[f"{name}/{level}"], value, rtol=1e-3, atol=1e-3)


@each_config
def test_statistics_of_an_image_do_not_depend_on_its_company(config):
    model, x = trained(config), images(config, 40)
    expected = model.measure(x)
    bearable = TOLERANCE * math.prod(config.shape)

    def same(found: dict[str, Tensor], rows: slice | Tensor) -> None:
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name][rows], rtol=0, atol=bearable)

    order = torch.from_numpy(generator("order").permutation(40))
    same(model.measure(x[order]), order)
    same(model.measure(x[3:4]), slice(3, 4))
    same(model.measure(x[7:24]), slice(7, 24))
    same(model.measure(x.flip(0).flip(0).contiguous(memory_format=torch.channels_last)), slice(None))
    torch.set_num_threads(2)
    same(model.measure(x), slice(None))
    assert all(value.shape == (0,) for value in model.measure(x[:0]).values())


def test_measuring_is_repeatable_to_the_bit():
    model, x = trained(TINY), images(TINY)
    first, second = model.measure(x), model.measure(x)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_measuring_and_evaluating_change_nothing():
    model, x = trained(TINY), images(TINY)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval().measure(x)
    model.train().measure(x)
    model.sample(2, seed=0)
    model.reconstruct(x)
    with torch.inference_mode():
        model.measure(x)
    model.measure(x)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_flow_that_saw_no_training_batch_is_refused_and_stays_as_it_is():
    model, x = Glow(TINY), images(TINY)
    for use in (model.measure, lambda x: model.objective(x, noise())):
        with pytest.raises(InputError, match="not initialised"):
            use(x)
    model.forward(x)
    model.reconstruct(x)
    flags = {name: value for name, value in model.state_dict().items() if name.endswith("initialised")}
    assert len(flags) == 4
    assert not any(flags.values())
    model.initialize(x, noise())
    assert all(flags.values())
    with pytest.raises(InputError, match="initialised already"):
        model.initialize(x, noise())


def test_initialising_normalises_what_each_step_sees():
    config = replace(TINY, levels=1, steps=1)
    model, x = Glow(config), images(config, 64)
    model.initialize(x, noise(3))
    values = x + torch.rand(x.shape, generator=noise(3))
    z = model.encode(values).z[0]
    step = model.levels[0].steps[0]
    rows = step.mix.inverse(z.permute(0, 2, 3, 1)).flatten(0, 2)
    torch.testing.assert_close(rows.mean(0), torch.zeros(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(rows.std(0, correction=0), torch.ones(8), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(1, 1, 2), (2, 1, 1)])
def test_the_density_of_two_pixels_integrates_to_one(shape):
    config = GlowConfig(shape=shape, levels=1, steps=3, filters=8)
    model = trained(config, by=0.2).double()
    grid = torch.linspace(-2500, 2500, 1001, dtype=torch.float64)
    values = torch.cartesian_prod(grid, grid).view(-1, *shape)
    with torch.no_grad():
        found = model.encode(values)
    density = (found.latent[0] + found.jac[0]).exp()
    assert density.view(1001, 1001)[[0, -1]].max() < 1e-9 * density.max()
    assert density.sum().item() * (grid[1] - grid[0]).item() ** 2 == pytest.approx(1, abs=2e-3)


def test_bits_per_dimension_are_those_of_grey_levels():
    """Of images that are noise no model can need fewer than 8 bits, and a flow that sees just noise not many more."""
    config = GlowConfig(shape=(2, 2, 2), levels=1, steps=1, filters=4)
    x = torch.from_numpy(generator("noise").integers(0, 256, (2000, *config.shape), dtype=np.uint8))
    model = Glow(config)
    model.initialize(x, noise())
    bits = -model.measure(x)["like"] / 8 / math.log(2)
    # A Gaussian of a uniform's variance: log2 √(2πe/12) = 0.254 bits too many.
    assert bits.mean().item() == pytest.approx(8.254, abs=0.02)


def test_an_objective_is_minus_the_log_density_and_is_shared_out():
    model, x = trained(TINY), images(TINY, 8)
    whole = model.objective(x, noise(5))
    values = x + torch.rand(x.shape, generator=noise(5))
    found = model.encode(values)
    torch.testing.assert_close(whole, -(sum(found.latent) + sum(found.jac)))
    for world in (2, 4):
        shares = [model.objective(part, noise(5), share=(rank, world)) for rank, part in enumerate(x.chunk(world))]
        torch.testing.assert_close(torch.cat(shares), whole, rtol=0, atol=TOLERANCE * 32)
    assert (model.objective(x, noise(6)) - whole).abs().min() > 1e-4


@each_config
def test_samples_are_images_and_depend_on_the_seed_alone(config):
    model = trained(config)
    found = model.sample(5, seed=3)
    assert found.shape == (5, *config.shape)
    assert found.dtype == torch.uint8
    assert torch.equal(found, model.sample(5, seed=3))
    assert not torch.equal(found, model.sample(5, seed=4))


def test_samples_have_the_density_that_the_model_says():
    """Mean log-density of samples is minus the entropy, which is also known from the inverse."""
    config = replace(TINY, shape=(1, 2, 2), levels=1, filters=8)
    model = trained(config).double()
    z = torch.from_numpy(generator("z").normal(size=(4000, 4, 1, 1)))
    with torch.no_grad():
        found = model.encode(model.inverse([z]))
    torch.testing.assert_close(found.z[0], z, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.latent[0], Normal(0.0, 1.0).log_prob(z).sum((1, 2, 3)))


def test_a_lower_temperature_gives_less_varied_samples():
    model = trained(TINY)
    spread = [model.sample(200, seed=0, temperature=t).float().std(0).mean() for t in (0.1, 0.5, 1.0)]
    assert spread[0] < spread[1] < spread[2]
    assert torch.equal(model.sample(1, 0, temperature=0.0), model.sample(1, 1, temperature=0.0))


@each_config
def test_reconstructions_are_the_images(config):
    x = images(config)
    assert torch.equal(trained(config).reconstruct(x), x)


def test_grey_images_of_odd_sides_have_three_levels():
    model = Glow(GlowConfig(shape=(1, 28, 28), steps=1, filters=4))
    shapes = [tuple(part.shape[1:]) for part in model.forward(images(model.config)).z]
    assert shapes == [(2, 14, 14), (4, 7, 7), (4, 7, 7)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": (1, 7, 7)}, "leaves level 0 1 channel of 7×7"),
        ({"shape": (1, 2, 1), "levels": 2}, "leaves level 1 1 channel of 1×1"),
        ({"shape": [1, 28, 28]}, "shape must be"),
        ({"shape": (28, 28)}, "shape must be"),
        ({"levels": 0}, "levels must be a whole number from 1, got 0"),
        ({"steps": True}, "steps must be"),
        ({"filters": 2.0}, "filters must be"),
        ({"opening": -11}, "opening must be a number from -10 to 10, got -11"),
        ({"opening": float("nan")}, "opening must be"),
        ({"opening": "0"}, "opening must be"),
        ({"exits": 1}, "exits must be true or false, got 1"),
        ({"noise": None}, "noise must be true or false, got None"),
    ],
)
def test_what_no_flow_can_be_built_from_is_refused_by_name(fields, message):
    with pytest.raises(InputError, match=message):
        GlowConfig(**fields)


def test_without_noise_grey_levels_stand_for_their_middles():
    config = replace(TINY, noise=False)
    model, noisy = trained(config), Glow(TINY)
    noisy.load_state_dict(model.state_dict())
    x = images(config)
    like = model.measure(x)["like"]
    found = model.encode(x + 0.5)
    torch.testing.assert_close(like, sum(found.latent) + sum(found.jac), rtol=TOLERANCE, atol=0)
    for seed in (0, 1):
        torch.testing.assert_close(-model.objective(x, noise(seed)), like, rtol=TOLERANCE, atol=0)
    assert (noisy.measure(x)["like"] != like).all()
    assert torch.equal(model.reconstruct(x), x)


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 2, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8), torch.zeros(1, 1, 4, 4, dtype=torch.uint8)]
)
def test_other_input_is_refused_by_name(x):
    model = trained(TINY)
    for use in (model.measure, model.forward, model.reconstruct, lambda x: model.objective(x, noise())):
        with pytest.raises(InputError, match=r"expected uint8 images of shape \(n, 2, 4, 4\)"):
            use(x)


def test_a_configuration_is_json():
    config = GlowConfig()
    assert config == GlowConfig(shape=(3, 32, 32), levels=3, steps=8, filters=400, opening=2.0, exits=True, noise=True)
    read = json.loads(json.dumps(asdict(config)))
    assert GlowConfig(**{**read, "shape": tuple(read["shape"])}) == config
    assert Glow.kind == "glow"


def test_first_weights_depend_on_the_seed_alone():
    before = torch.random.get_rng_state()
    first, again, other = (Glow(TINY, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["levels.0.steps.0.coupling.hidden2"], other["levels.0.steps.0.coupling.hidden2"])
    assert {value.dtype for value in first.values()} == {torch.float32, torch.int64}


def test_a_state_is_all_there_is():
    model, x = trained(TINY), images(TINY)
    other = Glow(TINY, seed=5)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model.measure(x)["like"], other.measure(x)["like"])


def test_l2_is_the_sum_of_squared_convolution_weights_alone():
    model = trained(TINY)
    expected = 0.0
    for name, value in model.state_dict().items():
        if name.endswith(("hidden1", "hidden2")):
            expected += value[:-1].double().square().sum().item()
        elif name.endswith("last") or (name.startswith("exits") and name.endswith("weight")):
            expected += value.double().square().sum().item()
    assert model.l2().item() == pytest.approx(expected, rel=1e-5)
    model.l2().backward()
    assert not any(model.levels[0].steps[0].coupling.hidden1.grad[-1])


@each_config
def test_gradients_at_the_start_are_finite(config):
    model, x = Glow(config), images(config)
    model.initialize(x, noise())
    (model.objective(x, noise(1)).mean() + 0.05 * model.l2()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    assert model.levels[0].steps[0].coupling.last.grad.abs().max() > 0


def test_training_finds_structure_and_is_the_same_twice():
    config = GlowConfig(shape=(1, 8, 8), levels=2, steps=2, filters=16)
    x, held_out = images(config, 256), images(config, 256, seed=1)

    def run() -> tuple[float, float, Glow]:
        model = Glow(config)
        model.initialize(x, noise(100))
        optimiser = torch.optim.Adamax(model.parameters(), lr=3e-3)
        first = model.measure(held_out)["like"].mean().item()
        for step in range(100):
            optimiser.zero_grad()
            model.objective(x[step % 4 * 64 :][:64], noise(step)).mean().backward()
            optimiser.step()
        return first, model.measure(held_out)["like"].mean().item(), model

    (first, last, model), (_, again, _) = run(), run()
    assert (last - first) / 64 / math.log(2) > 0.5  # bits per dimension
    assert last == again
    unlike = torch.from_numpy(generator("noise").integers(0, 256, (64, 1, 8, 8), dtype=np.uint8))
    assert model.measure(unlike)["like"].max() < model.measure(held_out)["like"].min()
