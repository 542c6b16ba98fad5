"""The paper's tables on a few steps: what is run, printed, written and drawn."""

import json
import re

import pytest

from examples.paper import formats, loss_scales, reproduce, table2, text, trials
from tinymp.checkpoint import writing

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.cpu
SENTENCES = "the cat sat on the mat and the dog sat on the log . " * 60


@pytest.fixture
def here(monkeypatch):
    """All runs in this process, without the start of new ones; pictures have few pixels."""
    write = writing.write_figure
    monkeypatch.setattr(writing, "write_figure", lambda path, picture, dpi: write(path, picture, 20))
    monkeypatch.setattr(
        reproduce, "finished", lambda todo, _, start=False: ((cell, reproduce.run(cell, start)) for cell in todo)
    )
    yield
    reproduce.measure.Run.ends = {}


@pytest.fixture
def ran(tmp_path, capsys):
    """Runs a table; what was printed, and the runs that were written. A figure has a picture."""

    def run(table, *options):
        reproduce.main([table, "--seeds", "1", "--device", "cpu", "--out", str(tmp_path / "out"), *options])
        if table.startswith("figure"):
            assert (tmp_path / "out" / f"{table}.png").read_bytes()[:4] == b"\x89PNG"
        return capsys.readouterr().out, json.loads((tmp_path / "out" / f"{table}.json").read_text())["runs"]

    return run


def test_table1(digits, tmp_path, ran):
    """In processes of their own, as users run it."""
    few = "--networks", "VGG-D", "--steps", "2", "--batch", "4"
    printed, runs = ran("table1", "--data", str(digits), *few)
    assert re.search(r"\| VGG-D \| .* \| 2 \| 65.4 \| 65.43 \| – \| ", printed)
    assert len(runs) == 3 and all(0 <= run["score"] <= 1 and len(run["curve"]) == 2 for run in runs)
    by = {r["setting"]: r for r in runs}
    fp32, mixed = by["FP32"], by["mixed, dynamic scale"]
    assert mixed["curve"][0] == pytest.approx(fp32["curve"][0], rel=1e-2)  # the same start and the same batch
    assert by["mixed, not scaled"]["loss_scale"] == 1 < mixed["loss_scale"]
    assert "`python -m examples.paper.reproduce table1 " in (tmp_path / "out" / "table1.md").read_text()


def test_table2(digits, tmp_path, here, ran, monkeypatch):
    pytest.importorskip("skimage")
    for name, value in (("TESTED", 2), ("BEGINNING", 1), ("SHOWN", 2)):
        monkeypatch.setattr(table2, name, value)
    printed, runs = ran("table2", "--networks", "Multibox SSD", "--data", str(digits), "--steps", "1", "--batch", "2")
    assert re.search(r"\| Multibox SSD \| .* \| 76.9 \| diverges \| 77.1 \| – \| ", printed)
    (fp32, *_) = (r for r in runs if r["setting"] == "FP32")
    seen = fp32["kept"]["activation gradients"]
    assert sum(seen["exponents"]) > 10_000
    assert seen["lost"]["1.0"]["zero"] > seen["lost"]["8.0"]["zero"] > 0
    assert (tmp_path / "out" / "figure3.png").exists() and (tmp_path / "out" / "boxes.png").exists()


def test_figure5(tmp_path, here, ran):
    (tmp_path / "novel").write_text(SENTENCES, "utf-8")
    printed, runs = ran("figure5", "--data", str(tmp_path / "novel"), "--steps", "2", "--batch", "2")
    assert re.search(r"\| LSTM, 2 layers \| novel \| 0 \| 2 \| reference \| diverges \| as FP32 \| – \| ", printed)
    assert len(runs) == 4 and all(1 < run["score"] < 100 and run["zero_shares"] for run in runs)


def test_formats(small, tmp_path, here, ran, monkeypatch):
    """Three programs, each in its own steps, batch and measure, in FP32, FP16, BF16 and FP8."""
    pytest.importorskip("ml_dtypes")
    (tmp_path / "novel").write_text(SENTENCES, "utf-8")
    monkeypatch.setattr(text, "plays", lambda: [SENTENCES])  # to read all of them takes a second, each time
    monkeypatch.setattr(formats.cnn, "BATCH", 8)
    monkeypatch.setattr(formats.dcgan, "BATCH", 4)
    of_lstm = {"data": str(tmp_path / "novel"), "batch": 2}
    few = {"MNIST CNN": (8, {}), "LSTM": (2, of_lstm), "DCGAN": (4, {"size": 16, "width": 2})}
    for name, (batch, arguments) in few.items():
        network = formats.NETWORKS[name]._replace(arguments=arguments, steps=2, batch=batch)
        monkeypatch.setitem(formats.NETWORKS, name, network)
    printed, runs = ran("formats")
    assert "| network | data | seeds | steps | FP32 | FP16, not scaled | FP16, dynamic scale | BF16 | FP8 |" in printed
    by = {(run["name"], run["setting"]): run for run in runs}
    assert len(by) == len(runs) == 15
    for (_, setting), run in by.items():
        assert run["policy"] == ("MIXED" if "FP16" in setting else setting)
        assert run["score"] > 0 and (run["loss_scale"] > 1) == (setting == formats.DYNAMIC)
    first = {s: by["MNIST CNN", s]["curve"][0] for s in formats.SETTINGS}  # the same weights, the same batch
    for setting, away in ((formats.NOT_SCALED, 2e-3), ("BF16", 2e-2), ("FP8", 0.2)):
        assert first[setting] == pytest.approx(first["FP32"], rel=away) and first["FP8"] != first["BF16"]


