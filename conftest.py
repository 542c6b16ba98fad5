"""Defaults of `pytest` with its plugins, which are optional (`pip install pytest` suffices).

Without arguments, everything runs, in two processes (pytest-xdist; -n says otherwise). Notebooks are run by nbmake.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

# Hundreds of processes of the tests import tinymp: they compile it once, whatever the environment says
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # the second is PyTorch's
    os.environ.setdefault(_name, "1")  # as many processes as cores: their threads would only fight


# These take longest and run first: at the end both processes share short tests
LONGEST = (
    "tests/gpu/test_nvrtc.py::test_every_kernel_compiles",
    "examples/notebooks/",
    "tests/audit/test_docs_audit.py",
    "tests/benchmarks/",
    "tests/parallel/",
    "tests/lab/test_bisect.py",
)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config: pytest.Config) -> None:
    option, everything = config.option, config.args_source is config.ArgsSource.TESTPATHS
    if config.pluginmanager.has_plugin("nbmake"):
        option.nbmake = True
    worker = hasattr(config, "workerinput")
    if config.pluginmanager.has_plugin("xdist") and everything and not worker and option.numprocesses is None:
        option.numprocesses = 0 if option.usepdb else 2
        option.dist = "worksteal" if option.numprocesses and option.dist == "no" else option.dist


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, name in enumerate(LONGEST) if item.nodeid.startswith(name)), 99))


class _Notebook(pytest.Item):
    def runtest(self) -> None:
        pytest.skip("nbmake is not installed (the extra dev)")


class _NotebookFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield _Notebook.from_parent(self, name="notebook")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.File | None:
    without = file_path.suffix == ".ipynb" and not parent.config.pluginmanager.has_plugin("nbmake")
    return _NotebookFile.from_parent(parent, path=file_path) if without else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests, or whole files of them, were skipped for want of which extra."""
    reasons = (str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    counts = Counter(found[1] for reason in reasons if (found := re.search(r"\(the extra (\w+)\)", reason)))
    if counts:
        told = ", ".join(f"{extra} ({count})" for extra, count in sorted(counts.items()))
        terminalreporter.write_line(f"skipped for want of an extra: {told}")


def pytest_configure(config: pytest.Config) -> None:
    if not os.environ.get("CI"):  # a newer NumPy may announce changes: that is no error where tinymp is only used
        for category in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning"):
            config.addinivalue_line("filterwarnings", f"default::{category}")
