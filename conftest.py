"""What `pytest` does by itself where its plugins are there: it runs without them, too (`pip install pytest` is enough).

Without arguments, everything runs, in two processes (pytest-xdist; -n says otherwise). Notebooks are run by nbmake.
"""

import os
import sys

import pytest

# Hundreds of processes of the tests import tinymp: they compile it once, whatever the environment says. It lies in
# __pycache__ beside the compiled kernels, as do the rewritten tests
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config: pytest.Config) -> None:
    option, everything = config.option, config.args_source is config.ArgsSource.TESTPATHS
    if config.pluginmanager.has_plugin("nbmake"):
        option.nbmake = True
    worker = hasattr(config, "workerinput")
    if config.pluginmanager.has_plugin("xdist") and everything and not worker and option.numprocesses is None:
        option.numprocesses = 0 if option.usepdb else 2


def pytest_configure(config: pytest.Config) -> None:
    if not os.environ.get("CI"):  # a newer NumPy may announce changes: that is no error where tinymp is only used
        for category in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning"):
            config.addinivalue_line("filterwarnings", f"default::{category}")
