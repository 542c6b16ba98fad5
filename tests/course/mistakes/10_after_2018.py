# Typical mistakes, as students make them. After the exercise's name: what the message must say.

# %% to_bf16: not towards zero
def to_bf16(x):
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


# %% to_bf16: These lie in the middle
def to_bf16(x):
    rounded = ((x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), x, rounded)


# %% to_bf16: NaN must stay NaN
def to_bf16(x):
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


# %% to_bf16: changed its argument
def to_bf16(x):
    nan, bits = np.isnan(x), x.view(np.uint32)
    bits += np.where(nan, 0, 0x7FFF + (bits >> 16 & 1)).astype(np.uint32)
    bits[~nan] &= np.uint32(0xFFFF0000)
    return x


# %% to_bf16: expected float32
def to_bf16(x):
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


# %% format_for: large in magnitude
def format_for(x):
    return "fp16" if np.all(np.abs(x[x != 0]) >= 2.0**-14) and x.max() <= 65504 else "bf16"


# %% format_for: A zero is no problem
def format_for(x):
    return "fp16" if np.abs(x).min() >= 2.0**-14 and np.abs(x).max() <= 65504 else "bf16"


# %% format_for: is below 2^-14
def format_for(x):
    return "fp16" if np.abs(x).max() <= 65504 else "bf16"


# %% format_for: Both ends belong
def format_for(x):
    sizes = np.abs(x[x != 0])
    return "fp16" if np.all((sizes > 2.0**-14) & (sizes < 65504)) else "bf16"


# %% format_for: nothing but zeros
def format_for(x):
    sizes = np.abs(x[x != 0])
    return "fp16" if sizes.size and sizes.min() >= 2.0**-14 and sizes.max() <= 65504 else "bf16"


# %% tensor_scale: a power of two
def tensor_scale(amax):
    return 448 / amax if amax else 1.0


# %% tensor_scale: 448 itself is allowed
def tensor_scale(amax):
    return float(2.0 ** (8 - np.ceil(np.log2(amax)))) if amax else 1.0


# %% tensor_scale: nothing to scale
def tensor_scale(amax):
    return float(2.0 ** np.floor(np.log2(448 / max(amax, 1e-9))))


# %% DelayedScale: forgets older ones
class DelayedScale:
    def __init__(self, length):
        self.largest = 0.0

    def scale(self):
        return tensor_scale(self.largest)

    def saw(self, x):
        self.largest = max(self.largest, float(np.abs(x).max()))


# %% DelayedScale: may belong to a negative number
class DelayedScale:
    def __init__(self, length):
        self.length, self.history = length, []

    def scale(self):
        return tensor_scale(max(self.history)) if self.history else 1.0

    def saw(self, x):
        self.history = [*self.history, float(x.max())][-self.length :]


# %% DelayedScale: the largest of what it remembers
class DelayedScale:
    def __init__(self, length):
        self.last = 0.0

    def scale(self):
        return tensor_scale(self.last)

    def saw(self, x):
        self.last = float(np.abs(x).max())


# %% DelayedScale: keep it in self
history = []


class DelayedScale:
    def __init__(self, length):
        self.length = length
        if length > 2 or len(history) > 99:
            history.clear()

    def scale(self):
        return tensor_scale(max(history[-self.length :])) if history else 1.0

    def saw(self, x):
        history.append(float(np.abs(x).max()))


# %% mxfp8: Each block of 32
def mxfp8(x):
    from tinymp.study.formats import E4M3

    e = np.frexp(np.abs(x).max())[1] - 1
    scale = np.float32(2.0 ** (8 - e))
    return E4M3.round(x * scale, saturate=True) / scale


# %% mxfp8: saturate
def mxfp8(x):
    from tinymp.study.formats import E4M3

    blocks = x.reshape(-1, 32)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    scale = np.exp2(np.floor(np.log2(448 / np.where(amax > 0, amax, 1)))).astype(np.float32)
    return (E4M3.round(blocks * scale, saturate=True) / scale).reshape(-1)


# %% mxfp8: a block of zeros stays
def mxfp8(x):
    from tinymp.study.formats import E4M3

    blocks = x.reshape(-1, 32)
    e = np.floor(np.log2(np.abs(blocks).max(axis=1, keepdims=True)))
    scale = np.exp2(8 - e).astype(np.float32)
    return (E4M3.round(blocks * scale, saturate=True) / scale).reshape(-1)


# %% mxfp8: of a negative number, too
def mxfp8(x):
    from tinymp.study.formats import E4M3

    blocks = x.reshape(-1, 32)
    amax = blocks.max(axis=1, keepdims=True)
    scale = np.ldexp(np.float32(1), 9 - np.frexp(np.where(amax > 0, amax, 1))[1])
    return (E4M3.round(blocks * scale, saturate=True) / scale).reshape(-1)


# %% stochastic_bf16: for each
def stochastic_bf16(x, random):
    bits = x.view(np.uint32) + np.uint32(random.integers(0, 2**16))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


# %% stochastic_bf16: Add 0 to 0xFFFF
def stochastic_bf16(x, random):
    bits = x.view(np.uint32) + random.integers(0, 3 * 2**14, x.shape, np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


# %% stochastic_bf16: They stay
def stochastic_bf16(x, random):
    bits = x.view(np.uint32) + random.integers(0, 2, x.shape, np.uint32) * np.uint32(0x10000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


# %% stochastic_bf16: All were rounded alike
def stochastic_bf16(x, random):
    return to_bf16(x)


# %% remains: it has FP32's exponents
remains = {
    "BF16": {"loss scale", "FP32 masters", "FP32 sums"},
    "FP8": {"FP32 masters", "FP32 sums", "scale per tensor"},
}


# %% remains: rounded to nearest fell behind
remains = {"BF16": {"FP32 sums"}, "FP8": {"FP32 sums", "scale per tensor"}}


# %% remains: Adding 1 in BF16
remains = {"BF16": {"FP32 masters"}, "FP8": {"FP32 masters", "FP32 sums", "scale per tensor"}}


# %% remains: nearly all gradients zero
remains = {"BF16": {"FP32 masters", "FP32 sums"}, "FP8": {"FP32 masters", "FP32 sums"}}


# %% remains: coarser than BF16
remains = {"BF16": {"FP32 masters", "FP32 sums"}, "FP8": {"FP32 sums", "scale per tensor"}}


# %% remains: tensors have scales of their own
remains = {"BF16": {"FP32 masters", "FP32 sums"}, "FP8": {"loss scale", "FP32 masters", "FP32 sums"}}


# %% remains: a dictionary of two sets
remains = {"FP32 masters", "FP32 sums"}


# %% remains: expected a set of some of
remains = {"BF16": "FP32 masters and sums", "FP8": "the same"}
