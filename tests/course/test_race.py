"""The race: its budget, its measure, its board; and what is no entry."""

import json
from pathlib import Path

import pytest

from tinymp.course import race
from tinymp.lab import cli

pytestmark = pytest.mark.cpu
ENTRIES = Path(__file__).parents[2] / "course" / "race"
MINE = """
import tinymp as mp
from tinymp import nn, optim
policy = mp.{policy}
batch = 50
def model(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
def optimizer(parameters): return optim.SGD(parameters, lr={lr})
"""


@pytest.fixture
def entry(tmp_path):
    def write(policy="MIXED", lr="0.1", more="", name="mine.py"):
        path = tmp_path / name
        path.write_text(MINE.format(policy=policy, lr=lr) + more)
        return path

    return write


def test_a_budget_in_fp16_lasts_longer(entry):
    budget = 20 << 20
    found = {policy: race.run(race.read(entry(policy)), budget) for policy in ("FP32", "MIXED")}
    for finish in found.values():
        assert budget <= finish.moved < budget + finish.moved / finish.steps * 1.01 and not finish.stopped
        assert finish.right > 500
    assert found["MIXED"].steps > 1.2 * found["FP32"].steps
    again = race.run(race.read(entry()), budget)
    assert (again.right, again.moved, again.steps) == (found["MIXED"].right, found["MIXED"].moved, found["MIXED"].steps)


def test_an_entry_that_diverges_has_a_finish(entry):
    finish = race.run(race.read(entry(lr="1e30")), 20 << 20)
    assert "loss" in finish.stopped and finish.right <= 200 and finish.moved < 20 << 20


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("del model", r"expected a function model\(\), found none"),
        ("optimizer = None", "expected optimizer to be a function, got None"),
        ("policy = 'MIXED'", "expected policy to be Policy, got 'MIXED'"),
        ("batch = 0", "expected batch to be 1 to 1000, got 0"),
        ("batch = 2.5", "expected batch to be int, got 2.5"),
        ("def model(): return 3", r"expected model\(\) to return an nn.Module, got int"),
    ],
)
def test_what_is_no_entry(entry, more, says):
    with pytest.raises(race.NoEntry, match=says):
        race.run(race.read(entry(more=more)), 1)


def test_a_leaderboard(entry, tmp_path, capsys):
    entry(name="a.py", lr="0.0001")
    entry(name="b.py")
    entry(name="c.py", more="1 / 0")
    out = tmp_path / "out"
    assert cli.main(["course", "race", str(tmp_path), "--budget", "0.02", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert said.out.index("1  b ") < said.out.index("2  a ") and "%" in said.out
    assert "c.py did not race: ZeroDivisionError" in said.err
    assert [f["entry"] for f in json.loads((out / "race.json").read_text())] == ["a", "b"]


def test_equals_are_parted_by_bytes():
    one, two = (race.Finish(name, "MIXED", 900, moved, 1, 1.0) for name, moved in (("more", 2), ("fewer", 1)))
    assert race.board([one, two]).index("fewer") < race.board([one, two]).index("more")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "x", "1e9"])
def test_a_budget_that_is_none(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["course", "race", "x.py", "--budget", text])
    assert "expected a number of GiB, above 0" in capsys.readouterr().err


def test_nothing_to_race(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["course", "race", str(tmp_path / "no.py")])
    assert "expected an entry (FILE.py) or a folder of them" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(ENTRIES.glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_race(path):
    assert race.run(race.read(path), 64 << 20).right > 300
