"""The lessons in a browser: JupyterLite, with tinymp's wheel, in the site's folder `lite` (the extra `browser`).

Pyodide itself and its packages, NumPy among them, are loaded from PYODIDE_URL when a student opens a lesson: by default
from the address that jupyterlite-pyodide-kernel knows. A folder is copied into the site instead. JupyterLite is called
without mkdocs-jupyterlite, which takes notebooks from docs/ alone, lets a student's work be lost when the page is
loaded again, and has no option for that address.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tinymp.checkpoint.writing import write, write_json

ROOT = Path(__file__).parents[2]
INSTALL = (
    "%pip install -q tiny-mixed-precision matplotlib ml_dtypes  # in the browser; the first time it takes a minute"
)
KERNEL = "@jupyterlite/pyodide-kernel-extension:kernel"
there = find_spec("jupyterlite_core") is not None and find_spec("jupyterlite_pyodide_kernel") is not None


def address(lesson: str) -> str:
    """Where the site has a lesson, by the name of its notebook, to be run."""
    return f"lite/notebooks/index.html?path={lesson}"


def notebook(path: Path) -> str:
    """A lesson for students, with a first cell that installs tinymp in the browser."""
    found = json.loads(path.read_text("utf-8"))
    cell = {"id": "install", "cell_type": "code", "metadata": {}, "source": INSTALL.splitlines(True)}
    found["cells"].insert(1, cell | {"execution_count": None, "outputs": []})
    return json.dumps(found, indent=1, ensure_ascii=False)


def build(site: Path) -> None:
    """Write the folder `lite` of the site."""
    pyodide = os.environ.get("PYODIDE_URL", "")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
        run([sys.executable, "-c", wheel, name], ROOT)
        (folder / "files").mkdir()
        for path in sorted((ROOT / "course").glob("[0-9]*.ipynb")):
            write(folder / "files" / path.name, notebook(path))
        if Path(pyodide).is_dir():
            shutil.copytree(pyodide, folder / "static" / "pyodide")
        elif pyodide:
            data = {"litePluginSettings": {KERNEL: {"pyodideUrl": pyodide}}}
            settings = {"jupyter-lite-schema-version": 0, "jupyter-config-data": data}
            write_json(folder / "jupyter-lite.json", settings)
        (wheel_file,) = folder.glob("*.whl")
        options = ["--contents", "files", "--piplite-wheels", str(wheel_file), "--apps", "notebooks"]
        options += ["--no-libarchive", "--no-sourcemaps", "--no-unused-shared-packages"]
        command = [sys.executable, "-m", "jupyterlite_core.app", "build", *options, "--output-dir"]
        run([*command, str((site / "lite").absolute())], folder)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
