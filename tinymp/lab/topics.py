"""What `explain` says: the rules in words, where they come from, and what breaks without them. Data, no code.

Every number is an example that runs (tests/lab/test_explain.py does). Lines of tinymp are named, never numbered.
"""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """A decision about precision.

    rule       what tinymp does
    source     sections of MPT (the paper; "v1": its first version) and NVG (NVIDIA's guide); empty: those of its kind
    without    what breaks otherwise
    example    a number to check, as typed into Python
    read       where to read it, as names below `tinymp`
    measure    what to ask of an audit `a` about it: a.ledger.sorted_by('infinite'), a.scale
    decisions  names of those that flip it (ablate.py), and of the example to `ablate`
    words      other words for it, and names of those it explains: kinds, primitives, policies, their fields, Ops, tools
    see        other topics
    """

    rule: str
    source: str = ""
    without: str = ""
    example: str = ""
    read: tuple[str, ...] = ()
    measure: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    ablate: str = "mnist"
    words: tuple[str, ...] = ()
    see: tuple[str, ...] = ()


TOPICS: dict[str, Topic] = {
    "storage": Topic(
        "Weights, activations and gradients are stored in FP16; everything between two stores is FP32.",
        "MPT 3.1 and 3.3, NVG 2.1 and 2.3.1",
        "With FP32 storage nothing breaks, but memory and its traffic double. FP16 has 11 significant bits and 40 "
        "powers of two; what does not fit is the subject of the other topics.",
        ">>> mp.MIXED.cast(ops.zeros(1000)).nbytes, mp.FP32.cast(ops.zeros(1000)).nbytes\n(2000, 4000)",
        read=("precision.Policy", "precision.Policy.cast", "precision.store"),
        measure=("bytes",),
        decisions=("fp32", "everything"),
        words=(
            *("MIXED", "widen", "fp16", "float16", "half", "memory", "amp", "autocast", "mixed precision"),
            *("activations", "gradients", "half precision"),
        ),
        see=("formats", "rounding", "overflow", "subnormals", "master weights", "accumulation"),
    ),
    "kept modules": Topic(
        'policy.cast(model, keep={"head": mp.FP32}) gives a module another policy: storage and masters of its weights, '
        "and the arithmetic of its forward and backward. What goes in and out is converted by declared casts.",
        "MPT 3.3, NVG 2.3.1",
        "A layer whose numbers leave FP16's range spoils what comes after it. `tinymp bisect` finds which layers a run "
        "needs in another policy.",
        ">>> m = mp.MIXED.cast(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), keep={'1': mp.FP32})\n"
        ">>> [layer.weight.dtype.name for layer in m], m(ops.zeros(1, 2).half()).dtype.name\n"
        "(['float16', 'float32'], 'float16')",
        read=("precision.Policy.cast", "nn.hooks.Hooks.call", "nn.module.Module.cast_storage"),
        measure=("ledger.filter(op='cast')",),
        words=("keep", "keep in fp32", "layers in fp32", "mixed policies", "per module", "bisect"),
        see=("storage", "primitives"),
    ),
    "formats": Topic(
        "A format divides its bits between exponent and fraction: FP16 5 and 10, BF16 8 and 7, FP8 4 and 3 (E4M3) or 5 "
        "and 2 (E5M2), FP32 8 and 23. The first give range, the second resolution.",
        "arXiv 1905.12322 (BF16) and 2209.05433 (FP8), NVG 2.1",
        "FP16 lies between 2^-24 and 65,504, and gradients below it are zero: hence the loss scale. BF16 has FP32's "
        "range and needs none, but it rounds to 8 significant bits instead of 11: beside 1 all below 2^-8 is lost, so "
        "that FP32 masters and sums matter more. E4M3 ends at 448 and E5M2 at 57,344: FP8 needs a scale for every "
        "tensor, within which finite numbers saturate; what is not finite stays so, for the loss scaler to see.",
        ">>> x = np.array([1 + 2.0**-7, 1 + 2.0**-9, 2.0**-100], np.float32)\n"
        ">>> bf16 = (x.view(np.uint32) + 0x8000 >> 16 << 16).view(np.float32)  # the upper half of an FP32 number\n"
        ">>> (bf16 == x).tolist(), (np.float32(mp.tensor(x).half().array) == x).tolist()\n"
        "([True, False, True], [True, True, False])",
        read=("dtypes.require_fit", "precision.store"),
        measure=("histograms",),
        words=(
            "operands",
            *("bf16", "bfloat16", "fp8", "float8", "e4m3", "e5m2", "exponent", "mantissa", "fraction", "resolution"),
            *("significant bits", "range", "dynamic range", "number formats", "dtype", "fp64"),
        ),
        see=("storage", "loss scaling", "master weights", "tf32"),
    ),
    "rounding": Topic(
        "A value is computed in FP32 and rounded once, to the nearest FP16 number, ties to even, when it is stored.",
        "MPT 3.3, v1 3.1 and v1 appendix A, NVG 2.1",
        "Every rounding of a normal number has an error of up to 1/2048 of it: rounding after each operation instead "
        "of once adds them up. Above 2048 odd numbers are gone.",
        ">>> (mp.tensor(2048.0).half() + 1).item()\n2048.0",
        read=("precision.store", "precision.to_dtype"),
        measure=("ledger.sorted_by('rounded')", "shadow"),
        decisions=("rounding-to-nearest",),
        words=("store", "cast", "ulp", "ties to even", "spacing", "precision loss", "rounding error"),
        see=("stochastic rounding", "subnormals", "overflow"),
    ),
    "stochastic rounding": Topic(
        "Values are rounded to nearest. A policy for study rounds up or down at random instead, with probabilities "
        "such that the mean is right.",
        "MPT v1 appendix A",
        "In the paper's experiment (v1, figure 7) stochastic rounding of the weights gave a validation error that was "
        "some 30 % worse. In tinymp the policy rounds every store so.",
        ">>> x = mp.tensor(np.full(100_000, 1 + 2.0**-12))\n"
        ">>> float(x.half().float().mean())  # to nearest, all are 1\n1.0\n"
        ">>> with mp.use(mp.STOCHASTIC_ROUNDING):\n...     print(f'{float(x.half().float().mean()):.4f}')\n1.0002",
        read=("precision.store", "backend.devices.Device.cast_stochastic"),
        measure=("shadow",),
        decisions=("rounding-to-nearest",),
        words=("STOCHASTIC_ROUNDING",),
        see=("rounding",),
    ),
    "overflow": Topic(
        "A value of 65,520 or more becomes infinite when it is stored; the scaler then skips the step and lowers S.",
        "NVG 2.1 and 2.3.2, MPT 3.2",
        "An update with an infinite gradient would destroy the weights for good. A constant that does not fit FP16 "
        "raises instead.",
        ">>> ops.exp(mp.tensor([11.0, 12.0]).half()).tolist()\n[59872.0, inf]",
        read=("precision.store", "dtypes.require_fit", "optim.scaler.LossScaler.step"),
        measure=("ledger.sorted_by('infinite')", "scale"),
        words=("infinity", "inf", "nan", "StepResult", "skipped steps", "diverge"),
        see=("loss scaling", "softmax"),
    ),
    "subnormals": Topic(
        "Between 2^-24 and 2^-14 FP16 has numbers with fewer bits, down to one; they are kept, never flushed to zero.",
        "NVG 2.1, MPT 3.2",
        "Gradients live there: the smaller, the coarser, and at 2^-25 and below they are zero. Scaling the loss moves "
        "them up.",
        ">>> (mp.tensor([2.0**-25, 1.4 * 2.0**-24]).half().float() * 2**24).tolist()\n[0.0, 1.0]",
        read=("precision.store", "audit.ledger.Rounding"),
        measure=("ledger.sorted_by('subnormal')", "histograms"),
        decisions=("loss-scaling",),
        words=("subnormal", "underflow", "denormals", "flush to zero", "vanishing gradients"),
        see=("loss scaling", "rounding"),
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
        read=("optim.optimizer.Optimizer._update_one", "parameter.Parameter.write"),
        measure=("updates",),
        decisions=("master",),
        words=("UPDATE", "master", "master copy", "weights", "Parameter", "lost updates", "optimizer", "learning rate"),
        see=("weight decay", "optimizer state", "checkpoints", "rounding"),
    ),
    "weight decay": Topic(
        "Weight decay reads the FP32 master. SGD, Adam, Adagrad and RMSprop add it to the unscaled gradient, AdamW "
        "shrinks the master itself; both in FP32.",
        "MPT 3.1 and 3.2 (weights are updated in FP32, from unscaled gradients)",
        "A step takes lr times weight_decay of a weight: of an FP16 weight alone, less than 1/4096 of it takes "
        "nothing. Added to gradients that are still scaled it would be S times too weak.",
        ">>> w = mp.tensor(1.0).half()\n>>> (w - 0.1 * 1e-4 * w).item(), 1 - 0.1 * 1e-4\n(1.0, 0.99999)",
        read=("optim.rules.SGD.update", "optim.rules.Adam.update"),
        measure=("updates", "ledger.filter(phase='update')"),
        decisions=("master",),
        words=("weight_decay", "l2", "l2 penalty", "regularisation", "regularization"),
        see=("master weights", "loss scaling"),
    ),
    "gradient accumulation": Topic(
        "Each backward call leaves a gradient in FP16; from the second on, `grad` is the FP32 sum of what the calls "
        "left, which is not rounded again. All calls carry one loss scale; step, update and zero_grad come behind the "
        "last.",
        "MPT 3.3 (large sums in FP32)",
        "Summed in FP16, the gradient of a small part of the batch would vanish beside the sum of the others: beside "
        "2048, 1 does.",
        ">>> w = mp.MIXED.cast(nn.Parameter([1.0]))\n"
        ">>> for x in (2048.0, 1.0):\n...     ops.sum(w.float() * x).backward()\n"
        ">>> w.grad.dtype.name, w.grad.item()\n('float32', 2049.0)",
        read=("autograd.Backward.deposit", "precision.accumulate"),
        measure=("histograms", "bytes"),
        words=(
            "accumulate gradients",
            "micro-batches",
            "several backward calls",
            "zero_grad",
            "batch size",
            "backward",
        ),
        see=("reductions", "loss scaling"),
    ),
    "loss scaling": Topic(
        "The loss is multiplied by S before backward, and weight gradients are divided by S in FP32 before anything "
        "looks at them. The dynamic S grows until gradients overflow and halves when they do.",
        "MPT 3.2, NVG 2.3.1 and 2.3.2",
        "Gradients of 2^-25 and below become zero. The paper's Multibox SSD diverges without scaling (table 2); S = 8 "
        "mends it.",
        ">>> g = mp.tensor(2.0**-26)\n>>> g.half().item(), (g * 1024).half().item() / 1024 == 2.0**-26\n(0.0, True)",
        read=("optim.scaler.LossScaler.scale", "optim.optimizer.unscaled", "optim.scaler.DynamicLossScaler"),
        measure=("scale", "histograms"),
        decisions=("loss-scaling",),
        words=(
            *("scaling", "dynamic loss scaling", "GradScaler", "LossScaler", "NoLossScaler", "StaticLossScaler"),
            *("DynamicLossScaler", "ObservedLossScaler", "loss scale", "scaler", "unscale_"),
        ),
        see=("subnormals", "overflow", "gradient clipping"),
    ),
    "accumulation": Topic(
        "A dot product multiplies FP16 operands exactly and adds up in FP32; only the finished sum is rounded.",
        without="An FP16 sum stalls as soon as a term is at most half the distance to the next number: 2048 + 1 is "
        "2048. With terms added by fours, as in a Tensor Core, it stalls at 8192.",
        example=">>> a = mp.tensor(np.ones((1, 10_000))).half()\n>>> (a @ a.T).item()\n10000.0\n"
        ">>> with mp.use(mp.FP16_ACCUMULATE):\n...     print((a @ a.T).item())\n8192.0",
        read=("precision.gemm", "study.sums.matmul_fp16"),
        measure=("ledger.filter(kind='DOT')", "shadow"),
        decisions=("accumulator-4", "accumulator-32", "accumulator-256"),
        words=("DOT", "gemm", "accumulate", "chunk", "study", "accumulator", "dot product", "matrix multiplication"),
        see=("reductions", "tensor cores"),
    ),
    "tensor cores": Topic(
        "On a GPU, FP16 products run on Tensor Cores: FP16 in, FP32 accumulators, FP16 out. cuBLAS may not reduce in "
        "less.",
        "NVG 2.2, MPT 3.3",
        "Without them only time is lost. They need multiples of 8: m, n and k of a product (features and rows), the "
        "channels of a convolution. Their products are exact: 11 by 11 bits need 22, and FP32 has 24.",
        ">>> x = mp.tensor([[1 + 2.0**-10]]).half()\n>>> (x.float() @ x.float()).item() == (1 + 2.0**-10) ** 2\nTrue",
        read=("precision.gemm", "fast.cuda.cublas.gemm"),
        measure=("products",),
        decisions=("split-k",),
        words=("split", "aligned", "promote", "padding to 8", "multiple of 8", "alignment", "cublas", "speed"),
        see=("accumulation", "tf32", "gpu"),
    ),
    "gpu": Topic(
        "On a GPU an op runs as a CUDA kernel where it has one: widened, computed and summed in FP32 registers, "
        "stored with one rounding to nearest, as its definition does on a CPU. While an audit listens, the definition "
        "runs.",
        "NVG 2.2 and 2.3.1",
        "Sums may be in another order there, so that results differ by FP32's own rounding; below 2^-126 FP32 numbers "
        "are zero in kernels.",
        ">>> from tinymp.fast.cuda import may_fuse\n"
        ">>> may_fuse(np.dtype('float16'))\nTrue\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n...     may_fuse(np.dtype('float16'))  # the definition decides\nFalse",
        read=("fast.cuda.may_fuse", "fast.cuda.cublas.gemm"),
        measure=("products",),
        words=("cuda", "kernel", "device", "cupy", "fast path", "cuda graph", "capture"),
        see=("tensor cores", "determinism"),
    ),
    "determinism": Topic(
        "Two runs on a CPU agree bit for bit with the same libraries, BLAS kernels and number of BLAS threads: BLAS "
        "orders the sums of products, all others are made in an order that depends on shape and memory order alone, "
        "gradients of several uses are added in a fixed order, and mp.manual_seed sets what is random.",
        "tinymp's own: neither MPT nor NVG speaks of it",
        "In FP32, too, a sum in another order is another number; two policies could not be told from two runs.",
        ">>> a, b, c = (mp.tensor(v) for v in (1e8, -1e8, 1.0))\n>>> ((a + b) + c).item(), (a + (b + c)).item()\n"
        "(1.0, 0.0)",
        read=("precision.reduce", "autograd.Backward.propagate"),
        measure=("shadow",),
        words=("reproducibility", "seed", "manual_seed", "random numbers", "bit for bit", "order of sums"),
        see=("reductions", "stochastic rounding", "checkpoints"),
    ),
    "checkpoints": Topic(
        "mp.save keeps the FP32 masters, unrounded; the FP16 copies are made from them when it is loaded. With them "
        "go the optimizer's state, the loss scale and the random generators, so that a run goes on as if never "
        "stopped.",
        "MPT 3.1 (the master is the weight)",
        "A checkpoint of FP16 copies has forgotten every update that was too small to be seen yet.",
        ">>> w = mp.MIXED.cast(nn.Linear(1, 1))\n>>> {name: x.dtype.name for name, x in w.state_dict().items()}\n"
        "{'weight': 'float32', 'bias': 'float32'}",
        read=("checkpoint.save", "checkpoint.load", "nn.Module.state_dict"),
        measure=("bytes",),
        words=("checkpoint", "save", "load", "resume", "state_dict", "safetensors", "checkpointer"),
        see=("master weights", "determinism", "loss scaling"),
    ),
    "tf32": Topic(
        "FP32 operands are never rounded to TF32's 11 significant bits unless the policy TF32 says so.",
        "tinymp's own: TF32 is younger than MPT and NVG",
        "The FP32 baseline would silently become less precise than FP32 on Ampere and later.",
        ">>> x = mp.tensor([[1 + 2.0**-12]])\n>>> (x @ x).item() > 1\nTrue\n"
        ">>> with mp.use(mp.TF32):\n...     print((x @ x).item())\n1.0",
        read=("precision.gemm", "precision.Policy"),
        measure=("ledger.filter(accumulated='tf32')",),
        words=("TF32",),
        see=("accumulation", "tensor cores"),
    ),
    "reductions": Topic(
        "Sums and means over FP16 tensors, bias gradients among them, are carried in FP32, and so are sums of several "
        "processes' gradients, unless the policy's `exchange` says FP16.",
        without="10,000 values of 0.1 summed in FP16 stall at 256: there the numbers lie 0.25 apart, and 0.1 is less "
        "than half of it. Bias gradients are sums of that kind.",
        example=">>> x = mp.tensor(np.full(10_000, 0.1)).half()\n>>> x.sum().item()\n1000.0\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n...     print(x.sum().item())\n256.0",
        read=("precision.reduce", "study.sums.reduce_fp16"),
        measure=("ledger.filter(kind='REDUCTION')", "shadow"),
        decisions=("reductions",),
        words=(
            *("REDUCTION", "reduce", "sums", "exchange", "all_reduce", "bias gradient", "average"),
            *("parallel", "several processes", "distributed", "mpi", "nccl", "ddp"),
        ),
        see=("accumulation", "batch norm", "softmax"),
    ),
    "batch norm": Topic(
        "FP16 in and out; mean, variance and the adjustment of values in FP32, and so are weight, bias and running "
        "statistics.",
        "NVG 2.3.1 and 5.4.2, MPT 3.3",
        "The statistics are sums over batch and positions, of thousands of terms: in FP16 they stall. Variances beyond "
        "65,504 would be infinite, momentum steps of the running statistics would be lost.",
        ">>> x, mean, var = mp.tensor(np.full((10_000, 1), 0.1)).half(), ops.zeros(1), ops.ones(1)\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n"
        "...     y = ops.batch_norm(x, mean, var, training=True, momentum=1.0)\n"
        ">>> f'{mean.item():.4f}'  # of values that are all 0.1\n'0.0256'",
        read=("ops.norm.BatchNorm.forward", "ops.norm.Running.update", "parameter.storage_of"),
        measure=("ledger.filter(op='norm')", "shadow"),
        decisions=("batch-norm-statistics", "batch-norm-parameters"),
        words=(
            *("BatchNorm", "FixedNorm", "statistics", "running statistics", "running mean", "running variance"),
            *("variance", "evaluation mode"),
        ),
        see=("layer norm", "reductions"),
    ),
    "layer norm": Topic(
        "FP16 in and out; the sums over a row or group, the root and the division in FP32, and so are weight and bias. "
        "Nothing is kept from step to step.",
        "NVG 2.3.1, MPT 3.3",
        "The squares leave FP16 long before their mean's root does, and their sum stalls like any other in FP16.",
        ">>> x = mp.tensor(np.tile([-1.0, 1.0], 8192)).half()\n"
        ">>> ops.layer_norm(x, 16384)[1].item()\n1.0\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n"
        "...     y = ops.layer_norm(x, 16384)\n"
        ">>> f'{y[1].item():.2f}'  # the sum of 16,384 ones stalls at 2048\n'2.83'",
        read=("ops.norm.LayerNorm.forward", "parameter.storage_of"),
        measure=("ledger.filter(op='layer_norm')", "shadow"),
        decisions=("batch-norm-parameters",),
        words=(
            "norm",
            "normalisation",
            "normalization",
            "LayerNorm",
            "GroupNorm",
            "RMSNorm",
            "LocalResponseNorm",
            "Normalize",
            "ln",
        ),
        see=("batch norm", "reductions"),
    ),
    "softmax": Topic(
        "FP16 in and out; the largest x is subtracted first, and exponentials and their sum stay in FP32.",
        "MPT 3.3, NVG 2.3.1 and 5.5",
        "exp(12) is beyond 65,504, and a sum of ones stalls at 2048: over 10,000 equal classes each would get 1/2048.",
        ">>> x = ops.zeros(10_000).half()\n>>> f'{ops.softmax(x, 0)[0].item():.6f}'\n'0.000100'\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n...     print(f'{ops.softmax(x, 0)[0].item():.6f}')\n0.000488",
        read=("ops.softmax.Softmax.forward", "ops.softmax.LogSoftmax.forward"),
        measure=("ledger.filter(op='softmax')", "shadow"),
        decisions=("softmax",),
        words=("Softmax", "LogSoftmax", "LogSumExp", "logits", "probabilities"),
        see=("attention", "losses", "reductions", "overflow"),
    ),
    "attention": Topic(
        "Scores, exponentials and their sums stay in FP32 accumulators. The softmax weights are rounded for their "
        "product with the values, and never stored for backward, which computes them again.",
        "MPT 3.3, NVG 2.3.1",
        "A weight below 2^-25 becomes 0, and so do the gradients at the scores, which are small wherever the weight "
        "is. With FP16 sums the weights of 4096 equal keys add up to 2.",
        ">>> q, k, v = ops.zeros(1, 8).half(), ops.zeros(4096, 8).half(), ops.ones(4096, 8).half()\n"
        ">>> ops.scaled_dot_product_attention(q, k, v)[0, 0].item()\n1.0\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n...     ops.scaled_dot_product_attention(q, k, v)[0, 0].item()\n2.0",
        read=("ops.more.attention.Attention.forward", "ops.more.attention.Attention.backward"),
        measure=("ledger.filter(op='scaled_dot_product_attention')", "shadow"),
        words=("Attention", "self attention", "scores", "qkv", "transformer", "multi-head attention"),
        see=("softmax", "accumulation"),
    ),
    "losses": Topic(
        "Losses read FP16, compute and sum in FP32, and return FP32 whatever the policy, unless its `only` names them.",
        "NVG 2.3.1 and 5.5",
        "A scaled loss overflows FP16 at once: 2.3, the loss of ten equal classes, times 2^15 is beyond 65,504.",
        ">>> loss = ops.cross_entropy(ops.zeros(1, 10).half(), mp.tensor([3]))\n"
        ">>> loss.dtype.name, (loss * 2**15).item() < 75_500, (loss.half() * 2**15).item()\n('float32', True, inf)",
        read=("ops.loss.Loss", "precision.reduce"),
        measure=("ledger.filter(kind='LOSS')", "shadow"),
        decisions=("softmax",),
        words=("LOSS", "loss", "cost function"),
        see=("softmax", "loss scaling"),
    ),
    "pointwise": Topic(
        "Element by element in FP32; only the result is rounded.",
        without="Little: the paper allows FP16 here. But squares leave FP16's range early, and steps within an op "
        "would each be rounded.",
        example=">>> ops.square(mp.tensor([256.0, 1e-4]).half()).tolist()\n[inf, 0.0]",
        read=("precision.widen", "precision.store"),
        measure=("ledger.filter(kind='POINTWISE')", "shadow"),
        words=("POINTWISE", "activation function", "elementwise"),
        see=("rounding", "overflow"),
    ),
    "movement": Topic(
        "Values are moved or chosen, not computed: no bit changes. Where gradients meet again each is stored, then all "
        "are summed in FP32 and the sum is rounded.",
        "MPT 3.3 (large sums in FP32)",
        "Forward nothing can be lost. A gradient to which many places add would stall in FP16, as other sums do.",
        ">>> w = mp.tensor(np.zeros((1, 1))).half().requires_grad_()\n"
        ">>> i = mp.tensor(np.zeros(4096, int))\n"
        ">>> with mp.use(mp.FP16_REDUCTIONS):\n...     ops.embedding(i, w).sum().backward()\n"
        ">>> float(w.grad[0, 0])  # of 4096 ones\n2048.0",
        read=("precision.scatter_add", "precision.accumulate", "autograd.Backward.propagate"),
        measure=("ledger.filter(kind='REDUCTION', phase='backward')", "shadow"),
        decisions=("reductions",),
        ablate="lstm",
        words=("MOVEMENT", "indexing", "lookup", "copies", "slicing"),
        see=("reductions", "sparse gradients"),
    ),
    "sparse gradients": Topic(
        "With sparse=True the gradient of an embedding holds the rows that were looked up, each summed in FP32 and "
        "stored; only these rows, and their FP32 state, are updated.",
        "MPT 3.3 (large sums in FP32)",
        "A dense gradient of a large vocabulary is zero nearly everywhere, and costs its full size. The numbers are "
        "the same.",
        ">>> table = mp.MIXED.cast(nn.Embedding(1000, 4, sparse=True))\n"
        ">>> ops.sum(table(mp.tensor([7, 7, 3])).float()).backward()\n"
        ">>> table.weight.grad.values.shape, table.weight.grad.values.dtype.name\n((2, 4), 'float16')",
        read=("sparse.SparseRows", "ops.embedding.sum_rows"),
        measure=("bytes",),
        words=("sparse", "sparse rows", "embedding gradient", "vocabulary"),
        see=("movement", "optimizer state"),
    ),
    "optimizer state": Topic(
        "Momentum and Adam's averages are FP32.",
        "MPT 3.1 (it follows from the update in FP32; the paper does not speak of it)",
        "Adam's v is a mean of squares: a gradient of 1e-3 adds 1e-9, which is 0 in FP16, and the step is divided by "
        "eps alone.",
        ">>> mp.tensor(0.001 * 1e-3**2).half().item()\n0.0",
        read=("optim.optimizer.Optimizer.state_of", "optim.rules.Adam.update"),
        measure=("bytes", "ledger.filter(phase='update')"),
        decisions=("optimizer-state",),
        words=("state", "momentum", "adam state", "moments", "betas"),
        see=("master weights", "epsilon"),
    ),
    "epsilon": Topic(
        "Small constants (Adam's eps, batch norm's) are FP32, and so is what they are added to.",
        "MPT 3.1 and 3.3 (FP32 updates and statistics)",
        "Adam's 1e-8 is 0 in FP16, whose smallest number is 6e-8: a weight whose gradients are 0 would become NaN.",
        ">>> mp.tensor([1e-8, 1e-5]).half().tolist()\n[0.0, 1.0013580322265625e-05]",
        read=("optim.rules.Adam", "optim.rules.Adagrad", "ops.norm.BatchNorm.forward"),
        measure=("scale",),
        words=("eps",),
        see=("optimizer state", "subnormals"),
    ),
    "gradient clipping": Topic(
        "Gradients are unscaled first and clipped in FP32, so that the limit means what it does in FP32 training. "
        "Clipping scaled gradients raises.",
        "MPT 3.2, NVG 2.3.1",
        "With S = 1024 a limit of 1 would act as 1/1024. And the norm sums squares: that of 256 is infinite in FP16.",
        ">>> g = mp.tensor([300.0, 400.0]).half()\n"
        ">>> ops.sum(g * g).item(), ops.sum(g.float() * g.float()).item() ** 0.5\n(inf, 500.0)",
        read=("optim.clip.clip_grad_norm_", "optim.scaler.LossScaler.unscale_"),
        measure=("histograms", "scale"),
        words=("clipping", "clip_grad_norm_", "clip_grad_value_", "gradient norm", "exploding gradients", "max_norm"),
        see=("loss scaling", "reductions"),
    ),
    "primitives": Topic(
        "Ops change precision in four functions and nowhere else: widen, store, gemm and reduce. A test holds every "
        "other line of the source to that, or to a place in the tables of docs/precision.md.",
        "MPT 3.1 (figure 1) and 3.3 say where it changes; the four functions are tinymp's",
        "A cast elsewhere would round without being seen: the audit observes these four functions.",
        ">>> from tinymp.precision import store, widen\n"
        ">>> x = np.arange(2**16, dtype=np.uint16).view(np.float16)  # all there are\n"
        ">>> np.array_equal(store(widen(x), x), x, equal_nan=True)\nTrue",
        read=("precision.widen", "precision.store", "precision.gemm", "precision.reduce"),
        measure=("ledger",),
        words=("precision primitives", "only", "audit", "where precision changes", "conversions"),
        see=("rounding", "accumulation", "reductions"),
    ),
    "recurrence": Topic(
        "The products with x are one product over all steps, and stored. In each step the products with h stay in "
        "FP32 accumulators and the pointwise part is computed in FP32; the state is stored. The weight gradients of "
        "all steps are summed in FP32.",
        "MPT 3.3 and 4.3 to 4.5",
        "A state is rounded in every step, and a slow change of it is lost like a small update: beside 1, below 2^-11.",
        ">>> h = mp.tensor(1.0).half()\n>>> (h + 2.0**-11 * 0.9).item(), (h + 2.0**-10 * 0.9).item()\n"
        "(1.0, 1.0009765625)",
        read=("ops.recurrent.LSTM.forward", "ops.more.gru.GRU.forward"),
        measure=("ledger.filter(op='lstm')", "shadow"),
        decisions=("accumulator-4",),
        ablate="lstm",
        words=("LSTM", "GRU", "recurrent", "hidden state", "sequence"),
        see=("accumulation", "rounding"),
    ),
}
WORDS = {word: name for name, topic in TOPICS.items() for word in (name, *topic.words)}

