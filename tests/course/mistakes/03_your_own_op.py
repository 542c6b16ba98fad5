# Typical mistakes, as students make them. After the exercise's name: what the message must say.


# %% kinds: Each result is divided by a sum
kinds = ["POINTWISE", "REDUCTION", "MOVEMENT", "DOT", "LOSS", "POINTWISE"]


# %% kinds: is no kind
kinds = ["ELEMENTWISE", "REDUCTION", "MOVEMENT", "DOT", "LOSS", "REDUCTION"]


# %% bound: take |e|
def bound(exact, n=8):
    return 2.0**-11 * exact + n * 2.0**-24 * np.abs(exact).max() + 2.0**-25


# %% bound: of the largest size
def bound(exact, n=8):
    return 2.0**-11 * np.abs(exact) + n * 2.0**-24 * exact.max() + 2.0**-25


# %% bound: 2^-25 is left
def bound(exact, n=8):
    return 2.0**-11 * np.abs(exact) + n * 2.0**-24 * np.abs(exact).max()


# %% Mish: Did you widen?
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        self.save(x)
        return store(x * np.tanh(np.log1p(np.exp(x))), like=x)

    def backward(self, dy):
        (x,) = self.saved
        x = widen(x)
        t = np.tanh(np.log1p(np.exp(x)))
        return store(widen(dy) * (t + x * (1 - t * t) / (1 + np.exp(-x))), like=dy)


# %% Mish: Did you widen both x and dy
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        self.save(x)
        wide = widen(x)
        return store(wide * np.tanh(np.log1p(np.exp(wide))), like=x)

    def backward(self, dy):
        (x,) = self.saved
        t = np.tanh(np.log1p(np.exp(x)))
        return store(dy * (t + x * (1 - t * t) / (1 + np.exp(-x))), like=dy)


# %% Mish: np.log1p
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        self.save(x)
        wide = widen(x)
        return store(wide * np.tanh(np.log(1 + np.exp(wide))), like=x)

    def backward(self, dy):
        (x,) = self.saved
        x = widen(x)
        t = np.tanh(np.log1p(np.exp(x)))
        return store(widen(dy) * (t + x * (1 - t * t) / (1 + np.exp(-x))), like=dy)


# %% Mish: Round once, at the end
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        wide = widen(x)
        self.save(x)
        return store(wide * np.tanh(np.log1p(np.exp(wide))), like=x)

    def backward(self, dy):
        (x,) = self.saved
        wide, like = widen(x), dy
        t = np.tanh(np.log1p(np.exp(wide)))
        slope = t + wide * (1 - t * t) / (1 + np.exp(-wide))
        store(slope, like=like)
        return store(widen(dy) * slope, like=like)


# %% Mish: of the bound
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        wide = widen(x)
        self.save(x)
        t = store(np.tanh(np.log1p(np.exp(wide))), like=x)
        return store(wide * widen(t), like=x)

    def backward(self, dy):
        (x,) = self.saved
        wide = widen(x)
        t = np.tanh(np.log1p(np.exp(wide)))
        return store(widen(dy) * (t + wide * (1 - t * t) / (1 + np.exp(-wide))), like=x)


# %% Mish: saved float32 for backward
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        wide = widen(x)
        self.save(wide)
        return store(wide * np.tanh(np.log1p(np.exp(wide))), like=x)

    def backward(self, dy):
        (x,) = self.saved
        t = np.tanh(np.log1p(np.exp(x)))
        return store(widen(dy) * (t + x * (1 - t * t) / (1 + np.exp(-x))), like=dy)


# %% Mish: Save the FP16 array
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        self.wide = widen(x)
        return store(self.wide * np.tanh(np.log1p(np.exp(self.wide))), like=x)

    def backward(self, dy):
        x = self.wide
        t = np.tanh(np.log1p(np.exp(x)))
        return store(widen(dy) * (t + x * (1 - t * t) / (1 + np.exp(-x))), like=dy)


