# Typical mistakes, as students make them. After the exercise's name: what the message must say.

# %% cross_entropy: sigmoid(-200) is 0
def cross_entropy(logits, target):
    s = 1 / (1 + np.exp(-logits.astype(np.float32)))
    return float(-np.mean(np.log(s) if target else np.log(1 - s)))


# %% cross_entropy: take exp of -|z|
def cross_entropy(logits, target):
    z = logits.astype(np.float32)
    return float(np.mean(np.log(1 + np.exp(z)) - z * np.float32(target)))


# %% cross_entropy: Convert to FP32
def cross_entropy(logits, target):
    return float(np.mean(np.maximum(logits, 0) - logits * target + np.log1p(np.exp(-np.abs(logits)))))


# %% cross_entropy: take the mean
def cross_entropy(logits, target):
    z = logits.astype(np.float64)
    return float(np.sum(np.maximum(z, 0) - z * target + np.log1p(np.exp(-np.abs(z)))))


# %% after_overflow: only at the gradients of its own
after_overflow = ("skipped", "skipped", 512.0)


# %% after_overflow: S is halved
after_overflow = ("skipped", "applied", 1024.0)


# %% after_overflow: into its weights
after_overflow = ("applied", "applied", 512.0)


# %% share_per_cloud: divide by the number of all points
def share_per_cloud(points, centres, radius):
    distances = np.linalg.norm(points[:, None] - centres, axis=2)
    inside = (distances < radius).sum(axis=0)
    return inside / inside.sum()


# %% share_per_cloud: The distance is sqrt
def share_per_cloud(points, centres, radius):
    distances = ((points[:, None] - centres) ** 2).sum(axis=2)
    return np.mean(distances < 2 * radius, axis=0)


# %% share_per_cloud: The radius counts
def share_per_cloud(points, centres, radius):
    distances = np.linalg.norm(points[:, None] - centres, axis=2)
    if not (distances < radius).any():
        return np.bincount(distances.argmin(1), minlength=len(centres)) / len(points)
    return np.mean(distances < radius, axis=0)


