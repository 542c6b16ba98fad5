"""Adds to pyproject.toml: a wheel includes examples/ and course/ as tinymp/share (tinymp/lab/shipped.py), without the
solutions of the lessons."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LEFT_OUT = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")


class BuildPy(build_py):
    """An editable install has them beside the package, where they lie."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        share = Path(self.build_lib, "tinymp", "share")
        shutil.rmtree(share, ignore_errors=True)  # what an earlier build has left
        for path in Path("examples").rglob("*"):
            if path.suffix in (".py", ".mplstyle", ".npz"):  # the executed notebooks are pages to read
                (share / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, share / path)
        if Path("course").is_dir():
            shutil.copytree("course", share / "course", ignore=LEFT_OUT)
            unsolved = runpy.run_path("course/grader/hide.py")["unsolved"]
            for path in (share / "course").glob("[0-9]*.py"):  # students get the wheel
                path.write_text(unsolved(path.read_text(encoding="utf-8")), encoding="utf-8")


setup(cmdclass={"build_py": BuildPy})
