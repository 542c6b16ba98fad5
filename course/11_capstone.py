# %% [markdown]
# # 11. Capstone: five models that do not learn
#
# *Two times 50 minutes.*
#
# **Five programs run in FP16 without an error message, and learn nothing. What is wrong with each?**
#
# - **You know** lessons 4 to 7.
# - **You do**: ask the audit what five trainings lose, find the illness of each, and mend it with the smallest change,
#   in FP16.
# - **You can then** tell zeros, lost updates, infinities and wrong norms apart in a training of your own.
#
# MPT is the paper [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), NVG is NVIDIA's guide *Training with
# Mixed Precision*.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops, optim
from tinymp.course import check

# %%
import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 150  # of each training; on a slow machine 100 show the same

# %% [markdown]
# ## The patients
#
# Each is a function of data and a number of steps. It builds a small network, trains it in FP16 and returns the loss
# of every step. Each has one fault. Read them, but do not look for the faults too long: that is the work of an
# instrument.
#
# All use the same batches.


# %%
def batches(x, y, steps, size=32):
    generator = np.random.default_rng(0)
    for _ in range(steps):
        rows = generator.integers(0, len(x), size)
        yield mp.MIXED.cast(mp.tensor(x[rows])), mp.tensor(y[rows])


def patient_1(x, y, steps):
    """A regression: 16 displacements, in metres, from 64 sensors."""
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16)))
    optimizer = optim.Adam(model.parameters(), lr=0.01, eps=1e-16)
    losses = []
    with mp.use(mp.MIXED):
        for inputs, metres in batches(x, y, steps):
            loss = ops.mse_loss(model(inputs).float() * 1e-4, metres)  # the network works in tenths of a millimetre
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def patient_2(x, y, steps):
    """64 coefficients are known to be near 4, and are to be found exactly."""
    mp.manual_seed(1)
    model = nn.Linear(64, 1, bias=False)
    model.load_state_dict({"weight": np.full((1, 64), 4.0, np.float32)})
    policy = mp.NO_MASTER
    model = policy.cast(model)
    optimizer = optim.Adam(model.parameters(), lr=0.001)
    scaler = optim.DynamicLossScaler(2.0**10)
    losses = []
    with mp.use(policy):
        for inputs, target in batches(x, y, steps):
            loss = ops.mse_loss(model(inputs).float(), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def patient_3(x, y, steps):
    """Four classes of pictures with pixels from 0 to 255; the network is given their squares."""
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scaler = optim.DynamicLossScaler(max_nonfinite_losses=10**6)
    losses = []
    with mp.use(mp.MIXED):
        for pixels, labels in batches(x, y, steps):
            loss = ops.cross_entropy(model(ops.square(pixels)), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def normalised(x):
    """Each row with mean 0 and variance 1."""
    mean = ops.mean(x, 1, keepdim=True)
    variance = ops.mean(x * x, 1, keepdim=True) - mean * mean
    return (x - mean) / ops.sqrt(variance + 1e-3)


def patient_4(x, y, steps):
    """Four classes of spectra. A row is normalised first, as its lamp may be brighter or darker."""
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scaler = optim.DynamicLossScaler(max_nonfinite_losses=10**6)
    losses = []
    with mp.use(mp.MIXED):
        for spectra, labels in batches(x, y, steps):
            loss = ops.cross_entropy(model(normalised(spectra)), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def patient_5(x, y, steps):
    """Four classes. Gradients with a norm above 1 are made smaller."""
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    scaler = optim.DynamicLossScaler(2.0**12)
    losses = []
    with mp.use(mp.MIXED):
        for inputs, labels in batches(x, y, steps):
            loss = ops.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            norm = np.sqrt(sum(np.sum(np.square(p.grad.array, dtype=np.float32)) for p in model.parameters()))
            for p in model.parameters():
                p.grad = p.grad.array * np.float16(min(1.0, 1.0 / float(norm)))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


# %% [markdown]
# Their data:


# %%
def classes(generator, lowest, highest):
    """512 rows of 64 numbers between lowest and highest, in four classes: (x, y)."""
    centres = generator.uniform(0, 1, (4, 64))
    labels = generator.integers(0, 4, 512)
    x = np.clip(centres[labels] + 0.15 * generator.normal(size=(512, 64)), 0, 1)
    return (lowest + (highest - lowest) * x).astype(np.float32), labels


def cases(generator):
    """{number of a patient: (x, y)}."""
    sensors = generator.normal(size=(512, 64)).astype(np.float32)
    metres = 1e-4 * np.tanh(sensors @ generator.normal(size=(64, 16)) / 4)
    coefficients = 4 + generator.uniform(-0.12, 0.12, (64, 1))
    return {
        1: (sensors, metres.astype(np.float32)),
        2: (sensors, (sensors @ coefficients).astype(np.float32)),
        3: classes(generator, 0, 255),
        4: classes(generator, 300, 310),
        5: classes(generator, 0, 1),
    }


data = cases(np.random.default_rng(0))
patients = {1: patient_1, 2: patient_2, 3: patient_3, 4: patient_4, 5: patient_5}

figure, panels = plt.subplots(1, 5, figsize=(12, 2.4))
for (number, patient), axes in zip(patients.items(), panels):
    losses = np.array(patient(*data[number], STEPS))
    axes.plot(losses / losses[0])
    axes.set(title=f"patient {number}", xlabel="step", xlim=(0, STEPS), ylim=(0, 1.5))
    if len(bad := np.flatnonzero(~np.isfinite(losses))):
        axes.text(0.5, 0.2, f"not finite\nfrom step {bad[0]} on", transform=axes.transAxes, ha="center")
panels[0].set(ylabel="loss / first loss")
# %% [markdown]
# ## 1. Ask the audit
#
# `with mp.audit() as a:` around a training, then `print(a)`. Its first lines say what loses most. Ask about all five.
# Look at more where it helps: `a.updates`, `a.scale`, `a.crash`, `a.histograms.draw(axes, role="weight gradient")`.

# %%
with mp.audit() as a:
    patient_1(*data[1], 30)
print(a)

# %% [markdown]
# Now the others, in cells of your own. Then say what each has. Each illness is used once:
#
# - `"zeros"`: gradients are too small for FP16 and become zero
# - `"updates"`: updates are smaller than half the distance from a weight to its neighbour
# - `"input"`: the input is so large that an activation overflows
# - `"statistics"`: a sum or a mean of squares overflows, or keeps no digit
# - `"clipping"`: gradients are clipped while they still carry the loss scale

# %% exercise
diagnoses = {1: "zeros", 2: "updates", 3: "input", 4: "statistics", 5: "clipping"}  # SOLUTION

# %%
check(diagnoses=diagnoses)

# %% check
import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.course.checking import expect

_NAMES = {1: "zeros", 2: "updates", 3: "input", 4: "statistics", 5: "clipping"}
_HINTS = {
    1: "What becomes of its gradients? Draw a.histograms.",
    2: "Do its weights change at all? Ask a.updates.",
    3: "Which op makes the first infinity, and how large are the numbers that it reads? Ask a.crash.",
    4: "Which op makes the first number that is not finite? Its input is not large. Ask a.crash.",
    5: "Compare the size of its gradients with its loss scale, and with 1.",
}


def check_diagnoses(diagnoses, random):
    form = 'expected a dictionary {1: "...", 2: "...", 3: "...", 4: "...", 5: "..."}'
    expect(isinstance(diagnoses, dict) and set(diagnoses) == set(_NAMES), f"{form}, got {diagnoses!r:.80}")
    for number, name in diagnoses.items():
        known = ", ".join(_NAMES.values())
        expect(name in _NAMES.values(), f"patient {number} has {name!r:.40}: expected one of {known}")
    for number, name in diagnoses.items():
        expect(name == _NAMES[number], f"patient {number} has something else than {name!r}. {_HINTS[number]}")


# %% [markdown]
# ## 2. Mend them
#
# Copy a patient into the cell, give it its new name, and mend it: with the smallest change that lets it learn as it
# would in FP32. It must stay what it is: the same network from the same seed, the same batches and optimizer,
# **products of FP16 numbers, FP32 masters, one step per batch**. Going back to FP32 cures everything, and wins
# nothing.
#
# Patient 1:


# %% exercise
def mended_1(x, y, steps):
    """As patient_1, but it learns. Returns the loss of every step."""
    # SOLUTION
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16)))
    optimizer = optim.Adam(model.parameters(), lr=0.01, eps=1e-16)
    scaler = optim.DynamicLossScaler()
    losses = []
    with mp.use(mp.MIXED):
        for inputs, metres in batches(x, y, steps):
            loss = ops.mse_loss(model(inputs).float() * 1e-4, metres)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses
    # END


