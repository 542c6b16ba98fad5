"""Generated pages match the source; the README's code runs; the links of all pages lead somewhere."""

import pathlib
import re
import runpy

import pytest

from tinymp.parallel.start import STARTED

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_precision_page_has_not_drifted():
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))["page"]()
    assert (ROOT / "docs" / "precision.md").read_text() == generated, "run: python docs/generate.py"


@pytest.mark.cpu
def test_readme_code_runs(capsys, gpu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    expected = ("APPLIED", "None of 8 steps was skipped", "APPLIED")
    for code, word in zip(re.findall(r"```python\n(.*?)```", README, re.S), expected, strict=True):
        exec(compile(code, "README.md", "exec"), names)  # each goes on where the one before ends
        assert word in capsys.readouterr().out
    assert "linear" in (tmp_path / "audit.html").read_text("utf-8")
    assert names["step"].calls == 8
    assert names["loss"].device == "gpu"


@pytest.mark.cpu
def test_the_loop_of_several_processes_runs_in_one(monkeypatch):
    for name in (*STARTED, "RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "parallel.md").read_text(), re.S)
    names = {}
    exec(compile(code, "parallel.md", "exec"), names)
    assert names["group"].size == 1 and names["scaler"].iteration == 4 and names["mean"] == names["loss"].item()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(f"docs/{n}.md" for n in ("attention", "audit", "formats", "gpu", "parallel", "precision", "results/README")),
    ],
)
def test_links(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


def test_says_that_it_was_not_measured_until_it_was():
    measured = (ROOT / "benchmarks" / "results" / "gpu.json").exists()
    for page in ("README.md", "docs/gpu.md", "docs/parallel.md"):
        text = " ".join((ROOT / page).read_text().split())
        said = re.search(r"tested on a CPU emulation; (it is )?not yet measured on a GPU", text) is not None
        assert said != measured, f"{page}: benchmarks/results/gpu.json " + ("exists" if measured else "does not exist")
