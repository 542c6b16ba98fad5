"""tinymp.torch.distributions against torch.distributions in FP64, with values, gradients and samples."""

import numpy as np
import pytest

import tinymp as mp
from tinymp.torch import distributions as ours

torch = pytest.importorskip("torch")
theirs = torch.distributions
rng = np.random.default_rng(0)
P = rng.dirichlet(np.ones(5), 3)  # 3, 5
Q = rng.dirichlet(np.ones(5), 3)
U, V = rng.uniform(0.01, 0.99, (2, 4))
A, B, C, D = (rng.standard_normal(6).reshape(2, 3), *rng.uniform(0.3, 2, (3, 2, 3)))
# class, its parameters, another's, values
CASES = [
    ("Categorical", {"probs": 7 * P}, {"probs": Q}, rng.integers(0, 5, (4, 3))),
    ("Categorical", {"logits": A}, {"logits": C}, rng.integers(0, 3, (2,))),
    ("Bernoulli", {"probs": U}, {"probs": V}, rng.integers(0, 2, (3, 4)).astype(float)),
    ("Bernoulli", {"logits": A}, {"logits": C}, rng.integers(0, 2, (2, 3)).astype(float)),
    ("Normal", {"loc": A, "scale": B}, {"loc": C, "scale": D}, rng.standard_normal((4, 2, 3))),
]


def results(lib, make, kind, p, q, values):
    """The results of a library, and the gradients of all of them."""
    given = {name: make(x, requires_grad=True) for name, x in p.items()}
    d = getattr(lib, kind)(**given)
    other = getattr(lib, kind)(**{name: make(x) for name, x in q.items()})
    found = [d.log_prob(make(values)), d.entropy(), lib.kl_divergence(d, other), lib.kl_divergence(other, d)]
    sum((x * x).sum() for x in found).backward()
    found += [d.mean, d.variance, d.stddev, *((d.loc, d.scale) if kind == "Normal" else (d.probs, d.logits))]
    shapes = [tuple(d.batch_shape), tuple(d.event_shape), tuple(d.sample((2, 3)).shape), tuple(d.sample().shape)]
    return [x.detach().numpy() for x in (*found, *(x.grad for x in given.values()))], shapes


@pytest.mark.parametrize(("kind", "p", "q", "values"), CASES)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_distributions_are_those_of_pytorch(kind, p, q, values, dtype):
    """FP16 is widened first: the reference has the values that were stored, and results are FP32."""
    p, q = ({name: x.astype(dtype) for name, x in d.items()} for d in (p, q))
    values = values if kind == "Categorical" else values.astype(dtype)
    own, own_shapes = results(ours, mp.tensor, kind, p, q, values)
    wide = [{name: x.astype("float64") for name, x in d.items()} for d in (p, q)]
    values = values.astype("int64" if kind[0] == "C" else "float64")
    expected, shapes = results(theirs, torch.tensor, kind, *wide, values)
    assert own_shapes == shapes
    n = len(own) - len(p)  # gradients have their parameter's dtype
    assert {x.dtype for x in own[:n]} == {np.dtype("float64" if dtype == "float64" else "float32")}
    assert all(x.dtype == dtype for x in own[n:])
    for i, (a, b) in enumerate(zip(own, expected)):
        eps = np.finfo(a.dtype).eps if i < n else max(np.finfo(dtype).eps, 2.0**-50)
        # about 50 roundings of terms that are no larger than the largest result
        assert np.allclose(a, b, rtol=0, atol=50 * eps * max(1, np.nan_to_num(abs(b)).max()), equal_nan=True)


def test_what_has_probability_0_is_never_drawn_and_costs_no_nan():
    assert (ours.Categorical(probs=mp.tensor([0.0, 1.0])).sample((1000,)).numpy() == 1).all()
    for kind, one, two in (("Categorical", [0.0, 1.0], [0.5, 0.5]), ("Bernoulli", 0.0, 0.5), ("Bernoulli", 1.0, 0.5)):
        a, b = (getattr(ours, kind)(probs=mp.tensor(x)) for x in (one, two))
        c, e = (getattr(theirs, kind)(probs=torch.tensor(x)) for x in (one, two))
        assert np.allclose(ours.kl_divergence(a, b).numpy(), theirs.kl_divergence(c, e).numpy(), atol=1e-6)
        assert ours.kl_divergence(b, a).numpy() == np.inf


def test_gradients_flow_through_rsample_alone():
    loc, scale = mp.tensor([1.0, 2.0], requires_grad=True), mp.tensor([0.5, 3.0], requires_grad=True)
    d = ours.Normal(loc, scale)
    mp.manual_seed(0)
    x = d.rsample((5,))
    x.sum().backward()
    noise = (x.detach().numpy() - loc.detach().numpy()) / scale.detach().numpy()
    assert loc.grad.tolist() == [5, 5] and np.allclose(scale.grad.numpy(), noise.sum(0), rtol=0, atol=1e-5)
    assert not d.sample().requires_grad and d.has_rsample
    for call, error in (
        (lambda: ours.Bernoulli(0.5).rsample(), NotImplementedError),
        (lambda: ours.Categorical(probs=mp.tensor([0.5, -0.5])), ValueError),
        (lambda: ours.Normal(0.0, 1.0).log_prob(float("nan")), ValueError),
    ):
        with pytest.raises(error):
            call()
