"""benchmarks.parallel: the model of time by hand, the fit, and that a quick run measures something."""

import json
import os
import shutil
import sys

import pytest

from benchmarks import parallel
from benchmarks.parallel import Link, Work

pytestmark = pytest.mark.cpu


def test_a_ring_sends_all_but_one_part_twice():
    link = Link(1e-3, 1e-6, "")
    assert parallel.ring(4000, 1, link) == 0
    assert parallel.ring(4000, 4, link) == pytest.approx(6 * (1e-3 + 1e-3))
    assert parallel.gather(4000, 4, link) == pytest.approx(3 * (1e-3 + 4e-3))


def test_the_fit_finds_what_was_planted():
    link = Link(3e-5, 2e-9, "")
    sizes = [1 << n for n in range(10, 26, 3)]
    found = parallel.fit(sizes, [parallel.ring(size, 4, link) for size in sizes], 4)
    assert found.alpha == pytest.approx(link.alpha) and found.beta == pytest.approx(link.beta)


def test_backward_hides_two_thirds_of_the_computing():
    near = parallel.LINKS["NVLink 4"]
    compute = 0.009
    work = Work(compute * parallel.FLOPS * parallel.UTILISATION / 6, 1 << 28)
    assert parallel.step(work, 1, 2) == (pytest.approx(compute), 0)
    assert parallel.step(work, 8, 2) == (pytest.approx(compute), 0)  # 2 ms under 6 ms of backward
    total, waiting = parallel.step(work, 16, 4)
    network = parallel.LINKS["100 Gb Ethernet"]
    sent = 14 * (near.alpha + near.beta * 2**30 / 8) + 2 * (network.alpha + network.beta * 2**29)
    assert waiting == pytest.approx(sent - 2 / 3 * compute) and total == pytest.approx(compute + waiting)
    rows = Work(0.0, 0, 0, rows=10, columns=100)
    assert parallel.exchange(rows, 8, 4) == pytest.approx(7 * (near.alpha + near.beta * 4080))


def test_the_works_are_the_models_of_the_paper():
    mnist, resnet, big = parallel.works().values()
    assert mnist.halves + mnist.wides == 421_738 and mnist.dense(4) == 4 * 421_738
    assert 25.5e6 < resnet.halves + resnet.wides < 25.6e6 and 256 * 4.0e9 < resnet.multiply_adds < 256 * 4.2e9
    assert 151e6 < big.halves < 152e6 and big.rows == 2 * 2560 + 8192


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    if not shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])):
        pytest.skip("no mpiexec")
    parallel.main(
        ["--quick", "--processes", "2", "--out", str(tmp_path / "p.json"), "--picture", str(tmp_path / "p.png")]
    )
    out, found = capsys.readouterr().out, json.loads((tmp_path / "p.json").read_text())
    assert "a model, not measured" in out and (tmp_path / "p.png").stat().st_size > 10_000
    halves, wide = (found["measured"]["2"][f"mixed, sent in {dtype}"]["strong"] for dtype in ("FP16", "FP32"))
    assert wide["sent"] == 4 * 421_738 and halves["sent"] == 2 * 421_738 + 2 * 192
    with pytest.raises(SystemExit):
        parallel.main(["--processes", "1"])
