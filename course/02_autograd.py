# %% [markdown]
# # 2. An autograd in 80 lines
#
# *50 minutes.*
#
# **A network has a million weights. Training needs the slope of the loss along each of them. How can one walk
# backward find all of them at once?**
#
# - **You know** NumPy, the chain rule, and matrix products.
# - **You do**: measure a slope without any theory; write an autograd: nodes, their local rules, the order, the sum.
# - **You can then** train a network with it, and read tinymp's own, `tinymp/autograd.py`.
#
# On Colab, first upload the wheel and run `!INSTALL`.

# %%
import tinymp as mp  # before NumPy: it chooses how products are computed
from tinymp import nn, ops
from tinymp.course import check

# %%
import itertools
import time

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tinymp.course.lesson")
STEPS = 250  # of each training; on a slow machine 100 show the same

# %% [markdown]
# ## The question, in a picture
#
# There is a simple way to find a slope: move one weight a little, and compute the loss again. With n weights that
# takes n + 1 forward passes. The other way is tinymp's `backward()`. How long do both take for small networks?


# %%
def seconds(width, how):
    mp.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))
    x = mp.randn(16, 8)
    weights = [p.array for p in model.parameters()]
    start = time.perf_counter()
    if how == "backward":
        ops.mean(model(x) ** 2).backward()
    else:
        with mp.no_grad():
            for w in weights:
                for i in np.ndindex(w.shape):
                    w[i] += 0.001
                    ops.mean(model(x) ** 2)
                    w[i] -= 0.001
    return time.perf_counter() - start, sum(w.size for w in weights)


figure, axes = plt.subplots()
for how in ("one weight after the other", "backward"):
    found = [min(seconds(width, how) for _ in range(2)) for width in (2, 4, 8, 16, 32)]
    axes.plot([n for _, n in found], [1000 * t for t, _ in found], "o-", label=how)
axes.set(xlabel="weights", ylabel="milliseconds", yscale="log", title="The time to find all slopes")
axes.set_xscale("log", base=2)
axes.legend()

# %% [markdown]
# The upper line grows with the number of weights. The lower one hardly moves. But the simple way is honest: it needs no
# theory. So we write it first, to check everything else with it.

# %% [markdown]
# ## 1. A slope, measured
#
# Move from x along a direction v, a little forward and a little back. The slope is the difference of the two values
# over the distance between them:
#
# (f(x + h v) − f(x − h v)) / (2 h)
#
# This *central difference* is wrong by about h²: the function bends. If h is too small, the two values are nearly
# equal, and their difference is made of rounding errors (lesson 1). In float64 h = 2⁻¹⁷ lies between, and gives 10
# digits. In FP16 there would be no such h.


# %% exercise
def slope(f, x, v, h=2.0**-17):
    """The slope of f at x along v, by a central difference, as a float.

    f: a function of an array that returns one number. x, v: float64 arrays of one shape. x must not change.
    """
    # SOLUTION
    return float((f(x + h * v) - f(x - h * v)) / (2 * h))
    # END


# %%
check(slope)

# %% check
import itertools

import numpy as np

import tinymp as mp
from tinymp.course.checking import close, expect, short


def check_slope(slope, random):
    close(
        slope(lambda x: x[0] ** 2, np.array([3.0]), np.array([1.0])),
        6,
        "the slope of x**2 at 3",
        rtol=1e-4,
        hint="(f(x + h v) - f(x - h v)) / (2 h).",
    )
    hint = "Twice as long a direction has twice the slope."
    close(slope(lambda x: 5 * x[0], np.array([3.0]), np.array([2.0])), 10, "the slope of 5x along 2", 1e-6, hint=hint)
    a, x, v = (random.uniform(1, 2, (2, 3)) for _ in range(3))
    h, before = 2.0 ** -int(random.integers(2, 6)), x.copy()
    got = slope(lambda x: float((a * x**3).sum()), x, v, h)
    want = (a * (3 * x**2 * v + h**2 * v**3)).sum()  # what a central difference of a cubic is, exactly
    one_sided = want + (a * 3 * x * v**2).sum() * h
    hint = "Is it over 2 h?"
    if abs(got - one_sided) < 1e-6 * one_sided:
        hint = "That is the one-sided difference."
    elif abs(got - (a * 3 * x**2 * v).sum()) < 1e-6 * want:
        hint = "Take the step h that was given."
    expect(np.array_equal(x, before), "slope(f, x, v) changes x. Do not write into it: x + h * v makes a new array.")
    close(got, want, f"slope(f, x, v, h={h!r}) of a sum of cubes", rtol=1e-8, hint=hint)


