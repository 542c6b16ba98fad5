"""The command line: programs are run as they are, what the audit found is written also when they end badly."""

import csv
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest

from tinymp.events import here
from tinymp.lab.cli import main

pytestmark = pytest.mark.cpu

SCRIPT = """
import sys
import numpy as np
import tinymp as mp
from tinymp import ops

def square(i):
    return i * i

if __name__ == "__main__":
    x = mp.tensor(np.array([1.0, 1e-9, 1e-5], "f4")).half()
    y = ops.softmax(x, 0) * 2.0
    print("arguments", sys.argv, "path", sys.path[0])
    if "exit" in sys.argv:
        sys.exit(7)
    if "terminate" in sys.argv:
        import os
        os.kill(os.getpid(), 15)
    if "interrupt" in sys.argv:
        raise KeyboardInterrupt
    if "raise" in sys.argv:
        raise KeyError("the program's own")
    if "read" in sys.argv:
        print("read", input(), sys.stdin.read().split())
    if "fork" in sys.argv:
        import os
        if not os.fork():
            ops.exp(x)
            sys.exit()
        os.wait()
    if "start" in sys.argv:
        from multiprocessing import get_context
        with get_context("spawn").Pool(2) as pool:
            print("squares", pool.map(square, range(3)))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "program" / "own.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def rows(out):
    return json.loads((out / "audit.json").read_text())["ledger"]


def test_audit_runs_a_script(script, tmp_path, capsys):
    argv, path = list(sys.argv), list(sys.path)
    out = tmp_path / "out"
    flags = "--shadow", "--formats", "bf16,e4m3", "--trace", "--every", "1", "--out", str(out)
    assert main(["audit", *flags, str(script), "--out", "elsewhere", "-m", "--", "x"]) == 0
    assert (sys.argv, sys.path) == (argv, path)
    printed = capsys.readouterr().out
    # all that follows the script is its own, and its folder is where it imports from
    assert f"arguments ['{script}', '--out', 'elsewhere', '-m', '--', 'x'] path {script.parent}" in printed
    assert "wrote audit.json, ledger.csv" in printed and "the same numbers in other formats" in printed
    assert "softmax" in printed.partition("in ulps of FP16")[2]
    found = {row["op"]: row for row in rows(out)}
    assert set(found) == {"cast", "softmax", "mul"}
    assert (found["cast"]["zero"], found["cast"]["subnormal"]) == (1, 1)
    assert found["softmax"]["caller"] == "own.py:12"
    with (out / "ledger.csv").open() as file:
        assert [line["op"] for line in csv.DictReader(file)] == list(found)
    written = json.loads((out / "audit.json").read_text())
    (softmax,) = [row for row in written["shadow"] if row["op"] == "softmax"]
    assert softmax["elements"] == 3 and 0 <= softmax["local_max"] <= 0.51  # one rounding to nearest
    assert written["formats"][0]["losses"]["bf16"]["beyond"] == 0 and (out / "trace.jsonl").exists()
    assert not (tmp_path / "runs").exists()


INSIDE = """
import sys
import beside  # by its folder's path, as a script would
import tinymp as mp
from tinymp import nn
from . import beside as relative
from ..inner import beside as absolute

def run(*args, **given):
    return {"curve": [relative.BASE] * 3}

