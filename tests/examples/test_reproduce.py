"""The paper's tables on a few steps: what is run, printed, written and drawn, and what is refused."""

import functools
import json
import re

import pytest

from examples import paper
from examples.paper import formats, reproduce, speech, table1, table2, text, trials
from tinymp.checkpoint import writing

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.cpu


@pytest.fixture
def here(monkeypatch):
    """All runs in this process, without the start of new ones; pictures have few pixels."""
    write = writing.write_figure
    monkeypatch.setattr(writing, "write_figure", lambda path, picture, dpi: write(path, picture, 20))
    monkeypatch.setattr(reproduce, "finished", lambda todo, _: ((cell, reproduce.run(cell)) for cell in todo))


def few(folder, *more):
    return ["--seeds", "1", "--steps", "2", "--batch", "4", "--device", "cpu", "--out", str(folder / "out"), *more]


def test_table1(digits, tmp_path, capsys):
    """In processes of their own, as users run it."""
    reproduce.main(["table1", "--data", str(digits), "--networks", "VGG-D", *few(tmp_path, "--seeds", "2")])
    printed = capsys.readouterr().out
    assert re.search(r"\| VGG-D \| .* \| 2 \| 65.4 \| 65.43 \| – \| ", printed)
    written = json.loads((tmp_path / "out" / "table1.json").read_text())
    assert len(written["runs"]) == 6
    for run in written["runs"]:
        assert 0 <= run["score"] <= 1
        assert len(run["curve"]) == 2
        assert run["seconds"] > 0
    by = {(r["setting"], r["seed"]): r for r in written["runs"]}
    fp32, mixed = by["FP32", 0], by["mixed, dynamic scale", 0]
    assert mixed["curve"][0] == pytest.approx(fp32["curve"][0], rel=1e-2)  # the same start and the same batch
    assert by["FP32", 1]["curve"][0] != fp32["curve"][0]
    assert mixed["bytes"]["activations"] < 0.6 * fp32["bytes"]["activations"]
    assert by["mixed, not scaled", 0]["loss_scale"] == 1 < mixed["loss_scale"]
    text = (tmp_path / "out" / "table1.md").read_text()
    assert "`python -m examples.paper.reproduce table1 --data" in text and "| 0, 1 | " in text
    assert (tmp_path / "out" / "table1.png").read_bytes()[:4] == b"\x89PNG"


def test_table2(digits, tmp_path, here, monkeypatch, capsys):
    pytest.importorskip("skimage")
    monkeypatch.setattr(table2, "TESTED", 2)
    monkeypatch.setattr(table2, "BEGINNING", 1)
    monkeypatch.setattr(table2, "SHOWN", 2)
    reproduce.main(["table2", "--data", str(digits), *few(tmp_path, "--steps", "1", "--batch", "2")])
    printed = capsys.readouterr().out
    assert re.search(r"\| Multibox SSD \| .* \| 76.9 \| diverges \| 77.1 \| – \| ", printed)
    written = json.loads((tmp_path / "out" / "table2.json").read_text())
    assert len(written["runs"]) == 8
    (fp32,) = (r for r in written["runs"] if (r["name"], r["setting"]) == ("Multibox SSD", "FP32"))
    seen = fp32["kept"]["activation gradients"]
    assert sum(seen["exponents"]) > 10_000
    assert seen["lost"]["1.0"]["zero"] > seen["lost"]["8.0"]["zero"] > 0
    for picture in ("table2", "figure3", "boxes"):
        assert (tmp_path / "out" / f"{picture}.png").read_bytes()[:4] == b"\x89PNG"

    # the same pictures are drawn from what is written
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir() if p.suffix in (".json", ".png")}
    monkeypatch.setattr(reproduce, "run", lambda cell: pytest.fail(f"{cell} again"))
    reproduce.main(["table2", "--data", str(digits), *few(tmp_path, "--steps", "1", "--batch", "2"), "--resume"])
    assert "table2: 8 of 8 runs are in" in capsys.readouterr().out
    for name, content in before.items():
        if name.endswith("png"):
            assert (tmp_path / "out" / name).read_bytes() == content, name
    assert json.loads((tmp_path / "out" / "table2.json").read_text())["runs"] == written["runs"]


