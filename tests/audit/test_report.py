"""The HTML report: what it says, that it is well-formed, and what a browser makes of it."""

import functools
import html.parser
import json
import re
import shutil
import subprocess
import sys

import pytest

from audit.sample import content
from kept import kept
from tinymp.audit import numbers, report
from tinymp.audit.report import page

pytestmark = pytest.mark.cpu
SECTIONS = ["summary", "advice", "model", "ledger", "histograms", "updates", "scale", "bytes", "products", "shadow"]
SECTIONS += ["formats", "accumulators", "words", "environment"]
NASTY = "<script>alert('x')</script>&amp;\"{{ 7 * 7 }}"


class Page(html.parser.HTMLParser):
    """A parsed page. Elements as (tag, attributes, text within); AssertionError where tags do not match."""

    VOID = ("meta", "link", "input", "br", "wbr", "img")
    SHAPES = ("path", "rect")

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
        if tag not in self.VOID + self.SHAPES:
            self._open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        if tag not in self.SHAPES:
            assert self._open and self._open[-1][0] == tag, f"</{tag}> in {self._open[-1:]}, line {self.getpos()[0]}"
            self._open.pop()

    def handle_data(self, data):
        for _, _, text in self._open:
            text.append(data)

    def all(self, tag, **wanted):
        found = [(a, " ".join("".join(t).split())) for name, a, t in self.elements if name == tag]
        return [(a, t) for a, t in found if all(a.get(k) == v for k, v in wanted.items())]

    @property
    def ids(self):
        return [a["id"] for _, a, _ in self.elements if "id" in a]

    def text(self, tag, **wanted):
        return " ".join(text for _, text in self.all(tag, **wanted))

    @property
    def title(self):
        """The page's; drawings have titles, too."""
        return self.all("title")[0][1]


@functools.cache
def whole():
    """The page of the sample."""
    return page(content())


@pytest.fixture(scope="module")
def sample():
    return Page(whole())


def test_every_section_is_there_and_linked(sample):
    assert [a["id"] for a, _ in sample.all("section")] == SECTIONS
    assert len(set(sample.ids)) == len(sample.ids)
    links = [a["href"] for a, _ in sample.all("a")]
    assert links[: len(SECTIONS)] == [f"#{s}" for s in SECTIONS]
    assert {link[1:] for link in links if "=" not in link} <= set(sample.ids)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\((?!#)", whole())  # nothing is loaded from elsewhere


def test_a_section_may_be_missing_or_empty():
    made = Page(page(content(scale=None)))
    assert [a["id"] for a, _ in made.all("section")] == [s for s in SECTIONS if s != "scale"]
    assert f"Not measured in this audit: {report.MEASURED['scale']}." in made.text("section", id="summary")
    empty = {name: type(value)() for name, value in content().items() if name in SECTIONS and name != "summary"}
    made = Page(page(content(**empty)))
    assert [a["id"] for a, _ in made.all("section")] == ["summary", "advice", "ledger", "words"]
    assert "Nothing to advise" in made.text("section", id="advice")
    made = Page(page({"updates": [{"name": "w"}], "shadow": [{"module": "m", "op": "relu"}]}))
    assert "–" in made.text("section", id="updates")


def planted(text):
    """A report in which every string that comes from a user is `text`."""

    def plant(value):
        if isinstance(value, dict):
            users = {"title", "policy", "name", "module", "caller", "text", "why", "where", "source", "created"}
            return {k: text if k in users and isinstance(v, str) else plant(v) for k, v in value.items()}
        return [plant(v) for v in value] if isinstance(value, list) else value

    made = plant(content())
    made["environment"] = {text: text}
    made["bytes"]["measured"][text] = {text: 3}
    made["ledger"][0]["roundings"] = {text: made["ledger"][0]["roundings"]["tensor.py:507"]}
    return made


def test_what_users_wrote_is_escaped(sample):
    source = page(planted(NASTY))
    made = Page(source)
    assert "<script>alert" not in source
    assert len(made.all("script")) == len(sample.all("script")) == 2
    for section in set(SECTIONS) - {"words", "histograms"}:
        assert NASTY in made.text("section", id=section), section
    assert made.text("h1") == made.title == NASTY


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        ("count", 22_478_848, "22.5 M"),
        ("share", 0.12345, "12.3 %"),
        ("share", 0.00001, "< 0.01 %"),
        ("share", float("nan"), "–"),
        ("number", -493583.2, "−493,583"),
        ("number", 2.5e-7, "2.50 × 10⁻⁷"),
        ("number", "inf", "∞"),
        ("size", 1024 * 1010, "1,010 KiB"),
        ("power", 2.0**-14, "2⁻¹⁴"),
        ("dtypes", "float32 master, float16 copy", "FP32 master, FP16 copy"),
    ],
)
def test_numbers_are_written_for_people(form, value, text):
    assert getattr(numbers, form)(value).replace("\xa0", " ") == text


def test_write_and_its_error_without_jinja(tmp_path, monkeypatch):
    path = tmp_path / "a folder" / "that is missing" / "audit.html"
    report.write(path, content(title="Zürich ∞"))
    assert "<h1>Zürich ∞</h1>" in path.read_text(encoding="utf-8")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install -e "\.\[audit\]"'):
        report.write(tmp_path / "audit.html", {})


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """browser(page) -> (DOM after loading, what the console said), kept from the last time."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    folder = tmp_path_factory.mktemp("browser")
    common = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    common += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000"]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout

    def run(source):
        path = folder / "page.html"

        def look(made):
            path.write_text(source, "utf-8")
            command = [program, *common, "--dump-dom", path.as_uri()]
            done = subprocess.run(command, capture_output=True, timeout=120, check=True)
            console = [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]
            made.write_text(json.dumps([done.stdout.decode(), console]), "utf-8")

        return json.loads(kept("browser.json", [version, source], look).read_text("utf-8"))

    return run


def test_it_loads_without_a_word_on_the_console(browser):
    for source in (whole(), page({}), page(planted(NASTY))):
        dom, console = browser(source)
        assert not console
        Page(dom)


def test_the_policy_of_the_page_lets_its_own_script_run_and_no_other(browser):
    source = whole()
    (allowed,) = (a["content"] for a, _ in Page(source).all("meta", **{"http-equiv": "Content-Security-Policy"}))
    assert allowed.startswith("default-src 'none'") and "unsafe" not in allowed
    assert not re.search(r'\sstyle="|\son\w+="', source)
    planted = source.replace("</body>", "<script>document.title = 'planted'</script></body>")
    dom, console = browser(planted)
    assert Page(dom).title != "planted" and "Content Security Policy" in " ".join(console)
