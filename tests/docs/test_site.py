"""The site: mkdocs builds it without a warning, and a browser opens it. One build and one start of the browser."""

import functools
import html
import http.server
import inspect
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu
ROOT = Path(__file__).parents[2]
MAIN = ["index", "scalers", "audit", "results/index", "reference/ops"]
PAGES = [f"{name}.html" for name in (*MAIN, "source/tinymp/precision.py")]
SEARCH = "index.html?q=loss+scaling"
WIDTH = 390

HARNESS = """<!DOCTYPE html><title>?</title><body><script>
const frames = %s.map(name => {
    const frame = document.createElement("iframe");
    frame.style = "border: 0; height: 900px; width: %dpx";
    frame.src = name;
    document.body.append(frame);
    return frame;
});
const results = () => [...frames.at(-1).contentDocument.querySelectorAll("a.md-search-result__link")];
const ready = setInterval(() => {
    if (!frames.every(frame => frame.contentDocument.readyState == "complete") || !results().length) return;
    clearInterval(ready);
    const told = frames.map(({contentWindow: w}) => ({
        title: w.document.title,
        width: w.document.documentElement.scrollWidth,
        text: w.document.querySelector("article").innerText.length,
        loaded: w.performance.getEntriesByType("resource").map(one => one.name),
    }));
    fetch("told", {method: "POST", body: JSON.stringify({pages: told, found: results().map(a => a.pathname)})});
}, 100);
</script>"""


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


@pytest.fixture(scope="module")
def opened(site):
    """What a browser found: pages, in frames as wide as a phone, what the search found, and the console's lines."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    (site / "harness.html").write_text(HARNESS % (json.dumps([*PAGES, SEARCH]), WIDTH), "utf-8")
    told = queue.Queue()

    class Server(http.server.SimpleHTTPRequestHandler):
        def do_POST(self):
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_error(204)

        def log_message(self, *_):
            pass

    handler, said = functools.partial(Server, directory=site), site.parent / "console"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, said.open("wb") as console:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--hide-scrollbars"]
        options += [f"--user-data-dir={site.parent / 'profile'}", "--remote-debugging-port=0"]  # so that it stays
        process = subprocess.Popen([program, *options, f"{address}harness.html"], stdout=console, stderr=console)
        try:
            found = told.get(timeout=60)
        except queue.Empty:
            pytest.fail(f"the search did not answer: {said.read_text('utf-8')[-2000:]}")
        finally:
            process.terminate()
            process.wait()
            server.shutdown()
    lines = [line for line in said.read_text("utf-8").splitlines() if "CONSOLE" in line]
    return {"address": address, "console": lines, **found}


def test_formulas_are_mathml(site):
    page = (site / "scalers.html").read_text("utf-8")
    assert page.count("<math") >= 8 and "arithmatex" not in page and "<mfrac>" in page


def test_source_has_a_page_with_numbered_lines(site):
    page = (site / "source/tinymp/precision.py.html").read_text("utf-8")
    lines = (ROOT / "tinymp/precision.py").read_text("utf-8").split("\n")
    assert re.findall(r'<a id="L-(\d+)"', page) == [str(i + 1) for i in range(len(lines))]
    at = next(i for i, line in enumerate(lines, 1) if line.startswith("def store("))
    shown = re.search(rf'<a id="L-{at}" .*', page)[0]
    assert html.unescape(re.sub("<.*?>", "", shown)).split("  ")[-1] == lines[at - 1]
    reference = (site / "reference/ops.html").read_text("utf-8")
    entry = reference[reference.index('id="tinymp.ops.softmax.softmax"') :]
    path, line = re.search(r'href="../source/(tinymp/ops/softmax.py).html#L-(\d+)"', entry).groups()
    assert (ROOT / path).read_text("utf-8").split("\n")[int(line) - 1].startswith("def softmax(")


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
        assert not missing and len(documented) > 3, (name, missing)


def test_a_browser_opens_the_pages(opened):
    assert not opened["console"]
    for name, page in zip([*PAGES, SEARCH], opened["pages"], strict=True):
        assert page["width"] == WIDTH and page["text"] > 200 and "tinymp" in page["title"], (name, page)
        assert page["loaded"], name
        assert all(one.startswith((opened["address"], "data:", "blob:")) for one in page["loaded"]), (
            name,
            page["loaded"],
        )


def test_the_search_finds_loss_scaling(opened):
    assert opened["found"][0] == "/scalers.html"
