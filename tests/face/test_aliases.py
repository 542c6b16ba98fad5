"""Results that share memory with their input, and those that do not, are PyTorch's: also where a shape makes a copy
superfluous, such as a repetition of one. Of a view a write reaches the input, or is refused.
"""

import copy
import importlib
import pickle

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

# In each row, expressions of x (2, 2), v (2), s (), n (2, 2) of integers, b (2, 2) of truths
ROWS = """
x.repeat(1, 1) | x.repeat(1, 1, 1) | x[:1].repeat(2, 1) | x.tile(1) | torch.tile(x, (1, 1)) | x[:1].tile(3, 1)
torch.cat([x]) | torch.cat([x], 1) | torch.stack([x]) | torch.hstack([x]) | torch.vstack([x]) | torch.concat([x])
F.pad(x, (0, 0)) | F.pad(x[None], (0, 0), mode="reflect") | F.pad(x[None], (0, 0), mode="replicate") | F.pad(x, (-1, 0))
F.pad(x[None], (0, 0), mode="circular") | x.roll(0, 0) | x.roll(2, 0) | x.roll(0) | torch.roll(x, (0, 0), (0, 1))
x.flip(0) | x.flip([]) | x[:1].flip(0) | x.repeat_interleave(1, 0) | x.repeat_interleave(1) | x.tril(5) | x.triu(-5)
x.index_select(0, torch.arange(2)) | x.gather(0, n % 2) | x[torch.arange(2)] | x[x > -9] | x[[0]] | x[...] | x[()]
x[:] | x[0] | x[None] | x[:, 0] | x[0, 0] | x.masked_select(x > -9) | x.masked_fill(x > 9, 0.0) | torch.where(b, x, x)
x.clamp(min=-99) | x.clip(-9, 9) | x.abs() | x.round() | x.floor() | n.floor() | n.ceil() | n.round() | n.trunc()
x.to(torch.float32) | x.float() | x.to("cpu") | x.cpu() | x.type(torch.float32) | x.type_as(x) | n.long() | n.int()
b.bool() | x.contiguous() | x.t().contiguous() | x.clone() | x.detach() | x.data | x.t() | x.T | x.mT | x.double()
x.t().reshape(-1) | x.t().flatten() | x.reshape(-1) | x.flatten() | x.ravel() | x.view(-1) | v.flatten() | s.flatten()
x.squeeze() | x.unsqueeze(0) | x.transpose(0, 1) | x.permute(1, 0) | x.movedim(0, 1) | x.swapaxes(0, 1)
x.expand(2, 2) | x.expand(3, 2, 2) | x.expand_as(x) | x.unflatten(0, (1, 2)) | x.narrow(0, 0, 2) | s.expand(1)
x.split(2)[0] | x.chunk(1)[0] | x.unbind()[0] | torch.unbind(x, 1)[0] | torch.split(x, [2])[0]
x.diagonal() | torch.diagonal(x, 1) | x.diagonal(-1, 1, 0) | x[None].diagonal(0, 1, 2) | torch.einsum("ii->i", x)
x.diag() | torch.diag(v) | torch.einsum("ij->ij", x) | torch.einsum("ij->ji", x) | torch.einsum("i->i", v)
x[:1].cumprod(0) | x[:1].logsumexp(0) | s.sum() | s.max() | s.mean() | s.prod() | s.min() | s.cumsum(0) | n[:1].prod(0)
x[:1].std(0, correction=0) | x[:1].norm(dim=0) | x[:1].sort(0)[0] | x.topk(2)[0] | v[:1].unique() | n[:1].amax(0)
F.dropout(x, 0.5, False) | F.dropout(x, 0.0, True) | nn.Identity()(x) | nn.Dropout().eval()(x) | nn.Flatten()(x)
F.interpolate(i, size=(2, 2)) | F.interpolate(i, scale_factor=1) | F.pixel_shuffle(i, 1) | F.avg_pool2d(i, 1)
F.max_pool2d(i, 1) | F.adaptive_avg_pool2d(i, 2) | F.unfold(i, 1) | F.normalize(x) | F.layer_norm(x, (2,)) | F.gelu(x)
torch.tensor(x) | torch.as_tensor(x) | x.new_tensor(x) | torch.from_numpy(x.numpy()) | torch.autograd.Variable(x)
copy.deepcopy(x) | copy.copy(x) | pickle.loads(pickle.dumps(x)) | torch.meshgrid(v, v, indexing="ij")[0]
x.scatter(0, n[:0], 1.0) | x.index_add(0, n[0, :0], x[:0]) | torch.take_along_dim(x, n % 2, 0)
"""
EXPRESSIONS = [one.strip() for row in ROWS.strip().splitlines() for one in row.split(" | ")]


def outcome(module, expression):
    """Does the result share memory with one of the names, and what is in them after 7 was written to it (None: that is
    refused)?
    """
    x, v, s = module.tensor([[-1.0, 2.0], [3.0, 4.0]]), module.tensor([1.0, 2.0]), module.tensor(3.0)
    names = {"x": x, "v": v, "s": s, "n": module.tensor([[1, 2], [3, 4]]), "b": x > 0}
    given = {"torch": module, "F": module.nn.functional, "nn": module.nn, "copy": copy, "pickle": pickle}
    y = eval(expression, given | names | {"i": x.view(1, 1, 2, 2)})
    at, ends = y.data_ptr(), [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in names.values()]
    try:
        y[...] = True if y.dtype == names["b"].dtype else 7
    except (RuntimeError, ValueError):
        return any(a <= at < b for a, b in ends), None
    return any(a <= at < b for a, b in ends), [t.tolist() for t in names.values()]


@pytest.mark.filterwarnings("ignore")  # of PyTorch's: copies by torch.tensor(x)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_memory_is_shared_where_pytorch_shares_it(expression):
    shared, after = outcome(torch, expression)
    ours, written = outcome(importlib.import_module("tinymp.torch"), expression)
    assert ours == shared
    assert written == after or (shared and written is None)