# %% Mish: expected POINTWISE
class Mish(Op):
    kind = REDUCTION

    def forward(self, x):
        self.save(x)
        wide = widen(x)
        return store(wide * np.tanh(np.log1p(np.exp(wide))), like=x)

    def backward(self, dy):
        (x,) = self.saved
        x = widen(x)
        t = np.tanh(np.log1p(np.exp(x)))
        return store(widen(dy) * (t + x * (1 - t * t) / (1 + np.exp(-x))), like=dy)


# %% Mish: writes float16, got float32
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        self.save(x)
        wide = widen(x)
        return wide * np.tanh(np.log1p(np.exp(wide)))

    def backward(self, dy):
        (x,) = self.saved
        x = widen(x)
        t = np.tanh(np.log1p(np.exp(x)))
        return store(widen(dy) * (t + x * (1 - t * t) / (1 + np.exp(-x))), like=dy)


# %% Mish: Mish.backward is wrong
class Mish(Op):
    kind = POINTWISE

    def forward(self, x):
        self.save(x)
        wide = widen(x)
        return store(wide * np.tanh(np.log1p(np.exp(wide))), like=x)

    def backward(self, dy):
        (x,) = self.saved
        x = widen(x)
        t = np.tanh(np.log1p(np.exp(x)))
        return store(widen(dy) * (t + x * (1 - t * t)), like=dy)


# %% UnitNorm: widen first
class UnitNorm(Op):
    kind = REDUCTION

    def forward(self, x):
        r = np.sqrt(reduce(x * x, -1, "sum"))
        y = store(widen(x) / r, like=x)
        self.save(y, statistics=(r,))
        return y

    def backward(self, dy):
        (y,), (r,) = self.saved, self.statistics
        wide, dy = widen(y), widen(dy)
        return store((dy - wide * reduce(wide * dy, -1, "sum", like=y)) / r, like=y)


# %% UnitNorm: does not go through the primitive
class UnitNorm(Op):
    kind = REDUCTION

    def forward(self, x):
        wide = widen(x)
        r = np.sqrt((wide * wide).sum(-1, keepdims=True))
        y = store(wide / r, like=x)
        self.save(y, statistics=(r,))
        return y

    def backward(self, dy):
        (y,), (r,) = self.saved, self.statistics
        wide, dy = widen(y), widen(dy)
        return store((dy - wide * reduce(wide * dy, -1, "sum", like=y)) / r, like=y)


# %% UnitNorm: a factor is missing
class UnitNorm(Op):
    kind = REDUCTION

    def forward(self, x):
        wide = widen(x)
        r = np.sqrt(reduce(wide * wide, -1, "sum", like=x))
        y = store(wide / r, like=x)
        self.save(y, statistics=(r,))
        return y

    def backward(self, dy):
        (y,), (r,) = self.saved, self.statistics
        wide, dy = widen(y), widen(dy)
        return store(2 * (dy - wide * reduce(wide * dy, -1, "sum", like=y)) / r, like=y)


# %% UnitNorm: central
class UnitNorm(Op):
    kind = REDUCTION

    def forward(self, x):
        wide = widen(x)
        r = np.sqrt(reduce(wide * wide, -1, "sum", like=x))
        self.save(x, statistics=(r,))
        return store(wide / r, like=x)

    def backward(self, dy):
        (r,) = self.statistics
        return store(widen(dy) / r, like=dy)


# %% UnitNorm: keeps
class UnitNorm(Op):
    kind = REDUCTION

    def forward(self, x):
        wide = widen(x)
        r = np.sqrt(reduce(wide * wide, -1, "sum", like=x))
        self.save(statistics=(wide / r, r))
        return store(wide / r, like=x)

    def backward(self, dy):
        y, r = self.statistics
        dy16, dy = dy, widen(dy)
        return store((dy - y * reduce(y * dy, -1, "sum", like=dy16)) / r, like=dy16)


