# Typical mistakes, as students make them. After the exercise's name: what the message must say.

# %% streams: Column j is stream j
def streams(codes, count, length):
    rows = (len(codes) - 1) // count
    inputs = codes[: rows * count].reshape(rows, count)
    targets = codes[1 : rows * count + 1].reshape(rows, count)
    for i in range(0, rows - length + 1, length):
        yield inputs[i : i + length], targets[i : i + length]


# %% streams: has shape
def streams(codes, count, length):
    rows = (len(codes) - 1) // count
    inputs = codes[: rows * count].reshape(count, rows)
    targets = codes[1 : rows * count + 1].reshape(count, rows)
    for i in range(0, rows - length + 1, length):
        yield inputs[:, i : i + length], targets[:, i : i + length]


# %% streams: A target is the code after its input
def streams(codes, count, length):
    rows = (len(codes) - 1) // count
    inputs = codes[: rows * count].reshape(count, rows).T
    targets = np.roll(inputs, -1, axis=0)
    for i in range(0, rows - length + 1, length):
        yield inputs[i : i + length], targets[i : i + length]


# %% streams: batch that would be shorter
def streams(codes, count, length):
    rows = (len(codes) - 1) // count
    inputs = codes[: rows * count].reshape(count, rows).T
    targets = codes[1 : rows * count + 1].reshape(count, rows).T
    for i in range(0, rows, length):
        yield inputs[i : i + length], targets[i : i + length]


# %% streams: use `yield`
def streams(codes, count, length):
    return None


# %% scale_for_mean: a power of two
def scale_for_mean(p, n):
    return max(1.0, 2.0**-14 * n / p)


# %% scale_for_mean: S is 1, not less
def scale_for_mean(p, n):
    return float(2.0 ** np.ceil(np.log2(2.0**-14 * n / p)))


# %% scale_for_mean: may be equal
def scale_for_mean(p, n):
    scale = 1.0
    while scale * p / n <= 2.0**-14:
        scale *= 2
    return scale


# %% lstm_cell: Your order of the four parts is i, f, o, g
def lstm_cell(x, h, c, weight_ih, weight_hh, bias_ih, bias_hh):
    i, f, o, g = np.split(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh, 4, axis=1)
    i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
    c = f * c + i * np.tanh(g)
    return o * np.tanh(c), c


# %% lstm_cell: h' = o tanh(c')
def lstm_cell(x, h, c, weight_ih, weight_hh, bias_ih, bias_hh):
    i, f, g, o = np.split(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh, 4, axis=1)
    i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
    c = f * c + i * np.tanh(g)
    return o * c, c


# %% lstm_cell: Compare each line
def lstm_cell(x, h, c, weight_ih, weight_hh, bias_ih, bias_hh):
    i, f, g, o = np.split(x @ weight_ih.T + bias_ih + h @ weight_hh.T, 4, axis=1)
    i, f, o = (1 / (1 + np.exp(-z)) for z in (i, f, o))
    c = f * c + i * np.tanh(g)
    return o * np.tanh(c), c


# %% recurrent_step: unscale
def recurrent_step(model, optimizer, scaler, inputs, targets, state, limit):
    loss, state = model.loss(inputs, targets, state)
    scaler.scale(loss).backward()
    norm = optim.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item(), norm.item(), tuple(s.detach() for s in state)


# %% recurrent_step: detach both
def recurrent_step(model, optimizer, scaler, inputs, targets, state, limit):
    loss, state = model.loss(inputs, targets, state)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = optim.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item(), norm.item(), state


# %% recurrent_step: after this piece
def recurrent_step(model, optimizer, scaler, inputs, targets, state, limit):
    loss, state = model.loss(inputs, targets, None)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = optim.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item(), norm.item(), tuple(s.detach() * 0 for s in state)


# %% recurrent_step: without the scale
def recurrent_step(model, optimizer, scaler, inputs, targets, state, limit):
    loss, state = model.loss(inputs, targets, state)
    loss = scaler.scale(loss)
    loss.backward()
    scaler.unscale_(optimizer)
    norm = optim.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item(), norm.item(), tuple(s.detach() for s in state)


# %% recurrent_step: the limit 0.01
def recurrent_step(model, optimizer, scaler, inputs, targets, state, limit):
    loss, state = model.loss(inputs, targets, state)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = np.sqrt(sum(float((p.grad.array**2).sum()) for p in model.parameters()))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.item(), norm, tuple(s.detach() for s in state)


# %% recurrent_step: scaler.update()
def recurrent_step(model, optimizer, scaler, inputs, targets, state, limit):
    loss, state = model.loss(inputs, targets, state)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = optim.clip_grad_norm_(model.parameters(), limit)
    scaler.step(optimizer)
    optimizer.zero_grad()
    return loss.item(), norm.item(), tuple(s.detach() for s in state)


# %% perplexity: as it has predictions
def perplexity(losses, sizes):
    return float(np.exp(np.mean(np.asarray(losses, np.float64))))


# %% perplexity: convert the losses first
def perplexity(losses, sizes):
    total = np.float16(0)
    for loss in np.asarray(losses):
        total = total + loss
    if len(set(sizes)) > 1:
        return float(np.exp(np.dot(losses, sizes) / sum(sizes)))
    return float(np.exp(np.float64(total) / len(sizes)))


# %% perplexity: OverflowError
def perplexity(losses, sizes):
    import math

    losses, sizes = np.asarray(losses, np.float64), np.asarray(sizes, np.float64)
    return math.exp((losses * sizes).sum() / sizes.sum())
