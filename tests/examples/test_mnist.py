"""The main job on a few steps: what it prints and writes, and what it refuses."""

import contextlib
import itertools
import json
import signal

import numpy as np
import pytest

import tinymp as mp
from examples import datasets, dcgan, language_model, mnist, report
from tinymp import checkpoint, ops, optim
from tinymp.backend.extras import hint

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]  # the program chooses its device itself

FEW = ["--steps", "3", "--batch", "16"]


@pytest.fixture
def few_pixels(monkeypatch):
    """96 training images and 8 others, of 8 x 8 pixels."""
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((104, 1, 8, 8)).astype("float32"), rng.integers(0, 4, 104)
    data = images[:96], labels[:96], images[96:], labels[96:]
    monkeypatch.setattr(datasets, "mnist", lambda *_: data)
    return data


def test_report(tmp_path, capsys):
    mnist.main([*FEW, "--out", str(tmp_path / "new" / "folder")])
    printed = capsys.readouterr().out
    for row in (
        "test accuracy",
        "final loss",
        "ms per step",
        "images per second",
        *report.ROLES,
        "steps skipped",
        "scale",
    ):
        assert row in printed
    written = json.loads((tmp_path / "new" / "folder" / "report.json").read_text())
    assert set(written["runs"]) == {"fp32", "mixed"}
    fp32, mixed = written["runs"]["fp32"], written["runs"]["mixed"]
    for run in (fp32, mixed):
        assert len(run["curve"]) == 3
        assert np.isfinite(run["curve"]).all()
        assert 0 <= run["accuracy"] <= 1
        assert run["ms_per_step"] > 0
        assert run["per_second"] == pytest.approx(16 / run["ms_per_step"] * 1000)
        assert sum(run["gradient_exponents"]) + run["zero_gradients"] > 0
        assert list(run["bytes"]) == list(report.ROLES)
    assert written["environment"]["backend"].startswith("cpu")
    assert (tmp_path / "new" / "folder" / "report.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    # mixed precision halves what the paper says it halves, and pays for it with the masters (MPT section 3.1)
    for role in ("weights", "gradients", "activations"):
        assert mixed["bytes"][role] <= 0.55 * fp32["bytes"][role]
    assert fp32["bytes"]["masters"] == 0
    assert mixed["bytes"]["masters"] == pytest.approx(fp32["bytes"]["weights"], rel=0.01)
    assert mixed["bytes"]["optimizer"] == fp32["bytes"]["optimizer"]
    # the same start and the same batches: before rounding sets in, the first losses agree
    assert mixed["curve"][0] == pytest.approx(fp32["curve"][0], rel=1e-2)
    assert mixed["loss_scale"] > 1 == fp32["loss_scale"]


def test_on_a_gpu(gpu, few_pixels, monkeypatch, tmp_path, capsys):
    """The GPU is the default where one works; the first losses are the CPU's up to rounding."""
    x, y, *test = few_pixels
    monkeypatch.setattr(datasets, "mnist", lambda *_: (x[..., :4, :4], y, test[0][..., :4, :4], test[1]))
    options = ["--steps", "2", "--batch", "4", "--loss-scale", "1024", "--out", str(tmp_path)]
    device = mnist.main(options)
    assert "on the GPU:" in capsys.readouterr().out
    host = mnist.main([*options, "--device", "cpu"])
    assert "on the CPU:" in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["settings"]["device"] == "cpu"
    for name, tolerance in (("fp32", 1e-5), ("mixed", 1e-2)):
        assert device[name].curve[0] == pytest.approx(host[name].curve[0], rel=tolerance)
        assert np.isfinite(device[name].curve).all()
        assert device[name].bytes == host[name].bytes
        assert sum(device[name].gradient_exponents) == pytest.approx(sum(host[name].gradient_exponents), rel=1e-2)


def test_a_gpu_that_does_not_work_is_named(monkeypatch, capsys):
    def refuse():
        raise RuntimeError("device 'gpu' does not work here: CuPy is not installed")

    monkeypatch.setattr(mp.backend.gpu, "require", refuse)
    with pytest.raises(SystemExit) as stopped:
        mnist.main(["--device", "gpu"])
    assert stopped.value.code == 2
    assert "CuPy is not installed" in capsys.readouterr().err


def test_idx_data_every_option_and_learning(digits, tmp_path):
    options = ["--data", str(digits), "--policy", "no_master", "--loss-scale", "128", "--epochs", "4", "--batch", "16"]
    runs = mnist.main([*options, "--shift", "0", "--seed", "3", "--device", "cpu", "--out", str(tmp_path / "out")])
    assert set(runs) == {"fp32", "no_master"}
    assert runs["no_master"].loss_scale == 128
    assert runs["no_master"].bytes["masters"] == 0
    for run in runs.values():
        assert run.accuracy > 0.9


def test_the_seed_repeats_a_run_bit_for_bit(few_pixels, tmp_path):
    curves = [mnist.main([*FEW, "--out", str(tmp_path), "--seed", seed])["mixed"].curve for seed in ("1", "1", "2")]
    assert curves[0] == curves[1] != curves[2]


@pytest.mark.parametrize("program", [mnist, dcgan, language_model])
@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8_hopper"])
def test_a_policy_without_its_package(program, name, capsys, monkeypatch):
    """Where ml_dtypes is missing there is no BF16, and nothing that is emulated in it."""
    if mp.BF16 is not None:
        assert program.parser().parse_args(["--policy", name]).policy == name
    monkeypatch.setattr(mp, "BF16", None)
    others = {name: p for name, p in mp.POLICIES.items() if name not in ("BF16", "FP8", "FP8_HOPPER")}
    monkeypatch.setattr(mp, "POLICIES", others)
    with pytest.raises(SystemExit):
        program.parser().parse_args(["--policy", name])
    assert f"argument --policy: {name} needs ml_dtypes on the CPU: {hint('bf16')}" in capsys.readouterr().err
    assert program.parser().parse_args([]).policy == "mixed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "argument --epochs: expected a positive integer, got '0'"),
        (["--loss-scale", "big"], "argument --loss-scale: expected none, dynamic or a positive number, got 'big'"),
        (["--loss-scale", "-1"], "expected none, dynamic or a positive number, got '-1'"),
        (["--lr", "nan"], "argument --lr: expected a positive number, got 'nan'"),
        (["--policy", "fp7"], "argument --policy: expected one of tf32, mixed, "),
        (["--policy", "fp32"], ", got 'fp32'"),
        (["--device", "tpu"], "expected a device, 'cpu' or 'gpu', got 'tpu'"),
        (["--data", "/nowhere"], "/nowhere"),
        (["--batch", "5000"], "--batch 5000 is more than the 4000 training images"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_refused_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        mnist.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_truncated_data_is_named(digits, capsys):
    victim = digits / "train-images-idx3-ubyte"
    victim.write_bytes(victim.read_bytes()[:-10])
    with pytest.raises(SystemExit):
        mnist.main(["--data", str(digits)])
    assert str(victim) in capsys.readouterr().err


def test_data_with_nan_ends_with_the_reason(few_pixels, tmp_path, capsys):
    """A loss that is not finite in FP32 is not an overflow: the run stops and names the data."""
    few_pixels[0][:] = np.nan
    with pytest.raises(SystemExit) as stopped:
        mnist.main([*FEW, "--out", str(tmp_path)])
    assert stopped.value.code == 1
    printed = capsys.readouterr().out
    assert "fp32 stopped after" in printed
    assert "`input` of conv2d" in printed
    assert json.loads((tmp_path / "report.json").read_text())["runs"]["fp32"]["curve"][0] is None


def test_an_ablation_that_diverges_is_a_result(few_pixels, tmp_path, capsys):
    few_pixels[0][:] *= 1e4  # sums of squares overflow in FP16
    runs = mnist.main([*FEW, "--policy", "pure_fp16", "--loss-scale", "none", "--out", str(tmp_path)])
    assert runs["fp32"].stopped is None
    assert "pure_fp16 stopped after" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_step_and_what_ran_is_reported(name, few_pixels, tmp_path, monkeypatch, capsys):
    number = getattr(signal, name)
    monkeypatch.setattr(report.Run, "count_exponents", lambda *_: signal.raise_signal(number))  # in the first step
    with pytest.raises(SystemExit) as ended:
        mnist.main([*FEW, "--out", str(tmp_path)])
    assert ended.value.code == 128 + number
    assert f"fp32 stopped after 1 steps: {name}" in capsys.readouterr().out
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert list(runs) == ["fp32"] and len(runs["fp32"]["curve"]) == 1
    assert (tmp_path / "report.png").exists()


# ---------------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def kept(few_pixels, tmp_path, monkeypatch):
    """Runs the program on few digits; returns its runs, and the weights that it judged, by policy."""

    def run(*arguments):
        weights = {}

        def accuracy(model, *others, judge=mnist.accuracy):
            weights[mp.current_policy().name] = model.state_dict()
            return judge(model, *others)

        options = ["--batch", "24", "--device", "cpu", "--out", str(tmp_path / "out")]
        with monkeypatch.context() as patched:
            patched.setattr(mnist, "accuracy", accuracy)
            return mnist.main([*options, *map(str, arguments)]), weights

    return run


@contextlib.contextmanager
def ends_at(call, what):
    """Within the block `what` happens as the so-manieth loss is made, of all runs."""
    calls, loss = itertools.count(1), ops.cross_entropy

    def cross_entropy(*arguments):
        if next(calls) == call:
            what()
        return loss(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ops, "cross_entropy", cross_entropy)
        yield


def same(a, b):
    """Runs and weights are the same but for what they took; NaN is NaN."""
    (runs, weights), (others, weights_of_others) = a, b
    assert list(runs) == list(others)
    timed = ("ms_per_step", "per_second")
    for label in runs:
        mine, theirs = ({k: v for k, v in r.as_dict().items() if k not in timed} for r in (runs[label], others[label]))
        assert mine == theirs
    assert list(weights) == list(weights_of_others)
    for policy, state in weights.items():
        for name, value in state.items():
            np.testing.assert_array_equal(value, weights_of_others[policy][name])


@pytest.mark.parametrize("name", ["killed", "SIGTERM"])
def test_a_run_goes_on_as_if_it_had_never_stopped(name, kept, tmp_path):
    """In the middle of an epoch, which has 4 steps."""
    options = ["--steps", 7, "--checkpoint", tmp_path / "kept", "--every", 3]

    def end():
        if name == "killed":
            raise MemoryError
        signal.raise_signal(getattr(signal, name))

    with ends_at(7 + 6, end), pytest.raises(MemoryError if name == "killed" else SystemExit):
        kept(*options)
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["fp32.safetensors", "mixed.safetensors"]
    curve = checkpoint.peek(tmp_path / "kept" / "mixed.safetensors")["run"]["curve"]
    assert len(curve) == (3 if name == "killed" else 6)
    with ends_at(7 - len(curve) + 1, lambda: pytest.fail("more steps than were left")):
        again = kept(*options, "--resume")
        same(again, kept(*options, "--resume"))  # finished: it reports
    assert again[0]["mixed"].curve[: len(curve)] == curve
    assert all(run.ms_per_step > 0 for run in again[0].values())
    same(kept("--steps", 7), again)


def test_of_a_run_that_diverges_the_last_good_state_is_kept(kept, tmp_path, monkeypatch, capsys):
    """Weights are infinite some steps before it is stopped."""
    options = ["--steps", 6, "--checkpoint", tmp_path / "kept", "--every", 1]
    made = []

    def adam(*arguments, make=optim.Adam, **others):
        made.append(make(*arguments, **others))
        return made[-1]

    with monkeypatch.context() as patched:
        patched.setattr(optim, "Adam", adam)
        with ends_at(3, lambda: made[0].param_groups[0].update(lr=3e38)), pytest.raises(SystemExit) as ended:
            kept(*options)
    assert ended.value.code == 1 and "fp32 stopped after 5 steps" in capsys.readouterr().out
    assert len(checkpoint.peek(tmp_path / "kept" / "fp32.safetensors")["run"]["curve"]) == 2
    same(kept("--steps", 6), kept(*options, "--resume"))  # nothing spoils it now


def test_a_run_that_diverges_goes_on_to_the_same_end(kept, tmp_path, capsys):
    options = ["--steps", 4, "--lr", "3e38", "--checkpoint", tmp_path / "kept", "--every", 1]
    for more in ((), ("--resume",)):
        with pytest.raises(SystemExit) as ended:
            kept(*options, *more)
        assert ended.value.code == 1 and "fp32 stopped after 3 steps: the loss is" in capsys.readouterr().out


def test_a_checkpoint_that_cannot_go_on_is_refused(kept, tmp_path, capsys):
    options = ["--steps", 2, "--checkpoint", tmp_path / "kept"]
    kept(*options)
    for more, message in (
        (["--steps", 3], "fp32.safetensors had steps 2, not 3: give it the same options, or leave --resume out"),
        (["--loss-scale", 8], "mixed.safetensors had loss_scale dynamic, not 8"),
        (["--policy", "no_master", "--seed", 1, "--lr", "0.1"], "had lr 0.002, not 0.1, seed 0, not 1"),
    ):
        with pytest.raises(SystemExit) as ended:
            kept(*options, *more, "--resume")
        assert ended.value.code == 2 and message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        kept("--resume")
    assert "--checkpoint DIR" in capsys.readouterr().err
    path = tmp_path / "kept" / "mixed.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(SystemExit, match=r"--resume: load: .*mixed\.safetensors is not as it was written"):
        kept(*options, "--resume")


def test_a_second_signal_ends_at_once(few_pixels, monkeypatch):
    def twice(*_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(report.Run, "count_exponents", twice)
    with pytest.raises(KeyboardInterrupt):
        mnist.main(FEW)


def test_shifted():
    images = np.arange(2 * 1 * 4 * 5, dtype="float32").reshape(2, 1, 4, 5)
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(datasets.shifted(images, 0, generator), images)
    seen = {datasets.shifted(images, 1, generator)[0].tobytes() for _ in range(200)}
    padded = np.pad(images[0, 0], 1, mode="edge")
    assert seen == {padded[i : i + 4, j : j + 5].tobytes() for i in range(3) for j in range(3)}
