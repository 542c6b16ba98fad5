# Typical mistakes, as students make them. After the exercise's name: what the message must say.


# %% slope: one-sided
def slope(f, x, v, h=2.0**-17):
    return (f(x + h * v) - f(x)) / h


# %% slope: the slope of x**2
def slope(f, x, v, h=2.0**-17):
    return (f(x + h * v) - f(x - h * v)) / h


# %% slope: changes x
def slope(f, x, v, h=2.0**-17):
    x += h * v
    up = f(x)
    x -= 2 * h * v
    return (up - f(x)) / (2 * h)


# %% slope: Twice as long
def slope(f, x, v, h=2.0**-17):
    v = v / np.linalg.norm(v)
    return (f(x + h * v) - f(x - h * v)) / (2 * h)


# %% unbroadcast: put in front
def unbroadcast(g, shape):
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    return g.sum(axis=axes, keepdims=True)


# %% unbroadcast: keep it
def unbroadcast(g, shape):
    while g.ndim > len(shape):
        g = g.sum(axis=0)
    for i, n in enumerate(shape):
        if n == 1 and g.shape[i] != 1:
            g = g.sum(axis=i)
            break
    return g


# %% unbroadcast: axis of length 1 was stretched
def unbroadcast(g, shape):
    while g.ndim > len(shape):
        g = g.sum(axis=0)
    return g


# %% unbroadcast: compared from the right
def unbroadcast(g, shape):
    if g.ndim > len(shape) and g.shape[: len(shape)] == shape:
        return g.sum(axis=tuple(range(len(shape), g.ndim)))
    while g.ndim > len(shape):
        g = g.sum(axis=0)
    return g.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)


# %% mul: times b's value
def mul(a, b):
    return Node(
        a.value * b.value,
        (a, b),
        lambda dy: (unbroadcast(dy * a.value, a.value.shape), unbroadcast(dy * b.value, b.value.shape)),
    )


# %% mul: use unbroadcast
def mul(a, b):
    return Node(a.value * b.value, (a, b), lambda dy: (dy * b.value, dy * a.value))


# %% mul: expected a Node
def mul(a, b):
    return a.value * b.value


# %% matmul: dY @ B.T
def matmul(a, b):
    return Node(a.value @ b.value, (a, b), lambda dy: ((b.value @ dy.T), a.value.T @ dy))


# %% matmul: parents of
def matmul(a, b):
    return Node(a.value @ b.value, (b, a), lambda dy: (a.value.T @ dy, dy @ b.value.T))


# %% relu: Where a > 0
def relu(a):
    return Node(np.maximum(a.value, 0), (a,), lambda dy: (np.maximum(dy, 0),))


# %% relu: and at 0, it is 0
def relu(a):
    return Node(np.maximum(a.value, 0), (a,), lambda dy: (dy * (a.value >= 0),))


# %% relu: expected a tuple of 1
def relu(a):
    return Node(np.maximum(a.value, 0), (a,), lambda dy: dy * (a.value > 0))


# %% topological: made after its parents
def topological(root):
    found, waiting = [root], [root]
    while waiting:
        for parent in waiting.pop(0).parents:
            if parent not in found:
                found.append(parent)
                waiting.append(parent)
    return found


# %% topological: some occur twice
def topological(root):
    found = waiting = [root]
    while waiting:
        waiting = [parent for node in waiting for parent in node.parents]
        found = found + waiting
    return sorted(found, key=lambda node: -node.number)


# %% topological: calls itself too often
def topological(root):
    found = []

    def visit(node):
        if node not in found:
            for parent in node.parents:
                visit(parent)
            found.append(node)

    visit(root)
    return found[::-1]


# %% topological: does not begin with root
def topological(root):
    found, waiting = {root}, [root]
    while waiting:
        for parent in waiting.pop().parents:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return sorted(found, key=lambda node: node.number)


# %% backpropagate: add up
def backpropagate(root):
    root.grad = np.ones_like(root.value)
    for node in topological(root):
        if node.parents:
            for parent, g in zip(node.parents, node.pull(node.grad)):
                parent.grad = g


# %% backpropagate: Forget what the first call left
def backpropagate(root):
    root.grad = np.ones_like(root.value)
    for node in topological(root):
        if node.parents:
            for parent, g in zip(node.parents, node.pull(node.grad)):
                parent.grad = g if parent.grad is None else parent.grad + g


# %% backpropagate: share an array
def backpropagate(root):
    nodes = topological(root)
    for node in nodes:
        node.grad = None
    root.grad = np.ones_like(root.value)
    for node in nodes:
        if node.parents:
            for parent, g in zip(node.parents, node.pull(node.grad)):
                if parent.grad is None:
                    parent.grad = g
                else:
                    parent.grad += g


# %% backpropagate: before it pulls
def backpropagate(root):
    for node in topological(root):
        node.grad = np.zeros_like(node.value)
    root.grad, waiting = np.ones_like(root.value), [root]
    while waiting:
        node = waiting.pop(0)
        if node.parents:
            for parent, g in zip(node.parents, node.pull(node.grad)):
                parent.grad = parent.grad + g
                if parent not in waiting:
                    waiting.append(parent)