# Other words for what is no topic.
SYNONYMS: dict[str, str] = {
    **{"convolution": "conv2d", "conv": "conv2d", "deconvolution": "conv_transpose2d", "pooling": "max_pool2d"},
    **{"max pooling": "max_pool2d", "average pooling": "avg_pool2d", "dense": "Linear", "fully connected": "Linear"},
    **{"lookup table": "Embedding", "matrix product": "matmul", "bce": "binary_cross_entropy", "mse": "mse_loss"},
    **{"nll": "nll_loss", "ctc": "ctc_loss", "kl divergence": "kl_div", "mean squared error": "mse_loss"},
    **{"root mean square": "rms_norm", "standard deviation": "std", "swish": "silu", "upsampling": "interpolate"},
    **{"learning rate schedule": "Schedule", "scheduler": "Schedule", "warmup": "LinearLR", "log sum exp": "logsumexp"},
    **{"cosine schedule": "CosineAnnealingLR", "skip connection": "add", "residual": "add", "bn": "batch_norm"},
    **{"sampled softmax": "sampled_softmax_loss", "mha": "MultiheadAttention", "baseline": "FP32"},
    **{"full precision": "FP32"},
}


class Rounded(NamedTuple):
    """What an op rounds, forward and backward, a name per place. Among the latter the gradients are not named."""

    forward: tuple[str, ...]
    backward: tuple[str, ...]


