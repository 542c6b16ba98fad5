"""Deep Speech 2: padding changes nothing."""

import numpy as np
import pytest

import tinymp as mp
from examples import paper as models
from examples.paper.deepspeech2 import DeepSpeech2
from oracle import host, randn
from tinymp import ops

cpu = pytest.mark.cpu
FP64 = mp.Policy("FP64", storage="float64")


def ctc(logits, lengths, targets, target_lengths):
    return ops.ctc_loss(ops.log_softmax(logits.float(), 2).transpose(0, 1), targets, lengths, target_lengths)


def small():
    return DeepSpeech2(5, bands=9, context=3, scale=models.Scale(width=1 / 320))


def batch(*lengths, seed=0, padding=np.nan):
    x = np.full((len(lengths), max(lengths), 9), padding)
    for i, n in enumerate(lengths):
        x[i, :n] = randn(n, 9, seed=seed + i)
    return x


def test_alone_as_in_a_padded_batch():
    mp.manual_seed(0)
    model = FP64.cast(small())
    lengths = [25, 7, 1, 18]
    x = batch(*lengths)
    with mp.no_grad():
        model(mp.tensor(x), lengths)  # running statistics of these utterances
        model.eval()
        together, out = model(mp.tensor(x), mp.tensor(np.array(lengths)))
        assert out.tolist() == [13, 4, 1, 9]
        assert together.shape == (4, 13, 5)
        for i, n in enumerate(lengths):
            alone, (frames,) = model(mp.tensor(x[i : i + 1, :n]), [n])
            assert alone.shape[1] == frames == out[i]
            np.testing.assert_allclose(together.numpy()[i, :frames], alone.numpy()[0], rtol=1e-10, atol=1e-12)


def test_more_padding_changes_no_gradient():
    """Nor the running statistics: batch norm counts the frames that utterances have."""
    results = []
    for more in (0, 9):
        mp.manual_seed(0)
        model = FP64.cast(small())
        x = np.pad(batch(15, 12, 20), ((0, 0), (0, more), (0, 0)), constant_values=np.nan)
        logits, lengths = model(mp.tensor(x), [15, 12, 20])
        loss = ctc(logits, lengths, np.array([[1, 2, 3], [4, 4, 0], [2, 0, 0]]), [3, 2, 1])
        loss.backward()
        state = {name: host(value) for name, value in model.state_dict().items()}
        results.append((loss.item(), state | {name: host(p.grad) for name, p in model.named_parameters()}))
    (first, one), (second, other) = results
    assert first == pytest.approx(second, rel=1e-6)
    for name in one:
        scale = np.abs(one[name]).max()
        np.testing.assert_allclose(one[name], other[name], rtol=1e-6, atol=1e-6 * scale, err_msg=name)
