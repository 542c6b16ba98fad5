"""A GPU in use: moving, waiting, and what is found out late."""

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import nn, ops, optim


def test_tensors_move_and_gradients_come_back(gpu):
    x = mp.tensor(randn(3, 4), requires_grad=True, device="cpu")
    y = x.to("gpu")
    assert (x.device, y.device) == ("cpu", "gpu")
    assert y.to("gpu") is y
    (y * y).sum().backward()
    np.testing.assert_allclose(x.grad, 2 * x.array)
    np.testing.assert_array_equal(y.numpy(), x.array)
    np.testing.assert_array_equal(np.asarray(y.to("cpu").detach()), x.array)
    assert "device=gpu" in repr(y)
    assert y.tolist() == x.tolist()
    with pytest.raises(ValueError, match="can only be copied"):
        np.asarray(y, copy=False)


def test_models_move_with_masters_gradients_buffers_and_optimizer(gpu):
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    before = model.state_dict()
    optimizer = optim.SGD(model.parameters(), momentum=0.9)
    x = mp.MIXED.cast(mp.tensor(randn(6, 3), device="cpu").float())
    assert model.to("gpu") is model
    assert all(p.device == "gpu" and type(p.master) is gpu.array_type for p in model.parameters())
    assert {b.device for b in model.buffers()} == {"gpu"}
    assert all((before[name] == v).all() for name, v in model.state_dict().items())
    for device in ("cpu", "gpu", "cpu"):
        model.to(device)(x.to(device)).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert {s["step"] for s in optimizer.state_dict()["state"].values()} == {3}


BAD = {
    "cross_entropy": (lambda x, i: ops.cross_entropy(x, i), ValueError, "every value of `target` to be a class"),
    "embedding": (lambda x, i: ops.embedding(i, x), IndexError, r"expected indices in \[0, 1\]"),
    "getitem": (lambda x, i: x[i], IndexError, r"expected indices in \[-2, 1\] for axis 0"),
    "gather": (lambda x, i: ops.gather(x, 1, i.reshape(2, 1)), IndexError, r"expected indices in \[0, 2\]"),
    "add": (lambda x, i: x.half()[:, :2] + i * 30_000, ValueError, "a value of the int64 tensor does not fit FP16"),
}
READS = [lambda y: y.sum().item(), lambda y: y.numpy(), lambda y: mp.synchronize()]


@pytest.mark.parametrize(
    ("name", "read"), [*[(name, READS[2]) for name in BAD], *[("embedding", r) for r in READS[:2]]]
)
def test_bad_values_are_found_when_somebody_waits(gpu, name, read):
    act, error, message = BAD[name]
    y = act(mp.tensor(randn(2, 3), device="gpu"), mp.tensor([0, 3], device="gpu"))
    with pytest.raises(error, match=f"{name}: .*{message}"):
        read(y)
    mp.synchronize()  # once
    for _ in range(3):  # nor does a copy of the flags that was under way say it again
        ops.embedding(mp.tensor([0, 1], device="gpu"), mp.tensor(randn(2, 3), device="gpu"))
        mp.synchronize()


@pytest.mark.parametrize("dtype", ["float64", "float32"])  # by the definition, by the kernel
def test_bad_values_are_found_some_steps_later_without_waiting(gpu, dtype):
    logits, labels = mp.tensor(randn(2, 3).astype(dtype), device="gpu"), mp.tensor([0, 7], device="gpu")
    step = mp.capture(lambda x, t: ops.cross_entropy(x, t), warmup=1)
    step(logits, mp.tensor([0, 1], device="gpu"))
    with pytest.raises(ValueError, match="cross_entropy: expected every value of `target`"):
        [step(logits, labels) for _ in range(1000)]  # a real GPU runs behind the host
