"""The language model on a made-up text: what it prints and writes, learns and refuses."""

import json

import numpy as np
import pytest

import tinymp as mp
from examples import lstm, measure
from examples.paper import language_model, program, text, trials
from tinymp import ops, optim

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]  # the program chooses its device itself


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(lstm, "WIDTH", 16)
    monkeypatch.setattr(lstm, "DROPOUT", 0.0)
    monkeypatch.setattr(language_model, "ROWS", 8)


@pytest.fixture
def novel(tmp_path):
    """Sentences whose last word follows from the first, which is more than bigrams can know."""
    rng = np.random.default_rng(0)
    names, tails = ["ann", "bob", "cid", "dot"], ["apple", "bread", "cake", "dates"]
    lines = [f"{names[i]} the {tails[i]}" for i in rng.integers(0, 4, 300)]
    path = tmp_path / "novel.txt"
    path.write_text("\n\n".join(lines), "utf-8")
    return path


def run(novel, tmp_path, *arguments):
    return language_model.main(["--data", str(novel), "--out", str(tmp_path / "out"), "--batch", "4", *arguments])


def test_report(novel, tmp_path, capsys):
    runs = run(novel, tmp_path, "--steps", "12")
    printed = capsys.readouterr().out
    for row in ("held-out perplexity", "gradients that are 0", "columns per second", *measure.ROLES, "steps skipped"):
        assert row in printed
    assert "novel.txt: 1,079 words to learn from, 120 held out, " in printed
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(written["runs"]) == {"fp32", "mixed"}
    fp32, mixed = written["runs"]["fp32"], written["runs"]["mixed"]
    for one in (fp32, mixed):
        assert len(one["curve"]) == 12
        assert np.isfinite(one["curve"]).all()
        assert 1 < one["held-out perplexity"] < 40
        assert sum(one["gradient_exponents"]) + one["zero_gradients"] > 0
    # what mixed precision halves, and pays for with the masters (MPT section 3.1); word numbers are not halved
    for role in ("weights", "gradients", "activations"):
        assert mixed["bytes"][role] <= 0.55 * fp32["bytes"][role]
    assert mixed["bytes"]["masters"] == fp32["bytes"]["weights"]
    assert mixed["curve"][0] == pytest.approx(fp32["curve"][0], rel=1e-3)
    assert (fp32["loss_scale"], mixed["loss_scale"]) == (1, runs["mixed"]["loss_scale"])


def test_on_a_gpu(gpu, novel, tmp_path, capsys):
    """The GPU is the default where one works; the first losses are the CPU's up to rounding."""
    device = run(novel, tmp_path, "--steps", "1")
    assert "on the GPU:" in capsys.readouterr().out
    host = run(novel, tmp_path, "--steps", "1", "--device", "cpu")
    for name, tolerance in (("fp32", 1e-5), ("mixed", 1e-3)):
        assert device[name]["curve"][0] == pytest.approx(host[name]["curve"][0], rel=tolerance)
        assert device[name]["bytes"] == host[name]["bytes"]


def test_the_seed_repeats_a_run_bit_for_bit(novel, tmp_path):
    curves = [run(novel, tmp_path, "--steps", "4", "--seed", seed)["mixed"]["curve"] for seed in ("1", "1", "2")]
    assert curves[0] == curves[1] != curves[2]


def test_the_step(novel):
    """The losses of the first steps, by a loop of its own: the state goes on, and starts anew with the text."""
    batch = len(text.corpus(str(novel), lstm.VOCABULARY).training) // 20
    task = language_model.LanguageModeling(batch, str(novel))
    one, _ = program.run(task, mp.FP32, optim.NoLossScaler(), seed=3, steps=5, device="cpu", lr=0.03)
    corpus = task.corpus
    mp.manual_seed(3)
    model = lstm.LanguageModel(len(corpus.vocabulary))
    model.start_with(corpus.training)
    optimizer = optim.Adam(model.parameters(), betas=(0.9, 0.99))
    inputs, targets = text.columns(corpus.training, batch, 8)
    assert len(inputs) // 8 == 2  # steps per epoch
    for step in range(5):
        if step % 2 == 0:
            h = c = ops.zeros((2, batch, 16))
        rows = slice(8 * (step % 2), 8 * (step % 2) + 8)
        y, (h, c) = model.lstm(model.embedding(mp.tensor(inputs[rows])), (h, c))
        h, c = h.detach(), c.detach()
        logits = ops.linear(y, model.embedding.weight, model.output.bias).flatten(0, 1)
        loss = ops.cross_entropy(logits, mp.tensor(targets[rows].reshape(-1)))
        assert one.curve[step] == pytest.approx(loss.item(), rel=1e-6)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 0.03 * (1 if step == 0 else (1 + np.cos(np.pi * (step - 1) / 4)) / 2)
        optimizer.step()
        optimizer.zero_grad()


def test_zeros():
    """Counts what ops write as gradients: here dx of ReLU (one of 3 is 0) and of the mean, not that of the reshape."""
    x, zeros = mp.tensor([1.0, -1.0, 2.0], requires_grad=True), trials.Zeros()
    loss = ops.relu(x.reshape(3, 1)).mean()
    with mp.observe(zeros):
        loss.backward()
    assert (zeros.zeros, zeros.values) == (1, 6)


def test_unscaled_gradients_of_a_mean_over_many_words_underflow():
    """p / N below 2^-25 is 0 in FP16; times 128 it is not (MPT section 4.5)."""
    words = np.random.default_rng(0).integers(0, 500, (8, 16))
    lost = {}
    for policy, scale in ((mp.FP32, 1), (mp.MIXED, 1), (mp.MIXED, 128)):
        mp.manual_seed(0)
        model, zeros = policy.cast(lstm.LanguageModel(500)), trials.Zeros()
        with mp.no_grad():
            model.output.bias[0] = 14.0  # leaves about e^-14 to each other word; here N = 128
        loss, _ = lstm.loss_of(model, words, words, None)
        with mp.observe(zeros):
            (loss * scale).backward()
        lost[policy.name, scale] = zeros.zeros / zeros.values
    assert lost["FP32", 1] < 0.01
    assert lost["MIXED", 1] > 0.3
    assert lost["MIXED", 128] < 0.01


def test_a_run_that_diverges_is_a_result(novel, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(novel, tmp_path, "--lr", "1e38")
    assert stopped.value.code == 1
    assert "fp32 stopped after" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"]["fp32"]["stopped"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr", "nan"], "argument --lr: expected a positive number that FP32 can hold, got 'nan'"),
        (["--device", "tpu"], "expected a device, 'cpu' or 'gpu', got 'tpu'"),
        (["--data", "/nowhere/at.txt"], "/nowhere/at.txt"),
        (["--batch", "500"], "expected at least 500 * 8 + 1 = 4001 words"),
    ],
)
def test_refused(arguments, message, novel, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(novel, tmp_path, *arguments)
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_empty_text_is_refused(tmp_path, capsys):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(SystemExit) as stopped:
        run(tmp_path / "empty.txt", tmp_path)
    assert stopped.value.code == 2
    assert "empty.txt: expected a longer text, got 0" in capsys.readouterr().err