# %% [markdown]
# ## 2. Nodes
#
# A program that computes a loss is a *graph*: each value is made from others. We let each value, a *node*, remember
# which. A node also knows its local rule, `pull`: given the slope of the loss along its own value, `dy`, it tells the
# slopes along its parents' values. For z = a + b both are dy.

# %%
numbers = itertools.count()


class Node:
    """A value, and where it came from.

    value    a float64 array
    parents  the nodes that it was made from
    pull     a function of dy, an array of value's shape: a tuple, per parent an array of that parent's shape
    number   1, 2, 3, ... in the order in which nodes were made
    grad     the slope of the loss along value, once somebody has found it
    """

    def __init__(self, value, parents=(), pull=None):
        self.value = np.asarray(value, dtype=np.float64)
        self.parents = parents
        self.pull = pull
        self.number = next(numbers)
        self.grad = None


# %% [markdown]
# There is one difficulty. NumPy *broadcasts*: a bias of shape (16,) plus a matrix (200, 16) is added to each of the 200
# rows. So each number of the bias was used 200 times, and its slope is the **sum** of 200 slopes. NumPy may put axes in
# front like this, and it may stretch an axis of length 1, (200, 1) to (200, 16).


# %% exercise
def unbroadcast(g, shape):
    """g, summed over the axes along which an array of this shape was broadcast; an array of this shape.

    g: a float64 array, to whose shape `shape` broadcasts. () is also a shape.
    """
    # SOLUTION
    lead = g.ndim - len(shape)
    axes = tuple(i for i, n in enumerate(g.shape) if i < lead or shape[i - lead] != n)
    return g.sum(axis=axes, keepdims=True).reshape(shape)
    # END


# %%
check(unbroadcast)


# %% check
def check_unbroadcast(unbroadcast, random):
    n, m = int(random.integers(2, 5)), int(random.integers(5, 8))
    cases = [
        ((n, m), (n, m), "Nothing was broadcast."),
        ((n, m), (m,), "An axis was put in front: sum over it."),
        ((n, m), (n, 1), "An axis of length 1 was stretched: sum over it, but keep it (keepdims=True)."),
        ((n, m), (1, m), "An axis of length 1 was stretched: sum over it, but keep it (keepdims=True)."),
        ((n, m), (), "One number was used everywhere: the sum of all."),
        ((n, m), (1,), "One axis in front, and one of length 1."),
        ((n, n), (n,), "An axis was put in front: shapes are compared from the right."),
        ((2, n, m), (n, 1), "One axis in front, and one of length 1."),
        ((n, 1), (n, 1), "An axis of length 1 that was not stretched: nothing to sum."),
        ((), (), "Nothing was broadcast."),
    ]
    for large, small, hint in cases:
        g = random.integers(-9, 9, large).astype(np.float64)
        want, at = np.zeros(small), np.broadcast_to(np.arange(int(np.prod(small))).reshape(small), large)
        np.add.at(want.reshape(-1), at.ravel(), g.ravel())
        close(unbroadcast(g, small), want, f"unbroadcast(g of shape {large}, {small})", rtol=1e-12, hint=hint)


# %%
def add(a, b):
    return Node(a.value + b.value, (a, b), lambda dy: (unbroadcast(dy, a.value.shape), unbroadcast(dy, b.value.shape)))


def total(a):
    """The sum of all numbers of a."""
    return Node(a.value.sum(), (a,), lambda dy: (np.full(a.value.shape, dy),))


