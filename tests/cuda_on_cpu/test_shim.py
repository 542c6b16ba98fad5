"""CUDA kernels on the CPU: every planted mistake is found and named. (What correct ones compute, tests/gpu holds.)"""

import pathlib
import signal

import numpy as np
import pytest

import cuda_on_cpu
from cuda_on_cpu import KernelError, Program, compile
from tinymp.gpu.kernels import HERE

pytestmark = pytest.mark.skipif(cuda_on_cpu.problem() is not None, reason=str(cuda_on_cpu.problem()))
ELEMENTS = (HERE / "elements.cuh").read_text(encoding="utf-8")
TEXT = (pathlib.Path(__file__).parent / "planted.cu").read_text(encoding="utf-8")
NULL = np.uint64(0)
i32, f32 = np.int32, np.float32


@pytest.fixture(scope="module")
def half():
    return Program.of(f'{ELEMENTS}\n#line 1 "text.cu"\n{TEXT}', "half")


def floats(n):
    return np.arange(n, dtype=f32)


def halves(n, start=0):
    return np.arange(n + start, dtype=np.float16)[start:]


def own(what):
    return f"{what} memory that is not its own"


LINE, SHARED = r"text\.cu:\d+", "shared memory that another thread .* without a barrier between"
NOT_A_MULTIPLE, OUTSIDE = "16: the address .* is not a multiple of 16", "an index is outside of its array"
ORDER = r": `y`, float32 .* differs when threads run in another order"
MISTAKES = [  # kernel, blocks, threads, arguments, bytes of shared memory, what is said
    ("hidden_race", 1, 64, (floats(64),), 0, SHARED),
    ("warp_race", 1, 32, (floats(32),), 0, SHARED),
    ("atomic_race", 1, 64, (np.zeros(64, i32),), 0, SHARED),
    ("global_race", 1, 32, (floats(5),), 0, ORDER),
    ("block_race", 4, 1, (np.zeros(5, f32),), 0, ORDER),
    ("copy_without_wait", 1, 32, (floats(64), floats(64)), 0, "differs"),
    ("shifted", 1, 32, (halves(32, 3), halves(32, 5), i32(1), i32(0)), 0, own("reads") + r": `x`, .* \(item 32\)"),
    ("shifted", 1, 32, (halves(32, 7), halves(32, 1), i32(0), i32(1)), 0, own("writes") + r": `y`, .* \(item 32\)"),
    ("shifted", 1, 32, (halves(32), halves(32), i32(5000), i32(0)), 0, own("(reads|uses)")),
    (
        "shifted",
        1,
        1,
        (halves(64)[::2], halves(64), i32(1), i32(0)),
        0,
        "`y`.*memory that nobody wrote or that lies in",
    ),
    ("shifted", 1, 1, (halves(64), halves(64)[::2], i32(0), i32(1)), 0, "writes between the elements of a view: `y`"),
    ("add_at_null", 1, 1, (NULL, i32(0)), 0, r"block .*, thread \(0, 0, 0\)"),
    ("dynamic_shared", 1, 33, (floats(33), i32(1), i32(0)), 132, own("writes") + r": dynamic shared memory \(132"),
    ("dynamic_shared", 1, 33, (floats(33), i32(0), i32(-1)), 132, own("reads") + r": dynamic shared memory \(132"),
    ("static_shared", 1, 1, (floats(1), i32(25), i32(0), i32(0)), 0, "memory that is not its own"),
    ("static_shared", 1, 1, (floats(1), i32(0), i32(25), i32(1)), 0, OUTSIDE),
    ("local_array", 1, 1, (floats(1), i32(4)), 0, OUTSIDE),
    ("packs", 1, 1, (halves(64), halves(64), i32(1), i32(0)), 0, "load" + NOT_A_MULTIPLE),
    ("packs", 1, 1, (halves(64), halves(64), i32(0), i32(1)), 0, "store" + NOT_A_MULTIPLE),
    ("misaligned_cast", 1, 1, (halves(64), halves(64), i32(1)), 0, "the address is null, or not a multiple"),
    ("unaligned_shared", 1, 1, (halves(64), halves(64)), 0, "store" + NOT_A_MULTIPLE),
    ("some_leave", 1, 64, (floats(64),), 0, rf"of 64, 1 have left the kernel; 63 wait in __syncthreads \({LINE}\)"),
    ("two_barriers", 1, 64, (floats(64),), 0, r"__syncthreads, while thread \(0, 0, 0\) waits in that of text\.cu"),
    ("barrier_and_shuffle", 1, 64, (floats(64),), 0, "wait in __syncthreads .* wait in __shfl_xor_sync .*mask 0xff"),
    ("shuffle_after_leaving", 1, 64, (floats(64),), 0, "names lane 5, which has left the kernel"),
    ("shuffle_outside_mask", 1, 64, (floats(64),), 0, "reads lane 20, which the mask 0xffff leaves out"),
    ("not_in_mask", 1, 64, (floats(64),), 0, "mask 0xffff leaves out lane 16, which calls it"),
    ("matrices_in_global_memory", 1, 32, (halves(256), floats(32)), 0, "ldmatrix_x4: .* is not in shared memory"),
    ("endless", 1, 1, (np.zeros(1, i32),), 0, "does not end"),
    ("recursive", 1, 1, (np.zeros(4, f32), i32(100)), 0, "memory that is not its own"),
    ("overflow", 1, 1, (np.zeros(1, i32), i32(70000)), 0, r"integer overflow in \*"),
    ("divide", 1, 1, (np.zeros(1, i32), i32(0)), 0, "integer division by zero"),
    ("restricted", 1, 32, (X := halves(64), X), 0, r"`x` and `y` overlap.*__restrict__"),
    ("bounded", 1, 65, (floats(65),), 0, "a block of 65 threads; at most 64"),
    ("bounded", 1, 32, (np.zeros(64),), 0, "expects an array of float32"),
]