# Ops that round something else than each result forward and each gradient backward, at most once.
ROUNDED: dict[str, Rounded] = {
    "lstm": Rounded(
        ("the products of x with W_ih", "the state c", "h", "the gates"),
        ("the gradients at the gates",),
    ),
    "gru": Rounded(
        ("the products of x with W_ih", "the product with h in n", "h", "the gates"),
        ("the gradients at the gates", "that of the product with h in n"),
    ),
    "scaled_dot_product_attention": Rounded(
        ("the weights p for their product with v", "y"),
        ("p again", "the gradients of the scores"),
    ),
    "max_pool2d": Rounded(("the largest of each window: exactly",), ()),
    **dict.fromkeys(
        ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not",
         "argmax", "argsort", "all", "relu"),
        Rounded((), ()),
    ),
}  # fmt: skip

# What is particular about an op: a sentence, and a number to check.
NOTES: dict[str, tuple[str, str]] = {
    "exp": (
        "11.09 is the logarithm of 65,520. From -17.33 down, that of 2^-25, the result is 0.",
        ">>> ops.exp(mp.tensor([12.0, -17.5]).half()).tolist()\n[inf, 0.0]",
    ),
    "square": (
        "Up to 2^-12.5 the result is 0: norms are computed from widened values.",
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
        "From x = 8.32 on the stored y is 1, and y (1 - y), its derivative, 0.",
        ">>> ops.sigmoid(mp.tensor([8.31, 8.33]).half()).tolist()\n[0.99951171875, 1.0]",
    ),
    "tanh": (
        "From x = 4.51 on the stored y is 1, and 1 - y^2, its derivative, 0.",
        ">>> ops.tanh(mp.tensor([4.5, 4.51]).half()).tolist()\n[0.99951171875, 1.0]",
    ),
    "add": (
        "Beside x, a y below x / 2048 can be lost.",
        ">>> (mp.tensor(2048.0).half() + mp.tensor(1.0).half()).item()\n2048.0",
    ),
    "mul": (
        "The product of two FP16 numbers is exact in FP32; its rounding may still overflow or give 0.",
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
    "dropout": ("The factor 1 / (1 - p) is applied in FP32; which values are dropped does not depend on storage.", ""),
    "binary_cross_entropy": (
        "Its input is a probability that was stored: FP16 knows none between 1 - 2^-11 and 1, so the loss jumps. "
        "Prefer binary_cross_entropy_with_logits.",
        ">>> p = ops.sigmoid(mp.tensor([9.0]).half())\n"
        ">>> ops.binary_cross_entropy(p, ops.zeros(1)).item()  # 9.0001 from the logit\n100.0",
    ),
}
NOTES |= dict.fromkeys(
    ("lstm_cell", "LSTMCell", "gru_cell", "GRUCell"),
    ("Sums and products between the gates are ops of their own, add, sub and mul, and each stores its result in FP16: "
     "the layer, which runs all steps as one op, rounds less.", ""),
)  # fmt: skip
NOTES |= dict.fromkeys(
    ("lstm_layer", "LSTM"),
    ("With proj_size the projected h is stored, too, and its gradients: one place more, forward and backward.", ""),
)
NOTES |= dict.fromkeys(
    ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not"),
    ("The result is true or false. But numbers that were rounded before may have become equal.",
     ">>> (mp.tensor(2049.0).half() == mp.tensor(2048.0).half()).item()\nTrue"),
)  # fmt: skip
NOTES |= dict.fromkeys(
    ("max", "min", "amax", "amin", "argmax", "argmin", "all", "any"),
    ("The result is one of the values, its place, or a truth: exact.", ""),
)