# %% [markdown]
# ## 3. Three more rules
#
# `add` and `total` are done. A network also needs these:
#
# | op | value | slope along a | slope along b |
# |---|---|---|---|
# | mul | a b, number by number | dy b | dy a |
# | matmul | A B | dY Bᵀ | Aᵀ dY |
# | relu | a where a > 0, else 0 | dy where a > 0, else 0 | |


# %% exercise
def mul(a, b):
    """The node of a.value * b.value. Shapes may broadcast; a and b may be the same node."""

    # SOLUTION
    def pull(dy):
        return unbroadcast(dy * b.value, a.value.shape), unbroadcast(dy * a.value, b.value.shape)

    return Node(a.value * b.value, (a, b), pull)
    # END


def matmul(a, b):
    """The node of a.value @ b.value. Both have two axes: (n, k) and (k, m)."""
    # SOLUTION
    return Node(a.value @ b.value, (a, b), lambda dy: (dy @ b.value.T, a.value.T @ dy))
    # END


def relu(a):
    """The node of a.value where that is above 0, and 0 elsewhere. At 0 the slope is 0."""
    # SOLUTION
    return Node(np.maximum(a.value, 0), (a,), lambda dy: (dy * (a.value > 0),))
    # END


# %%
check(mul, matmul, relu)


# %% check
class _Node:
    """A reference for the notebook's Node: the checks do not use the student's."""

    count = itertools.count(10**6)

    def __init__(self, value, parents=(), pull=None):
        self.value, self.parents, self.pull = np.asarray(value, dtype=np.float64), parents, pull
        self.number, self.grad = next(_Node.count), None


def _ran(op, name, arrays, want):
    """The node that op makes of the arrays, its value and parents looked at."""
    nodes = [_Node(x.copy()) for x in arrays]
    call = f"{name}({', '.join('a node of shape ' + str(x.shape) for x in arrays)})"
    y = op(*nodes)
    good = all(hasattr(y, attribute) for attribute in ("value", "parents", "pull"))
    expect(good, f"{call} returns {type(y).__name__}, expected a Node.")
    close(y.value, want, f"the value of {call}", rtol=1e-12)
    same = len(y.parents) == len(nodes) and all(p is q for p, q in zip(y.parents, nodes))
    expect(same, f"the parents of {call} must be the nodes that it was given, in their order, in a tuple.")
    expect(callable(y.pull), f"{call} has no pull: give Node a function of dy as its third argument.")
    return call, y


def _pulled(call, y, dy, wanted, hints):
    """Hold the slopes that y.pull(dy) gives against those wanted."""
    before = dy.copy()
    got = y.pull(dy)
    good = isinstance(got, (tuple, list)) and len(got) == len(wanted)
    expect(good, f"the pull of {call} returns {type(got).__name__}, expected a tuple of {len(wanted)}: one per parent.")
    expect(np.array_equal(dy, before), f"the pull of {call} changes dy, which belongs to another node.")
    for i, (g, want, hint) in enumerate(zip(got, wanted, hints)):
        close(g, want, f"{call}.pull(dy)[{i}]", rtol=1e-9, atol=1e-12, hint=hint)


def _bilinear(function, arrays, dy):
    """The slopes of sum(dy * function(a, b)) of a function that is linear in each: its values at unit arrays."""
    found = []
    for k, x in enumerate(arrays):
        g = np.zeros(x.shape)
        for i in np.ndindex(x.shape):
            unit = np.zeros(x.shape)
            unit[i] = 1
            g[i] = (dy * function(*[unit if j == k else other for j, other in enumerate(arrays)])).sum()
        found.append(g)
    return found


def check_mul(mul, random):
    n = int(random.integers(2, 5))
    for first, second in (((n, 3), (n, 3)), ((n, 3), (3,)), ((n, 1), (1, 3)), ((), (n,))):
        arrays = [random.uniform(1, 2, first), random.uniform(3, 4, second)]
        call, y = _ran(mul, "mul", arrays, arrays[0] * arrays[1])
        dy = random.standard_normal(y.value.shape)
        hint = "Along a it is dy times b's value, and the other way round."
        hint = hint if first == second else "Shapes were broadcast: use unbroadcast."
        _pulled(call, y, dy, _bilinear(np.multiply, arrays, dy), [hint, hint])
    node = _Node(3.0)
    square = mul(node, node)
    _pulled("mul(a, a) at a = 3", square, np.array(1.0), [3.0, 3.0], ["Each of the two factors has its own slope."] * 2)


