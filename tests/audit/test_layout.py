"""The report's layout, as a browser draws it: on a phone, and on paper."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from audit.test_report import whole

pytestmark = pytest.mark.cpu
WIDTH = 390  # pixels of a phone

# The page in a frame of that width; its own content policy lets no script run in it
FRAME = """<!DOCTYPE html><body style="margin: 0"><iframe srcdoc="{page}"
style="width: {width}px; height: 60000px; border: 0"></iframe><pre></pre><script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, box = (e) => e.getBoundingClientRect()
  const shown = [...page.body.querySelectorAll("*")].filter((e) => box(e).width && !e.closest("svg *, .scroll *"))
  const wide = shown.filter((e) => box(e).right > {width} + 0.5).map((e) => e.outerHTML.slice(0, 80))
  const pictures = [...page.querySelectorAll("svg")].map((e) => [box(e).left, box(e).right, box(e).top, box(e).bottom])
  const found = {{wide, pictures, all: shown.length, width: page.documentElement.scrollWidth}}
  document.querySelector("pre").textContent = JSON.stringify(found)
}})</script>"""


def on_a_phone(browser, source):
    shown, _ = browser(FRAME.format(page=html.escape(source), width=WIDTH), "--dump-dom", "--virtual-time-budget=5000")
    return json.loads(html.unescape(re.search(r"<pre>(.*?)</pre>", shown, re.S)[1]))


def test_on_a_phone_nothing_is_wider_than_the_page_and_pictures_are_stacked(browser):
    found = on_a_phone(browser, whole())
    assert found["all"] > 50 and found["wide"] == [] and found["width"] == WIDTH
    assert len(found["pictures"]) > 10
    for (*_, end), (left, right, top, _) in zip(found["pictures"], found["pictures"][1:]):
        assert top >= end and right - left > 0.75 * WIDTH
    planted = whole().replace("<h2>Ledger</h2>", f"<h2 style='width: {WIDTH}px'>Ledger</h2>")
    found = on_a_phone(browser, planted)
    assert [text[:3] for text in found["wide"]] == ["<h2"]


def blanks(browser, source, folder):
    """The largest share of a printed page's height without ink in one piece, per page."""
    if shutil.which("pdftoppm") is None:
        pytest.skip("no pdftoppm: apt-get install poppler-utils")
    browser(source, f"--print-to-pdf={folder / 'page.pdf'}", "--no-pdf-header-footer")
    subprocess.run(["pdftoppm", "-r", "20", "-gray", folder / "page.pdf", folder / "page"], timeout=120, check=True)
    shares = []
    for path in sorted(folder.glob("page-*.pgm")):
        width, height = map(int, path.read_bytes().split(maxsplit=3)[1:3])
        ink = np.frombuffer(path.read_bytes()[-width * height :], "u1").reshape(height, width).min(1) < 200
        rows = [-1, *np.flatnonzero(ink), height]
        shares.append(max(np.diff(rows)) / height)
    return shares


def test_on_paper_no_page_but_the_last_is_half_empty(browser, tmp_path):
    shares = blanks(browser, whole(), tmp_path)
    assert len(shares) > 3 and max(shares[:-1]) < 0.5
    (planted := tmp_path / "planted").mkdir()
    alone = "<section style='break-before: page; break-after: page'>alone</section><section id='bytes'>"
    apart = whole().replace("<section id='bytes'>", alone)
    assert max(blanks(browser, apart, planted)[:-1]) > 0.5
