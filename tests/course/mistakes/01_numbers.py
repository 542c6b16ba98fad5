# Typical mistakes, as students make them. After the exercise's name: what the message must say.


# %% decode: the power is 2^-14
def decode(bits):
    s, e, f = bits >> 15, (bits >> 10) & 31, bits & 1023
    if e == 31:
        return s, e, f, math.nan if f else (-1) ** s * math.inf
    value = (-1.0) ** s * 2.0 ** (e - 15) * ((e > 0) + f / 1024)
    return s, e, f, value


# %% decode: there is no 1 in front
def decode(bits):
    s, e, f = bits >> 15, (bits >> 10) & 31, bits & 1023
    if e == 31:
        return s, e, f, math.nan if f else (-1) ** s * math.inf
    return s, e, f, 0.0 if not bits & 0x7FFF else (-1.0) ** s * 2.0 ** (max(e, 1) - 15) * (1 + f / 1024)


# %% decode: is infinity
def decode(bits):
    s, e, f = bits >> 15, (bits >> 10) & 31, bits & 1023
    size = 2.0 ** (e - 15) * (1 + f / 1024) if e else 2.0**-14 * f / 1024
    return s, e, f, -size if s else size


# %% decode: sign of zero counts
def decode(bits):
    s, e, f = bits >> 15, (bits >> 10) & 31, bits & 1023
    if e == 31:
        return s, e, f, math.nan if f else (-1) ** s * math.inf
    size = 2.0 ** (e - 15) * (1 + f / 1024) if e else 2.0**-14 * f / 1024
    return s, e, f, size * (1 if s == 0 else -1) + 0.0


# %% decode: the sign of decode
def decode(bits):
    return -1 if bits >> 15 else 1, (bits >> 10) & 31, bits & 1023, np.uint16(bits).view(np.float16)


# %% spacing: stays at f.smallest
def spacing(x, f=FP16):
    return 2.0 ** (math.frexp(x)[1] - 1 - f.fraction) if x else f.smallest


# %% spacing: Its neighbours are
def spacing(x, f=FP16):
    return max(2.0 ** (math.frexp(x)[1] - f.fraction), f.smallest) if x else f.smallest


# %% spacing: math domain error
def spacing(x, f=FP16):
    return max(2.0 ** (math.floor(math.log2(x)) - f.fraction), f.smallest)


# %% spacing: fraction and smallest from f
def spacing(x, f=FP16):
    return max(2.0 ** (math.frexp(x)[1] - 11), 2.0**-24) if x else 2.0**-24


# %% rounded: even last bit, here down
def rounded(x, f=FP16):
    if x == 0 or not math.isfinite(x):
        return x
    u = spacing(x, f)
    y = math.floor(x / u + 0.5) * u
    return y if abs(y) <= f.largest else math.copysign(math.inf, x)


# %% rounded: round twice
def rounded(x, f=FP16):
    with np.errstate(all="ignore"):
        return float(np.float16(np.float32(x))) if f is FP16 else float(f.round(np.float32([x]))[0])


# %% rounded: which is even: infinity
def rounded(x, f=FP16):
    return x if x == 0 or not math.isfinite(x) else round(x / spacing(x, f)) * spacing(x, f)


# %% rounded: Use f throughout
def rounded(x, f=FP16):
    with np.errstate(all="ignore"):
        return float(np.float16(x))


# %% stall: a power of two
def stall(term):
    total = 2.0 ** (math.frexp(term)[1] - 1) * 4096
    return total if total <= 65504 else math.inf


# %% stall: less than half a spacing
def stall(term):
    return 2048 * term if 2048 * term <= 65504 else math.inf


# %% stall: before it stalls
def stall(term):
    power = 2.0 ** (math.frexp(term)[1] - 1)
    return power * (2048 if term == power else 4096)


# %% pairwise: in a wider dtype
def pairwise(x):
    return np.float16(x.astype(np.float32).sum())


# %% pairwise: is it a running sum
def pairwise(x):
    if len(x) < 16:
        return x[0] if len(x) == 1 else pairwise(x[: len(x) // 2]) + pairwise(x[len(x) // 2 :])
    total = np.float16(0)
    for v in x:
        total += v
    return total


# %% pairwise: first half of three numbers
def pairwise(x):
    if len(x) == 1:
        return x[0]
    middle = (len(x) + 1) // 2
    return pairwise(x[:middle]) + pairwise(x[middle:])


# %% pairwise: calls itself without end
def pairwise(x):
    return pairwise(x[: len(x) // 2]) + pairwise(x[len(x) // 2 :])


# %% rounding_line: calls another function
rounding_line = "x32 = _round(x32, dtype)"


# %% rounding_line: is no line of
rounding_line = "device.cast(x, dtype)"
