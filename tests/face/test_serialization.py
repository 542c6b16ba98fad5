"""torch.save and torch.load: what comes back, what is refused, and what other programs read."""

import io

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn
from tinymp.torch.serialization import load, save

safetensors = pytest.importorskip("safetensors.numpy")
pytestmark = pytest.mark.cpu


def equal(got, expected):
    """True if all of it is equal, with its types."""
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert [*got] == [*expected]
        for key in expected:
            equal(got[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected):
            equal(one, other)
    elif isinstance(expected, (mp.Tensor, np.ndarray)):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
    else:
        assert got == expected or (got != got and expected != expected)


def nested():
    return {
        "epoch": 3,
        "name": "net",
        "best": float("inf"),
        0: [1, (2.5, "x"), {7: np.arange(3)}],
        "tensor": mp.tensor([1.0, 2.0]),
        "half": mp.tensor([[1.0], [2.0]]).half(),
        "scalar": mp.tensor(3),
        "empty": mp.zeros(0, 2),
        "mask": np.array([[True, False]]),
        "bf16": mp.tensor([[1.0, 2.0]], dtype=mp.bfloat16),
        "transposed": mp.rand(2, 3).T,
        "state": nn.BatchNorm1d(2).state_dict(),
    }


@pytest.mark.parametrize("location", ["cpu", {"cuda:0": "cpu"}, lambda x, where: None])
def test_it_comes_back(location, tmp_path):
    file = io.BytesIO()
    for one in (nested(), mp.tensor([1.0, 2.0]), np.arange(3), "text", None, [], {}):
        save(one, tmp_path / "a.pt")
        equal(load(str(tmp_path / "a.pt"), map_location=location, weights_only=False), one)
    with open(tmp_path / "a.pt", "wb") as f:
        save(nested() | {"transposed": 1}, f)
    file.write((tmp_path / "a.pt").read_bytes())
    file.seek(0)
    read = load(file)
    equal(read, nested() | {"transposed": 1})
    read["mask"][0] = False  # arrays can be written to
    read["tensor"].copy_(mp.zeros(2))


def test_gradients_and_masters(tmp_path):
    model = mp.MIXED.cast(nn.Linear(3, 2))
    z = mp.rand(2, requires_grad=True)
    save({"z": z, "2z": 2 * z, "weight": model.weight}, tmp_path / "x")
    read = load(tmp_path / "x")
    assert read["z"].requires_grad and not read["2z"].requires_grad
    assert read["weight"].dtype == np.float32
    np.testing.assert_array_equal(read["weight"].array, model.weight.master)


@pytest.mark.peer
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_pytorch_and_the_lines_that_convert_it(zipped, tmp_path):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("safetensors.torch")
    peer, ours = torch.nn.Linear(3, 2), nn.Linear(3, 2)
    torch.save(peer.state_dict(), tmp_path / "net.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"load: .* Convert it once, with PyTorch") as found:
        load(tmp_path / "net.pt")
    lines = [line.strip() for line in str(found.value).splitlines() if line.startswith("    ")]
    assert len(lines) == 2
    exec("\n".join(lines), {"torch": torch, "safetensors": pytest.importorskip("safetensors")})
    ours.load_state_dict(load(tmp_path / "net.safetensors"))
    np.testing.assert_array_equal(ours.weight.array, peer.weight.detach().numpy())
    save(ours.state_dict(), tmp_path / "back")
    peer.load_state_dict(theirs.load_file(tmp_path / "back"))
