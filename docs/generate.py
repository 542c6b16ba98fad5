"""Write docs/precision.md from the declarations in the source: the primitives, the kinds, the policies, every op; and
the tables of docs/gpu.md from what a GPU measured.

    python -m docs.generate

tests/docs/test_docs.py fails when a page has drifted.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import tinymp
from docs import layers
from tests import determinism, rounding
from tinymp import precision, study
from tinymp.autograd import Op
from tinymp.checkpoint.writing import write
from tinymp.fast_path import find
from tinymp.study import tensor_core

PAGE = pathlib.Path(__file__).with_name("precision.md")
GPU = PAGE.with_name("gpu.md")
BEGIN, END = "<!-- Made by python -m docs.generate. Do not edit. -->", "<!-- End of what is made. -->"
ROOT = PAGE.parent.parent
MEASURED = ROOT / "benchmarks" / "results" / "gpu_h200.json"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in [head, ["---"] * len(head), *rows]
    )


for name in layers.files().keys() - {"tinymp", "__main__"}:  # with all their ops, those as well that are not public
    importlib.import_module(f"tinymp.{name.replace('/', '.')}")


def op_classes(base: type[Op] = Op) -> Iterator[type[Op]]:
    """Every Op of the package that people call: of those with subclasses, the ones that are ops themselves."""
    for cls in base.__subclasses__():
        names = cls.name, f"{cls.name}_layer"
        called = any(callable(getattr(tinymp.ops, n, None)) for n in names) or not cls.__subclasses__()
        if called and cls.__module__.startswith("tinymp."):
            yield cls
        yield from op_classes(cls)


def first_paragraph(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def where(thing: type) -> str:
    """The source file, relative to the repository, as a link."""
    path = pathlib.Path(inspect.getsourcefile(thing) or "").resolve().relative_to(ROOT)
    return f"[{path.name}](../{path.as_posix()})"


def fast_paths(cls: type[Op]) -> str:
    """Which of forward and backward have a CUDA kernel written by hand."""
    return ", ".join(phase for phase in ("forward", "backward") if find(getattr(cls, phase), "gpu"))


def numpy_of_test_bits() -> str:
    """The version of NumPy whose bits tests/guards/test_bits.py holds."""
    (version,) = re.findall(r'^NUMPY = "(.+?)"', (ROOT / "tests/guards/test_bits.py").read_text(encoding="utf-8"), re.M)
    return version


FOLDERS = {
    "tinymp": "The primitives, and a few conversions that users ask for",
    "tinymp/backend": "One device for NumPy and CuPy, which carries the primitives out",
    "tinymp/fast/cpu": "Faster paths on the CPU, which call the primitives",
    "tinymp/gpu": "cuBLAS, and CUDA kernels for FP16 and for FP32 storage; in FP32 no `store` rounds",
    "tinymp/study": "Accumulators and formats that a policy studies: never under `FP32`, `MIXED` and `BF16`",
    "tinymp/ops": "Constants that an op computes in Python. All else goes through the primitives",
    "tinymp/audit": "What the audit computes about the numbers of a run. Nothing trains on it",
}


def tensor_cores() -> str:
    """A row for each architecture, formats and result that sum alike."""
    rows: dict[tuple, list[str]] = {}
    for name, units in tensor_core.ARCHITECTURES.items():
        for (operands, accumulate), unit in units.items():
            rows.setdefault((name, accumulate, unit), []).append(operands.upper())
    head = ["architecture", "operands", "result", "products in a step", "bits behind the point", "rounding", "promoted"]
    lines = []
    for (name, accumulate, unit), operands in rows.items():
        kept = "to nearest" if accumulate == "fp16" else f"cut off, {min(unit.bits, 23)} bits stay"
        promoted = "by software" if unit.bits == 13 else "no"  # the bits of FP8 on Ada and Hopper
        sums = [str(unit.products), str(unit.bits), kept, promoted]
        lines.append([name, ", ".join(operands), accumulate.upper(), *sums, unit.source])
    return table([*head, "agrees with"], lines)


def rounding_sites() -> str:
    """A table for each folder, made of the marks in the source."""
    text = []
    marked = [s for s in rounding.all_sites() if s.reason and not s.reason.startswith("never")]
    folders = [s.path.rpartition("/")[0] for s in marked]
    for folder in sorted({*folders}, key=lambda f: (list({**FOLDERS, f: ""}).index(f), f)):
        rows: dict[tuple[str, str], list[str]] = {}
        for site in (s for s, f in zip(marked, folders) if f == folder):
            functions = rows.setdefault((site.path, str(site.reason)), [])
            if site.function not in functions:
                functions.append(site.function)
        lines = [
            [f"[{path.rpartition('/')[2]}](../{path})", ", ".join(f"`{f}`" for f in functions), reason]
            for (path, reason), functions in rows.items()
        ]
        says = f"{FOLDERS[folder]}.\n\n" if folder in FOLDERS else ""
        text.append(f"### {folder}/\n\n{says}{table(['file', 'function', 'what is rounded'], lines)}")
    return "\n\n".join(text)


def page() -> str:
    """The whole page."""
    primitives = [
        [f"`{g.__name__}{_arguments(g)}`", first_paragraph(g)]
        for g in (precision.widen, precision.store, precision.gemm, precision.reduce)
    ]
    kinds = [[f"`{k.name}`", k.reads, k.computes, k.accumulates, k.writes, k.source] for k in precision.KINDS]
    columns = [f.name for f in fields(precision.Policy) if f.name != "name"]
    policies = [[f"`{p.name}`", *[str(getattr(p, c)) for c in columns]] for p in study.POLICIES.values()]
    ops = [
        [
            f"`{cls.name}`",
            cls.kind.name if cls.gradient is None else f"{cls.kind.name}, backward {cls.gradient.name}",
            first_paragraph(cls),
            ", ".join(f"`{a}`" for a in cls.fp32),
            where(cls),
            fast_paths(cls),
            *[determinism.promise(cls, device) for device in (0, 1)],
        ]
        for cls in sorted(set(op_classes()), key=lambda c: (c.__module__, c.name, c.__qualname__))
        if hasattr(cls, "kind")
    ]
    update = [
        [f"`{cls.__name__}`", cls.kind.name, first_paragraph(cls), where(cls)]
        for cls in (tinymp.optim.SGD, tinymp.optim.Adagrad, tinymp.optim.Adam, tinymp.optim.AdamW, tinymp.optim.RMSprop)
    ]
    return f"""<!-- Generated by docs/generate.py from the declarations in the source. Do not edit. -->

