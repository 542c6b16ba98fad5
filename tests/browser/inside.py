"""Checks that run in a browser: python tests/browser/inside.py OUT [PART ...], from the repository's root.

Each part runs in this process, since a browser can start none; a line says its name and its seconds. Warnings fail.
"""

import contextlib
import io
import re
import runpy
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
LENGTH = re.compile(r"^([A-Z]+ = )\d+  # of each training.*", re.MULTILINE)


def command(module: str, *arguments: str) -> None:
    """python -m module arguments."""
    before, sys.argv = sys.argv, [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = before


def loop() -> None:
    """README's training."""
    code = re.findall("```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[0]
    exec(compile(code, "README.md", "exec"), {"__name__": "loop"})


def dcgan() -> None:
    """Two steps of the example on pictures of 16 x 16 numbers: its faces are in a package that browsers do not have."""
    import numpy as np

    import tinymp as mp
    from examples import dcgan as example
    from tinymp import optim

    models = [mp.MIXED.cast(model) for model in example.networks(16, 4)]
    optimizers = [optim.Adam(model.parameters(), lr=4e-4, betas=(0.5, 0.999)) for model in models]
    random = np.random.default_rng(0)
    for _ in range(2):
        batch = random.uniform(-1, 1, (4, 1, 16, 16)), random.standard_normal((4, example.LATENT, 1, 1))
        with mp.use(mp.MIXED):
            both = [mp.MIXED.cast(mp.tensor(x.astype(np.float32))) for x in batch]
            loss = example.step(models, optimizers, optim.DynamicLossScaler(), *both)[0]
        assert np.isfinite(loss.item())
        for model in models:
            model.zero_grad()


def lesson(path: Path) -> None:
    """A lesson with its solutions, its trainings cut short; all its exercises are right."""
    import matplotlib.pyplot as plt

    printed, text = io.StringIO(), LENGTH.sub(r"\g<1>8", path.read_text("utf-8"))
    with contextlib.redirect_stdout(printed):
        exec(compile(text, str(path), "exec"), {"__name__": "lesson"})
    plt.close("all")
    said = re.findall(r"^(right|wrong|empty)\b", printed.getvalue(), re.MULTILINE)
    assert said and set(said) == {"right"}, printed.getvalue()[-2000:]


def parts(out: str) -> dict[str, Callable[[], None]]:
    """All of them by name. out: a folder for what they write."""
    small = "--out", f"{out}/small"
    return {
        "loop": loop,
        "info": lambda: command("tinymp", "info"),
        "explain": lambda: command("tinymp", "explain", "softmax"),
        "audit": lambda: command("tinymp", "audit", "--out", f"{out}/a", "examples/cnn.py", "--steps", "3", *small),
        "cnn": lambda: command("examples.cnn", "--steps", "3", *small),
        "lstm": lambda: command("examples.lstm", "--steps", "2", "--data", "docs/audit.md", *small),
        "dcgan": dcgan,
        **{path.stem: lambda path=path: lesson(path) for path in sorted((ROOT / "course").glob("[0-9]*.py"))},
    }


def main(out: str, *names: str) -> None:
    warnings.simplefilter("error")
    sys.path.insert(0, str(ROOT))
    found = parts(out)
    for name in names or found:
        start = time.perf_counter()
        found[name]()
        print(f"ran {name} in {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