def test_table3(tmp_path, here, monkeypatch, capsys):
    pytest.importorskip("espeakng_loader")
    monkeypatch.setattr(speech, "TRAINING", 8)
    monkeypatch.setattr(speech, "HELD_OUT", 2)
    monkeypatch.setattr(speech, "SCALE", paper.Scale(width=1 / 320, depth=1 / 3))
    monkeypatch.setattr(speech, "read", functools.cache(speech.read.__wrapped__))
    reproduce.main(["table3", *few(tmp_path, "--steps", "1")])
    printed = capsys.readouterr().out
    assert "Held-out CER, %: the mean over the seeds, in brackets the least and the most; 4 utterances" in printed
    assert re.search(r"\| English \| eSpeak NG's voices \| 0 \| 1 \| 2.2 \| 1.99 \| – \| ", printed)
    assert re.search(
        r"\| Mandarin \| eSpeak NG's voices \| 0 \| 1 \| 15.82 \| 15.01 \| – \| 80 % less accurate \| ", printed
    )
    runs = json.loads((tmp_path / "out" / "table3.json").read_text())["runs"]
    assert len(runs) == 8
    assert {run["policy"] for run in runs} == {"FP32", "MIXED", "NO_MASTER"}
    assert all(run["scores"]["CER"] == run["score"] > 0 for run in runs)
    assert (tmp_path / "out" / "table3.png").read_bytes()[:4] == b"\x89PNG"


def test_figure5(tmp_path, capsys):
    (tmp_path / "novel").write_text("the cat sat on the mat and the dog sat on the log . " * 60, "utf-8")
    reproduce.main(["figure5", "--data", str(tmp_path / "novel"), *few(tmp_path, "--steps", "2", "--batch", "2")])
    printed = capsys.readouterr().out
    assert "Held-out perplexity: the mean over the seeds, in brackets the least and the most; 2 columns" in printed
    assert re.search(r"\| LSTM, 2 layers \| novel \| 0 \| 2 \| reference \| diverges \| as FP32 \| – \| ", printed)
    runs = json.loads((tmp_path / "out" / "figure5.json").read_text())["runs"]
    assert [run["setting"] for run in runs] == [
        "FP32",
        "mixed, dynamic scale",
        "mixed, not scaled",
        "mixed, scaled by 128",
    ]
    assert all(1 < run["score"] < 100 and run["zero_shares"] for run in runs)
    assert (tmp_path / "out" / "figure5.png").read_bytes()[:4] == b"\x89PNG"


@pytest.fixture
def ran(here, monkeypatch, digits):
    """The cells that are run, in order; without training, and with the seed as what there is to tell."""
    cells = []

    def run(cell):
        if len(cells) == 4:
            raise MemoryError
        cells.append(cell)
        return trials.Trial(score=cell.seed / 10, curve=[1.0, 2.0], policy="FP32", zero_shares=[(0, 0.5)])

    monkeypatch.setattr(reproduce, "run", run)
    return cells


def test_what_is_finished_is_not_run_again(ran, digits, tmp_path, capsys):
    arguments = ["table1", "--data", str(digits), "--networks", "AlexNet", *few(tmp_path)]
    path = tmp_path / "out" / "table1.json"
    with pytest.raises(MemoryError):
        reproduce.main([*arguments, "--seeds", "2"])
    assert len(ran) == 4 == len(json.loads(path.read_text())["runs"])
    first = ran[:]
    ran.clear()
    reproduce.main([*arguments, "--seeds", "2", "--resume"])
    assert len(ran) == 2 and not set(ran) & set(first)
    assert "table1: 4 of 6 runs are in" in capsys.readouterr().out
    assert {r["seed"]: r["score"] for r in json.loads(path.read_text())["runs"]} == {0: 0, 1: 0.1}
    assert "--resume" not in (tmp_path / "out" / "table1.md").read_text()
    for more, message in (
        (["--steps", "3"], "has 6 runs that are not among those to do"),
        (["--seeds", "1"], "has 3 runs that are not among those to do, such as Cell(table='table1', name='AlexNet'"),
    ):
        ran.clear()
        before = path.read_bytes()
        with pytest.raises(SystemExit):
            reproduce.main([*arguments, *more, "--resume"])
        assert message in capsys.readouterr().err and not ran and path.read_bytes() == before
    for content in ('{"runs": [{}]}', "[", "[]"):
        path.write_text(content)
        with pytest.raises(SystemExit):
            reproduce.main([*arguments, "--resume"])
        assert "table1.json to be the JSON of a table" in capsys.readouterr().err
    ran.clear()
    reproduce.main([*arguments])
    assert len(ran) == 3