net = mp.MIXED.cast(nn.Linear(1, 1))
loss = net(mp.MIXED.cast(mp.ones(2, 1))).float().mean().item() * 0 + absolute.BASE
print("ran", __name__, __package__, sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("folder", "command", "printed"),
    [
        (".", ["audit", "SCRIPT", "--more"], "ran __main__ outer.inner ['--more']"),
        ("outer", ["bisect", "--measure", "loss", "--seeds", "1", "SCRIPT"], "It matches FP32 as it is"),
        (".", ["ablate", "outer.inner.own:run", "--only", "fp32", "--seeds", "1", "--steps", "3"], "fp32"),
    ],
)
def test_a_script_in_a_package_runs_as_its_module(command, printed, folder, tmp_path, capsys, monkeypatch):
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for path in (inner.parent, inner):
        (path / "__init__.py").touch()
    (inner / "beside.py").write_text("BASE = 2.0")
    (inner / "own.py").write_text(INSIDE)
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    path = os.path.relpath(inner / "own.py")
    argv, before = list(sys.argv), list(sys.path)
    assert main([word.replace("SCRIPT", path) for word in command]) == 0
    assert printed in capsys.readouterr().out and (sys.argv, sys.path) == (argv, before)


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("exit", SystemExit, "sys.exit(7)"),
        ("raise", KeyError, 'KeyError: "the program\'s own"'),
        ("terminate", SystemExit, "stopped by SIGTERM"),
        ("interrupt", None, "stopped by Ctrl-C"),
    ],
)
def test_what_ends_a_program_is_passed_on_and_the_audit_written(how, error, told, script, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error) if error else nullcontext() as end:
        assert main(["audit", str(script), how]) == 130
    assert error is not SystemExit or end.value.code == {"exit": 7, "terminate": 143}[how]
    assert signal.getsignal(signal.SIGTERM) is before and not here.observers  # the audit is over
    assert {row["op"] for row in rows(tmp_path / "runs" / "audit" / "own")} == {"cast", "softmax", "mul"}
    assert f"{script} {how} (ended early: {told})\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["read"], "read one ['two', 'three']\n"),
        (["fork"], "It started other processes: what ran in them was not listened to.\n"),
        (["start"], "squares [0, 1, 4]\n"),
        (["start"], "It started other processes: what ran in them was not listened to.\n"),
    ],
)
def test_what_a_program_may_do(arguments, printed, script, tmp_path):
    run = [sys.executable, "-m", "tinymp", "audit", str(script), *arguments]
    done = subprocess.run(run, input="one\ntwo three\n", capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and printed in done.stdout
    assert done.stdout.count("wrote audit.json") == 1  # not by each process
    assert {row["op"] for row in rows(tmp_path / "runs" / "audit" / "own")} == {"cast", "softmax", "mul"}
    assert ("other processes" in done.stdout) == (arguments != ["read"])


def test_what_would_act_on_a_terminal_is_escaped(script, tmp_path, capsys):
    main(["audit", str(script), "\x1b[2Jred\udcff"])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed.split("path", 1)[1] and r"\x1b[2Jred\udcff" in printed
    page = tmp_path / "runs" / "audit" / "own" / "audit.html"
    assert not page.exists() or r"\x1b[2Jred\udcff" in page.read_text()


def test_what_cannot_run_leaves_the_last_report(script, tmp_path, capsys):
    main(["audit", str(script)])
    before = (tmp_path / "runs" / "audit" / "own" / "audit.json").read_text()
    script.write_text("1 +\n")
    with pytest.raises(SystemExit, match="2"):
        main(["audit", str(script)])
    assert "invalid syntax" in capsys.readouterr().err
    assert (tmp_path / "runs" / "audit" / "own" / "audit.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "nowhere.py"], "No such file or directory: 'nowhere.py'"),
        (["audit", "-m", "nowhere"], "there is no module 'nowhere'"),
        (["audit", "--formats", "fp3", __file__], "'fp3'"),
        (["audit", "--every", "0", __file__], "expected every to be a positive integer, got 0"),
        (["diff", "a", "b"], "tinymp diff: there is no trace in 'a'"),
        (["ablate", "cnn", "--policy", "mixed"], "unrecognized arguments: --policy mixed"),
        (["ablate", "cnn", "--only", "masters"], "no decision is called 'masters'; there are fp32, master, "),
        (["ablate", "nowhere:train"], "No module named 'nowhere'"),
        (["explain", "sofmax"], "tinymp explain: 'sofmax' is no op, layer, optimizer, policy or topic; did you mean"),
        (["example", "cn"], "invalid choice: 'cn'"),
        (["bisect", "--measure", "loss", "--seeds", "0", "own.py"], "expected a positive integer, got '0'"),
        ([], "tinymp: the following arguments are required: COMMAND; `tinymp --help` says more"),
        (["audit"], "tinymp audit: the following arguments are required: SCRIPT; `tinymp audit --help` says more"),
        (["bisect", "--measure", "loss"], "the following arguments are required: SCRIPT; `tinymp bisect --help`"),
    ],
)
def test_a_wrong_command_line_ends_with_code_2(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # nothing was run, nothing written


def test_example(small, tmp_path, capsys, monkeypatch):
    """From everywhere, and what it writes is here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()  # not this one
    monkeypatch.delitem(sys.modules, "examples.cnn", raising=False)  # as in a process of its own
    assert main(["example", "cnn", "--steps", "1"]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert json.loads((tmp_path / "runs" / "cnn" / "report.json").read_text())["settings"]["steps"] == 1
    assert main(["example"]) == 0
    assert "Train a CNN on 5,000 digits twice" in capsys.readouterr().out


def test_python_m_tinymp(script):
    run = [sys.executable, "-W", "error", "-m", "tinymp", "audit", str(script), "exit"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert " became infinite and 1 (" in done.stdout


def test_how_long_a_long_audit_takes(script, tmp_path, capsys):
    assert main(["audit", "--shadow", "--formats", "bf16", str(script)]) == 0
    assert "A step will take about 7 times as long as without an audit; --every 10" in capsys.readouterr().err
