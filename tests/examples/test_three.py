"""The three examples on a few steps: what they print and write, and what they refuse."""

import errno
import json
import re

import numpy as np
import pytest

from examples import cnn, dcgan, lstm, measure
from tinymp.checkpoint import writing

pytestmark = pytest.mark.cpu  # the programs choose their device themselves
THREE = {"cnn": cnn, "lstm": lstm, "dcgan": dcgan}
SCORES = {"cnn": "accuracy", "lstm": "perplexity", "dcgan": "frechet_distance"}


@pytest.mark.parametrize("name", THREE)
def test_report(name, small, tmp_path, capsys, monkeypatch):
    if name == "cnn":  # the others draw
        monkeypatch.setattr(measure, "draw", lambda path, *_: path.touch())
    out = tmp_path / "new" / "folder"
    runs = THREE[name].main(["--steps", "4", "--device", "cpu", "--out", str(out)])
    printed = capsys.readouterr().out
    for row in ("final loss", "ms per step", "per second", *measure.ROLES, "steps skipped", "final loss scale"):
        assert re.search(f"^(\\w+ )?{row}", printed, re.M), row
    assert re.search(r"^weights, KiB +\d+ +\d+ +0\.5\d$", printed, re.M)
    written = json.loads((out / "report.json").read_text("utf-8"))
    assert written["runs"].keys() == runs.keys() == {"fp32", "mixed"} and written["settings"]["steps"] == 4
    assert name == "cnn" or (out / "report.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    fp32, mixed = written["runs"]["fp32"], written["runs"]["mixed"]
    for run in (fp32, mixed):
        assert len(run["curve"]) == 4 and np.isfinite([*run["curve"], run[SCORES[name]], run["ms_per_step"]]).all()
        assert sum(run["gradient_exponents"]) + run["zero_gradients"] > 0 and run["stopped"] is None
    # FP16 halves what the paper says it halves, and pays for it with the masters (MPT section 3.1)
    for role in ("weights", "gradients", "activations"):
        assert mixed["bytes"][role] <= 0.56 * fp32["bytes"][role], role
    assert fp32["bytes"]["masters"] == 0 < mixed["bytes"]["masters"] <= fp32["bytes"]["weights"]
    # the same start and the same batches: before rounding sets in, the losses agree
    assert mixed["curve"][0] == pytest.approx(fp32["curve"][0], rel=1e-2)
    assert mixed["loss_scale"] > 1 == fp32["loss_scale"]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cnn", ["--steps", "0"], "argument --steps: expected a positive integer, got '0'"),
        ("cnn", ["--loss-scale", "-1"], "expected none, dynamic or a positive number, got '-1'"),
        ("dcgan", ["--lr", "1e39"], "argument --lr: expected a positive number that FP32 can hold, got '1e39'"),
        ("cnn", ["--policy", "fp32"], "argument --policy: expected one of tf32, mixed, "),
        ("cnn", ["--device", "tpu"], "expected a device, 'cpu' or 'gpu', got 'tpu'"),
        ("lstm", ["--data", "/nowhere/at.txt"], "/nowhere/at.txt"),
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
    with pytest.raises(SystemExit):
        cnn.main(["--steps", "1", "--device", "cpu", "--out", str(tmp_path / "new" / "folder")])
    assert capsys.readouterr().err.splitlines()[-1].endswith("error: [Errno 28] No space left on device")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_idx_data_and_learning(digits, undrawn, tmp_path, monkeypatch):
    """The class is where the bright square lies."""
    monkeypatch.setattr(cnn, "BATCH", 16)
    options = ["--data", str(digits), "--policy", "no_master", "--loss-scale", "128", "--steps", "24", "--seed", "3"]
    runs = cnn.main([*options, "--device", "cpu", "--out", str(tmp_path / "out")])
    assert runs["no_master"]["loss_scale"] == 128 and runs["no_master"]["bytes"]["masters"] == 0
    assert all(run["accuracy"] > 0.9 for run in runs.values())
