"""CTC decoders: cases worked by hand, and the best labelling of all alignments."""

from itertools import groupby, product

import numpy as np
import pytest

import tinymp as mp
from oracle import randn, rng
from tinymp import models, ops

pytestmark = pytest.mark.cpu


def logs(*frames):
    """ln of probabilities (T, C)."""
    with np.errstate(divide="ignore"):
        return np.log(np.array(frames, float))


def labellings(x, blank):
    """Every labelling of x (T, C) and ln of its probability, from all alignments."""
    found = {}
    for way in product(range(x.shape[1]), repeat=len(x)):
        labels = tuple(c for c, _ in groupby(way) if c != blank)
        found[labels] = np.logaddexp(found.get(labels, -np.inf), x[np.arange(len(x)), way].sum())
    return found


def test_the_most_probable_labelling_is_not_that_of_the_best_alignment():
    """Blank twice: 0.36. One label: 0.4 0.4 + 0.4 0.6 + 0.6 0.4 = 0.64."""
    x = logs([0.6, 0.4], [0.6, 0.4])
    assert models.ctc_greedy(x) == [((), pytest.approx(np.log(0.36)))]
    assert models.ctc_beam_search(x) == [[((1,), pytest.approx(np.log(0.64))), ((), pytest.approx(np.log(0.36)))]]


def test_repetitions():
    """1 1 _ 1 is two labels, 1 1 1 one; from another blank the same."""
    one, blank = [0.1, 0.9], [0.9, 0.1]
    for frames, labels in (([one, one, blank, one], (1, 1)), ([one] * 3, (1,)), ([blank] * 2, ()), ([], ())):
        x = logs(*frames).reshape(-1, 2)
        assert models.ctc_greedy(x)[0].labels == labels
        assert models.ctc_beam_search(x)[0][0].labels == labels
        other = tuple(0 for _ in labels)
        assert models.ctc_greedy(x[:, ::-1], blank=1)[0].labels == other
        assert models.ctc_beam_search(x[:, ::-1], blank=1)[0][0].labels == other


def test_a_beam_of_one_by_hand():
    """The empty prefix (0.5) is lost to 1 (0.5 > 0.3 of the blank) in the first frame; from 1 then 1, 1 2 and 1 _."""
    x = logs([0.3, 0.5, 0.2], [0.2, 0.2, 0.6])
    ((best,),) = models.ctc_beam_search(x, beam_width=1)
    assert best == ((1, 2), pytest.approx(np.log(0.5 * 0.6)))


@pytest.mark.parametrize("language", [False, True])
@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_a_full_beam_finds_every_labelling(frames, blank, language):
    x = np.array(ops.log_softmax(mp.tensor(2 * randn(frames, 3)), -1))

    def model(prefix):
        return rng(hash(prefix) % 1000).standard_normal(3)

    expected = labellings(x, blank)
    if language:
        for labels in expected:
            expected[labels] += sum(model(labels[:i])[c] for i, c in enumerate(labels)) + model(labels)[blank]
    (found,) = models.ctc_beam_search(x, blank=blank, beam_width=1000, language_model=model if language else None)
    assert {t.labels for t in found} == expected.keys()
    np.testing.assert_allclose([t.score for t in found], [expected[t.labels] for t in found], rtol=1e-12)
    scores = [t.score for t in found]
    assert scores == sorted(scores, reverse=True)
    if not language:
        for t in found:  # the score is the loss
            loss = ops.ctc_loss(mp.tensor(x), list(t.labels), frames, len(t.labels), blank, "sum")
            np.testing.assert_allclose(loss.item(), -t.score, rtol=1e-12)


def test_a_narrow_beam_keeps_what_counts():
    """Of a network that is rather sure, a beam of 8 finds the best of all 3^7 alignments."""
    for seed in range(5):
        x = np.array(ops.log_softmax(mp.tensor(3 * randn(7, 3, seed=seed)), -1))
        exact = labellings(x, 0)
        (found,) = models.ctc_beam_search(x, beam_width=8)
        assert len(found) == 8
        assert found[0].labels == max(exact, key=exact.get)
        assert found[0].score <= exact[found[0].labels] + 1e-12


def test_a_language_model_that_forbids():
    """After 1 only 2 may come, and nothing ends with 1; the empty labelling may."""
    x = logs([0.2, 0.5, 0.3], [0.2, 0.5, 0.3])

    def model(prefix):
        return logs([0, 0, 1] if prefix[-1:] == (1,) else [1, 1, 1])[0]

    (found,) = models.ctc_beam_search(x, language_model=model)
    assert [t.labels for t in found] == [(2,), (1, 2), ()]
    np.testing.assert_allclose([t.score for t in found], np.log([0.21, 0.15, 0.04]))


def test_batches_lengths_and_dtypes():
    x = np.array(ops.log_softmax(mp.tensor(randn(6, 3, 4)), -1))
    for decode in (models.ctc_greedy, models.ctc_beam_search):
        expected = [decode(x[:n, i])[0] for i, n in enumerate((6, 3, 0))]
        assert decode(x, [6, 3, 0]) == expected
        assert decode(mp.tensor(x, requires_grad=True), mp.tensor([6, 3, 0])) == expected
        assert decode(x)[1] == decode(x[:, 1])[0]
        half = decode(x.astype("float16"))
        single = decode(x.astype("float16").astype("float32"))
        assert half == single


def test_probabilities_of_zero():
    assert models.ctc_beam_search(logs([0, 0], [1, 0])) == [[]]
    assert models.ctc_beam_search(logs([1, 0], [0, 1])) == [[((1,), 0.0)]]
    assert models.ctc_greedy(logs([1, 0], [0, 1])) == [((1,), 0.0)]


@pytest.mark.parametrize("decode", [models.ctc_greedy, models.ctc_beam_search])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.zeros(3),), ValueError, r"`log_probs` to be \(T, N, C\), .* got \(3,\)"),
        ((np.zeros((3, 0)),), ValueError, r"got \(3, 0\)"),
        ((np.zeros((3, 2), int),), TypeError, "`log_probs` to be floating, got int64"),
        (
            (np.zeros((3, 2, 4)), [3]),
            ValueError,
            r"`lengths` to have one entry for each of the 2 sequences, got \(1,\)",
        ),
        ((np.zeros((3, 2, 4)), [3, 4]), ValueError, r"`lengths` in \[0, 3\], .* got 4 at index 1"),
        ((np.zeros((3, 2, 4)), [3.0, 3]), TypeError, "`lengths` to be integers, got float64"),
        ((np.zeros((3, 2, 4)), None, 4), ValueError, r"`blank` to be a class in \[0, 3\], got 4"),
        ((logs([1, 1], [1, np.nan]),), ValueError, "no nan among `log_probs`, got one in frame 1 of sequence 0"),
    ],
)
def test_refused(decode, arguments, error, message):
    with pytest.raises(error, match=f"^{decode.__name__}: .*{message}"):
        decode(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 0}, "`beam_width` to be at least 1, got 0"),
        ({"language_model": lambda prefix: np.zeros(2)}, r"language_model\(prefix\) to be \(3,\), .* got shape \(2,\)"),
        ({"language_model": lambda prefix: [0, 0, np.nan]}, "got nan"),
    ],
)
def test_refused_by_beam_search(options, message):
    with pytest.raises(ValueError, match=f"^ctc_beam_search: .*{message}"):
        models.ctc_beam_search(np.zeros((2, 3)), **options)
