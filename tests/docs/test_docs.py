"""Generated pages match the source; the code of README and guide runs; the links of all pages lead somewhere."""

import ast
import json
import pathlib
import re
import runpy
import statistics

import pytest

from tinymp.parallel.start import STARTED

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "DATA.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md"))),
]
BEGINNINGS = ("What", "How", "Whether", "Of", "Which", "Those", "That")  # of a noun phrase, where a sentence belongs
GUIDE = re.search(r"- Guide:\n(.*?)\n  - \w", (ROOT / "mkdocs.yml").read_text("utf-8"), re.S)[1]
SAYS = {  # what the code of a page prints at last
    "README.md": r"epoch 4: 9\d% .*APPLIED.*; 0 of 12 steps",
    "docs/index.md": "",
    "docs/loop.md": r"epoch 9: loss 0\.[01].*9\d% of 100 new points are right\nAPPLIED",
    "docs/policies.md": r"MIXED: 0\.1000\nFP16_REDUCTIONS: 0\.0625\nCHUNKED\(.*\) float16 float32",
    "docs/scalers.md": r"1: 100% of .*65536: 0% of .*APPLIED 65536\.0 \[\(0, 8388608\.0",
    "docs/checkpoints.md": r"^True$",
    "docs/gpu.md": r"\d\.\d+  APPLIED  scale 65536",
    "docs/parallel.md": "",
    "docs/pytorch.md": "",
}


def blocks(page):
    """The Python of a page; each block keeps its lines' numbers."""
    text = (ROOT / page).read_text("utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        yield "\n" * (text[: found.start()].count("\n") + 1) + found[1]


def test_generated_pages_have_not_drifted():
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    pages = made["pages"]()
    assert {path.name for path in pages} == {"precision.md", "speed.md", "tensor_cores.md"}
    assert all(path.read_text("utf-8") == text for path, text in pages.items()), "run: python -m docs.generate"
    assert len(made["page"]().split()) <= 2000


def test_words_written_by_hand_are_few():
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    words = made["words"]()
    assert words["docs/gpu.md"] <= 1000 and made["guide"](words) <= 15500 and sum(words.values()) <= 17000


def test_docstrings_begin_with_a_noun_or_a_verb():
    """Not with "What ...", "Whether ..." or "Of ...": subject, verb, object."""
    found = []
    for path in sorted((ROOT / "tinymp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
                said = (ast.get_docstring(node) or "").split("\n")[0]
                found += [f"{path}: {said}"] * (said.split(" ")[0] in BEGINNINGS)
    assert not found, "\n".join(found)


def test_all_pages_of_the_guide_are_run_and_readme_is_short():
    assert {f"docs/{name}" for name in re.findall(r": (\w+\.md)$", GUIDE, re.M)} <= SAYS.keys()
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


@pytest.mark.cpu
@pytest.mark.parametrize("page", SAYS)
def test_code_of_a_page_runs(page, capsys, request, tmp_path, monkeypatch):
    """In order, in one program, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in (*STARTED, "RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    if page == "docs/gpu.md":
        request.getfixturevalue("gpu")
    names = {}
    for code in blocks(page):
        if "import torch\n" not in code:  # the next test runs it
            exec(compile(code, page, "exec"), names)
    assert re.search(SAYS[page], capsys.readouterr().out.strip(), re.S)
    if page == "README.md":
        assert "linear" in (tmp_path / "audit.html").read_text("utf-8")
    elif page == "docs/gpu.md":
        assert names["loss"].device == "gpu"
    elif page == "docs/pytorch.md":
        assert names["net"][0].weight.dtype == "float16" and names["scaler"].iteration == 1
        assert names["loss"].item() < 0.6
    elif page == "docs/parallel.md":
        assert names["group"].size == 1 and names["scaler"].iteration == 4 and names["mean"] == names["loss"].item()


@pytest.mark.cpu
@pytest.mark.peer
def test_audit_of_a_model_of_pytorchs(capsys):
    """The page's program prints what the page shows of it; "..." stands for more."""
    pytest.importorskip("torch")
    text = (ROOT / "docs/pytorch.md").read_text("utf-8")
    (code, shown) = re.search(r"```python\n(import torch\n.*?)```.*?```text\n(.*?)```", text, re.S).groups()
    exec(compile(code, "program.py", "exec"), {})
    assert re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*"), capsys.readouterr().out, re.S)


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    """To files of the repository; those within the site are checked by mkdocs (test_site.py), anchors too."""
    path, site = ROOT / page, (ROOT / "mkdocs.yml").read_text("utf-8")
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.S | re.M)
    for target, anchor in re.findall(r"\]\(([^)#\s]+)(?:#([^)]+))?\)", text):
        made = target.startswith("reference/") and f" {target}\n" in site  # from docstrings
        assert made or target.startswith("https://") or (path.parent / target).exists(), target
        if anchor and page == "README.md":
            assert f"## {anchor.replace('-', ' ')}" in (path.parent / target).read_text("utf-8").lower(), anchor


def test_the_table_of_formats_is_that_of_the_runs():
    """Their means, in bold those that are further from FP32's mean than FP32's runs are from each other."""
    rows = re.findall(r"^\| (\S[^|]*, [^|]* \| \d.*) \|$", (ROOT / "docs/formats.md").read_text("utf-8"), re.M)
    scores = {}
    for run in json.loads((ROOT / "docs/results/formats.json").read_text("utf-8"))["runs"]:
        scores.setdefault(run["name"], {}).setdefault(run["setting"], []).append(run["score"])
    assert [row.split(",")[0] for row in rows] == ["MNIST CNN", "LSTM", "DCGAN"]
    for row in rows:
        of, fp32 = scores[row.split(",")[0]], scores[row.split(",")[0]]["FP32"]
        settings = ("FP32", "FP16, not scaled", "FP16, dynamic scale", "BF16", "FP8")
        for cell, runs in zip(row.split(" | ")[1:], map(of.get, settings), strict=True):
            mean = statistics.fmean(runs)
            said = re.match(r"[*]*([\d.]+)", cell)[1]
            assert said == f"{mean:.{len(said.split('.')[1])}f}"
            assert cell.startswith("**") == (abs(mean - statistics.fmean(fp32)) > max(fp32) - min(fp32))
