"""The programs that come with tinymp. `examples` and `course` lie beside the package in a checkout; a wheel has them in
it, as tinymp/share (setup.py), so that it takes no other name in site-packages, where many an `examples` lies.
"""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ..backend.extras import hint, in_checkout

# The examples that are programs, and what each needs of the extras of pyproject.toml.
EXAMPLES = {
    "one_page": "examples",
    "cnn": "examples",
    "lstm": "examples,shakespeare",
    "dcgan": "examples",
    "long_run": "examples",
    "reinforcement": "examples,bf16",
    "paper.language_model": "examples,shakespeare",
    "paper.train_gpt": "examples,shakespeare",
    "paper.speech": "speech",
    "paper.translation": "translation",
    "paper.reproduce": "reproduce",
    "paper.case_ssd": "reproduce",
}
_PACKAGE = Path(__file__).parent.parent


def home(name: str) -> Path:
    """The folder in which this tinymp's `examples` or `course` lies. ModuleNotFoundError where none does."""
    found = _PACKAGE.parent if in_checkout() else _PACKAGE / "share"
    if not (found / name).is_dir():
        again = f"{hint('examples')} --force-reinstall"
        raise ModuleNotFoundError(f"{name}: expected a folder {found / name}, which is missing: {again}", name=name)
    return found


def examples_home() -> str:
    """The first entry of sys.path with which `import examples` finds this tinymp's examples. Errors as in `home`."""
    return str(home("examples"))


def example(name: str) -> ModuleType:
    """The module NAME of this tinymp's examples. ImportError where there is none."""
    sys.path.insert(0, path := examples_home())
    try:
        return importlib.import_module(f"examples.{name}")
    finally:
        sys.path.remove(path)


def stand_in(name: str, folder: Path) -> None:
    """Have the package in a folder be the module `name`, which is being imported."""
    spec: Any = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def command(name: str) -> str:
    """The command that runs an example."""
    return f"python -m examples.{name}" if in_checkout() else f"tinymp example {name}"


def overview() -> str:
    """The examples that are programs: what each does, and how to install what it needs."""
    folder = home("examples") / "examples"
    lines = []
    for name, extra in EXAMPLES.items():
        path = folder / f"{name.replace('.', '/')}.py"
        text = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        lines += [f"{name:<24}{text.splitlines()[0]}", f"{'':<24}{hint(extra)}"]
    return "\n".join([*lines, "", "tinymp example NAME --help lists the options of one."])