def test_formats(small, tmp_path, here, monkeypatch, capsys):
    """Three programs, each in its own steps, batch and measure, in FP32, FP16, BF16 and FP8."""
    pytest.importorskip("ml_dtypes")
    novel = "the cat sat on the mat and the dog sat on the log . " * 60
    (tmp_path / "novel").write_text(novel, "utf-8")
    monkeypatch.setattr(text, "plays", lambda: [novel])  # to read all of them takes a second, each time
    for program, batch in ((formats.cnn, 8), (formats.dcgan, 4)):
        monkeypatch.setattr(program, "BATCH", batch)
    for name, batch, arguments in (
        ("MNIST CNN", 8, {}),
        ("LSTM", 2, {"data": str(tmp_path / "novel"), "batch": 2}),
        ("DCGAN", 4, {"size": 16, "width": 2}),
    ):
        network = formats.NETWORKS[name]._replace(arguments=arguments, steps=2, batch=batch)
        monkeypatch.setitem(formats.NETWORKS, name, network)
    out = tmp_path / "out"
    reproduce.main(["formats", "--seeds", "1", "--device", "cpu", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "| network | data | seeds | steps | FP32 | FP16, not scaled | FP16, dynamic scale | BF16 | FP8 |" in printed
    assert "2, 4, 8 examples per step" in printed and "the paper" not in printed.split("\n", 3)[3]
    runs = json.loads((out / "formats.json").read_text())["runs"]
    assert {(run["name"], run["batch"], run["steps"]) for run in runs} == {
        ("MNIST CNN", 8, 2),
        ("LSTM", 2, 2),
        ("DCGAN", 4, 2),
    }
    by = {(run["name"], run["setting"]): run for run in runs}
    assert len(by) == len(runs) == 15
    for (name, setting), run in by.items():
        assert run["policy"] == ("MIXED" if "FP16" in setting else setting)
        assert run["score"] > 0 and (run["loss_scale"] > 1) == (setting == formats.DYNAMIC)
        half = run["bytes"]["activations"] / by[name, "FP32"]["bytes"]["activations"]
        assert setting in ("FP32", "FP8") or half < 0.95  # FP8's emulation keeps the rounded operands beside the others
    assert 0 < by["MNIST CNN", "FP32"]["score"] <= 100
    with pytest.raises(ValueError, match="--batch 3: the rows of this table have their own batches"):
        formats.check("", 3)
    first = {s: by["MNIST CNN", s]["curve"][0] for s in formats.SETTINGS}  # the same weights, the same batch
    for setting, away in ((formats.NOT_SCALED, 2e-3), ("BF16", 2e-2), ("FP8", 0.2)):
        assert first[setting] == pytest.approx(first["FP32"], rel=away) and first["FP8"] != first["BF16"]
    assert (out / "formats.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(SystemExit):
        reproduce.main(["formats", "--data", str(tmp_path), "--out", str(out)])
    assert "--data: the rows of this table have their own data" in capsys.readouterr().err


def test_the_mean_and_the_spread_of_a_row(digits, tmp_path):
    options = reproduce.parser().parse_args(["table1", "--data", str(digits)])
    done = {
        reproduce.Cell("table1", "VGG-D", str(digits), setting, seed, 5, 4, "cpu"): trials.Trial(score=score / 100)
        for setting, scores in zip(table1.SETTINGS, ((90, 92, 91), (89, 91, 90), (91, 92, 93)))
        for seed, score in enumerate(scores)
    }
    stopped = next(iter(done.values()))
    stopped.stopped = "it diverged"
    (row,) = (line for line in reproduce.markdown("table1", done, options).splitlines() if "| 65.4 |" in line)
    cells = [cell.strip() for cell in row.split("|")][1:-1]
    assert cells[2] == "0, 1, 2" and cells[7:] == [
        "91.00 (90.00–92.00), 1 of 3 diverged",
        "90.00 (89.00–91.00)",
        "92.00 (91.00–93.00)",
        "-1.00, within",
        "+1.00, within",
        "2.00",
    ]


def test_what_cannot_be_run_is_refused_before_anything_runs(tmp_path, capsys):
    for arguments, message in (
        (["table1", "--data", str(tmp_path / "no")], "no"),
        (["table2", "--data", str(tmp_path)], "idx"),
        (["table4"], "invalid choice"),
        (["table1", "--networks", "LeNet"], "AlexNet"),
        (["table1", "--steps", "0"], "positive"),
        (["table1", "--device", "tpu"], "tpu"),
    ):
        with pytest.raises(SystemExit) as stopped:
            reproduce.main([*arguments, "--out", str(tmp_path / "out")])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