def test_loss_scales(tmp_path, here, ran, monkeypatch):
    """Nine scales, a picture, and of FP32 what FP16 would lose at each."""
    (tmp_path / "novel").write_text(SENTENCES, "utf-8")
    network = loss_scales.NETWORKS["LSTM, 2 layers"]._replace(source=str(tmp_path / "novel"), batch=2, steps=8)
    monkeypatch.setattr(loss_scales, "NETWORKS", {"LSTM, 2 layers": network})
    runs = ran("loss_scales")[1]
    assert {run["loss_scale"] for run in runs if run["policy"] == "MIXED"} == set(loss_scales.SCALES)
    (lost,) = (run["kept"]["activation gradients"]["lost"] for run in runs if run["policy"] == "FP32")
    assert len(runs) == 10 and lost["0.00390625"]["zero"] > lost["1.0"]["zero"] > lost["65536.0"]["zero"]
    assert (tmp_path / "out" / "loss_scales.png").read_bytes()[:4] == b"\x89PNG"


def test_verdict():
    """FP32 fell from 5 to 1 (0.9 to 1.1): what others reached."""
    fp32 = [0.9, 1.0, 1.1]
    for found, word, fall in (
        ([1.0, 1.1, 1.3], "as FP32", 0.967),
        ([0.1, 0.1, 0.1], "as FP32", 1.225),
        ([2.0, 2.0, 2.0], "loses", 0.75),
        ([5.1, 5.1, 5.1], "stalls", -0.025),
        ([9.0, 9.0, 9.0], "diverges", -1.0),
    ):
        assert loss_scales.verdict(found, fp32, 5.0) == (word, pytest.approx(fall, abs=1e-3))
    assert loss_scales.verdict([1.0, float("nan"), 1.0], fp32, 5.0)[0] == "ends"


def test_what_is_finished_is_not_run_again(here, digits, ran, tmp_path, monkeypatch):
    cells = []

    def run(cell, start):
        if len(cells) == 4:
            raise MemoryError
        cells.append(cell)
        return trials.Trial(score=cell.seed / 10, curve=[1.0, 2.0], policy="FP32", zero_shares=[(0, 0.5)])

    monkeypatch.setattr(reproduce, "run", run)
    arguments = "table1", "--data", str(digits), "--networks", "AlexNet", "--seeds", "2"
    with pytest.raises(MemoryError):
        ran(*arguments)
    path, first = tmp_path / "out" / "table1.json", cells[:]
    assert len(first) == 4 == len(json.loads(path.read_text())["runs"])
    cells.clear()
    printed, runs = ran(*arguments, "--resume")
    assert len(cells) == 2 and not set(cells) & set(first) and "table1: 4 of 6 runs are in" in printed
    assert {r["seed"]: r["score"] for r in runs} == {0: 0, 1: 0.1}


def test_check_runs_the_start_again_and_compares_it(here, ran, tmp_path, monkeypatch, capsys):
    ran("table1", "--networks", "AlexNet", "--steps", "3", "--batch", "4")
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path / "out")
    with pytest.raises(SystemExit) as end:
        reproduce.main(["table1", "--check"])
    said = capsys.readouterr().out
    assert end.value.code is None and said.count(": as in ") == 3 == said.count("losses of twice 1 steps")
    path = tmp_path / "out" / "table1.json"
    content = json.loads(path.read_text())
    content["runs"][0]["curve"][1] *= 1.02
    content["runs"][1]["bytes"]["gradients"] *= 2
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit) as end:
        reproduce.main(["table1", "--check"])
    said = capsys.readouterr().out
    assert end.value.code == "2 differ" and said.count("NOT as in") == 2 and said.count("; bytes {") == 1


@pytest.mark.parametrize("table", reproduce.TABLES)
def test_the_committed_tables_are_those_of_their_runs(table):
    path = reproduce.RESULTS / f"{table}.json"
    content, done = json.loads(path.read_text("utf-8")), reproduce.load(path)
    assert path.with_suffix(".md").read_text("utf-8") == reproduce.markdown(table, done, content)
    assert {trial.commit for trial in done.values()} == content["environments"].keys()


def test_two_seeds_give_no_verdict_and_differences_are_of_one_seed():
    fp32 = {0: 50.0, 1: 60.0, 2: 52.0}
    assert reproduce.difference({0: 51.0, 1: 59.0}, fp32) == "+1.00, -1.00 (too few seeds)"
    assert reproduce.difference({0: 51.0, 1: 62.0, 2: 52.0}, fp32) == "+1.00 (+0.00 to +2.00), within"
    assert reproduce.difference({0: 70.0, 1: 80.0, 2: 72.0}, fp32) == "+20.00 (+20.00 to +20.00), beyond"