# %%
check(mended_1)


# %% check
class _Listener(mp.Observer):
    """A training: the dtypes of its products, its first input, its optimizer and the way of each update."""

    def __init__(self):
        self.products, self.steps, self.skipped, self.parameters, self.masters = set(), 0, 0, 0, True
        self.inputs, self.optimizer, self.ways, self.before = None, None, [], None

    def product(self, a, b, accumulate):
        if self.inputs is None:
            self.inputs = next((one.astype(np.float64) for one in (a, b) if one.shape == (32, 64)), None)
        narrow = a if a.dtype == np.float16 else b  # a gradient is widened once for the products that read it
        self.products.add(str(narrow.dtype))

    def stepped(self, optimizer, result):
        self.steps, self.skipped = self.steps + 1, self.skipped + (not result)
        parameters = list(optimizer.parameters())
        self.parameters, self.optimizer = sum(p.array.size for p in parameters), optimizer
        after = np.concatenate([p.master.ravel().astype(np.float64) for p in parameters])
        if result and self.before is not None:
            self.ways.append(float(np.linalg.norm(after - self.before)))
        self.before = after
        self.masters = self.masters and all(p.master_nbytes for p in parameters)


def _batches(x, y, steps):
    generator = np.random.default_rng(0)
    for _ in range(steps):
        rows = generator.integers(0, len(x), 32)
        yield mp.tensor(x[rows]), mp.tensor(y[rows])


