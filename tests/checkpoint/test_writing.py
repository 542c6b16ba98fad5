"""Files are whole: what was there stays until the new one is, whatever happens meanwhile."""

import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tinymp
from tinymp.checkpoint import writing

pytestmark = pytest.mark.cpu
ROOT = Path(tinymp.__file__).parent.parent


@pytest.fixture
def there(tmp_path):
    """A file that is already there."""
    path = tmp_path / "report.json"
    path.write_text("old")
    return path


def only(path):
    """Nothing else is left in the folder."""
    return sorted(path.parent.iterdir()) == [path]


def test_write(there):
    for content, expected in (("new é", "new é".encode()), (b"\0\xff", b"\0\xff"), ("a\udcffb", b"a\\udcffb")):
        writing.write(there, content)
        assert there.read_bytes() == expected and only(there)


def test_an_error_leaves_what_was_there(there):
    def fail():
        with writing.replacing(there) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert there.read_text() == "old" and only(there)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_are_those_of_before(there, mode):
    there.chmod(mode)
    writing.write(there, "new")
    assert stat.S_IMODE(there.stat().st_mode) == mode


def test_a_link_goes_on_pointing(there, tmp_path):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "latest.json"
    link.symlink_to("../report.json")
    writing.write(link, "new")
    assert link.is_symlink() and there.read_text() == "new"


FULL = """
import resource, signal
import numpy as np, tinymp as mp
from pathlib import Path
from tinymp import nn
from tinymp.checkpoint import writing
path, model = Path({!r}), nn.Linear(40, 40)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
{}
"""


CALLS = "writing.write(path, 'x' * 5000)", "mp.save(path, model=model)", "mp.save_weights(path, model)"


@pytest.mark.parametrize("call", CALLS)
def test_a_full_disk(call, there):
    code = FULL.format(str(there), call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    said = done.stderr.splitlines()[-1]
    assert "OSError: [Errno 2" in said and "; make room, or write to another disk: '/" in said
    assert there.read_text() == "old" and only(there)


def test_a_process_that_is_killed(there):
    """At any moment: the file is one of those that it wrote, whole."""
    code = f"from tinymp.checkpoint.writing import write\npath = {str(there)!r}\n"
    code += "for i in range(10**9): write(path, chr(97 + i % 26) * 300_000)"
    for wait in (0.0, 0.03):
        there.write_text("old")
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
        while there.read_bytes() == b"old":
            time.sleep(0.002)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.wait()
        content = there.read_bytes()
        assert len(content) == 300_000 and len(set(content)) == 1
    writing.write(there, "new")
    assert there.read_text() == "new"


WAYS = re.compile(
    r"""\b(write_text|write_bytes|savefig|(?<!torch\.)save_file)\(|\bopen\([^)\n]*"w[b"]|Image\S*\.save\("""
)
# Pictures are drawn in memory; the others append to logs: of what happens, of a run, of what a process says
OTHERS = "writing.py", "pictures.py", "poisoned.py", "trace.py", "bisect.py"


def test_every_file_is_written_so():
    """No other way to write a file in tinymp, its examples and benchmarks: a call of these is within `replacing`."""
    paths = [path for folder in ("tinymp", "examples", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    for path in paths:
        text = path.read_text() if path.name not in OTHERS else ""
        for call in WAYS.finditer(text):
            assert "replacing(" in text[max(call.start() - 400, 0) : call.start()], (path, call[0])
