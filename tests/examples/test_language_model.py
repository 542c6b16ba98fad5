"""The language model on a made-up text: what it prints and writes, learns and refuses; and bigLSTM's size."""

import itertools
import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import tinymp as mp
from examples import measure
from examples.paper import language_model, program, text, trials
from examples.paper.language_model import CONFIGS, LanguageModel
from tinymp import nn, ops, optim

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]  # the program chooses its device itself

TINY = replace(
    CONFIGS["small"], vocabulary=40, embedding=16, hidden=16, dropout=0.0, lr=3e-2, batch=4, bptt=8, epochs=9
)
SAMPLED = replace(TINY, hidden=24, projection=16, negatives=8, optimizer="adagrad", lr=0.05, loss_scale="128")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setitem(CONFIGS, "small", TINY)
    monkeypatch.setitem(CONFIGS, "large-batch", TINY)
    monkeypatch.setitem(CONFIGS, "sampled", SAMPLED)


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
    return language_model.main(["--data", str(novel), "--out", str(tmp_path / "out"), "--words", "20", *arguments])


def test_report(novel, tmp_path, capsys):
    runs = run(novel, tmp_path, "--steps", "12")
    printed = capsys.readouterr().out
    for row in (
        "held-out perplexity",
        "words per second",
        *measure.ROLES,
        "steps skipped",
        "scale",
    ):
        assert row in printed
    assert "perplexity of interpolated Kneser-Ney bigrams:" in printed
    assert "written by the last model" in printed
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(written["runs"]) == {"fp32", "mixed"}
    fp32, mixed = written["runs"]["fp32"], written["runs"]["mixed"]
    for one in (fp32, mixed):
        assert len(one["curve"]) == 12
        assert np.isfinite(one["curve"]).all()
        assert 1 < one["scores"]["perplexity"] < 40
        assert one["units"] == 12 * 4 * 8
        assert list(one["bytes"]) == list(measure.ROLES)
        assert sum(one["gradient_exponents"]) + one["zero_gradients"] > 0
    assert (tmp_path / "out" / "report.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    # what mixed precision halves, and pays for with the masters (MPT section 3.1); word numbers are not halved
    for role in ("weights", "gradients", "activations"):
        assert mixed["bytes"][role] <= 0.55 * fp32["bytes"][role]
    assert mixed["bytes"]["masters"] == fp32["bytes"]["weights"]
    assert f"{fp32['bytes']['weights'] // 4:,} parameters" in written["settings"]["about"]
    assert mixed["curve"][0] == pytest.approx(fp32["curve"][0], rel=1e-3)
    assert (fp32["loss_scale"], mixed["loss_scale"]) == (1, runs["mixed"].loss_scale)


def test_on_a_gpu(gpu, novel, tmp_path, capsys):
    """The GPU is the default where one works; the first losses are the CPU's up to rounding."""
    options = ["--steps", "1", "--words", "2", "--batch", "8", "--bptt", "4"]
    device = run(novel, tmp_path, *options)
    assert "on the GPU:" in capsys.readouterr().out
    host = run(novel, tmp_path, *options, "--device", "cpu")
    for name, tolerance in (("fp32", 1e-5), ("mixed", 1e-3)):
        assert device[name].curve[0] == pytest.approx(host[name].curve[0], rel=tolerance)
        assert device[name].score == pytest.approx(host[name].score, rel=0.1)
        assert device[name].bytes == host[name].bytes


def test_it_learns_more_than_bigrams(novel, tmp_path, monkeypatch):
    monkeypatch.setitem(CONFIGS, "small", replace(TINY, embedding=32, hidden=32, batch=16, epochs=16))
    runs = run(novel, tmp_path)
    baseline = json.loads((tmp_path / "out" / "report.json").read_text())["settings"]["baselines"][
        "interpolated Kneser-Ney bigrams"
    ]
    for one in runs.values():
        assert one.score < 0.9 * baseline
    assert runs["mixed"].score == pytest.approx(runs["fp32"].score, rel=0.1)


def test_a_sampled_softmax_learns(novel, tmp_path):
    runs = run(novel, tmp_path, "--config", "sampled", "--batch", "8", "--epochs", "10")
    assert runs["mixed"].loss_scale == 128
    for one in runs.values():
        assert one.score < 2.5  # words as frequent as they are, one after another: 7.9
        assert one.bytes["gradients"] < one.bytes["weights"]  # those of embedding and softmax are rows


def test_the_seed_repeats_a_run_bit_for_bit(novel, tmp_path):
    curves = [run(novel, tmp_path, "--steps", "4", "--seed", seed)["mixed"].curve for seed in ("1", "1", "2")]
    assert curves[0] == curves[1] != curves[2]


def test_the_step(novel, tmp_path):
    """The losses of the first steps, by a loop of its own: the state goes on, and starts anew with the text."""
    words = len(text.corpus(str(novel), TINY.vocabulary).training)
    arguments = ["--data", str(novel), "--batch", str(words // 20), "--steps", "5"]
    task = language_model.TASK(language_model.parser().parse_args(arguments))
    one, _ = program.run(task, mp.FP32, optim.NoLossScaler(), 3, "cpu")
    config, corpus = task.config, task.corpus
    mp.manual_seed(3)
    model = LanguageModel(config)
    counts = np.bincount(corpus.training, minlength=config.vocabulary) + 1.0
    with mp.no_grad():
        model.output.bias.copy_(np.log(counts / counts.sum()))
    optimizer = optim.Adam(model.parameters(), betas=(0.9, 0.99))
    inputs, targets = text.columns(corpus.training, config.batch, 8)
    assert len(inputs) // 8 == 2  # steps per epoch
    for step in range(5):
        if step % 2 == 0:
            h = c = ops.zeros((2, config.batch, 16))
        rows = slice(8 * (step % 2), 8 * (step % 2) + 8)
        y, (h, c) = model.lstm(model.embedding(mp.tensor(inputs[rows])), (h, c))
        h, c = h.detach(), c.detach()
        loss = ops.cross_entropy(
            ops.linear(y, model.embedding.weight, model.output.bias).reshape(-1, config.vocabulary),
            mp.tensor(targets[rows].reshape(-1)),
        )
        assert one.curve[step] == pytest.approx(loss.item(), rel=1e-6)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.param_groups[0]["lr"] = config.lr * (1 if step == 0 else (1 + np.cos(np.pi * (step - 1) / 4)) / 2)
        optimizer.step()
        optimizer.zero_grad()


def test_perplexity():
    """In pieces, state carried over, as in one; -ln p is averaged over words, dropout is off."""
    mp.manual_seed(0)
    model = LanguageModel(replace(TINY, dropout=0.5)).eval()
    words = np.random.default_rng(0).integers(0, 40, (24, 3))
    inputs, targets = words[:-1], words[1:]
    with mp.no_grad():
        y, _ = model(mp.tensor(inputs))
        expected = float(np.exp(model.loss(y, mp.tensor(targets)).item()))
    for bptt in (1, 5, 23, 100):
        assert language_model.perplexity(model, inputs, targets, bptt) == pytest.approx(expected, rel=1e-5)


def test_perplexity_in_rows(monkeypatch):
    mp.manual_seed(0)
    model = LanguageModel(SAMPLED).eval()
    words = np.random.default_rng(0).integers(0, 40, (8, 3))
    whole = language_model.perplexity(model, words[:-1], words[1:], 7)
    monkeypatch.setattr(language_model, "LOGITS", 40 * 3 * 2)  # two steps at a time through the full softmax
    assert language_model.perplexity(model, words[:-1], words[1:], 7) == pytest.approx(whole, rel=1e-6)


def test_lines(novel):
    mp.manual_seed(0)
    vocabulary = text.corpus(str(novel), 40).vocabulary
    model = LanguageModel(replace(TINY, vocabulary=len(vocabulary))).eval()
    with mp.no_grad():
        model.output.bias[0] = 50.0  # <unk> would be almost certain
    texts = [
        language_model.lines(model, vocabulary, 30, t, seed, mp.FP32) for t, seed in ((1.0, 0), (1.0, 0), (1.0, 1))
    ]
    assert texts[0] == texts[1] != texts[2]
    assert text.UNKNOWN not in texts[0]
    with mp.no_grad():
        model.output.bias[vocabulary.index["bread"]] = 2.0
    cold, warm = (language_model.lines(model, vocabulary, 60, t, 0, mp.FP32).count("bread") for t in (0.1, 100.0))
    assert cold == 60
    assert warm < 15


# ----------------------------------------------------------------------------------------------------- with and without


def test_compare(novel, tmp_path, capsys):
    runs = run(novel, tmp_path, "--compare", "--seeds", "2", "--steps", "8")
    assert list(runs) == ["fp32", "fp32, seed 1", "mixed, none", "mixed, 128", "mixed, dynamic"]
    assert [one.loss_scale for one in runs.values()] == [1, 1, 1, 128, 65536]
    first = [one.curve[0] for label, one in runs.items() if "seed" not in label]
    assert first == pytest.approx([first[0]] * 4, rel=1e-3)  # the same start
    printed = capsys.readouterr().out
    assert "2 seeds of FP32:" in printed
    for label in ("mixed, none:", "mixed, 128:", "mixed, dynamic:"):
        assert label in printed
    assert set(json.loads((tmp_path / "out" / "report.json").read_text())["runs"]) == set(runs)
    assert (tmp_path / "out" / "report.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_zeros():
    """Counts what ops write as gradients: here dx of ReLU (one of 3 is 0) and of the mean, not that of the reshape."""
    x, zeros = mp.tensor([1.0, -1.0, 2.0], requires_grad=True), trials.Zeros()
    loss = ops.relu(x.reshape(3, 1)).mean()
    with mp.observe(zeros):
        loss.backward()
    assert (zeros.zeros, zeros.values) == (1, 6)


def test_unscaled_gradients_of_a_mean_over_many_words_underflow():
    """p / N below 2^-25 is 0 in FP16; times 128 it is not (MPT section 4.5)."""
    config = replace(TINY, vocabulary=500)
    words = np.random.default_rng(0).integers(0, 500, (8, 16))
    lost = {}
    for policy, scale in ((mp.FP32, 1), (mp.MIXED, 1), (mp.MIXED, 128)):
        mp.manual_seed(0)
        model, zeros = policy.cast(LanguageModel(config)), trials.Zeros()
        with mp.no_grad():
            model.output.bias[0] = 14.0  # leaves about e^-14 to each other word; here N = 128
        y, _ = model(mp.tensor(words))
        loss = model.loss(y, mp.tensor(words))
        with mp.observe(zeros):
            (loss * scale).backward()
        lost[policy.name, scale] = zeros.zeros / zeros.values
    assert lost["FP32", 1] < 0.01
    assert lost["MIXED", 1] > 0.3
    assert lost["MIXED", 128] < 0.01


def test_a_run_that_diverges_is_a_result(novel, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(CONFIGS, "small", replace(TINY, dropout=0.0, lr=1e38))
    with pytest.raises(SystemExit) as stopped:
        run(novel, tmp_path)
    assert stopped.value.code == 1
    assert "fp32 stopped after" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"]["fp32"]["stopped"]


# -------------------------------------------------------------------------------------------------------------- bigLSTM


@pytest.fixture
def weightless(monkeypatch):
    """Parameters have their shapes, and all share the memory of one zero."""

    def parameter(*shape, normalisation=False):
        p = nn.Parameter(np.zeros((), np.float32), normalisation=normalisation)
        mp.Tensor.array.__set__(p, np.broadcast_to(p.array, shape))  # p.array = ... refuses such arrays
        return p

    for module in (nn.layers, nn.recurrent):
        monkeypatch.setattr(module, "parameter", parameter)
    for name in ("uniform_", "normal_", "kaiming_uniform_", "zeros_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *args, **kwargs: tensor)


def test_biglstm_has_the_paper_s_size(weightless):
    """MPT section 4.5; Jozefowicz et al. (2016) give 1.8 billion parameters for LSTM-8192-1024."""
    config = CONFIGS["bigLSTM"]
    tracemalloc.start()
    model = LanguageModel(config)
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    expected = {"embedding.weight": (793_471, 1024), "output.weight": (793_471, 1024), "output.bias": (793_471,)}
    for layer in range(2):
        for name, shape in (("weight_ih", (32_768, 1024)), ("weight_hh", (32_768, 1024)), ("weight_hr", (1024, 8192))):
            expected[f"lstm.{name}_l{layer}"] = shape
        expected |= {f"lstm.bias_{which}_l{layer}": (32_768,) for which in ("ih", "hh")}
    assert shapes == expected
    assert config.parameters == sum(int(np.prod(shape)) for shape in shapes.values()) == 1_776_948_095
    assert allocated < 1_000_000
    assert (model.output.negatives, config.optimizer, config.loss_scale) == (8192, "adagrad", "128")


@pytest.mark.parametrize(
    "config",
    [TINY, SAMPLED, *(replace(c, layers=n) for c, n in itertools.product((TINY, SAMPLED), (1, 3)))],
    ids=str,
)
def test_the_number_of_parameters(config):
    config = replace(config, dropout=0.0)
    assert config.parameters == sum(p.array.size for p in LanguageModel(config).parameters())


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lr", "nan"], "argument --lr: expected a positive number that FP32 can hold, got 'nan'"),
        (["--temperature", "0"], "argument --temperature: expected a positive number that FP32 can hold, got '0'"),
        (["--config", "huge"], "argument --config: invalid choice: 'huge'"),
        (["--device", "tpu"], "expected a device, 'cpu' or 'gpu', got 'tpu'"),
        (["--data", "/nowhere/at.txt"], "/nowhere/at.txt"),
        (["--vocabulary", "1"], "at least 2, <unk> and one word, got 1"),
        (["--batch", "500"], "novel.txt, training part: expected at least 500 * 8 + 1 = 4001 words"),
        (["--batch", "120", "--bptt", "1"], "novel.txt, held-out part: expected at least 120 * 1 + 1 = 121 words"),
        (["--config", "sampled", "--vocabulary", "5"], "draws 8 negatives, more than the --vocabulary of 5 words"),
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


def test_a_model_larger_than_memory_is_refused(novel, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(language_model, "physical_memory", lambda: 8 * 2.0**30)
    with pytest.raises(SystemExit) as stopped:
        run(novel, tmp_path, "--config", "bigLSTM")
    assert stopped.value.code == 2
    message = "bigLSTM has 1,776,948,095 parameters, for which 26 GiB of memory are needed; this machine has 8 GiB"
    assert message in " ".join(capsys.readouterr().err.split())
    monkeypatch.undo()
    assert language_model.physical_memory() > 2**28


def test_words_out_of_the_vocabulary_become_unk(novel, tmp_path, capsys):
    runs = run(novel, tmp_path, "--vocabulary", "5", "--steps", "3")
    assert "5 different ones" in capsys.readouterr().out
    assert all(np.isfinite(one.score) for one in runs.values())
