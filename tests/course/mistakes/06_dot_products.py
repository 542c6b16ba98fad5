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


# %% cut: do not round
def cut(x, bits, largest):
    if largest == 0:
        return 0.0
    last = 2.0 ** (np.frexp(largest)[1] - bits)
    return round(x / last) * last


# %% cut: not math.floor
def cut(x, bits, largest):
    if largest == 0:
        return 0.0
    last = 2.0 ** (np.frexp(largest)[1] - bits)
    return float(np.floor(x / last) * last)


# %% cut: 8 is 1000
def cut(x, bits, largest):
    if largest == 0:
        return 0.0
    last = 2.0 ** (np.ceil(np.log2(abs(largest))) - bits)
    return float(np.trunc(x / last) * last)


# %% cut: nothing is left
def cut(x, bits, largest):
    if x == 0:
        return 0.0
    last = 2.0 ** (np.frexp(x)[1] - bits)
    return float(np.trunc(x / last) * last)


# %% cut: its last bit is worth 1
def cut(x, bits, largest):
    if largest == 0:
        return 0.0
    last = 2.0 ** (np.frexp(largest)[1] - 1 - bits)
    return float(np.trunc(x / last) * last)


# %% cut: Everything is 0
def cut(x, bits, largest):
    last = 2.0 ** (np.floor(np.log2(abs(largest))) + 1 - bits)
    return float(np.trunc(x / last) * last)


# %% dot_aligned: one of those that are aligned
def dot_aligned(a, b, bits, chunk):
    total = 0.0
    for i in range(0, len(a), chunk):
        terms = [float(x) * float(y) for x, y in zip(a[i : i + chunk], b[i : i + chunk])]
        total += sum(cut(x, bits, max(map(abs, terms))) for x in terms)
        total = cut(total, bits, total)
    return total


# %% dot_aligned: the sum is cut, too
def dot_aligned(a, b, bits, chunk):
    total = 0.0
    for i in range(0, len(a), chunk):
        terms = [total] + [float(x) * float(y) for x, y in zip(a[i : i + chunk], b[i : i + chunk])]
        largest = max(map(abs, terms))
        total = sum(cut(x, bits, largest) for x in terms)
    return total


# %% dot_aligned: largest magnitude
def dot_aligned(a, b, bits, chunk):
    total = 0.0
    for i in range(0, len(a), chunk):
        terms = [total] + [float(x) * float(y) for x, y in zip(a[i : i + chunk], b[i : i + chunk])]
        total = sum(cut(x, bits, max(terms)) for x in terms)
        total = cut(total, bits, total)
    return total


# %% dot_aligned: only in the third chunk
def dot_aligned(a, b, bits, chunk):
    products = [float(x) * float(y) for x, y in zip(a, b)]
    largest = max(map(abs, products))
    total = 0.0
    for i in range(0, len(a), chunk):
        total += sum(cut(x, bits, largest) for x in products[i : i + chunk])
        total = cut(total, bits, total)
    return total


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
