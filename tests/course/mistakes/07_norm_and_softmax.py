# Typical mistakes, as students make them. After the exercise's name: what the message must say.

# %% safe_softmax: Subtract the largest score first
def safe_softmax(x):
    e = np.exp(x)
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float16)


# %% safe_softmax: FP32 overflows, too
def safe_softmax(x):
    e = np.exp(x.astype(np.float32))
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float16)


# %% safe_softmax: Each row has its own largest score
def safe_softmax(x):
    wide = x.astype(np.float32)
    e = np.exp(wide - wide.max())
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float16)


# %% safe_softmax: its own sum
def safe_softmax(x):
    wide = x.astype(np.float32)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    return (e / e.sum()).astype(np.float16)


# %% safe_softmax: round once, at the end
def safe_softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# %% safe_softmax: expected float16
def safe_softmax(x):
    wide = x.astype(np.float32)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# %% moments: expected float32
def moments(x):
    return x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))


# %% moments: Large numbers cancel
def moments(x):
    wide = x.astype(np.float32)
    mean = wide.mean(axis=(0, 2, 3))
    return mean, np.square(wide).mean(axis=(0, 2, 3)) - mean**2


# %% moments: unbiased
def moments(x):
    wide = x.astype(np.float32)
    return wide.mean(axis=(0, 2, 3)), wide.var(axis=(0, 2, 3), ddof=1)


# %% moments: standard deviation
def moments(x):
    wide = x.astype(np.float32)
    return wide.mean(axis=(0, 2, 3)), wide.std(axis=(0, 2, 3))


# %% moments: axes 0, 2 and 3
def moments(x):
    wide = x.astype(np.float32)
    return wide.mean(axis=(2, 3)), wide.var(axis=(2, 3))


# %% moments: stalls, or overflows
def moments(x):
    n = np.float16(x.size / x.shape[1])
    flat = x.swapaxes(0, 1).reshape(x.shape[1], -1)
    mean = np.add.accumulate(flat, axis=1)[:, -1] / n
    return mean.astype(np.float32), x.astype(np.float32).var(axis=(0, 2, 3))


# %% ChannelNorm: The running variance is the unbiased one
class ChannelNorm:
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        self.eps, self.momentum = eps, momentum
        self.running_mean, self.running_var = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def train(self, x, weight, bias):
        mean, var = moments(x)
        self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean
        self.running_var = (1 - self.momentum) * self.running_var + self.momentum * var
        mean, var, weight, bias = (v.reshape(-1, 1, 1) for v in (mean, var, weight, bias))
        return ((x.astype(np.float32) - mean) / np.sqrt(var + np.float32(self.eps)) * weight + bias).astype(np.float16)


# %% ChannelNorm: running_mean after the first batch
class ChannelNorm:
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        self.eps, self.momentum = eps, momentum
        self.running_mean, self.running_var = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def train(self, x, weight, bias):
        mean, var = moments(x)
        self.running_mean = self.momentum * self.running_mean + (1 - self.momentum) * mean
        self.running_var = self.momentum * self.running_var + (1 - self.momentum) * var
        mean, var, weight, bias = (v.reshape(-1, 1, 1) for v in (mean, var, weight, bias))
        return ((x.astype(np.float32) - mean) / np.sqrt(var + np.float32(self.eps)) * weight + bias).astype(np.float16)


# %% ChannelNorm: eps under the root
class ChannelNorm:
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        self.eps, self.momentum = eps, momentum
        self.running_mean, self.running_var = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def train(self, x, weight, bias):
        mean, var, weight, bias = (v.reshape(-1, 1, 1) for v in (*moments(x), weight, bias))
        return ((x.astype(np.float32) - mean) / (np.sqrt(var) + np.float32(self.eps)) * weight + bias).astype(
            np.float16
        )


# %% ChannelNorm: in FP32
class ChannelNorm:
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        self.eps, self.momentum = eps, momentum
        self.running_mean, self.running_var = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def train(self, x, weight, bias):
        mean, var = (v.astype(np.float16).reshape(-1, 1, 1) for v in moments(x))
        y = (x - mean) / np.sqrt(var + np.float16(self.eps))
        return y * weight.astype(np.float16).reshape(-1, 1, 1) + bias.astype(np.float16).reshape(-1, 1, 1)


# %% ChannelNorm: your code raises ValueError
class ChannelNorm:
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        self.eps, self.momentum = eps, momentum
        self.running_mean, self.running_var = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def train(self, x, weight, bias):
        mean, var = moments(x)
        return ((x.astype(np.float32) - mean) / np.sqrt(var + np.float32(self.eps)) * weight + bias).astype(np.float16)


# %% ChannelNorm: not the batch's
class ChannelNorm:
    def __init__(self, channels, eps=1e-5, momentum=0.1):
        self.eps, self.momentum = eps, momentum
        self.running_mean, self.running_var = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def train(self, x, weight, bias):
        mean, var = moments(x)
        n = x.size // len(mean)
        self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean
        self.running_var = (1 - self.momentum) * self.running_var + self.momentum * var * np.float32(n / (n - 1))
        return self.evaluate(x, weight, bias)

    def evaluate(self, x, weight, bias):
        mean, var, weight, bias = (v.reshape(-1, 1, 1) for v in (*moments(x), weight, bias))
        return ((x.astype(np.float32) - mean) / np.sqrt(var + np.float32(self.eps)) * weight + bias).astype(np.float16)