def _in_fp32(layers, optimizer, loss_of, x, y, steps):
    """The losses of a training in FP32, which has none of the illnesses."""
    mp.manual_seed(1)
    model = nn.Sequential(*layers())
    rule, losses = optimizer(model.parameters()), []
    for inputs, target in _batches(x, y, steps):
        loss = loss_of(model, inputs, target)
        loss.backward()
        rule.step()
        rule.zero_grad()
        losses.append(loss.item())
    return losses, sum(p.array.size for p in model.parameters())


def _four():
    return nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)


def _cases(random):
    def classes(lowest, highest):
        centres, labels = random.uniform(0, 1, (4, 64)), random.integers(0, 4, 256)
        x = np.clip(centres[labels] + 0.15 * random.normal(size=(256, 64)), 0, 1)
        return (lowest + (highest - lowest) * x).astype(np.float32), labels

    sensors = random.normal(size=(256, 64)).astype(np.float32)
    metres = 1e-4 * np.tanh(sensors @ random.normal(size=(64, 16)) / 4)
    coefficients = 4 + random.uniform(-0.12, 0.12, (64, 1))
    return {
        1: (sensors, metres.astype(np.float32)),
        2: (sensors, (sensors @ coefficients).astype(np.float32)),
        3: classes(0, 255),
        4: classes(300, 310),
        5: classes(0, 1),
    }


def _known():
    model = [nn.Linear(64, 1, bias=False)]
    model[0].load_state_dict({"weight": np.full((1, 64), 4.0, np.float32)})
    return model


def _adam(lr, eps=1e-8):
    return lambda parameters: optim.Adam(parameters, lr=lr, eps=eps)


def _clipped(parameters):
    parameters = list(parameters)
    rule = optim.SGD(parameters, lr=0.5)
    step = rule.step
    rule.step = lambda: (optim.clip_grad_norm_(parameters, 1.0), step())
    return rule


def _entropy(prepare):
    return lambda model, x, y: ops.cross_entropy(model(prepare(x)), y)


