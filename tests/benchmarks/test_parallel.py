"""benchmarks.parallel: the model of time by hand, the fit, and that a quick run measures something."""

import json
import os
import shutil
import sys

import pytest

from benchmarks import parallel, scaling
from benchmarks.scaling import Link, Work

pytestmark = pytest.mark.cpu


def test_a_ring_sends_all_but_one_part_twice():
    link = Link(1e-3, 1e-6, "")
    assert scaling.ring(4000, 1, link) == 0 and scaling.ring(0, 4, link) == 0
    assert scaling.ring(4000, 4, link) == pytest.approx(6 * (1e-3 + 1e-3))
    assert scaling.ring(4000, 4, link, rings=3) == pytest.approx(6 * (3e-3 + 1e-3))
    assert scaling.gather(4000, 4, link) == pytest.approx(3 * (1e-3 + 4e-3))


def test_the_fit_finds_what_was_planted():
    link = Link(3e-5, 2e-9, "")
    times = [scaling.ring(size, 4, link) for size in parallel.SIZES]
    found = scaling.fit(parallel.SIZES, times, 4)
    assert found.alpha == pytest.approx(link.alpha) and found.beta == pytest.approx(link.beta)
    assert parallel.off(4, times, found) == pytest.approx([0.0] * len(times), abs=1e-9)
    assert parallel.off(4, [2 * t for t in times], found) == pytest.approx([-0.5] * len(times))


def test_a_bucket_is_a_ring_of_its_own():
    assert [scaling.buckets(x * 2**20) for x in (0.5, 1, 1.1, 26, 26.1)] == [1, 1, 2, 2, 3]
    near, far = scaling.LINKS["NVLink 4"], scaling.LINKS["100 Gb Ethernet"]
    sent = 26 * 2**20
    assert scaling.sums(sent, 4) == pytest.approx(6 * (2 * near.alpha + near.beta * sent / 4))
    inside, between = 14 * (2 * near.alpha + near.beta * sent / 8), 4 * (2 * far.alpha + far.beta * sent / 3)
    assert scaling.sums(sent, 24) == pytest.approx(inside + between)


def test_rows_of_all_machines_are_handed_on_within_each():
    near, far = scaling.LINKS["NVLink 4"], scaling.LINKS["100 Gb Ethernet"]
    assert scaling.rows(4080, 8) == pytest.approx(7 * (near.alpha + near.beta * 4080))
    between, inside = 2 * (far.alpha + far.beta * 8 * 4080), 7 * (near.alpha + near.beta * 3 * 4080)
    assert scaling.rows(4080, 24) == pytest.approx(between + inside)


def test_backward_hides_two_thirds_of_the_computing_and_no_rows():
    compute = 0.009
    work = Work(compute * scaling.FLOPS * scaling.UTILISATION / 6, 1 << 28)
    assert scaling.step(work, 1, 2) == (pytest.approx(compute), 0)
    assert scaling.step(work, 8, 2) == (pytest.approx(compute), 0)  # 4 ms under 6 ms of backward
    total, waits = scaling.step(work, 16, 4)
    assert waits == pytest.approx(scaling.sums(2**30, 16) - 2 / 3 * compute) and total == pytest.approx(compute + waits)
    sparse = work._replace(rows=10, columns=100)  # 2,080 bytes in FP16
    assert scaling.step(sparse, 8, 2)[1] == pytest.approx(scaling.rows(2080, 8))
    assert scaling.step(sparse, 1, 2)[1] == 0


def test_the_middle_of_several_starts():
    assert parallel.middle([{"a": [1, 5]}, {"a": [9, 4]}, {"a": [2, 6]}]) == {"a": [2, 5]}
    starts = {n: [{"FP32": {"alone": {"ms": t}}} for t in ms] for n, ms in ((1, (4, 6, 8)), (2, (2, 2, 8)))}
    assert parallel.ratio(starts, 2, "FP32", "alone") == "2.00 (1.00 to 3.00)"


def test_processes_share_the_cores_that_there_are():
    link = Link(1e-3, 1e-6, "")
    assert scaling.step_here(0.6, 0.5, 2, 2, 4000, link) == pytest.approx(0.3)  # 6 ms are hidden
    assert scaling.step_here(0.6, 0.25, 4, 2, 4000, link) == pytest.approx(0.3)
    assert scaling.step_here(0.006, 0.5, 2, 2, 4000, link) == pytest.approx(0.003 + 0.006 - 0.002)


def test_the_works_are_the_models_of_the_paper():
    mnist, resnet, big = scaling.works().values()
    assert mnist.halves + mnist.wides == 421_738 and mnist.dense(4) == 4 * 421_738
    assert 25.5e6 < resnet.halves + resnet.wides < 25.6e6 and 256 * 4.0e9 < resnet.multiply_adds < 256 * 4.2e9
    assert 151e6 < big.halves < 152e6 and big.rows == 2 * 2560 + 8192


def test_a_quick_run(tmp_path, capsys):
    pytest.importorskip("mpi4py", exc_type=ImportError)
    if not shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])):
        pytest.skip("no mpiexec (the extra dev)")
    parallel.main(
        ["--quick", "--processes", "2", "--out", str(tmp_path / "p.json"), "--picture", str(tmp_path / "p.png")]
    )
    out, found = capsys.readouterr().out, json.loads((tmp_path / "p.json").read_text())
    assert "a model, not measured" in out and "not measured" in found["model"]["what"]
    assert (tmp_path / "p.png").stat().st_size > 10_000
    two = found["measured"]["2"]
    for case in ("strong", "small", "at the end", "weak"):
        assert two["mixed, sent in FP32"][case]["sent"] == two["FP32"][case]["sent"] == 4 * 421_738
        assert two["mixed, sent in FP16"][case]["sent"] == 2 * 421_738 + 2 * 192
        assert all(0 < two[name][case]["waited"] < two[name][case]["ms"] for name in parallel.POLICIES)
    with pytest.raises(SystemExit):
        parallel.main(["--processes", "1"])
