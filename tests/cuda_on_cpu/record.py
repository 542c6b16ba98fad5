"""Writes `cupy_api.json`: the names and signatures of the installed CuPy, for the stand-in to be no more liberal.

python tests/cuda_on_cpu/record.py > tests/cuda_on_cpu/cupy_api.json
"""

import inspect
import json
import re


def parameters(function):
    """The names of a function's parameters; None where it tells nobody."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # compiled; Cython writes the signature into the first line of the docstring
        first = (function.__doc__ or "").partition("\n")[0]
        inside = re.fullmatch(r"[\w.]+\((?:self(?:, )?)?(.*)\)( -> \w+)?", first)
        if inside is None:
            return None
        names = [part.split("=")[0].split()[-1] for part in inside[1].split(", ") if part]
        return [name for name in names if name not in ("/", "*")]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(p.kind, "") + p.name for p in found]


def record():
    """Facts about CuPy that the stand-in needs."""
    import cupy

    public = {name: getattr(cupy, name) for name in dir(cupy) if not name.startswith("_")}
    ufuncs = {name: f for name, f in public.items() if isinstance(f, cupy.ufunc)}
    functions = {
        name: f for name, f in public.items() if callable(f) and name not in ufuncs and not isinstance(f, type)
    }
    methods = {name: getattr(cupy.ndarray, name) for name in dir(cupy.ndarray) if not name.startswith("_")}
    return {
        "version": cupy.__version__,
        "functions": {name: parameters(f) for name, f in functions.items()},
        "ufuncs": {name: {"nin": f.nin, "nout": f.nout, "at": f._scatter_op} for name, f in ufuncs.items()},
        "methods": {name: parameters(f) for name, f in methods.items() if callable(f)},
        "attributes": sorted(name for name, f in methods.items() if not callable(f)),
        "special": sorted(name for name in dir(cupy.ndarray) if name.startswith("__")),
    }


if __name__ == "__main__":
    api = record()
    lines = []
    for key, value in api.items():
        if isinstance(value, dict):
            entries = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f"  {json.dumps(key)}: {{\n{entries}\n  }}")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    print("{\n" + ",\n".join(lines) + "\n}")
