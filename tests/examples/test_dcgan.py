"""The DCGAN job at a reduced size: its networks, one iteration with two optimizers, what it writes and refuses."""

import json
import signal
import types

import numpy as np
import pytest
from PIL import Image

import tinymp as mp
from examples import dcgan, images, report
from examples.frechet import FrechetDistance
from tinymp import checkpoint, nn, optim

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]  # the program chooses its device itself
TINY = ["--size", "16", "--width", "4", "--batch-size", "8", "--frechet-samples", "40", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path):
    """40 grey pictures: a bright disc somewhere, of some size."""
    random, (y, x) = np.random.default_rng(0), np.indices((20, 20))
    for i in range(40):
        (row, column), radius = random.uniform(6, 14, 2), random.uniform(3, 6)
        picture = np.where((y - row) ** 2 + (x - column) ** 2 < radius**2, 220, 40) + random.integers(0, 20, (20, 20))
        (tmp_path / "pictures").mkdir(exist_ok=True)
        Image.fromarray(picture.astype(np.uint8)).save(tmp_path / "pictures" / f"{i:02}.png")
    return tmp_path / "pictures"


def networks(policy=mp.MIXED, seed=0):
    mp.manual_seed(seed)
    models = [policy.cast(model) for model in dcgan.small(16, 1, 4)]
    return dcgan.Networks(*models, *[optim.Adam(m.parameters(), lr=1e-3, **dcgan.ADAM) for m in models])


def batch(policy=mp.MIXED, n=4, size=16, colours=1, seed=0):
    random = np.random.default_rng(seed)
    real = random.uniform(-1, 1, (n, colours, size, size))
    noise = random.standard_normal((n, dcgan.LATENT, 1, 1))
    return [policy.cast(mp.tensor(x.astype(np.float32))) for x in (real, noise)]


def state(model, optimizer):
    """Copies of everything that a skipped step must leave alone."""
    moments = [np.array(v) for entry in optimizer.state_dict()["state"].values() for v in entry.values()]
    return [*model.state_dict().values(), *moments]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


# --------------------------------------------------------------------------------------------------------- the networks


def kinds(model):
    return [type(layer).__name__ for layer in model]


def test_the_papers_networks_take_a_step():
    """MPT section 4.6, layer by layer; both networks change, on two pictures of 128 x 128 in colour."""
    mp.manual_seed(0)
    models = [mp.MIXED.cast(model) for model in dcgan.paper()]
    block = ["ConvTranspose2d", "BatchNorm2d", "LeakyReLU"]
    assert kinds(models[0]) == 6 * block + ["ConvTranspose2d", "BatchNorm2d", "Tanh"]
    block = ["Conv2d", "BatchNorm2d", "LeakyReLU"]
    assert kinds(models[1]) == 6 * block + ["Flatten", "Linear", "BatchNorm1d", "LeakyReLU", "Linear"]
    nets = dcgan.Networks(*models, *[optim.Adam(m.parameters(), lr=2e-4, **dcgan.ADAM) for m in models])
    before = [[p.array.copy() for p in (next(m.parameters()), list(m.parameters())[-1])] for m in models]
    scaler = optim.StaticLossScaler(128)
    with mp.use(mp.MIXED):
        result = dcgan.step(nets, scaler, *batch(n=2, size=128, colours=3))
        pictures = dcgan.samples(nets.generator, np.zeros((2, dcgan.LATENT, 1, 1), np.float32), mp.MIXED, "cpu")
    assert result.discriminator_result.applied
    assert result.generator_result.applied
    assert np.isfinite([result.discriminator_loss.item(), result.generator_loss.item()]).all()
    assert pictures.shape == (2, 3, 128, 128)
    assert abs(pictures).max() <= 1
    for model, copies in zip(models, before):
        for p, copy in zip((next(model.parameters()), list(model.parameters())[-1]), copies):
            assert not np.array_equal(p.array, copy)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_small_networks_fit_together(size):
    g, d = dcgan.small(size, 3, 2)
    fake = g(mp.tensor(np.zeros((2, dcgan.LATENT, 1, 1), np.float32)))
    assert fake.shape == (2, 3, size, size)
    assert d(fake).shape == (2, 1)
    doublings = int(np.log2(size)) - 2
    assert kinds(g) == doublings * ["ConvTranspose2d", "BatchNorm2d", "LeakyReLU"] + ["ConvTranspose2d", "Tanh"]
    block = ["Conv2d", "BatchNorm2d", "LeakyReLU"]
    assert kinds(d) == ["Conv2d", "LeakyReLU"] + (doublings - 1) * block + ["Flatten", "Linear"]


