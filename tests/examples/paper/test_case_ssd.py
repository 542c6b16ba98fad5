"""The search of docs/case_ssd.md on a few steps: flips run, none runs twice, and differences are those of pairs."""

import json

import numpy as np
import pytest

from examples.paper import case_ssd, table2

pytestmark = pytest.mark.cpu


@pytest.fixture
def ran(tmp_path, capsys, monkeypatch):
    """Runs the program on a step of two scenes; what was printed, and the lines of its file."""
    pytest.importorskip("skimage")
    for name, value in (("TESTED", 2), ("BEGINNING", 1), ("BATCH", 2)):
        monkeypatch.setattr(table2, name, value)

    def run(*options):
        few = "--seeds", "3", "--steps", "1", "--scenes", "2", "--out", str(tmp_path)
        case_ssd.main([*options, *few])
        printed = capsys.readouterr().out
        return printed, [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]

    return run


def test_runs_and_gradients(ran):
    names = ["fp32", "mixed", "scale-8", "normalize-fp32", "normalize-eps"]
    printed, runs = ran(*names)
    assert [run["flip"] for run in runs] == names and "| mixed | 1 |" in printed
    by = {run["flip"]: run for run in runs}
    assert by["mixed"]["skipped"] == [0] and not by["scale-8"]["skipped"]  # 2 ** 16 is too much for the first step
    assert by["scale-8"]["test loss in FP32"] != by["fp32"]["test loss in FP32"]
    assert ran("fp32", "mixed")[1] == runs
    lines = map(json.loads, ran("fp32", "fp32-ulp", "mixed", "--gradients", "2")[0].splitlines())
    same, ulp, mixed = (line["distance"] for line in lines)
    assert 0 == same < ulp < mixed < 1


def test_differences():
    """By hand: differences of 1, 2 and 3 have a standard error of 1 / sqrt(3)."""
    values = {"a": [1.0, 1.0, 1.0, 5.0], "b": [2.0, 3.0, 4.0]}
    runs = [{"flip": flip, "seed": i, "x": x} for flip, of in values.items() for i, x in enumerate(of)]
    row = case_ssd.differences(runs, ["a", "b"], "x").splitlines()[-1]
    assert row == "| b | 3 | 1.00 | 3.00 | +2.00 | 0.58 | -0.48 to 4.48 |"


def test_draws():
    """Two seeds whose runs lie 1 to each side of their means: FP32's at 0 and 10, the others 3 above."""
    runs = [
        {"flip": flip, "seed": seed, "x": 10 * seed + 3 * group + off}
        for seed in (0, 1)
        for group, flips in enumerate(case_ssd.DRAWS)
        for flip, off in zip(flips, (-1, 1))
    ]
    assert case_ssd.draws(runs, "x") == "x, 8 runs: +3.00, 0.70 to 5.30"  # 2.57 * sqrt(8 / 5 * (1 / 4 + 1 / 4)) is 2.3
    assert case_ssd.draws(runs[:-1], "x").startswith("x, 4 runs") and not case_ssd.draws(runs[:3], "x")


def test_shared():
    """The products of (1, 0), (1, 2) and (0, 1) are 1, 0 and 2, each twice."""
    assert case_ssd.shared(np.array([[1.0, 0.0], [1.0, 2.0], [0.0, 1.0]])) == 1.0
