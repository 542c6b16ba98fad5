# Typical mistakes, as students make them. After the exercise's name: what the message must say.

# %% lost: neither lost nor counted
def lost(gradients, scale):
    return np.mean((gradients * scale).astype(np.float16) == 0)


# %% lost: Multiply first
def lost(gradients, scale):
    alive = gradients[gradients != 0]
    return float(np.mean(alive.astype(np.float16) * scale == 0)) if alive.size else 0.0


# %% lost: Negative gradients
def lost(gradients, scale):
    alive = gradients[gradients != 0]
    return float(np.mean(np.abs(alive) * scale < 2.0**-24)) if alive.size else 0.0


# %% lost: nothing to lose
def lost(gradients, scale):
    alive = gradients[gradients != 0]
    return 1 - np.count_nonzero((alive * np.float32(scale)).astype(np.float16)) / alive.size


# %% best_scale: negative
def best_scale(gradients):
    return 2.0 ** np.floor(np.log2(65504 / gradients.max()))


# %% best_scale: below 65504
def best_scale(gradients):
    return 2.0 ** np.floor(np.log2(65504 / np.abs(gradients).max()))


# %% scaled_step: Divide each p.grad by S
def scaled_step(model, optimizer, x, scale):
    loss = ops.mse_loss(model(x), x)
    (loss * scale).backward()
    finite = all(np.isfinite(p.grad.array).all() for p in model.parameters())
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    return loss.item(), finite


# %% scaled_step: not S times the loss
def scaled_step(model, optimizer, x, scale):
    loss = ops.mse_loss(model(x), x) * scale
    loss.backward()
    finite = True
    for p in model.parameters():
        p.grad = p.grad.array.astype(np.float32) / scale
        finite = finite and np.isfinite(p.grad.array).all()
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    return loss.item(), finite


# %% scaled_step: infinite or NaN
def scaled_step(model, optimizer, x, scale):
    loss = ops.mse_loss(model(x), x)
    (loss * scale).backward()
    for p in model.parameters():
        p.grad = p.grad.array.astype(np.float32) / scale
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), True


# %% scaled_step: leaves gradients behind
def scaled_step(model, optimizer, x, scale):
    loss = ops.mse_loss(model(x), x)
    (loss * scale).backward()
    for p in model.parameters():
        p.grad = p.grad.array.astype(np.float32) / scale
    optimizer.step()
    return loss.item(), True


# %% unscaled_and_clipped: Did you clip before you divided
def unscaled_and_clipped(gradients, scale, limit):
    norm = np.sqrt(sum((g.astype(np.float32) ** 2).sum() for g in gradients))
    return [g.astype(np.float32) * np.float32(min(1, limit / norm) / scale) for g in gradients]


# %% unscaled_and_clipped: both arrays together
def unscaled_and_clipped(gradients, scale, limit):
    plain = [g.astype(np.float32) / np.float32(scale) for g in gradients]
    return [g * np.float32(min(1, limit / np.linalg.norm(g))) for g in plain]


# %% unscaled_and_clipped: expected float32
def unscaled_and_clipped(gradients, scale, limit):
    plain = [g / np.float16(scale) for g in gradients]
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in plain))
    return [g * np.float16(min(1, limit / norm)) for g in plain]


# %% DynamicScale: in a row
class DynamicScale:
    def __init__(self, init_scale=2.0**16, interval=2000, max_scale=2.0**24):
        self.scale, self.interval, self.most, self.good = init_scale, interval, max_scale, 0

    def update(self, overflowed):
        if overflowed:
            self.scale = max(self.scale / 2, 1.0)
        else:
            self.good += 1
            if self.good == self.interval:
                self.scale, self.good = min(self.scale * 2, self.most), 0


# %% DynamicScale: begins anew
class DynamicScale:
    def __init__(self, init_scale=2.0**16, interval=2000, max_scale=2.0**24):
        self.scale, self.interval, self.most, self.good = init_scale, interval, max_scale, 0

    def update(self, overflowed):
        self.good = 0 if overflowed else self.good + 1
        if overflowed:
            self.scale = max(self.scale / 2, 1.0)
        elif self.good >= self.interval:
            self.scale = min(self.scale * 2, self.most)


# %% DynamicScale: never falls below 1
class DynamicScale:
    def __init__(self, init_scale=2.0**16, interval=2000, max_scale=2.0**24):
        self.scale, self.interval, self.most, self.good = init_scale, interval, max_scale, 0

    def update(self, overflowed):
        self.good = 0 if overflowed else self.good + 1
        if overflowed:
            self.scale /= 2
        elif self.good == self.interval:
            self.scale, self.good = min(self.scale * 2, self.most), 0


# %% DynamicScale: ceiling
class DynamicScale:
    def __init__(self, init_scale=2.0**16, interval=2000, max_scale=2.0**24):
        self.scale, self.interval, self.most, self.good = init_scale, interval, max_scale, 0

    def update(self, overflowed):
        self.good = 0 if overflowed else self.good + 1
        if overflowed:
            self.scale = max(self.scale / 2, 1.0)
        elif self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0