def test_initialised():
    mp.manual_seed(0)
    for model in dcgan.small(32, 1, 32):
        for layer in model:
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                assert layer.weight.array.mean() == pytest.approx(0, abs=0.003)
                assert layer.weight.array.std() == pytest.approx(0.02, rel=0.2)
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.weight.array.mean() == pytest.approx(1, abs=0.02)
            if getattr(layer, "bias", None) is not None:
                assert not layer.bias.array.any()


# -------------------------------------------------------------------------------------------------------- the iteration


def test_gradients_of_an_iteration():
    """Each network's gradient is that of its own loss alone, by another way through the same networks."""
    policy, scaler = mp.FP32, optim.NoLossScaler()
    nets, (real, noise) = networks(policy), batch(policy)
    dcgan.step(nets, scaler, real, noise)
    got = [[p.grad_array for p in m.parameters()] for m in nets[:2]]

    nets = networks(policy)
    g, d = nets[:2]
    fake = g(noise)
    loss = nn.BCEWithLogitsLoss()
    (
        loss(d(real), dcgan.ops.full_like(d(real), 0.9)) + loss(d(fake.detach()), mp.tensor(np.zeros((4, 1), "f4")))
    ).backward()
    expected_d = [p.grad_array for p in d.parameters()]
    nets.discriminator_optimizer.step()
    d.zero_grad()
    loss(d(fake), mp.tensor(np.ones((4, 1), "f4"))).backward()
    for mine, theirs in zip(got, ([p.grad_array for p in g.parameters()], expected_d)):
        assert len(mine) == len(theirs) > 0
        for a, b in zip(mine, theirs):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("victims", [(), ("discriminator",), ("generator",), ("discriminator", "generator")])
def test_an_overflow_skips_one_optimizer_and_moves_the_scale_once(victims, monkeypatch):
    """One scaler, two optimizers: whichever overflows is left as it was, the other steps, S is halved once."""
    nets, scaler = networks(), optim.DynamicLossScaler(1024.0, growth_interval=2)
    with mp.use(mp.MIXED):
        dcgan.step(nets, scaler, *batch())  # Adam has its state, and batch norms have theirs
        assert (scaler.get_scale(), scaler.growth_tracker) == (1024, 1)
        for optimizer in nets[2:]:
            optimizer.zero_grad()
        before = [state(nets[i], nets[i + 2]) for i in (0, 1)]
        honest = scaler.step

        def poisoned(optimizer):
            for name in victims:
                if optimizer is getattr(nets, f"{name}_optimizer"):
                    optimizer.param_groups[0]["params"][0].grad[...] = np.inf
            return honest(optimizer)

        monkeypatch.setattr(scaler, "step", poisoned)
        result = dcgan.step(nets, scaler, *batch(seed=1))
    for i, name in enumerate(("generator", "discriminator")):
        skipped = name in victims
        assert getattr(result, f"{name}_result") is (optim.StepResult.SKIPPED if skipped else optim.StepResult.APPLIED)
        changed = not same(state(nets[i], nets[i + 2]), before[i])
        if name == "generator" or not skipped:
            assert changed is not skipped
        else:  # the pass for the generator's loss, after the skip, moves the statistics; the weights and moments stay
            weights = [p.master for p in nets.discriminator.parameters()]
            assert all(any(np.array_equal(w, old) for old in before[i]) for w in weights)
    assert scaler.iteration == 2
    assert scaler.get_scale() == (512 if victims else 2048)
    assert len(scaler.history) == 1