# %% UnitNorm: saved float32
class UnitNorm(Op):
    kind = REDUCTION

    def forward(self, x):
        wide = widen(x)
        r = np.sqrt(reduce(wide * wide, -1, "sum", like=x))
        y = store(wide / r, like=x)
        self.save(y, r)
        return y

    def backward(self, dy):
        y, r = self.saved
        wide, dy = widen(y), widen(dy)
        return store((dy - wide * reduce(wide * dy, -1, "sum", like=y)) / r, like=y)


# %% LogCosh: writes float32, got float16
class LogCosh(Op):
    kind = LOSS

    def forward(self, x, target):
        self.save(x, target)
        d = np.abs(widen(x) - widen(target))
        each = d + np.log1p(np.exp(-2 * d)) - math.log(2)
        return store(reduce(each, tuple(range(x.ndim)), "mean").reshape(()), like=x)

    def backward(self, dy):
        x, target = self.saved
        return store(dy * np.tanh(widen(x) - widen(target)) / x.size, like=x), None


# %% LogCosh: cosh overflows
class LogCosh(Op):
    kind = LOSS

    def forward(self, x, target):
        self.save(x, target)
        each = np.log(np.cosh(widen(x) - widen(target)))
        return reduce(each, tuple(range(x.ndim)), "mean").reshape(())

    def backward(self, dy):
        x, target = self.saved
        return store(dy * np.tanh(widen(x) - widen(target)) / x.size, like=x), None


# %% LogCosh: before you round
class LogCosh(Op):
    kind = LOSS

    def forward(self, x, target):
        self.save(x, target)
        d = np.abs(widen(x) - widen(target))
        each = d + np.log1p(np.exp(-2 * d)) - math.log(2)
        return reduce(each, tuple(range(x.ndim)), "mean").reshape(())

    def backward(self, dy):
        x, target = self.saved
        g = widen(store(np.tanh(widen(x) - widen(target)) / x.size, like=x))
        return store(dy * g, like=x), None


# %% LogCosh: LogCosh.backward is wrong
class LogCosh(Op):
    kind = LOSS

    def forward(self, x, target):
        self.save(x, target)
        d = np.abs(widen(x) - widen(target))
        each = d + np.log1p(np.exp(-2 * d)) - math.log(2)
        return reduce(each, tuple(range(x.ndim)), "mean").reshape(())

    def backward(self, dy):
        x, target = self.saved
        return store(dy * np.tanh(widen(x) - widen(target)), like=x), None


# %% LogCosh: expected LOSS
class LogCosh(Op):
    kind = REDUCTION

    def forward(self, x, target):
        self.save(x, target)
        d = np.abs(widen(x) - widen(target))
        each = d + np.log1p(np.exp(-2 * d)) - math.log(2)
        return reduce(each, tuple(range(x.ndim)), "mean").reshape(())

    def backward(self, dy):
        x, target = self.saved
        return store(dy * np.tanh(widen(x) - widen(target)) / x.size, like=x), None


# %% LogCosh: got float64
class LogCosh(Op):
    kind = LOSS

    def forward(self, x, target):
        self.save(x, target)
        d = np.abs(widen(x) - widen(target))
        each = d + np.log1p(np.exp(-2 * d)) - np.log(2)
        return reduce(each, tuple(range(x.ndim)), "mean").reshape(())

    def backward(self, dy):
        x, target = self.saved
        return store(dy * np.tanh(widen(x) - widen(target)) / x.size, like=x), None


# %% LogCosh: does not go through the primitive
class LogCosh(Op):
    kind = LOSS

    def forward(self, x, target):
        self.save(x, target)
        d = np.abs(widen(x) - widen(target))
        return np.mean(d + np.log1p(np.exp(-2 * d)) - math.log(2))

    def backward(self, dy):
        x, target = self.saved
        return store(dy * np.tanh(widen(x) - widen(target)) / x.size, like=x), None
