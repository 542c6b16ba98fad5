# Typical mistakes, as students make them. After the exercise's name: what the message must say.

# %% product_bits: the leading 1
product_bits = 20

# %% product_bits: binary digits
product_bits = 121


# %% dot_fp16: Do not round the products
def dot_fp16(a, b, chunk):
    total = np.float16(0)
    for i in range(0, len(a), chunk):
        products = a[i : i + chunk] * b[i : i + chunk]
        total = np.float16(np.float32(total) + products.sum(dtype=np.float32))
    return float(total)


# %% dot_fp16: the sum of a chunk by itself
def dot_fp16(a, b, chunk):
    total = np.float16(0)
    for i in range(0, len(a), chunk):
        products = a[i : i + chunk].astype(np.float32) * b[i : i + chunk].astype(np.float32)
        total = total + np.float16(products.sum())
    return float(total)


# %% dot_fp16: round each time
def dot_fp16(a, b, chunk):
    return float(np.float16(np.dot(a.astype(np.float32), b.astype(np.float32))))


# %% dot_fp16: A chunk may be longer
def dot_fp16(a, b, chunk):
    total = np.float16(0)
    for i in range(0, len(a) - chunk + 1, chunk):
        products = a[i : i + chunk].astype(np.float32) * b[i : i + chunk].astype(np.float32)
        total = np.float16(np.float32(total) + products.sum(dtype=np.float32))
    return float(total)


# %% dot_fp16: your code raises ValueError
def dot_fp16(a, b, chunk):
    products = (a.astype(np.float32) * b.astype(np.float32)).reshape(-1, min(chunk, len(a))).sum(1)
    total = np.float16(0)
    for part in products:
        total = np.float16(np.float32(total) + part)
    return float(total)


# %% dot_fp16: rounded once: 2052
def dot_fp16(a, b, chunk):
    total = np.float16(0)
    for x, y in zip(a, b):
        total = np.float16(np.float32(total) + np.float32(x) * np.float32(y))
    return float(total)


# %% worst_case: off by half of it
def worst_case(length, chunk):
    return (1 + 2.0**-10) ** (-(-length // chunk)) - 1


# %% worst_case: three roundings
def worst_case(length, chunk):
    return (1 + 2.0**-11) ** max(length // chunk, 1) - 1


# %% worst_case: expected
def worst_case(length, chunk):
    return -(-length // chunk) * 2.0**-11


# %% worst_case: A short chunk is rounded once
def worst_case(length, chunk):
    return (1 + 2.0**-11) ** (length / chunk) - 1 if length < chunk else (1 + 2.0**-11) ** (-(-length // chunk)) - 1


# %% exponent: one larger
def exponent(x):
    return math.frexp(x)[1]


# %% exponent: The sign does not matter
def exponent(x):
    return max(math.floor(math.log2(x)), -14) if x > 0 else 0


# %% exponent: A subnormal number
def exponent(x):
    return math.frexp(x)[1] - 1


# %% cut: Cut off, do not round
def cut(x, last):
    return round(x / last) * last


# %% cut: Towards 0
def cut(x, last):
    return math.floor(x / last) * last


# %% cut: is worth 0.5
def cut(x, last):
    return float(math.trunc(x))


# %% dot_tensor_core: behind the last column
def dot_tensor_core(a, b, bits, products, c=0.0):
    return float(np.float32(c + a.astype(np.float64) @ b.astype(np.float64)))


# %% dot_tensor_core: The accumulator, 1, is one of those
def dot_tensor_core(a, b, bits, products, c=0.0):
    for i in range(0, len(a), products):
        pairs = [(float(x), float(y)) for x, y in zip(a[i : i + products], b[i : i + products])]
        exponents = [exponent(x) + exponent(y) for x, y in pairs if x * y != 0]
        if exponents:
            c += sum(cut(x * y, 2.0 ** (max(exponents) - bits)) for x, y in pairs)
            c = cut(c, 2.0 ** (math.frexp(c)[1] - 24))
    return c


# %% dot_tensor_core: its exponents add up to 0
def dot_tensor_core(a, b, bits, products, c=0.0):
    for i in range(0, len(a), products):
        terms = [c, *(float(x) * float(y) for x, y in zip(a[i : i + products], b[i : i + products]))]
        last = 2.0 ** (max(math.frexp(x)[1] - 1 for x in terms) - bits)
        c = sum(cut(x, last) for x in terms)
        c = cut(c, 2.0 ** (math.frexp(c)[1] - 24))
    return c


# %% dot_tensor_core: it is cut, too
def dot_tensor_core(a, b, bits, products, c=0.0):
    for i in range(0, len(a), products):
        pairs = [(float(x), float(y)) for x, y in zip(a[i : i + products], b[i : i + products])]
        exponents = [exponent(x) + exponent(y) for x, y in pairs if x * y != 0]
        exponents += [math.frexp(c)[1] - 1] if c else []
        last = 2.0 ** (max(exponents) - bits)
        c = cut(c, last) + sum(cut(x * y, last) for x, y in pairs)
    return c


# %% dot_tensor_core: Only in the second step
def dot_tensor_core(a, b, bits, products, c=0.0):
    pairs = [(float(x), float(y)) for x, y in zip(a, b)]
    last = 2.0 ** (max(exponent(x) + exponent(y) for x, y in pairs if x * y) - bits)
    for i in range(0, len(a), products):
        e = math.frexp(c)[1] - 1 if c else -99
        last = max(last, 2.0 ** (e - bits))
        c = cut(c, last) + sum(cut(x * y, last) for x, y in pairs[i : i + products])
        c = c and cut(c, 2.0 ** (math.frexp(c)[1] - 24))
    return c


# %% padding_cost: nothing to pad
def padding_cost(m, n, k):
    m8, n8, k8 = (s // 8 * 8 + 8 for s in (m, n, k))
    return m8 * n8 * k8 / (m * n * k) - 1


# %% padding_cost: nothing to pad
def padding_cost(m, n, k):
    m8, n8, k8 = (-(-s // 8) * 8 for s in (m, n, k))
    return m8 * n8 * k8 / (m * n * k)


# %% padding_cost: the factors multiply
def padding_cost(m, n, k):
    return sum(-(-s // 8) * 8 / s - 1 for s in (m, n, k))
