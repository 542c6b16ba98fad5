"""What `explain` says: the rules in words, where they come from, and what breaks without them. Data, no code.

Every number is an example that runs (tests/audit/test_explain.py does). Lines of tinymp are named, never numbered.
"""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """A decision about precision.

    rule      what tinymp does
    source    sections of MPT (the paper; "v1": its first version) and NVG (NVIDIA's guide)
    without   what breaks otherwise
    example   a number to check, as typed into Python
    read      where to read it, as names below `tinymp`
    ablation  what to give `tinymp ablate`, to see what comes of the opposite
    see       other topics
    """

    rule: str
    source: str
    without: str
    example: str
    read: tuple[str, ...]
    ablation: str = ""
    see: tuple[str, ...] = ()


TOPICS: dict[str, Topic] = {
    "storage": Topic(
        "Weights, activations and gradients are stored in FP16; everything between two stores is FP32.",
        "MPT 3, NVG 2.3",
        "With FP32 storage nothing breaks, but memory and its traffic double. FP16 has 11 significant bits and 40 "
        "powers of two; what does not fit is the subject of the other topics.",
        ">>> mp.MIXED.cast(ops.zeros(1000)).nbytes, mp.FP32.cast(ops.zeros(1000)).nbytes\n(2000, 4000)",
        ("precision.Policy", "precision.Policy.cast", "precision.store"),
        see=("rounding", "overflow", "subnormals"),
    ),
    "rounding": Topic(
        "A value is computed in FP32 and rounded once, to the nearest FP16 number, ties to even, when it is stored.",
        "MPT v1 3.1 and appendix A, NVG 2.1",
        "Every rounding has an error of up to 1/2048 of the value: rounding after each operation instead of once adds "
        "them up. Above 2048 odd numbers are gone.",
        ">>> (mp.tensor(2048.0).half() + 1).item()\n2048.0",
        ("precision.store", "precision.to_dtype"),
        "mnist --only rounding-to-nearest",
        ("stochastic rounding", "subnormals", "overflow"),
    ),
    "stochastic rounding": Topic(
        "A study: round up or down at random, with probabilities such that the mean is right. Off by default.",
        "MPT v1 appendix A",
        "Nothing: rounding to nearest is what the paper uses. In its experiment (v1, figure 7) stochastic rounding of "
        "the weights gave a validation error that was some 30 % worse. In tinymp the policy rounds every store so.",
        ">>> x = mp.tensor(np.full(100_000, 1 + 2.0**-12))\n"
        ">>> float(x.half().float().mean())  # to nearest, all are 1\n1.0\n"
        ">>> with mp.use(mp.STOCHASTIC_ROUNDING):\n...     print(f'{float(x.half().float().mean()):.4f}')\n1.0002",
        ("precision.store", "backend.cpu.cast_stochastic"),
        "mnist --only rounding-to-nearest",
        ("rounding",),
    ),
    "overflow": Topic(
        "A value of 65,520 or more becomes infinite when it is stored; the scaler then skips the step and lowers S.",
        "NVG 2.1 and 2.3.2, MPT 3.2",
        "An update with an infinite gradient would destroy the weights for good. A constant that does not fit FP16 "
        "raises instead.",
        ">>> ops.exp(mp.tensor([11.0, 12.0]).half()).tolist()\n[59872.0, inf]",
        ("precision.store", "precision.require_fp16", "optim.scaler.LossScaler.step"),
        "mnist --only loss-scaling",
        ("loss scaling", "softmax"),
    ),
    "subnormals": Topic(
        "Between 2^-24 and 2^-14 FP16 has numbers with fewer bits, down to one; they are kept, never flushed to zero.",
        "NVG 2.1, MPT 3.2",
        "Gradients live there: the smaller, the coarser, and at 2^-25 and below they are zero. Scaling the loss moves "
        "them up.",
        ">>> (mp.tensor([2.0**-25, 1.4 * 2.0**-24]).half().float() * 2**24).tolist()\n[0.0, 1.0]",
        ("precision.store", "audit.ledger.Rounding"),
        "mnist --only loss-scaling",
        ("loss scaling", "rounding"),
    ),
    "master weights": Topic(
        "The optimizer updates an FP32 master of every weight; the FP16 copy that the model reads is the master, "
        "rounded once per step.",
        "MPT 3.1, NVG 2.3.1",
        "An update below 1/2048 of its weight can vanish in FP16, however often it comes. The paper's speech model "
        "lost 80 % in relative accuracy (figure 2a).",
        ">>> w = mp.tensor(1.0).half()\n"
        ">>> for step in range(1000):\n...     w = w + 2.0**-12\n"
        ">>> w.item(), 1 + 1000 * 2.0**-12\n(1.0, 1.244140625)",
        ("optim.optimizer.Optimizer._update_one", "nn.parameter.Parameter.write"),
        "mnist --only master",
        ("optimizer state", "rounding"),
    ),
    "loss scaling": Topic(
        "The loss is multiplied by S before backward, and weight gradients are divided by S in FP32 before anything "
        "looks at them. The dynamic S grows until gradients overflow and halves when they do.",
        "MPT 3.2, NVG 2.3.1 and 2.3.2",
        "Gradients of 2^-25 and below become zero. The paper's Multibox SSD diverges without scaling (table 2); S = 8 "
        "mends it.",
        ">>> g = mp.tensor(2.0**-26)\n>>> g.half().item(), (g * 1024).half().item() / 1024 == 2.0**-26\n(0.0, True)",
        ("optim.scaler.LossScaler.scale", "optim.optimizer.unscaled", "optim.scaler.DynamicLossScaler"),
        "mnist --only loss-scaling",
        ("subnormals", "overflow", "gradient clipping"),
    ),
    "accumulation": Topic(
        "A dot product multiplies FP16 operands exactly and adds up in FP32; its sum is rounded once.",
        "MPT 3.3, NVG 2.2",
        "An FP16 sum stalls as soon as a term is below half the distance to the next number: 2048 + 1 is 2048. With "
        "terms added by fours, as in a Tensor Core, it stalls at 8192.",
        ">>> a = mp.tensor(np.ones((1, 10_000))).half()\n>>> (a @ a.T).item()\n10000.0\n"
        ">>> with mp.use(mp.FP16_ACCUMULATE):\n...     print((a @ a.T).item())\n8192.0",
        ("precision.gemm", "backend.cpu.matmul_fp16", "precision.Policy"),
        "mnist --only accumulator-4",
        ("reductions", "tensor cores"),
    ),
    "tensor cores": Topic(
        "On a GPU, FP16 products run on Tensor Cores: FP16 in, FP32 accumulators, FP16 out. cuBLAS may not reduce in "
        "less.",
        "NVG 2.2, MPT 3.3",
        "Nothing breaks without them, but the time: they want dimensions that are multiples of 8 (channels, features, "
        "batch). Their products are exact: 11 by 11 bits need 22, and FP32 has 24.",
        ">>> x = mp.tensor([[1 + 2.0**-10]]).half()\n>>> (x.float() @ x.float()).item() == (1 + 2.0**-10) ** 2\nTrue",
        ("precision.gemm", "backend.cublas.gemm"),
        "mnist --only split-k",
        ("accumulation", "tf32"),
    ),
    "tf32": Topic(
        "FP32 operands are never rounded to TF32's 11 significant bits unless the policy TF32 says so.",
        "-",
        "The FP32 baseline would silently become less precise than FP32 on Ampere and later.",
        ">>> x = mp.tensor([[1 + 2.0**-12]])\n>>> (x @ x).item() > 1\nTrue\n"
        ">>> with mp.use(mp.TF32):\n...     print((x @ x).item())\n1.0",
        ("precision.gemm", "precision.Policy"),
        see=("accumulation", "tensor cores"),
    ),
    "reductions": Topic(
        "Sums and means over FP16 tensors are carried in FP32.",
        "MPT 3.3, NVG 2.3.1",
        "10,000 values of 0.1 summed in FP16 stall at 256: there the numbers lie 0.25 apart, and 0.1 is less than half "
        "of it. Bias gradients are sums of that kind.",
        ">>> x = mp.tensor(np.full(10_000, 0.1)).half()\n>>> x.sum().item()\n1000.0\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n...     print(x.sum().item())\n256.0",
        ("precision.reduce", "backend.cpu.reduce_fp16"),
        "mnist --only reductions",
        ("accumulation", "batch norm", "softmax"),
    ),
    "batch norm": Topic(
        "FP16 in and out; mean, variance and the adjustment of values in FP32, and so are weight, bias and running "
        "statistics. The same holds for the other normalisations.",
        "NVG 2.3.1, MPT 3.3",
        "The statistics are sums over batch and positions, of thousands of terms: in FP16 they stall. Variances beyond "
        "65,504 would be infinite, momentum steps of the running statistics would be lost.",
        ">>> x, mean, var = mp.tensor(np.full((10_000, 1), 0.1)).half(), ops.zeros(1), ops.ones(1)\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n"
        "...     y = ops.batch_norm(x, mean, var, training=True, momentum=1.0)\n"
        ">>> f'{mean.item():.4f}'  # of values that are all 0.1\n'0.0256'",
        ("ops.norm.BatchNorm.forward", "ops.norm.Running.update", "nn.parameter.storage_of"),
        "mnist --only batch-norm-statistics",
        ("reductions",),
    ),
    "softmax": Topic(
        "FP16 in and out; the largest x is subtracted first, and exponentials and their sum stay in FP32.",
        "MPT 3.3, NVG 2.3.1",
        "exp(12) is beyond 65,504, and a sum of ones stalls at 2048: over 10,000 equal classes each would get 1/2048.",
        ">>> x = ops.zeros(10_000).half()\n>>> f'{ops.softmax(x, 0)[0].item():.6f}'\n'0.000100'\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n...     print(f'{ops.softmax(x, 0)[0].item():.6f}')\n0.000488",
        ("ops.softmax.Softmax.forward", "ops.softmax.LogSoftmax.forward"),
        "mnist --only softmax",
        ("losses", "reductions", "overflow"),
    ),
    "losses": Topic(
        "Losses read FP16, compute and sum in FP32, and return FP32 whatever the policy, unless its `only` names them.",
        "NVG 2.3.1",
        "A scaled loss overflows FP16 at once: 2.3, the loss of ten equal classes, times 2^15 is beyond 65,504.",
        ">>> loss = ops.cross_entropy(ops.zeros(1, 10).half(), mp.tensor([3]))\n"
        ">>> loss.dtype.name, (loss * 2**15).item() < 75_500, (loss.half() * 2**15).item()\n('float32', True, inf)",
        ("ops.loss.CrossEntropy.forward", "ops.loss.Loss"),
        "mnist --only softmax",
        ("softmax", "loss scaling"),
    ),
    "pointwise": Topic(
        "Element by element in FP32, one rounding at the end.",
        "MPT 3.3",
        "Little: the paper allows FP16 here. But squares leave FP16's range early, and steps within an op would each "
        "be rounded.",
        ">>> ops.square(mp.tensor([256.0, 1e-4]).half()).tolist()\n[inf, 0.0]",
        ("precision.widen", "precision.store", "ops.pointwise.Mul"),
        see=("rounding", "overflow"),
    ),
    "movement": Topic(
        "Values are moved or chosen, not computed: no bit changes. Where gradients meet again they are summed in FP32.",
        "MPT 3.3 (reductions)",
        "Forward nothing can be lost. A gradient to which many places add would stall in FP16, as other sums do.",
        ">>> w = mp.tensor(np.zeros((1, 1))).half().requires_grad_()\n"
        ">>> i = mp.tensor(np.zeros(4096, int))\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n...     ops.embedding(i, w).sum().backward()\n"
        ">>> float(w.grad[0, 0])  # of 4096 ones\n2048.0",
        ("precision.scatter_add", "ops.embedding.Embedding.backward", "tensor._propagate"),
        see=("reductions",),
    ),
    "optimizer state": Topic(
        "Momentum and Adam's averages are FP32.",
        "MPT 3.1 (it follows from the update in FP32; the paper does not speak of it)",
        "Adam's v is a mean of squares: a gradient of 1e-3 adds 1e-9, which is 0 in FP16, and the step is divided by "
        "the root of 0.",
        ">>> mp.tensor(0.001 * 1e-3**2).half().item()\n0.0",
        ("optim.optimizer.Optimizer._state_of", "optim.optimizer.Adam.update"),
        "mnist --only optimizer-state",
        ("master weights", "epsilon"),
    ),
    "epsilon": Topic(
        "Small constants (Adam's eps, batch norm's) are FP32, and so is what they are added to.",
        "MPT 3.1 and 3.3 (FP32 updates and statistics)",
        "Adam's 1e-8 is 0 in FP16, whose smallest number is 6e-8: a weight whose gradients are 0 would become NaN.",
        ">>> mp.tensor([1e-8, 1e-5]).half().tolist()\n[0.0, 1.0013580322265625e-05]",
        ("optim.optimizer.Adam", "optim.optimizer.Adagrad", "ops.norm.BatchNorm.forward"),
        "mnist --only optimizer-state",
        ("optimizer state", "subnormals"),
    ),
    "gradient clipping": Topic(
        "Gradients are unscaled first and clipped in FP32, so that the limit means what it does in FP32 training. "
        "Clipping scaled gradients raises.",
        "MPT 3.2, NVG 2.3.1",
        "With S = 1024 a limit of 1 would act as 1/1024. And the norm sums squares: that of 256 is infinite in FP16.",
        ">>> g = mp.tensor([300.0, 400.0]).half()\n"
        ">>> ops.sum(g * g).item(), ops.sum(g.float() * g.float()).item() ** 0.5\n(inf, 500.0)",
        ("optim.clip.clip_grad_norm_", "optim.scaler.LossScaler.unscale_"),
        see=("loss scaling", "reductions"),
    ),
    "gates": Topic(
        "Precision changes in four functions and nowhere else: widen, store, gemm and reduce. A test walks the source "
        "to hold that.",
        "MPT 3, NVG 2.3",
        "A cast anywhere would round unseen; that door is what the audit watches.",
        ">>> from tinymp.precision import store, widen\n"
        ">>> x = np.arange(2**16, dtype=np.uint16).view(np.float16)  # all there are\n"
        ">>> np.array_equal(store(widen(x), x), x, equal_nan=True)\nTrue",
        ("precision.widen", "precision.store", "precision.gemm", "precision.reduce"),
        see=("rounding", "accumulation", "reductions"),
    ),
    "recurrence": Topic(
        "In each time step the products of all gates are summed in FP32 and the pointwise part is computed in FP32; "
        "the states h and c are stored once per step, the weight gradients of all steps summed in FP32.",
        "MPT 3.3 and 4.3 to 4.5",
        "A state is rounded once per step, and a slow change of it is lost like a small update: beside 1, below 2^-11.",
        ">>> c = mp.tensor(1.0).half()\n>>> (c + 2.0**-11 * 0.9).item(), (c + 2.0**-10 * 0.9).item()\n"
        "(1.0, 1.0009765625)",
        ("ops.recurrent.LSTM.forward", "ops.recurrent.GRU.forward"),
        "language_model --only accumulator-4",
        ("accumulation", "rounding"),
    ),
}