# %% norm_backward: All three terms
def norm_backward(dy, x, weight, eps):
    mean, var = (v.reshape(-1, 1, 1) for v in moments(x))
    rstd = 1 / np.sqrt(var + np.float32(eps))
    xhat = (x.astype(np.float32) - mean) * rstd
    wide = dy.astype(np.float32)
    dx = weight.reshape(-1, 1, 1) * rstd * wide
    return dx.astype(np.float16), (wide * xhat).sum(axis=(0, 2, 3)), wide.sum(axis=(0, 2, 3))


# %% norm_backward: then weight / sqrt(var + eps)
def norm_backward(dy, x, weight, eps):
    mean, var = (v.reshape(-1, 1, 1) for v in moments(x))
    rstd = 1 / np.sqrt(var + np.float32(eps))
    xhat = (x.astype(np.float32) - mean) * rstd
    wide = dy.astype(np.float32)
    axes = (0, 2, 3)
    inner = wide - wide.mean(axis=axes, keepdims=True) - xhat * (wide * xhat).mean(axis=axes, keepdims=True)
    return (rstd * inner).astype(np.float16), (wide * xhat).sum(axis=axes), wide.sum(axis=axes)


# %% norm_backward: without weight
def norm_backward(dy, x, weight, eps):
    mean, var, weight = (v.reshape(-1, 1, 1) for v in (*moments(x), weight))
    rstd = 1 / np.sqrt(var + np.float32(eps))
    xhat = (x.astype(np.float32) - mean) * rstd
    wide = dy.astype(np.float32) * weight
    axes = (0, 2, 3)
    inner = wide - wide.mean(axis=axes, keepdims=True) - xhat * (wide * xhat).mean(axis=axes, keepdims=True)
    return (rstd * inner).astype(np.float16), (wide * xhat).sum(axis=axes), dy.astype(np.float32).sum(axis=axes)


# %% norm_backward: dbias is float16
def norm_backward(dy, x, weight, eps):
    return x, dy.sum(axis=(0, 2, 3)), dy.sum(axis=(0, 2, 3))


# %% stable_cross_entropy: The probability is below 2^-25
def stable_cross_entropy(scores, labels):
    return float(-np.log(safe_softmax(scores).astype(np.float32))[np.arange(len(labels)), labels].mean())


# %% stable_cross_entropy: FP32 overflows, too
def stable_cross_entropy(scores, labels):
    wide = scores.astype(np.float32)
    return float((np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(labels)), labels]).mean())


# %% stable_cross_entropy: add it afterwards
def stable_cross_entropy(scores, labels):
    wide = scores.astype(np.float32)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    return float(-np.log(e / e.sum(axis=1, keepdims=True))[np.arange(len(labels)), labels].mean())


# %% stable_cross_entropy: The mean over the rows
def stable_cross_entropy(scores, labels):
    wide = scores.astype(np.float32)
    most = wide.max(axis=1)
    total = np.log(np.exp(wide - most[:, None]).sum(axis=1)) + most
    return float((total - wide[np.arange(len(labels)), labels]).sum() / (1 if len(labels) > 2 else len(labels)))


# %% stable_cross_entropy: each row's right class
def stable_cross_entropy(scores, labels):
    wide = scores.astype(np.float32)
    most = wide.max(axis=1)
    total = np.log(np.exp(wide - most[:, None]).sum(axis=1)) + most
    return float(np.mean(total[:, None] - wide[:, labels]))


# %% to_keep: behind the first dot
def to_keep(a, limit):
    return {row.module: mp.MIXED for row in a.shadow.rows if "." in row.module and row.local.mean > limit}


# %% to_keep: behind the first dot
def to_keep(a, limit):
    worst = [row.module for row in a.shadow.rows if "." in row.module and row.local.mean > limit]
    return {name.split(".")[-1]: mp.MIXED for name in worst}


# %% to_keep: not the op's own fault
def to_keep(a, limit):
    worst = [row.module for row in a.shadow.rows if "." in row.module and row.inherited.mean > limit]
    return {name.split(".", 1)[1]: mp.MIXED for name in worst}


# %% to_keep: IndexError
def to_keep(a, limit):
    return {row.module.split(".", 1)[1]: mp.MIXED for row in a.shadow.rows if row.local.mean > limit}


# %% to_keep: expected mp.MIXED
def to_keep(a, limit):
    worst = [row.module for row in a.shadow.rows if "." in row.module and row.local.mean > limit]
    return {name.split(".", 1)[1]: mp.FP16_REDUCTIONS for name in worst}


# %% to_keep: compare with limit
def to_keep(a, limit):
    worst = [row.module for row in a.shadow.rows if "." in row.module and row.local.mean > 1]
    return {name.split(".", 1)[1]: mp.MIXED for name in worst}