def check_matmul(matmul, random):
    n, k, m = (int(i) for i in random.permutation([2, 3, 4]))
    for shapes in (((n, k), (k, m)), ((3, 3), (3, 3)), ((1, k), (k, 1))):
        arrays = [random.standard_normal(shape) for shape in shapes]
        call, y = _ran(matmul, "matmul", arrays, arrays[0] @ arrays[1])
        dy = random.standard_normal(y.value.shape)
        hints = ["Along A: dY @ B.T.", "Along B: A.T @ dY."]
        _pulled(call, y, dy, _bilinear(np.matmul, arrays, dy), hints)


def check_relu(relu, random):
    x = np.append(random.standard_normal(9), 0.0)
    call, y = _ran(relu, "relu", [x], np.array([v if v > 0 else 0.0 for v in x]))
    dy = -np.abs(random.standard_normal(10))
    hint = "Where a > 0 it is dy, also a negative dy; elsewhere, and at 0, it is 0."
    _pulled(call, y, dy, [[d if v > 0 else 0.0 for v, d in zip(x, dy)]], [hint])


# %% [markdown]
# ## 4. The order
#
# A node may pull only when its own slope is complete, that is after **all** nodes that used it. Look at
#
#     c = mul(a, b)
#     d = relu(c)
#     loss = add(c, d)
#
# c is a parent of loss, but d also uses c. So the order is loss, d, c, and then a and b. To find it, collect all nodes
# that can be reached. Then remember: a node is always made *after* its parents.


# %% exercise
def topological(root):
    """A list of root and all nodes that it was made from, directly or not; each once, and before its parents.

    Networks may be deep, thousands of nodes: do not let the function call itself.
    """
    # SOLUTION
    found, waiting = {root}, [root]
    while waiting:
        for parent in waiting.pop().parents:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return sorted(found, key=lambda node: -node.number)
    # END


# %%
check(topological)


# %% check
def _ordered(topological, root, expected, what):
    try:
        got = topological(root)
    except RecursionError:
        expect(False, f"topological(root) of {what} calls itself too often. Keep a list of nodes to visit instead.")
    expect(isinstance(got, list), f"topological(root) returns {type(got).__name__}, expected a list.")
    ids = [id(node) for node in got]
    call = f"topological(root) of {what}"
    hint = "A node that was met already must not be visited again."
    expect(len(set(ids)) == len(ids), f"{call} has {len(ids)} nodes, expected {expected}: some occur twice. {hint}")
    expect(len(ids) == expected, f"{call} has {len(ids)} nodes, expected {expected} (with root).")
    expect(got[0] is root, f"{call} does not begin with root.")
    place = {i: n for n, i in enumerate(ids)}
    for node in got:
        for parent in node.parents:
            expect(id(parent) in place, f"{call} lacks a parent of a node.")
            hint = "Sort by `number`: a node is made after its parents."
            good = place[id(parent)] > place[id(node)]
            expect(
                good, f"in {call} a node comes after its parent, which would pull before its slope is complete. {hint}"
            )


def check_topological(topological, random):
    leaf = _Node(1.0)
    _ordered(topological, leaf, 1, "a single node")
    a, b, _unused = _Node(1.0), _Node(2.0), _Node(3.0)
    c = _Node(2.0, (a, b))
    d = _Node(2.0, (c,))
    for parents in ((c, d), (d, c)):
        _ordered(topological, _Node(4.0, parents), 5, "loss = add(c, d), d = relu(c), c = mul(a, b)")
    node = _Node(1.0)
    for _ in range(12):
        node = _Node(1.0, (node, node))
    _ordered(topological, node, 13, "x = add(x, x), 12 times")
    nodes = [_Node(0.0)]
    for _ in range(40):
        picked = [nodes[int(i)] for i in random.integers(0, len(nodes), 2)]
        nodes.append(_Node(0.0, (nodes[-1], *picked)))
    _ordered(topological, nodes[-1], 41, "a random graph of 41 nodes")
    node = _Node(1.0)
    for _ in range(3000):
        node = _Node(1.0, (node,))
    _ordered(topological, node, 3001, "a chain of 3,001 nodes")