# Other words for the topics, and the fields of a Policy.
ALIASES = {
    "accumulate": "accumulation", "accumulator": "accumulation", "dot product": "accumulation",
    "split-k": "tensor cores",
    "sums": "reductions", "norm": "batch norm", "normalisation": "batch norm",
    "master": "master weights", "master copy": "master weights", "weights": "master weights",
    "state": "optimizer state", "eps": "epsilon", "clipping": "gradient clipping", "underflow": "subnormals",
    "denormals": "subnormals", "infinity": "overflow", "scaling": "loss scaling",
    "dynamic loss scaling": "loss scaling", "loss": "losses", "fp16": "storage", "half": "storage", "cast": "rounding",
}  # fmt: skip

# Which topic stands for a kind of arithmetic, and for a field of a policy that differs from MIXED.
OF_KIND = {
    "DOT": "accumulation",
    "REDUCTION": "reductions",
    "POINTWISE": "pointwise",
    "MOVEMENT": "movement",
    "LOSS": "losses",
    "UPDATE": "master weights",
}
OF_FIELD = {
    "storage": "storage",
    "accumulate": "accumulation",
    "chunk": "accumulation",
    "reduce": "reductions",
    "rounding": "stochastic rounding",
    "master": "master weights",
    "norm": "batch norm",
    "state": "optimizer state",
    "tf32": "tf32",
    "split": "tensor cores",
    "only": "gates",
}
OF_GATE = {"widen": "storage", "store": "rounding", "gemm": "accumulation", "reduce": "reductions"}

