"""On what the bits of each op depend: declared here and nowhere else.

tests/guards/test_determinism.py makes a call of every op (calls.py) in several ways, and
fails where the bits depend on something that is not declared.
"""

from __future__ import annotations

MEANS = {
    "batch": "what it is computed together with: an image may have other bits in a batch of 64 than alone",
    "threads": "the number of BLAS's threads",
    "BLAS": "the library that multiplies matrices, and its kernels",
    "NumPy": "the features of the CPU for which NumPy chooses its loops, and the C library: `exp`, `log`, `tanh`, ...",
    "GPU": "the model, and the versions of CUDA, cuBLAS and CuPy",
    "seed": "the state of the device's generator",
    "FP64": "gradients in FP64, which only gradient checks use, are added up in no fixed order: `not_guaranteed`",
    "race": "where an index comes twice, the thread that is last writes the element",
    "processes": "how many they are, and in which order MPI adds up what they send",
}
RUNS, MACHINES = {"race", "processes"}, {"threads", "BLAS", "NumPy", "GPU"}  # may differ between runs, between machines

KINDS = {  # on a CPU, on a GPU
    "MOVEMENT": ("", ""),
    "POINTWISE": ("", ""),
    "REDUCTION": ("batch", "batch GPU"),
    "LOSS": ("batch", "batch GPU"),
    "DOT": ("batch threads BLAS", "batch GPU"),
}

EXACT = "all argmax argmin amax max scale_loss"  # these add nothing up, whatever their kinds
MORE = {  # of some ops, by name or class, besides what their kinds (forward's and backward's) say
    "cos elu exp gelu log logsigmoid mish pow sigmoid silu sin softplus tanh": ("NumPy", "GPU"),
    "acos asin atan atan2 cosh erf erfinv expm1 log10 log1p log2 sinh tan": ("NumPy", "GPU"),
    "softmax log_softmax logsumexp norm scaled_dot_product_attention gru lstm": ("NumPy", "GPU"),
    "binary_cross_entropy binary_cross_entropy_with_logits cross_entropy ctc_loss": ("NumPy", "GPU"),
    "Remainder fmod": KINDS["REDUCTION"],
    "add sub mul Div maximum minimum pow clamp interpolate": KINDS["REDUCTION"],  # gradients are sums
    "embedding Index gather index_add index_select interpolate ctc_loss": ("", "FP64"),
    "dropout scaled_dot_product_attention": ("batch seed", "batch seed"),
    "index_put": ("", "race"),
    "Function": (" ".join(MEANS), " ".join(MEANS)),  # a program's own
}


def names(op: type) -> set[str]:
    """Names of an Op in these tables: its name, or its class where two Ops share a name."""
    return {op.name, op.__name__}  # type: ignore[attr-defined]


def depends(op: type, device: int) -> list[str]:
    """The MEANS on which the bits of an Op depend, on a CPU (0) or a GPU (1); KeyError for an unknown kind."""
    if names(op) & {*EXACT.split()}:
        return []
    words = [KINDS[kind.name][device] for kind in (op.kind, op.gradient) if kind]  # type: ignore[attr-defined]
    words += [more[device] for some, more in MORE.items() if names(op) & {*some.split()}]
    return [word for word in MEANS if word in " ".join(words).split()]
