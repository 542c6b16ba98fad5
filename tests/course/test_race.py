"""The race: its budget, its measure, its command; and files that are no entry."""

import re
from pathlib import Path

import pytest

from tinymp.course import race
from tinymp.lab import cli

pytestmark = pytest.mark.cpu
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
    found = {policy: race.run(entry(policy), budget) for policy in ("FP32", "MIXED")}
    for finish in found.values():
        assert budget <= finish.moved < budget + finish.moved / finish.steps * 1.01
        assert finish.right > 500
    assert found["MIXED"].steps > 1.2 * found["FP32"].steps
    again = race.run(entry(), budget)
    assert (again.right, again.moved, again.steps) == (found["MIXED"].right, found["MIXED"].moved, found["MIXED"].steps)


def test_an_entry_that_diverges_says_so(entry):
    with pytest.raises(FloatingPointError, match="loss"):
        race.run(entry(lr="1e30"), 20 << 20)


def test_a_schedule_is_followed(entry):
    more = "def schedule(sgd): return optim.StepLR(sgd, step_size=1, gamma=0.0)"
    assert race.run(entry(more=more), 8 << 20).right < race.run(entry(), 8 << 20).right


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("del model", r"expected a function model\(\), got None"),
        ("optimizer = None", r"expected a function optimizer\(\), got None"),
        ("schedule = 3", r"expected a function schedule\(\), got 3"),
        ("policy = 'MIXED'", "expected a Policy and a batch of 1 to 1000, got 'MIXED' and 50"),
        ("batch = 0", "expected a Policy and a batch of 1 to 1000, .* and 0"),
        ("batch = 2.5", "expected a Policy and a batch of 1 to 1000, .* and 2.5"),
        ("def model(): return 3", r"expected model\(\) to return an nn.Module, got int"),
    ],
)
def test_files_that_are_no_entry(entry, more, says):
    with pytest.raises(ValueError, match=says):
        race.run(entry(more=more), 1)


def test_the_command(entry, tmp_path, capsys):
    files = [str(entry(name=name, lr=lr)) for name, lr in (("a.py", "0.0001"), ("b.py", "0.1"))]
    assert cli.main(["course", "race", *files, "--budget", "0.02"]) == 0
    found = [float(share) for share in re.findall(r"\(MIXED\): ([\d.]+) % right after", capsys.readouterr().out)]
    assert len(found) == 2 and found[0] < found[1]
    for arguments, says in (
        (["x.py", "--budget", "0"], "expected a number of GiB, above 0"),
        (["x.py", "--budget", "nan"], "expected a number of GiB, above 0"),
        (["x.py", "--budget", "x"], "invalid float value"),
        ([str(tmp_path)], "expected an entry (FILE.py), found none at"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["course", "race", *arguments])
        assert says in capsys.readouterr().err


def test_the_entry_of_the_page_races(tmp_path):
    page = (Path(__file__).parents[2] / "course" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "page.py").write_text(code)
    assert race.run(tmp_path / "page.py", 64 << 20).right > 300
