"""CUDA kernels on the CPU: correct ones compute what they should, and every planted mistake is found and named."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import cuda_on_cpu
from cuda_on_cpu import KernelError, Program, RaceError, compile
from cuda_on_cpu.memory import FENCE, Fenced, groups
from gpu import units
from tinymp.gpu.kernels import HERE

pytestmark = pytest.mark.skipif(cuda_on_cpu.problem() is not None, reason=str(cuda_on_cpu.problem()))
CORRECT = pathlib.Path(units.__file__).with_suffix(".cu").read_text(encoding="utf-8")
ELEMENTS = (HERE / "elements.cuh").read_text(encoding="utf-8")
TEXT = (pathlib.Path(__file__).parent / "planted.cu").read_text(encoding="utf-8")
PLANTED = f'{ELEMENTS}\n{CORRECT}\n#line 1 "text.cu"\n{TEXT}'
NULL = np.uint64(0)
i32, f32 = np.int32, np.float32


@pytest.fixture(scope="module", params=["half", "float"])
def program(request):
    return Program.of(PLANTED, request.param)


@pytest.fixture(scope="module")
def half():
    return Program.of(PLANTED, "half")


def storage(program):
    return np.dtype(program.arguments["sum"][0].dtypes[0])


def normal(*shape, dtype=f32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ------------------------------------------------------------------------------------------------------------- correct


@pytest.mark.parametrize("n", [1, 63, 64, 1000])
def test_sum(program, n):
    x, y = normal(n, dtype=storage(program)), np.full(8, np.nan, f32)
    program.launch("sum", 8, 64, [x, y, i32(n)])
    np.testing.assert_allclose(y.sum(), x.sum(dtype=np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (33, 50)])
def test_transpose(program, shape):
    x = normal(*shape, dtype=storage(program))
    y = np.full(shape[::-1], np.nan, x.dtype)
    rows, columns = shape
    program.launch("transpose", (-(-columns // 16), -(-rows // 16)), (16, 16), [x, y, i32(rows), i32(columns)])
    np.testing.assert_array_equal(y, x.T)


def test_widen_and_round_agree_with_numpy_on_all_halves_ties_and_limits(half):
    every, u = units.halves(), units.floats()
    y, v = np.zeros(every.size, f32), np.zeros(u.size, np.float16)
    half.launch("convert", 8, 256, [every, y, u, v, i32(every.size), i32(u.size)])
    with np.errstate(over="ignore"):
        expected = u.astype(np.float16)
    real = ~np.isnan(every)
    np.testing.assert_array_equal(y[real].view(np.uint32), every[real].astype(f32).view(np.uint32))
    assert np.isnan(y[~real]).all()
    real = ~np.isnan(u)
    np.testing.assert_array_equal(v[real].view(np.uint16), expected[real].view(np.uint16))
    assert np.isnan(v[~real]).all()


def test_warp_functions(half):
    x, y, z = normal(32), np.zeros((7, 32), f32), np.zeros((5, 32), np.uint32)
    half.launch("warp_functions", 1, 32, [x, y, z])
    lane = np.arange(32)
    source = [
        (lane * 7 + 3) % 32,
        lane ^ 5,
        np.where(lane + 3 < 32, lane + 3, lane),
        np.where(lane >= 3, lane - 3, lane),
        lane // 8 * 8 + 1,
        np.where(lane % 8 + 2 < 8, lane + 2, lane),
        np.where(lane % 8 >= 2, lane - 2, lane),
    ]
    np.testing.assert_array_equal(y, x[np.array(source)])
    ballot = sum(1 << int(i) for i in np.flatnonzero(x > 0))
    assert (z[0] == ballot).all() and (z[1] == 1).all() and (z[2] == 0).all()
    assert (z[3].view(i32) == -31).all() and (z[4, 16:] == 20).all() and (z[4, :16] == 0xAAAA).all()


def test_atomics(half):
    x = np.random.default_rng(0).integers(0, 10, 1000, i32)
    counts, most, least, bits = np.zeros(10, i32), np.zeros(1, np.uint32), np.full(1, 99, i32), np.zeros(2, np.uint32)
    half.launch("histogram", 4, 64, [x, counts, most, least, bits, i32(x.size)])
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=10))
    assert (most[0], least[0], bits[0], bits[1]) == (x.max(), x.min(), 0x3FF, x.size)


@pytest.mark.parametrize("b_transposed", [0, 1])
def test_tensor_core_product_and_its_loads(half, b_transposed):
    a, b, d = normal(16, 16, dtype=np.float16), normal(16, 8, dtype=np.float16, seed=1), normal(16, 8, seed=2)
    expected = d + a.astype(np.float64) @ b.astype(np.float64)
    memory = np.ascontiguousarray(b.T) if b_transposed else b
    half.launch("multiply", 1, 32, [a, memory, d, i32(b_transposed)], shared_bytes=2 * 32 * 24)
    np.testing.assert_allclose(d, expected, rtol=1e-6)


def test_tensor_core_layout_element_by_element(half):
    """With one element of a, then of b, set: it meets the right row or column, and nothing else."""
    for k in range(0, 256, 7):
        a, b, d = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), f32)
        a.flat[k] = 1
        b[:] = np.arange(128).reshape(16, 8)
        half.launch("multiply", 1, 32, [a, b, d, i32(0)], shared_bytes=2 * 32 * 24)
        np.testing.assert_array_equal(d, a.astype(f32) @ b.astype(f32))


def test_scalars(half):
    y = np.zeros(6, f32)
    half.launch("scalars", 1, 32, [y, i32(-3), np.int64(2**40), f32(0.5), np.float64(0.25), np.uint8(200), np.bool_(1)])
    assert y.tolist() == [-3, 2.0**40, 0.5, 0.25, 200, 1]


def test_null_pointer_and_arrays_that_are_one(program):
    x, count = np.arange(40, dtype=storage(program)), np.zeros(1, i32)
    program.launch("accumulate", 2, 32, [x, x, count, i32(40)])
    np.testing.assert_array_equal(x, 2 * np.arange(40))
    assert count[0] == 40
    program.launch("accumulate", 2, 32, [x[:20], x[20:], NULL, i32(20)])
    np.testing.assert_array_equal(x[20:], 2 * (np.arange(20, 40) + np.arange(20)))


def test_views_that_overlap_share_memory(half):
    x = np.arange(9, dtype=np.float16)
    half.launch("shifted", 1, 1, [x[:8], x[1:], i32(0), i32(3)])  # x[1 + 3] = x[0]
    assert x.tolist() == [0, 1, 2, 3, 0, 5, 6, 7, 8]


def test_tables_of_addresses(half):
    xs = [np.arange(50, dtype=np.float16) for _ in range(3)]
    ys = [np.zeros(50, np.float16), xs[2], np.zeros(50, np.float16)[10:]]
    known = {x.ctypes.data: x for x in (*xs, *ys)}
    tables = [np.array([x.ctypes.data for x in arrays], np.uint64) for arrays in (xs, ys)]
    before = [table.copy() for table in tables]
    with pytest.raises(RaceError):  # blocks 1 and 2 share an array
        half.launch("add_one_to_each", 3, 32, [*tables, i32(40)], resolve=known.get)
    tables[0][2], before[0][2] = xs[1].ctypes.data, xs[1].ctypes.data
    half.launch("add_one_to_each", 3, 32, [*tables, i32(40)], resolve=known.get)
    for y in ys:
        np.testing.assert_array_equal(y[:40], np.arange(40) + 1)
    for table, was in zip(tables, before):
        np.testing.assert_array_equal(table, was)
    with pytest.raises(KernelError, match=r"`ys\[2\]`.* at byte 80 \(item 40\)"):
        half.launch("add_one_to_each", 3, 32, [*tables, i32(41)], resolve=known.get)


def test_asynchronous_copies(half):
    x, y = normal(64), np.zeros(64, f32)
    half.launch("copy_and_wait", 1, 32, [x, y])
    np.testing.assert_array_equal(y[:32], x[:32])
    np.testing.assert_array_equal(y[32:], np.where(np.arange(32) % 2 == 0, x[32:], 0))


def test_syncwarp_orders_a_warp(half):
    x, y = normal(64), np.zeros(64, f32)
    half.launch("warp_neighbours", 1, 64, [x, y])
    np.testing.assert_array_equal(y, x[np.arange(64) ^ 1] + f32(2))


def test_empty_arrays(half):
    half.launch("accumulate", 1, 32, [np.zeros(0, np.float16), np.zeros((0, 3), np.float16), NULL, i32(0)])


def test_memory_is_untouched_after_an_error(half):
    x, y = normal(64, dtype=np.float16), np.zeros(64, np.float16)
    with pytest.raises(KernelError):
        half.launch("reverse_without_barrier", 1, 64, [x, y, i32(64)])
    assert not y.any()


# -------------------------------------------------------------------------------------------------------- with mistakes


def test_a_missing_barrier(program):
    x = normal(64, dtype=storage(program))
    with pytest.raises(KernelError, match=r"reverse_without_barrier.*text\.cu:\d+.* without a barrier between"):
        program.launch("reverse_without_barrier", 1, 64, [x, x.copy(), i32(64)])


@pytest.mark.parametrize(
    ("name", "threads", "dtype"), [("hidden_race", 64, f32), ("warp_race", 32, f32), ("atomic_race", 64, i32)]
)
def test_races_that_the_results_may_not_show(half, name, threads, dtype):
    with pytest.raises(KernelError, match=rf"{name}.*shared memory that another thread .* without a barrier between"):
        half.launch(name, 1, threads, [np.zeros(threads, dtype)])


@pytest.mark.parametrize("name", ["global_race", "block_race"])
def test_results_that_depend_on_the_order(half, name):
    with pytest.raises(RaceError, match=rf"{name}: `y`, float32 .* differs when threads run in another order"):
        half.launch(name, 4 if name == "block_race" else 1, 1 if name == "block_race" else 32, [np.zeros(5, f32)])


def test_a_missing_wait_for_copies(half):
    with pytest.raises(KernelError, match=r"copy_without_wait.*differs"):
        half.launch("copy_without_wait", 1, 32, [normal(64), np.zeros(64, f32)])


@pytest.mark.parametrize(("by_x", "by_y", "text"), [
    (1, 0, r"reads memory that is not its own: `x`, .* \(item 32\)"),
    (-1, 0, r"reads memory that is not its own: `x`, .* \(item -1\)"),
    (0, 1, r"writes memory that is not its own: `y`, .* \(item 32\)"),
    (0, -1, r"writes memory that is not its own: `y`, .* \(item -1\)"),
    (5000, 0, r"(reads|uses) memory that is not its own"),
    (0, -(2**30), r"(writes|uses) memory that is not its own"),  # downwards, where nothing is mapped yet
], ids=["read behind", "read before", "write behind", "write before", "read far", "write far"])  # fmt: skip
def test_global_memory_out_of_bounds(program, by_x, by_y, text):
    for start in range(9):  # whatever the alignment of the two ends
        x, y = (np.zeros(50, storage(program))[start : start + 32] for _ in range(2))
        where = r"shifted, block \(0, 0, 0\), thread \(\d+, 0, 0\), text\.cu:\d+: "
        with pytest.raises(KernelError, match=where + text):
            program.launch("shifted", 1, 32, [x, y, i32(by_x), i32(by_y)])


def test_null_pointer_used(half):
    with pytest.raises(KernelError, match=r"add_at_null, block .*, thread \(0, 0, 0\)"):
        half.launch("add_at_null", 1, 1, [NULL, i32(0)])


def test_between_the_elements_of_a_view(half):
    x, y = np.ones(64, np.float16), np.ones(64, np.float16)
    with pytest.raises(RaceError, match=r"`y`.*memory that nobody wrote or that lies in no array"):
        half.launch("shifted", 1, 1, [x[::2], y, i32(1), i32(0)])
    with pytest.raises(KernelError, match=r"writes between the elements of a view: `y`"):
        half.launch("shifted", 1, 1, [x, y[::2], i32(0), i32(1)])


@pytest.mark.parametrize(("write", "read"), [(1, 0), (-1, 0), (0, 1), (0, -1)])
@pytest.mark.parametrize("n", [32, 33])
def test_dynamic_shared_memory_out_of_bounds(half, n, write, read):
    half.launch("dynamic_shared", 1, n, [np.zeros(n, f32), i32(0), i32(0)], shared_bytes=4 * n)
    text = f"{'writes' if write else 'reads'} memory that is not its own: dynamic shared memory ({4 * n} bytes)"
    with pytest.raises(KernelError, match=re.escape(text)):
        half.launch("dynamic_shared", 1, n, [np.zeros(n, f32), i32(write), i32(read)], shared_bytes=4 * n)


@pytest.mark.parametrize(("write", "read"), [(25, 0), (-8, 0), (0, 25), (0, 30), (0, -8)])
@pytest.mark.parametrize("know", [0, 1])
def test_static_shared_memory_out_of_bounds(half, write, read, know):
    y = np.zeros(1, f32)
    half.launch("static_shared", 1, 1, [y, i32(24), i32(24), i32(know)])
    with pytest.raises(KernelError, match="an index is outside of its array" if know else "memory that is not its own"):
        half.launch("static_shared", 1, 1, [y, i32(write), i32(read), i32(know)])


def test_shared_memory_is_nan_at_first(half):
    y = np.zeros(1, f32)
    half.launch("static_shared", 1, 1, [y, i32(24), i32(3), i32(1)])
    assert np.isnan(y[0])


@pytest.mark.parametrize("i", [4, -1])
def test_local_array_out_of_bounds(half, i):
    half.launch("local_array", 1, 1, [np.zeros(1, f32), i32(3)])
    with pytest.raises(KernelError, match="an index is outside of its array"):
        half.launch("local_array", 1, 1, [np.zeros(1, f32), i32(i)])


def test_misaligned_packs(program):
    x, y = (np.arange(64, dtype=storage(program)) for _ in range(2))
    program.launch("packs", 1, 1, [x, y, i32(8), i32(0)])
    assert y[0] == 8
    with pytest.raises(KernelError, match=r"load16: the address .* is not a multiple of 16"):
        program.launch("packs", 1, 1, [x, y, i32(1), i32(0)])
    with pytest.raises(KernelError, match=r"load16: the address .* is not a multiple of 16"):
        program.launch("packs", 1, 1, [x[1:], y, i32(0), i32(0)])
    with pytest.raises(KernelError, match=r"store16: the address .* is not a multiple of 16"):
        program.launch("packs", 1, 1, [x, y, i32(0), i32(1)])
    with pytest.raises(KernelError, match=r"the address is null, or not a multiple"):
        program.launch("misaligned_cast", 1, 1, [x, y, i32(1)])
    with pytest.raises(KernelError, match=r"store16: the address .* is not a multiple of 16"):
        program.launch("unaligned_shared", 1, 1, [x, y])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("some_leave", r"of 64, 1 have left the kernel; 63 wait in __syncthreads \(text\.cu:\d+\)"),
        ("two_barriers", r"__syncthreads, while thread \(0, 0, 0\) waits in that of text\.cu"),
        ("barrier_and_shuffle", r"wait in __syncthreads .* wait in __shfl_xor_sync \(text\.cu:\d+, mask 0xffffffff\)"),
        ("shuffle_after_leaving", r"names lane 5, which has left the kernel"),
        ("shuffle_outside_mask", r"reads lane 20, which the mask 0xffff leaves out"),
        ("not_in_mask", r"mask 0xffff leaves out lane 16, which calls it"),
    ],
)
def test_threads_that_do_not_meet(half, name, text):
    with pytest.raises(KernelError, match=rf"kernel {name}, block \(0, 0, 0\).*{text}"):
        half.launch(name, 1, 64, [np.zeros(64, f32)])


def test_a_block_that_ends_within_a_warp(half):
    with pytest.raises(KernelError, match=r"names lane 31, the block ends before it|names lane 20"):
        half.launch("barrier_and_shuffle", 1, 20, [np.zeros(64, f32)])


def test_matrices_must_lie_in_shared_memory(half):
    with pytest.raises(KernelError, match=r"ldmatrix_x4: .* is not in shared memory"):
        half.launch("matrices_in_global_memory", 1, 32, [np.zeros(256, np.float16), np.zeros(32, f32)])


def test_endless_kernel(half, monkeypatch):
    monkeypatch.setattr(compile, "SECONDS", 1)
    with pytest.raises(KernelError, match="does not end"):
        half.launch("endless", 1, 1, [np.zeros(1, i32)])


def test_stack_overflow(half):
    with pytest.raises(KernelError, match="recursive"):
        half.launch("recursive", 1, 1, [np.zeros(4, f32), i32(100)])


def test_arithmetic_that_is_not_defined(half):
    with pytest.raises(KernelError, match=r"integer overflow in \*"):
        half.launch("overflow", 1, 1, [np.zeros(1, i32), i32(70000)])
    with pytest.raises(KernelError, match="integer division by zero"):
        half.launch("divide", 1, 1, [np.zeros(1, i32), i32(0)])


def test_arrays_that_must_not_overlap(half):
    x = np.zeros(64, np.float16)
    half.launch("restricted", 1, 32, [x[:32], x[32:]])
    with pytest.raises(KernelError, match=r"`x` and `y` overlap.*__restrict__"):
        half.launch("restricted", 1, 32, [x, x])


@pytest.mark.parametrize(
    ("error", "grid", "block", "args", "shared"),
    [
        (ValueError, 1, 65, [np.zeros(65, f32)], 0),  # the launch bounds
        (ValueError, 0, 32, [np.zeros(64, f32)], 0),
        (ValueError, (1, 65536), 32, [np.zeros(64, f32)], 0),
        (ValueError, 1, 32, [np.zeros(64, f32)], 228 * 1024),
        (TypeError, 1, 32, [np.zeros(64)], 0),
        (TypeError, 1, 32, [f32(1)], 0),
        (TypeError, 1, 32, [], 0),
    ],
)
def test_launches_that_a_gpu_refuses(half, error, grid, block, args, shared):
    with pytest.raises(error, match="kernel bounded"):
        half.launch("bounded", grid, block, args, shared)


def test_unknown_kernel_and_code_that_does_not_compile(half):
    with pytest.raises(ValueError, match="no kernel 'nothing'"):
        half.launch("nothing", 1, 32, [])
    with pytest.raises(RuntimeError, match=r"text\.cu:1"):
        Program.of('extern "C" __global__ void wrong(float* y) { y[0] = missing; }')


# ---------------------------------------------------------------------------------------------------------- machinery


def test_signal_handlers_are_restored(half):
    before = [signal.getsignal(s) for s in (signal.SIGSEGV, signal.SIGVTALRM)]
    with pytest.raises(KernelError):
        half.launch("add_at_null", 1, 1, [NULL, i32(0)])
    assert [signal.getsignal(s) for s in (signal.SIGSEGV, signal.SIGVTALRM)] == before
    half.launch("sum", 1, 32, [np.zeros(4, np.float16), np.zeros(1, f32), i32(4)])  # and all works as before


def test_a_launch_twice_gives_the_same_bits(half):
    x, y, z = normal(1000, dtype=np.float16), np.zeros(8, f32), np.zeros(8, f32)
    half.launch("sum", 8, 64, [x, y, i32(1000)])
    half.launch("sum", 8, 64, [x, z, i32(1000)])
    np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 4096, 5000])
@pytest.mark.parametrize("residue", [0, 2, 15])
@pytest.mark.parametrize("at_end", [False, True])
def test_fenced_memory(size, residue, at_end):
    memory = Fenced(size, residue, at_end, 0xAB)
    assert memory.address % 16 == residue and memory.data.size == size
    start, end = memory.low + FENCE, memory.high - FENCE
    assert start <= memory.address and memory.address + size <= end
    assert (end - memory.address - size if at_end else memory.address - start) < 16
    memory.data[:] = 1
    memory.free()


def test_groups_of_overlapping_arrays():
    x, y = np.zeros(100, np.uint8), np.zeros(10, np.uint8)
    found = groups([x[10:20], x[15:30], y, x[40:60:2], y, x[30:35]])
    members = sorted(sorted(g.members) for g in found)
    assert members == [[0, 1], [2, 4], [3], [5]]
    views = [x[0:20:4], x[2:20:4]]
    (group,) = groups(views)
    np.testing.assert_array_equal(group.gaps(views), np.arange(1, 18, 2))


def test_without_a_compiler_it_says_so():
    code = (
        "import cuda_on_cpu; print(cuda_on_cpu.problem())\n"
        "try: cuda_on_cpu.Program.of('')\n"
        "except RuntimeError as e: print(e)"
    )
    root = pathlib.Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tests")])
    environment = {"PATH": "", "PYTHONPATH": path, "CXX": "no-such-compiler"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("no C++ compiler") == 2