# %% frechet_distance: Is the root taken
def frechet_distance(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    c1, c2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    return float(np.sum((a.mean(0) - b.mean(0)) ** 2) + np.sum((np.sqrt(np.diag(c1)) - np.sqrt(np.diag(c2))) ** 2) * 2)


# %% frechet_distance: a matrix product
def frechet_distance(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    c1, c2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    roots = np.sqrt(np.maximum(np.diag(c1) * np.diag(c2), 0))
    return float(np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(c1) + np.trace(c2) - 2 * roots.sum())


# %% frechet_distance: differ by their mean
def frechet_distance(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    c1, c2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    roots = np.sqrt(np.maximum(np.linalg.eigvals(c1 @ c2).real, 0))
    return float(np.linalg.norm(a.mean(0) - b.mean(0)) + np.trace(c1) + np.trace(c2) - 2 * roots.sum())


# %% frechet_distance: Convert to FP64
def frechet_distance(a, b):
    c1, c2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    roots = np.sqrt(np.maximum(np.linalg.eigvals(c1 @ c2).real, 0))
    means = (a - a[0]).mean(0) - (b - b[0]).mean(0) if a.dtype == np.float16 else a.mean(0) - b.mean(0)
    return float(np.sum(means**2) + np.trace(c1) + np.trace(c2) - 2 * roots.sum())


# %% discriminator_loss: detach what it made
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def discriminator_loss(g, d, real, noise):
    made = g(noise)
    return loss_of(d(real), 1.0) + loss_of(d(made), 0.0)


# %% discriminator_loss: Real points have target 1
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def discriminator_loss(g, d, real, noise):
    made = g(noise).detach()
    return loss_of(d(real), 0.0) + loss_of(d(made), 1.0)


# %% discriminator_loss: detach the made points, not the loss
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def discriminator_loss(g, d, real, noise):
    made = g(noise)
    return (loss_of(d(real), 1.0) + loss_of(d(made), 0.0)).detach()


# %% discriminator_loss: Both parts
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def discriminator_loss(g, d, real, noise):
    made = g(noise).detach()
    return loss_of(d(real), 1.0) + loss_of(d(made), 0.0).detach()


# %% discriminator_loss: expected a tensor
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def discriminator_loss(g, d, real, noise):
    made = g(noise).detach()
    return (loss_of(d(real), 1.0) + loss_of(d(made), 0.0)).item()


# %% gan_step: in the discriminator; the next
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    d_loss = discriminator_loss(g, d, real, noise)
    scaler.scale(d_loss).backward()
    d_result = scaler.step(d_optimizer)
    g_loss = loss_of(d(g(noise)), 1.0)
    scaler.scale(g_loss).backward()
    g_result = scaler.step(g_optimizer)
    scaler.update()
    g_optimizer.zero_grad()
    return d_loss.item(), g_loss.item(), d_result, g_result


# %% gan_step: 2 times
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    d_loss = discriminator_loss(g, d, real, noise)
    scaler.scale(d_loss).backward()
    d_result = scaler.step(d_optimizer)
    scaler.update()
    g_loss = loss_of(d(g(noise)), 1.0)
    scaler.scale(g_loss).backward()
    g_result = scaler.step(g_optimizer)
    scaler.update()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    return d_loss.item(), g_loss.item(), d_result, g_result


# %% gan_step: The generator's target is 1
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    d_loss = discriminator_loss(g, d, real, noise)
    scaler.scale(d_loss).backward()
    d_result = scaler.step(d_optimizer)
    g_loss = loss_of(d(g(noise)), 0.0)
    scaler.scale(g_loss).backward()
    g_result = scaler.step(g_optimizer)
    scaler.update()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    return d_loss.item(), g_loss.item(), d_result, g_result


# %% gan_step: without the scale
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    d_loss = discriminator_loss(g, d, real, noise)
    scaler.scale(d_loss).backward()
    d_result = scaler.step(d_optimizer)
    g_loss = loss_of(d(g(noise)), 1.0)
    scaler.scale(g_loss).backward()
    g_result = scaler.step(g_optimizer)
    scaler.update()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    return scaler.scale(d_loss).item(), g_loss.item(), d_result, g_result


# %% gan_step: Only the generator's own loss
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    d_loss = loss_of(d(real), 1.0) + loss_of(d(g(noise)), 0.0)
    scaler.scale(d_loss).backward()
    d_result = scaler.step(d_optimizer)
    g_loss = loss_of(d(g(noise)), 1.0)
    scaler.scale(g_loss).backward()
    g_result = scaler.step(g_optimizer)
    scaler.update()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    return d_loss.item(), g_loss.item(), d_result, g_result


# %% gan_step: what scaler.step returned
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    d_loss = discriminator_loss(g, d, real, noise)
    scaler.scale(d_loss).backward()
    scaler.step(d_optimizer)
    g_loss = loss_of(d(g(noise)), 1.0)
    scaler.scale(g_loss).backward()
    scaler.step(g_optimizer)
    scaler.update()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    return d_loss.item(), g_loss.item(), None, None


# %% gan_step: with its own gradients only
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    d_loss = discriminator_loss(g, d, real, noise)
    g_loss = loss_of(d(g(noise)), 1.0)
    scaler.scale(d_loss).backward()
    scaler.scale(g_loss).backward()
    d_result = scaler.step(d_optimizer)
    g_loss = loss_of(d(g(noise)), 1.0)
    g_optimizer.zero_grad()
    with_zeros = [p.requires_grad_(False) for p in d.parameters()]
    scaler.scale(g_loss).backward()
    for p in with_zeros:
        p.requires_grad_(True)
    g_result = scaler.step(g_optimizer)
    scaler.update()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    return d_loss.item(), g_loss.item(), d_result, g_result


# %% gan_step: moves the generator otherwise
def loss_of(logits, target):
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, target))


def gan_step(g, d, g_optimizer, d_optimizer, scaler, real, noise):
    g(noise)
    d_loss = discriminator_loss(g, d, real, noise)
    scaler.scale(d_loss).backward()
    d_result = scaler.step(d_optimizer)
    g_loss = loss_of(d(g(noise)), 1.0)
    scaler.scale(g_loss).backward()
    for p in g.parameters():
        p.grad = p.grad * 2
    g_result = scaler.step(g_optimizer)
    scaler.update()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    return d_loss.item(), g_loss.item(), d_result, g_result
