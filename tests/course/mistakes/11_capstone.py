# Typical mistakes, as students make them. After the exercise's name: what the message must say.


# %% diagnoses: Which op makes the first infinity
diagnoses = {1: "zeros", 2: "updates", 3: "statistics", 4: "input", 5: "clipping"}


# %% diagnoses: expected one of zeros, updates
diagnoses = {1: "no loss scale", 2: "updates", 3: "input", 4: "statistics", 5: "clipping"}


# %% diagnoses: expected a dictionary
diagnoses = ["zeros", "updates", "input", "statistics", "clipping"]


# %% mended_1: Stay in FP16
def mended_1(x, y, steps):
    mp.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16))
    optimizer = optim.Adam(model.parameters(), lr=0.01, eps=1e-16)
    losses = []
    for inputs, metres in batches(x, y, steps):
        loss = ops.mse_loss(model(inputs.float()) * 1e-4, metres)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# %% mended_1: What becomes of its gradients
def mended_1(x, y, steps):
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16)))
    optimizer = optim.Adam(model.parameters(), lr=0.01, eps=1e-16)
    losses = []
    with mp.use(mp.MIXED):
        for inputs, metres in batches(x, y, steps):
            loss = ops.mse_loss(model(inputs).float() * 1e-4, metres)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


# %% mended_2: no FP32 masters
def mended_2(x, y, steps):
    mp.manual_seed(1)
    model = nn.Linear(64, 1, bias=False)
    model.load_state_dict({"weight": np.full((1, 64), 4.0, np.float32)})
    model = mp.NO_MASTER.cast(model)
    optimizer = optim.Adam(model.parameters(), lr=0.001)
    losses = []
    with mp.use(mp.NO_MASTER):
        for inputs, target in batches(x, y, steps):
            loss = ops.mse_loss(model(inputs).float(), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


# %% mended_2: expected one per batch
def mended_2(x, y, steps):
    mp.manual_seed(1)
    model = nn.Linear(64, 1, bias=False)
    model.load_state_dict({"weight": np.full((1, 64), 4.0, np.float32)})
    model = mp.MIXED.cast(model)
    optimizer = optim.Adam(model.parameters(), lr=0.001)
    losses = []
    with mp.use(mp.MIXED):
        for inputs, target in batches(x, y, steps):
            for _ in range(2):
                loss = ops.mse_loss(model(inputs).float(), target)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


# %% mended_3: trains by Adam with lr=0.0001, the patient by Adam with lr=0.01
def mended_3(x, y, steps):
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.Adam(model.parameters(), lr=0.0001)
    scaler = optim.DynamicLossScaler(1.0, max_nonfinite_losses=10**6)
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


# %% mended_3: expected 80 losses
def mended_3(x, y, steps):
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    losses = []
    with mp.use(mp.MIXED):
        for pixels, labels in batches(x / 255, y, steps):
            loss = ops.cross_entropy(model(ops.square(pixels)), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses[-1]


# %% mended_4: the last losses of mended_4
def mended_4(x, y, steps):
    def normalised(x):
        mean = ops.mean(x, 1, keepdim=True)
        variance = ops.mean(x * x, 1, keepdim=True) - mean * mean
        return (x - mean) / ops.sqrt(variance + 1.0)

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


# %% mended_4: parameters; the patient has
def mended_4(x, y, steps):
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    losses = []
    with mp.use(mp.MIXED):
        for spectra, labels in batches(x, y, steps):
            loss = ops.cross_entropy(model(spectra), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


# %% mended_5: your code raises RuntimeError: clip_grad_norm_
def mended_5(x, y, steps):
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    scaler = optim.DynamicLossScaler(2.0**12)
    losses = []
    with mp.use(mp.MIXED):
        for inputs, labels in batches(x, y, steps):
            loss = ops.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            optim.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


# %% mended_5: Compare the size of its gradients
def mended_5(x, y, steps):
    mp.manual_seed(1)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    scaler = optim.StaticLossScaler(2.0**8)
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