# number -> layers, optimizer, loss: the healthy training
_HEALTHY = {
    1: (
        lambda: (nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16)),
        _adam(0.01, 1e-16),
        lambda model, x, y: ops.mse_loss(model(x) * 1e-4, y),
    ),
    2: (_known, _adam(0.001), lambda model, x, y: ops.mse_loss(model(x), y)),
    3: (_four, _adam(0.01), _entropy(lambda x: ops.square(x / 255))),
    4: (_four, _adam(0.01), _entropy(lambda x: ops.layer_norm(x, (64,)))),
    5: (_four, _clipped, _entropy(lambda x: x)),
}
_WELL = {}


def _well(number, x, y):
    """The result of _in_fp32 for a patient, computed once for each x."""
    if (key := (number, x.tobytes())) not in _WELL:
        _WELL[key] = _in_fp32(*_HEALTHY[number], x, y, _STEPS)
    return _WELL[key]


def _reads(number, seen, x):
    """The first layer must see the patient's input: x, or squares (scaled at will, 3), or normalised rows (4)."""
    if seen is None:
        return False
    if number == 3:
        return np.corrcoef(seen.ravel(), np.square(x).ravel())[0, 1] > 0.998
    if number == 4:  # FP16 numbers near 300 are a quarter apart
        return np.abs(seen - (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)).max() < 0.2
    return np.allclose(seen, x, 0.01, 0.01)


_STEPS = 80


def _mended(number, mended, random):
    x, y = _cases(random)[number]
    call = f"mended_{number}(x, y, {_STEPS})"
    listener = _Listener()
    with mp.observe(listener):
        losses = mended(x.copy(), y.copy(), _STEPS)
    expect(
        isinstance(losses, list) and len(losses) == _STEPS, f"{call} returns {losses!r:.40}, expected {_STEPS} losses."
    )
    healthy, size = _well(number, x, y)
    expect(
        listener.steps == _STEPS, f"{call} made {listener.steps} updates (skipped ones too), expected one per batch."
    )
    expect(listener.parameters == size, f"{call} trains {listener.parameters} parameters; the patient has {size}.")
    kind = _HEALTHY[number][1]([nn.Parameter(np.zeros(1, np.float32))])
    lr = listener.optimizer.param_groups[0]["lr"]
    want = f"{type(kind).__name__} with lr={kind.param_groups[0]['lr']}"
    got = f"{type(listener.optimizer).__name__} with lr={lr}"
    expect(got == want, f"{call} trains by {got}, the patient by {want}.")
    hint = "Stay in FP16: policy.cast the model and the inputs."
    expect(
        listener.products == {"float16"}, f"{call} multiplies {' and '.join(sorted(listener.products))} numbers. {hint}"
    )
    hint = "FP16 weights alone do not notice small updates."
    expect(listener.masters, f"{call} has no FP32 masters. {hint}")
    expect(np.isfinite(losses[-10:]).all(), f"the last losses of {call} are {losses[-1]}. {_HINTS[number]}")
    rows = np.random.default_rng(0).integers(0, len(x), 32)
    what = {3: "squares of the pixels", 4: "normalised rows"}.get(number, "x as it is")
    good = _reads(number, listener.inputs, x[rows].astype(np.float64))
    expect(good, f"the network of {call} must read what the patient's reads: {what}.")
    near = number == 3 or abs(losses[0] - healthy[0]) < 0.02 * healthy[0]  # patient 3 may scale its input
    expect(
        near, f"the first loss of {call} is {losses[0]:.3g}, expected {healthy[0]:.3g}: change neither seed nor loss."
    )
    hint = "Clip in every step, the gradients of all parameters together, after unscale_."
    long = max(listener.ways, default=0.0) / lr
    expect(
        number != 5 or long < 1.02, f"in {call} an update used gradients of norm {long:.3g}, expected 1 at most. {hint}"
    )
    begin, end, good = float(np.mean(healthy[:3])), float(np.mean(losses[-10:])), float(np.mean(healthy[-10:]))
    text = f"{call} ends at a loss of {end:.3g}; in FP32 it is {good:.3g}, and {begin:.3g} at first."
    expect(end < good + 0.15 * (begin - good), f"{text} {_HINTS[number]}")
    expect(
        listener.skipped <= _STEPS // 4,
        f"{call} skipped {listener.skipped} of {_STEPS} steps: begin with a smaller scale.",
    )


