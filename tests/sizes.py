"""The size of tinymp, and the distance from a call to its mathematics: figures that may only fall.

    python -m tests.sizes                  measure, and write tests/sizes.json; say what rose, and then write nothing
    python -m tests.sizes --allow-rise     write it nevertheless: say why in the commit

After a conflict in tests/sizes.json run it again: of each figure the smallest on either side counts as the last one.

Lines of code are those with a token of Python, after `ruff format`: no blanks, comments or docstrings. A distance is
the number of lines of tinymp that forward and backward execute, each counted once, in mixed precision on the CPU and
with the fast paths off. The toll is that of an op that returns its input; other ops are measured beyond it.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tinymp"
FILE = ROOT / "tests" / "sizes.json"
PYTHON = (3, 11)  # other versions report other lines
LIBRARIES = ("numkong", "ml_dtypes")  # tinymp takes other ways without them
FOLDERS = ("ops", "nn", "optim", "data", "backend")  # of the core; in each of them `more` is not
READING_PATH = ("precision", "autograd", "parameter", "optim/optimizer", "optim/scaler", "ops/softmax")


def code_lines(path: Path) -> set[int]:
    """The numbers of the lines of a file that are code."""
    source = path.read_text(encoding="utf-8")
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None
    }
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type not in layout and token.start not in docstrings:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def lines_of_code(path: Path) -> int:
    return len(code_lines(path))


def all_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def sizes() -> dict[str, int]:
    core = {path: lines_of_code(path) for path in PACKAGE.glob("*.py")}
    more: dict[Path, int] = {}
    for folder in FOLDERS:
        for path in (PACKAGE / folder).rglob("*.py"):
            (more if "more" in path.relative_to(PACKAGE).parts else core)[path] = lines_of_code(path)
    cuda = [path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.cu*")]
    shown = [path for folder in ("tinymp", "examples", "course", "benchmarks") for path in (ROOT / folder).rglob("*")]
    shown = [path for path in shown if path.suffix in (".py", ".cu", ".cuh")] + list((ROOT / "docs").glob("*.py"))
    failures = (ROOT / "tests" / "fails_on_stand_in.txt").read_text(encoding="utf-8").splitlines()
    return {
        "core: lines of code": sum(core.values()),
        "core with more/: lines of code": sum(core.values()) + sum(more.values()),
        "PyTorch's face: lines of code": sum(map(lines_of_code, (PACKAGE / "torch").rglob("*.py"))),
        "core: lines of CUDA": all_lines(cuda),
        "core: lines of code of the largest file": max(core.values()),
        "reading path: lines of code": sum(core[PACKAGE / f"{name}.py"] for name in READING_PATH),
        "root of the package: files": len(list(PACKAGE.glob("*.py"))),
        "tinymp, examples, course, benchmarks, docs, CUDA: all lines": all_lines(shown),
        "stand-in for a GPU: tests that fail": sum("::" in line for line in failures),
    }


def distances() -> dict[str, int]:
    """Distances in a process that has imported nothing of tinymp."""
    import numpy as np

    before = set(sys.modules)
    import tinymp as mp

    modules = set(sys.modules) - before
    from tinymp import fast_path, nn, ops, optim
    from tinymp.arguments import named
    from tinymp.autograd import Op
    from tinymp.precision import POINTWISE, store, widen

    fast_path.off = {"forward", "backward", "updated"}

    class Identity(Op):
        kind = POINTWISE

        def forward(self, x: Any) -> Any:
            return store(widen(x), like=x)

        def backward(self, dy: Any) -> Any:
            return dy

    @named
    def identity(x: mp.Tensor) -> mp.Tensor:
        return Identity.apply(x)

    def executed(run: Callable[[], object]) -> tuple[set, set]:
        """The functions and the lines of tinymp that the second call of `run` executes."""
        functions, lines = set(), set()

        def trace(frame: Any, event: str, argument: object) -> Any:
            path = frame.f_code.co_filename
            if not path.startswith(str(PACKAGE)):
                return None
            if event == "call":
                functions.add((path, frame.f_code.co_firstlineno, frame.f_code.co_name))
            elif event == "line":
                lines.add((path, frame.f_lineno))
            return trace

        run()
        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            run()
        finally:
            sys.settrace(outer)
        return functions, lines

    rng = np.random.default_rng(0)

    def leaf(*shape: int) -> mp.Tensor:
        return mp.tensor(rng.standard_normal(shape).astype("float16"), requires_grad=True)

    def both(op: Callable, *inputs: mp.Tensor) -> set:
        dy = mp.ones_like(op(*inputs).detach())
        return executed(lambda: op(*inputs).backward(dy))[1]

    policy = mp.MIXED
    mp.manual_seed(0)
    model = policy.cast(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)))
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.1, momentum=0.9), optim.DynamicLossScaler()
    inputs, labels = (
        policy.cast(mp.tensor(rng.standard_normal((64, 20)).astype("float32"))),
        mp.tensor(np.arange(64) % 5),
    )
    lstm, batch_norm = policy.cast(nn.LSTM(16, 16)), policy.cast(nn.BatchNorm2d(32))

    def step() -> None:
        loss = ops.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    with mp.use(policy):
        functions, lines = executed(step)
        toll = both(identity, leaf(4, 10))
        images = leaf(4, 32, 14, 14)
        beyond = {
            "conv2d": both(lambda x, w: ops.conv2d(x, w, padding=1), images, leaf(64, 32, 3, 3)),
            "LSTM": both(lambda x: lstm(x)[0], leaf(5, 4, 16)),
            "batch norm": both(batch_norm, images),
            "softmax": both(lambda x: ops.softmax(x, 1), leaf(4, 10)),
        }
    return {
        "import: modules beyond NumPy's": len(modules),
        "README's step: functions": len(functions),
        "README's step: lines": len(lines),
        "toll of an op: lines": len(toll),
        **{f"beyond the toll, {name}: lines": len(lines - toll) for name, lines in beyond.items()},
    }


def measured() -> dict[str, int]:
    """All figures; the distances are those of a process of its own, with one thread."""
    command = [sys.executable, "-m", "tests.sizes", "--distances"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        figures = sizes()  # meanwhile
        output, _ = process.communicate()
    if process.returncode:
        sys.exit("the distances could not be measured")
    return figures | json.loads(output)


def noted() -> dict[str, int]:
    """The figures in the file, also where it holds both sides of a conflict."""
    last: dict[str, int] = {}
    for name, figure in re.findall(r'^ *"(.+)": (\d+),?$', FILE.read_text(encoding="utf-8"), re.M):
        last[name] = min(int(figure), last.get(name, int(figure)))
    return last


def elsewhere() -> str | None:
    """The reason why other figures would be measured here, or None."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if sys.version_info[:2] != PYTHON or missing:
        return f"the figures are those of Python {PYTHON[0]}.{PYTHON[1]} with {' and '.join(LIBRARIES)}"
    return None


def rises(figures: dict[str, int], last: dict[str, int]) -> list[str]:
    return [f"{name}: {last[name]} -> {n}" for name, n in figures.items() if n > last.get(name, n)]


def main() -> None:
    if why := elsewhere():
        sys.exit(why)
    if "--distances" in sys.argv:
        sys.exit(print(json.dumps(distances())))
    figures = measured()
    rose = rises(figures, noted())
    if rose and "--allow-rise" not in sys.argv:
        sys.exit("\n".join(["these figures may only fall:", *rose, "--allow-rise writes them nevertheless"]))
    FILE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
