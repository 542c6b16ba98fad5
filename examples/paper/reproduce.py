"""The paper's results at a size for two cores: every row in FP32 and in mixed precision, with and without a loss scale.

    python -m examples.paper.reproduce table1
    python -m examples.paper.reproduce figure5
    python -m examples.paper.reproduce all
    python -m examples.paper.reproduce all --check    # the start of a row of each, against what is committed

A table has a row per network or model; figures are tables, too, of the runs whose curves they show.
Each run has a process and a core of its own. One Markdown and one JSON are written after every run, so that a stop
loses nothing, and pictures at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import pathlib
import shlex
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

import tinymp as mp
from tinymp.audit.trace import commit
from tinymp.checkpoint import writing
from tinymp.lab import shipped

from .. import measure
from ..measure import natural, positive
from . import formats, loss_scales, sequences, table1, table2, trials

TABLES: dict[str, Any] = {"table1": table1, "table2": table2}
TABLES |= {table.name: table for table in (sequences.TABLE3, sequences.FIGURE4, sequences.FIGURE5)}
TABLES |= {"formats": formats, "loss_scales": loss_scales}
RESULTS = pathlib.Path(__file__).parents[2] / "docs" / "results"


class Cell(NamedTuple):
    """One run of a table."""

    table: str
    name: str  # of the network
    source: str  # of the data
    setting: str
    seed: int
    steps: int
    batch: int
    device: str


def run(cell: Cell, start: bool = False) -> trials.Trial:
    """In a process of its own. start: end after two of the 50 parts of the curve, with the schedule of all."""
    mp.backend.cpu.keep_freed_memory()
    measure.Run.ends = {cell.steps: 2 * part(cell)} if start else {}
    module = TABLES[cell.table]
    trial = module.run(*cell._replace(setting=module.SETTINGS[cell.setting])[1:])
    trial.commit = commit(str(pathlib.Path(__file__).parent))
    return trial


def part(cell: Cell) -> int:
    """The steps of the first of the 50 parts of a run's curve."""
    return -(-cell.steps // 50)


def cells(table: str, options: argparse.Namespace) -> Iterator[Cell]:
    """All runs of a table; seed after seed, so that a run that is stopped has something of every row."""
    module = TABLES[table]
    every = options.data or module.SOURCES, module.NETWORKS, module.SETTINGS
    for seed in range(options.seed, options.seed + options.seeds):
        for source, name, setting in itertools.product(*every):
            if name in (options.networks or module.NETWORKS):
                own = module.NETWORKS[name]  # which may have sizes of its own
                sizes = (
                    getattr(options, size) or getattr(own, size, None) or getattr(module, size.upper())
                    for size in ("steps", "batch")
                )
                yield Cell(table, name, source, setting, seed, *sizes, options.device)


def parser() -> measure.Parser:
    """The command line."""
    p = measure.Parser(prog=shipped.command("paper.reproduce"), description=__doc__.split("\n\n")[0])
    p.add_argument("table", choices=[*TABLES, "all"])
    p.add_argument(
        "--data",
        nargs="+",
        metavar="DIR",
        help="for tables 1 and 2 one or more of: mnist, the 5,000 digits of digits.npz (the default); digits, "
        "scikit-learn's; a folder with MNIST's or Fashion-MNIST's idx files; for the others as their programs' --data",
    )
    names = [name for module in TABLES.values() for name in module.NETWORKS]
    p.add_argument("--networks", nargs="+", choices=names, metavar="NAME", help=f"only these of {', '.join(names)}")
    for option, kind, default, what in (
        ("seed", natural, 0, "the first seed (0)"),
        ("seeds", positive, 3, "how many (3)"),
        ("steps", positive, None, "per run (the table's)"),
        ("batch", positive, None, "per step (the table's)"),
        ("jobs", positive, 2, "runs side by side, each on one core (2)"),
        ("device", str, "auto", "cpu, gpu, or auto (the default), the GPU where one works"),
        ("out", pathlib.Path, pathlib.Path("runs/reproduce"), "where tables go (runs/reproduce)"),
    ):
        p.add_argument(f"--{option}", type=kind, default=default, help=what)
    p.add_argument(
        "--check", action="store_true", help="run the start of a row again, and compare it with docs/results"
    )
    p.add_argument("--resume", action="store_true", help="run only what is not yet in the JSON of --out")
    return p


def main(arguments: list[str] | None = None) -> None:
    """Run the tables, print and write them."""
    p = parser()
    options = p.parse_args(arguments)
    try:
        options.device = measure.device(options.device)
        if options.check:
            return check(TABLES if options.table == "all" else [options.table], options.jobs)
        options.out.mkdir(parents=True, exist_ok=True)
        wanted = {t: list(cells(t, options)) for t in (TABLES if options.table == "all" else [options.table])}
        kept = {t: read(options.out / f"{t}.json", todo) if options.resume else {} for t, todo in wanted.items()}
        for table, todo in wanted.items():
            done = kept[table]
            if done:
                print(f"{table}: {len(done)} of {len(todo)} runs are in {options.out / f'{table}.json'}")
                write(table, done, options)
            for cell, trial in finished([cell for cell in todo if cell not in done], options.jobs):
                done[cell] = trial
                write(table, done, options)
            print(f"\n{(options.out / f'{table}.md').read_text()}")
            if draw := getattr(TABLES[table], "draw", None):
                draw(options.out, done)
            print(f"wrote {table} to {options.out}")
    except (ValueError, OSError, ImportError) as error:  # of the options and the data: the others end all with a trace
        p.error(str(error))


def check(tables: Iterable[str], jobs: int) -> None:
    """Run the start of the first network of each table again, in all settings, from seed 0, and compare it with the
    runs of docs/results: losses to a hundredth (detectors, which go on from a backbone that was trained before, to a
    tenth), bytes exactly; only activations may be fewer. Exits with 1 otherwise.
    """
    differ = 0
    for table in tables:
        committed, module = load(RESULTS / f"{table}.json"), TABLES[table]
        of = next(iter(module.NETWORKS)), module.SOURCES[0], 0
        mine = [cell for cell in committed if (cell.name, cell.source, cell.seed) == of]
        for cell, trial in finished(mine, jobs, start=True):
            kept, n = committed[cell], part(cell)
            was, now = ([statistics.fmean(t.curve[i : i + n]) for i in (0, n)] for t in (kept, trial))
            most = kept.bytes["activations"]  # those of the longest sentence may come later
            fits = trial.bytes == {**kept.bytes, "activations": min(trial.bytes["activations"], 1.001 * most)}
            near = 0.1 if hasattr(module, "BEGINNING") else 0.01  # what has trained before has gone its own way
            same = np.allclose(was, now, rtol=near) and fits
            differ += not same
            losses = " and ".join(f"{a:.4f} ({b:.4f})" for a, b in zip(now, was))
            sizes = "" if fits else f"; bytes {trial.bytes} ({kept.bytes})"
            print(f"{table}, {cell.name}, {cell.setting}: {'as in' if same else 'NOT as in'} {kept.commit}: ", end="")
            print(f"losses of twice {n} steps {losses}{sizes}", flush=True)
    sys.exit(f"{differ} differ" if differ else None)


def load(path: pathlib.Path) -> dict[Cell, trials.Trial]:
    """The runs of a JSON that `write` has written. KeyError, TypeError or ValueError where it is none."""
    entries = json.loads(path.read_text("utf-8"))["runs"]
    return {Cell(*(entry[name] for name in Cell._fields)): trials.Trial.from_json(entry) for entry in entries}


def read(path: pathlib.Path, todo: list[Cell]) -> dict[Cell, trials.Trial]:
    """The runs of a JSON that `write` has written, if it is there. ValueError where it is none, or has runs that are
    not `todo`: they would be lost, or stand beside runs with other settings in one row.
    """
    if not path.exists():
        return {}
    try:
        found = load(path)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"--resume: expected {path} to be the JSON of a table: {error!r}") from error
    if others := found.keys() - set(todo):
        raise ValueError(
            f"--resume: {path} has {len(others)} runs that are not among those to do, such as {min(others)}: give it "
            "the same options (more seeds are fine), or another --out"
        )
    return found