def check_mended_1(mended_1, random):
    _mended(1, mended_1, random)


# %% [markdown]
# Patient 2:


# %% exercise
def mended_2(x, y, steps):
    """As patient_2, but it learns. Returns the loss of every step."""
    # SOLUTION
    mp.manual_seed(1)
    model = nn.Linear(64, 1, bias=False)
    model.load_state_dict({"weight": np.full((1, 64), 4.0, np.float32)})
    policy = mp.MIXED
    model = policy.cast(model)
    optimizer = optim.Adam(model.parameters(), lr=0.001)
    scaler = optim.DynamicLossScaler(2.0**10)
    losses = []
    with mp.use(policy):
        for inputs, target in batches(x, y, steps):
            loss = ops.mse_loss(model(inputs).float(), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses
    # END


# %%
check(mended_2)


# %% check
def check_mended_2(mended_2, random):
    _mended(2, mended_2, random)


# %% [markdown]
# Patient 3:


# %% exercise
def mended_3(x, y, steps):
    """As patient_3, but it learns. Returns the loss of every step."""
    # SOLUTION
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scaler = optim.DynamicLossScaler()
    losses = []
    with mp.use(mp.MIXED):
        for pixels, labels in batches(x / 255, y, steps):
            loss = ops.cross_entropy(model(ops.square(pixels)), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses
    # END


# %%
check(mended_3)


# %% check
def check_mended_3(mended_3, random):
    _mended(3, mended_3, random)


# %% [markdown]
# Patient 4. It has a function beside it, `normalised`: you may write another one, or use what tinymp has.


# %% exercise
def mended_4(x, y, steps):
    """As patient_4, but it learns. Returns the loss of every step."""
    # SOLUTION
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scaler = optim.DynamicLossScaler()
    losses = []
    with mp.use(mp.MIXED):
        for spectra, labels in batches(x, y, steps):
            loss = ops.cross_entropy(model(ops.layer_norm(spectra, (64,))), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses
    # END


# %%
check(mended_4)


# %% check
def check_mended_4(mended_4, random):
    _mended(4, mended_4, random)


# %% [markdown]
# Patient 5:


# %% exercise
def mended_5(x, y, steps):
    """As patient_5, but it learns. Returns the loss of every step."""
    # SOLUTION
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    scaler = optim.DynamicLossScaler(2.0**12)
    losses = []
    with mp.use(mp.MIXED):
        for inputs, labels in batches(x, y, steps):
            loss = ops.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses
    # END


# %%
check(mended_5)


# %% check
def check_mended_5(mended_5, random):
    _mended(5, mended_5, random)


# %% [markdown]
# ## 3. Before and after

# %%
mended = {1: mended_1, 2: mended_2, 3: mended_3, 4: mended_4, 5: mended_5}
figure, panels = plt.subplots(1, 5, figsize=(12, 2.4))
for (number, patient), axes in zip(patients.items(), panels):
    sick, well = (np.array(train(*data[number], STEPS)) for train in (patient, mended[number]))
    axes.plot(sick / well[0], color="0.6", linewidth=4, label="before")
    axes.plot(well / well[0], label="mended")
    axes.set(title=f"patient {number}", xlabel="step", xlim=(0, STEPS), ylim=(0, 1.5))
panels[0].set(ylabel="loss / first loss")
panels[0].legend()

# %% [markdown]
# ## What to remember
#
# - A model that does not learn in FP16 rarely says why. An infinity is loud; a zero, a lost update and a wrong order
#   are silent.
# - Ask in this order: is anything infinite or NaN (where first)? Do gradients become zero (which scale would save
#   them)? Do the updates change the weights (is there a master)? Does anything look at gradients that still carry the
#   scale?
# - The cure is one line in four of five. It is never "everything in FP32".
#
# ## To think about
#
# 1. Which of the five would BF16 have cured, and which would it have made worse?
# 2. Patients 3 and 4 end in NaN. Why did the dynamic scale not help them?
# 3. Take a program of your own. What does the audit say of it?
