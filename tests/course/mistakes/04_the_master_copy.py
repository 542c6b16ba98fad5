# Typical mistakes, as students make them. After the exercise's name: what the message must say.

# %% lost_updates: Add in FP32 first
def lost_updates(weights, updates):
    return (updates != 0) & (weights + updates.astype(np.float16) == weights)


# %% lost_updates: An update of 0 is no update
def lost_updates(weights, updates):
    return (weights.astype(np.float32) + updates).astype(np.float16) == weights


# %% lost_updates: even neighbour
def lost_updates(weights, updates):
    return (updates != 0) & (np.abs(updates) < np.spacing(np.abs(weights)).astype(np.float32) / 2)


# %% lost_updates: Half a step is a tie
def lost_updates(weights, updates):
    return (updates != 0) & (np.abs(weights.astype(np.float32)) > 2048 * np.abs(updates))


# %% lost_updates: expected
def lost_updates(weights, updates):
    return (updates != 0) & (weights.astype(np.float32) + updates == weights)


# %% lost_updates: expected an array of bool
def lost_updates(weights, updates):
    return float(np.mean((weights.astype(np.float32) + updates).astype(np.float16) == weights))


# %% half_spacing: may be negative
def half_spacing(weights):
    return np.spacing(weights).astype(np.float32) / 2


# %% half_spacing: which only FP32 can hold
def half_spacing(weights):
    return np.spacing(np.abs(weights)) / 2


# %% half_spacing: From 1 to 2
def half_spacing(weights):
    return np.abs(weights).astype(np.float32) * np.float32(2.0**-11)


# %% half_spacing: stay 2^-24 apart
def half_spacing(weights):
    exponent = np.frexp(np.abs(weights))[1] - 1
    return np.ldexp(np.float32(1), exponent - 11)


# %% surely_lost: it *may* be lost
surely_lost = 2048

# %% surely_lost: expected 4096
surely_lost = 1024


# %% MasterSGD: not the FP16 copies
class MasterSGD:
    def __init__(self, weights, lr):
        self.lr = np.float32(lr)
        self.masters = [w.copy() for w in weights]
        self.copies = [m.astype(np.float16) for m in self.masters]

    def step(self, gradients):
        for i, g in enumerate(gradients):
            self.copies[i] = (self.copies[i] - self.lr * g.astype(np.float32)).astype(np.float16)
            self.masters[i] = self.copies[i].astype(np.float32)


# %% MasterSGD: made anew in every step
class MasterSGD:
    def __init__(self, weights, lr):
        self.lr = np.float32(lr)
        self.masters = [w.copy() for w in weights]
        self.copies = [m.astype(np.float16) for m in self.masters]

    def step(self, gradients):
        for master, g in zip(self.masters, gradients):
            master -= self.lr * g.astype(np.float32)


# %% MasterSGD: multiply in FP32
class MasterSGD:
    def __init__(self, weights, lr):
        self.lr = lr
        self.masters = [w.copy() for w in weights]
        self.copies = [m.astype(np.float16) for m in self.masters]

    def step(self, gradients):
        for master, g in zip(self.masters, gradients):
            master -= self.lr * g
        self.copies = [m.astype(np.float16) for m in self.masters]


# %% MasterSGD: the masters need a copy of it
class MasterSGD:
    def __init__(self, weights, lr):
        self.lr = np.float32(lr)
        self.masters = list(weights)
        self.copies = [m.astype(np.float16) for m in self.masters]

    def step(self, gradients):
        for master, g in zip(self.masters, gradients):
            master -= self.lr * g.astype(np.float32)
        self.copies = [m.astype(np.float16) for m in self.masters]


# %% MasterSGD: the master must get the update
class MasterSGD:
    def __init__(self, weights, lr):
        self.lr = np.float32(lr)
        self.masters = [w.copy() for w in weights]
        self.copies = [m.astype(np.float16) for m in self.masters]

    def step(self, gradients):
        for master, g in zip(self.masters, gradients):
            master = master - self.lr * g.astype(np.float32)
        self.copies = [m.astype(np.float16) for m in self.masters]


# %% stochastic: which is no neighbour
def stochastic(x, random):
    low = x.astype(np.float16)
    high = np.nextafter(low, np.float16(np.inf))
    up = random.random(x.shape) < np.abs(x - low.astype(np.float32)) / (high - low).astype(np.float32)
    return np.where(up, high, low)


# %% stochastic: really not above x
def stochastic(x, random):
    low = x.astype(np.float16)
    high = np.nextafter(low, np.float16(np.inf))
    a, b = low.astype(np.float32), high.astype(np.float32)
    return np.where(random.random(x.shape) < (x - a) / (b - a), high, low)


# %% stochastic: Has each its own random number
def stochastic(x, random):
    near = x.astype(np.float16)
    low = np.where(near > x, np.nextafter(near, np.float16(-np.inf)), near)
    high = np.nextafter(low, np.float16(np.inf))
    a, b = low.astype(np.float32), high.astype(np.float32)
    return np.where(random.random() < (x - a) / (b - a), high, low)


# %% stochastic: the probability of going down
def stochastic(x, random):
    near = x.astype(np.float16)
    low = np.where(near > x, np.nextafter(near, np.float16(-np.inf)), near)
    high = np.nextafter(low, np.float16(np.inf))
    a, b = low.astype(np.float32), high.astype(np.float32)
    up = random.random(x.shape) < (b - x) / (b - a)
    return np.where(up & (x != a), high, low)


# %% stochastic: All went the same way
def stochastic(x, random):
    return x.astype(np.float16)


# %% stochastic: Draw from `random`
def stochastic(x, random):
    near = x.astype(np.float16)
    low = np.where(near > x, np.nextafter(near, np.float16(-np.inf)), near)
    high = np.nextafter(low, np.float16(np.inf))
    a, b = low.astype(np.float32), high.astype(np.float32)
    return np.where(np.random.default_rng().random(x.shape) < (x - a) / (b - a), high, low)


# %% stochastic: expected float16
def stochastic(x, random):
    near = x.astype(np.float16)
    low = np.where(near > x, np.nextafter(near, np.float16(-np.inf)), near).astype(np.float32)
    high = np.nextafter(low.astype(np.float16), np.float16(np.inf)).astype(np.float32)
    return np.where(random.random(x.shape) < (x - low) / (high - low), high, low)


# %% bytes_per_weight: bytes_per_weight(mp.FP32)
def bytes_per_weight(policy):
    return 2 * policy.storage.itemsize + 4 * policy.master + 2 * policy.state.itemsize


# %% bytes_per_weight: Adam's averages
def bytes_per_weight(policy):
    master = 4 if policy.master and policy.storage != np.float32 else 0
    return 2 * policy.storage.itemsize + master + policy.state.itemsize


# %% bytes_per_weight: bytes_per_weight(mp.NO_MASTER)
def bytes_per_weight(policy):
    master = 4 if policy.storage == np.float16 else 0
    return 2 * policy.storage.itemsize + master + 2 * policy.state.itemsize


# %% bytes_per_weight: bytes_per_weight(mp.PURE_FP16)
def bytes_per_weight(policy):
    master = 4 if policy.master and policy.storage != np.float32 else 0
    return 2 * policy.storage.itemsize + master + 2 * 4