def test_nothing_of_the_generators_loss_stays_in_the_discriminator():
    """Under another scale, it would meet the next iteration's gradients and be refused."""
    nets, scaler = networks(), optim.DynamicLossScaler(1024.0, growth_interval=1)
    with mp.use(mp.MIXED):
        for i in range(3):
            result = dcgan.step(nets, scaler, *batch(seed=i))
            assert result.discriminator_result.applied
            assert {p.grad_scale for p in nets.discriminator.parameters()} == {1024.0 * 2**i}
            assert all(p.requires_grad for p in nets.discriminator.parameters())
            for optimizer in nets[2:]:
                optimizer.zero_grad()
    assert scaler.get_scale() == 8192


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, mp.PURE_FP16], ids=str)
def test_average(policy):
    """By its formula, in FP64, over masters and running statistics; the model itself is left alone."""
    mp.manual_seed(0)
    model = policy.cast(dcgan.small(16, 1, 2)[0])
    average = dcgan.Average(model)
    expected = {k: v.astype(np.float64) for k, v in model.state_dict().items()}
    random = np.random.default_rng(0)
    for n in range(1, 31):
        weight, p, mean = max(9 / (n + 9), 0.002), next(model.parameters()), model[1].running_mean
        p.write(random.standard_normal(p.shape, np.float32))
        mean.array[...] = random.standard_normal(mean.shape)
        average.follow(model)
        for key, value in model.state_dict().items():
            expected[key] += weight * (value - expected[key])
    before = model.state_dict()
    for key, value in average.model().state_dict().items():
        if value.dtype.kind == "f":
            tolerance = 1e-5 if value.dtype == np.float32 else 1e-3
            np.testing.assert_allclose(value, expected[key], rtol=tolerance, atol=tolerance)
    assert next(average.model().parameters()).dtype == policy.storage
    assert same([*before.values()], [*model.state_dict().values()])


# --------------------------------------------------------------------------------------------------------- the distance


def test_frechet_distance_against_its_definition():
    """The formula with a matrix square root, on the features by themselves."""
    random = np.random.default_rng(0)
    known = random.standard_normal((300, 1, 16, 16))
    others = 0.8 * random.standard_normal((200, 1, 16, 16)) + 0.1
    distance = FrechetDistance(known, components=8)
    a, b = ((distance._features(x) - distance.mean) @ distance.to_unit for x in (known, others))
    np.testing.assert_allclose(np.cov(a, rowvar=False), np.eye(8), atol=1e-8)
    c1, c2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(c1 @ c2).real)  # tr (C1 C2)^(1/2)
    expected = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(c1) + np.trace(c2) - 2 * roots.sum()
    assert distance(others) == pytest.approx(expected / 8)


def test_frechet_distance_sees_what_is_wrong_with_pictures():
    faces = images.load(None, 36)
    random = np.random.default_rng(0)
    known, others = (images.augmented(faces[random.integers(0, 400, 600)], 32, random) for _ in range(2))
    distance = FrechetDistance(known)
    same_kind = distance(others)
    assert distance(known) < 1e-6
    assert same_kind < 0.1
    assert distance(images.augmented(faces[random.integers(0, 40, 600)], 32, random)) > 3 * same_kind  # 4 people
    blurred = (others + np.roll(others, 1, 2) + np.roll(others, 1, 3) + np.roll(others, (1, 1), (2, 3))) / 4
    assert distance(blurred) > 2 * same_kind
    assert distance(others + random.normal(0, 0.2, others.shape)) > 2 * same_kind
    assert distance(np.repeat(known[:1], 50, 0)) > 1
    assert np.isnan(distance(np.full_like(known[:5], np.nan)))
    with pytest.raises(ValueError, match="expected pictures that differ, got 5 equal ones"):
        FrechetDistance(np.zeros((5, 1, 16, 16)))


# -------------------------------------------------------------------------------------------------------------- the job


