"""List the lines of the core that none of its programs executes, and count them: such a line is not core.

    python -m tests.core_lines      four minutes on two cores; fails where more lines are found than before

The programs are those of examples/ (but examples/paper), its notebooks, README's loop and the lessons of course/, as
they are shipped, the trainings of all but notebooks cut short: in FP32, in mixed precision with a dynamic and a static
loss scale, NO_MASTER and STOCHASTIC_ROUNDING; a run that goes on from its file; an audit of one of them. Fast paths
are off: the definitions are what is read. Refusals (a `raise`, and what only leads to one) are counted apart.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import sizes
from tests.browser.inside import LENGTH

ROOT = Path(__file__).parent.parent
ENOUGH = 500
# These figures may only fall. On 29 November lessons 2, 7 and 8 became shorter (one line and five more), and what
# follows a gradient that a program holds moved from the face to the core (one line). Later that day numbers became
# right, or an error, that no program of these asks for: leaves frozen after a forward pass, groups added under a
# schedule, integers of two dtypes, `data` taken before a cast, gradients in FP64, a loader's changed batch size.
MOST = 73, 283
EXAMPLE = "from examples import {0}; {0}.main(['--out', 'out', '--steps', '{1}', *{2!r}])"
OPTIONS: list[list[str]] = [
    [],
    ["--loss-scale", "1024"],
    ["--policy", "no_master"],
    ["--policy", "stochastic_rounding"],
]
NOTEBOOK = (
    "import os, json; os.chdir({0!r}); text = json.load(open({1!r}, encoding='utf-8'))['cells']\n"
    "for cell in text:\n    if cell['cell_type'] == 'code':\n        exec(''.join(cell['source']), globals())"
)
PROGRAMS = {
    "README": [
        "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL))
    ],
    **{path.stem: [NOTEBOOK.format(str(path.parent), path.name)] for path in ROOT.glob("examples/notebooks/*.ipynb")},
    "cnn": [EXAMPLE.format("cnn", 3, options) for options in OPTIONS],
    "lstm": [EXAMPLE.format("lstm", 2, ["--data", f"{ROOT}/docs/audit.md", *options]) for options in OPTIONS],
    "dcgan": ["from examples import dcgan; dcgan.DRAWN = 100", *[EXAMPLE.format("dcgan", 2, o) for o in OPTIONS]],
    "one_page": ["from examples import one_page; one_page.main()"],
    "long_run": [
        "from examples import long_run\nfor more in [], ['--resume']:\n"
        "    long_run.main(['--out', 'out', '--checkpoint', 'kept', '--every', '2', '--steps', '4', *more])"
    ],
    "audit": [
        "from tinymp.lab.cli import main; main(['audit', '--out', 'out', ROOT + '/examples/cnn.py', '--steps', '2'])"
    ],
    **{
        path.stem: [
            f"text = open({str(path)!r}, encoding='utf-8').read()\n"
            f"text = re.sub({LENGTH.pattern!r}, r'\\g<1>8', text, flags=re.M)\n"
            f"exec(compile(text, {str(path)!r}, 'exec'), {{'__name__': 'lesson'}})"
        ]
        for path in sorted((ROOT / "course").glob("[01]*.py"))
    },
}


def files() -> list[Path]:
    """The core's, as tests/sizes.py counts them, and checkpoint's."""
    found = [*sizes.PACKAGE.glob("*.py"), *(sizes.PACKAGE / "checkpoint").glob("*.py")]
    for folder in sizes.FOLDERS:
        found += [p for p in (sizes.PACKAGE / folder).rglob("*.py") if "more" not in p.relative_to(sizes.PACKAGE).parts]
    return sorted(p for p in found if p.name != "gpu.py")


def trace(program: str) -> None:
    """In a process of its own: run a program, and print as JSON which lines of each file ran."""
    core = {str(path): set[int]() for path in files()}
    quiet = Counter[Any]()  # code -> how often it was called since it last ran a new line; ENOUGH: no longer traced

    def local(frame: Any, event: str, argument: object) -> Any:
        if event == "line" and frame.f_lineno not in (lines := core[frame.f_code.co_filename]):
            lines.add(frame.f_lineno)
            quiet[frame.f_code] = 0
        return local

    def called(frame: Any, event: str, argument: object) -> Any:
        code = frame.f_code
        if code.co_filename not in core or quiet[code] == ENOUGH:
            return None
        quiet[code] += 1
        core[code.co_filename].add(frame.f_lineno)
        return local

    sys.path.insert(0, str(ROOT))
    threading.settrace(called)
    sys.settrace(called)
    import matplotlib

    from tinymp import fast_path

    matplotlib.use("Agg")
    fast_path.off = {"forward", "backward"}
    for text in PROGRAMS[program]:
        try:
            exec(text, {"ROOT": str(ROOT), "re": re, "__name__": "__main__"})
        except SystemExit as end:
            if end.code:
                raise
    sys.settrace(None)
    print(f"\n{json.dumps({name: sorted(lines) for name, lines in core.items()})}")


def ran() -> dict[Path, set[int]]:
    """The lines of each file that some program executes."""

    def one(program: str) -> dict[str, list[int]]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.core_lines", "--program", program]
            environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    found: dict[Path, set[int]] = {path: set() for path in files()}
    with ThreadPoolExecutor(2) as pool:
        for lines in pool.map(one, PROGRAMS):
            for name, executed in lines.items():
                found[Path(name)].update(executed)
    return found


def statements(body: list[ast.stmt], refusal: bool | None = None) -> Iterator[tuple[set[int], bool]]:
    """The lines of each statement but those of the statements in it, and whether it only leads to a `raise`: also what
    a branch or a handler that ends with one does before. refusal: that of what is around it; None: a function's body.
    """
    for node in body:
        inside = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        inside += [handler.body for handler in getattr(node, "handlers", [])]
        inside += [case.body for case in getattr(node, "cases", [])]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        last = min([child[0].lineno - 1 for child in inside if child], default=node.end_lineno)
        ends = bool(body) and isinstance(body[-1], ast.Raise)
        yield set(range(first, max(first, last) + 1)), bool(refusal or ends)
        whole = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        for child in inside:
            yield from statements(child, None if whole else refusal or (refusal is not None and ends))


def missed(path: Path, executed: set[int]) -> tuple[set[int], set[int]]:
    """The lines of code that no program executes: those which only lead to a `raise`, and the others."""
    code = sizes.code_lines(path)
    refusals, others = set[int](), set[int]()
    for lines, refusal in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if not lines & executed:
            (refusals if refusal else others).update(lines & code)
    return refusals, others - refusals


def ranges(lines: set[int]) -> str:
    """ "3-5 9"."""
    found: list[list[int]] = []
    for line in sorted(lines):
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return " ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in found)


def main() -> None:
    if "--program" in sys.argv:
        trace(sys.argv[-1])
        return
    found = {path: missed(path, executed) for path, executed in ran().items()}
    for path, (refusals, others) in found.items():
        if others or refusals:
            name = path.relative_to(sizes.PACKAGE)
            print(f"{name}: {len(others)} ({ranges(others)}); {len(refusals)} of refusals ({ranges(refusals)})")
    core = [both for path, both in found.items() if "checkpoint" not in path.parts]
    figures = tuple(sum(len(both[i]) for both in core) for i in (1, 0))
    print(f"core: {figures[0]} lines that no program executes, and {figures[1]} of refusals")
    if sizes.elsewhere() is None and (figures[0] > MOST[0] or figures[1] > MOST[1]):
        sys.exit(f"expected at most {MOST[0]} and {MOST[1]}: what no program executes belongs into `more`")


if __name__ == "__main__":
    main()
