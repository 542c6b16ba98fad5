"""Programs of PyTorch's with their imports changed, and nothing else.

python -m tests.ported        writes benchmarks/results/torch_programs.json: 20 losses of ten programs, in both
"""

import contextlib
import importlib
import io
import json
import pathlib
import re
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).with_name("face") / "programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "start")
RESULTS = pathlib.Path(__file__).parents[1] / "benchmarks/results/torch_programs.json"
ROUNDING = {"amp": 2**-11}  # half an ulp of FP16; of FP32 in the others


def ported(source: str) -> str:
    """The program for tinymp.torch; lines that it asks for in comments `# here: ...` are code."""
    source = re.sub(r"^(\s*from )torch\b", r"\1tinymp.torch", source, flags=re.M)
    source = re.sub(r"^(\s*import )torch(\.[\w.]+ as|\s+as)", r"\1tinymp.torch\2", source, flags=re.M)
    source = re.sub(r"^(\s*import )torch(\.[\w.]+)", r"\1tinymp.torch\2, tinymp.torch as torch", source, flags=re.M)
    source = re.sub(r"^(\s*import )torch$", r"\1tinymp.torch as torch", source, flags=re.M)
    return re.sub(r"^(\s*)# here: ", r"\1", source, flags=re.M)


def run(name: str, change=lambda source: source, nudge: float = 0.0) -> np.ndarray:
    """The losses of a program, its weights moved by a share of themselves."""
    sys.path.insert(0, str(FOLDER))
    try:
        start = importlib.import_module("start")
        start.nudge = nudge
        scope = {"__name__": name}
        code = compile(change((FOLDER / f"{name}.py").read_text()), name, "exec", dont_inherit=True)
        sys.modules[name] = type(sys)(name)  # dataclasses look there
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, scope)
        return np.array(scope["losses"])
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("start", None)
        sys.modules.pop(name, None)


def row(name: str) -> dict:
    """Losses, and how far they may differ.

    A rounding of each weight, up or down, by half an ulp or a whole one, moves PyTorch's losses by so much (one of them
    alone may hardly move them, which depends on the processor); each of the 32 or so values between a weight and the
    loss is rounded, too, forward and backward: 32 times that, and never less than 32 roundings of the loss.
    """
    eps = ROUNDING.get(name, 2**-24)
    theirs, own = run(name), run(name, ported)
    moved = np.max([np.abs(run(name, nudge=factor * eps) - theirs) for factor in (-2, -1, 1, 2)], axis=0)
    allowed = 32 * np.maximum(np.maximum.accumulate(moved), eps * np.abs(theirs))
    return {
        "program": name,
        "lines edited": (FOLDER / f"{name}.py").read_text().count("# here: "),
        "PyTorch": theirs.tolist(),
        "tinymp": own.tolist(),
        "largest difference": float(np.abs(own - theirs).max()),
        "largest share of what is allowed": float((np.abs(own - theirs) / allowed).max()),
    }


if __name__ == "__main__":
    rows = [row(name) for name in PROGRAMS]
    RESULTS.write_text(json.dumps({"command": "python -m tests.ported", "rows": rows}, indent=1) + "\n")
    for one in rows:
        first, last, differs, share = (*one["tinymp"][::19], *list(one.values())[-2:])
        print(f"{one['program']:16} {first:9.5f} -> {last:9.5f}; differs by {differs:.1e}, {share:.2f} of allowed")