def test_report(folder, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    runs = dcgan.main([*TINY, "--data", str(folder), "--steps", "6", "--seeds", "2", "--seed", "3", "--out", str(out)])
    assert list(runs) == ["fp32", "mixed", "fp32, seed 4", "mixed, seed 4"]
    printed = capsys.readouterr().out
    for row in ("Fréchet distance", "final loss of D", "final loss of G", *report.ROLES, "other real crops", "mean"):
        assert row in printed
    written = json.loads((out / "report.json").read_text())
    assert written["settings"]["frechet_floor"] >= 0
    fp32, mixed = written["runs"]["fp32"], written["runs"]["mixed"]
    for run in (fp32, mixed):
        assert len(run["curve"]) == len(run["generator_curve"]) == 6
        assert np.isfinite([*run["curve"], *run["generator_curve"], run["frechet_distance"]]).all()
        assert run["per_second"] == pytest.approx(8000 / run["ms_per_step"])
        assert sum(run["gradient_exponents"]) > 0
        assert list(run["bytes"]) == list(report.ROLES)
        assert run["scale_history"][0][0] == 0
    # FP16 halves what the paper says it halves, and pays for it with the masters (MPT section 3.1)
    for role in ("weights", "gradients", "activations"):
        assert mixed["bytes"][role] <= 0.56 * fp32["bytes"][role]
    assert fp32["bytes"]["masters"] == 0
    assert mixed["bytes"]["optimizer"] == fp32["bytes"]["optimizer"]
    # the same start and the same batches
    assert mixed["curve"][0] == pytest.approx(fp32["curve"][0], rel=1e-2)
    assert mixed["generator_curve"][0] == pytest.approx(fp32["generator_curve"][0], rel=5e-2)
    for name in ("fp32", "mixed"):
        sheets = sorted(p.name for p in out.glob(f"samples_{name}_seed3_*.png"))
        assert sheets == [f"samples_{name}_seed3_{i:06}.png" for i in range(1, 7)]
    with Image.open(out / "samples.png") as both, Image.open(out / f"samples_mixed_seed3_{6:06}.png") as mine:
        assert mine.size == (128, 128)
        np.testing.assert_array_equal(np.asarray(both)[:, -128:], np.asarray(mine))
    assert (out / "report.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_on_a_gpu(gpu, folder, tmp_path, capsys, monkeypatch):
    """The GPU is the default where one works; the first losses are the CPU's up to rounding."""
    monkeypatch.setattr(dcgan, "SHEET", 2)
    options = ["--size", "16", "--width", "2", "--batch-size", "4", "--frechet-samples", "4", "--data", str(folder)]
    options += ["--steps", "1", "--loss-scale", "128", "--out", str(tmp_path / "out")]
    device = dcgan.main(options)
    assert "on the GPU:" in capsys.readouterr().out
    host = dcgan.main([*options, "--device", "cpu"])
    for name, tolerance in (("fp32", 1e-4), ("mixed", 2e-2)):
        for curve in ("curve", "generator_curve"):
            assert getattr(device[name], curve)[0] == pytest.approx(getattr(host[name], curve)[0], rel=tolerance)
        assert np.isfinite([*device[name].curve, device[name].frechet_distance]).all()
        for role in ("weights", "masters", "gradients", "optimizer"):
            assert device[name].bytes[role] == host[name].bytes[role]


def test_learning_and_every_option(folder, tmp_path):
    """Discs, after a few seconds: the samples come closer to the pictures, under a static scale without masters."""
    options = ["--data", str(folder), "--policy", "no_master", "--loss-scale", "128", "--lr", "0.001"]
    few, many = (
        dcgan.main([*TINY, *options, "--epochs", epochs, "--out", str(tmp_path / epochs)]) for epochs in ("1", "12")
    )
    assert many["no_master"].loss_scale == 128
    assert len(many["fp32"].curve) == 12 * 5
    for name in ("fp32", "no_master"):
        assert many[name].frechet_distance < 0.8 * few[name].frechet_distance


def test_the_seed_repeats_a_run_bit_for_bit(folder, tmp_path):
    options = [*TINY, "--data", str(folder), "--steps", "2", "--out", str(tmp_path)]
    runs = [dcgan.main([*options, "--seed", seed])["mixed"] for seed in ("1", "1", "2")]
    curves = [run.generator_curve for run in runs]
    assert curves[0] == curves[1] != curves[2]
    assert runs[0].frechet_distance == runs[1].frechet_distance


def test_a_run_that_diverges_is_reported(folder, tmp_path, monkeypatch, capsys):
    real = dcgan.step

    def broken(*args):
        result = real(*args)
        if result.discriminator_loss.dtype == np.float32 and mp.precision.current_policy() is mp.FP32:
            raise FloatingPointError("the loss is nan")
        return result

    monkeypatch.setattr(dcgan, "step", broken)
    with pytest.raises(SystemExit) as stopped:
        dcgan.main([*TINY, "--data", str(folder), "--steps", "1", "--out", str(tmp_path / "out")])
    assert stopped.value.code == 1
    assert "fp32 stopped after 0 steps: the loss is nan" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"]["fp32"]["loss"] is None


def test_a_signal_ends_the_iteration_and_what_ran_is_reported(folder, tmp_path, monkeypatch, capsys):
    step, steps = dcgan.step, []

    def asked(*arguments):
        steps.append(1)
        if len(steps) == 1:
            signal.raise_signal(signal.SIGTERM)
        return step(*arguments)

    monkeypatch.setattr(dcgan, "step", asked)
    with pytest.raises(SystemExit) as ended:
        dcgan.main([*TINY, "--data", str(folder), "--out", str(tmp_path / "out")])
    assert ended.value.code == 128 + signal.SIGTERM
    assert "fp32 stopped after 1 steps: SIGTERM" in capsys.readouterr().out
    assert {"report.json", "report.png", "samples.png"} <= {p.name for p in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("name", ["killed", "SIGINT"])
def test_a_run_goes_on_as_if_it_had_never_stopped(name, folder, tmp_path, monkeypatch):
    """Losses, scale, samples, distance, and all that is kept at the end. It was in the middle of an epoch, of 5."""
    monkeypatch.setattr(dcgan, "SHEET", 4)
    options = [*TINY, "--data", str(folder), "--steps", "9", "--seed", "1"]
    monkeypatch.setattr(dcgan, "loss_scaler", lambda text: optim.DynamicLossScaler(2.0**14, growth_interval=2))
    whole = dcgan.main([*options, "--out", str(tmp_path / "whole"), "--checkpoint", str(tmp_path / "all")])
    options += ["--out", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "kept"), "--every", "3"]
    step, steps = dcgan.step, []

    def stopped(*arguments):
        steps.append(1)
        if len(steps) == 9 + 8:
            if name == "killed":
                raise MemoryError
            signal.raise_signal(signal.SIGINT)
        return step(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(dcgan, "step", stopped)
        with pytest.raises(MemoryError if name == "killed" else SystemExit):
            dcgan.main(options)
    kept = tmp_path / "kept" / "mixed.safetensors"
    assert len(checkpoint.peek(kept)["run"]["curve"]) == (6 if name == "killed" else 8)
    again = dcgan.main([*options, "--resume"])
    finished = dcgan.main([*options, "--resume"])
    timed = ("ms_per_step", "per_second")
    for label, run in whole.items():
        mine = {k: v for k, v in run.as_dict().items() if k not in timed}
        for other in (again, finished):
            assert {k: v for k, v in other[label].as_dict().items() if k not in timed} == mine
    assert len(whole["mixed"].scale_history) > 2
    for label in whole:
        one, other = (mp.load(tmp_path / where / f"{label}.safetensors") for where in ("all", "kept"))
        for changed in (one, other):
            changed.pop("options")
            for entry in timed:
                changed["run"].pop(entry)
        np.testing.assert_equal(one, other)
        sheets = [(tmp_path / where / f"samples_{label}_000009.png").read_bytes() for where in ("whole", "out")]
        assert sheets[0] == sheets[1]
    assert finished["mixed"].ms_per_step == again["mixed"].ms_per_step


def test_a_run_with_other_options_is_refused(folder, tmp_path, capsys):
    options = [*TINY, "--data", str(folder), "--out", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "kept")]
    dcgan.main([*options, "--steps", "1"])
    with pytest.raises(SystemExit) as ended:
        dcgan.main([*options, "--steps", "2", "--lr", "0.1", "--resume"])
    assert ended.value.code == 2
    assert "fp32.safetensors had steps 1, not 2, lr 0.0004, not 0.1: give it the same" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "65"], "--size 65: expected 16, 32, 64, 128 or 256"),
        (["--config", "paper", "--size", "64"], "the paper's networks take 128 x 128"),
        (["--batch-size", "1"], "--batch-size 1: expected at least 2"),
        (["--batch-size", "500"], "--batch-size 500 is more than the 40 pictures"),
        (["--frechet-samples", "1"], "--frechet-samples 1: expected at least 2"),
        (["--steps", "5", "--epochs", "5"], "not allowed with argument"),
        (["--data", "/nowhere"], "/nowhere does not exist"),
        (["--device", "tpu"], "expected a device, 'cpu' or 'gpu', got 'tpu'"),
        (["--seeds", "0"], "argument --seeds: expected a positive integer, got '0'"),
    ],
)
def test_refused_options(arguments, message, folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        dcgan.main(["--data", str(folder), "--frechet-samples", "20", "--out", str(tmp_path / "out"), *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_picture_that_cannot_be_read_is_named(folder, tmp_path, capsys):
    (folder / "broken.png").write_bytes((folder / "00.png").read_bytes()[:100])
    with pytest.raises(SystemExit) as stopped:
        dcgan.main([*TINY, "--data", str(folder), "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "broken.png cannot be read as a picture" in capsys.readouterr().err


def test_papers_data_is_in_colour(folder):
    options = types.SimpleNamespace(config="paper", size=128, data=folder, frechet_samples=4)
    with pytest.raises(ValueError, match="20 x 20 pixels, too few for 136 x 136"):
        dcgan.load(options)
    options.size = 64
    assert dcgan.load(options).pictures.shape == (40, 3, 68, 68)
