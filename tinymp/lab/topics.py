"""The texts of `explain`: the rules in words, their sources, and the damage without them. Data, no code."""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """A decision about precision.

    rule       what tinymp does
    without    what breaks otherwise
    source     sections of MPT (the paper; "v1": its first version) and NVG (NVIDIA's guide); empty: those of its kind
    read       where to read it, "name: words; name": each below `tinymp`, with the words by which it is asked for and
               names of what it explains (kinds, primitives, policies, their fields, Ops, tools)
    """

    rule: str
    without: str = ""
    source: str = ""
    read: str = ""

    @property
    def asked(self) -> dict[str, str]:
        """Where to read it, and the words by which each place is asked for."""
        return {name: words for name, _, words in (place.partition(": ") for place in self.read.split("; ")) if name}


TOPICS: dict[str, Topic] = {
    "storage": Topic(
        "Weights, activations and gradients are stored in FP16; everything between two stores is FP32. In autocast's "
        "place, policy.cast(model) sets what is stored, and `with mp.use(policy)` how it is computed.",
        "With FP32 storage nothing breaks, but memory and its traffic double. FP16 has 11 significant bits and 40 "
        "powers of two; what does not fit is the subject of the other topics.",
        source="MPT 3.1 and 3.3, NVG 2.1 and 2.3.1",
        read="precision.Policy.cast: MIXED, fp16, float16, half, half precision, autocast, amp, mixed precision, "
        "memory, tensors; precision.Policy; precision.store",
    ),
    "kept modules": Topic(
        'policy.cast(model, keep={"head": mp.FP32}) gives a module another policy: storage and masters of its weights, '
        "and the arithmetic of its forward and backward. What goes in and out is converted by declared casts.",
        "A layer whose numbers leave FP16's range spoils what follows. `tinymp bisect` finds which layers need it.",
        source="MPT 3.3, NVG 2.3.1",
        read="precision.Policy.cast: keep, one layer, last layer, another policy, layers in fp32, per module, bisect; "
        "nn.more.hooks.Hooks.call; nn.module.Module.cast_storage",
    ),
    "formats": Topic(
        "A format divides its bits between exponent and fraction: FP16 5 and 10, BF16 8 and 7, FP8 4 and 3 (E4M3) or 5 "
        "and 2 (E5M2), FP32 8 and 23. The first give range, the second resolution.",
        "FP16 lies between 2^-24 and 65,504, and gradients below it are zero: hence the loss scale. BF16 has FP32's "
        "range and needs none, but it rounds to 8 significant bits instead of 11: beside 1 all below 2^-8 is lost, so "
        "that FP32 masters and sums matter more. E4M3 ends at 448 and E5M2 at 57,344: FP8 needs a scale for every "
        "tensor, within which finite numbers saturate; what is not finite stays so, for the loss scaler to see.",
        source="arXiv 1905.12322 (BF16) and 2209.05433 (FP8), NVG 2.1",
        read="study.formats.BF16: number formats, format, dtype, bf16, bfloat16, exponent, mantissa, range; "
        "study.formats.E4M3: operands, fp8, e4m3, e5m2; precision.store",
    ),
    "rounding": Topic(
        "A value is computed in FP32 and rounded once, to the nearest FP16 number, ties to even, when it is stored.",
        "Every rounding of a normal number has an error of up to 1/2048 of it: rounding after each operation instead "
        "of once adds them up. Above 2048 odd numbers are gone.",
        source="MPT 3.3, v1 3.1 and v1 appendix A, NVG 2.1",
        read="precision.store: store, rounds, function, round to nearest, ulp, ties to even, lost bits; "
        "precision.to_dtype: cast",
    ),
    "stochastic rounding": Topic(
        "Values are rounded to nearest. A policy for study rounds up or down at random, so that the mean is right.",
        "In the paper's experiment (v1, figure 7) stochastic rounding of the weights gave a validation error that was "
        "some 30 % worse. In tinymp the policy rounds every store so.",
        source="MPT v1 appendix A",
        read="backend.devices.Device.cast_stochastic: STOCHASTIC_ROUNDING, stochastically, random; precision.store",
    ),
    "overflow": Topic(
        "FP16 ends at 65,504, which is (2 - 2^-10) times 2^15: a value of 65,520 or more becomes infinite when it is "
        "stored, and NaN follows (inf - inf, 0 * inf). Gradients that are not finite skip the step and lower S; such a "
        "loss skips it.",
        "An infinite gradient would destroy the weights for good. mp.audit(stop_at='nan') finds the line.",
        source="NVG 2.1 and 2.3.2, MPT 3.2",
        read="precision.store: infinity, inf, nan, loss nan, diverge, infinite; dtypes.FP16_MAX: 65504, largest, fp16 "
        "max; optim.scaler.LossScaler.should_skip: skip, skipped, skipped steps, StepResult",
    ),
    "subnormals": Topic(
        "Between 2^-24 and 2^-14 FP16 has numbers with fewer bits, down to one; they are kept, never flushed to zero.",
        "Gradients live there: the smaller, the coarser, and at 2^-25 and below zero. Scaling the loss moves them up.",
        source="NVG 2.1, MPT 3.2",
        read="precision.store: underflow, denormals, 2^-24, flush to zero, vanishing gradients, small, smallest",
    ),
    "master weights": Topic(
        "The optimizer updates an FP32 master of every weight; the model reads an FP16 copy, rounded once per step.",
        "An update below 1/2048 of its weight can vanish in FP16, however often it comes. The paper's speech model "
        "lost 80 % in relative accuracy (figure 2a).",
        source="MPT 3.1, NVG 2.3.1",
        read="parameter.Parameter.write: master, masters, master copy, fp16 copy, weights, Parameter, lost updates, "
        "fp32 weights, keep masters; optim.optimizer.Optimizer._update_all: UPDATE, optimizer, learning rate",
    ),
    "checkpoints": Topic(
        "mp.save keeps the FP32 masters, unrounded, and the optimizer's state, the loss scale and generators; mp.load "
        "makes the FP16 copies from the masters, and a run goes on as if it had never stopped.",
        "A checkpoint of FP16 copies has forgotten every update that was too small to be seen yet.",
        source="MPT 3.1 (the master is the weight)",
        read="checkpoint.saving.save: checkpoint, save, safetensors, checkpointer; checkpoint.saving.load: load, "
        "resume; nn.module.Module.state_dict: state_dict",
    ),
    "weight decay": Topic(
        "Weight decay reads the FP32 master. SGD, Adam, Adagrad and RMSprop add it to the unscaled gradient, AdamW "
        "shrinks the master itself; both in FP32.",
        "A step takes lr times weight_decay of a weight: of an FP16 weight alone, less than 1/4096 of it takes "
        "nothing. Added to gradients that are still scaled it would be S times too weak.",
        source="MPT 3.1 and 3.2 (weights are updated in FP32, from unscaled gradients)",
        read="optim.rules.SGD.update: weight_decay, decay, decay of the master copy, l2, regularisation, "
        "regularization; optim.rules.Adam.update",
    ),
    "gradient accumulation": Topic(
        "Each backward call leaves a gradient in FP16; from the second on, `grad` is the FP32 sum of what the calls "
        "left, which is not rounded again. All carry one loss scale; step, update and zero_grad follow the last.",
        "Summed in FP16, a small gradient would vanish beside the sum of the others, as 1 does beside 2048.",
        source="MPT 3.3 (large sums in FP32)",
        read="autograd.Backward.deposit: micro-batches, zero_grad, batch size, backward, several; autograd.added",
    ),
    "loss scaling": Topic(
        "The loss is multiplied by S before backward, and weight gradients are divided by S in FP32 before anything "
        "looks at them. The dynamic S doubles after 2000 steps in a row without overflow and halves when gradients "
        "overflow. scaler.scale(loss).backward(), step(optimizer) and update() are called as GradScaler's.",
        "Gradients of 2^-25 and below become zero. The paper's Multibox SSD diverges; S = 8 mends it (table 2).",
        source="MPT 3.2, NVG 2.3.1 and 2.3.2",
        read="optim.scaler.LossScaler.scale: scaling, loss scale, multiplied by s, scaler; "
        "optim.scaler.DynamicLossScaler: GradScaler, LossScaler, NoLossScaler, StaticLossScaler, DynamicLossScaler, "
        "start; optim.scaler.Rule.__call__: grow, growth, s grows, doubled, halved, loss scale doubled; "
        "optim.optimizer.unscaled: unscale_, unscaled, divided by s",
    ),
    "accumulation": Topic(
        "A dot product multiplies FP16 operands exactly and adds up in FP32; only the finished sum is rounded.",
        "An FP16 sum stalls as soon as a term is at most half the distance to the next number: 2048 + 1 is 2048. With "
        "terms added by fours, as in a Tensor Core, it stalls at 8192.",
        read="precision.gemm: DOT, gemm, accumulate, accumulator, dot product, products, fp32 sums, matrix "
        "multiplication, matmul, convolution; study.sums.matmul_fp16: chunk, study",
    ),
    "tensor cores": Topic(
        "On a GPU, FP16 products run on Tensor Cores: FP16 in, FP32 accumulators, FP16 out. cuBLAS may not reduce in "
        "less. Each product is exact (11 by 11 bits need 22, and FP32 has 24); of their sum Tensor Cores cut off what "
        "lies behind some bits. mp.tensor_core and policies such as FP16_HOPPER have the bits of each architecture.",
        "Without them only time is lost. They need multiples of 8: m, n and k of a product (features and rows), the "
        "channels of a convolution. What is cut off is missing in every step: with the 13 bits of FP8 on Hopper a long "
        "sum falls short by percents, unless it is promoted to FP32 now and then.",
        source="arXiv 2512.07004 (the sums) and 2412.19437 (promotion), NVG 2.2, MPT 3.3",
        read="backend.gpu.multiply: tensor core, multiple of 8, alignment, cublas; precision.gemm; "
        "study.tensor_core.tensor_core: tensor_core, split, promote, FP16_VOLTA, FP16_HOPPER; study.tensor_core._steps",
    ),
    "tf32": Topic(
        "FP32 operands are never rounded to TF32's 11 significant bits unless the policy TF32 says so.",
        "The FP32 baseline would silently become less precise than FP32 on Ampere and later.",
        source="tinymp's own: TF32 is younger than MPT and NVG",
        read="precision.gemm: TF32, baseline; precision.Policy",
    ),
    "reductions": Topic(
        "Sums and means over FP16 tensors, bias gradients among them, are carried in FP32, and so are sums of several "
        "processes' gradients, unless the policy's `exchange` says FP16.",
        "10,000 values of 0.1 summed in FP16 stall at 256: 0.1 is less than half of the 0.25 between numbers there. "
        "Bias gradients are sums of that kind.",
        read="precision.reduce: REDUCTION, reduce, sums, mean; ops.conv.bias_gradient: bias gradient; "
        "parallel.gradients.DistributedDataParallel._outgoing: exchange, all_reduce, processes, distributed, ddp; "
        "backend.gpu.Gpu.reduce; study.sums.reduce_fp16",
    ),
    "batch norm": Topic(
        "FP16 in and out; mean, variance and the adjustment of values in FP32, and so are weight, bias and running "
        "statistics.",
        "The statistics are sums over batch and positions, of thousands of terms: in FP16 they stall. Variances beyond "
        "65,504 would be infinite, momentum steps of the running statistics would be lost.",
        source="NVG 2.3.1 and 5.4.2, MPT 3.3",
        read="ops.norm.BatchNorm.forward: BatchNorm, variance; ops.norm.Running.update: running statistics, running "
        "mean, running variance; precision.reduce; parameter.storage_of",
    ),
    "layer norm": Topic(
        "FP16 in and out; the sums over a row or group, the root and the division in FP32, and so are weight and bias. "
        "Nothing is kept from step to step.",
        "The squares leave FP16 long before their mean's root does, and their sum stalls like any other in FP16.",
        source="NVG 2.3.1, MPT 3.3",
        read="ops.more.norm.LayerNorm.forward: norm, normalisation, normalization, LayerNorm, GroupNorm, RMSNorm; "
        "parameter.storage_of",
    ),
    "softmax": Topic(
        "FP16 in and out; the largest x is subtracted first, and exponentials and their sum stay in FP32.",
        "exp(12) is beyond 65,504, and a sum of ones stalls at 2048: over 10,000 equal classes each would get 1/2048.",
        source="MPT 3.3, NVG 2.3.1 and 5.5",
        read="ops.softmax.Softmax.forward: Softmax, logits, probabilities; ops.more.log_softmax.LogSoftmax.forward: "
        "LogSoftmax, LogSumExp",
    ),
    "attention": Topic(
        "Scores, exponentials and their sums stay in FP32 accumulators. The softmax weights are rounded for their "
        "product with the values, and never stored for backward, which computes them again.",
        "A weight below 2^-25 becomes 0, and so do the gradients at the scores, which are small wherever the weight "
        "is. With FP16 sums the weights of 4096 equal keys add up to 2.",
        source="MPT 3.3, NVG 2.3.1",
        read="ops.more.attention.Attention.forward: Attention, self attention, scores, transformer; "
        "ops.more.attention.Attention.backward",
    ),
    "losses": Topic(
        "Losses read FP16, compute and sum in FP32, and return FP32 whatever the policy, unless its `only` names them.",
        "A scaled loss overflows FP16 at once: 2.3, the loss of ten equal classes, times 2^15 is beyond 65,504.",
        source="NVG 2.3.1 and 5.5",
        read="ops.loss.Loss: LOSS, loss, cost function, loss dtype, cross entropy, mse; precision.reduce",
    ),
    "pointwise": Topic(
        "Element by element in FP32; only the result is rounded.",
        "Little: the paper allows FP16. But squares leave its range early, and each step would be rounded.",
        read="precision.POINTWISE: POINTWISE, elementwise, elementwise ops, additions, multiplications, relu; "
        "precision.widen: widen; precision.store",
    ),
    "movement": Topic(
        "Values are moved or chosen, not computed: no bit changes. Where gradients meet again each is stored, and "
        "their FP32 sum is rounded.",
        "Forward nothing can be lost. A gradient to which many places add would stall in FP16, as other sums do.",
        source="MPT 3.3 (large sums in FP32)",
        read="precision.MOVEMENT: MOVEMENT, reshape, transpose, indexing, slicing, copies, concatenation; "
        "precision.scatter_add: lookup, embedding; autograd.added; autograd.Backward.propagate",
    ),
    "optimizer state": Topic(
        "Momentum and Adam's averages are FP32.",
        "Adam's v is a mean of squares: a gradient of 1e-3 adds 1e-9, 0 in FP16, and the step is divided by eps alone.",
        source="MPT 3.1 (it follows from the update in FP32; the paper does not speak of it)",
        read="optim.optimizer.Optimizer.state_of: state, momentum, moments, betas, adam; optim.rules.Adam.update",
    ),
    "epsilon": Topic(
        "Small constants (Adam's eps, batch norm's) are FP32, and so is what they are added to.",
        "Adam's 1e-8 is 0 in FP16, whose smallest number is 6e-8: a weight whose gradients are 0 would become NaN.",
        source="MPT 3.1 and 3.3 (FP32 updates and statistics)",
        read="optim.rules.Adam: eps, 1e-8; ops.norm.BatchNorm.forward; optim.more.rules.Adagrad",
    ),
    "gradient clipping": Topic(
        "Gradients are unscaled first and clipped in FP32, so that the limit means the same as in FP32. Clipping "
        "scaled gradients raises.",
        "With S = 1024 a limit of 1 would act as 1/1024. And the norm sums squares: that of 256 is infinite in FP16.",
        source="MPT 3.2, NVG 2.3.1",
        read="optim.clip.clip_grad_norm_: clip, clipping, clip_grad_norm_, clip_grad_value_, gradient norm, exploding "
        "gradients, max_norm; optim.scaler.LossScaler.unscale_",
    ),
    "kinds": Topic(
        "Every op has a kind. All but movement compute in FP32, whatever is stored; what a loss returns stays FP32, "
        "and so do masters, the optimizer's state, and normalisation layers' weights, biases and statistics.",
        "An op whose sums or exponentials ran in FP16 would stall or overflow; `tinymp ablate` shows which.",
        source="MPT 3.3, NVG 2.3.1",
        read="precision.KINDS: kind, ops in fp32, ops in fp16, stay fp32, operations, computed in half precision; "
        "autograd.Op.apply",
    ),
    "primitives": Topic(
        "Ops change precision in four functions and nowhere else: widen, store, gemm and reduce. A test holds every "
        "other line of the source to that, or to a place in the tables of docs/precision.md.",
        "A cast elsewhere would round without being seen: the audit observes these four functions.",
        source="MPT 3.1 (figure 1) and 3.3 say where it changes; the four functions are tinymp's",
        read="precision.widen: precision primitives, change precision, only, audit, conversions; precision.store; "
        "precision.gemm; precision.reduce",
    ),
    "recurrence": Topic(
        "The products with x are one product over all steps, and stored. In each step the products with h stay in FP32 "
        "accumulators and the pointwise part is computed in FP32; the state is stored. Weight gradients are summed "
        "over all steps in FP32.",
        "A state is rounded in every step, and a slow change of it is lost like a small update: beside 1, below 2^-11.",
        source="MPT 3.3 and 4.3 to 4.5",
        read="ops.recurrent.LSTM.forward: LSTM, rnn, recurrent, hidden state, sequence; ops.more.gru.GRU.forward: GRU",
    ),
}
WORDS = {w: name for name, t in TOPICS.items() for said in (name, *t.asked.values()) for w in said.split(", ") if w}
# Words of every question
USUAL = """a an and are as at be by can could did do does dtype for from get has have here how i if in into is it its me
    my no not of off on or precision so than that the there they this to was what when where which who why will with"""
