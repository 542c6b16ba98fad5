"""Arrays without memory: shapes, dtypes and owners are those of the CPU."""

import tracemalloc

import numpy as np
import pytest

import tinymp as mp
from examples import cnn
from tinymp import backend, ops, optim
from tinymp.audit import meta
from tinymp.audit.bytes import saved_nbytes
from tinymp.nn import recurrent
from tinymp.sparse import SparseRows
from watching import watch

pytestmark = pytest.mark.cpu  # tensors say themselves where they are


def trace(device, run, policy, *arrays):
    """Record a run on a device: per op and phase its results' shapes and dtypes; bytes kept; gradients."""
    seen = []

    def look(phase, op, inputs, outputs):
        kept = [_look(x) for x in (*(op.saved or ()), *op.statistics)]
        seen.append((phase, op.name, [_look(x) for x in outputs], kept))

    with mp.device(device):
        tensors = [mp.tensor(policy.cast(a), requires_grad=a.dtype.kind == "f") for a in arrays]
        with watch(look):
            y = run(*tensors)
            parts = [p for p in (y if isinstance(y, tuple) else (y,)) if p.requires_grad]
            kept = [saved_nbytes(p) for p in parts]
            for p in parts:
                p.backward(backend.of(p.array).xp.ones_like(p.array))
                break  # the graph is freed
    assert device == "cpu" or all(type(t.array) is meta.MetaArray for t in tensors)
    return seen, kept, [_look(t.grad_array) for t in tensors]


def _look(x):
    if isinstance(x, SparseRows):
        return "rows", x.shape, x.dtype
    if not hasattr(x, "dtype"):
        return x
    owner = x if x.base is None else x.base
    return x.shape, x.dtype, getattr(owner, "nbytes", x.nbytes)


X, W, IMAGES = np.ones((6, 8), np.float32), np.ones((5, 8), np.float32), np.ones((4, 3, 8, 8), np.float32)
KERNEL, SEQUENCE, INDEX = np.ones((6, 3, 3, 3), np.float32), np.ones((5, 4, 8), np.float32), np.zeros((6, 4), np.int64)
OPS = {
    "add": (lambda a: a + a * 2 - 1, X),
    "broadcast": (lambda a, b: a[:, None] * b[None], X, W),
    "cumsum": (lambda a: a.cumsum(1), X),
    "transposed": (lambda a: a.T.reshape(4, 12), X),
    "reflected": (lambda a: ops.pad(a, (1, 2), mode="reflect"), X),
    "mask": (lambda a: a[a > 0], X),
    "sorted": (lambda a: a.sort(1, descending=True).values + a.topk(8, 1).values, X),
    "norms": (lambda a: ops.norm(a, 2, 1) + ops.norm(a, float("inf"), 1) + ops.norm(a, 3, 1), X),
    "scattered": (lambda a, i: a.scatter(1, i, a[:, :4]), X, INDEX),
    "group_norm": (lambda a: ops.group_norm(ops.cat([a, a], 1), 3), IMAGES),
    "bags": (lambda w, i: ops.embedding_bag(i, w), W, INDEX),
    "attention": (lambda a: ops.scaled_dot_product_attention(a, a, a, is_causal=True), SEQUENCE),
    "index": (lambda a, i: a[i[:, 0]], X, INDEX),
    "embedding": (lambda w, i: ops.embedding(i, w), W, INDEX),
    "conv2d": (lambda a, w: ops.conv2d(a, w, padding=1, stride=2), IMAGES, KERNEL),
    "conv, groups": (lambda a, w: ops.conv2d(a, w, groups=3), IMAGES, np.ones((6, 1, 3, 3), np.float32)),
    "conv_transpose2d": (lambda a, w: ops.conv_transpose2d(a, w, stride=2), IMAGES, np.ones((3, 5, 4, 4), np.float32)),
    "max_pool2d, overlapping": (lambda a: ops.max_pool2d(a, 3, stride=2, padding=1), IMAGES),
    "adaptive": (lambda a: ops.adaptive_avg_pool2d(a, (3, 2)), IMAGES),
    "interpolate": (lambda a: ops.interpolate(a, scale_factor=2, mode="bilinear"), IMAGES),
    "layer_norm": (lambda a: ops.layer_norm(a, (8,)), X),
    "batch_norm": (lambda a: ops.batch_norm(a, None, None, training=True), IMAGES),
    "cross_entropy": (lambda a, i: ops.cross_entropy(a, i[:, 0]), X, INDEX),
    "ctc": (lambda x, t: ops.ctc_loss(x, t, [5, 4, 3, 5], [2, 1, 2, 0]), SEQUENCE, np.ones((4, 2), np.int64)),
    "lstm": (
        lambda x, i, h, p: recurrent.ops.lstm_layer(x, None, i, h, weight_hr=p)[0],
        SEQUENCE,
        *(np.ones(shape, np.float32) for shape in ((24, 8), (24, 3), (3, 6))),
    ),
    "gru, lengths": (
        lambda x, i, h: recurrent.ops.gru_layer(x, None, i, h, lengths=[5, 2, 3, 1], reverse=True)[0],
        SEQUENCE,
        *(np.ones(shape, np.float32) for shape in ((18, 8), (18, 6))),
    ),
}


STORED = [mp.POLICIES[name] for name in ("MIXED", "FP8") if name in mp.POLICIES]


@pytest.mark.parametrize("policy", STORED, ids=lambda p: p.name)
@pytest.mark.parametrize("name", OPS)
def test_ops_are_those_of_the_cpu(name, policy):
    run, *arrays = OPS[name]
    assert trace("meta", run, policy, *arrays) == trace("cpu", run, policy, *arrays)


@pytest.mark.parametrize("policy", [mp.FP32, mp.STOCHASTIC_ROUNDING], ids=lambda p: p.name)
def test_a_training_step(policy):
    """From the initialiser to the optimizer's state."""

    def step(device):
        with mp.device(device), mp.use(policy):
            model = policy.cast(cnn.network(1, 28, 28, 10))
            optimizer, scaler = optim.Adam(model.parameters()), optim.StaticLossScaler(128)

            def run(x, y):
                return scaler.scale(ops.cross_entropy(model(x), y))

            seen = trace(device, run, policy, np.ones((4, 1, 28, 28), np.float32), np.zeros(4, np.int64))
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(model.parameters(), 1e9)
            assert scaler.step(optimizer).applied
            parameters = [(p.nbytes, p.master_nbytes, _look(p.grad_array)) for p in model.parameters()]
            states = [[_look(v) for v in s.values() if hasattr(v, "dtype")] for s in optimizer.state.values()]
        return seen, parameters, states

    assert step("meta") == step("cpu")


def test_nothing_is_allocated():
    tracemalloc.start()
    with mp.device("meta"):
        x = ops.ones(1 << 16, 1 << 14, requires_grad=True)  # 4 GiB
        y = ops.relu(x * 2).reshape(1 << 14, -1).T
        (y.reshape(-1).sum() + ops.cat([y, y]).mean()).backward()
    allocated = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert x.grad.nbytes == 1 << 32
    assert allocated < 1_000_000
