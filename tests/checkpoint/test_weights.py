"""Weights go to PyTorch's safetensors and come from them, BF16 too."""

import json
import struct

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn

safetensors = pytest.importorskip("safetensors.numpy")
pytestmark = pytest.mark.cpu


def written(path, tensors):
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


class Named(nn.Module):
    def __init__(self, *names):
        super().__init__()
        for i, name in enumerate(names):
            setattr(self, name, nn.Parameter(np.asfortranarray(np.arange(6.0).reshape(2, 3) + i, "f")))


def test_every_name_and_memory_order(tmp_path):
    model = nn.Sequential(Named("copy", "weight", "master"), Named("copy"))
    mp.save_weights(tmp_path / "weights", model)
    mp.save(tmp_path / "run", model=model)
    read = mp.load_weights(tmp_path / "weights")
    assert [*read] == ["0.copy", "0.master", "0.weight", "1.copy"]
    for name, p in model.named_parameters():
        np.testing.assert_array_equal(read[name], p.numpy())
    other = nn.Sequential(Named("copy", "weight", "master"), Named("copy"))
    other.requires_grad_(False)
    other[0].copy.zero_()
    mp.load(tmp_path / "run", model=other)
    np.testing.assert_array_equal(other[0].copy.numpy(), model[0].copy.numpy())
    with pytest.raises(ValueError, match="save_weights: expected another name than `__metadata__`"):
        mp.save_weights(tmp_path / "weights", Named("__metadata__"))


def test_bf16_is_read_exactly(tmp_path):
    bits = np.arange(1 << 16, dtype="<u2")
    read = mp.load_weights(written(tmp_path / "x", {"x": ("BF16", [256, 256], bits.tobytes())}))["x"]
    assert read.dtype == np.float32 and read.shape == (256, 256)
    np.testing.assert_array_equal(read.view("u4").ravel() >> 16, bits)
    assert not (read.view("u4") & 0xFFFF).any()
    model = mp.MIXED.cast(nn.Linear(256, 2, bias=False))
    finite = np.where(np.abs(read) < 60000, read, 1)[:2]
    model.load_state_dict({"weight": finite})
    np.testing.assert_array_equal(model.weight.master, finite)


@pytest.mark.peer
def test_pytorch_reads_and_writes_them(tmp_path):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("safetensors.torch")
    ours, peer = nn.Linear(3, 2), torch.nn.Linear(3, 2)
    mp.save_weights(tmp_path / "ours", ours)
    peer.load_state_dict(theirs.load_file(tmp_path / "ours"))
    np.testing.assert_array_equal(peer.weight.detach().numpy(), ours.weight.array)
    theirs.save_file(torch.nn.Linear(3, 2).bfloat16().state_dict(), tmp_path / "theirs")
    ours.load_state_dict(mp.load_weights(tmp_path / "theirs"))
    np.testing.assert_array_equal(theirs.load_file(tmp_path / "theirs")["weight"].float().numpy(), ours.weight.array)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a pickle of PyTorch", struct.pack("<Q", 1 << 40) + b"{}"])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=r"expected .*x to be a file of safetensors"):
        mp.load_weights(tmp_path / "x")
    with pytest.raises(ValueError, match=r"expected `small` in .*x to be one of F64, .*, BF16, got F8_E4M3"):
        mp.load_weights(written(tmp_path / "x", {"small": ("F8_E4M3", [2], b"ab")}))
