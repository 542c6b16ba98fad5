import shutil
import subprocess

import pytest


@pytest.fixture
def browser(tmp_path):
    """browser(page, *options) -> (what Chromium writes, the lines of its console)."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--enable-logging=stderr"]

    def run(source, *options):
        (path := tmp_path / "page.html").write_text(source, "utf-8")
        done = subprocess.run([*command, *options, path.as_uri()], capture_output=True, timeout=120, check=True)
        return done.stdout.decode(), [line for line in done.stderr.decode().splitlines() if "CONSOLE" in line]

    return run
