"""docs/falling_scale.md: its program is the file, its scale falls, and what the page quotes is what the audit says."""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tinymp.lab.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "falling_scale.md").read_text("utf-8")
SCRIPT = (ROOT / "docs" / "falling_scale.py").read_text("utf-8")

pytestmark = pytest.mark.cpu


def shape(line):
    """The words of a line in any order (causes come by their number), without numbers but those of lines in tinymp."""
    line = re.sub(r"(?<![\w.:])-?\d[\d,.]*(e-?\d+)?(\N{NO-BREAK SPACE}?[kMG]\b)?", "#", line).replace(" # × #⁻⁵", " #")
    return sorted(word.rstrip(".,") for word in line.split())


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Output of the audit of 250 steps of the program, and its audit.json."""
    out = tmp_path_factory.mktemp("falling")
    script = out / "falling_scale.py"
    script.write_text(SCRIPT.replace("range(1, 501)", "range(1, 251)").replace("% 100", "% 50"), "utf-8")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr("tinymp.audit.report.panels", lambda audit: {})
        main(["audit", "--out", str(out / "found"), str(script)])
    return printed.getvalue(), json.loads((out / "found" / "audit.json").read_text("utf-8"))


def test_the_scale_falls_and_the_audit_says_why(audited):
    found = audited[1]
    scales = [s for _, s in found["scale"]["history"]]
    assert scales[0] == 2.0**16 and scales[-1] < 1e-4 and sorted(scales, reverse=True) == scales
    assert {c["op"] for c in found["scale"]["causes"] if c["cause"] == "backward overflow"} == {"sqrt"}
    assert "gradients changed" in {c["cause"] for c in found["scale"]["causes"]}  # 0 / 0: a whole gradient is lost
    (advice,) = [a for a in found["advice"] if a["rule"].startswith("steps_")]  # and none to grow more rarely
    assert "slope at 0 is infinite" in advice["why"]


def test_what_the_page_shows(audited):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert code == SCRIPT
    (quoted,) = re.findall(r"```text\n(.*?)```", PAGE, re.S)
    lines = [line for line in quoted.splitlines() if line.strip(". ") and not line.startswith("$")]
    said = [shape(line) for line in audited[0].splitlines()]
    assert len(lines) > 5 and [line for line in lines if shape(line) not in said] == []


@pytest.mark.parametrize("mended", [["MIXED", "1e-4"], ["FP32"]])
def test_what_mends_it(mended, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["falling_scale.py", *mended])
    exec(compile(SCRIPT.replace("501", "101"), "falling_scale.py", "exec"), {})
    assert re.search(r"step 100: .*, S = 65536, 0 steps skipped", capsys.readouterr().out)