# %% [markdown]
# ## 5. Backward
#
# The slope of the loss along itself is 1. Go through the nodes in this order, let each pull, and give its parents what
# they get. A node that was used twice gets two slopes, and **they add up**.


# %% exercise
def backpropagate(root):
    """Set `grad` of root and of all nodes that it was made from: the slope of root along their values.

    root.value is a single number. Each grad is a float64 array of its value's shape. What earlier calls left in grad
    is forgotten. Two nodes must not share one array that is changed later: write x = x + y, not x += y.
    """
    # SOLUTION
    nodes = topological(root)
    for node in nodes:
        node.grad = np.zeros_like(node.value)
    root.grad = np.ones_like(root.value)
    for node in nodes:
        for parent, g in zip(node.parents, node.pull(node.grad) if node.parents else ()):
            parent.grad = parent.grad + g
    # END


# %%
check(backpropagate)


# %% check
def _two(value, a, b, pull):
    def counted(dy):
        node.pulls += 1
        return pull(dy)

    node = _Node(value, (a, b) if b is not None else (a,), counted)
    node.pulls = 0
    return node


def _plus(a, b):
    return _two(a.value + b.value, a, b, lambda dy: (dy, dy))


def _times(a, b):
    return _two(a.value * b.value, a, b, lambda dy: (dy * b.value, dy * a.value))


def check_backpropagate(backpropagate, random):
    x, y = (_Node(random.integers(2, 6, 3)) for _ in range(2))
    p = _times(x, y)
    q = _plus(p, x)
    r = _times(p, q)
    s = _plus(q, r)
    root = _two(s.value.sum(), s, None, lambda dy: (np.full(3, float(dy)),))
    u, v = x.value.copy(), y.value.copy()  # root = sum of u^2 v^2 + u^2 v + u v + u
    wanted = {
        "root": (root, np.ones(())),
        "r = mul(p, q)": (r, np.ones(3)),
        "x, which is used twice": (x, 2 * u * v**2 + 2 * u * v + v + 1),
        "y": (y, 2 * u**2 * v + u**2 + u),
        "p = mul(x, y), which is used twice": (p, 2 * u * v + u + 1),
        "q = add(p, x), which is used twice": (q, u * v + 1),
    }
    for turn in ("", " after a second call"):
        backpropagate(root)
        for name, (node, want) in wanted.items():
            call = f"the grad of {name}{turn}, at x = {short(u)}, y = {short(v)}; root is the sum of q + r,"
            expect(node.grad is not None, f"{call} is None.")
            hint = "The slopes from all its uses add up, before it pulls."
            hint = "Forget what the first call left there." if turn else hint
            if np.shares_memory(q.grad, r.grad):
                hint = "Two nodes share an array, and += changed it for both: write x = x + y."
            elif not turn and node in (root, r):
                hint = "The slope of root is 1; each use adds its slope once; root pulls first."
            close(node.grad, want, call, rtol=1e-9, hint=hint)
    pulls = max(node.pulls for node in (p, q, r, s, root))
    expect(pulls == 2, f"in two calls of backpropagate a node pulled {pulls} times. Once per call is enough.")
    expect(np.array_equal(x.value, u), "backpropagate changes values. It sets grad and nothing else.")
    alone = _Node(3.0)
    backpropagate(alone)
    close(alone.grad, 1.0, "the grad of a root without parents")


# %%
generator = np.random.default_rng(3)
angle = generator.uniform(0, np.pi, (2, 100))
upper, lower = np.stack([np.cos(angle), np.sin(angle)], -1)
moons = np.concatenate([upper, np.array([1, 0.5]) - lower]) + generator.normal(0, 0.1, (200, 2))
labels = np.repeat([1.0, -1.0], 100)[:, None]  # the upper moon, the lower moon


def weights(seed=0):
    draw = np.random.default_rng(seed)
    sizes = [(2, 16), (16, 16), (16, 1)]
    return [Node(value) for n, m in sizes for value in (draw.normal(0, np.sqrt(2 / n), (n, m)), np.zeros(m))]


