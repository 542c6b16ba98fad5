"""benchmarks.parallel: a quick run measures something."""

import json
import os
import shutil
import sys

import pytest

from benchmarks import parallel

pytestmark = pytest.mark.cpu


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    if not shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])):
        pytest.skip("no mpiexec (the extra dev)")
    parallel.main(["--quick", "--processes", "2", "--out", str(tmp_path / "p.json")])
    out, found = capsys.readouterr().out, json.loads((tmp_path / "p.json").read_text())
    assert "KiB sent" in out and "mixed, sent in FP16" in out
    two = found["measured"]["2"]
    for case in ("strong", "small", "weak"):
        assert two["mixed, sent in FP32"][case]["sent"] == two["FP32"][case]["sent"] == 4 * 421_738
        assert two["mixed, sent in FP16"][case]["sent"] == 2 * 421_738 + 2 * 192
        assert all(0 < two[name][case]["waited"] < two[name][case]["ms"] for name in parallel.POLICIES)
    with pytest.raises(SystemExit):
        parallel.main(["--processes", "1"])