# Every precision decision

MPT is *Mixed Precision Training* (Micikevicius et al., 2018), NVG is NVIDIA's *Training with Mixed Precision*.

## The precision primitives

Ops change precision in these four functions of [precision.py](../tinymp/precision.py) and nowhere else. What carries
them out, and what else rounds, is listed under [Where numbers are rounded](#where-numbers-are-rounded).

{table(["primitive", "what it does"], primitives)}

On a GPU a CUDA kernel may do the work of several primitives in one pass, on storage in FP16 or FP32, where the policy
sums in FP32 and rounds to nearest. Kernels of pointwise ops are compiled from the definition, which is called once with
[symbols](../tinymp/gpu/symbols.py) in place of arrays; while an observer listens, the definition itself runs. Kernels
written by hand leave their results in FP32 then, and `store` rounds them. The bits are the same.

## The contract of bits

Two runs of a program on the CPU agree bit for bit if these are the same: the seeds; NumPy's version, and the features
of the CPU for which it chooses its loops; the BLAS library, its kernels and the number of its threads; and the C
library, from which NumPy takes functions such as log1p. `tinymp info` says which libraries and kernels run;
`OPENBLAS_CORETYPE`, `OPENBLAS_NUM_THREADS` and `NPY_DISABLE_CPU_FEATURES` set what may be set. With the same number of
threads, neither the number of cores nor NumKong changes a bit. What each op promises, [a table](#the-ops) says.

Gradients of several uses are added in a fixed order. The order of other sums follows from the shape of an array and
from the order of its axes in memory, which a CPU's `store` takes from `like`: the same numbers in another memory order
may have another sum, in its last bit. NumPy chooses the memory order of temporaries of 256 KiB and more by itself.

[test_bits.py](../tests/guards/test_bits.py) holds the contract from one commit to the next. For README's loop, a CNN on
MNIST's digits, an LSTM language model and a DCGAN, in FP32 and in mixed precision, it has hashes of all losses, of the
weights (masters and copies) and of the buffers after a few steps, of which mixed precision skips some. They are those
of NumPy {numpy_of_test_bits()} from its wheels, on Linux and x86-64, with OpenBLAS's kernels for Haswell, one BLAS
thread and no CPU features above AVX2, with NumKong and without; elsewhere the test is skipped, and says so.
`python -m tests.four_programs` prints them.

## The kinds of arithmetic

Every op declares one; `Op.apply` holds the op to what it writes.

{table(["kind", "reads", "computes", "accumulates", "writes", "source"], kinds)}

## The policies

`with mp.use(policy):` sets the arithmetic, `policy.cast(model)` the storage. What each column decides is said at
`Policy` in precision.py. A policy decides only about FP16 operands; FP32 ones are never touched, unless `tf32` says so.

`policy.cast(model, keep={{"head": mp.FP32}})` gives modules another policy, by their paths: storage and masters of
their parameters, and the arithmetic of their forward and backward, whatever `mp.use` says around them. What goes in and
comes out is converted by the op `cast`, but for losses, which are FP32 under every policy.

{table(["policy", *columns], policies)}

## Tensor Cores

`mp.tensor_core`, and a study's `tensor_core`, sum products as these GPUs do. The rule and its sources are on the first
page of [tensor_core.py](../tinymp/study/tensor_core.py); [Tensor Cores, bit for bit](tensor_cores.md) says how it was
held to them. `hopper-mma` and `blackwell-mma` are FP8 by PTX's instruction mma, which on these GPUs multiplies FP16
numbers; their own FP8 instructions are wgmma and tcgen05. Promotion: cuBLASLt adds FP8 sums to FP32 ones now and then
on Ada and Hopper, unless fast accumulation is on; DeepSeek-V3 does so after every 128 products.

{tensor_cores()}

## The ops

FP32 arguments may stay FP32 where the others are FP16. A column says which phases have a CUDA kernel written
by hand, in `gpu/` under the name of the source; the definition in the source runs on both devices.

{determinism.explained()}

{table(["op", "kind", "mathematics", "FP32 arguments", "source", "CUDA by hand", *determinism.COLUMNS], ops)}

## The updates

{table(["optimizer", "kind", "mathematics", "source"], update)}

## Where numbers are rounded

Who rounds here? Every line that may round has a mark `# rounds:` (`// rounds:` in CUDA) with the reason, and these
tables are made of the marks: find the folder and function here, then `rounds:` there. A line that only looks like
rounding says `rounds: never` and why; those are not listed. [A test](../tests/guards/test_rounding.py) searches the
package and its CUDA sources and fails where a mark is missing; [rounding.py](../tests/rounding.py) says what it
looks for. Between two sites is FP32 arithmetic (FP64 where stored arrays are FP64), which rounds to FP32's 24 bits.

{rounding_sites()}
"""


def steps_of_a_gpu(found: dict[str, Any]) -> str:
    """Milliseconds of a step. PyTorch's are the least of its memory formats."""
    head = ["a step, ms", "base, FP32", "base, mixed", "captured, FP32", "captured, mixed", "PyTorch, eager"]
    rows = []
    for network, step in found["steps of the base"].items():
        ms, captured = step["ms"], found["captured, by policy, ms"][network]
        peers = {n: v for n, v in ms.items() if n not in ("FP32", "mixed")}
        eager, graph = ([v for n, v in peers.items() if n.endswith("graph") is wanted] for wanted in (False, True))
        cells = [ms["FP32"], ms["mixed"], captured["FP32"], captured["MIXED"], min(eager), min(graph, default=None)]
        rows.append([network, *["" if x is None else f"{x:.2f}" if x < 1 else f"{x:.1f}" for x in cells]])
    return table([*head, "PyTorch, CUDA graph"], rows)


def answers_of_a_gpu(found: dict[str, Any]) -> str:
    """What else was measured, in a table."""
    ops, core = (found[k] for k in ("ops against PyTorch in float64", "tests/core on the GPU"))
    kernels, sanitizer = found["the kernels' tests"]["outcomes"], found["compute-sanitizer"]
    runs = [run for tool in sanitizer.values() for run in tool.values()]
    losses = [step["losses"] for step in found["steps of the fast paths"].values()]
    equal = sum(all(a == b for a, b in zip(of["mixed"], of["captured"], strict=True)) for of in losses)
    audited = list(found["a step has the bits of one under an audit"]["fast paths"].values())
    bits = sum(run == {"other bits": []} for run in audited)
    rates = {row["work"].removeprefix("DeepBench "): row["value"] for row in found["DeepBench"]["rows"]}
    passes = [rates[f"conv {p}, FP16 / PyTorch"] for p in ("forward", "input gradient", "weight gradient")]
    recurrent = [rates[f"{n} forward + backward, captured, FP16 / PyTorch"] for n in ("LSTM", "GRU")]
    (memory,) = (row["value"] for row in found["peak memory"] if row["work"].endswith("own FP32"))
    compiling = found["seconds to compile, FP16 and FP32"]
    slowest = sorted(compiling, key=compiling.__getitem__)[:-4:-1]
    rest = sum(compiling.values()) - sum(compiling[name] for name in slowest)
    rows = [
        [
            "ops against PyTorch in FP64, both directions",
            f"{ops['outcomes']['passed']} of {sum(ops['outcomes'].values())} within the computed error",
        ],
        ["tests/core", f"{core['passed']:,} passed, {core.get('failed', 0)} failed"],
        [
            "tests of the kernels",
            f"{kernels['passed']} passed, {kernels['failed']} failed (a variance off by 3.3e-6), {kernels['died']} had "
            "no time left",
        ],
        [" and ".join(sanitizer), f"{sum(r['errors'] for r in runs)} errors in {min(r['passed'] for r in runs)} tests"],
        ["captured: 20 losses equal, bit for bit", f"{equal} of {len(losses)} networks"],
        ["audited, kernels by hand: equal bits", f"{bits} of {len(audited)} networks"],
        [
            "DeepBench, products",
            f"{rates['GEMM, FP16 / PyTorch']:.3f} x PyTorch's rate, {rates['GEMM, FP16 / own FP32']:.1f} x own FP32",
        ],
        ["convolutions: y, dx, dw", ", ".join(f"{x:.2f}" for x in passes) + " x PyTorch's rate"],
        ["LSTM, GRU, captured", ", ".join(f"{x:.2f}" for x in recurrent) + " x PyTorch's rate"],
        ["peak memory of a ResNet", f"{memory:.2f} of own FP32"],
        [
            "seconds to compile, once per machine",
            ", ".join(f"{name} {compiling[name]:.0f}" for name in slowest) + f", all others {rest:.0f}",
        ],
    ]
    return table(["question", "answer"], rows)


def gpu_page() -> str:
    """docs/gpu.md, with its tables made anew."""
    text, found = GPU.read_text(encoding="utf-8"), json.loads(MEASURED.read_text(encoding="utf-8"))
    before, rest = text.split(BEGIN)
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("CuPy", "PyTorch"))
    where = f"On {found['card']}, commit {found['commit']}, {found['date']} ({versions}):"
    made = [BEGIN, where, steps_of_a_gpu(found), answers_of_a_gpu(found), END]
    return before + "\n\n".join(made) + rest.split(END)[1]


def _arguments(function: object) -> str:
    return "(" + ", ".join(inspect.signature(function).parameters) + ")"  # type: ignore[arg-type]


if __name__ == "__main__":
    for path, text in ((PAGE, page()), (GPU, gpu_page())):
        write(path, text)
        print(f"wrote {path}")