def finished(todo: list[Cell], jobs: int, start: bool = False) -> Iterator[tuple[Cell, trials.Trial]]:
    """The runs, as they end; start: as of `run`. An error of one ends all, and names it."""
    if jobs > 1:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before the processes load NumPy: a core each
    context = multiprocessing.get_context("spawn")
    with tqdm(total=len(todo), unit="run", disable=None) as bar, ProcessPoolExecutor(jobs, context) as pool:
        waiting = {pool.submit(run, cell, start): cell for cell in todo}
        try:
            for future in as_completed(waiting):
                bar.update()
                yield waiting[future], future.result()
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            pool.shutdown(cancel_futures=True)
            raise


# ------------------------------------------------------------------------------------------------------ what is written


def write(table: str, done: dict[Cell, trials.Trial], options: argparse.Namespace) -> None:
    """The Markdown and the JSON of the runs so far: of each its commit, and of each commit where it ran."""
    module, path = TABLES[table], options.out / f"{table}.json"
    known = json.loads(path.read_text("utf-8")).get("environments", {}) if path.exists() else {}
    states = sorted({trial.commit for trial in done.values()})
    content = {
        "title": module.TITLE,
        "paper": {name: network.paper for name, network in module.NETWORKS.items()},
        "command": command(options, table),
        "environments": {state: known.get(state) or dict(mp.info()) for state in states},
    }
    put(options.out, table, done, content)


