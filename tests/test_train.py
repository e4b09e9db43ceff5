import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dose_ood import InputError, recipes, storage
from dose_ood.errors import DoseWarning
from dose_ood.models.registry import build
from dose_ood.muon import Muon
from dose_ood.recipes import RECIPES, GlowRecipe, VAERecipe
from dose_ood.runs import TrainingError, read_log
from dose_ood.train import LINE_STEPS, _Batches, train
from standin import StandIn, StandInConfig, stripes

FLOW = GlowRecipe(epochs=3, batch=16, rate=1e-2, warm_up_epochs=1, least_warm_up=0, l2=1e-3)
SCRIPT = Path(__file__).with_name("standin.py")
pytestmark = pytest.mark.usefixtures("one_thread")
IMAGES = stripes(500)


def run(folder, recipe=FLOW, images=IMAGES, **options):
    model = StandIn(StandInConfig(), seed=1)
    provenance = train(model, images, recipe, folder, **{"seed": 3, **options})
    return model, provenance


def content(folder):
    """What must not depend on interruptions: the checkpoint to the last bit, and the log but for its speeds."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["images_per_s"]
    return {file.name: file.read_bytes() for file in (folder / "checkpoint").iterdir()}, lines


class StoppedError(Exception):
    pass


def stop_at(step):
    def look(record):
        if record.step == step:
            raise StoppedError

    return look


def test_the_loss_falls_and_the_log_says_so(tmp_path):
    model, provenance = run(tmp_path / "run")
    log = read_log(tmp_path / "run")
    per_epoch = 450 // 16
    assert [record.step for record in log] == [20, 28, 48, 56, 76, 84]
    assert [record.epoch for record in log] == [0, 0, 1, 1, 2, 2]
    assert log[-1].step == log[-1].steps == 3 * per_epoch == provenance["steps"]
    assert log[-1].loss < 0.5 * log[0].loss
    held_out = [record.held_out for record in log if record.held_out is not None]
    assert len(held_out) == 3
    assert held_out[-1] < 0.5 * log[0].loss
    assert [epoch["held_out"] for epoch in provenance["epochs"]] == held_out
    means = [np.average([a.loss, b.loss], weights=[20, 8]) for a, b in zip(log[::2], log[1::2], strict=True)]
    np.testing.assert_allclose([record.epoch_loss for record in log[1::2]], means)
    assert log[0].bits_per_dim == pytest.approx(log[0].loss / 64 / np.log(2))
    assert not model.training


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
    runs = [run(tmp_path / name, seed=seed)[0] for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    a, b, c = ([p.detach().numpy() for p in model.parameters()] for model in runs)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert not any(np.array_equal(x, y) for x, y in zip(a, c, strict=True))


@pytest.mark.parametrize("recipe", [FLOW, VAERecipe(epochs=3, batch=16, rate=1e-2, halve_rate_steps=30)])
@pytest.mark.parametrize("step", [1, 28, 47, 60, 84])
def test_a_run_stopped_anywhere_and_resumed_ends_with_the_same_bits(tmp_path, step, recipe):
    whole = run(tmp_path / "whole", recipe)[1]
    with pytest.raises(StoppedError):
        run(tmp_path / "parts", recipe, checkpoint_seconds=0.0, progress=stop_at(step))
    assert run(tmp_path / "parts", recipe, resume=True)[1] == whole
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    assert run(tmp_path / "parts", recipe, resume=True)[1] == whole, "resuming what is complete changes nothing"
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def in_processes(folder, what):
    command = [sys.executable, str(SCRIPT), str(folder), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_killed_at_any_moment_and_resumed_ends_with_the_same_bits(tmp_path):
    kills = int(in_processes(tmp_path, "kill"))
    assert kills >= 5
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_two_processes_give_the_losses_of_one(tmp_path):
    in_processes(tmp_path, "two")
    one, two = read_log(tmp_path / "whole"), read_log(tmp_path / "two")
    assert [record.step for record in one] == [record.step for record in two]
    np.testing.assert_allclose([r.loss for r in two], [r.loss for r in one], rtol=1e-5)
    np.testing.assert_allclose(
        [r.held_out for r in two if r.held_out], [r.held_out for r in one if r.held_out], rtol=1e-5
    )
    models = [storage.load(tmp_path / name / "checkpoint", kind="run").tensors["model"] for name in ("whole", "two")]
    for name, array in models[0].items():
        np.testing.assert_allclose(models[1][name], array, atol=1e-4)


def test_shards_of_a_batch_have_the_noise_of_the_whole():
    model, x = StandIn(StandInConfig()), torch.from_numpy(IMAGES[:8])
    whole = model.objective(x, torch.Generator().manual_seed(1))
    shards = [
        model.objective(part, torch.Generator().manual_seed(1), share=(i, 2)) for i, part in enumerate(x.chunk(2))
    ]
    torch.testing.assert_close(torch.cat(shards), whole)


def test_every_image_is_seen_once_an_epoch_in_an_order_of_its_own():
    images = np.arange(40, dtype=np.uint8).reshape(40, 1, 1, 1)
    batches = _Batches(images, np.arange(5, 35), 10, seed=0, background=None)
    epochs = [np.concatenate([batches.take(3 * epoch + i).numpy().ravel() for i in range(3)]) for epoch in range(2)]
    assert all(np.array_equal(np.sort(epoch), np.arange(5, 35)) for epoch in epochs)
    assert not np.array_equal(*epochs)
    assert np.array_equal(batches.take(1).numpy().ravel(), epochs[0][10:20])


def test_a_background_run_sees_mutated_images_that_change_with_the_epoch():
    images = np.zeros((100, 1, 8, 8), np.uint8)
    batches = _Batches(images, np.arange(100), 100, seed=0, background=0.15)
    first, second = batches.take(0).numpy(), batches.take(1).numpy()
    share = 0.15 * 255 / 256
    assert (first != 0).mean() == pytest.approx(share, abs=4 * np.sqrt(share / first.size))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, batches.take(0).numpy())


class Exploding(StandIn):
    def objective(self, x, noise, **options):
        losses = super().objective(x, noise, **options)
        return losses * float("nan") if self.explodes else losses

    explodes = False


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_its_checkpoint(tmp_path):
    model = Exploding(StandInConfig(), seed=1)

    def explode(record):
        model.explodes = record.step == 50

    with pytest.raises(TrainingError, match=r"the loss at step 50 is nan; the last good checkpoint is in .*checkpoint"):
        train(model, IMAGES, FLOW, tmp_path / "run", seed=3, checkpoint_seconds=0.0, progress=explode)
    assert storage.load(tmp_path / "run" / "checkpoint", kind="run").document["step"] == 48
    run(tmp_path / "run", resume=True)
    run(tmp_path / "whole")
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_a_diverging_loss_stops_the_run_and_leaves_a_checkpoint_from_before(tmp_path):
    class Drifting(StandIn):
        def objective(self, x, noise, **options):
            return super().objective(x, noise, **options) + (1e4 if self.drifted else 0)

        drifted = False

    model = Drifting(StandInConfig(), seed=1)

    def drift(record):
        model.drifted = record.step >= 28

    recipe = GlowRecipe(epochs=9, batch=16, rate=1e-2, warm_up_epochs=1, least_warm_up=0, patience=50)
    with pytest.raises(TrainingError, match=r"step 84 .* for 56 steps: training has diverged; the last good"):
        train(model, IMAGES, recipe, tmp_path / "run", checkpoint_seconds=0.0, progress=drift)
    assert storage.load(tmp_path / "run" / "checkpoint", kind="run").document["step"] == 28


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    model = StandIn(StandInConfig(), seed=1)
    model.register_buffer("unused", torch.zeros(1))

    def spoil(record):
        if record.step == 70:
            model.unused.fill_(float("nan"))

    with pytest.raises(TrainingError, match="unused is not finite after step 76"):
        train(model, IMAGES, FLOW, tmp_path / "run", checkpoint_seconds=0.0, progress=spoil)
    assert storage.load(tmp_path / "run" / "checkpoint", kind="run").document["step"] == 56


def test_directories_of_other_things_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and holds no run"):
        run(tmp_path)
    run(tmp_path / "run")
    with pytest.raises(InputError, match="already holds a run: resume it or choose a new directory"):
        run(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("seed", {"seed": 5}),
        ("split_seed", {"split_seed": 1}),
        ("background", {"background": 0.15}),
        ("recipe", {"recipe": GlowRecipe(epochs=4, batch=16, rate=1e-2)}),
        ("data", {"images": stripes(500, seed=1)}),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path, name, options):
    run(tmp_path / "run")
    with pytest.raises(InputError, match=f"is of another run: its {name} is .*, expected "):
        run(tmp_path / "run", resume=True, **options)


def test_a_checkpoint_of_another_shape_or_kind_is_refused_by_name(tmp_path):
    run(tmp_path / "run")
    path = tmp_path / "run" / "checkpoint"
    found = storage.load(path, kind="run")
    arrays = {**found.tensors["model"], "decoder.bias": np.zeros(2, np.float32)}
    storage.save(path, found.document, {**found.tensors, "model": arrays}, kind="run")
    with pytest.raises(InputError, match=r"decoder.bias must have shape \(1,\), got \(2,\)"):
        run(tmp_path / "run", resume=True)
    moments = {**found.tensors["moments"], "decoder.bias/exp_avg": np.zeros(2, np.float32)}
    storage.save(path, found.document, {**found.tensors, "moments": moments}, kind="run")
    with pytest.raises(InputError, match=r"'decoder.bias/exp_avg' must be float32 of shape \(1,\)"):
        run(tmp_path / "run", resume=True)
    (path / "run.json").write_bytes(b"\x80\x04pickle")
    with pytest.raises(InputError, match=r"run.json is damaged"):
        run(tmp_path / "run", resume=True)


def test_another_number_of_threads_is_said(tmp_path):
    run(tmp_path / "run")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with pytest.warns(DoseWarning, match=f"had 1 × {threads} threads, now it has 1 × {threads + 1} threads"):
            run(tmp_path / "run", resume=True)
    finally:
        torch.set_num_threads(threads)


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dose_ood.train.share", lambda: (0, 3))
    with pytest.raises(InputError, match="a batch of 16 images cannot be shared equally by 3 processes"):
        run(tmp_path)


def test_the_schedules_are_those_of_the_paper():
    vae = VAERecipe(epochs=50, batch=64, rate=1e-4)
    assert [vae.schedule(step, 843) for step in (0, 9_999, 10_000, 30_000)] == [1, 1, 0.5, 0.125]
    assert [vae.beta_of(epoch) for epoch in (1, 3, 4, 7, 21, 22, 49)] == [100, 100, 50, 25, 1.5625, 1, 1]
    glow = GlowRecipe(epochs=250, batch=32, rate=1e-3)
    assert [glow.schedule(step, 100) for step in (0, 500, 1_000, 20_000)] == [0, 0.5, 1, 1]
    assert glow.schedule(250, 3) == 0.5, "the rise takes 500 steps at least"


def test_a_rate_that_falls_at_the_end_reaches_zero_after_the_last_step():
    glow = GlowRecipe(epochs=10, batch=32, rate=1e-3, warm_up_epochs=1, least_warm_up=0, cool_down=0.25)
    shares = [glow.schedule(step, 100) for step in (0, 50, 100, 749, 750, 875, 999)]
    assert shares == pytest.approx([0, 0.5, 1, 1, 1, 0.5, 0.004])


def test_few_images_are_seen_in_more_epochs_unless_their_number_was_asked_for():
    glow = GlowRecipe(epochs=6, batch=32, rate=1e-3, least_steps=8_000)
    assert glow.steps_in_all(1406) == 6 * 1406
    assert glow.steps_in_all(460) == 18 * 460
    assert glow.lasting(2).steps_in_all(460) == 2 * 460
    vae = RECIPES["vae"]["cpu"]
    assert vae.lasting(3).steps_in_all(10) == 30
    assert [vae.beta_of(epoch) for epoch in (0, 1, 2, 3, 4, 5)] == [100, 100, 25, 6.25, 1.5625, 1]


def test_the_vae_recipe_burns_in_the_decoder_first(tmp_path):
    encoders = []

    class Watched(StandIn):
        def objective(self, x, noise, **options):
            calls.append((self.training, options["beta"], options["burn_in"], options["samples"]))
            return super().objective(x, noise, **options)

    calls = []
    model = Watched(StandInConfig(), seed=1)
    before = model.encoder.weight.detach().clone()

    def look(record):
        if record.step == 28:
            encoders.append(torch.equal(before, model.encoder.weight))

    recipe = VAERecipe(epochs=3, batch=16, rate=1e-2, samples=4, beta=3.0, halve_beta_epochs=1)
    train(model, IMAGES, recipe, tmp_path / "run", progress=look)
    assert encoders == [True]
    assert not torch.equal(before, model.encoder.weight)
    trained = [call[1:] for call in calls if call[0]]
    assert trained[:28] == [(3.0, True, 4)] * 28
    assert trained[28:] == [(3.0, False, 4)] * 28 + [(1.5, False, 4)] * 28
    assert {call[1:] for call in calls if not call[0]} == {(1.0, False, 4)}, "held-out losses are −ELBO"


def test_lines_of_the_log_are_means_over_steps(tmp_path):
    seen = []
    run(tmp_path / "run", progress=seen.append)
    assert len(seen) == 84
    assert seen[LINE_STEPS - 1].loss == read_log(tmp_path / "run")[0].loss


@pytest.mark.parametrize("size", ["paper", "cpu", "tiny"])
def test_every_recipe_knows_its_model(size):
    vae, glow = RECIPES["vae"][size], RECIPES["glow"][size]
    assert vae.config("mnist", (1, 28, 28), None).likelihood == "bernoulli"
    fashion = vae.config("fashion_mnist", (1, 28, 28), None)
    assert (fashion.likelihood, fashion.scale, fashion.scale_kind) == ("logit_normal", 1.0, "fixed")
    assert vae.config("mnist", (1, 28, 28), "logit_normal").likelihood == "logit_normal"
    assert glow.config("cifar10", (3, 32, 32), None).filters == glow.filters
    assert vae.beta_of(vae.epochs - 1) == 1.0, "training ends with the ELBO"
    assert glow.schedule(glow.steps_in_all(700) // 2, 700) == 1


def test_the_papers_recipes_are_the_papers():
    vae, glow = RECIPES["vae"]["paper"], RECIPES["glow"]["paper"]
    assert (vae.epochs, vae.rate, vae.halve_rate_steps, vae.samples) == (50, 1e-4, 10_000, 16)
    assert (vae.burn_in_epochs, vae.beta, vae.halve_beta_epochs) == (1, 100.0, 3)
    assert (glow.epochs, glow.rate, glow.warm_up_epochs, glow.l2) == (250, 1e-3, 10, 0.05)
    assert (glow.levels, glow.steps, glow.filters, glow.opening, glow.exits) == (3, 8, 400, 2.0, True)
    assert [type(each) for each in vae.optimisers(real("vae")[0])] == [torch.optim.Adam]
    assert [type(each) for each in glow.optimisers(real("glow")[0])] == [torch.optim.Adamax]


def test_muon_takes_the_couplings_matrices_and_adamax_everything_else():
    model, _, recipe = real("glow with muon")
    muon, adamax = recipe.optimisers(model)
    with_muon, others = (each.param_groups[0] for each in (muon, adamax))
    assert (with_muon["lr"], others["lr"]) == (recipe.muon_rate, recipe.rate)
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    ends = {names[each.data_ptr()].rpartition(".")[2] for each in with_muon["params"]}
    assert ends == {"hidden1", "hidden2", "last"}
    assert sorted(each.data_ptr() for group in (with_muon, others) for each in group["params"]) == sorted(names)


def test_muon_moves_every_direction_of_a_convolution_alike():
    weight = torch.nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last).weight
    before = weight.detach().clone()
    gradient = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3, 5, 5))).float()
    gradient[0] *= 100  # one output matters more than the others
    weight.grad = gradient
    Muon([weight], lr=0.1).step()
    moved = (weight.detach() - before).flatten(1)
    sizes = torch.linalg.svdvals(moved) / 0.1
    assert 0.5 < sizes.min() <= sizes.max() < 1.5
    assert (moved * gradient.flatten(1)).sum() < 0


def test_muon_refuses_a_convolution_whose_rows_are_scattered():
    with pytest.raises(RuntimeError, match="view"):
        Muon([torch.nn.Conv2d(3, 4, 5).weight], lr=0.1)


def real(kind):
    """A tiny model of a kind, its recipe and images, of three colours for the flow."""
    images = stripes(300, size=12) if kind.startswith("vae") else np.repeat(stripes(300, size=12), 3, axis=1)
    recipe = replace(RECIPES[kind.split()[0]]["tiny"], epochs=2)
    if kind.endswith("muon"):
        recipe = replace(recipe, muon_rate=1e-2)
    if kind.endswith("bfloat16"):
        recipe = replace(recipe, bfloat16=True)
    return build(recipe.config("stripes", images.shape[1:], None), seed=0), images, recipe


MODELS = ["vae", "glow", "vae with muon", "vae in bfloat16", "glow with muon", "glow in bfloat16"]


@pytest.mark.parametrize("kind", ["vae in bfloat16", "glow in bfloat16"])
def test_bfloat16_is_for_the_layers_in_training_alone(monkeypatch, kind):
    monkeypatch.setattr(recipes, "has_bfloat16", lambda _: True)
    model, images, recipe = real(kind)
    exact, x = replace(recipe, bfloat16=False), torch.from_numpy(images[:64])
    if kind.startswith("glow"):
        recipe.prepare(model, x, torch.Generator().manual_seed(0))
        with torch.no_grad():
            for matrix in model.matrices():  # couplings are the identity at first
                matrix += 0.01

    def losses(of, name):
        return getattr(of, name)(model, x, torch.Generator().manual_seed(0), *([2, (0, 1)] if name == "losses" else []))

    rounded, found = losses(recipe, "losses"), losses(exact, "losses")
    assert rounded.dtype == found.dtype
    assert not torch.equal(rounded, found)
    torch.testing.assert_close(rounded, found, rtol=0.01, atol=1.0)
    rounded.mean().backward()
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}
    assert torch.equal(losses(recipe, "held_out_losses"), losses(exact, "held_out_losses"))
    monkeypatch.setattr(recipes, "has_bfloat16", lambda _: False)
    assert torch.equal(losses(recipe, "losses"), found), "a processor without it is not made to pretend"


@pytest.mark.parametrize(
    ("told", "has"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": False, "sse2": True}, False),
        ({"sse2": True}, True),  # nothing is said of it
    ],
)
def test_a_processor_says_whether_it_has_bfloat16(monkeypatch, told, has):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert recipes.has_bfloat16(torch.device("cpu")) is has


@pytest.mark.parametrize("kind", MODELS)
def test_the_models_themselves_resume_with_the_same_bits(tmp_path, kind):
    for name in ("whole", "parts"):
        model, images, recipe = real(kind)
        if name == "parts":
            with pytest.raises(StoppedError):
                train(model, images, recipe, tmp_path / name, checkpoint_seconds=0.0, progress=stop_at(12))
            model = real(kind)[0]
        train(model, images, recipe, tmp_path / name, resume=True)
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    log = read_log(tmp_path / "whole")
    assert log[-1].loss < log[0].loss


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_the_models_killed_on_the_way_resume_with_the_same_bits(tmp_path, kind):
    script = KILLED_MODEL.replace("KIND", repr(kind))
    for name, steps in (("whole", [0]), ("killed", [7, 11, 15, 0])):
        for step in steps:
            command = [sys.executable, "-c", script, str(tmp_path / name), str(step)]
            code = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SCRIPT.parent)}, check=False).returncode
            assert code == (-9 if step else 0)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


KILLED_MODEL = """
import os, signal, sys
from test_train import real, train
def look(record):
    if record.step == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
model, images, recipe = real(KIND)
train(model, images, recipe, sys.argv[1], resume=True, checkpoint_seconds=0.0, progress=look)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vae", "glow"])
def test_torchrun_gives_the_losses_of_one_process(tmp_path, kind):
    np.save(tmp_path / "images.npy", real(kind)[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    dose = ["-m", "dose_ood", "train", str(tmp_path / "images.npy"), "--model", kind, "--recipe=tiny", "--epochs=2"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for name, command in (("one", dose), ("two", [*torchrun, *dose])):
        arguments = [sys.executable, *command, "-o", str(tmp_path / name)]
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    one, two = read_log(tmp_path / "one"), read_log(tmp_path / "two")
    np.testing.assert_allclose([r.loss for r in two], [r.loss for r in one], rtol=1e-5)
    assert (tmp_path / "two" / "model" / "model.json").exists()