@pytest.mark.parametrize(("name", "grid", "block", "args", "shared", "said"), MISTAKES)
def test_mistakes_are_found(half, monkeypatch, name, grid, block, args, shared, said):
    monkeypatch.setattr(compile, "SECONDS", 1)
    before = [signal.getsignal(s) for s in (signal.SIGSEGV, signal.SIGVTALRM)], [np.copy(x) for x in args]
    with pytest.raises((KernelError, ValueError, TypeError), match=f"kernel {name}.*{said}"):
        half.launch(name, grid, block, args, shared)
    assert [signal.getsignal(s) for s in (signal.SIGSEGV, signal.SIGVTALRM)] == before[0]
    for x, was in zip(args, before[1]):  # memory is as it was before an error
        np.testing.assert_array_equal(x, was)


def test_the_same_kernels_without_their_mistake(half):
    for name, block, args, shared in (
        ("shifted", 32, [halves(32), halves(32), i32(0), i32(0)], 0),
        ("dynamic_shared", 32, [floats(32), i32(0), i32(0)], 128),
        ("static_shared", 1, [floats(1), i32(24), i32(24), i32(0)], 0),
        ("static_shared", 1, [floats(1), i32(24), i32(24), i32(1)], 0),
        ("local_array", 1, [floats(1), i32(3)], 0),
        ("packs", 1, [halves(64), halves(64), i32(8), i32(0)], 0),
        ("recursive", 1, [floats(4), i32(3)], 0),
        ("restricted", 32, [X[:32], X[32:]], 0),
        ("bounded", 64, [floats(64)], 0),
    ):
        half.launch(name, 1, block, args, shared)
    y = floats(1)
    half.launch("static_shared", 1, 1, [y, i32(24), i32(3), i32(1)])
    assert np.isnan(y[0])  # as shared memory is at first
    x = halves(9)
    half.launch("shifted", 1, 1, [x[:8], x[1:], i32(0), i32(3)])  # views that overlap share memory: x[1 + 3] = x[0]
    assert x.tolist() == [0, 1, 2, 3, 0, 5, 6, 7, 8]
