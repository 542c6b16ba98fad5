"""The list of faults: each can be planted today, and the script tells what was found from what was not."""

import json
import shutil
from collections import Counter

import pytest

from faults.__main__ import FOUND, ROOT, Stale, read, result, table

pytestmark = pytest.mark.cpu
FAULTS = read()


def test_there_are_200_faults_with_names_of_their_own():
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 200


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_at_one_place_and_compiles(fault):
    path, source = fault.planted(ROOT / "tinymp")
    assert source != path.read_text(encoding="utf-8")
    compile(source, path, "exec")


def test_the_noted_results_are_those_of_the_list():
    found = json.loads(FOUND.read_text(encoding="utf-8"))
    assert list(found) == [fault.name for fault in FAULTS]
    assert not Counter(one["result"] for one in found.values()).keys() - {"killed", "survived"}


@pytest.mark.parametrize(
    ("test", "expected"), [("core/ops/test_activation.py", "killed"), ("audit/test_info.py", "survived")]
)
def test_a_planted_fault_is_killed_by_a_test_that_looks_and_is_taken_away_again(test, expected, tmp_path):
    fault = next(fault for fault in FAULTS if fault.name == "leaky_relu_slope_at_0")
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(".git", ".*_cache", "__pycache__"))
    known = {f"tests/{test}": {"seconds": 5, "calls": [f"{fault.file} {fault.function}"]}}
    found = result(copy, fault, known)
    assert found["result"] == expected
    assert found["by"].startswith(f"tests/{test}::" if expected == "killed" else "")
    assert (copy / "tinymp" / fault.file).read_bytes() == (ROOT / "tinymp" / fault.file).read_bytes()
    assert fault.name not in table([fault], {fault.name: found}) or expected == "survived"


def test_a_function_that_moved_is_found_and_a_text_that_is_gone_is_stale(tmp_path):
    (tmp_path / "there.py").write_text("class Op:\n    def f(self, x):\n        return (x +\n            1)\n")
    fault = FAULTS[0]._replace(file="here.py", function="Op.f", old="x + 1", new="x")
    assert "return (x)" in fault.planted(tmp_path)[1]
    for gone in (fault._replace(old="x + 2"), fault._replace(function="Op.g")):
        with pytest.raises(Stale, match="0 times"):
            gone.planted(tmp_path)