# Ops, by the name of their class, that another topic than that of their kind explains.
OF_OP = {
    "Softmax": "softmax", "LogSoftmax": "softmax", "LogSumExp": "softmax", "SampledSoftmaxLoss": "softmax",
    "BatchNorm": "batch norm", "FixedNorm": "batch norm", "LayerNorm": "batch norm", "LocalResponseNorm": "batch norm",
    "Normalize": "batch norm", "LSTM": "recurrence", "GRU": "recurrence",
}  # fmt: skip

# The same for what is not an op.
OF_NAME = {
    "clip_grad_norm_": "gradient clipping", "clip_grad_value_": "gradient clipping", "LossScaler": "loss scaling",
    "NoLossScaler": "loss scaling", "StaticLossScaler": "loss scaling", "DynamicLossScaler": "loss scaling",
    "ObservedLossScaler": "loss scaling", "StepResult": "overflow", "Parameter": "master weights",
}  # fmt: skip

# What is particular about an op: a sentence, and a number to check.
NOTES: dict[str, tuple[str, str]] = {
    "exp": (
        "From x = 11.09 on, the logarithm of 65,520, the result is infinite; below -17.3 it is 0.",
        ">>> ops.exp(mp.tensor([12.0, -17.5]).half()).tolist()\n[inf, 0.0]",
    ),
    "square": (
        "From |x| = 256 on the result is infinite, up to 2^-12.5 it is 0: norms are computed from widened values.",
        ">>> ops.square(mp.tensor([256.0, 1e-4]).half()).tolist()\n[inf, 0.0]",
    ),
    "pow": (
        "Powers leave FP16's range early: 41 cubed is beyond 65,504.",
        ">>> (mp.tensor([40.0, 41.0]).half() ** 3).tolist()\n[64000.0, inf]",
    ),
    "reciprocal": (
        "Below 1/65,520 the result is infinite.",
        ">>> ops.reciprocal(mp.tensor([2e-5, 1e-5]).half()).tolist()\n[49920.0, inf]",
    ),
    "div": (
        "A small divisor makes the quotient infinite: an eps that is added to it must not be 0 in FP16.",
        ">>> (mp.tensor(1.0).half() / mp.tensor(1e-8).half()).item()\ninf",
    ),
    "rsqrt": (
        "An eps added in FP16 storage must not be 0 there; batch norm adds its own in FP32.",
        ">>> ops.rsqrt(mp.tensor(1e-8).half()).item()\ninf",
    ),
    "sigmoid": (
        "From x = 8.4 on the stored y is 1, and y (1 - y), its derivative, 0.",
        ">>> ops.sigmoid(mp.tensor([8.0, 9.0]).half()).tolist()\n[0.99951171875, 1.0]",
    ),
    "tanh": (
        "From x = 4.6 on the stored y is 1, and 1 - y^2, its derivative, 0.",
        ">>> ops.tanh(mp.tensor([4.0, 5.0]).half()).tolist()\n[0.99951171875, 1.0]",
    ),
    "relu": ("Nothing is rounded: the result is x or 0.", ""),
    "max_pool2d": ("Nothing is rounded: the result is one of the values of x.", ""),
    "add": (
        "Beside x, a y below x / 2048 can be lost.",
        ">>> (mp.tensor(2048.0).half() + mp.tensor(1.0).half()).item()\n2048.0",
    ),
    "mul": (
        "The product of two FP16 numbers is exact in FP32; its one rounding may meet either end of the range.",
        ">>> (mp.tensor([300.0, 1e-4]).half() * mp.tensor([300.0, 1e-4]).half()).tolist()\n[inf, 0.0]",
    ),
    "mean": (
        "The sum may be beyond 65,504 where the mean is not: it is divided before it is stored.",
        ">>> mp.tensor(np.full(1000, 100.0)).half().mean().item()\n100.0",
    ),
    "sum": (
        "The sum itself must fit FP16 when it is stored: use .float() first where it may not.",
        ">>> x = mp.tensor(np.full(1000, 100.0)).half()\n>>> x.sum().item(), x.float().sum().item()\n(inf, 100000.0)",
    ),
    "var": (
        "The squares may be beyond 65,504 where the variance's root is not; `std` takes the root before it stores.",
        ">>> x = mp.tensor([-300.0, 300.0]).half()\n"
        ">>> ops.var(x, correction=0).item(), ops.std(x, correction=0).item()\n(inf, 300.0)",
    ),
    "conv2d": (
        "Each output sums C kh kw products, each weight's gradient N H W of them: in a batch of 64 pictures of 28 x "
        "28, 50,176.",
        "",
    ),
    "linear": ("A bias gradient is a sum over all rows of the batch, in FP32.", ""),
    "embedding": (
        "The lookup rounds nothing. Its gradient adds up wherever a word occurs again: in FP32, stored once.",
        "",
    ),
    "avg_pool2d": ("The sum of a window is carried in FP32 and divided before it is stored.", ""),
    "dropout": ("The factor 1 / (1 - p) is applied in FP32; which values are dropped does not depend on storage.", ""),
    "binary_cross_entropy": (
        "Its input is a probability that was stored: FP16 knows none between 1 - 2^-11 and 1, so the loss jumps. "
        "Prefer binary_cross_entropy_with_logits.",
        ">>> p = ops.sigmoid(mp.tensor([9.0]).half())\n"
        ">>> ops.binary_cross_entropy(p, ops.zeros(1)).item()  # 9.0001 from the logit\n100.0",
    ),
    "where": ("Nothing is rounded: each value is one of the two.", ""),
}
NOTES |= dict.fromkeys(
    ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not"),
    ("Nothing is rounded: the result is true or false. But numbers that were rounded before may have become equal.",
     ">>> (mp.tensor(2049.0).half() == mp.tensor(2048.0).half()).item()\nTrue"),
)  # fmt: skip
NOTES |= dict.fromkeys(
    ("max", "min", "amax", "amin", "argmax", "argmin", "all", "any"),
    ("Nothing is rounded and nothing added up: the result is one of the values, its place, or a truth.", ""),
)
