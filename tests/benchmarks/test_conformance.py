"""benchmarks.conformance, on a part of its samples; only where PyTorch is installed."""

import json
import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of PyTorch's own
    import torch

    from benchmarks import conformance

pytestmark = [pytest.mark.cpu, pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


def verdict(ours, says=("exp",)):
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    sample = conformance.Sample("exp", says, ((x,), {}), lambda v: (torch.exp(*v[0]), v), lambda v: (ours(*v[0]), v))
    return conformance.judged(sample)[0]


def raises(error):
    def f(x):
        raise error

    return f


def test_verdicts():
    assert verdict(lambda x: x.exp()) == "agree"
    assert verdict(lambda x: x.exp() * 1.001) == "wrong"
    assert verdict(lambda x: x.detach().exp()) == "wrong"  # no gradient
    assert verdict(lambda x: x.exp() + (x - x.detach()) * 0.01) == "wrong"  # a wrong one
    assert verdict(raises(ValueError("exp: expected ..."))) == "refused"
    assert verdict(raises(ValueError("cannot reshape array"))) == "crashed"
    assert verdict(raises(ZeroDivisionError("exp: division by zero"))) == "crashed"
    assert verdict(lambda x: warnings.warn("exp: overflow", RuntimeWarning, stacklevel=1)) == "crashed"


def test_a_part_of_the_samples(tmp_path):
    conformance.main(["--quick", "--out", str(tmp_path / "result.json")])
    result = json.loads((tmp_path / "result.json").read_text())
    for database in ("op", "module", "optimizer"):
        assert result[database]["samples"]["agree"] > 20
        assert result[database]["agree, percent"] > 95  # three samples each: the refused ones weigh more
        assert not {"wrong", "crashed"} & set(result[database]["samples"]), result[database]["reasons"]
