"""The site: mkdocs builds it without a warning, and its pages need nothing from elsewhere."""

import html
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    for name in ("mkdocs", "material", "mkdocstrings_handlers.python", "latex2mathml"):
        pytest.importorskip(name, reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr[-3000:]
    return folder


def test_formulas_are_mathml_and_nothing_is_loaded_from_elsewhere(site):
    page = (site / "scalers.html").read_text("utf-8")
    assert page.count("<math") >= 8 and "arithmatex" not in page and "<mfrac>" in page
    for one in site.rglob("*.html"):  # without a network, too
        assert not re.search(r'<(?:script|link|img)[^>]* (?:src|href)="?(?:https?:)?//', one.read_text("utf-8")), one


def test_the_reference_has_what_there_is(site):
    from examples import paper
    from tinymp import data, nn, ops, optim, parallel

    for package in (data, paper, nn, ops, optim, parallel):
        name = package.__name__.removeprefix("tinymp.")
        page = (site / f"reference/{name}.html").read_text("utf-8")
        public = getattr(package, "__all__", None) or [n for n in dir(package) if n[0] != "_"]
        documented = [
            n for n in public if getattr(getattr(package, n), "__module__", "").startswith(("tinymp", "examples"))
        ]
        documented = [n for n in documented if getattr(getattr(package, n), "__name__", "") == n]  # no second names
        documented = [n for n in documented if inspect.getsourcefile(getattr(package, n)) != package.__file__]
        missing = [n for n in documented if not re.search(rf'id="(?:tinymp|examples)\.[\w.]+\.{n}"', page)]
        assert not missing and len(documented) > 2, (name, missing)


def test_signatures_wrap_and_headings_are_names(site):
    for path in sorted((site / "reference").glob("*.html")):
        page = path.read_text("utf-8")
        signatures = re.findall(r'<div class="[^"]*highlight">(.*?)</div>', page, re.S)
        shown = [html.unescape(re.sub("<[^>]+>", "", signature)).strip() for signature in signatures]
        assert max(len(line) for signature in shown for line in signature.splitlines()) <= 80, path
        assert not [text for text in shown if re.match(r"\w+(: Made)? = (_|unary)", text)], path  # the source of a row
        assert "AdamW()" not in shown and "module-attribute" not in page
        headings = re.findall(r"<h[1-6][^>]*>(.*?)</h", page, re.S)
        names = [re.sub("<[^>]+>|\\s|&para;|\xb6", "", heading) for heading in headings]
        assert all(re.fullmatch(r"[\w.]+", name) for name in names), (path, names)


def test_the_search_finds_what_explain_says(site):
    node = shutil.which("node") or pytest.skip("the search runs in node")
    text = (ROOT / "docs/questions.md").read_text("utf-8")
    asked = [
        question for heading in re.findall("^## (.*)", text, re.M) for question in re.findall(r"[^?\s][^?]*", heading)
    ]
    words = {
        "autocast": "questions.html#what-is-autocast-here",
        "GradScaler": "questions.html#how-is-gradscaler-called-here",
        "loss is nan": "scalers.html#when-steps-are-skipped-or-the-loss-is-nan",
        "which ops are FP32": "questions.html#which-ops-stay-fp32",
        "loss scaling": "scalers.html",
        "cross_entropy": "reference/ops.html#tinymp.ops.loss.cross_entropy",
        "checkpoints": "checkpoints.html",
        "your own op": "source/course/03_your_own_op.ipynb.html",
        "grade a class": "teaching.html",
    }
    command = [node, str(Path(__file__).with_name("search.js")), str(site), *words, *asked]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    for (word, place), places in zip(words.items(), found):
        assert places[0].startswith(place), (word, places[:3])
    first = [places[0].split("#")[0] if places else "" for places in found[len(words) :]]
    guide = {
        "questions.html",
        "scalers.html",
        "formats.html",
        "attention.html",
        "tensor_cores.html",
        "checkpoints.html",
    }
    missed = [(question, page) for question, page in zip(asked, first) if page not in guide]
    assert len(missed) <= len(asked) // 10, missed
