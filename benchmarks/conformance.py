"""Compare tinymp with PyTorch: run PyTorch's own sample inputs through both (`pip install -e ".[peer]"`).

    python -m benchmarks.conformance [--face] [--quick] [--verbose] [--out FILE]

The samples are those that PyTorch tests itself with: its OpInfo database (for every op of which tinymp.ops or Tensor
has the function of that name: forward and gradients), its ModuleInfo and its OptimizerInfo, in float32 on the CPU. Each
sample is counted as

    agree       every output has PyTorch's shape, dtype and values, and every gradient PyTorch's values; where the two
                differ by more than rounding should, PyTorch in float64 decides
    refused     a TypeError, ValueError, IndexError or RuntimeError that names the op
    wrong       another shape, dtype or value
    crashed     any other exception, a warning, or an error that does not name the op or began as an AttributeError
    excluded    the sample uses what EXCLUDED names: no dense float32 library could run it

Arrays, and the gradients that backward begins with, are given exactly as PyTorch's `.numpy()` gives them: its memory.

Of what RANDOM names (dropout, uninitialised memory, ...) only shapes and dtypes are compared.

With --face the samples of all ops are run as a PyTorch program writes them, by PyTorch's path in tinymp.torch:
functions, methods of Tensor, methods in place (their input is compared, too), and further names of all of them. Names
that tinymp does not have are listed.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import pathlib
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.backend.extras import hint

from .machine import write

try:
    import torch

    # PyTorch's tests call it, and nothing in the process could set a flag afterwards
    torch.backends.disable_global_flags = lambda: None
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db
    from torch.utils._pytree import tree_leaves, tree_map
except ImportError as error:
    raise ImportError(f"benchmarks.conformance: {error}; {hint('peer')}") from error

RESULTS = pathlib.Path(__file__).parent / "results"
# Percent of the samples that are not excluded
TARGETS = {"op": 97.0, "module": 99.0, "optimizer": 99.0, "function": 97.0, "method": 97.0, "in-place method": 90.0}
CLEAR = (TypeError, ValueError, IndexError, RuntimeError)
STEPS = 5  # of an optimizer
FACE: Any = None  # tinymp.torch, once it is asked for

RANDOM = re.compile(r"(^|\.)(empty|new_empty|rand|normal$|bernoulli|multinomial)|dropout|rrelu|uniform_|normal_")

# What a sample may use that a library of dense real tensors does not have.
EXCLUDED: dict[str, Callable[[Any], bool]] = {
    "complex numbers": lambda x: getattr(x, "is_complex", False) is True or getattr(x, "dtype", x) in COMPLEX,
    "sparse layouts": lambda x: getattr(x, "layout", x) in SPARSE,
    "torch.memory_format, a wish for an order in memory": lambda x: isinstance(x, torch.memory_format) and not FACE,
}
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

# Functions whose samples come in another order than their arguments.
ORDER: dict[str, Callable[..., Any]] = {
    "einsum": lambda f: lambda operands, equation: f(equation, *operands),
    "where": lambda f: lambda input, condition, other: f(condition, input, other),
    "nn.functional.embedding": lambda f: lambda weight, input, **options: f(input, weight, **options),
    "nn.functional.embedding_bag": lambda f: lambda weight, input, **options: f(input, weight, **options),
}


def behind_log_softmax(f: Callable[..., Any]) -> Callable[..., Any]:
    """f of log-probabilities, whose gradients agree there only: PyTorch adds their exponentials, which vanish there."""
    return lambda log_probs, *rest, **options: f(log_probs.log_softmax(-1), *rest, **options)


# What both libraries are asked instead of an op or a layer itself.
ASKED: dict[str, Callable[..., Any]] = dict.fromkeys(("ctc_loss", "CTCLoss"), behind_log_softmax)


class Sample(NamedTuple):
    """One call: `theirs(*values)` and `ours(*values converted)` return (outputs, leaves), nested."""

    name: str  # as the table says it
    says: tuple[str, ...]  # names of which an error's message holds at least one
    values: Any  # nested arguments, with torch's tensors
    theirs: Callable[[Any], Any]
    ours: Callable[[Any], Any]
    random: bool = False


# ---------------------------------------------------------------------------------------------------- from PyTorch's


def to_ours(x: Any) -> Any:
    """A value of PyTorch's as a user of tinymp would write it."""
    if isinstance(x, torch.Tensor):
        return mp.from_numpy(value_of(x)).requires_grad_(x.requires_grad)
    if isinstance(x, (torch.dtype, torch.memory_format, torch.layout)):
        name = str(x).removeprefix("torch.")
        return name if FACE is None else getattr(FACE, name)
    if isinstance(x, torch.nn.TransformerEncoderLayer):  # of which a TransformerEncoder is made
        attention = x.self_attn
        sizes = attention.embed_dim, attention.num_heads, x.linear1.out_features
        options = x.norm1.eps, attention.batch_first, x.norm_first, x.linear1.bias is not None
        return nn.TransformerEncoderLayer(*sizes, x.dropout.p, to_ours(x.activation), *options)
    if callable(x) and (name := getattr(x, "__name__", "")) and x is getattr(torch.nn.functional, name, None):
        return getattr(ops, name)
    return str(x) if isinstance(x, torch.device) else x