def predict(w, x):
    hidden = relu(add(matmul(x, w[0]), w[1]))
    hidden = relu(add(matmul(hidden, w[2]), w[3]))
    return add(matmul(hidden, w[4]), w[5])


def loss_of(w):
    error = add(predict(w, Node(moons)), Node(-labels))
    return mul(total(mul(error, error)), Node(1 / len(moons)))


w, curve = weights(), []
for _ in range(STEPS):
    loss = loss_of(w)
    backpropagate(loss)
    w = [Node(p.value - 0.1 * p.grad) for p in w]
    curve.append(float(loss.value))

figure, (left, right) = plt.subplots(1, 2)
left.plot(curve)
left.set(xlabel="step", ylabel="loss", ylim=(0, None), title="Training with your autograd")
grid = np.stack(np.meshgrid(np.linspace(-1.5, 2.5, 60), np.linspace(-1, 1.5, 60)), -1)
height = predict(w, Node(grid.reshape(-1, 2))).value.reshape(60, 60)
right.contourf(grid[..., 0], grid[..., 1], height, [-9, 0, 9], colors=["C1", "C0"], alpha=0.25)
right.scatter(*moons.T, c=np.where(labels[:, 0] > 0, "C0", "C1"), s=8)
right.set(title="What the network has learned", aspect="equal")

# %% [markdown]
# ## 6. Is it right?
#
# One random direction tests all slopes at once: if a single one is wrong, the sums differ. tinymp's own tests do it
# like this (`tests/oracle.py`). And does tinymp find the same slopes?

# %%
w = weights()
backpropagate(loss_of(w))
along = [generator.standard_normal(p.value.shape) for p in w]
moved = slope(lambda t: loss_of([Node(p.value + t[0] * v) for p, v in zip(w, along)]).value, np.zeros(1), np.ones(1))
print(f"measured {moved:.9f}, by your autograd {sum(np.sum(p.grad * v) for p, v in zip(w, along)):.9f}")
theirs = [mp.tensor(p.value, requires_grad=True) for p in w]
h = ops.relu(mp.tensor(moons) @ theirs[0] + theirs[1])
h = ops.relu(h @ theirs[2] + theirs[3])
ops.mse_loss(h @ theirs[4] + theirs[5], mp.tensor(labels)).backward()
for i, (mine, their) in enumerate(zip(w, theirs)):
    print(f"w[{i}] {mine.grad.shape!s:9} largest difference {np.abs(mine.grad - their.grad.array).max():.1e}")

# %% [markdown]
# Equal, but for the last digits. Your lines are in `tinymp/autograd.py`, where a node is an `Op` (one call of a
# function), and one run of `backward()` is a `Backward`:
#
# | yours | tinymp's |
# |---|---|
# | `self.parents = parents` | `Op._connect` keeps where the gradient of each argument goes |
# | `topological`, and the loop over it | `Backward.propagate` takes the op that ran last first |
# | `node.pull(node.grad)` | `Op.run_backward` calls the op's `backward`, and checks what it gives |
# | `parent.grad = ...` | `Backward.deposit` writes into the `grad` of weights |

# %% [markdown]
# It is longer than 80 lines for **precision** (the gradients of a tensor that is used several times are added in FP32,
# and rounded once; lesson 3), for **memory** (an `Op` keeps only what its backward needs, and frees it), and for
# **errors** that name the op.
#
# ## What to remember
#
# - Each op knows its local rule only. The graph and the order do the rest.
# - A node pulls after all its users. Slopes from several uses **add up**; so do those of a number that was broadcast.
# - One backward pass finds all slopes. Central differences find one: use them to check, in float64, along random
#   directions.
#
# ## To think about
#
# 1. Which values must `mul`, `matmul`, `relu` and `add` keep for their pull? Which of these four needs none?
# 2. What would `slope` give in FP16 with h = 2⁻¹⁷ at x = 1? (Lesson 1.)
# 3. A weight is used at 100 places of a recurrent network. In which precision should the 100 slopes be added?
