"""The translator: the same step by step as at once, and what it learns by heart."""

import numpy as np
import pytest

import tinymp as mp
from examples import paper as models
from examples.paper import NMT, beam_search
from oracle import host, rng
from tinymp import ops, optim

FP64 = mp.Policy("FP64", storage="float64")
S, T, B, LENGTHS = 6, 5, 3, [6, 2, 4]


def sentences(S=S, T=T, B=B, sizes=(20, 15), seed=0):
    return mp.tensor(rng(seed).integers(4, sizes[0], (S, B))), mp.tensor(rng(seed + 1).integers(4, sizes[1], (T, B)))


@pytest.mark.parametrize(("attention", "layers"), [("bahdanau", 3), ("luong", 2)])
def test_word_by_word_is_as_all_at_once(attention, layers):
    mp.manual_seed(0)
    model = FP64.cast(NMT(20, 15, 8, layers, attention=attention))
    source, target = sentences()
    logits = model(source, LENGTHS, target)
    state = model.encode(source, LENGTHS)
    for t in range(T):
        log_p, state = model.step(host(target.array)[t], state)
        np.testing.assert_allclose(log_p, ops.log_softmax(logits[t], 1).numpy(), atol=1e-6)  # FP32


def test_padding_changes_nothing():
    mp.manual_seed(0)
    model = FP64.cast(NMT(20, 15, 8, 2))
    source, target = sentences()
    logits = model(source, LENGTHS, target).numpy()
    for b, n in enumerate(LENGTHS):
        alone = model(source[:n, b : b + 1], None, target[:, b : b + 1])
        np.testing.assert_allclose(alone.numpy()[:, 0], logits[:, b], rtol=1e-9)
    padded = mp.tensor(np.concatenate([host(target.array), np.zeros((3, B), int)]))
    np.testing.assert_allclose(
        model.loss(source, LENGTHS, padded).item(), model.loss(source, LENGTHS, target).item(), rtol=1e-12
    )


@pytest.mark.cpu
def test_it_learns_sentences_by_heart_and_finds_them_again():
    """With label smoothing; the translation is the sentence backward."""
    policy = mp.MIXED
    mp.manual_seed(0)
    source = rng().integers(4, 12, (5, 8))
    lengths = np.array([5, 5, 4, 4, 3, 3, 2, 2])
    target = np.zeros((7, 8), int)
    for b, n in enumerate(lengths):
        source[n:, b] = models.nmt.PAD
        target[: n + 2, b] = [2, *source[:n, b][::-1], 3]
    model = policy.cast(NMT(12, 12, 32, 2, attention="luong"))
    optimizer, scaler = optim.Adam(model.parameters(), 2e-2), optim.DynamicLossScaler(2.0**10)
    words, translation = mp.tensor(source), mp.tensor(target)
    with mp.use(policy):
        for _ in range(60):
            scaler.scale(model.loss(words, lengths, translation, label_smoothing=0.1)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        model.eval()
        found = beam_search(model.step, model.encode(words, lengths), [2] * 8, end=3, max_length=8)
    for b, n in enumerate(lengths):
        assert found[b][0].tokens == source[:n, b][::-1].tolist()