def op_samples(quick: bool) -> Iterator[Sample]:
    """The samples of every op whose name tinymp has."""
    for op in op_db[::5] if quick else op_db:
        function = ours_of(op.name) and ORDER.get(op.name, lambda f: f)(ours_of(op.name))
        if function is None or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        plain = op.name.rpartition(".")[2].removeprefix("__").removesuffix("__")
        asked = ASKED.get(plain, lambda f: f)
        says = (plain, plain.removeprefix("r"))
        title = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        for values, random in calls(op, op.name, op.supports_autograd, quick):
            theirs, ours = (lambda v, f=f: (f(*v[0], **v[1]), v) for f in map(asked, (op.op, function)))
            yield Sample(title, says, values, theirs, ours, random)


def calls(op: Any, name: str, gradients: bool, quick: bool) -> Iterator[tuple[tuple, bool]]:
    """The arguments with which PyTorch's database calls an op, and whether the results are random."""
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=gradients))
    for s in samples[:: max(len(samples) // 3, 1)] if quick else samples:
        yield ((s.input, *s.args), s.kwargs), bool(RANDOM.search(name)) or s.kwargs.get("dropout_p", 0) > 0


def ours_of(name: str) -> Any:
    """The function of this name: of torch.nn.functional or torch in tinymp.ops, else a method of Tensor."""
    home, _, plain = name.rpartition(".")
    if home == "nn.functional" or (not home and hasattr(torch, plain)):
        found = getattr(ops, plain, None)
        if callable(found):
            return found
    if home:
        return None
    found = getattr(mp.Tensor, plain, None)
    return found.fget if isinstance(found, property) else found if callable(found) else None


def face_samples(quick: bool, kind: str, missing: list[str]) -> Iterator[Sample]:
    """The samples of every function or method of PyTorch's that tinymp.torch has; `missing` takes the other names."""
    in_place = kind == "in-place method"
    home, own = (torch, FACE) if kind == "function" else (torch.Tensor, mp.Tensor)
    for op, one in ((x, y) for x in (op_db[::5] if quick else op_db) for y in (x, *x.aliases)):
        name = one.name if kind == "function" else one.name.rpartition(".")[2] + "_" * in_place
        original, function = path_in(home, name), path_in(own, name)
        is_one = kind == "function" or (one.inplace_variant if in_place else one.method_variant) is not None
        if not is_one or original is None or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        if function is None:
            missing += [name] * (name not in missing)
            continue
        plain = name.rpartition(".")[2].strip("_")
        asked = ORDER.get(name, ASKED.get(plain, lambda f: f)) if kind == "function" else lambda f: f
        says = (plain, plain.removeprefix("r"), name, op.name.rpartition(".")[2])
        for values, random in calls(op, name, op.supports_autograd and not in_place, quick):
            theirs, ours = (partial(of_face, asked(f), in_place) for f in (original, function))
            sample = Sample(name, says, values, theirs, ours, random)
            try:
                reference(sample, torch.float32)
            except Exception:  # PyTorch's database asks a function of its own, with arguments of its own
                continue
            yield sample


def path_in(home: Any, name: str) -> Any:
    """The function at this path; None if nothing there can be called, or if it is absent on purpose."""
    try:
        found = attrgetter(name)(home)
    except (AttributeError, ImportError):
        return None
    return found if callable(found) and type(found).__name__ != "Absent" else None


def of_face(f: Callable[..., Any], in_place: bool, values: Any) -> Any:
    """The result, and what became of the input of a method in place; leaves."""
    y = f(*values[0], **values[1])
    return ((y, values[0][0]), []) if in_place else (y, values)


def module_samples(quick: bool) -> Iterator[Sample]:
    """The samples of every layer whose name tinymp.nn has, in training and in evaluation; weights are PyTorch's."""
    for info in module_db:
        kind = info.module_cls
        layer = getattr(nn, kind.__name__, None)
        if kind.__module__.split(".")[:2] != ["torch", "nn"] or layer is None:
            continue
        says = (kind.__name__, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower())
        for training in (True, False):
            inputs = info.module_inputs_func(info, "cpu", torch.float32, requires_grad=True, training=training)
            for s in inputs[:2] if quick else inputs:
                built, forward = s.constructor_input, s.forward_input
                original = kind(*built.args, **built.kwargs).train(training)
                made = partial(copy.deepcopy, original), partial(same_layer, layer, built, original)
                theirs, ours = (partial(of_layer, ASKED.get(kind.__name__, lambda f: f), one) for one in made)
                random = training and bool(RANDOM.search(says[1]))
                yield Sample(f"nn.{kind.__name__}", says, (forward.args, forward.kwargs), theirs, ours, random)


def of_layer(asked: Callable[..., Any], made: Callable[[], Any], values: Any) -> Any:
    """Outputs (its buffers among them) and leaves of a layer."""
    module = made()
    return (asked(module)(*values[0], **values[1]), list(module.buffers())), (values, list(module.parameters()))


def same_layer(layer: Any, built: Any, original: Any) -> Any:
    """tinymp's layer, built with the arguments of PyTorch's, and with its weights."""
    arguments, options = tree_map(to_ours, (built.args, built.kwargs))
    module = layer(*arguments, **options).train(original.training)
    module.load_state_dict({k: t.numpy().copy() for k, t in original.state_dict().items()})
    return module


def optimizer_samples(quick: bool) -> Iterator[Sample]:
    """The options of every optimizer that tinymp.optim has, over some steps with given gradients."""
    for info in optim_db:
        name = info.optim_cls.__name__
        rule = getattr(optim, name, None)
        for s in info.optim_inputs_func("cpu", torch.float32) if rule else ():
            values = [torch.randn(STEPS + 1, *shape) for shape in ((3, 4), (4,), ())]
            theirs = partial(trained, torch.nn.Parameter, info.optim_cls, s.kwargs)
            ours = partial(trained, nn.Parameter, rule, tree_map(to_ours, s.kwargs))
            yield Sample(f"optim.{name}", (name,), values, theirs, ours)


def trained(parameter: Any, rule: Any, options: dict[str, Any], values: Any) -> Any:
    """The weights after STEPS steps with these options; each of the values has the first weights, and the gradients."""
    arrays = [x.numpy() if isinstance(x, mp.Tensor) else x for x in values]
    weights = [parameter(x[0].copy() if isinstance(x, np.ndarray) else x[0].clone()) for x in arrays]
    optimizer = rule(weights, **options)
    for i in range(STEPS):
        for w, x in zip(weights, arrays):
            w.grad = x[i + 1].copy() if isinstance(x, np.ndarray) else x[i + 1].clone()
        optimizer.step()
    return [mp.tensor(w.master) if isinstance(w, nn.Parameter) else w.detach() for w in weights], []


# ---------------------------------------------------------------------------------------------------------- verdicts


def judged(sample: Sample) -> tuple[str, str]:
    """The verdict on a sample, and why."""
    for reason, uses in EXCLUDED.items():
        if any(uses(x) for x in tree_leaves(sample.values)):
            return "excluded", reason
    expected = reference(sample, torch.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y, leaves = sample.ours(tree_map(to_ours, sample.values))
            got = [x for x in tree_leaves(y) if x is not None]
            if different := types_differ(expected[0], got):
                return "wrong", different
            roots = [x for x in got if isinstance(x, mp.Tensor) and x.requires_grad]
            if any(g is not None for g in expected[1]):
                for x, dy in zip(roots, gradients_of(expected[0])):
                    x.backward(value_of(dy), retain_graph=True)
            gradients = [x.grad_array for x in tree_leaves(leaves) if isinstance(x, mp.Tensor)]
    except CLEAR as error:
        named = any(re.search(rf"(^|\W){re.escape(name)}\b", str(error)) for name in sample.says)
        named = named and not isinstance(error.__cause__, AttributeError)  # of a value, which none of the checks knew
        return ("refused" if named else "crashed"), f"{type(error).__name__}: {error}"
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {error}"
    if sample.random or not (different := values_differ(expected, got, gradients)):
        return "agree", ""
    different = values_differ(reference(sample, torch.float64), got, gradients)
    return ("wrong", different) if different else ("agree", "")


def reference(sample: Sample, dtype: Any) -> tuple[list, list]:
    """PyTorch's outputs, and its gradients of the leaves (None: it has none); floats given as dtype."""

    def again(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        floating = x.is_floating_point() and dtype != torch.float32
        return (x.detach().to(dtype) if floating else x.detach().clone()).requires_grad_(x.requires_grad)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y, leaves = sample.theirs(tree_map(again, sample.values))
    outputs = [x for x in tree_leaves(y) if x is not None]
    wanted = [x for x in tree_leaves(leaves) if isinstance(x, torch.Tensor)]
    roots = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    inputs = [x for x in wanted if x.requires_grad]
    found = iter(torch.autograd.grad(roots, inputs, gradients_of(outputs), allow_unused=True) if roots else ())
    return outputs, [next(found, None) if x.requires_grad else None for x in wanted]


def gradients_of(outputs: list) -> list:
    """A fixed random dy for every output that requires a gradient, the same whatever its dtype."""
    generator = torch.Generator().manual_seed(0)
    roots = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    return [torch.randn(x.shape, generator=generator).to(x.dtype) for x in roots]


def value_of(x: Any) -> np.ndarray:
    """A result as a NumPy array."""
    if isinstance(x, torch.Tensor):
        half = x.dtype == torch.bfloat16  # which PyTorch does not hand to NumPy
        return x.detach().float().numpy().astype(mp.bfloat16) if half else x.detach().numpy()
    return np.asarray(x.numpy() if isinstance(x, mp.Tensor) else x)


def types_differ(expected: list, got: list) -> str:
    """Describe a difference in number, shapes or dtypes of the results; empty if there is none."""
    types = [[(str(x.dtype), x.shape) for x in map(value_of, every)] for every in (expected, got)]
    return f"{types[1]} instead of {types[0]}" if types[0] != types[1] else ""


def values_differ(expected: tuple[list, list], got: list, gradients: list) -> str:
    """Describe a difference in the values of results or gradients; empty if none. A missing gradient counts as 0."""
    for i, (e, y) in enumerate(zip(expected[0], got)):
        if why := differs(value_of(e), value_of(y)):
            return f"result {i}: {why}"
    for i, (e, g) in enumerate(zip(expected[1], gradients)):
        if e is None and g is None:
            continue
        e = np.zeros(g.shape) if e is None else value_of(e)
        if why := differs(e, np.zeros(e.shape) if g is None else g):
            return f"gradient {i}: {why}"
    return ""


def differs(e: np.ndarray, y: np.ndarray) -> str:
    """Describe a difference of y and e beyond that of FP32 sums in another order; empty if there is none."""
    if e.shape != y.shape:
        return f"shape {y.shape} instead of {e.shape}"
    e, y = np.asarray(e, "float64"), np.asarray(y, "float64")
    finite = np.abs(e[np.isfinite(e)])
    close = np.isclose(y, e, rtol=1e-4, atol=1e-5 * max(1.0, finite.max(initial=0.0)), equal_nan=True)
    return "" if close.all() else f"{y[~close][0]:.8g} instead of {e[~close][0]:.8g}"


# ------------------------------------------------------------------------------------------------------------ the run


def measure(quick: bool = False, verbose: bool = False, face: bool = False) -> dict[str, Any]:
    """All samples: counts of verdicts by database and by op, and the reasons of all that do not agree."""
    torch.manual_seed(0)
    result: dict[str, Any] = {}
    databases: dict[str, Any] = {"op": op_samples, "module": module_samples, "optimizer": optimizer_samples}
    missing: dict[str, list[str]] = {"function": [], "method": [], "in-place method": []}
    if face:
        global FACE
        FACE = importlib.import_module("tinymp.torch")
        databases = {kind: partial(face_samples, kind=kind, missing=names) for kind, names in missing.items()}
    for database, samples in databases.items():
        counts: dict[str, Counter] = defaultdict(Counter)
        why: Counter = Counter()
        for sample in samples(quick):
            verdict, reason = judged(sample)
            counts[sample.name][verdict] += 1
            if verdict != "agree":
                why[f"{verdict}: {sample.name}: {reason}"] += 1
                if verbose:
                    print(f"{verdict:<9}{sample.name}: {reason}", flush=True)
        total: Counter = sum(counts.values(), Counter())
        run = total.total() - total["excluded"]
        percent = round(100 * total["agree"] / max(run, 1), 2)
        result[database] = {"agree, percent": percent, "samples": total, "names": len(counts)}
        result[database] |= {"by name": counts, "reasons": dict(why.most_common())}
        if face:
            result[database]["missing names"] = missing[database]
    return result


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, write the file; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about three samples of every fifth op")
    parser.add_argument("--verbose", action="store_true", help="print every sample that does not agree")
    parser.add_argument("--face", action="store_true", help="PyTorch's functions and methods, through tinymp.torch")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args(arguments)
    result = measure(options.quick, options.verbose, options.face)
    missed = False
    columns = ("agree", "refused", "wrong", "crashed", "excluded")
    print(" " * 17 + "".join(f"{name:>10}" for name in (*columns, "agree, %")))
    for database, row in result.items():
        n, percent = row["samples"], row["agree, percent"]
        counts = "".join(f"{n.get(v, 0):>10}" for v in columns)
        print(f"{row['names']:>4} {database + 's':<12}{counts} {percent:>9}")
        missed = missed or percent < TARGETS[database] or "wrong" in n or "crashed" in n
    write(options.out or RESULTS / f"conformance{'_face' * options.face}.json", {"torch": torch.__version__, **result})
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
