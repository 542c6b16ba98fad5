"""The report and the figures: what they show, that they are well-formed, and what a browser makes of them."""

import functools
import html.parser
import re
import sys

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.audit import numbers
from tinymp.audit.report import page
from tinymp.audit.sampling import html as as_html
from tinymp.audit.sampling import table

pytestmark = pytest.mark.cpu
SECTIONS = ["summary", "ledger", "histograms", "updates", "scale", "bytes", "patterns", "products", "shadow"]
SECTIONS += ["formats", "environment"]
FIGURES = "ledger", "exponents", "scales", "scale", "updates", "bytes", "products", "shadow"
NASTY = "<script>alert('x')</script>&amp;\"{{ 7 * 7 }}"


class Page(html.parser.HTMLParser):
    """A parsed page. Elements as (tag, attributes, text within); AssertionError where tags do not match."""

    VOID = ("meta", "link", "br", "wbr")

    def __init__(self, source):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(source)
        self.close()
        assert not self._open, f"not closed: {[tag for tag, _, _ in self._open]}"

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        assert len(element[1]) == len(attributes), f"an attribute twice in {tag}: {attributes}"
        self.elements.append(element)
        if tag not in self.VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        assert self._open and self._open[-1][0] == tag, f"</{tag}> in {self._open[-1:]}, line {self.getpos()[0]}"
        self._open.pop()

    def handle_data(self, data):
        for _, _, text in self._open:
            text.append(data)

    def all(self, tag, **wanted):
        found = [(a, " ".join("".join(t).split())) for name, a, t in self.elements if name == tag]
        return [(a, t) for a, t in found if all(a.get(k) == v for k, v in wanted.items())]

    def text(self, tag, **wanted):
        return " ".join(text for _, text in self.all(tag, **wanted))


@functools.cache
def audited():
    """A training that has something in every section."""
    mp.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    mp.MIXED.cast(model)
    optimizer, scaler = optim.Adam(model.parameters()), optim.DynamicLossScaler(2.0**24)
    x = mp.tensor(np.random.default_rng(0).standard_normal((64, 6)).astype("f2"))
    with mp.audit(shadow=True, formats=["bf16"]) as a, mp.use(mp.MIXED):
        for _ in range(12):
            scaler.scale(ops.cross_entropy(model(x * 2.0**-10), mp.tensor(np.arange(64) % 3))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return a


@functools.cache
def whole():
    pytest.importorskip("matplotlib")
    return page(audited(), NASTY)


def test_every_section_and_every_figure_is_there():
    made = Page(whole())
    assert [a["id"] for a, _ in made.all("section")] == SECTIONS
    assert [a["href"] for a, _ in made.all("a")] == [f"#{s}" for s in SECTIONS]
    ids = [a["id"] for tag, a, _ in made.elements if "id" in a]
    assert len(set(ids)) == len(ids)  # of several drawings, too
    assert all(made.text("section", id=s) for s in SECTIONS)
    drawn = sum(len(audited().figure(name).axes) for name in FIGURES)
    assert len(made.all("svg")) == drawn >= len(FIGURES)
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\((?!#)", whole())


def test_it_holds_what_the_instruments_say():
    made, a = Page(whole()), audited()
    for name in ("updates", "products", "bytes", "shadow"):
        (cells,) = [part.cells for part in getattr(a, name).parts() if hasattr(part, "cells")]
        assert all(cell in made.text("section", id=name) for row in cells for cell in row), name
    assert all(row.caller in made.text("section", id="ledger") for row in a.ledger)


def test_what_users_wrote_is_escaped_and_nothing_runs():
    made = Page(whole())
    assert made.text("h1") == made.all("title")[0][1] == NASTY
    assert not made.all("script") and not re.search(r'\son\w+="', whole())
    (allowed,) = (a["content"] for a, _ in made.all("meta", **{"http-equiv": "Content-Security-Policy"}))
    assert allowed.startswith("default-src 'none'") and "script" not in allowed
    rows = [("name", "n"), (NASTY, "1")]
    assert Page(table(rows)._repr_html_()).text("td") == f"{NASTY} 1"


def test_without_matplotlib_it_has_its_tables(monkeypatch, tmp_path):
    a = audited()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        a.report(path := tmp_path / "a folder" / "that is missing" / "audit.html")
        with pytest.raises(ModuleNotFoundError, match=r'pip install -e "\.\[audit\]"'):
            a.figure("exponents")
    made = Page(path.read_text("utf-8"))
    assert not made.all("svg") and [at["id"] for at, _ in made.all("section")] == SECTIONS
    assert 'Pictures need matplotlib, which is not installed: pip install -e ".[audit]"' in made.text("body")


@pytest.mark.parametrize("name", FIGURES)
def test_figures_without_anything_to_draw(name):
    with mp.audit() as empty:
        pass
    with pytest.raises(ValueError, match="there is nothing to draw"):
        empty.figure(name)
    with pytest.raises(ValueError, match="nothing to draw for 'histogram' in this audit; for ledger, scale, "):
        audited().figure("histogram")


def test_tables_as_html():
    made = table([("module", "n"), *[(f"model.{i}", f"{i}") for i in range(1500)]])
    parsed = Page(made._repr_html_())
    assert len(str(made).splitlines()) == 23 and str(made).endswith("... and 1480 more")
    assert len(parsed.all("tr")) == 1000 + 1
    assert [a["style"] for a, _ in parsed.all("th")][:2] == ["text-align: left", "text-align: right"]


def test_advice_as_html_has_a_title():
    shown = as_html(["It is so.\nOr so.", "Do that\n    because a.b is <1>"])
    assert shown.count("<b>") == 1 and "<b>Do that</b>\n    because a.<wbr>b is &lt;1&gt;" in shown


def test_what_a_notebook_shows():
    a = audited()
    for one in (
        a.ledger,
        a.histograms,
        a.updates,
        a.scale,
        a.bytes,
        a.patterns,
        a.products,
        a.shadow,
        a.formats,
        a.crash,
        a,
    ):
        made = Page(one._repr_html_())
        text = a.told() if one is a else str(one)
        shown = " ".join([made.text("p"), made.text("th"), made.text("td")])
        assert set(re.findall(r"\w{5,}", text)) <= set(re.findall(r"\w{5,}", shown)), one
    assert a.figure("bytes")._repr_svg_().startswith("<svg")


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        ("count", 22_478_848, "22.5 M"),
        ("share", 0.12345, "12.3 %"),
        ("share", 0.00001, "< 0.01 %"),
        ("number", -493583.2, "−493,583"),
        ("number", 2.5e-7, "2.50 × 10⁻⁷"),
        ("number", float("inf"), "∞"),
        ("power", 2.0**-14, "2⁻¹⁴"),
    ],
)
def test_numbers_are_written_for_people(form, value, text):
    assert getattr(numbers, form)(value) == text


def test_it_loads_without_a_word_on_the_console_and_runs_no_script(browser):
    options = "--hide-scrollbars", "--dump-dom", "--virtual-time-budget=3000"
    dom, console = browser(whole(), *options)
    assert not console and len(Page(dom).all("section")) == len(SECTIONS)
    planted = whole().replace("</body>", "<script>document.title = 'planted'</script></body>")
    dom, console = browser(planted, *options)
    assert Page(dom).all("title")[0][1] != "planted" and "Content Security Policy" in " ".join(console)