def put(folder: pathlib.Path, table: str, done: dict[Cell, trials.Trial], content: dict[str, Any]) -> None:
    """The two files."""
    entries = [{**cell._asdict(), **trial.to_json()} for cell, trial in sorted(done.items(), key=lambda x: str(x[0]))]
    runs = ",\n  ".join(map(json.dumps, entries))  # one on a line
    writing.write(folder / f"{table}.json", f'{json.dumps(content, indent=1)[:-2]},\n "runs": [\n  {runs}\n ]\n}}\n')
    writing.write(folder / f"{table}.md", markdown(table, done, content))


def markdown(table: str, done: dict[Cell, trials.Trial], content: dict[str, Any]) -> str:
    """The paper's numbers and ours, and the cost of ours. content: as in the JSON."""
    module = TABLES[table]
    first, *others = settings = module.SETTINGS
    reported = any(network.paper for network in module.NETWORKS.values())
    rows, costs = [], []
    sources = dict.fromkeys([*module.SOURCES, *(cell.source for cell in done)])
    for source, (name, network) in itertools.product(sources, module.NETWORKS.items()):
        mine = {cell: trial for cell, trial in done.items() if (cell.name, cell.source) == (name, source)}
        runs = {s: {cell.seed: trial for cell, trial in mine.items() if cell.setting == s} for s in settings}
        if not all(runs.values()):
            continue
        scores = {s: {seed: module.FACTOR * trial.score for seed, trial in runs[s].items()} for s in settings}
        lost = {s: sum(trial.stopped is not None for trial in runs[s].values()) for s in settings}
        of = [name, module.label(source)]
        seeds, steps = sorted({cell.seed for cell in mine}), next(iter(mine)).steps
        found = [
            f"{statistics.fmean(x.values()):.2f} ({min(x.values()):.2f}–{max(x.values()):.2f})"
            + f", {lost[s]} of {len(x)} diverged" * bool(lost[s])
            for s, x in scores.items()
        ]
        apart = [difference(scores[s], scores[first]) for s in others]
        spread = max(scores[first].values()) - min(scores[first].values())
        paper = [str(network.paper.get(s, "–")) for s in settings if reported]
        states = ", ".join(sorted({trial.commit for trial in mine.values()}))
        rows.append([*of, ", ".join(map(str, seeds)), str(steps), *paper, *found, *apart, f"{spread:.2f}", states])
        for s in settings:
            costs.append(
                [*of, s, *(f"{statistics.fmean(map(value, runs[s].values())):.3g}" for value in COSTS.values())]
            )
    paper, apart = [f"paper: {s}" for s in settings if reported], [f"{s}: difference" for s in others]
    batches = ", ".join(map(str, sorted({cell.batch for cell in done})))
    ran = "; ".join(f"{state} on {of['backend']}, {of['BLAS']}" for state, of in content["environments"].items())
    return f"""\
# {module.TITLE}

`{content["command"]}`; commits: {ran}

{module.MEASURE}: the mean over the seeds, in brackets the least and the most; {batches} {module.UNIT} per step. The \
settings of a seed share weights and batches, so a difference is the mean of those to FP32 with the same seed, in \
brackets the least and the most: within or beyond FP32's spread, its most less its least. Fewer than three seeds give \
no verdict.

{trials.table(["network", "data", "seeds", "steps", *paper, *settings, *apart, "FP32: spread", "commit"], rows, "---")}

Means over the seeds: seconds of work in a run, on one core; median milliseconds per step (another run went on); what \
the graph keeps for backward; weights' gradients as backward writes them; steps skipped for overflow; the last \
loss scale.

{trials.table(["network", "data", "setting", *COSTS], costs, "---")}
"""


def difference(scores: dict[int, float], fp32: dict[int, float]) -> str:
    """Differences of the scores from FP32's, by seed."""
    pairs = [scores[seed] - fp32[seed] for seed in scores if seed in fp32]
    if len(pairs) < 3:
        return ", ".join(f"{d:+.2f}" for d in pairs) + " (too few seeds)"
    mean, spread = statistics.fmean(pairs), max(fp32.values()) - min(fp32.values())
    verdict = "within" if abs(mean) <= spread else "beyond"
    return f"{mean:+.2f} ({min(pairs):+.2f} to {max(pairs):+.2f}), {verdict}"


COSTS: dict[str, Callable[[trials.Trial], float]] = {
    "s": lambda t: t.seconds,
    "ms per step": lambda t: t.ms_per_step,
    "activations, MiB": lambda t: t.bytes.get("activations", 0) / 2**20,
    "gradients, MiB": lambda t: t.bytes.get("gradients", 0) / 2**20,
    "skipped": lambda t: t.skipped_steps,
    "last scale": lambda t: t.loss_scale,
}


def command(options: argparse.Namespace, table: str) -> str:
    """The command that runs a table again."""
    said = [shipped.command("paper.reproduce"), table]
    for name, value in vars(options).items():
        if name in ("data", "networks", "seed", "seeds", "steps", "batch") and value != parser().get_default(name):
            said += [f"--{name}", *(map(shlex.quote, value) if isinstance(value, list) else [str(value)])]
    return " ".join(said)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # through `finished`, which ends all runs
    main()
