"""Several processes, which mpiexec starts: what they compute together, and how they end when one fails."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tinymp import checkpoint, parallel
from tinymp.parallel.start import STARTED

from . import programs

pytest.importorskip("mpi4py", exc_type=ImportError)
PROGRAMS = Path(__file__).with_name("programs.py")
ROOT = PROGRAMS.parents[2]
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec (the extra dev)")]


def start(n, name, *arguments):
    return subprocess.Popen(
        [MPIEXEC, "-n", str(n), sys.executable, "-W", "error", str(PROGRAMS), name, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )


def run(n, name, *arguments):
    process = start(n, name, *arguments)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and f"done by {n}" in out, out


def found(folder, name, n):
    return json.loads((folder / f"{name}-{n}.json").read_text())


def test_processes_with_parts_of_a_batch_are_as_one_with_all_of_it(tmp_path):
    programs.fp32(parallel.Group(), tmp_path)
    run(4, "fp32", tmp_path)
    alone, four = found(tmp_path, "fp32", 1), found(tmp_path, "fp32", 4)
    assert np.allclose(alone["losses"], four["losses"], rtol=1e-5)
    for name, x in alone["weights"].items():
        assert np.allclose(x, four["weights"][name], rtol=0, atol=1e-5), name
    assert four["passes"] == 8 and four["sent"] == 8 * 4 * sum(np.size(x) for x in four["weights"].values())


def test_features_with_two_processes(tmp_path):
    run(2, "features", tmp_path)


def test_a_long_run_with_two_processes(tmp_path):
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "examples.long_run", "--parallel", "--steps", "2"]
    command += ["--checkpoint", str(tmp_path / "kept")]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=120).stdout
    assert out.count("test accuracy") == 1  # rank 0 alone reports
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["mixed.safetensors"]
    assert len(checkpoint.peek(tmp_path / "kept" / "mixed.safetensors")["run"]["curve"]) == 2


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("raises", 1, "ValueError: the data are bad"),
        ("exits with 3", 3, "rank 1 of 2 has ended with SystemExit"),
        ("exits", 0, "rank 1 of 2 has ended with SystemExit"),
        ("hangs", 1, "rank 0 has waited for 1 s at all_reduce of float64 (3,): another process"),
        ("differs", 1, "another process calls something else"),
    ],
)
def test_all_end_when_one_fails(how, code, says, tmp_path):
    process = start(2, "failing", tmp_path, how)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code and says in out, out


def test_processes_are_killed_and_others_go_on(tmp_path):
    """At random moments; the run goes on with another number of processes, from a checkpoint that is whole."""
    programs.fp32(parallel.Group(), tmp_path)
    whole = found(tmp_path, "fp32", 1)
    moments, interrupted = random.Random(0), 0
    for n in (2, 3):
        pids = tmp_path / f"pids-{n}.json"
        pids.unlink(missing_ok=True)
        process = start(n, "killed", tmp_path, "--slow")
        while not pids.exists() or not pids.stat().st_size:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        time.sleep(0.2 * moments.random())
        victim = moments.randrange(n)
        pid = json.loads(pids.read_text())["pids"][victim]
        os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)
        interrupted += process.returncode != 0  # else it had ended before
    assert interrupted
    run(1, "killed", tmp_path)
    ended = found(tmp_path, "killed", 1)
    assert ended["step"] == len(whole["losses"])
    for name, x in whole["weights"].items():
        assert np.allclose(x, ended["weights"][name], rtol=0, atol=1e-5), name


def test_a_program_that_nobody_started_is_a_group_of_one(monkeypatch):
    for name in (*STARTED, "RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with parallel.init() as group:
        x = np.arange(3.0)
        group.all_reduce(x)
        group.broadcast(x)
        assert (group.rank, group.size, x.tolist()) == (0, 1, [0, 1, 2]) and group.all_gather(x)[0] is x
        assert group.mean(2.0, weight=3.0) == 2 and group.tell({"a": None}) == [{"a": None}]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="mpiexec -n 4 python"):
        parallel.init()
